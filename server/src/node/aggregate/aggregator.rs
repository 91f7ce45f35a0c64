//! The state of the dense sum and its inputs; the sibling files handle the inputs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::error::Error;
use gradlane_core::types::{
    Blamed, Coming, DType, Defect, ExchangeId, PartId, Participants, Round, TensorKey, Time, WorkerId, WorkerSet,
    planted,
};
use gradlane_core::wire::frame::{Stall, Waiting};
use gradlane_core::wire::{Contribute, Restore, Target, Withdraw};

use super::absence::Absence;
use super::readers::Readers;
use super::refusals::{lost, stalled};
use super::residual::Residual;
use super::round::{Open, RoundState, Slot, Spec, Uploading};
use crate::node::budget::Budget;
use crate::node::command::{Added, Command, Receipt, SlotId};
use crate::node::config::NodeConfig;
use crate::node::membership::{Callers, Membership, Succession};

/// The most stalled rounds in one report, the oldest first, because they explain the younger ones.
pub(super) const STALLS_PER_REPORT: usize = 4;

/// The machine. The parent module says what it decides.
#[derive(Debug)]
pub(in crate::node) struct Aggregator {
    pub(super) config: NodeConfig,
    pub(super) membership: Option<Arc<Membership>>,
    pub(super) parts: BTreeMap<PartId, Part>,
    pub(super) exchanges: BTreeMap<ExchangeId, Exchange>,
    /// The exchanges about residuals.
    pub(super) uses: BTreeMap<ExchangeId, Using>,
    /// Open rounds with a contribution, the oldest first.
    pub(super) waiting: BTreeSet<(Time, SlotId)>,
    warned: Option<Time>,
    /// When to look for sums that nobody reads any more; absent where there are none.
    pub(super) look_at_sums: Option<Time>,
    pub(super) readers: Readers,
    /// Sums that every caller has received whole and nobody reads, and since when memory is wanted for which they may go.
    pub(super) delivered: BTreeMap<SlotId, Option<Time>>,
    /// Workers whose connection was lost, and which may ask again.
    pub(super) absent: BTreeMap<WorkerId, Absence>,
    /// Nothing fails before that because of a missing worker: nobody can say that it is lost.
    pub(super) patient_until: Time,
    /// Workers that take no sums, with how long they have taken none. Their links are to be closed.
    pub(super) given_up: Vec<(WorkerId, Duration)>,
    /// Bytes that became free and are still booked. They are given back before the next request for memory, and at the end of each input.
    pub(super) freed: u64,
    pub(super) last_counted: Option<(TensorKey, Round)>,
    pub(super) blamed: Blamed,
    /// The error for rounds that no worker had begun when the server began to drain.
    pub(super) draining: Option<Error>,
    pub(super) commands: VecDeque<Command>,
}

/// The rounds of a part that are alive, by parity.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) dtype: DType,
    /// The participants of its tensors, in all rounds.
    pub(super) participants: Participants,
    /// The workers that exchange it in the present view.
    pub(super) callers: Callers,
    /// The latest round that began, if one did.
    pub(super) latest: Option<Round>,
    /// Workers that asked for a later round than that: they contribute to none before it any more.
    pub(super) ahead: BTreeMap<WorkerId, Round>,
    /// Since when the next round cannot begin, because a worker may still ask for the sum in its slot.
    pub(super) blocked: Option<Time>,
    pub(super) residual: Residual,
    pub(super) slots: [Option<Slot>; 2],
}

/// An exchange that is neither rejected nor known to be answered.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) worker: WorkerId,
    pub(super) slot: SlotId,
    pub(super) header: Contribute,
    pub(super) state: ExchangeState,
    /// Whether the driver has a route for its body.
    pub(super) routed: bool,
}

/// An exchange about a residual that has not ended.
#[derive(Debug)]
pub(super) struct Using {
    pub(super) worker: WorkerId,
    pub(super) target: Target,
    /// Bytes of memory for its answer.
    pub(super) booked: u64,
    /// Whether the driver has a route for its body.
    pub(super) routed: bool,
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
pub(super) enum ExchangeState {
    Landing,
    Waiting,
    Answering,
}

impl Aggregator {
    /// An aggregator that waits for its first membership.
    ///
    /// # Panics
    /// If `stall_warn` is zero.
    pub(in crate::node) fn new(config: NodeConfig) -> Self {
        assert!(!config.stall_warn.is_zero(), "a stall report needs an interval");
        Self {
            config,
            membership: None,
            parts: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            uses: BTreeMap::new(),
            waiting: BTreeSet::new(),
            warned: None,
            look_at_sums: None,
            readers: Readers::default(),
            delivered: BTreeMap::new(),
            absent: BTreeMap::new(),
            patient_until: Time::ZERO,
            given_up: Vec::new(),
            freed: 0,
            last_counted: None,
            blamed: Blamed::default(),
            draining: None,
            commands: VecDeque::new(),
        }
    }

