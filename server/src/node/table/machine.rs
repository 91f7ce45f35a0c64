//! The deciding half of tables: which uses are taken, and what memory they may take.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{
    DType, Declared, ExchangeId, Extent, NodeId, PartId, Participants, Round, RowAction, Shards, TableSpec, TensorKey,
    TensorKind, Time, Turns, WorkerId,
};
use gradlane_core::wire::{About, Rows as Header};

use super::rows::Rows;
use crate::node::budget::{Budget, check_parts};
use crate::node::command::{AskedRows, Command, RowsStep, Served, Work};
use crate::node::config::NodeConfig;
use crate::node::membership::{Membership, Sender, Succession, rejection};
use crate::node::refusals::{out_of_order, superseded};

/// The machine. The parent module says what it decides.
#[derive(Debug)]
pub(in crate::node) struct Tables {
    config: NodeConfig,
    membership: Option<Arc<Membership>>,
    /// Its workers, by rank.
    workers: Arc<[(WorkerId, NodeId)]>,
    parts: BTreeMap<PartId, Part>,
    exchanges: BTreeMap<ExchangeId, Exchange>,
    /// The uses that may wait for other workers, with the time at which each is given up.
    waits: BTreeSet<(Time, ExchangeId)>,
    /// The error for new uses since the server drains.
    draining: Option<Error>,
    last: Option<(TensorKey, Round)>,
    commands: VecDeque<Command>,
}

/// A part of a table.
#[derive(Debug)]
struct Part {
    claim: Claim,
    /// Bytes that are booked for its rows.
    booked: u64,
    /// Bytes that are booked for scans.
    booked_for_scans: u64,
    /// Its exchanges, by worker.
    open: BTreeSet<(NodeId, ExchangeId)>,
}

/// What a header says of a part; equal on all workers.
#[derive(Clone, Copy, Debug)]
struct Claim {
    said_by: WorkerId,
    spec: TableSpec,
    shards: Shards,
}

/// An exchange, until it has ended and the store is done with it.
#[derive(Debug)]
struct Exchange {
    sender: Sender,
    about: About,
    round: Round,
    /// When it is given up, while it may wait for other workers.
    until: Option<Time>,
    /// Bytes that are booked for its body and for rows that it may add, until it is served, and for its answer, until that was handed over.
    booked: [u64; 2],
    has_body: bool,
    is_open: bool,
    is_served: bool,
}

impl Tables {
    /// A machine that waits for its first membership.
    pub(in crate::node) fn new(config: NodeConfig) -> Self {
        Self {
            config,
            membership: None,
            workers: Arc::default(),
            parts: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            waits: BTreeSet::new(),
            draining: None,
            last: None,
            commands: VecDeque::new(),
        }
    }

    /// The next command.
    pub(in crate::node) fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// An admitted worker opened an exchange to use rows of a part.
    ///
    /// # Errors
    /// Why it is refused.
    pub(in crate::node) fn handle_rows(
        &mut self,
        now: Time,
        sender: Sender,
        exchange: ExchangeId,
        header: &Header,
        budget: &mut Budget,
    ) -> Result<()> {
        let (id, round) = (header.target.part, header.target.round);
        self.end_older(sender, id, round, budget)?;
        let claim = Claim { said_by: sender.worker, spec: header.spec, shards: header.shards };
        match self.parts.get(&id) {
            Some(part) => part.claim.check(&claim, id)?,
            None => check_parts(self.parts.len())?,
        }
        let growth = match header.action {
            action if action.creates() => Rows::growth_max(&header.spec, header.ids),
            // It may freeze all rows that there are.
            RowAction::Changed => self.parts.get(&id).map_or(0, |part| part.booked),
            _ => 0,
        };
        // The numbers of an answer exist twice for a moment.
        let booked = [header.body_bytes() * 2 + header.answer_bytes() + growth, header.answer_bytes()];
        budget.take(now, booked.iter().sum())?;
        let new = || Part { claim, booked: 0, booked_for_scans: 0, open: BTreeSet::new() };
        let part = self.parts.entry(id).or_insert_with(new);
        part.open.insert((sender.node, exchange));
        let (about, has_body) = (header.about(), header.body_bytes() > 0);
        let until = may_wait(header.spec.turns, header.action).then(|| now + self.config.step_timeout);
        self.waits.extend(until.map(|until| (until, exchange)));
        let entry = Exchange { sender, about, round, until, booked, has_body, is_open: true, is_served: false };
        self.exchanges.insert(exchange, entry);
        self.last = Some((id.key, round));
        let epoch = self.membership.as_ref().map_or(about.epoch, |ours| ours.epoch);
        let crosses_network = self.membership.as_ref().is_none_or(|ours| ours.crosses_network);
        let block_bytes = self.config.block_bytes(header.answer_bytes(), crosses_network);
        let (node, workers, refusal) = (sender.node, Arc::clone(&self.workers), self.draining.clone());
        let asked = Box::new(AskedRows { node, header: *header, epoch, workers, block_bytes, refusal });
        self.step(id, RowsStep::Serve { exchange, asked });
        Ok(())
    }

