//! The questions a member asked and has no answer to yet. Decides when one is given up; leaves sending to the member.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::{PartLayout, TensorSpec, Time};
use crate::wire::{Frame, limits};

use super::MemberEvent;

/// What a barrier's answer may take beyond its timeout: the way there and back, and a reconnection.
const ANSWER_MARGIN: Duration = Duration::from_secs(2);

/// Unanswered questions by request number. Numbers rise over both kinds and are never used twice.
#[derive(Default, Debug)]
pub(super) struct Requests {
    last: u64,
    declarations: BTreeMap<u64, Declaration>,
    barriers: BTreeMap<u64, Barrier>,
}

// It has no deadline of its own: a coordinator that is there answers at once, and one that is not is the member's
// `control_lost_timeout`.
#[derive(Debug)]
struct Declaration {
    tensors: Vec<TensorSpec>,
    fuse: bool,
}

#[derive(Debug)]
struct Barrier {
    name: String,
    asked: Time,
    until: Time,
}

impl Requests {
    /// The number of the next question.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Keeps a declaration until it is answered; returns the frame that asks.
    ///
    /// # Errors
    /// What the coordinator's reader would refuse: sent, it would cost the connection, again and again.
    pub(super) fn declare(&mut self, request: u64, tensors: Vec<TensorSpec>, fuse: bool) -> Result<Frame> {
        limits::check_tensors(&tensors)?;
        let declaration = Declaration { tensors, fuse };
        let frame = declaration.frame(request);
        self.declarations.insert(request, declaration);
        Ok(frame)
    }

    /// Keeps an arrival at a barrier until it is answered; returns the frame that asks.
    ///
    /// # Errors
    /// A name that cannot travel, or more barriers than the coordinator remembers answers for.
    pub(super) fn barrier(&mut self, now: Time, request: u64, name: String, timeout: Duration) -> Result<Frame> {
        limits::check_name("a barrier", &name)?;
        if self.barriers.len() >= limits::BARRIERS_MAX {
            return Err(Error::Exhausted {
                what: "barriers at once".to_owned(),
                limit: limits::BARRIERS_MAX.to_string(),
                hint: "wait for some before arriving at others".to_owned(),
            });
        }
        let barrier = Barrier { name, asked: now, until: now + timeout };
        let frame = barrier.frame(now, request);
        self.barriers.insert(request, barrier);
        Ok(frame)
    }

    /// The frames that ask everything again, each with what is left of its time.
    pub(super) fn frames(&self, now: Time) -> Vec<Frame> {
        let declarations = self.declarations.iter().map(|(request, declaration)| declaration.frame(*request));
        let barriers = self.barriers.iter().map(|(request, barrier)| barrier.frame(now, *request));
        declarations.chain(barriers).collect()
    }

    /// Takes the answer to a declaration; nothing if it was given up before.
    ///
    /// # Errors
    /// What is wrong with `request`.
    pub(super) fn declared(
        &mut self,
        request: u64,
        outcome: Result<Vec<PartLayout>>,
    ) -> std::result::Result<Option<MemberEvent>, String> {
        if self.declarations.remove(&request).is_some() {
            return Ok(Some(MemberEvent::Declared { request, outcome }));
        }
        self.check_given_up(request).map(|()| None)
    }

    /// Takes the answer to a barrier, like [`Requests::declared`].
    pub(super) fn barrier_done(
        &mut self,
        request: u64,
        outcome: Result<()>,
    ) -> std::result::Result<Option<MemberEvent>, String> {
        if self.barriers.remove(&request).is_some() {
            return Ok(Some(MemberEvent::BarrierDone { request, outcome }));
        }
        self.check_given_up(request).map(|()| None)
    }

    /// Gives up the barriers whose time is over for so long that the coordinator's own verdict should have come.
    pub(super) fn expire(&mut self, now: Time) -> Vec<MemberEvent> {
        let barriers = std::mem::take(&mut self.barriers);
        let (late, waiting) = barriers.into_iter().partition(|(_, barrier)| barrier.give_up_at() <= now);
        self.barriers = waiting;
        late.into_iter()
            .map(|(request, barrier): (u64, Barrier)| MemberEvent::BarrierDone {
                request,
                outcome: Err(Error::Timeout {
                    what: format!("barrier {:?}: no answer from the coordinator", barrier.name),
                    waited: now.since(barrier.asked),
                }),
            })
            .collect()
    }

    /// Ends everything with `error`.
    pub(super) fn fail_all(&mut self, error: &Error) -> Vec<MemberEvent> {
        let declarations = std::mem::take(&mut self.declarations).into_keys();
        let barriers = std::mem::take(&mut self.barriers).into_keys();
        let declared = |request| MemberEvent::Declared { request, outcome: Err(error.clone()) };
        let barrier_done = |request| MemberEvent::BarrierDone { request, outcome: Err(error.clone()) };
        declarations.map(declared).chain(barriers.map(barrier_done)).collect()
    }

    /// When [`Requests::expire`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.barriers.values().map(Barrier::give_up_at).min()
    }

    fn check_given_up(&self, request: u64) -> std::result::Result<(), String> {
        if self.declarations.contains_key(&request) || self.barriers.contains_key(&request) {
            return Err(format!("{request} asks something else"));
        }
        if request == 0 || request > self.last {
            return Err(format!("{request} was never asked"));
        }
        Ok(())
    }
}

impl Declaration {
    fn frame(&self, request: u64) -> Frame {
        Frame::Declare { request, tensors: self.tensors.clone(), fuse: self.fuse }
    }
}

impl Barrier {
    fn frame(&self, now: Time, request: u64) -> Frame {
        Frame::Barrier { request, name: self.name.clone(), timeout: self.until.since(now) }
    }

    fn give_up_at(&self) -> Time {
        self.until + ANSWER_MARGIN
    }
}
