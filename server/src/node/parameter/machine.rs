//! The deciding half of parameters: which change is done, which version it made, and what each exchange is answered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{
    Access, ClockKey, DType, Defect, Effect, ExchangeId, Fate, Mode, NodeId, PartId, Round, Rule, TensorKey, Time,
    Update, Version, WorkerId, planted,
};
use gradlane_core::wire::{About, Target, Use, Value};

use super::bases::{Bases, Released};
use super::orders::Checkpoints;
use super::rates::Rates;
use super::refusals::value_lost;
use crate::node::budget::Budget;
use crate::node::command::{Change, Command, KeyUse, Receipt, ValueStep, Work};
use crate::node::config::NodeConfig;
use crate::node::membership::{Membership, Sender, Succession, rejection};

/// The machine. The parent module says what it decides.
#[derive(Debug)]
pub(in crate::node) struct Parameters {
    pub(super) config: NodeConfig,
    pub(super) membership: Option<Arc<Membership>>,
    /// Every part has a value, or the body of an init is on its way.
    pub(super) parts: BTreeMap<PartId, Part>,
    pub(super) exchanges: BTreeMap<ExchangeId, Exchange>,
    /// How far the rounds of each clock are closed.
    pub(super) closed: BTreeMap<ClockKey, Closed>,
    /// Of each clock, what is added to its rounds to make the global step, modulo 2^64; 0 for others.
    pub(super) offsets: BTreeMap<ClockKey, u64>,
    pub(super) checkpoints: Checkpoints,
    /// The learning rates that operators have changed.
    pub(super) rates: Rates,
    /// The error for new uses since the server drains.
    pub(super) draining: Option<Error>,
    last: Option<(TensorKey, Round)>,
    pub(super) commands: VecDeque<Command>,
}

/// A part of a parameter.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) claim: Claim,
    pub(super) block_bytes: u64,
    /// Version 0 while it has no value.
    pub(super) version: Version,
    /// Bytes that are booked for the value, and for what the rule keeps beside it.
    pub(super) booked: u64,
    /// The latest change of each worker that was done.
    pub(super) ledger: BTreeMap<NodeId, Done>,
    /// The gradients of rounds that are open, with the bytes that are booked for them.
    pub(super) kept: BTreeMap<(u64, WorkerId), u64>,
    /// Bytes that are booked for the gradient of the last round that was closed, until it is applied.
    pub(super) merged: Option<u64>,
    /// Earlier versions from which workers compute.
    pub(super) bases: Bases,
    /// Its exchanges, by worker.
    pub(super) open: BTreeSet<(NodeId, ExchangeId)>,
}

/// What a header says of a part; equal on all workers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) said_by: WorkerId,
    pub(super) dtype: DType,
    pub(super) bytes: u64,
    pub(super) rule: Option<Rule>,
    pub(super) mode: Mode,
}

/// How far the rounds of a clock are closed on this server.
#[derive(Default, Debug)]
pub(super) struct Closed {
    /// The last round of which it knows whose gradients count.
    pub(super) round: u64,
    /// The samples of the rounds before it.
    pub(super) samples: u64,
    /// While this round waits for its norm: the squares of each part whose gradient is clipped, once they are known.
    pub(super) clipped: Option<BTreeMap<PartId, Option<f64>>>,
}

/// A change that was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Done {
    /// The use of the worker.
    pub(super) round: Round,
    /// What it has come to.
    pub(super) effect: Effect,
}

/// An exchange that is neither rejected nor known to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    pub(super) sender: Sender,
    pub(super) header: Use,
    pub(super) state: State,
    /// Bytes that are booked for it.
    pub(super) booked: u64,
}

/// How far an exchange is.
///
/// ```text
///   a change ──► Landing ──all of its body came──► Answering ──answered──► (gone)
///   a pull, a repeat, an init of what has a value ──┘
///   a pull of a round that is not closed here yet ──► Early ──closed──► Answering
///   any ──rejected, torn──► (gone)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The driver has a route for its body.
    Landing,
    /// It waits until the rounds are closed that its worker knows of.
    Early,
    Answering,
}

/// The version that an init makes.
const FIRST: Version = Version(1);

impl Closed {
    /// The last round that was applied.
    pub(super) fn applied(&self) -> u64 {
        self.round - u64::from(self.clipped.is_some())
    }
}

impl Part {
    /// A part that has no value yet.
    pub(super) fn new(claim: Claim, block_bytes: u64) -> Self {
        Self {
            claim,
            block_bytes,
            version: Version(0),
            booked: 0,
            ledger: BTreeMap::new(),
            kept: BTreeMap::new(),
            merged: None,
            bases: Bases::default(),
            open: BTreeSet::new(),
        }
    }
}