    /// The store is done with a use.
    pub(in crate::node) fn handle_served(&mut self, served: &Served, budget: &mut Budget) {
        let Served { part, exchange, bytes, scan_bytes, refusal } = served;
        if let Some(part) = self.parts.get_mut(part) {
            budget.rebook(std::mem::replace(&mut part.booked, *bytes), *bytes);
            budget.rebook(std::mem::replace(&mut part.booked_for_scans, *scan_bytes), *scan_bytes);
        }
        let Some(exchange) = exchange else { return };
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        budget.give_back(std::mem::take(&mut entry.booked[0]));
        entry.is_served = true;
        if let Some(until) = entry.until.take() {
            self.waits.remove(&(until, *exchange));
        }
        if entry.has_body {
            self.commands.push_back(Command::Unroute { exchange: *exchange });
        }
        if let Some(error) = refusal {
            self.reject(*exchange, error, budget);
        }
        self.forget_if_over(*exchange);
    }

    /// When [`Self::handle_timeout`] is due.
    pub(in crate::node) fn poll_timeout(&self) -> Option<Time> {
        self.waits.first().map(|(until, _)| *until)
    }

    /// Time passed. Uses that have waited too long for other workers are given up.
    pub(in crate::node) fn handle_timeout(&mut self, now: Time) {
        let mut late: BTreeMap<PartId, Vec<ExchangeId>> = BTreeMap::new();
        while let Some((_, exchange)) = self.waits.first().copied().filter(|(until, _)| *until <= now) {
            self.waits.pop_first();
            let entry = self.exchanges.get_mut(&exchange).expect("only what is open waits");
            entry.until = None;
            late.entry(entry.about.part).or_default().push(exchange);
        }
        for (part, exchanges) in late {
            self.step(part, RowsStep::GiveUp { exchanges, waited: self.config.step_timeout });
        }
    }

    /// The exchange broke off. Unknown ones are ignored.
    pub(in crate::node) fn handle_torn(&mut self, exchange: ExchangeId, budget: &mut Budget) {
        self.end_exchange(exchange, budget);
    }

    /// The answer of the exchange was handed over whole.
    pub(in crate::node) fn handle_answered(&mut self, exchange: ExchangeId, budget: &mut Budget) {
        self.end_exchange(exchange, budget);
    }

    /// Parts of tensors are over. Exchanges of them that are open are rejected with `error`, and nothing is kept of them.
    pub(in crate::node) fn handle_over(&mut self, parts: RangeInclusive<PartId>, error: &Error, budget: &mut Budget) {
        let parts: Vec<PartId> = self.parts.range(parts).map(|(part, _)| *part).collect();
        parts.into_iter().for_each(|part| self.forget_part(part, error, budget));
    }

