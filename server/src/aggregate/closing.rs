//! From a counted contribution to the end of its exchange and its round: adding in order, publishing, failing, freeing, answering.

use gradlane_core::error::Error;
use gradlane_core::types::{Epoch, ExchangeId, PartId, Round, Time, WorkerId};
use gradlane_core::wire::{Flags, Header, HeaderKind};

use super::round::{Contribution, Open, Published, RoundState, Spec};
use super::{Aggregator, Command, Exchange, ExchangeState, Part, SlotId, parity};

impl Aggregator {
    /// Counts a worker; with a `weight` its body is in memory, without it sends none. Adds what has its turn, publishes when all came.
    pub(super) fn arrive(
        &mut self,
        now: Time,
        id: SlotId,
        worker: WorkerId,
        exchange: ExchangeId,
        weight: Option<f64>,
    ) {
        self.last_counted = Some((id.part.key, id.round));
        self.exchange_mut(exchange).state = ExchangeState::Waiting;
        let open = self.open_mut(id);
        let first = open.since.is_none();
        open.since.get_or_insert(now);
        let superseded = open.waiters.insert(worker, exchange);
        if let Some(weight) = weight {
            open.weights.insert(worker, weight);
            open.unfolded.insert(worker, Contribution { exchange, weight });
        }
        if first {
            self.waiting.insert((now, id));
        }
        self.supersede(superseded);
        self.fold(id);
        self.slot_mut(id).expect("open").arrived.insert(worker);
        let complete = self.slot(id).is_some_and(|slot| slot.complete(self.workers(), &self.config));
        if complete {
            self.publish(id);
        }
        self.book(id);
        self.reach(id, worker);
    }

    /// Gives the accumulator every body that has its turn.
    fn fold(&mut self, id: SlotId) {
        let Self { membership, parts, config, commands, .. } = self;
        let workers = membership.as_ref().map_or(&[][..], |membership| &membership.workers);
        let slot = parts.get_mut(&id.part).and_then(|part| part.slots[parity(id.round)].as_mut()).expect("open");
        let Spec { dtype, bytes, op, .. } = slot.spec;
        let RoundState::Open(open) = &mut slot.state else { unreachable!("only an open round adds") };
        while let Some(Contribution { exchange, weight }) = open.take_turn(op, workers, config.deterministic) {
            commands.push_back(if open.folded == 1 {
                Command::Start { slot: id, exchange, bytes, dtype, op, weight }
            } else {
                Command::Add { slot: id, exchange, weight }
            });
        }
    }

    fn publish(&mut self, id: SlotId) {
        let slot = self.slot(id).expect("complete");
        let RoundState::Open(open) = &slot.state else { unreachable!("only an open round is complete") };
        let contributors = open.folded;
        let divisor = match slot.divisor(open, &self.config) {
            Ok(divisor) => divisor,
            Err(error) => return self.fail(id, error),
        };
        let published = Published { divisor, contributors };
        let open = self.close(id, RoundState::Published(published)).expect("was open");
        self.commands.push_back(Command::Publish { slot: id, divisor });
        // A body still on its way is a repeat of one that was counted: its sender is answered without it.
        for exchange in open.waiters.into_values().chain(open.landing.into_values()) {
            self.answer(id, published, exchange);
        }
    }

    /// There will be no sum: whoever waits gets `error`, and so does everybody who comes later.
    pub(super) fn fail(&mut self, id: SlotId, error: Error) {
        let Some(open) = self.close(id, RoundState::Failed(error.clone())) else { return };
        for worker in open.landing.keys() {
            self.slot_mut(id).expect("failed").arrived.insert(*worker);
        }
        self.let_go(id, open, &error);
        self.book(id);
    }

    /// Takes a round out of its open state, or returns `None` if it is not in it.
    fn close(&mut self, id: SlotId, next: RoundState) -> Option<Open> {
        let slot = self.slot_mut(id)?;
        let RoundState::Open(open) = &mut slot.state else { return None };
        let open = std::mem::take(open);
        slot.state = next;
        if let Some(since) = open.since {
            self.waiting.remove(&(since, id));
        }
        Some(open)
    }

    /// Ends the exchanges of a round that was open and frees its bodies.
    fn let_go(&mut self, id: SlotId, open: Open, error: &Error) {
        for exchange in open.landing.into_values().chain(open.waiters.into_values()) {
            self.reject(exchange, error.clone());
        }
        let unused = open.unfolded.into_values();
        self.commands.extend(unused.map(|Contribution { exchange, .. }| Command::Discard { exchange }));
        if open.folded > 0 {
            self.commands.push_back(Command::Drop { slot: id });
        }
    }

    /// Notes that `worker` has come to this round. When all have, nobody can ask for the one before.
    pub(super) fn reach(&mut self, id: SlotId, worker: WorkerId) {
        let workers = self.workers().len();
        let Some(slot) = self.slot_mut(id) else { return };
        slot.arrived.insert(worker);
        if slot.arrived.len() == workers
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
        self.booked -= slot.booked;
        self.starved = None;
        if let RoundState::Published(_) = slot.state {
            self.commands.push_back(Command::Drop { slot: id });
        }
    }

    pub(super) fn forget_part(&mut self, part: PartId, error: &Error) {
        let Some(Part { slots, .. }) = self.parts.get(&part) else { return };
        let ids: Vec<SlotId> = slots.iter().flatten().map(|slot| slot.id).collect();
        for id in ids {
            self.fail(id, error.clone());
            self.retire(id);
        }
        self.parts.remove(&part);
    }

    pub(super) fn answer(&mut self, id: SlotId, published: Published, exchange: ExchangeId) {
        let epoch = self.membership.as_ref().map_or(Epoch::default(), |ours| ours.epoch);
        let entry = self.exchange_mut(exchange);
        entry.state = ExchangeState::Answering;
        let header = Header {
            kind: HeaderKind::Sum,
            flags: Flags::CHECKSUM,
            epoch,
            weight: published.divisor,
            contributors: published.contributors,
            checksum: 0,
            ..entry.header
        };
        self.commands.push_back(Command::Answer { slot: id, exchange, header });
    }

    /// Ends an older exchange of a worker that has sent a newer one. The worker has given it up, unless the newer one is a straggler
    /// of a lost connection; therefore it is asked to try again and not told that it failed.
    pub(super) fn supersede(&mut self, superseded: Option<ExchangeId>) {
        if let Some(exchange) = superseded {
            let (what, cause) = ("the exchange".to_owned(), "the same worker began it anew".to_owned());
            self.reject(exchange, Error::Unavailable { what, cause });
        }
    }

    pub(super) fn reject(&mut self, exchange: ExchangeId, error: Error) {
        if let Some(Exchange { header, .. }) = self.exchanges.remove(&exchange) {
            self.say_reject(exchange, &header, error);
        }
    }

    pub(super) fn say_reject(&mut self, exchange: ExchangeId, asked: &Header, error: Error) {
        let epoch = self.membership.as_ref().map_or(asked.epoch, |ours| ours.epoch);
        let (kind, flags) = (HeaderKind::Reject, Flags::default());
        let header = Header { kind, flags, epoch, bytes: 0, weight: 0.0, contributors: 0, checksum: 0, ..*asked };
        self.commands.push_back(Command::Reject { exchange, header, error });
    }
}

/// The answer to a round whose sum nobody should want any more.
pub(super) fn over(id: SlotId) -> Error {
    Error::FailedPrecondition {
        what: format!("{} of tensor {} is over and its sum is gone", id.round, id.part.key),
        hint: "every worker must submit a tensor equally often and in order".to_owned(),
    }
}
