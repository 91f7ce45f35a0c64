//! How long a member waits for its coordinator.

use super::super::contact::Contact;
use super::{Member, MemberConfig, MemberEvent, Standing};
use crate::error::Error;
use crate::types::{Defect, Time, planted};

impl Member {
    /// When this process stops waiting for the coordinator.
    pub(super) fn patience_ends(&self) -> Option<Time> {
        match self.standing {
            Standing::Joining => Some(self.started + self.config.join_timeout),
            Standing::Active | Standing::Leaving | Standing::GivingUp(_) => {
                let MemberConfig { control_lost_timeout: lost, replaced_timeout: replaced, .. } = self.config;
                let patience = if self.line.is_refused() { lost.min(replaced) } else { lost };
                Some(self.heard.unwrap_or(self.started) + patience)
            }
            Standing::Ended(_) => None,
        }
    }

    /// Tells the process whether the coordinator is in contact, if that has changed.
    pub(super) fn note_contact(&mut self, now: Time) {
        let is_lost = !self.line.is_welcomed();
        let follows = match self.standing {
            Standing::Active | Standing::Leaving | Standing::GivingUp(_) => true,
            Standing::Joining | Standing::Ended(_) => false,
        };
        if follows && is_lost != self.is_lost {
            self.is_lost = is_lost;
            if let Some(contact) = &mut self.contact {
                contact.handle(now, is_lost);
            }
            self.tell(MemberEvent::Contact { at: now, is_lost });
        }
    }

    /// Until when no request fails because its usual time has passed.
    pub(super) fn patient_until(&self) -> Time {
        let contact = self.contact.as_ref().filter(|_| !planted(self.config.defect, Defect::UsualTimePasses));
        contact.map_or(Time::ZERO, Contact::patient_until)
    }

    /// Ends the requests whose time has passed.
    pub(super) fn expire_requests(&mut self, now: Time) {
        for event in self.requests.expire(now, self.patient_until(), self.config.silence_max) {
            self.tell(event);
        }
    }

    /// When [`expire_requests`](Self::expire_requests) has something to do.
    pub(super) fn requests_end(&self) -> Option<Time> {
        self.requests.poll_timeout(self.patient_until(), self.config.silence_max)
    }

    pub(super) fn out_of_patience(&self, now: Time) -> Error {
        let why = self.line.trouble();
        let coordinator = &self.config.coordinator;
        match (&self.standing, self.heard) {
            (Standing::Joining, Some(_)) => Error::Timeout {
                what: format!("joining the job: the coordinator at {coordinator} waits for other processes"),
                waited: now.since(self.started),
            },
            (Standing::Joining, None) => Error::Timeout {
                what: format!("joining the job: the coordinator at {coordinator} was not reached ({why})"),
                waited: now.since(self.started),
            },
            (Standing::Active | Standing::Leaving | Standing::GivingUp(_) | Standing::Ended(_), heard) => {
                Error::PeerLost {
                    member: "coordinator".to_owned(),
                    host: coordinator.clone(),
                    cause: format!("silent for {:.1} s; {why}", now.since(heard.unwrap_or(self.started)).as_secs_f64()),
                }
            }
        }
    }
}
