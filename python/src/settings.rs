//! The settings of the process, as Python gives them.

use std::collections::BTreeMap;

use gradlane_core::Result;
use gradlane_core::config::Config;

/// Knobs by name, as text.
pub(crate) type Settings = BTreeMap<String, String>;

/// The settings of this process; what looks like a mistake goes to standard error.
pub(crate) fn config(arguments: &Settings) -> Result<Config> {
    let (config, warnings) = Config::from_process(arguments)?;
    for warning in warnings {
        eprintln!("gradlane: {warning}");
    }
    Ok(config)
}
