//! What the driver of a coordinator records, and how its end is told.

use gradlane_core::types::LinkId;
use gradlane_core::wire::Frame;
use gradlane_core::{Error, Result};

use super::happened::sentence;
use super::{CoordinatorNode, Driver, log};
use crate::coordinator::Event;

impl CoordinatorNode {
    /// Writes what its flight recorder has into a file, because a signal asks for it. Does not wait for the file.
    pub fn dump_by_signal(&self) {
        self.flight.signalled(None);
    }

    /// Whether a signal has its flight recorder written into a file: a setting says where, and something is recorded.
    pub fn is_dumped_by_signal(&self) -> bool {
        self.flight.is_kept()
    }
}

impl Driver {
    /// Somebody has said this. Returns where a process is that asks for a place in the job.
    pub(super) fn note_heard(&self, link: LinkId, frame: &Frame) -> Option<String> {
        if !self.flight.is_on() {
            return None;
        }
        if let Frame::Join(join) = frame {
            return Some(join.process.place());
        }
        self.flight.recorder.heard(self.clock.now(), || self.machine.member_at(link), frame);
        None
    }

    /// A process at this place has asked for a place in the job, and may have one now.
    pub(super) fn note_joined(&self, link: LinkId, place: Option<String>) {
        if let (Some(place), Some(member)) = (place, self.machine.member_at(link)) {
            self.flight.recorder.joined(self.clock.now(), member, &place);
        }
    }

    /// A connection has ended.
    pub(super) fn note_disconnected(&self, link: LinkId, reason: &Error) {
        if self.flight.is_on() {
            self.flight.recorder.disconnected(self.clock.now(), self.machine.member_at(link), &reason.to_string());
        }
    }

    /// Somebody is told this.
    pub(super) fn note_told(&mut self, link: LinkId, frame: &Frame) {
        if !self.flight.is_on() {
            return;
        }
        if let Frame::View(view) = frame {
            // Every member is told of it.
            if self.told_epoch.replace(view.epoch) == Some(view.epoch) {
                return;
            }
            self.flight.formed(view);
        }
        self.flight.recorder.told(self.clock.now(), || self.machine.member_at(link), frame);
    }

    /// Something has happened to the job.
    pub(super) fn happened(&mut self, event: &Event) {
        self.probe.count(event);
        self.reporting.note(self.now(), event);
        self.flight.recorder.happened(self.clock.now(), event);
        if let Event::GoesOn { .. } | Event::Restores { .. } = event {
            self.flight.troubled(|| sentence(event).unwrap_or_default());
        }
        log::event(event);
    }

    /// The job is over for those who wait for its end.
    pub(super) fn ends(&self, outcome: Result<()>) {
        if let Err(error) = &outcome {
            self.flight.ended(error);
        }
        self.end.set(outcome);
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;
    use gradlane_core::config::Config;

    use super::super::Input;
    use super::*;
    use crate::coordinator::CoordinatorConfig;

    #[test]
    fn it_is_dumped_while_its_thread_is_stuck_and_when_it_fails() {
        let dir = tempfile::tempdir().unwrap();
        let dump_dir = Some(dir.path().to_owned());
        let config = Config { bind: "127.0.0.1:0".to_owned(), job: "night".to_owned(), dump_dir, ..Config::default() };
        let node = CoordinatorNode::start(CoordinatorConfig::from_config(&config, 2, 1), &config, None).unwrap();
        let (reply, taken) = bounded(0);
        node.inputs.send(Input::Status(reply)).unwrap();
        while !node.inputs.is_empty() {
            std::thread::yield_now();
        }
        // Its thread waits until somebody takes the status.
        let path = node.flight.dump(dir.path(), "a test", None).unwrap();
        assert!(path.ends_with("night-coordinator.flight.json"), "{path:?}");
        taken.recv().unwrap();
        node.stop(Error::Cancelled);
        let text = std::fs::read(dir.path().join("flight/night-coordinator.flight.json")).unwrap();
        let dump: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(dump["end"]["kind"], "Cancelled");
    }
}