    /// The next command.
    pub(in crate::node) fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// When [`Self::handle_timeout`] is due.
    pub(in crate::node) fn poll_timeout(&self) -> Option<Time> {
        let due = |since| self.warning_due(since).min((since + self.config.step_timeout).max(self.patient_until));
        let stall = self.waiting.first().map(|(since, _)| due(*since));
        stall.into_iter().chain(self.look_at_sums).min()
    }

    /// An admitted worker opened an exchange to contribute, or to ask for the sum.
    pub(in crate::node) fn handle_contribute(
        &mut self,
        now: Time,
        worker: WorkerId,
        exchange: ExchangeId,
        header: &Contribute,
        budget: &mut Budget,
    ) {
        if let Err(error) = self.open(now, worker, exchange, header, budget) {
            self.say_reject(exchange, header.target.about(), error);
        }
        self.settle(budget);
    }

    /// An admitted worker brings a sum that another server had.
    pub(in crate::node) fn handle_restore(
        &mut self,
        now: Time,
        worker: WorkerId,
        exchange: ExchangeId,
        header: &Restore,
        budget: &mut Budget,
    ) {
        if let Err(error) = self.restore(now, worker, exchange, header, budget) {
            self.say_reject(exchange, header.target.about(), error);
        }
        self.settle(budget);
    }

    /// An admitted worker said with `header`, and with `error` behind it, that it will not contribute to a round. Returns the error to answer:
    /// the one that the other workers get, or the reason why this server cannot take the withdrawal.
    pub(in crate::node) fn handle_withdraw(
        &mut self,
        now: Time,
        worker: WorkerId,
        header: &Withdraw,
        error: &Error,
        budget: &mut Budget,
    ) -> Error {
        let answer = self.withdraw(now, worker, header, error, budget).unwrap_or_else(|refusal| refusal);
        self.settle(budget);
        answer
    }

    /// The driver of the sum of `slot` says what became of the contribution of `worker`, whose latest bytes `exchange` brought. A receipt
    /// that comes too late is ignored.
    pub(in crate::node) fn handle_receipt(
        &mut self,
        now: Time,
        id: SlotId,
        worker: WorkerId,
        exchange: ExchangeId,
        added: Added,
        budget: &mut Budget,
    ) {
        self.note_receipt(now, id, worker, exchange, added);
        self.settle(budget);
    }

    fn note_receipt(&mut self, now: Time, id: SlotId, worker: WorkerId, exchange: ExchangeId, added: Added) {
        let Added { receipt, behind } = added;
        // The sum needs no more bytes of its body.
        self.unroute(exchange);
        if self.is_restored_by(id, exchange) {
            return self.note_restored(id, exchange, receipt);
        }
        let Some(Slot { state: RoundState::Open(open), arrived, .. }) = self.slot(id) else { return };
        let latest = open.uploads.get(&worker).filter(|uploading| uploading.exchange == exchange);
        let listens = open.listeners.get(&worker) == Some(&exchange);
        let Some(Uploading { coming, .. }) = latest.copied().filter(|_| !arrived.contains(worker)) else { return };
        match receipt {
            Receipt::Whole => {
                if let Some(Exchange { state: state @ ExchangeState::Landing, .. }) = self.exchanges.get_mut(&exchange)
                {
                    *state = ExchangeState::Waiting;
                }
                self.count(now, id, worker, Coming { behind, ..coming });
            }
            Receipt::Damaged => {
                let (tensor, round, from) = (id.part.key.into(), id.round, worker.to_string());
                self.fail(id, Error::Checksum { tensor, round, from });
            }
            Receipt::Lost if listens => {
                self.dismiss(id, worker, exchange, lost(worker));
                self.end_of_upload(id, worker);
            }
            Receipt::Lost => {}
        }
    }

    /// The exchange broke off. Unknown ones are ignored.
    pub(in crate::node) fn handle_torn(&mut self, exchange: ExchangeId, budget: &mut Budget) {
        let Some(Exchange { worker, slot: id, state, .. }) = self.end_exchange(exchange, false) else {
            self.note_torn_using(exchange);
            return self.settle(budget);
        };
        if self.is_restored_by(id, exchange) {
            self.forget_restored(id);
            return self.settle(budget);
        }
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
        self.settle(budget);
    }

