//! Members are lost: by silence, or because somebody saw their end.

use gradlane_core::error::Error;
use gradlane_core::types::{LinkId, Role, Time};

use super::Coordinator;
use super::controlling::recipient_of;
use crate::coordinator::Event;
use crate::coordinator::health::Silent;
use crate::coordinator::journal::Entry;
use crate::coordinator::roster::{Change, Identity, Line, Seat};
use crate::coordinator::stage::Stage;
use crate::coordinator::verdict::{Lost, Verdict, peer_lost, verdict};

impl Coordinator {
    /// Takes what the failure detector has found.
    pub(super) fn handle_silence(&mut self, now: Time, found: Vec<Silent>) {
        let mut loss = Vec::new();
        for Silent { identity, silent, cause } in found {
            let Some(seat) = self.roster.seat(identity) else { continue };
            match cause {
                Some(cause) => loss.push(Lost { identity, cause }),
                None => {
                    let (member, place) = (self.roster.name(identity), seat.member.place());
                    self.connections.event(Event::Suspect { member, place, silent });
                }
            }
        }
        self.find_lost(now, loss);
    }

    /// These members were found lost, not by their own word.
    pub(super) fn find_lost(&mut self, now: Time, loss: Vec<Lost>) {
        if !loss.is_empty() {
            let lost = loss.iter().map(|lost| (lost.identity, lost.cause.clone())).collect();
            self.write_down(Entry::Lost { at: now, lost });
        }
        self.lose(now, loss);
    }

    /// Gives up these members at the same time, and carries out the verdict.
    pub(super) fn lose(&mut self, now: Time, loss: Vec<Lost>) {
        let verdict = verdict(self.policy(), &self.roster, self.keeps_parameters(), &loss);
        let loses_server = loss.iter().any(|lost| lost.identity.role == Role::Server);
        let links: Vec<LinkId> =
            loss.iter().filter_map(|lost| self.roster.seat(lost.identity).and_then(Seat::link)).collect();
        let runs = matches!(self.stage, Stage::Running);
        if runs {
            self.forget_replaced();
        }
        let lost = loss.iter().filter_map(|lost| {
            let recipient = recipient_of(self.roster.seat(lost.identity)?);
            Some((recipient, peer_lost(&self.roster, lost)))
        });
        self.lose_recipients(&lost.collect::<Vec<_>>());
        for Lost { identity, cause } in loss {
            if let Some(place) = self.roster.seat(identity).map(|seat| seat.member.place()).filter(|_| runs) {
                let member = self.roster.name(identity);
                if identity.role == Role::Worker && self.roster.seat(identity).is_some_and(Seat::is_present) {
                    self.miss(format!("{member} on {place}: {cause}"));
                }
                self.connections.event(Event::Dead { member, place, cause });
            }
            self.roster.apply(Change::GiveUp(identity));
        }
        match verdict {
            Verdict::Abort { cause, reason } if runs => {
                self.connections.event(Event::Ends { reason });
                self.end(now, Err(cause));
            }
            Verdict::Continue { without, reason } if runs => {
                let names: Vec<String> = without.iter().map(|identity| self.roster.name(*identity)).collect();
                self.connections.event(Event::GoesOn { without: names.join(", "), reason });
                if loses_server {
                    // The view that follows says so, under its own epoch.
                    self.recovery.begin(now, self.epoch);
                }
                self.go_on(now, &without);
            }
            Verdict::Restore { cause, reason } if runs => {
                self.connections.event(Event::Restores { reason });
                self.break_up(now, cause);
            }
            // While the job forms, the end of its connection frees a seat. After the end there is nothing more to decide.
            Verdict::Free
            | Verdict::Nothing
            | Verdict::Abort { .. }
            | Verdict::Continue { .. }
            | Verdict::Restore { .. } => {}
        }
        if matches!(self.stage, Stage::Running) {
            self.connections.dismiss_parting(&Error::Fenced { current: self.epoch });
        }
        for link in links {
            self.dismiss(link, Error::Fenced { current: self.epoch });
        }
    }

    /// The connection of a member ended with `error`. It keeps its seat, unless the job still forms.
    pub(super) fn hold_seat(&mut self, identity: Identity, error: Error) {
        match self.stage {
            Stage::Forming { .. } => {
                self.roster.apply(Change::Free(identity));
            }
            Stage::Running | Stage::Closing { .. } | Stage::Finished { .. } => {
                self.write_down(Entry::Down(identity));
                if let Some(seat) = self.roster.seat_mut(identity) {
                    seat.line = Line::Down(error);
                }
            }
        }
    }
}