impl Parameters {
    /// A machine that waits for its first membership.
    pub(in crate::node) fn new(config: NodeConfig) -> Self {
        Self {
            config,
            membership: None,
            parts: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            closed: BTreeMap::new(),
            offsets: BTreeMap::new(),
            checkpoints: Checkpoints::default(),
            rates: Rates::default(),
            draining: None,
            last: None,
            commands: VecDeque::new(),
        }
    }

    /// The next command.
    pub(in crate::node) fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// An admitted worker opened an exchange to use a part.
    pub(in crate::node) fn handle_use(
        &mut self,
        now: Time,
        sender: Sender,
        exchange: ExchangeId,
        header: &Use,
        budget: &mut Budget,
    ) {
        if let Err(error) = self.open(now, sender, exchange, header, budget) {
            self.say_reject(exchange, header.about(), error);
        }
    }

    /// The driver says what became of the body of a change. A receipt that comes too late is ignored.
    pub(in crate::node) fn handle_receipt(&mut self, exchange: ExchangeId, receipt: Receipt, budget: &mut Budget) {
        let Some(Exchange { sender, header, state: State::Landing, .. }) = self.exchanges.get(&exchange).copied()
        else {
            return;
        };
        let Target { part, round, .. } = header.target;
        match receipt {
            Receipt::Whole => self.apply(exchange, budget),
            Receipt::Damaged if planted(self.config.defect, Defect::DamagedChangeDone) => self.apply(exchange, budget),
            Receipt::Damaged => {
                let (tensor, from) = (part.key.into(), sender.worker.to_string());
                self.reject(exchange, &Error::Checksum { tensor, round, from }, budget);
            }
            Receipt::Lost => self.reject(exchange, &value_lost(part), budget),
        }
    }

    /// The exchange broke off. Unknown ones are ignored.
    pub(in crate::node) fn handle_torn(&mut self, exchange: ExchangeId, budget: &mut Budget) {
        if let Some(Exchange { sender, header, .. }) = self.end_exchange(exchange, budget)
            && planted(self.config.defect, Defect::LedgerForgotten)
            && let Some(part) = self.parts.get_mut(&header.target.part)
        {
            part.ledger.remove(&sender.node);
        }
    }

    /// The answer of the exchange was handed over whole.
    pub(in crate::node) fn handle_answered(&mut self, exchange: ExchangeId, budget: &mut Budget) {
        self.end_exchange(exchange, budget);
    }

    /// Parts of tensors are over. Exchanges of them that are open are rejected with `error`, and nothing is kept of them.
    pub(in crate::node) fn handle_over(&mut self, parts: RangeInclusive<PartId>, error: &Error, budget: &mut Budget) {
        if planted(self.config.defect, Defect::EndedValueKept) {
            return;
        }
        self.end_reads(&parts);
        self.rates.end(parts.start().key, parts.end().key);
        let parts: Vec<PartId> = self.parts.range(parts).map(|(part, _)| *part).collect();
        for part in parts {
            self.forget_part(part, error, budget);
        }
    }

    /// A membership that is not older than the present one. Parameters outlive the workers that a view lacks; they end when all work ends.
    pub(in crate::node) fn handle_membership(
        &mut self,
        next: Arc<Membership>,
        succession: &Succession,
        budget: &mut Budget,
    ) {
        self.membership = Some(Arc::clone(&next));
        match succession {
            Succession::Same => {}
            Succession::Fewer => {
                let is_gone = |exchange: &Exchange| !next.has(exchange.sender.node);
                let gone = self.exchanges.iter().filter(|(_, exchange)| is_gone(exchange));
                let gone: Vec<ExchangeId> = gone.map(|(exchange, _)| *exchange).collect();
                for exchange in gone {
                    self.reject(exchange, &Error::Fenced { current: next.epoch }, budget);
                }
                let mut released = Vec::new();
                for (id, part) in &mut self.parts {
                    part.ledger.retain(|node, _| next.has(*node));
                    released.push((*id, part.bases.retain(|node| next.has(node))));
                }
                released.into_iter().for_each(|(id, released)| self.release(id, released, budget));
            }
            Succession::End(_) if planted(self.config.defect, Defect::ValuesKept) => {}
            Succession::End(error) => {
                self.closed.clear();
                self.offsets.clear();
                self.rates = Rates::default();
                self.end_checkpoints(budget);
                while let Some(part) = self.parts.keys().next().copied() {
                    self.forget_part(part, error, budget);
                }
            }
        }
    }

