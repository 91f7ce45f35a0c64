//! The requests of a member that have no answer yet. Decides when to give one up. The member sends them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::{Answer, Ask, PartLayout, TensorSpec, Time};
use crate::wire::{Frame, limits};

use super::MemberEvent;
use super::asks::Asks;
use super::contact::{Due, Patience};
use super::declarations::{Answered, Declarations};

/// Unanswered requests by number. All kinds share one rising sequence of numbers, and no number is used twice.
#[derive(Default, Debug)]
pub(super) struct Requests {
    last: u64,
    declarations: Declarations,
    barriers: BTreeMap<u64, Barrier>,
    /// Names that are used no more.
    undeclared: BTreeMap<u64, Vec<String>>,
    asks: Asks,
}

#[derive(Debug)]
struct Barrier {
    name: String,
    asked: Time,
    due: Due,
}

impl Requests {
    /// A number for the next request.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Keeps a declaration until it is answered. See [`Declarations::declare`].
    pub(super) fn declare(&mut self, request: u64, tensors: Vec<TensorSpec>, fuse: bool) -> Result<Option<Frame>> {
        self.declarations.declare(request, tensors, fuse)
    }

    /// Keeps the news that these names are used no more until it is confirmed. Returns its frame.
    pub(super) fn undeclare(&mut self, request: u64, names: Vec<String>) -> Frame {
        self.declarations.undeclare(&names);
        self.undeclared.insert(request, names.clone());
        Frame::Undeclare { request, names }
    }

    /// Keeps an arrival at a barrier until it is answered. Returns its frame.
    ///
    /// # Errors
    /// If the name cannot be sent, or if there are more barriers than the coordinator remembers answers for.
    pub(super) fn barrier(&mut self, now: Time, request: u64, name: String, patience: Patience) -> Result<Frame> {
        limits::check_name("a barrier", &name)?;
        if self.barriers.len() >= limits::BARRIERS_MAX {
            return Err(Error::Exhausted {
                what: "barriers at once".to_owned(),
                limit: limits::BARRIERS_MAX.to_string(),
                hint: "wait for some before arriving at others".to_owned(),
            });
        }
        let barrier = Barrier { name, asked: now, due: Due::new(now, patience) };
        let frame = barrier.frame(now, request, Time::ZERO);
        self.barriers.insert(request, barrier);
        Ok(frame)
    }

    /// Keeps a request to the store, or to a clock, until it is answered. See [`Asks::ask`].
    pub(super) fn ask(&mut self, now: Time, request: u64, ask: Ask, patience: Patience) -> Result<Frame> {
        self.asks.ask(now, request, ask, patience)
    }

    /// The frames of all unanswered requests, each with its remaining time, in a process that is patient until then.
    pub(super) fn frames(&self, now: Time, patient_until: Time) -> Vec<Frame> {
        let barriers = self.barriers.iter().map(|(request, barrier)| barrier.frame(now, *request, patient_until));
        // These go first: no declaration that was made before one of them, of the same name, is unanswered.
        let undeclare =
            |(request, names): (&u64, &Vec<String>)| Frame::Undeclare { request: *request, names: names.clone() };
        let undeclared = self.undeclared.iter().map(undeclare);
        undeclared
            .chain(self.declarations.frames())
            .chain(barriers)
            .chain(self.asks.frames(now, patient_until))
            .collect()
    }

    /// Takes the answer to a frame of declarations. Does nothing if they were given up before.
    ///
    /// # Errors
    /// The fault of `request`, as text.
    pub(super) fn declared(
        &mut self,
        request: u64,
        outcome: Result<Vec<PartLayout>>,
    ) -> std::result::Result<Answered, String> {
        match self.declarations.answered(request, outcome) {
            Some(answered) => Ok(answered),
            None => self.check_given_up(request),
        }
    }

