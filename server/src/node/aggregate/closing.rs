//! From a begun contribution to the end of its exchange and its round: letting the sum flow, sealing, failing, freeing, answering.

use std::sync::Arc;

use gradlane_core::error::Error;
use gradlane_core::types::{Coming, Defect, Epoch, ExchangeId, Op, PartId, Round, Time, WorkerId, WorkerSet, planted};
use gradlane_core::wire::{About, Body, Contribution, Contributors, Sum, Target};

use super::aggregator::{Aggregator, Exchange, ExchangeState, Part, parity};
use super::refusals::over;
use super::residual::{Fed, Residual};
use super::round::{Open, Published, RoundState, Slot, Spec};
use crate::node::command::{Command, SlotId, Step, Work};
use crate::node::membership::rejection;
use crate::node::refusals::superseded;

impl Aggregator {
    /// Counts a worker: all of its contribution is in the sum, or it has none to make. Seals the sum when every caller was counted.
    pub(super) fn count(&mut self, now: Time, id: SlotId, worker: WorkerId, coming: Coming) {
        self.last_counted = Some((id.part.key, id.round));
        let open = self.open_mut(id);
        open.begun.insert(worker);
        let alone_since = open.lateness.handle_counted(now);
        let took = open.lateness.took(now);
        if open.since.is_none() {
            open.since = Some(now);
            self.waiting.insert((now, id));
        }
        self.slot_mut(id).expect("open").arrived.insert(worker);
        self.flow(id);
        if self.seal(id) {
            let is_step = self.blamed.is_step(id.round);
            let last = alone_since.map(|since| (worker, self.blamed.handle_last(now, worker, since, coming)));
            self.commands.push_back(Command::Timed { took, last, is_step });
        }
        self.reach(id, worker);
    }

    /// Lets the sum flow once every caller has begun, or where it comes in one piece, once every caller was counted.
    pub(super) fn flow(&mut self, id: SlotId) {
        let slot = self.slot(id).expect("open");
        let RoundState::Open(open) = &slot.state else { unreachable!("only an open round begins to flow") };
        let has_blocks = !slot.spec.codec.varies() && slot.spec.body().bytes > self.block_bytes(&slot.spec);
        let may_flow = if has_blocks { slot.all_began(open) } else { slot.all_came() };
        if open.flowing.is_some() || !may_flow {
            return;
        }
        let contributors = self.due_workers(&slot.spec, id.round);
        let divisor = match slot.divisor(open, contributors.len(), &self.config) {
            Ok(divisor) => divisor,
            Err(error) => return self.fail(id, error),
        };
        let published = Published { divisor, contributors };
        let listeners: Vec<ExchangeId> = open.listeners.values().copied().collect();
        let residual = self.take_residual(id, &published);
        self.open_mut(id).flowing = Some(published.clone());
        self.step(id, Step::Publish { divisor, residual });
        for exchange in listeners {
            self.answer(id, &published, exchange);
        }
    }

    /// Bytes of a block of such a sum.
    pub(super) fn block_bytes(&self, spec: &Spec) -> u64 {
        let crosses_network = self.membership.as_ref().is_none_or(|ours| ours.crosses_network);
        self.config.block_bytes(spec.body().bytes, crosses_network)
    }

    /// The workers that the present view makes contribute to a round.
    fn due_workers(&self, spec: &Spec, round: Round) -> Arc<WorkerSet> {
        match spec.op {
            Op::Broadcast { root } => Arc::new([root].into_iter().collect()),
            Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => {
                let membership = self.membership.as_ref();
                membership.map_or_else(Arc::default, |ours| ours.due_workers(&spec.participants, round))
            }
        }
    }