    /// The server is about to stop: from now on a new use is refused with `refusal`, the first one given. Uses that were begun are completed, and
    /// repeats of changes that were done are answered.
    pub(in crate::node) fn handle_drain(&mut self, refusal: Error) {
        self.draining.get_or_insert(refusal);
    }

    /// An operator has changed a learning rate.
    ///
    /// # Errors
    /// As [`Rates::set`].
    pub(in crate::node) fn handle_rate(&mut self, key: TensorKey, step: Option<u64>, rate: f64) -> Result<()> {
        self.rates.set(key, step, rate)
    }

    /// Whether it drains and no exchange is open any more.
    pub(in crate::node) fn is_drained(&self) -> bool {
        self.draining.is_some() && self.exchanges.is_empty()
    }

    /// Whether the part is known as one of a parameter.
    pub(in crate::node) fn knows(&self, part: PartId) -> bool {
        self.parts.contains_key(&part)
    }

    /// How many exchanges are open.
    pub(in crate::node) fn pending(&self) -> usize {
        self.exchanges.len()
    }

    /// The latest change that was done.
    pub(in crate::node) fn last(&self) -> Option<(TensorKey, Round)> {
        self.last
    }

    /// The body of a change is whole: does the change, or keeps it for its round, or drops it, and answers.
    fn apply(&mut self, exchange: ExchangeId, budget: &mut Budget) {
        if self.keeps(exchange) {
            return self.keep(exchange, budget);
        }
        let Exchange { sender, header, booked, .. } = self.exchanges[&exchange];
        let Target { part: id, round, .. } = header.target;
        self.commands.push_back(Command::Unroute { exchange });
        let part = self.parts.get_mut(&id).expect("it has an exchange");
        let bytes = part.claim.bytes;
        let (is_first, defect) = (part.version == Version(0), self.config.defect);
        let change = match header.access {
            Access::Init if is_first || planted(defect, Defect::InitOverwrites) => Some(Change::Put),
            Access::Push(Update::Assign) | Access::PushPull(Update::Assign) => Some(Change::Put),
            Access::Push(Update::Add) | Access::PushPull(Update::Add) => Some(Change::Add),
            Access::Push(Update::Step) | Access::PushPull(Update::Step) => Some(Change::Step),
            // Another worker's came first.
            Access::Init | Access::Pull | Access::PullAverage(_) => None,
        };
        let (fate, lag, factor) = part.judge(&header, change);
        let change = change.filter(|_| fate != Fate::DiscardedStale);
        let global_step = part.claim.mode.clock.map(|_| header.clock_at);
        let (before, kappa) = (part.version, part.claim.mode.compensation.kappa());
        let compensation = kappa.filter(|_| change == Some(Change::Step) && part.bases.keeps(header.basis));
        let compensation = compensation.map(|kappa| (kappa, header.basis));
        let keeps = Some(before).filter(|before| change.is_some() && !is_first && part.bases.is_read(*before));
        let step = match change {
            Some(change) => {
                let is_kept = change == Change::Add && planted(defect, Defect::VersionKept);
                part.version = Version(part.version.0 + u64::from(!is_kept));
                self.last = Some((id.key, round));
                ValueStep::Change {
                    exchange,
                    dtype: part.claim.dtype,
                    rule: part.claim.rule,
                    change,
                    compensation,
                    factor,
                    global_step,
                    rate: self.rates.at(id.key, global_step),
                    keeps,
                    key: key_use(sender, &header).filter(|_| change == Change::Add),
                }
            }
            None => ValueStep::Forget { exchange },
        };
        let effect = Effect { version: part.version, fate, lag };
        if change.is_some() || fate == Fate::DiscardedStale {
            part.ledger.insert(sender.node, Done { round, effect });
        }
        // The body has become the value. What was booked for it is booked for the first value from now on, or for the answer: that may hold
        // blocks of this value when it is an earlier one.
        let kept = if header.access.receives() { bytes } else { 0 };
        let for_base = if keeps.is_some() { bytes } else { 0 };
        if let Some(before) = keeps {
            part.bases.keep(before, for_base);
        }
        if change.is_some() && is_first {
            part.booked = booked;
            part.claim.said_by = sender.worker;
        } else if !planted(defect, Defect::ChangeBookingKept) {
            budget.give_back(booked - kept - for_base);
        }
        let entry = self.exchanges.get_mut(&exchange).expect("its body was on its way");
        (entry.state, entry.booked) = (State::Answering, kept);
        if planted(defect, Defect::ValueBeforeChange) && !is_first {
            self.answer(exchange, &header, effect);
            return self.step(id, step);
        }
        self.step(id, step);
        self.answer(exchange, &header, effect);
        self.note_read(sender.node, &header, budget);
    }

