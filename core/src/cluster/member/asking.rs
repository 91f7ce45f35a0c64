//! A member asks the key-value store of its job, or a clock.

use super::super::{MemberEvent, Patience};
use super::Member;
use crate::types::{Ask, Time};

impl Member {
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