    /// Once every caller was counted the sum exists, and nothing that becomes of the round takes it away from those who listen. Returns
    /// whether it exists now.
    fn seal(&mut self, id: SlotId) -> bool {
        let slot = self.slot(id).expect("open");
        let RoundState::Open(Open { flowing: Some(published), .. }) = &slot.state else { return false };
        if !slot.all_came() {
            return false;
        }
        let published = published.clone();
        if let Some((residual, sum)) = self.residual_of(id, &published) {
            residual.keep(sum);
        }
        let open = self.close(id, RoundState::Published(published)).expect("it was open");
        for (worker, exchange) in open.listeners {
            self.readers.owe(worker, id, exchange);
        }
        self.step(id, Step::Seal);
        self.book(id);
        true
    }

    /// There will be no sum: every exchange of the round, now or later, is rejected with `error`.
    pub(super) fn fail(&mut self, id: SlotId, error: Error) {
        let Some(open) = self.close(id, RoundState::Failed(error.clone())) else { return };
        for worker in open.listeners.keys() {
            self.slot_mut(id).expect("failed").arrived.insert(*worker);
        }
        // A worker that has received some of the sum already hears the error when it asks for the rest.
        self.end_open(id, open, &error);
    }

    /// Ends what an open round held: its listeners get `error`, and its memory is freed.
    pub(super) fn end_open(&mut self, id: SlotId, open: Open, error: &Error) {
        let untold = usize::from(planted(self.config.defect, Defect::FailureUntold) && open.listeners.len() > 1);
        for exchange in open.listeners.into_values().skip(untold) {
            self.reject(exchange, error.clone());
        }
        self.step(id, Step::Drop);
        self.book(id);
    }

    /// Takes a round out of its open state, or returns `None` if it is not in it.
    pub(super) fn close(&mut self, id: SlotId, next: RoundState) -> Option<Open> {
        let slot = self.slot_mut(id)?;
        let RoundState::Open(open) = &mut slot.state else { return None };
        let open = std::mem::take(open);
        slot.state = next;
        if let Some(since) = open.since {
            self.waiting.remove(&(since, id));
        }
        Some(open)
    }

    /// Notes that `worker` has come to this round.
    pub(super) fn reach(&mut self, id: SlotId, worker: WorkerId) {
        if let Some(slot) = self.slot_mut(id) {
            slot.arrived.insert(worker);
            self.free_passed(id);
        }
    }

    /// When all callers have come to a round, nobody can ask for the one before.
    pub(super) fn free_passed(&mut self, id: SlotId) {
        if self.slot(id).is_some_and(Slot::all_came)
            && let Some(before) = id.round.0.checked_sub(1)
        {
            self.retire(SlotId { round: Round(before), ..id });
        }
    }

    /// Frees a slot, if it is in use.
    pub(super) fn retire(&mut self, id: SlotId) {
        // A worker may skip a round that it had given up by itself; then the others' wait for that round ends here.
        self.fail(id, over(id));
        let Some(part) = self.parts.get_mut(&id.part) else { return };
        let Some(slot) = part.slots[parity(id.round)].take_if(|slot| slot.id == id) else { return };
        self.freed += slot.booked;
        self.delivered.remove(&id);
        match slot.state {
            RoundState::Published(_) => self.step(id, Step::Drop),
            RoundState::Restoring { exchange, .. } => {
                self.step(id, Step::Drop);
                self.reject(exchange, over(id));
            }
            RoundState::Open(_) | RoundState::Failed(_) | RoundState::Restarted => {}
        }
    }

    pub(super) fn forget_part(&mut self, part: PartId, error: &Error) {
        let Some(Part { slots, .. }) = self.parts.get(&part) else { return };
        let ids: Vec<SlotId> = slots.iter().flatten().map(|slot| slot.id).collect();
        for id in ids {
            self.fail(id, error.clone());
            self.retire(id);
        }
        self.drop_gift(part, error);
        let residual = self.parts.remove(&part).map_or(0, |part| part.residual.booked);
        if residual > 0 {
            self.freed += residual;
            self.step(SlotId { part, round: Round(0) }, Step::DropResidual);
        }
    }

