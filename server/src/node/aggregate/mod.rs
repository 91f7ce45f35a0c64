//! Which contribution counts, when a sum is published and who gets it; owns no bytes, threads or clocks.
//!
//! The [`Aggregator`] hears what happens to exchanges (`handle_*`) and says what is to be done ([`Command`]). Its driver keeps the sums by
//! [`SlotId`] and drains [`Aggregator::next_command`] completely after each input.
//!
//! **Driving it.** [`Step::Receive`] asks for the body of an exchange. Whoever makes the sum reports what became of it with
//! [`Aggregator::handle_receipt`]: once when a contribution is whole, and again when one that is whole already is to be received once
//! more. The steps of one slot are made in their order; those of different slots, and the sending of answers, may overlap as they like. A
//! part of no bytes has no body to receive.
//!
//! **Counted once.** A contribution is taken by its prefix, whichever exchanges bring it, and counted when all of it was taken: from then
//! on its worker's bit is set and a repeat is only asked to wait for the sum. A transfer that breaks off has done nothing that its repeat
//! does not continue. Of two uploads of one worker the later one is read.
//!
//! **Cut-through.** When every sender has begun, the sum flows: its blocks go to all who listen as soon as every contribution has passed
//! them. The last block waits until every sender was counted ([`Step::Seal`]); until then the round can still fail for everybody, and
//! nobody has a whole sum. A contribution that turns out damaged has spoiled the sum, so it fails the round.
//!
//! **Callers.** Of the workers that reduce a part among themselves, on one machine, one exchanges it for all of them: the
//! part's callers are these and all who come alone. Whom a round waits for and who waits for it are callers; a mean divides by workers.
//!
//! **Two rounds of a part are alive at most.** A worker pushes round s+1 only when it has the sum of s, so when all have reached s+1
//! nobody can ask for s again and its memory goes. In the rare cases where a worker may run ahead without that proof (the root of a
//! broadcast, a worker after a failed round), it is told to come back later instead of overwriting what a slow one has not read, for at
//! most a step timeout. A worker that goes on to a later round without having contributed to s, or says that it will not, fails s for the
//! others at once: it gave it up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{
    DType, Defect, ExchangeId, NodeId, PartId, Round, TensorKey, Time, View, WorkerId, planted,
};
use gradlane_core::wire::Contribute;
use gradlane_core::wire::frame::{Progress, Stall};

use membership::Membership;
use round::{Open, RoundState, Slot};

mod closing;
mod command;
mod giving_up;
mod ledger;
mod membership;
mod opening;
mod round;

#[cfg(test)]
pub(crate) mod tests;

pub use command::{Command, Order, Receipt, SlotId, Step, SumSpec, Upload};

/// Parts that one server may come to know: at 64 KiB, the smallest part of a large tensor, 64 GiB.
pub const PARTS_SEEN_MAX: usize = 1 << 20;
/// Stalled rounds that are reported at a time, the oldest first: they explain the younger ones.
pub const STALLS_PER_REPORT: usize = 4;

/// How sums are made and how long they may take.
#[derive(Clone, PartialEq, Debug)]
pub struct AggregatorConfig {
    /// Add in the order of the ranks, so that every run gives the same bits, instead of in the order of arrival.
    pub deterministic: bool,
    /// A round older than this is reported, again after each further such time. Not zero.
    pub stall_warn: Duration,
    /// A round older than this fails.
    pub step_timeout: Duration,
    /// Bytes of all sums, finished ones and those in the making. To be larger than three times this server's share of the model, whose last
    /// sums stay in memory between steps while the next are added (half-size floats in f32); in rank order also than the credit of all
    /// workers.
    pub memory_bytes_max: u64,
    /// A sum of at most so many bytes has one block, which cannot leave before it is complete: then nothing is said of it before.
    pub block_bytes: u64,
    /// The mistake to make, for the tests of the simulation.
    pub defect: Option<Defect>,
}

