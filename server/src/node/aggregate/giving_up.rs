//! A worker says that it will not contribute to a round: the others hear why, now or when they come.
//!
//! What it had begun to contribute decides first. If that arrives whole, the sum needs nothing more of it; only when it breaks off, the round
//! fails. So it does not matter which of the two is heard first.

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{ExchangeId, NodeId, Time, WorkerId};
use gradlane_core::wire::Withdraw;

use super::opening::{Opener, check_caller, check_part};
use super::round::{Open, RoundState, Spec};
use super::{Aggregator, SlotId};

impl Aggregator {
    /// A worker said with `header`, and with the error behind it, that it gives a round up. It gets an answer at once: what the others
    /// hear, or why this server cannot take it.
    pub fn handle_given_up(&mut self, now: Time, node: NodeId, exchange: ExchangeId, header: &Withdraw, error: &Error) {
        let answer = self.take_word(now, node, header, error).unwrap_or_else(|refusal| refusal);
        self.say_reject(exchange, &header.target, answer);
    }

    fn take_word(&mut self, now: Time, node: NodeId, header: &Withdraw, error: &Error) -> Result<Error> {
        let Withdraw { target, dtype, op, error_bytes: _ } = header;
        let worker = self.admit(node, target)?;
        check_part(worker, target)?;
        let callers = self.callers_or_due(target.part, *dtype);
        let membership = self.membership.as_ref().expect("it admitted the worker");
        check_caller(worker, target.part, *dtype, &callers, &membership.machines)?;
        let word = error.of_one_who_gave_up(worker, target.part.key.to_string(), target.round);
        // What follows the header is not the part, whose length is not said.
        let claim = Spec::of(worker, target.part, 0, *dtype, *op, &membership.machines);
        let id = SlotId { part: target.part, round: target.round };
        if self.slot(id).is_none() && !claim.sends_body(worker) {
            return Ok(word);
        }
        let id = self.locate(now, claim, target, callers, Opener::Withdrawal(&word))?;
        self.fall_out(id, worker, &word);
        Ok(word)
    }

    /// Fails a round that needs more of `worker` than it has sent or is sending. Who is still sending has not come to the round before the
    /// last byte: it would count as if it had contributed.
    fn fall_out(&mut self, id: SlotId, worker: WorkerId, word: &Error) {
        let slot = self.slot(id).expect("located");
        if let RoundState::Open(open) = &slot.state
            && slot.spec.sends_body(worker)
            && !slot.arrived.contains(worker)
        {
            if self.is_under_way(open, worker) {
                self.open_mut(id).given_up.insert(worker, word.clone());
                return;
            }
            self.fail(id, word.clone());
        }
        self.reach(id, worker);
    }

    /// A contribution broke off for good if its worker has given the round up.
    pub(super) fn end_of_upload(&mut self, id: SlotId, worker: WorkerId) {
        let Some(slot) = self.slot(id) else { return };
        let RoundState::Open(open) = &slot.state else { return };
        if let Some(word) = open.given_up.get(&worker).cloned()
            && !slot.arrived.contains(worker)
            && !self.is_under_way(open, worker)
        {
            self.fail(id, word);
            self.reach(id, worker);
        }
    }

    fn is_under_way(&self, open: &Open, worker: WorkerId) -> bool {
        open.uploads.get(&worker).is_some_and(|(exchange, _)| self.exchanges.contains_key(exchange))
    }
}
