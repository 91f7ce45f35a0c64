//! The work of one rank, step by step: exchanges announcements and orders through the shared memory, and carries the orders out.
//!
//! The [`Agreement`] decides. This driver connects it to shared memory and devices. A step never waits. The thread that holds the driver
//! calls [`step`](Driver::step) again while steps find work, and decides how to wait when a step finds none. Another thread may take over
//! between any two steps, also in the middle of a part.

use std::sync::Arc;
use std::time::Duration;

use super::board::Board;
use super::devices::Devices;
use super::layout::Word;
use super::look::Look;
use super::loss::Cut;
use super::options::{Begun, Hears};
use super::pending::{Load, brought};
use super::reduction::{Part, Running, Scratch};
use crate::collective::agreement::{Act, Agreement, Wish};
use crate::collective::order::{Decision, Slot};
use crate::collective::ranks::Breakage;
use crate::collective::{Dataflow, Memory, Moved, Operation, Ordered};
use crate::error::Error;
use crate::types::{Declined, Done, Time, Unmet};

/// A request of another thread to the driver.
pub(super) enum Request {
    Run(Operation, Done<f64, Unmet>),
    /// This rank cannot carry out the operation, and the other ranks must not wait for it.
    Refuse(Declined, Error, Done<f64, Unmet>),
    /// This rank will not submit this operation.
    Decline(Declined),
    Abandon(Slot),
    /// The rank at this position has left.
    Left(usize),
    /// This rank parts from the others, for this reason. Those at these positions are not in the job any more.
    Part(Error, Vec<usize>),
    /// The job is over.
    Abort(Error),
    /// No more requests will follow.
    Close,
}

/// How long a rank that is not in the job any more may still take to leave in order.
const LEAVING_LATE: Duration = Duration::from_secs(2);

pub(super) struct Driver {
    board: Arc<Board>,
    agreement: Agreement<Load>,
    step_timeout: Duration,
    /// The part that is being reduced, by the order that was obeyed last. Nobody may wait for it.
    current: Option<(Running, Option<Done<f64, Unmet>>)>,
    /// When the current part last made progress.
    moved: Time,
    /// Where threads see that which ask whether this rank works.
    noted: Moved,
    /// The number of chunks reduced so far. It is equal on all ranks between two parts.
    chunks: u64,
    obeyed: u64,
    scratch: Scratch,
    devices: Devices,
    /// Operations of the group that is being carried out.
    gathered: Vec<(Ordered, Done<f64, Unmet>)>,
    /// Since when some rank has no room for another order. `None` if all have room.
    blocked: Option<Time>,
    /// The ranks that are not in the job any more, and when they are given up if they did not leave in order.
    leaving_late: Option<(Time, Vec<usize>)>,
    /// Whether everything has ended.
    aborted: bool,
    hears: Hears,
}

impl Driver {
    pub(super) fn new(
        board: Arc<Board>,
        agreement: Agreement<Load>,
        (step_timeout, noted): (Duration, Moved),
        scratch: Scratch,
        devices: Devices,
        hears: Hears,
    ) -> Self {
        Self {
            board,
            agreement,
            step_timeout,
            current: None,
            moved: Time::ZERO,
            noted,
            chunks: 0,
            obeyed: 0,
            scratch,
            devices,
            gathered: Vec::new(),
            blocked: None,
            leaving_late: None,
            aborted: false,
            hears,
        }
    }

    /// Handles a request.
    pub(super) fn handle(&mut self, now: Time, request: Request) {
        match request {
            Request::Run(Operation { part, round, goal, failure, claim, memory, finding }, done) => {
                let wish = Wish { part, round, goal, failure, claim };
                let brought = brought(&memory, &wish.claim);
                self.agreement.handle_wish(now, wish, Load { memory, done, finding }, brought);
            }
            Request::Refuse(declined, error, done) => {
                done.err(self.agreement.handle_declined(declined).unwrap_or(error))
            }
            Request::Decline(declined) => drop(self.agreement.handle_declined(declined)),
            Request::Abandon(slot) => self.agreement.handle_abandoned(now, slot),
            Request::Left(rank) => self.agreement.handle_left(rank),
            Request::Part(why, gone) => {
                self.agreement.handle_parting(why);
                self.leaving_late = (!gone.is_empty()).then(|| (now + LEAVING_LATE, gone));
            }
            Request::Abort(cause) => {
                self.aborted = true;
                self.fail(now, Some(cause), true);
            }
            Request::Close => self.agreement.handle_closed(now),
        }
        self.count_last();
        self.tell();
        self.act(now);
    }

