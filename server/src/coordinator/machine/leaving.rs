//! A member leaves, gives up, or is lost, and the others go on.

use gradlane_core::error::Error;
use gradlane_core::types::{LinkId, Recipient, Role, ServerId, Time, WorkerId, WorkerSet};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::Health;

use super::Coordinator;
use crate::coordinator::Event;
use crate::coordinator::roster::{Change, Identity, Line};
use crate::coordinator::stage::Stage;
use crate::coordinator::verdict::{Lost, Policy};

impl Coordinator {
    /// A member leaves: in order, or because it `failed`, for this cause.
    pub(super) fn handle_leave(&mut self, now: Time, link: LinkId, identity: Identity, failed: Option<String>) {
        match (&self.stage, identity.role) {
            (Stage::Forming { .. }, _) => {
                self.roster.apply(Change::Free(identity));
                self.connections.assign(link, None);
            }
            (Stage::Running, Role::Worker) if failed.is_none() => {
                self.roster.seat_mut(identity).expect("its connection speaks for it").leaves_on = Some(link);
                if !self.roster.apply(Change::Leave(identity)) {
                    return;
                }
                let seat = self.roster.seat_mut(identity).expect("a worker that left keeps its seat");
                let (left, who) = (WorkerId(seat.member.index), seat.member.described());
                self.store.forget(left);
                let cause = Error::Unavailable { what: who.clone(), cause: "it has left the job".to_owned() };
                self.lose_recipients(&[(Recipient::Worker(left), cause)]);
                let turn = self.clocks.leave(now, left);
                self.turn_clocks(turn);
                match self.config.policy {
                    Policy::Continue { .. } => {
                        self.roster.seat_mut(identity).expect("as above").is_past = true;
                        let (without, reason) = (self.roster.name(identity), "it left in order");
                        self.connections.event(Event::GoesOn { without, reason });
                        self.go_on_with_those_left(now);
                        self.advance_steps(now);
                    }
                    Policy::Abort => {
                        let answers = self.barriers.break_all(who);
                        self.answer(answers);
                        if self.roster.all_workers_left() {
                            self.end(now, Ok(()));
                        }
                    }
                }
            }
            (Stage::Running, Role::Worker | Role::Server | Role::Coordinator | Role::Observer | Role::Admin) => {
                let cause = failed.unwrap_or_else(|| "it left while the job ran".to_owned());
                if let Some(seat) = self.roster.seat_mut(identity).filter(|seat| seat.is_present()) {
                    // It is answered when the others know, because its end can look like another failure to them.
                    seat.line = Line::Down(Error::Fenced { current: self.epoch });
                    self.connections.part(link);
                    self.lose(now, vec![Lost { identity, cause }]);
                }
            }
            (Stage::Closing { .. } | Stage::Finished { .. }, _) => {
                let seat = self.roster.seat_mut(identity).expect("seats stay after the end");
                // One that waited for the end says again that it leaves when it has connected again, perhaps before it hears of the end.
                let is_repeat = seat.health == Health::Left && seat.leaves_on.replace(link) != Some(link);
                seat.knows_end |= !is_repeat;
            }
        }
    }

    /// Goes on without these members, under a new view. Waiting barriers go on with the remaining workers.
    pub(super) fn go_on(&mut self, now: Time, without: &[Identity]) {
        for identity in without {
            self.roster.apply(Change::Remove(*identity));
        }
        self.go_on_with_those_left(now);
        self.advance_steps(now);
    }

    /// Goes on under a new view, because there are fewer workers. Ends the job if there are none.
    pub(super) fn go_on_with_those_left(&mut self, now: Time) {
        if self.roster.all_workers_left() {
            return self.end(now, Ok(()));
        }
        self.epoch.number += 1;
        self.recovery.follow(now, self.epoch);
        let view = self.view();
        let workers: WorkerSet = view.workers().map(|member| WorkerId(member.index)).collect();
        let servers = view.servers().map(|member| ServerId(member.index)).collect();
        self.broadcast(&Frame::View(view));
        self.store.keep_workers(&workers);
        let turn = self.clocks.set_due(now, workers.clone(), servers);
        self.turn_clocks(turn);
        let answers = self.barriers.set_due(workers);
        self.answer(answers);
        self.end_names_without_lost(now);
    }
}