/// The machine; the module's documentation says how to drive it.
#[derive(Debug)]
pub struct Aggregator {
    config: AggregatorConfig,
    membership: Option<Membership>,
    parts: BTreeMap<PartId, Part>,
    exchanges: BTreeMap<ExchangeId, Exchange>,
    /// Tensors that failed for good.
    forgotten: BTreeMap<TensorKey, Error>,
    /// Open rounds with a contribution, the oldest first.
    waiting: BTreeSet<(Time, SlotId)>,
    warned: Option<Time>,
    booked: u64,
    /// Since when pushes are refused for want of memory and none was freed.
    starved: Option<Time>,
    last_counted: Option<(TensorKey, Round)>,
    /// What rounds that nobody had begun are refused with, once the server drains.
    draining: Option<Error>,
    commands: VecDeque<Command>,
}

/// The rounds of a part that are alive, by parity.
#[derive(Debug)]
struct Part {
    /// Who exchanges it, by rank.
    callers: Arc<[WorkerId]>,
    latest: Round,
    /// Workers that asked for a later round than that: they contribute to none before it any more.
    ahead: BTreeMap<WorkerId, Round>,
    /// Since when a next round cannot begin, because somebody may want the sum in whose slot it belongs.
    blocked: Option<Time>,
    slots: [Option<Slot>; 2],
}

/// An exchange that is neither rejected nor known to be answered.
#[derive(Debug)]
struct Exchange {
    worker: WorkerId,
    slot: SlotId,
    header: Contribute,
    state: ExchangeState,
}

/// How far an exchange is.
///
/// ```text
///   push with a body ──► Landing ──counted──► Waiting ──the sum flows──► Answering ──answered──► (gone)
///                           └──── the sum flows before all of the body came ────┘
///   push without ─────────────────────────────┘ (straight to Answering where the sum flows already)
///   any ──rejected, torn──► (gone)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ExchangeState {
    Landing,
    Waiting,
    Answering,
}

impl Aggregator {
    /// An aggregator that waits for its first view.
    ///
    /// # Panics
    /// If `stall_warn` is zero.
    pub fn new(config: AggregatorConfig) -> Self {
        assert!(!config.stall_warn.is_zero(), "a stall report needs an interval");
        Self {
            config,
            membership: None,
            parts: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            waiting: BTreeSet::new(),
            warned: None,
            booked: 0,
            starved: None,
            last_counted: None,
            draining: None,
            commands: VecDeque::new(),
        }
    }