    /// Takes the answer to a barrier, like [`Requests::declared`].
    pub(super) fn barrier_done(&mut self, request: u64, outcome: Result<()>) -> std::result::Result<Answered, String> {
        match self.barriers.remove(&request) {
            Some(_) => {
                let events = vec![MemberEvent::BarrierDone { request, outcome }];
                Ok(Answered { events, frames: Vec::new() })
            }
            None => self.check_given_up(request),
        }
    }

    /// Takes the answer of the store, or of a clock, like [`Requests::declared`].
    pub(super) fn answered(&mut self, request: u64, outcome: Result<Answer>) -> std::result::Result<Answered, String> {
        match self.asks.answered(request, outcome) {
            Some(event) => Ok(Answered { events: vec![event?], frames: Vec::new() }),
            None => self.check_given_up(request),
        }
    }

    /// Takes the confirmation that names are used no more, like [`Requests::declared`].
    pub(super) fn undeclared(&mut self, request: u64) -> std::result::Result<Answered, String> {
        match self.undeclared.remove(&request) {
            Some(_) => Ok(Answered::default()),
            None => self.check_given_up(request),
        }
    }

    /// Gives up the barriers, and the requests to the store and to clocks, whose time passed so long ago that the coordinator's answer should have come; see
    /// [`Due::given_up_at`].
    pub(super) fn expire(&mut self, now: Time, patient_until: Time, silence_max: Duration) -> Vec<MemberEvent> {
        let barriers = std::mem::take(&mut self.barriers);
        let (late, waiting) =
            barriers.into_iter().partition(|(_, barrier)| barrier.due.given_up_at(patient_until, silence_max) <= now);
        self.barriers = waiting;
        let given_up = late.into_iter().map(|(request, barrier): (u64, Barrier)| MemberEvent::BarrierDone {
            request,
            outcome: Err(Error::Timeout {
                what: format!("barrier {:?}: no answer from the coordinator", barrier.name),
                waited: now.since(barrier.asked),
            }),
        });
        given_up.chain(self.asks.expire(now, patient_until, silence_max)).collect()
    }

    /// Ends everything with `error`.
    pub(super) fn fail_all(&mut self, error: &Error) -> Vec<MemberEvent> {
        self.undeclared.clear();
        let declarations = self.declarations.end();
        let barriers = std::mem::take(&mut self.barriers).into_keys();
        let declared = |request| MemberEvent::Declared { request, outcome: Err(error.clone()) };
        let barrier_done = |request| MemberEvent::BarrierDone { request, outcome: Err(error.clone()) };
        let answered = |request| MemberEvent::Answered { request, outcome: Err(error.clone()) };
        let asked = self.asks.end().map(answered);
        declarations.map(declared).chain(barriers.map(barrier_done)).chain(asked).collect()
    }

    /// When to call [`Requests::expire`].
    pub(super) fn poll_timeout(&self, patient_until: Time, silence_max: Duration) -> Option<Time> {
        let barriers = self.barriers.values().map(|barrier| barrier.due);
        barriers.chain(self.asks.dues()).map(|due| due.given_up_at(patient_until, silence_max)).min()
    }

    fn check_given_up(&self, request: u64) -> std::result::Result<Answered, String> {
        let asks_else = self.declarations.knows(request) || self.barriers.contains_key(&request);
        if asks_else || self.undeclared.contains_key(&request) || self.asks.knows(request) {
            return Err(format!("{request} asks something else"));
        }
        if request == 0 || request > self.last {
            return Err(format!("{request} was never asked"));
        }
        Ok(Answered::default())
    }
}

impl Barrier {
    fn frame(&self, now: Time, request: u64, patient_until: Time) -> Frame {
        Frame::Barrier { request, name: self.name.clone(), timeout: self.due.at(patient_until).since(now) }
    }
}

/// The answer to every request of a process that has left.
pub(super) fn left() -> Error {
    Error::FailedPrecondition {
        what: "this process left the job".to_owned(),
        hint: "join again with a new member".to_owned(),
    }
}
