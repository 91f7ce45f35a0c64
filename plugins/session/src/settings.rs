//! Loads the settings of the process for a binding.

use std::collections::BTreeMap;
use std::io::{self, Write};

use gradlane_core::Result;
use gradlane_core::config::Config;
use gradlane_core::runtime::process;

/// Settings by name, as text.
pub type Settings = BTreeMap<String, String>;

/// The settings of this process: `arguments`, the environment and the file of settings.
///
/// # Errors
/// As [`Config::from_process`].
pub fn config(arguments: &Settings) -> Result<Config> {
    Ok(Config::from_process(arguments)?.0)
}

/// As [`config`], and starts the log. Warnings go to standard error. To be called once per job, so that each warning comes once.
///
/// # Errors
/// As [`Config::from_process`].
pub(crate) fn config_with_warnings(arguments: &Settings) -> Result<Config> {
    let (config, warnings) = Config::from_process(arguments)?;
    gradlane_server::log::start(&config)?;
    let warnings = warnings.iter().map(ToString::to_string);
    for warning in warnings.chain(process::why_machine_is_unknown(&config)) {
        // A warning is lost where it cannot be written, as on a full disk.
        let _ = writeln!(io::stderr(), "gradlane: {warning}");
    }
    Ok(config)
}
