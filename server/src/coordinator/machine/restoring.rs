//! Servers were lost, and the job goes on without them: workers restore the sums that others miss.

use gradlane_core::error::Error;
use gradlane_core::types::{Epoch, Holdings, Time, WorkerId};
use gradlane_core::wire::Frame;

use super::Coordinator;
use crate::coordinator::Event;
use crate::coordinator::journal::Entry;
use crate::coordinator::questions;
use crate::coordinator::recovery::{Next, Orders};
use crate::coordinator::roster::{Identity, Seat};
use crate::coordinator::stage::Stage;

impl Coordinator {
    /// A worker says what it has and wants of the parts whose servers were lost.
    pub(super) fn handle_holdings(&mut self, now: Time, identity: Identity, holdings: Holdings) {
        let Ok(worker) = questions::asking_worker(&self.stage, &self.roster, identity) else { return };
        let again = self.recovery.report(worker, holdings);
        again.into_iter().for_each(|next| self.carry_on(now, next));
        self.advance_recovery(now);
    }

    /// A worker has restored what it was to restore.
    pub(super) fn handle_restored(&mut self, now: Time, identity: Identity, epoch: Epoch) {
        let Ok(worker) = questions::asking_worker(&self.stage, &self.roster, identity) else { return };
        self.recovery.restored(worker, epoch);
        self.advance_recovery(now);
    }

    fn advance_recovery(&mut self, now: Time) {
        for next in self.recovery.advance(&self.stepping_workers()) {
            self.carry_on(now, next);
        }
    }

    fn carry_on(&mut self, now: Time, next: Next) {
        match next {
            Next::Tell { worker, epoch, orders: Orders { sums, lost } } => {
                if let Some(link) = self.roster.worker(worker).and_then(Seat::link) {
                    self.connections.send(link, Frame::Restore { epoch, sums, lost });
                }
            }
            Next::Over => {
                self.write_down(Entry::Recovered { at: now });
                self.end_recovery();
            }
        }
    }

    /// Every sum is where it is wanted: parts go to the servers that they have now.
    pub(super) fn end_recovery(&mut self) {
        self.recovery.close();
        self.epoch.number += 1;
        let view = self.view();
        self.broadcast(&Frame::View(view));
        self.connections.event(Event::Recovered { epoch: self.epoch });
    }

    /// Ends the job if workers do not say what they have, or do not restore it.
    pub(super) fn expire_recovery(&mut self, now: Time) {
        let Some((missing, waited)) = self.recovery.overdue(now, &self.stepping_workers()) else { return };
        if !matches!(self.stage, Stage::Running) {
            return;
        }
        let names: Vec<String> = missing.iter().map(WorkerId::to_string).collect();
        let what = format!("recovering the sums of servers that were lost: {} did not answer", names.join(", "));
        self.connections.event(Event::Ends { reason: "the sums of a lost server were not recovered in time" });
        self.end(now, Err(Error::Timeout { what, waited }));
    }
}
