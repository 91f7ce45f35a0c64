//! What one rank does, step by step: announce, agree on what is next, reduce it, tell who waits.
//!
//! A step never waits. Whoever holds the driver calls [`step`](Driver::step) as long as something moves, and decides how to wait when
//! nothing does. The thread may change between any two steps, also in the middle of a part.

mod agreeing;
mod obeying;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::board::{Board, Breakage};
use super::devices::Devices;
use super::explain::broken;
use super::layout::Word;
use super::options::LocalRank;
use super::pending::{Pending, has_memory};
use super::record::Announcement;
use super::road::{Running, Scratch};
use crate::collective::order::{Claim, Order, Slot};
use crate::collective::{Dataflow, Memory, Ordered};
use crate::collective::{Goal, Operation};
use crate::error::Error;
use crate::types::{Done, Time, WorkerId};

/// What other threads ask of the driver.
pub(super) enum Request {
    Run(Operation, Done<f64>),
    /// It cannot be carried out here, and the others must not wait for it.
    Refuse(Slot, Error, Done<f64>),
    Abandon(Slot),
    /// The rank at this position said goodbye.
    Left(usize),
    /// The job is over.
    Abort(Error),
    /// Nothing more will be asked.
    Close,
}

pub(super) struct Driver {
    board: Arc<Board>,
    ranks: Vec<LocalRank>,
    step_timeout: Duration,
    /// The leader's; the others have none.
    order: Option<Order>,
    pending: BTreeMap<Slot, Pending>,
    /// Announcements for which there was no room.
    unsaid: VecDeque<Announcement>,
    /// When pending operations are overdue, the first first.
    due: BTreeSet<(Time, Slot)>,
    current: Option<(Running, Option<Done<f64>>)>,
    /// When something moved in the current part.
    moved: Time,
    /// Chunks walked so far; the same on all ranks between two parts.
    chunks: u64,
    obeyed: u64,
    scratch: Scratch,
    devices: Devices,
    /// Operations of the group that is being obeyed.
    gathered: Vec<(Ordered, Option<Done<f64>>)>,
    /// Nobody orders any more.
    orphaned: bool,
    /// Since when some rank has no room for another order.
    blocked: Option<Time>,
    closed: Option<Error>,
    /// Nothing is done any more.
    aborted: bool,
}

/// How long the leader may take to answer what cannot wait. It needs no processor time but what an answer takes.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// So many deadlines of operations that are over are not worth a pass over the others.
const DUE_SLACK: usize = 64;

impl Driver {
    pub(super) fn new(
        board: Arc<Board>,
        ranks: Vec<LocalRank>,
        step_timeout: Duration,
        oldest_every: u32,
        scratch: Scratch,
        devices: Devices,
    ) -> Self {
        let count = u32::try_from(ranks.len()).expect("at most RANKS_MAX");
        let order = (board.me == 0).then(|| Order::new(count, oldest_every));
        Self {
            board,
            ranks,
            step_timeout,
            order,
            pending: BTreeMap::new(),
            unsaid: VecDeque::new(),
            due: BTreeSet::new(),
            current: None,
            moved: Time::ZERO,
            chunks: 0,
            obeyed: 0,
            scratch,
            devices,
            gathered: Vec::new(),
            orphaned: false,
            blocked: None,
            closed: None,
            aborted: false,
        }
    }

    /// Takes a wish in.
    pub(super) fn handle(&mut self, now: Time, request: Request) {
        match request {
            Request::Run(operation, done) => self.accept(now, operation, done),
            Request::Refuse(slot, error, done) => self.refuse(slot, error, done),
            Request::Abandon(slot) => self.abandon(now, slot),
            Request::Left(rank) => match &mut self.order {
                Some(order) => order.handle_left(u32::try_from(rank).expect("at most RANKS_MAX")),
                None => self.orphaned = true,
            },
            Request::Abort(cause) => {
                let cause = self.closed.get_or_insert(cause).clone();
                self.aborted = true;
                self.devices.abort(&cause);
                self.fail_all(&cause);
            }
            Request::Close => {
                self.closed = self.closed.take().or_else(|| Some(shut_down()));
                let unwanted = self.pending.iter().filter(|(_, pending)| pending.done.is_none());
                for slot in unwanted.map(|(slot, _)| *slot).collect::<Vec<Slot>>() {
                    self.withdraw(now, slot);
                }
            }
        }
    }

    /// Does what can be done without waiting; whether that was something.
    pub(super) fn step(&mut self, now: Time) -> bool {
        if self.aborted {
            return false;
        }
        if let Some(breakage) = self.board.broken() {
            return self.break_down(breakage);
        }
        match self.try_step(now) {
            Ok(moved) => moved,
            Err(breakage) => {
                self.board.break_down(breakage);
                true
            }
        }
    }