    /// Does all work that needs no waiting. Returns whether there was any.
    pub(super) fn step(&mut self, now: Time) -> bool {
        if self.aborted {
            return false;
        }
        if let Some(breakage) = self.board.broken() {
            return match self.board.cut().filter(|_| self.agreement.outlives() && !self.devices.is_busy()) {
                Some(cut) => self.end_without_the_lost(now, &cut, breakage),
                None => self.break_down(now, breakage),
            };
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
        self.current.is_some() || self.agreement.is_busy()
    }

    /// Whether nothing will be done any more: the ranks have parted, or all has failed or ended.
    pub(super) fn is_over(&self) -> bool {
        (self.agreement.has_parted() || self.agreement.has_failed()) && !self.is_busy()
    }

    /// Whether another rank may wait for this one, or this one for another.
    pub(super) fn is_awaited(&self) -> bool {
        self.has_operations() || self.agreement.owes_answers()
    }

    /// Whether a part is being reduced.
    pub(super) fn is_running(&self) -> bool {
        self.current.is_some()
    }

    /// Whether a step would probably find work.
    pub(super) fn has_work(&self) -> bool {
        let board = &self.board;
        if self.aborted {
            return false;
        }
        if board.broken().is_some() {
            return !self.is_over();
        }
        let unheard = |rank| board.count(rank, Word::Announced) != board.count(rank, Word::Heard);
        let leading = self.agreement.leads()
            && (board.others().any(unheard)
                || (self.agreement.may_lead(self.devices.room()) && self.blocked.is_none()));
        let sayable = self.agreement.unsaid().is_some() && board.may_announce();
        self.current.is_some() || leading || board.orders() != self.obeyed || self.agreement.has_orphans() || sayable
    }

    /// As the leader, reads the announcements of the other ranks without ordering anything. Returns whether there were any.
    pub(super) fn listen(&mut self, now: Time) -> bool {
        if self.aborted || self.board.broken().is_some() {
            return false;
        }
        self.hear(now).unwrap_or_else(|breakage| {
            self.board.break_down(breakage);
            false
        })
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    pub(super) fn poll_timeout(&mut self, now: Time) -> Option<Time> {
        let stuck = self.current.as_ref().map(|_| self.moved).or(self.blocked).map(|since| since + self.step_timeout);
        let late = self.leaving_late.as_ref().map(|(at, _)| *at);
        self.agreement.poll_timeout(now).into_iter().chain(stuck).chain(late).min()
    }

    /// Fails the operations that are overdue.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if let Err(breakage) = self.agreement.handle_timeout(now) {
            self.board.break_down(breakage);
        }
        self.agreement.take_stalls().into_iter().for_each(&self.hears.on_stall);
        self.tell();
        if let Some(since) = self.blocked
            && since + self.step_timeout <= now
        {
            let slowest = self.board.others_left().min_by_key(|rank| self.board.count(*rank, Word::Obeyed));
            self.board.break_down(Breakage::Stuck(slowest.unwrap_or(0)));
        }
        if let Some((running, _)) = &self.current
            && self.moved + self.step_timeout <= now
            && let Some(rank) = running.waits_for(&self.board)
        {
            // The rest of the part will not come, or it will come too late. The ranks cannot agree on an order again.
            match self.board.broken() {
                None => self.board.break_down(Breakage::Stuck(rank)),
                Some(_) => drop(self.break_down(now, Breakage::Stuck(rank))),
            }
        }
        if let Some((_, gone)) = self.leaving_late.take_if(|(at, _)| *at <= now).filter(|_| !self.is_over()) {
            // Whoever leaves in order has left by now.
            gone.into_iter().for_each(|rank| self.board.lose(rank));
        }
    }