    /// The residual of a part whose sum `id` has error feedback, and what the sum means for it.
    pub(super) fn residual_of(&mut self, id: SlotId, published: &Published) -> Option<(&mut Residual, Fed)> {
        let Slot { spec: Spec { codec, bytes, .. }, state: RoundState::Open(Open { hold, given, .. }), .. } =
            self.slot(id)?
        else {
            return None;
        };
        let (codec, bytes, hold) = (*codec, *bytes, hold.unwrap_or_default());
        let is_given = given.is_some_and(|(_, is_given)| is_given);
        let sum = Fed { contributors: Arc::clone(&published.contributors), bytes, round: id.round, hold, is_given };
        let residual = &mut self.parts.get_mut(&id.part)?.residual;
        codec.has_answer_feedback().then_some((residual, sum))
    }

    /// Sends the sum, as far as it is complete, and the rest as it becomes so.
    pub(super) fn answer(&mut self, id: SlotId, published: &Published, exchange: ExchangeId) {
        let epoch = self.membership.as_ref().map_or(Epoch::default(), |ours| ours.epoch);
        self.slot_mut(id).expect("it has a sum").is_read();
        self.delivered.remove(&id);
        let slot = self.slot(id).expect("it has a sum");
        let is_whole = matches!(slot.state, RoundState::Published(_));
        // A sum that was published before workers were lost is not the one that the view of `epoch` asks for.
        let as_due = published.contributors == self.due_workers(&slot.spec, id.round);
        let contributors =
            if as_due { Contributors::Due } else { Contributors::Only((*published.contributors).clone()) };
        let body = slot.restored.unwrap_or_else(|| slot.spec.body());
        let (attempt, participants) = (slot.attempt, slot.spec.participants.clone());
        let entry = self.exchange_mut(exchange);
        let early = match std::mem::replace(&mut entry.state, ExchangeState::Answering) {
            ExchangeState::Landing => true,
            ExchangeState::Waiting | ExchangeState::Answering => false,
        };
        let worker = entry.worker;
        self.slot_mut(id).expect("it has a sum").served.remove(worker);
        if is_whole {
            self.readers.owe(worker, id, exchange);
        }
        let entry = &self.exchanges[&exchange];
        // A worker that sends a body without a checksum wants none either. The others could not say.
        let checksum = match entry.header.contribution {
            Contribution::Nothing | Contribution::Resumed { .. } => true,
            Contribution::First { checksum, .. } => checksum.is_some(),
        };
        // A worker that does not receive the sum hears that it exists.
        let (part_bytes, body, checksum) = match participants.receives(worker) {
            true => (entry.header.part_bytes, body, checksum),
            false => (0, Body { bytes: 0, ..body }, false),
        };
        let header = Sum {
            target: Target { epoch, ..entry.header.target },
            attempt,
            part_bytes,
            body,
            divisor: published.divisor,
            contributors,
            early,
            checksum,
        };
        self.step(id, Step::Answer { worker, exchange, header });
    }

    /// Ends an older exchange of a worker that has sent a newer one.
    pub(super) fn supersede(&mut self, older: Option<ExchangeId>) {
        if let Some(exchange) = older {
            self.reject(exchange, superseded());
        }
    }

    /// Ends the exchange of one worker, which no longer listens.
    pub(super) fn dismiss(&mut self, id: SlotId, worker: WorkerId, exchange: ExchangeId, error: Error) {
        self.open_mut(id).listeners.remove(&worker);
        self.reject(exchange, error);
    }

    pub(super) fn step(&mut self, slot: SlotId, step: Step) {
        self.commands.push_back(Command::Step(Work::Sum { slot, step }));
    }

    pub(super) fn reject(&mut self, exchange: ExchangeId, error: Error) {
        if let Some(Exchange { worker, header, .. }) = self.end_exchange(exchange, false) {
            let told = self.membership.as_ref().map(|ours| ours.told(worker, &error));
            self.say_reject(exchange, header.target.about(), told.unwrap_or(error));
        }
    }

    pub(super) fn say_reject(&mut self, exchange: ExchangeId, asked: About, error: Error) {
        self.commands.push_back(rejection(self.membership.as_deref(), exchange, asked, error));
    }
}
