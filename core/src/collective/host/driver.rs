//! What one rank does, step by step: announce, agree on what is next, reduce it, tell who waits.
//!
//! A step never waits. Whoever holds the driver calls [`step`](Driver::step) as long as something moves, and decides how to wait when
//! nothing does. The thread may change between any two steps, also in the middle of a part.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::board::{Board, Breakage};
use super::devices::Devices;
use super::explain::{broken, explain};
use super::group;
use super::layout::Word;
use super::options::LocalRank;
use super::pending::{Pending, has_memory};
use super::record::Announcement;
use super::road::{Part, Running, Scratch};
use crate::collective::order::{Claim, Decision, Failure, Order, Slot};
use crate::collective::{Goal, Operation};
use crate::collective::{Memory, Ordered, Walk};
use crate::error::Error;
use crate::types::{Done, Op, Time, WorkerId};

/// What other threads ask of the driver.
pub(super) enum Wish {
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
    pub(super) fn handle(&mut self, now: Time, wish: Wish) {
        match wish {
            Wish::Run(operation, done) => self.accept(now, operation, done),
            Wish::Refuse(slot, error, done) => self.refuse(slot, error, done),
            Wish::Abandon(slot) => self.abandon(now, slot),
            Wish::Left(rank) => match &mut self.order {
                Some(order) => order.handle_left(u32::try_from(rank).expect("at most RANKS_MAX")),
                None => self.orphaned = true,
            },
            Wish::Abort(cause) => {
                let cause = self.closed.get_or_insert(cause).clone();
                self.aborted = true;
                self.devices.abort(&cause);
                self.fail_all(&cause);
            }
            Wish::Close => {
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
            match self.walk(&operation) {
                None => wrong(format!("is not reduced on this machine: {:?}", operation.goal)),
                Some(walk) if !has_memory(&operation, walk, self.board.me) => {
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
    fn walk(&self, operation: &Operation) -> Option<Walk> {
        let position = |worker: WorkerId| self.ranks.iter().position(|other| other.rank == worker);
        let Operation { goal, claim, .. } = operation;
        match operation.memory {
            Memory::Host { .. } => Walk::of(goal, claim.op, self.ranks.len(), position),
            Memory::Device(_) => {
                let team = &self.devices.team;
                let near = |worker| position(worker).and_then(|rank| team.iter().position(|other| *other == rank));
                let is_whole = *goal != Goal::AllReduce || team.len() == self.ranks.len();
                Walk::of(goal, claim.op, team.len(), near).filter(|_| is_whole)
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

    /// Tells the leader, which may be this rank.
    fn announce(&mut self, announcement: Announcement) {
        match &mut self.order {
            Some(order) => tell(order, 0, announcement),
            None => {
                self.unsaid.push_back(announcement);
                self.say_the_unsaid();
            }
        }
    }

    fn say_the_unsaid(&mut self) -> bool {
        let mut said = false;
        while self.unsaid.front().is_some_and(|announcement| self.board.announce(*announcement)) {
            self.unsaid.pop_front();
            said = true;
        }
        if said {
            self.board.knock(0, false);
        }
        said
    }

    /// The leader hears what the others are ready for; whether that was something.
    fn hear(&mut self) -> Result<bool, Breakage> {
        let Some(order) = &mut self.order else { return Ok(false) };
        let mut moved = false;
        let mut complaints = Vec::new();
        for rank in self.board.others() {
            let was_full = self.board.is_full(rank);
            while let Some(announcement) = self.board.hear(rank)? {
                match announcement {
                    Announcement::Overdue(slot, waited) => complaints.push((slot, waited)),
                    other => tell(order, u32::try_from(rank).expect("at most RANKS_MAX"), other),
                }
                moved = true;
            }
            if was_full {
                self.board.knock(rank, false);
            }
        }
        // Only now: whoever is complained of may have spoken meanwhile.
        for (slot, waited) in complaints {
            order.handle_overdue(slot, waited);
        }
        Ok(moved)
    }

    /// The leader's part: hears what the others are ready for, and orders what comes next once it has nothing to do itself.
    fn lead(&mut self, now: Time) -> Result<bool, Breakage> {
        let mut moved = self.hear()?;
        while self.current.is_none()
            && self.board.orders() == self.obeyed
            && self.order.as_ref().is_some_and(|order| self.may_decide(order))
        {
            let room = self.board.room();
            if room == 0 {
                self.blocked.get_or_insert(now);
                break;
            }
            self.blocked = None;
            let order = self.order.as_mut().expect("looked at above");
            self.board.order(&group::next(order, room, &self.devices.room()));
            self.board.knock_others(true);
            moved = true;
        }
        Ok(moved)
    }

    /// Whether there is something to decide, and room for what comes of it.
    fn may_decide(&self, order: &Order) -> bool {
        order.has_failure() || (order.has_decision() && !self.devices.is_full())
    }

    /// Acts on what is next: one order, or all of a group.
    fn obey(&mut self, now: Time) -> Result<bool, Breakage> {
        let Some(decisions) = self.board.obey(self.obeyed)? else {
            return Ok(self.orphaned && self.give_up_orphaned(now));
        };
        self.obeyed += decisions.len() as u64;
        for decision in decisions {
            self.act_on(now, decision)?;
        }
        if !self.gathered.is_empty() {
            self.devices.issue(std::mem::take(&mut self.gathered), &self.board);
        }
        Ok(true)
    }

    fn act_on(&mut self, now: Time, decision: Decision) -> Result<(), Breakage> {
        match decision {
            Decision::Fail { slot, failure } => {
                if let Some(pending) = self.pending.remove(&slot) {
                    let error = match pending.withdrawn {
                        true => Error::Cancelled,
                        false => explain(&self.ranks, slot, failure, now.since(pending.since)),
                    };
                    pending.end(error);
                }
            }
            Decision::Run { slot, claim, failed, weights } => {
                // The leader knows what this rank claimed; anything else would be written into memory of another length.
                let ours = self.pending.remove(&slot).filter(|pending| pending.operation.claim.agrees_with(&claim));
                let Some(pending) = ours else { return Err(Breakage::Confused(0)) };
                match (failed, self.refusal(&pending.operation, &weights)) {
                    (Some(rank), _) => self.hear_why(now, pending, claim, rank as usize)?,
                    (None, Some(error)) => pending.end(error),
                    (None, None) => self.begin(now, pending, claim, weights),
                }
            }
        }
        Ok(())
    }

    /// Why an operation that is ordered is not carried out, by any rank.
    fn refusal(&self, operation: &Operation, weights: &[f64]) -> Option<Error> {
        let is_whole = matches!(operation.goal, Goal::AllReduce | Goal::Join { taker: None, .. });
        if !is_whole || operation.claim.op != Op::WeightedMean {
            return None;
        }
        let total = self.walk(operation).map_or(0.0, |walk| walk.weight(weights));
        (total <= 0.0 || !total.is_finite()).then(|| Error::InvalidArgument {
            what: format!("the weights of tensor {}, {} add up to {total}", operation.part.key, operation.round),
            hint: "give at least one worker a weight above zero".to_owned(),
        })
    }

    fn begin(&mut self, now: Time, pending: Pending, claim: Claim, weights: Vec<f64>) {
        let Pending { operation, done, .. } = pending;
        let walk = self.walk(&operation).expect("looked at when it was accepted");
        match operation.memory {
            Memory::Host { source, destination } => {
                self.start(now, Part { claim, weights, walk, failure: None, source, destination }, done);
            }
            Memory::Device(memory) => {
                self.gathered.push((Ordered { walk, claim, weights, memory }, done));
            }
        }
    }

    /// The rank at position `from` tells the others why there is nothing. That goes the way of the host, whatever the memory is.
    fn hear_why(&mut self, now: Time, pending: Pending, claim: Claim, from: usize) -> Result<(), Breakage> {
        let Pending { operation, done, .. } = pending;
        let failure = operation.failure.filter(|_| from == self.board.me);
        if (from == self.board.me) != failure.is_some() {
            return Err(Breakage::Confused(0));
        }
        let walk = Walk::Show { from, taker: None };
        self.start(
            now,
            Part { claim, weights: Vec::new(), walk, failure, source: Vec::new(), destination: Vec::new() },
            done,
        );
        Ok(())
    }

    fn start(&mut self, now: Time, part: Part, done: Option<Done<f64>>) {
        self.moved = now;
        let running = Running::new(part, self.chunks, self.board.layout.chunk());
        self.current = Some((running, done));
    }

    /// The leader left in order: what it ordered was done, and it will order nothing more.
    fn give_up_orphaned(&mut self, now: Time) -> bool {
        let pending = std::mem::take(&mut self.pending);
        let any = !pending.is_empty();
        for (slot, pending) in pending {
            let left = explain(&self.ranks, slot, Failure::Left { missing: 1 }, now.since(pending.since));
            let error = if pending.withdrawn { Error::Cancelled } else { left };
            pending.end(error);
        }
        any
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

fn tell(order: &mut Order, rank: u32, announcement: Announcement) {
    match announcement {
        Announcement::Ready(slot, claim) => order.handle_ready(rank, slot, claim),
        Announcement::Withdrawn(slot) => order.handle_withdrawn(rank, slot),
        Announcement::Overdue(slot, waited) => order.handle_overdue(slot, waited),
    }
}

fn shut_down() -> Error {
    Error::FailedPrecondition {
        what: "the engine was shut down".to_owned(),
        hint: "submit before shutdown()".to_owned(),
    }
}
