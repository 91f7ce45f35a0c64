//! A member asks the coordinator: for layouts, at barriers, the key-value store of its job, or a clock.

use super::super::{MemberEvent, Patience};
use super::Member;
use crate::types::{Ask, TensorSpec, Time};

impl Member {
    /// Asks for the layout of `tensors`. With `fuse`, these tensors may share parts. Without it, several declarations may share a frame.
    /// Ends in [`MemberEvent::Declared`] with the returned number: soon if the coordinator is connected, otherwise after it has returned.
    /// May be called before the job formed.
    pub fn declare(&mut self, tensors: Vec<TensorSpec>, fuse: bool) -> u64 {
        let request = self.requests.number();
        let asked = self.may_ask().and_then(|()| self.requests.declare(request, tensors, fuse));
        match asked {
            Ok(frame) => frame.into_iter().for_each(|frame| self.ask(frame)),
            Err(error) => self.tell(MemberEvent::Declared { request, outcome: Err(error) }),
        }
        request
    }

    /// Arrives at the barrier `name`. Ends in [`MemberEvent::BarrierDone`] with the returned number: when all workers have arrived, or with
    /// an error, at the latest shortly after `patience`.
    pub fn barrier(&mut self, now: Time, name: String, patience: Patience) -> u64 {
        let request = self.requests.number();
        let asked = self.may_ask().and_then(|()| self.requests.barrier(now, request, name, patience));
        match asked {
            Ok(frame) => self.ask(frame),
            Err(error) => self.tell(MemberEvent::BarrierDone { request, outcome: Err(error) }),
        }
        request
    }

    /// Asks the store of the job, or a clock. Ends in [`MemberEvent::Answered`] with the returned number, at the latest shortly after
    /// `patience`. A read that waits for its key, and a tick that waits for others, wait so long. May be called before the job formed.
    ///
    /// A request is sent again after a reconnection, and a change is made once. If the answer is an [`Error::Timeout`](crate::Error::Timeout)
    /// of this process, because the coordinator did not answer, a change may have been made or not.
    pub fn ask_coordinator(&mut self, now: Time, ask: Ask, patience: Patience) -> u64 {
        let request = self.requests.number();
        let asked = self.may_ask().and_then(|()| self.requests.ask(now, request, ask, patience));
        match asked {
            Ok(frame) => self.ask(frame),
            Err(error) => self.tell(MemberEvent::Answered { request, outcome: Err(error) }),
        }
        request
    }
}