    /// Whether operations are under way.
    pub(super) fn is_busy(&self) -> bool {
        self.has_operations() || self.devices.is_busy()
    }

    /// Whether operations are under way that need the driver.
    fn has_operations(&self) -> bool {
        self.current.is_some() || !self.pending.is_empty() || !self.unsaid.is_empty()
    }

    /// Whether others may wait for an answer of this rank, or it for them.
    pub(super) fn is_awaited(&self) -> bool {
        self.has_operations() || self.order.as_ref().is_some_and(Order::owes_answers)
    }

    /// Whether a part is being reduced.
    pub(super) fn is_running(&self) -> bool {
        self.current.is_some()
    }

    /// Whether a step would do something, as far as can be told without taking it.
    pub(super) fn has_work(&self) -> bool {
        let board = &self.board;
        if self.aborted {
            return false;
        }
        if board.broken().is_some() {
            return self.closed.is_none();
        }
        let unheard = |rank| board.count(rank, Word::Announced) != board.count(rank, Word::Heard);
        let leading = self
            .order
            .as_ref()
            .is_some_and(|order| board.others().any(unheard) || (self.may_decide(order) && self.blocked.is_none()));
        let orphaned = self.orphaned && !self.pending.is_empty();
        let sayable = !self.unsaid.is_empty() && board.may_announce();
        self.current.is_some() || leading || board.orders() != self.obeyed || orphaned || sayable
    }