    fn try_step(&mut self, now: Time) -> Result<bool, Breakage> {
        let mut moved = self.say_the_unsaid();
        moved |= self.lead(now)?;
        if self.agreement.may_obey() {
            moved |= self.obey(now)?;
        }
        Ok(self.advance(now) || moved)
    }

    /// Goes on with the part that is being reduced, and reports its end. Returns whether there was anything to do.
    fn advance(&mut self, now: Time) -> bool {
        let Some((running, _)) = &mut self.current else { return false };
        let advanced = running.advance(&self.board, &mut self.scratch);
        if advanced {
            self.moved = now;
            self.noted.note(now);
        }
        if !running.is_over() {
            return advanced;
        }
        // Where a rank was lost meanwhile, all that are left must find the same.
        if self.agreement.outlives()
            && let Some(cut) = self.board.cut()
            && !self.survives(&cut)
        {
            return advanced;
        }
        let (running, done) = self.current.take().expect("looked at above");
        self.chunks = running.end();
        let outcome = match running.look.end(&self.board) {
            Some((slot, rank)) => Err(self.agreement.not_finite(slot, rank)),
            None => running.settle(self.board.me),
        };
        self.agreement.handle_host_ended();
        if let Some(done) = done {
            done.report(outcome.map_err(Unmet::Failed));
        }
        true
    }

    /// Whether all ranks that are left end the part that is being reduced.
    fn survives(&self, cut: &Cut) -> bool {
        // It is what the order before `obeyed` asks for.
        self.current.as_ref().is_some_and(|(running, _)| self.obeyed <= cut.orders && running.survives(cut))
    }

    /// A rank is lost, and the job goes on: ends what all that are left can end, and parts from them. Returns whether there was anything
    /// to do.
    fn end_without_the_lost(&mut self, now: Time, cut: &Cut, breakage: Breakage) -> bool {
        if self.is_over() {
            return false;
        }
        match &self.current {
            Some(_) if self.survives(cut) => return self.advance(now),
            None if self.obeyed < cut.orders && !self.agreement.has_parted() => match self.obey(now) {
                Ok(_) => return true,
                Err(breakage) => return self.break_down(now, breakage),
            },
            Some(_) | None => {}
        }
        let why = self.agreement.explain(breakage);
        // No device has anything to do, but the transport would wait for the lost rank.
        self.devices.abort(&why);
        self.agreement.part_from_lost(why.clone());
        if let Some((_, done)) = self.current.take() {
            self.agreement.handle_host_ended();
            if let Some(done) = done {
                done.report(Err(Unmet::NotBegun(why)));
            }
        }
        self.act(now);
        true
    }

    /// Writes announcements for the leader, and wakes it if they are urgent.
    fn tell(&mut self) {
        self.say_the_unsaid();
        if self.agreement.take_urgency() {
            self.board.knock(0, true);
        }
    }

    fn say_the_unsaid(&mut self) -> bool {
        let mut said = false;
        while self.agreement.unsaid().is_some_and(|announcement| self.board.announce(announcement)) {
            self.agreement.said();
            said = true;
        }
        if said {
            self.board.knock(0, false);
        }
        said
    }

    /// As the leader, reads the announcements of the others. Returns whether there were any.
    fn hear(&mut self, now: Time) -> Result<bool, Breakage> {
        if !self.agreement.leads() {
            return Ok(false);
        }
        let mut moved = false;
        for rank in self.board.others() {
            let was_full = self.board.is_full(rank);
            while let Some(announcement) = self.board.hear(now, rank)? {
                self.agreement.hear(now, rank, announcement)?;
                moved = true;
            }
            if was_full {
                self.board.knock(rank, false);
            }
        }
        self.agreement.weigh(now);
        self.count_last();
        Ok(moved)
    }

    /// Counts who came last to the operations to which all ranks have come.
    fn count_last(&mut self) {
        while let Some(last) = self.agreement.next_last() {
            (self.hears.on_last)(last);
        }
    }

