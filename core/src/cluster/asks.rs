//! What a member has asked the store of its job, a clock, or for a checkpoint, without an answer yet. Decides when to give it up. The member sends it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::{Answer, Ask, Time};
use crate::wire::{Frame, limits};

use super::MemberEvent;
use super::contact::{Due, Patience};

/// Unanswered requests by number.
#[derive(Default, Debug)]
pub(super) struct Asks(BTreeMap<u64, Asked>);

#[derive(Debug)]
struct Asked {
    ask: Ask,
    asked: Time,
    due: Due,
}

impl Asks {
    /// Keeps a request until it is answered. Returns its frame. The process waits for the answer for `patience`; what waits at the
    /// coordinator ends with that.
    ///
    /// # Errors
    /// As [`limits::check_ask`]; [`Error::Exhausted`] if there are more changes than the coordinator remembers answers for, or more
    /// requests than a job may have.
    pub(super) fn ask(&mut self, now: Time, request: u64, ask: Ask, patience: Patience) -> Result<Frame> {
        limits::check_ask(&ask)?;
        let changes = || self.0.values().filter(|asked| asked.ask.is_change()).count();
        if ask.is_change() && changes() >= limits::STORE_CHANGES_MAX {
            return Err(exhausted(
                "changes of the store, ticks and checkpoints by one worker at once",
                limits::STORE_CHANGES_MAX,
            ));
        }
        if self.0.len() >= limits::STORE_WAITS_MAX {
            return Err(exhausted("requests of one worker to the coordinator at once", limits::STORE_WAITS_MAX));
        }
        let asked = Asked { ask, asked: now, due: Due::new(now, patience) };
        let frame = asked.frame(now, request, Time::ZERO);
        self.0.insert(request, asked);
        Ok(frame)
    }

    /// The frames of all unanswered requests, to be sent again, in the order in which they were asked, by a process that is patient until
    /// then.
    pub(super) fn frames(&self, now: Time, patient_until: Time) -> impl Iterator<Item = Frame> {
        self.0.iter().map(move |(request, asked)| asked.frame(now, *request, patient_until))
    }

    /// Whether this request has no answer.
    pub(super) fn knows(&self, request: u64) -> bool {
        self.0.contains_key(&request)
    }

    /// Takes the answer to a request. `None` if there is no such request.
    ///
    /// # Errors
    /// The fault of the answer, as text.
    pub(super) fn answered(
        &mut self,
        request: u64,
        outcome: Result<Answer>,
    ) -> Option<std::result::Result<MemberEvent, String>> {
        let asked = self.0.remove(&request)?;
        if outcome.as_ref().is_ok_and(|answer| !asked.ask.is_answered_by(answer)) {
            return Some(Err(format!("{request} is not answered by what it asks for")));
        }
        Some(Ok(MemberEvent::Answered { request, outcome }))
    }

    /// Gives up the requests whose time passed so long ago that the coordinator's answer should have come; see [`Due::given_up_at`].
    pub(super) fn expire(&mut self, now: Time, patient_until: Time, silence_max: Duration) -> Vec<MemberEvent> {
        let all = std::mem::take(&mut self.0).into_iter();
        let (late, waiting): (BTreeMap<_, _>, _) =
            all.partition(|(_, asked)| asked.due.given_up_at(patient_until, silence_max) <= now);
        self.0 = waiting;
        let given_up = late.into_iter().map(|(request, Asked { ask, asked, .. })| {
            let what = format!("{}: no answer from the coordinator", ask.described());
            MemberEvent::Answered { request, outcome: Err(Error::Timeout { what, waited: now.since(asked) }) }
        });
        given_up.collect()
    }

    /// Ends all requests; returns their numbers.
    pub(super) fn end(&mut self) -> impl Iterator<Item = u64> + use<> {
        std::mem::take(&mut self.0).into_keys()
    }

    /// When each request ends that has no answer.
    pub(super) fn dues(&self) -> impl Iterator<Item = Due> {
        self.0.values().map(|asked| asked.due)
    }
}

impl Asked {
    /// What waits has as much time as is left.
    fn frame(&self, now: Time, request: u64, patient_until: Time) -> Frame {
        match self.ask.clone().with_wait(self.due.at(patient_until).since(now)) {
            Ask::Store(ask) => Frame::Store { request, ask },
            Ask::Tick(tick) => Frame::Tick { request, tick },
            Ask::Checkpoint(ask) => Frame::Checkpoint { request, ask },
        }
    }
}

fn exhausted(what: &str, limit: usize) -> Error {
    let hint = "wait for some answers before asking more".to_owned();
    Error::Exhausted { what: what.to_owned(), limit: limit.to_string(), hint }
}