    /// The answer of the exchange was handed over whole.
    pub(in crate::node) fn handle_answered(&mut self, exchange: ExchangeId, budget: &mut Budget) {
        self.end_exchange(exchange, true);
        self.end_using(exchange);
        self.settle(budget);
    }

    /// The workers that were given up since the last call, because they take no sums, and how long each has taken none. The driver of this
    /// machine closes their links.
    pub(in crate::node) fn given_up(&mut self) -> Vec<(WorkerId, Duration)> {
        std::mem::take(&mut self.given_up)
    }

    /// Parts of tensors are over. Exchanges of them that are open are rejected with `error`, and nothing is kept of them.
    pub(in crate::node) fn handle_over(&mut self, parts: RangeInclusive<PartId>, error: &Error, budget: &mut Budget) {
        let parts: Vec<PartId> = self.parts.range(parts).map(|(part, _)| *part).collect();
        for part in parts {
            self.forget_part(part, error);
        }
        self.settle(budget);
    }

    /// Whether the part is known as one of a sum.
    pub(in crate::node) fn knows(&self, part: PartId) -> bool {
        self.parts.contains_key(&part)
    }

    /// The server is about to stop: from now on a round that no worker had begun is refused with `refusal`, the first one given. Rounds
    /// that were begun take the contributions they wait for, and are answered.
    pub(in crate::node) fn handle_drain(&mut self, refusal: Error) {
        self.draining.get_or_insert(refusal);
    }

    /// A membership that is not older than the present one, and what it means for the rounds that are alive.
    pub(in crate::node) fn handle_membership(
        &mut self,
        next: Arc<Membership>,
        succession: &Succession,
        budget: &mut Budget,
    ) {
        self.membership = Some(next);
        match succession {
            Succession::Same => {}
            Succession::Fewer => {
                let workers = self.workers();
                self.readers.keep(&workers);
                self.absent.retain(|worker, _| workers.contains(*worker));
                self.go_on_with_survivors();
            }
            Succession::End(error) => {
                self.readers = Readers::default();
                self.absent.clear();
                while let Some(part) = self.parts.keys().next().copied() {
                    self.forget_part(part, error);
                }
            }
        }
        self.settle(budget);
    }

    /// Nothing fails before that because of a missing worker.
    pub(in crate::node) fn be_patient(&mut self, until: Time) {
        self.patient_until = until;
    }

    /// Time passed.
    pub(in crate::node) fn handle_timeout(&mut self, now: Time, budget: &mut Budget) {
        self.free_quiet_sums(now);
        self.fail_late_rounds(now);
        self.report_stalls(now);
        self.settle(budget);
    }

    fn fail_late_rounds(&mut self, now: Time) {
        while self.patient_until <= now
            && let Some((since, id)) = self.waiting.first().copied()
            && since + self.config.step_timeout <= now
        {
            let stall = self.stall(now, since, id);
            let slot = self.slot(id).expect("it waits");
            let (came, due) = (slot.arrived.len(), slot.due.ranks.len());
            let alone = !slot.spec.participants.is_everybody();
            let callers = if due < self.workers().len() && !alone { "machines" } else { "workers" };
            let detail = format!("{came} of {due} {callers} came for part {}", id.part.index);
            self.fail(id, stalled(id, stall.missing, stall.waited, detail));
        }
    }

