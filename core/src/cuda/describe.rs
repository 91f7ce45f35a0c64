//! Describes the CUDA driver and devices of this machine for people.

use std::path::Path;

use crate::config::Config;

/// One line of the description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Whether it can be used.
    pub usable: bool,
    /// Its subject: `cuda`, or a device such as `cuda:0`.
    pub subject: String,
    /// What was found.
    pub found: String,
    /// What to do; may be empty.
    pub advice: String,
}

/// Loads the driver as an engine with these settings does, and lists its devices and PCIe groups. Makes no context, so it takes no device
/// memory. `seen` is the file that lies where drivers are installed.
#[cfg(feature = "cuda")]
pub fn describe(config: &Config, seen: Option<&Path>) -> Vec<Line> {
    use crate::config::units::print_bytes;

    let about = |usable, subject: String, found, advice: String| Line { usable, subject, found, advice };
    let driver = match super::Driver::load(config.cuda_lib.as_deref()) {
        Ok(driver) => driver,
        Err(absent) => {
            // The loader does not look there.
            let lies = seen.filter(|_| matches!(absent, super::driver::Absent::NoLibrary { .. }));
            let lies =
                lies.map_or_else(String::new, |path| format!("; {} exists, so cuda_lib may name it", path.display()));
            return vec![about(false, "cuda".to_owned(), absent.to_string(), absent.advice() + &lies)];
        }
    };
    let place = Path::new(driver.library());
    let place = seen.filter(|path| path.file_name() == Some(place.as_os_str())).unwrap_or(place);
    let found = format!("a driver for CUDA up to {}: {}", driver.version(), place.display());
    let mut lines = vec![about(true, "cuda".to_owned(), found, String::new())];
    for device in driver.ordinals() {
        lines.push(match driver.facts(device) {
            Ok(facts) => {
                let node = super::numa_node(&driver, Path::new("/"), device);
                let node = node.map_or_else(String::new, |node| format!(", NUMA node {node}"));
                let found = format!("{}, {}, PCI {}{node}", facts.model, print_bytes(facts.bytes), facts.pci_bus_id);
                about(true, super::name(device), found, String::new())
            }
            Err(error) => {
                about(false, super::name(device), error.to_string(), "look at the output of `nvidia-smi`".to_owned())
            }
        });
    }
    if lines.len() > 2 {
        lines.push(match super::wiring::groups(&driver, Path::new("/")) {
            Ok(groups) => {
                let advice = groups.switch_size().map_or_else(String::new, |size| {
                    format!("with pcie_switch_size={size} each group reduces first and the host adds the results; NCCL alone may be faster")
                });
                about(true, "pcie groups".to_owned(), groups.to_string(), advice)
            }
            Err(error) => about(
                false,
                "pcie groups".to_owned(),
                error.to_string(),
                "look at the output of `nvidia-smi topo -m`".to_owned(),
            ),
        });
    }
    lines
}

/// The description for a build without CUDA.
#[cfg(not(feature = "cuda"))]
pub fn describe(_config: &Config, _seen: Option<&Path>) -> Vec<Line> {
    vec![Line {
        usable: false,
        subject: "cuda".to_owned(),
        found: "this program was built without CUDA support".to_owned(),
        advice: "summation servers do not need it; for workers with GPUs install the Python package gradlane"
            .to_owned(),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_comes_with_what_to_do() {
        let config = Config { cuda_lib: Some("/nowhere/libcuda.so.1".into()), ..Config::default() };
        let [line] = &describe(&config, None)[..] else { panic!("one line") };
        assert_eq!((line.usable, line.subject.as_str()), (false, "cuda"));
        assert!(!line.advice.is_empty());
        let searched = line.found.contains("/nowhere/libcuda.so.1");
        assert_eq!(searched, cfg!(feature = "cuda"), "{}", line.found);
    }
}
