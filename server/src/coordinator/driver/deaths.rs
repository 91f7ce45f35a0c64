//! A launcher sees processes of this host end.

use gradlane_core::Error;
use gradlane_core::types::{Phase, Time};
use gradlane_core::wire::frame::Health;

use super::{CoordinatorNode, Driver, Input};

impl CoordinatorNode {
    /// Reports that a process of this host has ended, so that its loss is known at once and not only after a silence. A process that is started
    /// in its place is another member. A job that has not formed ends.
    pub fn report_death(&self, pid: u32, cause: String) {
        let _ = self.inputs.send(Input::Death { pid, cause, returns: false });
    }

    /// The same of a process that is started again. If it was a server, a job that forms again waits for the one that comes in its place.
    pub fn report_restart(&self, pid: u32, cause: String) {
        let _ = self.inputs.send(Input::Death { pid, cause, returns: true });
    }
}

impl Driver {
    /// A process of this host has ended. The job cannot form without it, because nobody starts it again.
    pub(super) fn handle_death(&mut self, now: Time, pid: u32, cause: String, returns: bool) {
        if returns {
            self.machine.expect_replacement(pid, &self.host);
        } else {
            self.note_failure(pid, cause.clone());
        }
        self.machine.handle_death(now, pid, &self.host, cause.clone());
        let view = self.machine.view();
        // Later, others form it without this one.
        if view.phase == Phase::Forming && view.formed_before == 0 {
            let (member, host) = ("a process".to_owned(), format!("{} (pid {pid}) before the job formed", self.host));
            self.machine.stop(now, Error::PeerLost { member, host, cause });
        }
    }

    /// A process of this host has failed. If it was a member that left in order, nobody lost it, and only the report tells of its end.
    pub(super) fn note_failure(&mut self, pid: u32, cause: String) {
        let status = self.machine.status(self.now());
        let mut members = status.view.members.iter().zip(&status.members);
        if members.any(|(member, status)| member.process.is(&self.host, pid) && status.health == Health::Left) {
            self.reporting.note_failure(cause);
        }
    }
}
