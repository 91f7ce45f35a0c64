//! What the process of a coordinator does at the order of an operator.

use gradlane_core::Result;
use gradlane_core::runtime::exporter::stats;
use gradlane_core::types::{ControlAnswer, ControlCommand};

use super::Driver;
use crate::log;

/// Obeys a command.
///
/// # Errors
/// Why it cannot.
pub(super) fn obey(driver: &Driver, command: ControlCommand) -> Result<ControlAnswer> {
    match command {
        ControlCommand::DumpRecorder { directory } => driver.report_so_far(&directory),
        ControlCommand::Stats => stats(&*driver.probe),
        ControlCommand::Log { filter } => log::change(&filter).map(|()| ControlAnswer::Done),
        ControlCommand::Drain
        | ControlCommand::Save { .. }
        | ControlCommand::SetRate { .. }
        | ControlCommand::Dump { .. }
        | ControlCommand::Timeline { .. }
        | ControlCommand::StopTimeline
        | ControlCommand::Unknown { .. } => Err(command.refusal("the process of a coordinator")),
    }
}
