//! Loads the settings of the process for a binding.

use std::collections::BTreeMap;

use gradlane_core::Result;
use gradlane_core::config::Config;

/// Settings by name, as text.
pub type Settings = BTreeMap<String, String>;

/// The settings of this process: `arguments`, the environment and the file of settings. Warnings go to standard error.
///
/// # Errors
/// As [`Config::from_process`].
pub fn config(arguments: &Settings) -> Result<Config> {
    let (config, warnings) = Config::from_process(arguments)?;
    for warning in warnings {
        eprintln!("gradlane: {warning}");
    }
    Ok(config)
}
