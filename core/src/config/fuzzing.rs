//! What the fuzzer reaches of this module, whose parsers are private. Each function panics if a rule is broken.

use std::sync::LazyLock;

use super::cluster_file::ClusterFile;
use super::kinds::ProcessRole;
use super::knobs::{Config, KNOBS, Knob};
use super::load::File;
use super::origin::Origin;
use super::tf_config::TfConfig;
use crate::error::Error;

/// The text of one setting: refused with a reason, or shown so that it reads back as itself.
pub fn setting(knob: &'static Knob, text: &str) {
    let mut config = Config::default();
    match config.set(knob, text, Origin::Argument) {
        Ok(()) => reads_back(knob, &config, &mut Config::default()),
        Err(Error::Config { problem, hint, .. }) => {
            assert!(!problem.is_empty() && !hint.is_empty(), "{problem}, {hint}")
        }
        Err(error) => panic!("not about settings: {error}"),
    }
}

/// Every value that can be shown reads back as itself. Defaults do so in a test of their own.
pub fn values_read_back(config: &Config) {
    static DEFAULTS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let config = Config::default();
        KNOBS.iter().map(|knob| knob.value(&config)).collect()
    });
    let mut copy = Config::default();
    let news = KNOBS.iter().zip(&*DEFAULTS).filter(|(knob, default)| knob.value(config) != **default);
    news.for_each(|(knob, _)| reads_back(knob, config, &mut copy));
}

/// Whether `copy`, of which nothing else is asked, can take the value as it is shown. Secrets are not shown, and what is absent has no text.
fn reads_back(knob: &'static Knob, config: &Config, copy: &mut Config) {
    let text = knob.value(config);
    if !knob.unit.is_secret() && !text.is_empty() {
        let set = copy.set(knob, &text, Origin::Argument);
        assert_eq!(set, Ok(()), "{} is {text:?}", knob.name);
        assert_eq!(knob.value(copy), text, "{}", knob.name);
    }
}

/// The content of `TF_CONFIG`; whether it describes this process.
pub fn tf_config(text: &str) -> bool {
    match TfConfig::find(&|_| Some(text.to_owned())) {
        Ok(found) => found.is_some(),
        Err(Error::Config { problem, hint, .. }) => {
            assert!(!problem.is_empty() && !hint.is_empty(), "{problem}, {hint}");
            false
        }
        Err(error) => panic!("not about settings: {error}"),
    }
}

/// The text of a cluster file, as a process of this role and index takes it.
pub fn cluster_file(role: ProcessRole, index: Option<u32>, text: &str) {
    let file = File { path: "cluster.toml".to_owned(), text: text.to_owned() };
    let Ok(cluster) = ClusterFile::parse(&file) else { return };
    let mut config = Config { role, rank: index, server_index: index, ..Config::default() };
    for (name, value) in cluster.values(&config).unwrap_or_default() {
        let knob = Knob::find(name).expect("places are knobs");
        // Some values are out of the range of their setting, such as a job without workers.
        if config.set(knob, &value, Origin::Cluster(file.path.clone())).is_err() {
            return;
        }
    }
    if let (ProcessRole::Worker, Some(rank), Some(size)) = (role, config.rank, config.size) {
        assert!(index.is_none() || rank < size, "rank {rank} of {size}");
    }
    values_read_back(&config);
}