    /// What is to be done next.
    pub fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        let (since, _) = self.waiting.first()?;
        Some(self.warning_due(*since).min(*since + self.config.step_timeout))
    }

    /// A header arrived from the process `node`, whose identity the connection has proven.
    pub fn handle_opened(&mut self, now: Time, node: NodeId, exchange: ExchangeId, header: &Contribute) {
        if let Err(error) = self.open(now, node, exchange, header) {
            self.say_reject(exchange, &header.target, error);
        }
    }

    /// Whoever makes the sum of `slot` says what became of the contribution of `worker`, the latest bytes of which `exchange` brought.
    /// A receipt that comes too late is ignored.
    pub fn handle_receipt(&mut self, now: Time, id: SlotId, worker: WorkerId, exchange: ExchangeId, receipt: Receipt) {
        let Some(Slot { state: RoundState::Open(open), arrived, .. }) = self.slot(id) else { return };
        let latest = open.uploads.get(&worker).is_some_and(|(latest, _)| *latest == exchange);
        let listens = open.listeners.get(&worker) == Some(&exchange);
        if !latest || arrived.contains(worker) {
            return;
        }
        match receipt {
            Receipt::Whole => {
                if let Some(Exchange { state: state @ ExchangeState::Landing, .. }) = self.exchanges.get_mut(&exchange)
                {
                    *state = ExchangeState::Waiting;
                }
                self.count(now, id, worker);
            }
            Receipt::Damaged => {
                let (tensor, round, from) = (id.part.key.to_string(), id.round, worker.to_string());
                self.fail(id, Error::Checksum { tensor, round, from });
            }
            Receipt::Lost if listens => {
                self.dismiss(id, worker, exchange, opening::lost(worker));
                self.end_of_upload(id, worker);
            }
            Receipt::Lost => {}
        }
    }

    /// The exchange broke off. Unknown ones are ignored.
    pub fn handle_torn(&mut self, _now: Time, exchange: ExchangeId) {
        let Some(Exchange { worker, slot: id, state, .. }) = self.exchanges.remove(&exchange) else { return };
        let torn_counted = planted(self.config.defect, Defect::TornCounted) && state != ExchangeState::Waiting;
        let Some(slot) = self.slot_mut(id) else { return };
        if let RoundState::Open(open) = &mut slot.state
            && open.listeners.get(&worker) == Some(&exchange)
        {
            open.listeners.remove(&worker);
            if torn_counted {
                slot.arrived.insert(worker);
            }
        }
        self.end_of_upload(id, worker);
    }

    /// The answer of the exchange was handed over whole.
    pub fn handle_answered(&mut self, _now: Time, exchange: ExchangeId) {
        self.exchanges.remove(&exchange);
    }

    /// The tensor failed for good on every worker: whoever waits for one of its parts, or asks later, gets `error`.
    pub fn handle_forget(&mut self, _now: Time, key: TensorKey, error: Error) {
        let of_tensor = PartId { key, index: 0 }..=PartId { key, index: u32::MAX };
        let parts: Vec<PartId> = self.parts.range(of_tensor).map(|(part, _)| *part).collect();
        for part in parts {
            self.forget_part(part, &error);
        }
        self.forgotten.insert(key, error);
    }

    /// The server is about to stop: from now on a round that no worker had begun is refused with `refusal`, the first one given. Rounds
    /// that were begun take the contributions they wait for, and are answered.
    pub fn handle_drain(&mut self, _now: Time, refusal: Error) {
        self.draining.get_or_insert(refusal);
    }

    /// The coordinator announced a membership. Views may come twice or late.
    ///
    /// A sum is made by one set of workers from its first to its last contribution: when other processes take over ranks, all rounds
    /// begin anew.
    pub fn handle_view(&mut self, _now: Time, view: &View) {
        if self.membership.as_ref().is_some_and(|ours| view.epoch < ours.epoch) {
            return;
        }
        let next = Membership::of(view);
        let end_of_rounds = next.end_of_rounds(self.membership.as_ref());
        self.membership = Some(next);
        if let Some(error) = end_of_rounds {
            while let Some(part) = self.parts.keys().next().copied() {
                self.forget_part(part, &error);
            }
            self.forgotten.clear();
        }
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((since, id)) = self.waiting.first().copied()
            && since + self.config.step_timeout <= now
        {
            let stall = self.stall(now, since, id);
            let came = self.slot(id).map_or(0, |slot| slot.arrived.len());
            let callers = self.callers(id.part).len();
            let who = if callers < self.workers().len() { "machines" } else { "workers" };
            let error = Error::Stalled {
                tensor: id.part.key.to_string(),
                round: id.round,
                missing: stall.missing,
                waited: stall.waited,
                detail: format!("{came} of {callers} {who} came for part {}", id.part.index),
            };
            self.fail(id, error);
        }
        let Some((oldest, _)) = self.waiting.first() else { return };
        if self.warning_due(*oldest) <= now {
            self.warned = Some(now);
            let stalled = |(since, _): &&(Time, SlotId)| *since + self.config.stall_warn <= now;
            let stalls = self.waiting.iter().take(STALLS_PER_REPORT).take_while(stalled);
            let reports = stalls.map(|(since, id)| Command::Stalled { stall: self.stall(now, *since, *id) });
            let reports: Vec<Command> = reports.collect();
            self.commands.extend(reports);
        }
    }

    /// Whether it drains and nothing is open any more: no exchange is under way, and every round has its sum, which whoever wants it has
    /// asked for, or will have none.
    ///
    /// A broadcast has its sum when its root came; it stays open for those who have not.
    pub fn is_drained(&self) -> bool {
        let settled = |slot: &Slot| match slot.state {
            RoundState::Open(_) => false,
            RoundState::Published(_) => slot.arrived.len() >= self.callers(slot.id.part).len(),
            RoundState::Failed(_) => true,
        };
        let slots = || self.parts.values().flat_map(|part| part.slots.iter().flatten());
        self.draining.is_some() && self.exchanges.is_empty() && slots().all(settled)
    }

    /// What it did last, for the heartbeat.
    pub fn progress(&self) -> Progress {
        let pending = u32::try_from(self.exchanges.len()).unwrap_or(u32::MAX);
        Progress { last: self.last_counted, pending, bytes_in_flight: self.booked }
    }

    fn stall(&self, now: Time, since: Time, id: SlotId) -> Stall {
        let missing = self.slot(id).map_or_else(Vec::new, |slot| {
            let missing = slot.missing(self.callers(id.part));
            missing.into_iter().flat_map(|caller| self.behind(slot.spec.dtype, caller)).collect()
        });
        Stall { part: id.part, round: id.round, missing, waited: now.since(since) }
    }

    fn warning_due(&self, oldest: Time) -> Time {
        self.warned.map_or(oldest, |warned| warned.max(oldest)) + self.config.stall_warn
    }

    /// Accounts what a round occupies now.
    fn book(&mut self, id: SlotId) {
        let Some(bytes) = self.slot(id).map(|slot| slot.needs(self.callers(id.part), &self.config)) else { return };
        let slot = self.slot_mut(id).expect("was there");
        let before = std::mem::replace(&mut slot.booked, bytes);
        self.booked = self.booked - before + bytes;
        if bytes < before {
            self.starved = None;
        }
    }

    /// Whether `more` bytes can be had. A refusal passes by itself when rounds end; if none does for a step timeout, the memory is too small
    /// for the job, and to ask again would be to wait for ever.
    fn check_memory(&mut self, now: Time, more: u64) -> Result<()> {
        let limit = self.config.memory_bytes_max;
        if self.booked.saturating_add(more) <= limit {
            return Ok(());
        }
        let what = "memory of the server".to_owned();
        let hint = "raise its limit, add servers, or lower the workers' credit".to_owned();
        if *self.starved.get_or_insert(now) + self.config.step_timeout <= now {
            return Err(Error::FailedPrecondition {
                what: format!("{what}: {limit} bytes are too few for this job"),
                hint,
            });
        }
        Err(Error::Exhausted { what, limit: format!("{limit} bytes"), hint })
    }

    fn workers(&self) -> &[WorkerId] {
        self.membership.as_ref().map_or(&[], |ours| &ours.workers)
    }

    /// Who exchanges a part that is known.
    fn callers(&self, part: PartId) -> &[WorkerId] {
        self.parts.get(&part).map_or(&[], |part| &part.callers)
    }

    /// The workers whose contributions come with a caller's, itself among them: any of them may be what is waited for.
    fn behind(&self, dtype: DType, caller: WorkerId) -> Vec<WorkerId> {
        let machines = self.membership.as_ref().map(|ours| &ours.machines);
        machines.and_then(|machines| machines.partners(dtype, caller)).map_or_else(|| vec![caller], <[_]>::to_vec)
    }

    fn slot(&self, id: SlotId) -> Option<&Slot> {
        self.parts.get(&id.part)?.slots[parity(id.round)].as_ref().filter(|slot| slot.id == id)
    }

    fn slot_mut(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.parts.get_mut(&id.part)?.slots[parity(id.round)].as_mut().filter(|slot| slot.id == id)
    }

    fn open_mut(&mut self, id: SlotId) -> &mut Open {
        match self.slot_mut(id).map(|slot| &mut slot.state) {
            Some(RoundState::Open(open)) => open,
            Some(RoundState::Published(_) | RoundState::Failed(_)) | None => unreachable!("the caller found it open"),
        }
    }

    fn exchange_mut(&mut self, exchange: ExchangeId) -> &mut Exchange {
        self.exchanges.get_mut(&exchange).expect("in the table from its opening to its end")
    }
}

fn parity(round: Round) -> usize {
    usize::from(round.0 % 2 == 1)
}