    /// Hears what the others say, and acts on nothing of it; whether that was something.
    pub(super) fn listen(&mut self) -> bool {
        if self.aborted || self.board.broken().is_some() {
            return false;
        }
        self.hear().unwrap_or_else(|breakage| {
            self.board.break_down(breakage);
            false
        })
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub(super) fn poll_timeout(&mut self) -> Option<Time> {
        while self.due.first().is_some_and(|(_, slot)| !self.pending.contains_key(slot)) {
            self.due.pop_first();
        }
        let stuck = self.current.as_ref().map(|_| self.moved).or(self.blocked).map(|since| since + self.step_timeout);
        self.due.first().map(|(due, _)| *due).into_iter().chain(stuck).min()
    }

    /// Complains about what is overdue.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        while let Some((due, slot)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, slot));
            let Some(pending) = self.pending.get_mut(&slot) else { continue };
            if pending.withdrawn || std::mem::replace(&mut pending.overdue, true) {
                if self.order.is_none() {
                    // The leader does not answer, and what it may still order cannot be done without.
                    self.board.break_down(Breakage::Stuck(0));
                }
                continue;
            }
            let overdue = Announcement::Overdue(slot, now.since(pending.since));
            self.due.insert((now + ANSWER_PATIENCE, slot));
            self.announce(overdue);
            self.board.knock(0, true);
        }
        if let Some(since) = self.blocked
            && since + self.step_timeout <= now
        {
            let slowest = self.board.others().min_by_key(|rank| self.board.count(*rank, Word::Obeyed));
            self.board.break_down(Breakage::Stuck(slowest.unwrap_or(0)));
        }
        if let Some((running, _)) = &self.current
            && self.moved + self.step_timeout <= now
            && let Some(rank) = running.waits_for(&self.board)
        {
            // Its half of the part will never come, or come when nobody expects it: there is no way back to order.
            self.board.break_down(Breakage::Stuck(rank));
        }
    }

    fn try_step(&mut self, now: Time) -> Result<bool, Breakage> {
        let mut moved = self.say_the_unsaid();
        moved |= self.lead(now)?;
        if self.current.is_none() {
            moved |= self.obey(now)?;
        }
        let Some((running, _)) = &mut self.current else { return Ok(moved) };
        let advanced = running.advance(&self.board, &mut self.scratch);
        if advanced {
            self.moved = now;
        }
        if running.is_over() {
            let (running, done) = self.current.take().expect("looked at above");
            self.chunks = running.end();
            let outcome = running.settle(self.board.me);
            if let Some(done) = done {
                done.report(outcome);
            }
            return Ok(true);
        }
        Ok(moved | advanced)
    }

    /// Answers what cannot be carried out here, and takes it from the other ranks.
    fn refuse(&mut self, slot: Slot, error: Error, done: Done<f64>) {
        if let Some(error) = &self.closed {
            return done.err(error.clone());
        }
        self.announce(Announcement::Withdrawn(slot));
        self.board.knock(0, true);
        done.err(error);
    }

    fn accept(&mut self, now: Time, operation: Operation, done: Done<f64>) {
        let slot = operation.slot();
        let claim = Claim { failed: operation.failure.is_some(), ..operation.claim };
        let wrong =
            |what: String| Some(Error::Internal { what: format!("part {}, {} {what}", slot.0, operation.round) });
        let refusal = if let Some(error) = &self.closed {
            Some(error.clone())
        } else if self.pending.contains_key(&slot) {
            wrong("is reduced twice".to_owned())
        } else {
            match self.dataflow(&operation) {
                None => wrong(format!("is not reduced on this machine: {:?}", operation.goal)),
                Some(dataflow) if !has_memory(&operation, dataflow, self.board.me) => {
                    wrong("with memory of another length".to_owned())
                }
                Some(_) => None,
            }
        };
        if let Some(error) = refusal {
            return done.err(error);
        }
        if !self.waits_for_owner(&operation) {
            self.due.insert((now + self.step_timeout, slot));
        }
        self.pending.insert(slot, Pending::new(operation, done, now));
        if self.due.len() > 2 * self.pending.len() + DUE_SLACK {
            self.due.retain(|(_, slot)| self.pending.contains_key(slot));
        }
        self.announce(Announcement::Ready(slot, claim));
    }

    /// What is done for an operation, by the ranks that reach each other's memory of its kind; `None` if it names another rank, or shall come
    /// to all where only some reach each other.
    fn dataflow(&self, operation: &Operation) -> Option<Dataflow> {
        let position = |worker: WorkerId| self.ranks.iter().position(|other| other.rank == worker);
        let Operation { goal, claim, .. } = operation;
        match operation.memory {
            Memory::Host { .. } => Dataflow::of(goal, claim.op, self.ranks.len(), position),
            Memory::Device(_) => {
                let team = &self.devices.team;
                let near = |worker| position(worker).and_then(|rank| team.iter().position(|other| *other == rank));
                let is_whole = *goal != Goal::AllReduce || team.len() == self.ranks.len();
                Dataflow::of(goal, claim.op, team.len(), near).filter(|_| is_whole)
            }
        }
    }

    /// Whether another rank has what it is about, and comes when it can.
    fn waits_for_owner(&self, operation: &Operation) -> bool {
        operation.goal.bringer().is_some_and(|owner| owner != self.ranks[self.board.me].rank)
    }

    /// Nobody waits for an operation here any more.
    fn abandon(&mut self, now: Time, slot: Slot) {
        let Some(pending) = self.pending.get(&slot) else { return };
        if !self.waits_for_owner(&pending.operation) {
            return self.withdraw(now, slot);
        }
        // The others need this rank to look on, and nothing of its memory.
        let pending = self.pending.get_mut(&slot).expect("found above");
        let Memory::Host { source, destination } = &mut pending.operation.memory else {
            // Devices have no other memory to look on with: it ends when the owner comes, who has deadlines of its own.
            return;
        };
        (*source, *destination) = (Vec::new(), Vec::new());
        if let Some(done) = pending.done.take() {
            done.err(Error::Cancelled);
        }
    }

    /// Takes an operation from all ranks, if the leader has not decided to run it.
    fn withdraw(&mut self, now: Time, slot: Slot) {
        let Some(pending) = self.pending.get_mut(&slot).filter(|pending| !pending.withdrawn) else { return };
        pending.withdrawn = true;
        self.due.insert((now + ANSWER_PATIENCE, slot));
        self.announce(Announcement::Withdrawn(slot));
        // Also if it waits for nothing: the others should hear of it at once.
        self.board.knock(0, true);
    }

    fn break_down(&mut self, breakage: Breakage) -> bool {
        let first = self.closed.is_none();
        let fault = match breakage {
            Breakage::Failed(rank) if rank == self.board.me => self.devices.fault(),
            _ => None,
        };
        let error = self.closed.get_or_insert_with(|| fault.unwrap_or_else(|| broken(&self.ranks, breakage))).clone();
        self.devices.abort(&error);
        self.fail_all(&error);
        first
    }

    /// Ends everything, whatever the others do.
    pub(super) fn end(&mut self) {
        let error = self.closed.get_or_insert_with(shut_down).clone();
        // Else it ends in order.
        if self.devices.is_busy() {
            self.devices.abort(&error);
        }
        self.fail_all(&error);
    }

    fn fail_all(&mut self, error: &Error) {
        self.unsaid.clear();
        self.due.clear();
        if let Some((running, done)) = self.current.take() {
            drop(running);
            if let Some(done) = done {
                done.err(error.clone());
            }
        }
        for done in std::mem::take(&mut self.gathered).into_iter().filter_map(|(_, done)| done) {
            done.err(error.clone());
        }
        for pending in std::mem::take(&mut self.pending).into_values() {
            let error = if pending.withdrawn { Error::Cancelled } else { error.clone() };
            pending.end(error);
        }
    }
}

fn shut_down() -> Error {
    Error::FailedPrecondition {
        what: "the engine was shut down".to_owned(),
        hint: "submit before shutdown()".to_owned(),
    }
}
