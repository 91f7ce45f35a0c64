//! What this process runs, and its settings.

use std::fs;
use std::path::Path;

use crate::config::Config;
use crate::types::setup::{COMMIT, VERSION};
use crate::types::{GivenSetting, Setup};
use crate::wire;

/// The setup of this process, as far as this library knows it. Its owner adds what else it runs.
pub fn setup(config: &Config) -> Setup {
    let Hardware { kernel, processor, processors, gpus, gpu_driver } = Hardware::read(Path::new("/"));
    let known = |name: &str, version: String| (!version.is_empty()).then(|| (name.to_owned(), version));
    let versions = [
        known("gradlane", VERSION.to_owned()),
        known("commit", COMMIT.unwrap_or_default().to_owned()),
        known("protocol", wire::VERSION.to_string()),
        known("kernel", kernel),
        known("processor", counted(&vec![processor; processors])),
        known("gpu", counted(&gpus)),
        known("gpu driver", gpu_driver),
    ];
    let setting = |(name, value, origin): (&str, String, String)| GivenSetting { name: name.to_owned(), value, origin };
    Setup { versions: versions.into_iter().flatten().collect(), settings: config.given().map(setting).collect() }
}

/// What the kernel tells of this machine. Texts that it does not tell are empty.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Hardware {
    /// The release of Linux, such as `6.8.0-31-generic`.
    pub kernel: String,
    /// The model of the processor.
    pub processor: String,
    /// How many processors the kernel shows.
    pub processors: usize,
    /// The models of the GPUs of NVIDIA.
    pub gpus: Vec<String>,
    /// The version of their driver.
    pub gpu_driver: String,
}

impl Hardware {
    /// Reads it from the files below `root`.
    pub fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let cpuinfo = text("proc/cpuinfo");
        let mut models: Vec<String> = fs::read_dir(root.join("proc/driver/nvidia/gpus"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|gpu| fs::read_to_string(gpu.path().join("information")).ok())
            .filter_map(|information| field(&information, "Model").map(str::to_owned))
            .collect();
        models.sort();
        Self {
            kernel: text("proc/sys/kernel/osrelease").trim().to_owned(),
            processor: field(&cpuinfo, "model name").unwrap_or_default().to_owned(),
            processors: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            gpus: models,
            gpu_driver: driver(&text("proc/driver/nvidia/version")).unwrap_or_default().to_owned(),
        }
    }
}

/// The first value of `key` in lines such as `key   : value`, as files of the kernel have them.
pub fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
}

/// The version in a line such as `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024`.
fn driver(text: &str) -> Option<&str> {
    let is_version = |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
    text.lines().next()?.split_whitespace().find(is_version)
}

/// Sorted names, each with its number, as `8 x NVIDIA H200`. Empty for names that are unknown.
fn counted(names: &[String]) -> String {
    let equal = names.chunk_by(|one, other| one == other).filter(|equal| !equal[0].is_empty());
    equal.map(|equal| format!("{} x {}", equal.len(), equal[0])).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_models_and_versions() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            (
                "proc/cpuinfo",
                "processor\t: 0\nmodel name\t: Fast: 3 GHz\n\nprocessor\t: 1\nmodel name\t: Fast: 3 GHz\n",
            ),
            ("proc/sys/kernel/osrelease", "6.8.0-31-generic\n"),
            ("proc/driver/nvidia/gpus/0000:1a:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 7\n"),
            ("proc/driver/nvidia/gpus/0000:1b:00.0/information", "Model: \t\t NVIDIA A100\n"),
            ("proc/driver/nvidia/gpus/0000:1c:00.0/information", "Model: \t\t NVIDIA H200\n"),
            (
                "proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.07  Release\n",
            ),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let Hardware { kernel, processor, processors, gpus, gpu_driver } = Hardware::read(root.path());
        assert_eq!((kernel.as_str(), processor.as_str(), processors), ("6.8.0-31-generic", "Fast: 3 GHz", 2));
        assert_eq!((counted(&gpus).as_str(), gpu_driver.as_str()), ("1 x NVIDIA A100, 2 x NVIDIA H200", "550.90.07"));
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Hardware::read(root.path()), Hardware::default());
        assert_eq!((counted(&[]), counted(&[String::new(), String::new()])), (String::new(), String::new()));
        for text in ["", "\n", "NVRM version", "NVIDIA x86_64 v1.2"] {
            assert_eq!(driver(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_process_tells_its_version_and_the_settings_that_somebody_gave() {
        let arguments = [("rank", "1"), ("size", "2"), ("credit_bytes", "8MiB"), ("secret", "0123456789abcdef")];
        let arguments = arguments.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let setup = setup(&Config::load(&arguments, [], None).unwrap().0);
        assert!(setup.versions.contains(&("protocol".to_owned(), wire::VERSION.to_string())), "{setup:?}");
        let given: Vec<_> =
            setup.settings.iter().map(|it| [&it.name, &it.value, &it.origin].map(String::as_str)).collect();
        assert_eq!(given, [["secret", "****", "argument"], ["credit_bytes", "8 MiB", "argument"]]);
    }
}
