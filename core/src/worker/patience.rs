//! What fails because it has waited too long for others. In a job that goes on without lost workers, nothing does while the coordinator is out
//! of contact, because only the coordinator can say that a member is lost.

use super::machine::Worker;
use crate::types::Time;

impl Worker {
    /// The coordinator is out of contact since `at`, or is back since then.
    pub fn handle_contact(&mut self, at: Time, is_lost: bool) {
        if let Some(contact) = &mut self.contact {
            contact.handle(at, is_lost);
            self.scheduler.be_patient(contact.patient_until());
        }
    }

    /// Until when nothing fails because it has waited too long for others.
    pub fn patient_until(&self) -> Time {
        self.contact.as_ref().map_or(Time::ZERO, |contact| contact.patient_until())
    }

    /// Fails what has waited too long for others, and drops the sums that were kept for them.
    pub(super) fn fail_overdue(&mut self, now: Time) {
        self.fail_parked(now);
        if now < self.patient_until() {
            return;
        }
        for (server, silence, error) in self.links.overdue(now) {
            let next = self.scheduler.fail_unanswered(now, server, silence.since, silence.patience, &error);
            self.links.checked(now, server, next);
        }
        for server in self.links.to_look_at(now) {
            self.fail_if_stuck(now, server);
        }
        self.fail_if_apart(now);
        self.withdraw_overdue(now);
        self.drop_old_sums(now);
    }

    /// When [`fail_overdue`](Self::fail_overdue) has something to do.
    pub(super) fn overdue_at(&self) -> Option<Time> {
        let apart = self.team.poll_timeout().filter(|_| self.ended.is_none());
        let due =
            [self.links.overdue_at(), apart, self.incomplete_due(), self.kept_until()].into_iter().flatten().min();
        let due = due.map(|due| due.max(self.patient_until()));
        due.into_iter().chain(self.parking.poll_timeout()).min()
    }
}
