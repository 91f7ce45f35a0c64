//! Time passes.

use gradlane_core::types::Time;

use super::Coordinator;
use crate::coordinator::Event;
use crate::coordinator::journal::Entry;
use crate::coordinator::registry::Registry;
use crate::coordinator::stage::Stage;

impl Coordinator {
    /// When to call [`Coordinator::handle_timeout`] if nothing happens before. `None` once the job is finished.
    pub fn poll_timeout(&self) -> Option<Time> {
        let silence = self.failure_detector.poll_timeout();
        match self.stage {
            Stage::Forming { until } => Some(silence.map_or(until, |due| due.min(until))),
            Stage::Running => {
                let placement = self.registry.as_ref().and_then(Registry::poll_timeout);
                let asked = [
                    self.barriers.poll_timeout(),
                    self.clocks.poll_timeout(),
                    self.checkpoints.poll_timeout(),
                    self.controls.poll_timeout(),
                    self.store.poll_timeout(),
                    self.boundaries.poll_timeout(),
                ];
                asked.into_iter().chain([silence, placement, self.recovery.poll_timeout()]).flatten().min()
            }
            Stage::Closing { until, .. } => Some(until),
            Stage::Finished { .. } => None,
        }
    }

    /// [`Coordinator::poll_timeout`] passed. Calling it early is harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        match self.stage {
            Stage::Forming { until } if until <= now => self.form_late(now),
            Stage::Forming { .. } | Stage::Running => {
                if self.failure_detector.was_asleep(now) {
                    self.write_down(Entry::WokeUp { at: now });
                    self.wake_up(now);
                }
                let silent = self.failure_detector.sweep(now, &mut self.roster);
                self.handle_silence(now, silent);
                let is_late = |due: Option<Time>| due.is_some_and(|at| at <= now);
                let lasting = [self.barriers.poll_timeout(), self.boundaries.poll_timeout()];
                if lasting.into_iter().any(is_late) {
                    self.write_down(Entry::Late { at: now });
                }
                self.expire(now);
                self.expire_recovery(now);
                if let Some(warning) = self.registry.as_mut().and_then(|registry| registry.warning(now)) {
                    self.connections.event(Event::HotServer { warning });
                }
            }
            Stage::Closing { until, .. } if until <= now => self.finish(),
            Stage::Closing { .. } | Stage::Finished { .. } => {}
        }
    }

    /// Ends what has waited for too long.
    pub(super) fn expire(&mut self, now: Time) {
        let answers = self.barriers.expire(now);
        self.answer(answers);
        let late = self.clocks.expire(now);
        self.tell_ticked(late);
        let late = self.checkpoints.expire(now);
        self.turn_checkpoints(late);
        let late = self.controls.expire(now);
        self.answer_control(late);
        let replies = self.store.expire(now);
        self.reply(replies);
        self.expire_steps(now);
    }
}