    fn report_stalls(&mut self, now: Time) {
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

    /// Whether it drains and nothing is open any more: no exchange is under way, and every round has its sum or has failed.
    pub(in crate::node) fn is_drained(&self) -> bool {
        let settled = |slot: &Slot| match slot.state {
            RoundState::Open(_) | RoundState::Restarted | RoundState::Restoring { .. } => false,
            RoundState::Published(_) | RoundState::Failed(_) => true,
        };
        let slots = || self.parts.values().flat_map(|part| part.slots.iter().flatten());
        let forgotten = usize::from(planted(self.config.defect, Defect::DrainForgetsOne));
        let is_empty = self.pending() <= forgotten;
        self.draining.is_some() && is_empty && (forgotten > 0 || slots().all(settled))
    }

    /// How many rounds have begun and miss a contribution.
    pub(in crate::node) fn waiting_rounds(&self) -> usize {
        self.waiting.len()
    }

    /// The rounds that have waited for a moment, those that have waited longest.
    pub(in crate::node) fn waits(&self, now: Time) -> Vec<Waiting> {
        let long = |(since, _): &&(Time, SlotId)| *since + Waiting::MOMENT <= now;
        let waiting = self.waiting.iter().take_while(long).take(Waiting::TOLD_MAX);
        waiting.map(|(since, id)| self.stall(now, *since, *id).into()).collect()
    }

    /// Its latest work.
    pub(in crate::node) fn last(&self) -> Option<(TensorKey, Round)> {
        self.last_counted
    }

    /// The sum that an exchange is about, and its worker.
    pub(in crate::node) fn sum_of(&self, exchange: ExchangeId) -> Option<(SlotId, WorkerId)> {
        self.exchanges.get(&exchange).map(|exchange| (exchange.slot, exchange.worker))
    }

    /// How many exchanges are open.
    pub(in crate::node) fn pending(&self) -> usize {
        self.exchanges.len() + self.uses.len()
    }

    /// Gives back what became free.
    pub(super) fn settle(&mut self, budget: &mut Budget) {
        budget.give_back(std::mem::take(&mut self.freed));
    }

    fn stall(&self, now: Time, since: Time, id: SlotId) -> Stall {
        let missing = self.slot(id).map_or_else(Vec::new, |slot| {
            let Spec { dtype, participants, .. } = &slot.spec;
            let membership = self.membership.as_ref();
            let due = membership.map_or_else(Arc::default, |ours| ours.due_workers(participants, id.round));
            let partners =
                |caller: WorkerId| membership.map_or_else(Vec::new, |ours| ours.partners(*dtype, participants, caller));
            let missing = slot.missing().into_iter().flat_map(partners);
            missing.filter(|worker| due.contains(*worker)).collect()
        });
        Stall { part: id.part, round: id.round, missing, waited: now.since(since) }
    }

    fn warning_due(&self, oldest: Time) -> Time {
        self.warned.map_or(oldest, |warned| warned.max(oldest)) + self.config.stall_warn
    }

    /// Reduces the booking of a round to its present needs.
    pub(super) fn book(&mut self, id: SlotId) {
        let Some(bytes) = self.slot(id).map(|slot| slot.needs(&self.config)) else { return };
        let slot = self.slot_mut(id).expect("was there");
        let before = std::mem::replace(&mut slot.booked, bytes);
        self.freed += before - bytes;
    }

    /// The route of an exchange is needed no more.
    pub(super) fn unroute(&mut self, exchange: ExchangeId) {
        if let Some(Exchange { routed: routed @ true, .. }) = self.exchanges.get_mut(&exchange) {
            *routed = false;
            self.commands.push_back(Command::Unroute { exchange });
        }
    }

    /// An exchange is over; `was_answered` if its answer reached its worker whole.
    pub(super) fn end_exchange(&mut self, exchange: ExchangeId, was_answered: bool) -> Option<Exchange> {
        self.unroute(exchange);
        let ended = self.exchanges.remove(&exchange)?;
        self.readers.end(ended.worker, ended.slot, exchange, was_answered);
        if was_answered {
            self.note_delivery(ended.slot, ended.worker);
        }
        Some(ended)
    }

    pub(super) fn workers(&self) -> Arc<WorkerSet> {
        self.membership.as_ref().map_or_else(Arc::default, |ours| Arc::clone(&ours.workers))
    }

    pub(super) fn slot(&self, id: SlotId) -> Option<&Slot> {
        self.parts.get(&id.part)?.slots[parity(id.round)].as_ref().filter(|slot| slot.id == id)
    }

    pub(super) fn slot_mut(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.parts.get_mut(&id.part)?.slots[parity(id.round)].as_mut().filter(|slot| slot.id == id)
    }

    pub(super) fn open_mut(&mut self, id: SlotId) -> &mut Open {
        match self.slot_mut(id).map(|slot| &mut slot.state) {
            Some(RoundState::Open(open)) => open,
            Some(
                RoundState::Published(_) | RoundState::Failed(_) | RoundState::Restarted | RoundState::Restoring { .. },
            )
            | None => {
                unreachable!("the caller found it open")
            }
        }
    }

    pub(super) fn exchange_mut(&mut self, exchange: ExchangeId) -> &mut Exchange {
        self.exchanges.get_mut(&exchange).expect("in the table from its opening to its end")
    }
}

pub(super) fn parity(round: Round) -> usize {
    usize::from(round.0 % 2 == 1)
}
