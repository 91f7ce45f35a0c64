//! How members go and how the job ends: in order when the last worker left, else with the first cause.

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{LinkId, Role, Time};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::Health;

use super::Event;
use super::health::Silent;
use super::machine::{Coordinator, Stage};
use super::roster::{Identity, Line, Seat};

impl Coordinator {
    pub(super) fn handle_silence(&mut self, now: Time, found: Silent) {
        let Some(seat) = self.roster.seat(found.identity) else { return };
        let silent = found.silent.as_secs_f64();
        if !found.dead {
            let (member, place) = (self.roster.name(found.identity), seat.member.place());
            return self.event(Event::Suspect { member, place, silent: found.silent });
        }
        let cause = match &seat.line {
            Line::Up(_) => format!("silent for {silent:.1} s"),
            Line::Down(error) => format!("silent for {silent:.1} s since its connection ended: {error}"),
        };
        self.lose(now, found.identity, cause);
    }

    pub(super) fn handle_leave(&mut self, now: Time, link: LinkId, identity: Identity) {
        match (&self.stage, identity.role) {
            (Stage::Forming { .. }, _) => {
                self.roster.free(identity);
                self.links.get_mut(&link).expect("it just sent a frame").speaks_for = None;
            }
            (Stage::Running, Role::Worker) => {
                let seat = self.roster.seat_mut(identity).expect("sealed seats stay");
                if std::mem::replace(&mut seat.health, Health::Left) == Health::Left {
                    return;
                }
                let who = format!("{} on {}", seat.member.name(), seat.member.place());
                let answers = self.barriers.break_all(who);
                self.answer(answers);
                let left = |seat: &Seat| seat.member.role != Role::Worker || seat.health == Health::Left;
                if self.roster.seats().all(left) {
                    self.end(now, Ok(()));
                }
            }
            (Stage::Running, Role::Server | Role::Coordinator) => {
                self.lose(now, identity, "it left while the job ran".to_owned());
            }
            (Stage::Closing { .. } | Stage::Finished { .. }, _) => {
                self.roster.seat_mut(identity).expect("seats stay after the end").knows_end = true;
            }
        }
    }

    /// Gives a member up.
    pub(super) fn lose(&mut self, now: Time, identity: Identity, cause: String) {
        let name = self.roster.name(identity);
        let Some(seat) = self.roster.seat_mut(identity) else { return };
        seat.health = Health::Dead;
        let (incarnation, place, link) = (seat.member.incarnation, seat.member.place(), seat.link());
        self.roster.fence(identity.node, incarnation);
        match self.stage {
            Stage::Forming { .. } => {}
            Stage::Running => {
                self.event(Event::Dead { member: name.clone(), place: place.clone(), cause: cause.clone() });
                self.end(now, Err(Error::PeerLost { member: name, host: place, cause }));
            }
            Stage::Closing { .. } | Stage::Finished { .. } => {}
        }
        // While the job forms, this frees the seat: there, every seat has a connection.
        if let Some(link) = link {
            let current = self.epoch;
            self.dismiss(link, Error::Fenced { current });
        }
    }

    /// Ends the job, once: whoever waits gets `outcome`, and everybody is told.
    pub(super) fn end(&mut self, now: Time, outcome: Result<()>) {
        let formed = match self.stage {
            Stage::Forming { .. } => false,
            Stage::Running => true,
            Stage::Closing { .. } | Stage::Finished { .. } => return,
        };
        let until = now + self.config.leave_grace;
        self.epoch.number += 1;
        self.stage = Stage::Closing { outcome: outcome.clone(), until };
        if let Err(cause) = &outcome {
            let answers = self.barriers.fail_all(cause);
            self.answer(answers);
        }
        match outcome {
            Err(cause) if !formed => {
                self.broadcast(&Frame::Refused(cause));
            }
            Ok(()) | Err(_) => {
                let view = self.view();
                self.broadcast(&Frame::View(view));
            }
        }
    }

    /// Whether nobody is left to wait for. That the end was sent is not enough: the connection may have been lost on the way.
    pub(super) fn all_know(&self) -> bool {
        self.roster.seats().all(|seat| seat.health == Health::Dead || seat.knows_end)
    }

    pub(super) fn finish(&mut self) {
        let Stage::Closing { outcome, .. } = &self.stage else { return };
        let outcome = outcome.clone();
        self.stage = Stage::Finished { outcome: outcome.clone() };
        self.event(Event::Finished(outcome));
    }
}

/// What a question is answered after the end.
pub(super) fn over(outcome: &Result<()>) -> Error {
    match outcome {
        Ok(()) => Error::FailedPrecondition { what: "the job ended".to_owned(), hint: "start a new one".to_owned() },
        Err(cause) => cause.clone(),
    }
}
