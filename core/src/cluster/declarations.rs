//! The declarations of a member that have no answer yet. Decides which of them share a frame. The member sends them.
//!
//! A training loop without explicit declarations declares each tensor at its first submission, one after the other. While one frame is
//! under way, further declarations wait and share the next frame. So a model takes two or three round trips instead of one for each tensor.
//! A declaration whose tensors may share parts has its own frame. So has one of a name that this process has undeclared: its answer may have
//! to wait for other processes, and other declarations must not wait for it.
//!
//! The coordinator accepts a frame as a whole or not at all. A refused frame of several declarations is sent again in halves, so that one
//! refused tensor does not fail the others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::error::Result;
use crate::types::{PartLayout, TensorKey, TensorSpec};
use crate::wire::{Frame, limits};

use super::MemberEvent;

/// Unanswered declarations by request number.
#[derive(Default, Debug)]
pub(super) struct Declarations {
    unanswered: BTreeMap<u64, Declaration>,
    /// The requests of each frame under way. The number of a frame is its first request.
    asked: BTreeMap<u64, Vec<u64>>,
    /// Requests that wait until an earlier frame of the same kind is answered, in order.
    waiting: VecDeque<u64>,
    /// Names that were undeclared and not declared since then, as many as a job has.
    undeclared: BTreeSet<TensorKey>,
    /// The same, in order; some may have been declared since then.
    undeclared_first: VecDeque<TensorKey>,
}

// It has no deadline of its own. A connected coordinator answers at once. For a lost one the member has `control_lost_timeout`.
#[derive(Debug)]
struct Declaration {
    tensors: Vec<TensorSpec>,
    fuse: bool,
    /// Whether it shares a frame with others, and others wait for its answer.
    joins: bool,
}

/// The consequences of an answer.
#[derive(Default, Debug)]
pub(super) struct Answered {
    /// Answers for the process.
    pub(super) events: Vec<MemberEvent>,
    /// Frames to send.
    pub(super) frames: Vec<Frame>,
}

/// The most tensors that wait for one frame, far below its limit.
const JOINED_TENSORS_MAX: usize = 4096;

impl Declarations {
    /// Keeps a declaration until it is answered. Returns its frame, unless it waits for another one under way.
    ///
    /// # Errors
    /// If the coordinator would refuse the declaration as malformed. Sending it would end the connection, again after each reconnection.
    pub(super) fn declare(&mut self, request: u64, tensors: Vec<TensorSpec>, fuse: bool) -> Result<Option<Frame>> {
        limits::check_tensors(&tensors)?;
        let mut comes_again = false;
        for tensor in &tensors {
            comes_again |= self.undeclared.remove(&tensor.key());
        }
        let joins = !fuse && !comes_again;
        let waits = joins && self.joinable_under_way();
        self.unanswered.insert(request, Declaration { tensors, fuse, joins });
        if waits {
            self.waiting.push_back(request);
            return Ok(None);
        }
        Ok(Some(self.ask(vec![request])))
    }

    /// This process uses these names no more.
    pub(super) fn undeclare(&mut self, names: &[String]) {
        for key in names.iter().map(|name| TensorKey::of(name)) {
            if self.undeclared.insert(key) {
                self.undeclared_first.push_back(key);
            }
        }
        while self.undeclared_first.len() > limits::TENSORS_MAX {
            let oldest = self.undeclared_first.pop_front().expect("it is longer");
            self.undeclared.remove(&oldest);
        }
    }

    /// The frames of all unanswered declarations, to be sent again.
    pub(super) fn frames(&self) -> impl Iterator<Item = Frame> {
        self.asked.iter().map(|(number, requests)| self.frame(*number, requests))
    }

    /// Whether a frame with this number, or a declaration that waits for one, has no answer.
    pub(super) fn knows(&self, number: u64) -> bool {
        self.unanswered.contains_key(&number)
    }

    /// Handles the answer to a frame. Does nothing if there is no such frame.
    pub(super) fn answered(&mut self, number: u64, outcome: Result<Vec<PartLayout>>) -> Option<Answered> {
        let requests = self.asked.remove(&number)?;
        let mut answered = Answered::default();
        match (outcome, requests.as_slice()) {
            (outcome, [request]) => {
                self.unanswered.remove(request);
                answered.events.push(MemberEvent::Declared { request: *request, outcome });
            }
            (Ok(layouts), _) => {
                let mut parts_of: BTreeMap<TensorKey, Vec<usize>> = BTreeMap::new();
                for (position, layout) in layouts.iter().enumerate() {
                    for piece in &layout.pieces {
                        parts_of.entry(piece.tensor).or_default().push(position);
                    }
                }
                for request in requests {
                    let declaration = self.unanswered.remove(&request).expect("asked until answered");
                    let keys = declaration.tensors.iter().map(TensorSpec::key);
                    // Each part once, even if several of these tensors share it.
                    let parts: BTreeSet<usize> = keys.filter_map(|key| parts_of.get(&key)).flatten().copied().collect();
                    let layouts = parts.into_iter().map(|position| layouts[position].clone()).collect();
                    answered.events.push(MemberEvent::Declared { request, outcome: Ok(layouts) });
                }
            }
            (Err(_), _) => {
                let (first, second) = requests.split_at(requests.len() / 2);
                answered.frames.extend([first, second].map(|half| self.ask(half.to_vec())));
            }
        }
        if !self.waiting.is_empty() && !self.joinable_under_way() {
            let requests = self.next_joined();
            answered.frames.push(self.ask(requests));
        }
        Some(answered)
    }

    /// Ends all declarations; returns the requests without an answer.
    pub(super) fn end(&mut self) -> impl Iterator<Item = u64> + use<> {
        self.asked.clear();
        self.waiting.clear();
        std::mem::take(&mut self.unanswered).into_keys()
    }

    fn joinable_under_way(&self) -> bool {
        self.asked.keys().any(|number| self.unanswered[number].joins)
    }

    /// The next waiting requests, as many as one frame may carry.
    fn next_joined(&mut self) -> Vec<u64> {
        let mut requests = Vec::new();
        let mut tensors = 0;
        while let Some(request) = self.waiting.front() {
            tensors += self.unanswered[request].tensors.len();
            if tensors > JOINED_TENSORS_MAX && !requests.is_empty() {
                break;
            }
            requests.extend(self.waiting.pop_front());
        }
        requests
    }

    fn ask(&mut self, requests: Vec<u64>) -> Frame {
        let number = requests[0];
        let frame = self.frame(number, &requests);
        self.asked.insert(number, requests);
        frame
    }

    fn frame(&self, number: u64, requests: &[u64]) -> Frame {
        let declarations = requests.iter().map(|request| &self.unanswered[request]);
        let fuse = self.unanswered[&number].fuse;
        Frame::Declare { request: number, tensors: declarations.flat_map(|one| &one.tensors).cloned().collect(), fuse }
    }
}