    /// A membership that is not older than the present one. Tables outlive the workers that a view lacks; they end when all work ends.
    pub(in crate::node) fn handle_membership(
        &mut self,
        next: Arc<Membership>,
        succession: &Succession,
        budget: &mut Budget,
    ) {
        self.membership = Some(Arc::clone(&next));
        let before = std::mem::replace(&mut self.workers, next.nodes());
        match succession {
            Succession::Same => {}
            Succession::Fewer => {
                let is_gone = |exchange: &Exchange| exchange.is_open && !next.has(exchange.sender.node);
                let gone = self.exchanges.iter().filter(|(_, exchange)| is_gone(exchange));
                let gone: Vec<ExchangeId> = gone.map(|(exchange, _)| *exchange).collect();
                for exchange in gone {
                    self.reject(exchange, &Error::Fenced { current: next.epoch }, budget);
                }
                // Also of those who have not used a part, because others may wait for them.
                let parts: Vec<PartId> = self.parts.keys().copied().collect();
                for node in before.iter().map(|(_, node)| node).filter(|node| !next.has(**node)) {
                    parts.iter().for_each(|id| self.step(*id, RowsStep::Leave { node: *node }));
                }
            }
            Succession::End(error) => {
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

    /// Whether it drains and no exchange is open any more.
    pub(in crate::node) fn is_drained(&self) -> bool {
        self.draining.is_some() && self.exchanges.is_empty()
    }

    /// Whether the part is known as one of a table.
    pub(in crate::node) fn knows(&self, part: PartId) -> bool {
        self.parts.contains_key(&part)
    }

    /// How many exchanges are open.
    pub(in crate::node) fn pending(&self) -> usize {
        self.exchanges.values().filter(|entry| entry.is_open).count()
    }

    /// The latest use.
    pub(in crate::node) fn last(&self) -> Option<(TensorKey, Round)> {
        self.last
    }

    /// Ends older exchanges of the worker about the part, which it has given up. An answer to its use before this one is not given up: it may
    /// have arrived, and nobody has acknowledged it yet.
    ///
    /// # Errors
    /// [`Error::Protocol`] if an exchange of a later use is open.
    fn end_older(&mut self, sender: Sender, id: PartId, round: Round, budget: &mut Budget) -> Result<()> {
        let Some(part) = self.parts.get(&id) else { return Ok(()) };
        let of_sender = (sender.node, ExchangeId(0))..=(sender.node, ExchangeId(u64::MAX));
        let open = part.open.range(of_sender).map(|(_, exchange)| (*exchange, &self.exchanges[exchange]));
        let open: Vec<(ExchangeId, Round, bool)> =
            open.map(|(id, exchange)| (id, exchange.round, exchange.is_served)).collect();
        if let Some((_, latest, _)) = open.iter().find(|(_, of, _)| *of > round) {
            return Err(out_of_order(sender.worker, round, *latest));
        }
        for (exchange, of, is_served) in open {
            if !is_served || of == round {
                self.reject(exchange, &superseded(), budget);
            }
        }
        Ok(())
    }

    fn end_exchange(&mut self, exchange: ExchangeId, budget: &mut Budget) {
        let Some(entry) = self.exchanges.get_mut(&exchange).filter(|entry| entry.is_open) else { return };
        entry.is_open = false;
        if let Some(until) = entry.until.take() {
            self.waits.remove(&(until, exchange));
        }
        budget.give_back(std::mem::take(&mut entry.booked[1]));
        let (id, node, is_served) = (entry.about.part, entry.sender.node, entry.is_served);
        if let Some(part) = self.parts.get_mut(&id) {
            part.open.remove(&(node, exchange));
        }
        if !is_served {
            self.step(id, RowsStep::Forget { exchange });
        }
        self.forget_if_over(exchange);
    }

    fn forget_if_over(&mut self, exchange: ExchangeId) {
        if self.exchanges.get(&exchange).is_some_and(|entry| entry.is_served && !entry.is_open) {
            self.exchanges.remove(&exchange);
        }
    }

    fn forget_part(&mut self, id: PartId, error: &Error, budget: &mut Budget) {
        let open = self.parts.get(&id).into_iter().flat_map(|part| &part.open);
        let open: Vec<ExchangeId> = open.map(|(_, exchange)| *exchange).collect();
        for exchange in open {
            self.reject(exchange, error, budget);
        }
        if let Some(part) = self.parts.remove(&id) {
            budget.give_back(part.booked + part.booked_for_scans);
            self.step(id, RowsStep::Drop);
        }
    }

    fn reject(&mut self, exchange: ExchangeId, error: &Error, budget: &mut Budget) {
        let Some(entry) = self.exchanges.get(&exchange).filter(|entry| entry.is_open) else { return };
        let (worker, about) = (entry.sender.worker, entry.about);
        self.end_exchange(exchange, budget);
        let told = self.membership.as_ref().map(|ours| ours.told(worker, error));
        self.commands.push_back(rejection(
            self.membership.as_deref(),
            exchange,
            about,
            told.unwrap_or_else(|| error.clone()),
        ));
    }

    fn step(&mut self, part: PartId, step: RowsStep) {
        self.commands.push_back(Command::Step(Work::Table { part, step }));
    }
}

/// Whether such a use may wait for other workers.
fn may_wait(turns: Turns, action: RowAction) -> bool {
    match turns {
        Turns::Async => false,
        Turns::Ssp { .. } => action == RowAction::Pull,
        Turns::Sync { .. } => action.pushes(),
    }
}

impl Claim {
    /// Refuses what `second` says otherwise of `part`.
    fn check(&self, second: &Self, part: PartId) -> Result<()> {
        let difference = self.declared().difference(&second.declared());
        difference.map_or(Ok(()), |found| Err(found.into_error(part.key, self.said_by, second.said_by)))
    }

    fn declared(&self) -> Declared<'_> {
        let extent = Extent::Bytes(u64::from(self.shards.count) * self.spec.shard_bytes());
        let kind = TensorKind::Table { spec: self.spec };
        Declared { name: None, dtype: DType::F32, extent, kind, op: None, participants: &Participants::ALL }
    }
}
