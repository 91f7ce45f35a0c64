//! The log of a process.

use std::io::IsTerminal;

use gradlane_core::config::Config;
use gradlane_core::{Error, Result};
use tracing_subscriber::EnvFilter;

/// Starts the log of this process, on standard error, because standard output is for results. Keeps an existing log, such as that of a
/// test. Lines that cannot be written, as on a full disk, are lost.
///
/// # Errors
/// [`Error::Config`] if the setting `log` is no filter.
pub fn start(config: &Config) -> Result<()> {
    let filter = EnvFilter::try_new(&config.log).map_err(|cause| Error::Config {
        knob: "log".to_owned(),
        problem: format!("{:?} is no filter: {cause}", config.log),
        hint: "give a level such as info, or directives such as info,gradlane_core::sched=trace".to_owned(),
    })?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Errors of the log would be reported by a macro that panics if standard error cannot be written.
    let _ = log.with_ansi(std::io::stderr().is_terminal()).log_internal_errors(false).try_init();
    Ok(())
}
