//! What the process of a coordinator does at the order of an operator.

use gradlane_core::Result;
use gradlane_core::runtime::exporter::stats;
use gradlane_core::types::{ControlAnswer, ControlCommand};

use super::probe::Probe;
use crate::log;

/// Obeys a command. `report` writes a report of the job in a directory.
///
/// # Errors
/// Why it cannot.
pub(super) fn obey(
    probe: &Probe,
    command: ControlCommand,
    report: impl FnOnce(String) -> Result<ControlAnswer>,
) -> Result<ControlAnswer> {
    match command {
        ControlCommand::DumpRecorder { directory } => report(directory),
        ControlCommand::Stats => stats(probe),
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
