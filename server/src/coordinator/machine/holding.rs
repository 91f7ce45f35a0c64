//! Too few workers are left, and the job waits for others: the workers hold behind their step.
//!
//! Nobody waits for workers that have left in order. What must be known of them, and of those that were lost, goes over to the next formation.

use std::time::Duration;

use gradlane_core::error::Error;
use gradlane_core::types::{Member, Role, Time};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::{Health, Hold, Names};

use super::Coordinator;
use crate::coordinator::Event;
use crate::coordinator::boundaries::Others;
use crate::coordinator::roster::Seat;
use crate::coordinator::stage::Stage;
use crate::coordinator::verdict::Policy;

impl Coordinator {
    /// The policy where those that left in order before this formation are not waited for.
    pub(super) fn policy(&self) -> Policy {
        self.config.policy.without_leavers(self.missed.left)
    }

    /// The workers that could join those of the job, or should.
    pub(super) fn others(&self) -> Others {
        Others { wait: self.takes_in(), lacking: self.lacking(), came_before: self.formed_before > 0 }
    }

    /// How many workers the job waits for at least, besides those that wait to be taken in.
    pub(super) fn lacking(&self) -> u32 {
        let coming = if self.takes_in_a(Role::Worker) { self.newcomers.count(Role::Worker) } else { 0 };
        let there = u32::try_from(self.stepping_seats().count()).expect("at most MEMBERS_MAX");
        self.needed().saturating_sub(there.saturating_add(coming))
    }

    /// How many workers the job needs to go on, if it waits for others when there are fewer; else none.
    fn needed(&self) -> u32 {
        match self.policy().without_leavers(self.leavers()) {
            Policy::Continue { min_workers, rejoin: Some(_), .. } => min_workers,
            Policy::Continue { .. } | Policy::Abort => 0,
        }
    }

    /// How many of the workers that the job needs are there, and how many it needs.
    fn quorum(&self) -> (u32, u32) {
        let needed = self.needed();
        // Never more are lacking than are needed.
        (needed - self.lacking(), needed)
    }

    /// How many workers of this formation have left in order.
    fn leavers(&self) -> u32 {
        let has_left = |seat: &&Seat| seat.member.process.role == Role::Worker && seat.health == Health::Left;
        u32::try_from(self.roster.seats().filter(has_left).count()).expect("at most MEMBERS_MAX")
    }

    /// All workers leave this formation: what goes over to the next one.
    pub(super) fn count_leavers(&mut self) {
        self.missed.left = self.missed.left.saturating_add(self.leavers());
    }

    /// A worker was lost, which the job may have to wait for.
    pub(super) fn miss(&mut self, lost: String) {
        if self.config.policy.rejoin().is_some() {
            self.missed.note(lost);
        }
    }

    /// As [`miss`](Self::miss), of a member that was expected again.
    pub(super) fn miss_expected(&mut self, member: &Member, cause: &str) {
        if member.process.role == Role::Worker {
            self.miss(format!("worker on {}: {cause}", member.process.place()));
        }
    }

    /// If enough workers are there, those that were lost are missed no more.
    pub(super) fn forget_replaced(&mut self) {
        if self.lacking() == 0 {
            self.missed.lost.clear();
        }
    }

    /// Whether the workers hold now, and for whom.
    pub(super) fn hold(&self, now: Time) -> Option<Hold> {
        let until = self.boundaries.holds_until().filter(|_| matches!(self.stage, Stage::Running))?;
        let ((there, needed), lost) = (self.quorum(), &self.missed.lost);
        let lost = Names::first(lost.iter().cloned(), lost.len());
        Some(Hold { there, needed, lost, patience: until.since(now) })
    }

    /// Tells the workers that they hold, and for whom.
    pub(super) fn tell_hold(&mut self, now: Time, change: u64, step: u64) {
        let Some(hold) = self.hold(now) else { return };
        let Hold { there, needed, lost, patience } = hold.clone();
        self.connections.event(Event::Holds { there, needed, lost, patience });
        self.tell_workers(&Frame::Boundary { change, limit: Some(step), hold: Some(hold) });
    }

    /// The others have not come.
    pub(super) fn give_up_waiting(&mut self, now: Time, waited: Duration) {
        let ((there, needed), lost) = (self.quorum(), self.missed.lost.clone());
        self.connections.event(Event::Ends { reason: "too few workers were left, and no others came" });
        self.end(now, Err(Error::QuorumLost { there, needed, lost, waited }));
    }
}