    /// A worker is given the present value of a part, from which it computes its next gradients. An init says the first one.
    pub(super) fn note_read(&mut self, node: NodeId, header: &Use, budget: &mut Budget) {
        let part = self.parts.get_mut(&header.target.part).expect("it has a value");
        let version = match header.access {
            Access::Pull | Access::PushPull(_) => part.version,
            Access::Init if part.bases.knows(node) => return,
            Access::Init if part.version == FIRST || part.bases.keeps(FIRST) => FIRST,
            Access::Init | Access::Push(_) | Access::PullAverage(_) => return,
        };
        if part.claim.mode.compensation.kappa().is_some() {
            let released = part.bases.read(node, version);
            self.release(header.target.part, released, budget);
        }
    }

    pub(super) fn release(&mut self, id: PartId, released: Released, budget: &mut Budget) {
        for (version, bytes) in released {
            budget.give_back(bytes);
            self.step(id, ValueStep::Release { version });
        }
    }

    pub(super) fn answer(&mut self, exchange: ExchangeId, header: &Use, effect: Effect) {
        let part_bytes = if header.access.receives() { header.part_bytes } else { 0 };
        let epoch = self.membership.as_ref().map_or(header.target.epoch, |ours| ours.epoch);
        let is_handled = header.key.is_some() && header.access.receives();
        let asking = self.exchanges.get(&exchange).filter(|_| is_handled);
        let key = asking.and_then(|asking| key_use(asking.sender, header));
        let (target, average) = (Target { epoch, ..header.target }, header.access.average());
        let header = Value { target, effect, part_bytes, checksum: header.is_checked() && part_bytes > 0 };
        self.step(target.part, ValueStep::Answer { exchange, average, key, header });
    }

    /// An exchange is over. What it has brought of a change that was not done goes. So does a part that has no value and to which nobody
    /// brings one.
    fn end_exchange(&mut self, exchange: ExchangeId, budget: &mut Budget) -> Option<Exchange> {
        let ended = self.exchanges.remove(&exchange)?;
        budget.give_back(ended.booked);
        let id = ended.header.target.part;
        if ended.state == State::Landing {
            self.commands.push_back(Command::Unroute { exchange });
            self.step(id, ValueStep::Forget { exchange });
        }
        let part = self.parts.get_mut(&id).expect("it has an exchange");
        part.open.remove(&(ended.sender.node, exchange));
        if part.version == Version(0) && part.open.is_empty() {
            self.drop_part(id, budget);
        }
        Some(ended)
    }

    fn forget_part(&mut self, id: PartId, error: &Error, budget: &mut Budget) {
        let open = self.parts.get(&id).into_iter().flat_map(|part| &part.open);
        let open: Vec<ExchangeId> = open.map(|(_, exchange)| *exchange).collect();
        for exchange in open {
            self.reject(exchange, error, budget);
        }
        self.drop_part(id, budget);
    }

    fn drop_part(&mut self, id: PartId, budget: &mut Budget) {
        if let Some(part) = self.parts.remove(&id) {
            budget.give_back(
                part.booked + part.kept.values().sum::<u64>() + part.merged.unwrap_or_default() + part.bases.bytes(),
            );
            self.step(id, ValueStep::Drop);
        }
    }

    pub(super) fn step(&mut self, part: PartId, step: ValueStep) {
        self.commands.push_back(Command::Step(Work::Parameter { part, step }));
    }

    pub(super) fn reject(&mut self, exchange: ExchangeId, error: &Error, budget: &mut Budget) {
        if let Some(Exchange { sender, header, .. }) = self.end_exchange(exchange, budget) {
            let told = self.membership.as_ref().map(|ours| ours.told(sender.worker, error));
            self.say_reject(exchange, header.about(), told.unwrap_or_else(|| error.clone()));
        }
    }

    fn say_reject(&mut self, exchange: ExchangeId, asked: About, error: Error) {
        self.commands.push_back(rejection(self.membership.as_deref(), exchange, asked, error));
    }
}

/// What a handle is told of a use; `None` if it is of no key.
fn key_use(sender: Sender, header: &Use) -> Option<KeyUse> {
    header.key.map(|key| KeyUse { worker: sender.worker, dtype: header.dtype, key })
}
