//! A worker brings a sum that another server had, which was lost: the workers that did not get it ask for it here.
//!
//! The coordinator chooses the worker, and lets the others come when the sum is here. The bytes are kept as they came, so that all workers have
//! the same ones.

use std::sync::Arc;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{CodecSpec, DType, Epoch, ExchangeId, Op, Round, Time, Waited, WorkerId};
use gradlane_core::wire::{Body, Contribute, Contribution, Contributors, Hold, Restore, Sum, Target};

use super::aggregator::{Aggregator, Exchange, ExchangeState, parity};
use super::opening::check_caller;
use super::refusals::{over, restored_meanwhile};
use super::round::{Published, RoundState, Slot, Spec};
use crate::node::budget::{Budget, check_parts};
use crate::node::command::{Order, Receipt, SlotId, Step, SumSpec, Upload};

impl Aggregator {
    /// Decides about a sum that a worker brings; an error is for the caller to send.
    pub(super) fn restore(
        &mut self,
        now: Time,
        worker: WorkerId,
        exchange: ExchangeId,
        header: &Restore,
        budget: &mut Budget,
    ) -> Result<()> {
        let Restore { target, dtype, op, participants, part_bytes, body, .. } = header;
        let membership = self.membership.as_ref().expect("it admitted the worker");
        let bad = |field: &str, problem: String| {
            Err(Error::Protocol { peer: worker.to_string(), field: field.to_owned(), problem })
        };
        if !membership.has_lost_servers {
            return bad("kind", "restores a sum, and no server was lost".to_owned());
        }
        if body.codec != body.codec.for_op(*op) {
            return bad("encoding", format!("is {} of a {op}", body.codec));
        }
        if let Err(malformed) = body.check(*dtype, *part_bytes) {
            return bad("body length", malformed.to_string());
        }
        let claim = Spec::of(worker, target.part, *dtype, *op, participants, &membership.machines);
        let claim = Spec { bytes: *part_bytes, codec: body.codec, ..claim };
        let callers = self.due_callers(worker, target, *dtype, participants)?;
        check_caller(worker, target, *dtype, participants, &callers, &membership.machines)?;
        let id = SlotId { part: target.part, round: target.round };
        match self.slot(id).map(|slot| &slot.state) {
            Some(RoundState::Published(_)) => {
                self.note_bringer(worker, exchange, id, header);
                self.acknowledge(id, exchange);
                return Ok(());
            }
            // The worker brings it again, or is another one than before.
            Some(RoundState::Restoring { .. }) => self.retire(id),
            Some(RoundState::Open(_) | RoundState::Failed(_) | RoundState::Restarted) => return Err(over(id)),
            None if self.parts.get(&id.part).and_then(|part| part.latest) >= Some(id.round) => return Err(over(id)),
            None => {}
        }
        if !self.parts.contains_key(&id.part) {
            check_parts(self.parts.len())?;
        }
        let sum = Published { divisor: header.divisor, contributors: Arc::new(header.contributors.clone()) };
        let state = RoundState::Restoring { exchange, sum };
        let mut slot = Slot { state, restored: Some(*body), ..Slot::new(id, claim, callers, 0) };
        slot.booked = slot.needs(&self.config);
        self.take_memory(now, slot.booked, budget)?;
        self.watch_sums(now);
        self.step(id, Step::Begin(as_it_comes(worker, body.bytes, self.block_bytes(&slot.spec))));
        self.note_bringer(worker, exchange, id, header);
        for passed in self.alive(id.part) {
            self.retire(passed);
        }
        let part = self.know(id.part, &slot.spec);
        part.latest = Some(id.round);
        part.slots[parity(id.round)] = Some(slot);
        if body.bytes == 0 {
            self.note_restored(id, exchange, Receipt::Whole);
            return Ok(());
        }
        let upload = Upload { body: Body::plain(body.bytes), weight: 1.0, checksum: header.checksum, landed: 0 };
        self.exchange_mut(exchange).routed = true;
        self.step(id, Step::Receive { worker, exchange, upload });
        Ok(())
    }

    /// Whether this exchange brings the sum of a round.
    pub(super) fn is_restored_by(&self, id: SlotId, exchange: ExchangeId) -> bool {
        let state = self.slot(id).map(|slot| &slot.state);
        matches!(state, Some(RoundState::Restoring { exchange: bringer, .. }) if *bringer == exchange)
    }

    /// What became of the bytes of a sum that a worker brings.
    pub(super) fn note_restored(&mut self, id: SlotId, exchange: ExchangeId, receipt: Receipt) {
        if receipt != Receipt::Whole {
            self.reject(exchange, restored_meanwhile(id));
            return self.forget_restored(id);
        }
        let Some(slot) = self.slot_mut(id) else { return };
        let RoundState::Restoring { sum, .. } = &slot.state else { return };
        slot.state = RoundState::Published(sum.clone());
        self.step(id, Step::Publish { divisor: 1.0, residual: None });
        self.step(id, Step::Seal);
        self.acknowledge(id, exchange);
    }

    /// What a worker brought of a sum is of no use. It is as if nobody had brought any of it, so that it can be brought again.
    pub(super) fn forget_restored(&mut self, id: SlotId) {
        self.retire(id);
        if let Some(part) = self.parts.get_mut(&id.part).filter(|part| part.latest == Some(id.round)) {
            part.latest = id.round.0.checked_sub(1).map(Round);
        }
    }

    /// Notes an exchange that brings a sum, and contributes nothing.
    fn note_bringer(&mut self, worker: WorkerId, exchange: ExchangeId, slot: SlotId, header: &Restore) {
        let Restore { target, dtype, op, participants, .. } = header.clone();
        let (hold, contribution) = (Hold::No, Contribution::Nothing);
        let (weight, urgency, waited, part_bytes, is_given) = (1.0, 0, Waited::default(), 0, false);
        let header = Contribute {
            target,
            dtype,
            op,
            participants,
            weight,
            urgency,
            waited,
            part_bytes,
            hold,
            is_given,
            contribution,
        };
        self.exchanges
            .insert(exchange, Exchange { worker, slot, header, state: ExchangeState::Landing, routed: false });
    }

    /// Tells the worker that brought a sum that it is here.
    fn acknowledge(&mut self, id: SlotId, exchange: ExchangeId) {
        let epoch = self.membership.as_ref().map_or(Epoch::default(), |ours| ours.epoch);
        self.unroute(exchange);
        let entry = self.exchange_mut(exchange);
        entry.state = ExchangeState::Answering;
        let (worker, target) = (entry.worker, Target { epoch, ..entry.header.target });
        let (body, contributors) = (Body::plain(0), Contributors::Due);
        let (early, checksum) = (false, false);
        let header = Sum { target, attempt: 0, part_bytes: 0, body, divisor: 1.0, contributors, early, checksum };
        self.step(id, Step::Answer { worker, exchange, header });
    }
}

/// What takes the bytes of a sum as they come from its one sender.
fn as_it_comes(worker: WorkerId, bytes: u64, block_bytes: u64) -> SumSpec {
    SumSpec {
        bytes,
        dtype: DType::U8,
        codec: CodecSpec::PLAIN,
        op: Op::Broadcast { root: worker },
        senders: vec![worker],
        order: Order::Arrival,
        block_bytes,
    }
}
