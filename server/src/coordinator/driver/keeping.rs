//! What the coordinator keeps of what it hears: for its exporter, and for the report of the job.

use gradlane_core::types::LinkId;
use gradlane_core::wire::Frame;

use super::Driver;

impl Driver {
    /// Keeps what a member tells of itself, for the exporter and for the report.
    pub(super) fn keep(&mut self, link: LinkId, frame: &Frame) {
        match (frame, self.machine.member_at(link)) {
            (Frame::Metrics(stats), Some(member)) => {
                if let Some(told) = self.probe.gathered.take(member, stats) {
                    self.reporting.take(self.now(), member, told);
                }
            }
            (Frame::Setup(setup), Some(member)) => self.reporting.take_setup(member, setup),
            _ => {}
        }
    }

    /// The job has ended.
    pub(super) fn end_course(&mut self) {
        let now = self.now();
        self.reporting.end(now, || self.machine.status(now));
    }
}