    /// The leader's work: reads announcements, and orders the next operations.
    fn lead(&mut self, now: Time) -> Result<bool, Breakage> {
        let mut moved = self.hear(now)?;
        while self.agreement.may_lead(self.devices.room()) {
            let room = self.board.room();
            if room == 0 {
                self.blocked.get_or_insert(now);
                break;
            }
            self.blocked = None;
            self.board.order(&self.agreement.lead(room, self.devices.room()));
            self.board.knock_others(true);
            moved = true;
        }
        Ok(moved)
    }

    /// Carries out the next order, or the next group of orders.
    fn obey(&mut self, now: Time) -> Result<bool, Breakage> {
        let decisions: Option<Vec<Decision>> = self.board.obey(self.obeyed)?;
        let moved = match decisions {
            Some(decisions) => {
                self.obeyed += decisions.len() as u64;
                self.agreement.obey(now, decisions)?;
                true
            }
            None => self.agreement.settle_orphans(now),
        };
        self.act(now);
        Ok(moved)
    }

    /// Carries out the commands of the agreement.
    fn act(&mut self, now: Time) {
        while let Some(act) = self.agreement.next_act() {
            match act {
                Act::End { load, error } => load.end(Unmet::Failed(error)),
                Act::Return { load, why } => load.end(Unmet::NotBegun(why)),
                Act::Pass { claim, shown_by } => {
                    let (weights, source, destination) = (Vec::new(), Vec::new(), Vec::new());
                    let (dataflow, failure, look) = (Dataflow::Nothing, None, Look::default());
                    let part = Part { claim, weights, dataflow, shown_by, failure, look, source, destination };
                    self.start(now, part, None);
                }
                Act::Tell { claim, from, failure, load } => {
                    let (dataflow, done) = (Dataflow::Show { from, taker: None }, load.map(|load| load.done));
                    let (weights, source, destination) = (Vec::new(), Vec::new(), Vec::new());
                    let (shown_by, look) = (None, Look::default());
                    let part = Part { claim, weights, dataflow, shown_by, failure, look, source, destination };
                    self.start(now, part, done);
                }
                Act::Run { goal, waited, slot, claim, weights, dataflow, load } => {
                    (self.hears.on_begun)(Begun { goal, waited });
                    let mut look = Look::new(&self.board, slot, &claim, dataflow, &weights);
                    let (source, destination, done) = match load {
                        Some(Load { memory: Memory::Device(memory), done, finding: _ }) => {
                            self.gathered.push((Ordered { slot, dataflow, claim, weights, memory }, done));
                            continue;
                        }
                        Some(Load { memory: Memory::Host { source, destination }, done, finding }) => {
                            look = look.telling(finding);
                            (source, destination, Some(done))
                        }
                        None => (Vec::new(), Vec::new(), None),
                    };
                    let (shown_by, failure) = (None, None);
                    let part = Part { claim, weights, dataflow, shown_by, failure, look, source, destination };
                    self.start(now, part, done);
                }
            }
        }
        if !self.gathered.is_empty() {
            self.noted.note(now);
            self.devices.issue(std::mem::take(&mut self.gathered), &self.board);
        }
    }

    fn start(&mut self, now: Time, part: Part, done: Option<Done<f64, Unmet>>) {
        self.moved = now;
        self.noted.note(now);
        let running = Running::new(part, self.chunks, self.board.layout);
        self.current = Some((running, done));
    }

    fn break_down(&mut self, now: Time, breakage: Breakage) -> bool {
        let first = !self.agreement.has_failed();
        let fault = match breakage {
            Breakage::Failed(rank) if rank == self.board.me => self.devices.fault(),
            _ => None,
        };
        let error = fault.unwrap_or_else(|| self.agreement.explain(breakage));
        self.fail(now, Some(error), true);
        first
    }

    /// Ends everything without waiting for the other ranks. Aborts the device transport only if an operation is on it.
    pub(super) fn end(&mut self, now: Time) {
        let is_busy = self.devices.is_busy();
        self.fail(now, None, is_busy);
    }

    fn fail(&mut self, now: Time, cause: Option<Error>, aborts_devices: bool) {
        let error = self.agreement.fail(cause);
        if aborts_devices {
            self.devices.abort(&error);
        }
        if let Some((_, Some(done))) = self.current.take() {
            done.err(error.clone());
        }
        self.act(now);
    }
}
