//! The ranks of a worker's machine: the production [`Agreement`] behind messages that take their time, and sums of what the ranks show each
//! other. Shared memory and devices are a copy of bytes here; what is done when, by whom and in which order is the product's.
//!
//! What was said on a machine is not lost, and comes in the order in which one rank said it. A rank that dies says nothing more; the leader
//! sees the end of the others, and they see that of the leader.

mod board;
mod meetings;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::collective::LocalRank;
use gradlane_core::collective::agreement::{Act, Agreement, Announcement, Brought, Party, Wish};
use gradlane_core::collective::group::QueueSpace;
use gradlane_core::collective::order::{Decision, Slot};
use gradlane_core::collective::ranks::Breakage;
use gradlane_core::error::{Error, Result};
use gradlane_core::sched::{SchedulerConfig, Task};
use gradlane_core::types::{Declined, DeviceKind, Incarnation, Time, Unmet, WorkerId};
use gradlane_core::worker::{Meeting, Use};

use super::super::member::address_of;
use super::super::workload::timing;
use super::super::world::{Address, Context, Input};
use super::WorkerProcess;
use super::memory::length;
pub(in crate::sim) use board::{Board, Boards};
use meetings::{Load, Meetings, Running};

/// What a rank says to another of its machine.
#[derive(Clone, Debug)]
pub(in crate::sim) enum Note {
    /// To the leader.
    Said(Announcement),
    /// By the leader: what all do next.
    Ordered(Vec<Decision>),
    /// What a rank has of an operation, or why it has nothing. Operations in host memory count apart from those on devices.
    Shown { place: DeviceKind, number: u64, what: Result<Vec<u8>> },
    /// Nothing works any more.
    Broken(Breakage),
    /// It leaves in order.
    Left,
}

/// This rank's side of its machine.
pub(super) struct Neighbours {
    agreement: Agreement<Load>,
    /// By position. The same on all of them.
    peers: Arc<[Address]>,
    /// Their ranks in the job.
    ranks: Vec<u32>,
    me: usize,
    /// The positions of those whose devices this one reaches.
    group: Vec<usize>,
    /// When the latest message arrives, by position.
    arrivals: Vec<Time>,
    /// What the leader ordered and this rank has not obeyed.
    orders: VecDeque<Vec<Decision>>,
    /// How many orders it has obeyed.
    obeyed: u64,
    /// When it met the others.
    since: Time,
    /// For how long the leader counts that each rank was missing alone.
    late: BTreeMap<WorkerId, Duration>,
    /// The ranks that are not in the job any more, and when they are given up.
    gone: Option<(Time, Vec<usize>)>,
    host: Meetings,
    device: Meetings,
    /// When the agreement wants to be told the time.
    due: Option<Time>,
    /// It leaves the others, at the latest then.
    leaves: Option<Time>,
    /// Nothing is done any more.
    is_over: bool,
}

/// How many orders of the leader a rank may not have obeyed.
const ORDERS: u64 = 64;
/// How long the others may take to hear what a rank that leaves has withdrawn.
const LEAVING: Duration = Duration::from_secs(1);
/// How long a rank that is not in the job any more may still take to leave in order.
const LEAVING_LATE: Duration = Duration::from_secs(2);

impl Neighbours {
    /// Whether an operation may touch this buffer.
    pub(super) fn holds(&self, buffer: usize) -> bool {
        let of = |load: &Load| load.source.iter().chain(&load.destination).any(|region| region.buffer == buffer);
        let running = self.host.running.iter().chain(&self.device.running);
        running.filter_map(|running| running.load.as_ref()).any(of)
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let late = self.gone.as_ref().map(|(at, _)| *at);
        self.due.into_iter().chain([self.leaves, late].into_iter().flatten().filter(|_| !self.is_over)).min()
    }

    fn is_busy(&self) -> bool {
        let idle = self.host.running.is_empty() && self.device.running.is_empty();
        !idle || self.agreement.is_busy()
    }

    /// What may still be ordered for devices.
    fn room(&self) -> QueueSpace {
        let bytes = self.device.running.iter().map(|running| running.claim.bytes).sum();
        // One at least: what was ordered together is not told apart here.
        QueueSpace::beside(usize::from(!self.device.running.is_empty()), bytes, 1)
    }

    /// The positions, among all ranks, of those that reach memory of this kind.
    fn reached(&self, place: DeviceKind) -> Vec<usize> {
        match place {
            DeviceKind::Host => (0..self.peers.len()).collect(),
            DeviceKind::Cuda => self.group.clone(),
        }
    }

    fn meetings(&mut self, place: DeviceKind) -> &mut Meetings {
        match place {
            DeviceKind::Host => &mut self.host,
            DeviceKind::Cuda => &mut self.device,
        }
    }

    /// The memory that it shares with the others.
    fn board<'a>(&self, context: &'a mut Context) -> &'a mut Board {
        context.boards.entry(Arc::clone(&self.peers)).or_default()
    }

    /// Whether the ranks that are left go on if one is lost: not with operations on devices.
    fn outlives(&self) -> bool {
        self.agreement.outlives() && self.device.running.is_empty()
    }

    /// Whether an operation in host memory, which the order before `obeyed` asks for, ends on all ranks that are left.
    fn survives(&self, running: &Running, context: &mut Context) -> bool {
        let Running { number, needs, .. } = *running;
        self.board(context).survives(self.obeyed, number, needs)
    }

    /// The next order that it obeys, if it has come.
    fn next_order(&mut self) -> Option<Vec<Decision>> {
        let decisions = self.orders.pop_front()?;
        self.obeyed += decisions.len() as u64;
        Some(decisions)
    }

    fn send(&mut self, context: &mut Context, to: usize, note: Note) {
        let slow = if context.random.chance(5) { 50 } else { 1 };
        let at = (context.world + context.random.millis(0, slow)).max(self.arrivals[to]);
        self.arrivals[to] = at;
        let team = Arc::clone(&self.peers);
        context.post_at(self.peers[to], at, Input::Near { from: self.peers[self.me], team, note });
    }

    /// The leader tells all that it leaves, and the others tell the leader.
    fn say_goodbye(&mut self, context: &mut Context) {
        if self.me == 0 {
            self.send_all(context, &Note::Left);
        } else {
            self.send(context, 0, Note::Left);
        }
    }

    fn send_all(&mut self, context: &mut Context, note: &Note) {
        let me = self.me;
        for to in (0..self.peers.len()).filter(|to| *to != me) {
            self.send(context, to, note.clone());
        }
    }
}

impl WorkerProcess {
    /// Equips itself for the latest formation: parts from the former ranks of its machine, and meets the present ones.
    pub(super) fn follow_formation(&mut self, context: &mut Context) {
        let team = self.worker.team();
        if self.equips.replace(team) == Some(team) {
            return self.equip(context);
        }
        if let Some(mut former) = self.neighbours.take() {
            former.agreement.handle_parting(parted());
            let workers = self.worker.formation().expect("it has joined").view.workers();
            let stay: Vec<Address> = workers.map(|worker| address_of(worker.process.incarnation)).collect();
            let gone = former.peers.iter().enumerate().filter(|(_, peer)| !stay.contains(peer));
            former.gone = Some((context.now + LEAVING_LATE, gone.map(|(rank, _)| rank).collect()));
            former.leaves.get_or_insert(context.now + timing::STEP);
            self.former.push(former);
        }
        self.meet_neighbours(context);
        self.equip(context);
    }

    /// It is equipped once it has parted from the former ranks.
    fn equip(&mut self, context: &Context) {
        if let Some(team) = self.equips
            && self.former.iter().all(|former| former.is_over)
        {
            self.worker.handle_equipped(context.now, team);
        }
    }

    /// Does something among the former ranks.
    fn with_former<T>(&mut self, at: usize, act: impl FnOnce(&mut Self) -> T) -> T {
        let former = self.former.remove(at);
        let present = self.neighbours.replace(former);
        let done = act(self);
        let former = std::mem::replace(&mut self.neighbours, present);
        self.former.insert(at, former.expect("nobody takes it meanwhile"));
        done
    }

    /// Meets the other ranks of this machine, if there are any to reduce with.
    fn meet_neighbours(&mut self, context: &mut Context) {
        let formation = self.worker.formation().expect("it has joined");
        if !formation.pipeline.stages().iter().any(|stage| stage.is_collective()) {
            return;
        }
        let ranks = LocalRank::of_team(&formation.view, &formation.team);
        let position = |rank| ranks.iter().position(|other| other.rank == rank).expect("it is of the team");
        let me = position(formation.rank);
        let group: Vec<usize> = formation
            .machines
            .group(formation.rank)
            .unwrap_or(&[formation.rank])
            .iter()
            .map(|rank| position(*rank))
            .collect();
        let numbers = ranks.iter().map(|rank| rank.rank.0).collect();
        let incarnations: Vec<Incarnation> = ranks.iter().map(|rank| rank.incarnation).collect();
        let peers: Arc<[Address]> = incarnations.into_iter().map(address_of).collect();
        let oldest_every = SchedulerConfig::default().oldest_every;
        let (step_timeout, defect) = (timing::STEP, context.plan.defect);
        let group_here = group.clone();
        let (stall_warn, goes_on) = (Duration::ZERO, context.plan.classes.survivors);
        let agreement = Agreement::new(Party {
            ranks,
            me,
            group: group_here,
            step_timeout,
            stall_warn,
            oldest_every,
            goes_on,
            defect,
        });
        let gone: Vec<Address> = peers.iter().copied().filter(|peer| context.is_gone(*peer)).collect();
        self.neighbours = Some(Neighbours {
            agreement,
            arrivals: vec![Time::ZERO; peers.len()],
            peers,
            ranks: numbers,
            me,
            group,
            orders: VecDeque::new(),
            obeyed: 0,
            since: context.now,
            late: BTreeMap::new(),
            gone: None,
            host: Meetings::default(),
            device: Meetings::default(),
            due: None,
            leaves: None,
            is_over: false,
        });
        for (from, team, note) in std::mem::take(&mut self.early) {
            self.hear(context, from, &team, note);
        }
        gone.into_iter().for_each(|peer| self.lose_present(context, peer));
    }

    /// Hands an operation to the collective.
    pub(super) fn meet(&mut self, context: &mut Context, task: Task, meeting: Meeting) {
        let Meeting { goal, claim, failure, memory, takes, aside, team: _ } = meeting;
        if aside && self.payload(task.id).aside().is_some_and(|aside| aside.is_none()) {
            let lease = self.lease(claim.bytes);
            *self.payload(task.id).aside().expect("tensors have a place") = Some((lease, false));
        }
        if failure.is_some() {
            self.failing.extend(&self.worker.part(task.id).tickets);
        }
        if memory == Use::Received {
            self.payload(task.id).contribute_result();
            self.unstage(task.id);
        }
        let payload = self.payload(task.id);
        let (source, destination) = match memory {
            Use::Tensors | Use::Received => payload.tensors(),
            Use::Staged => (payload.staged(), payload.staged()),
        };
        let wish = Wish { part: task.part, round: task.round, goal, failure, claim };
        let slot = wish.slot();
        let near = self.neighbours.as_mut().expect("a pipeline with a collective stage begins with a collective");
        let brought = match [&source, &destination] {
            [source, destination] if source.is_empty() && destination.is_empty() => Brought::Nothing,
            both if both.iter().all(|regions| length(regions) == claim.bytes) => Brought::AsClaimed,
            _ => Brought::Other,
        };
        context
            .log
            .note(context.now, self.me.who, "meets", &[task.round.0], || format!("part {}, {wish:?}", task.part));
        near.agreement.handle_wish(context.now, wish, Load { task: task.id, takes, source, destination }, brought);
        // It may have been abandoned before the collective knew of it.
        if self.worker.is_abandoned(task.id, slot) {
            self.abandon_meeting(context, slot);
        }
    }

    /// Nobody waits for an operation any more.
    pub(super) fn abandon_meeting(&mut self, context: &Context, slot: Slot) {
        for near in self.neighbours.iter_mut().chain(&mut self.former).filter(|near| !near.is_over) {
            near.agreement.handle_abandoned(context.now, slot);
        }
    }

    /// This rank will not submit an operation.
    pub(super) fn decline_meeting(&mut self, declined: Declined) {
        if let Some(near) = self.neighbours.as_mut().filter(|near| !near.is_over) {
            near.agreement.handle_declined(declined);
        }
    }

    /// Another rank of this machine says something to the ranks of a team: the present one, a former one, or one to come.
    pub(super) fn hear(&mut self, context: &mut Context, from: Address, team: &Arc<[Address]>, note: Note) {
        if self.neighbours.as_ref().is_some_and(|near| near.peers == *team) {
            return self.hear_here(context, from, note);
        }
        match self.former.iter().position(|near| near.peers == *team) {
            Some(at) => self.with_former(at, |this| this.hear_here(context, from, note)),
            None => self.early.push((from, Arc::clone(team), note)),
        }
    }

    fn hear_here(&mut self, context: &mut Context, from: Address, note: Note) {
        let near = self.neighbours.as_mut().expect("it was found");
        let Some(rank) = near.peers.iter().position(|peer| *peer == from).filter(|_| !near.is_over) else { return };
        context.log.note(context.now, self.me.who, "hears", &[rank as u64], || match &note {
            Note::Shown { place, number, what } => {
                let what = what.as_ref().map(Vec::len);
                format!("of operation {number} on {place}: {what:?}")
            }
            other => format!("{other:?}"),
        });
        match note {
            Note::Said(announcement) => {
                near.agreement.hear(context.now, rank, announcement).expect("ranks follow the rules");
                near.agreement.weigh(context.now);
            }
            Note::Ordered(decisions) => near.orders.push_back(decisions),
            Note::Shown { place, number, what } => drop(near.meetings(place).shown.insert((number, rank), what)),
            // What survives it is read from the board.
            Note::Broken(Breakage::Lost(_)) if near.outlives() => {}
            Note::Broken(breakage) => {
                let error = near.agreement.explain(breakage);
                self.end_meetings(context, Some(error));
            }
            Note::Left => near.agreement.handle_left(rank),
        }
    }

    /// The process of another rank ended.
    pub(super) fn lose_neighbour(&mut self, context: &mut Context, gone: Address) {
        self.lose_present(context, gone);
        (0..self.former.len()).for_each(|at| self.with_former(at, |this| this.lose_present(context, gone)));
    }

    /// The same in the present team. The others hear of it by the leader.
    fn lose_present(&mut self, context: &mut Context, gone: Address) {
        let Some(near) = &mut self.neighbours else { return };
        let rank = near.peers.iter().position(|peer| *peer == gone);
        if let Some(rank) = rank.filter(|rank| !near.is_over && (near.me == 0 || *rank == 0)) {
            if near.outlives() {
                near.board(context).lose(rank);
                near.send_all(context, &Note::Broken(Breakage::Lost(rank)));
            } else {
                self.break_down(context, Breakage::Lost(rank));
            }
        }
    }

    /// The job is over: nothing is done with the others any more, and they hear so themselves. Or it goes on and this rank leaves.
    pub(super) fn leave_neighbours(&mut self, context: &mut Context, cause: Option<Error>) {
        if let Some(cause) = cause {
            for at in 0..self.former.len() {
                self.with_former(at, |this| this.end_meetings(context, Some(cause.clone())));
            }
            return self.end_meetings(context, Some(cause));
        }
        if let Some(near) = self.neighbours.as_mut().filter(|near| near.leaves.is_none()) {
            near.leaves = Some(context.now + LEAVING);
            near.agreement.handle_closed(context.now);
            if near.is_over && self.released {
                near.say_goodbye(context);
            }
        }
    }

    /// Does what is due.
    pub(super) fn handle_meetings_due(&mut self, context: &mut Context) {
        self.handle_present_due(context);
        (0..self.former.len()).for_each(|at| self.with_former(at, |this| this.handle_present_due(context)));
    }

    fn handle_present_due(&mut self, context: &mut Context) {
        let now = context.now;
        let Some(near) = self.neighbours.as_mut().filter(|near| !near.is_over) else { return };
        if let Err(breakage) = near.agreement.handle_timeout(now) {
            return self.break_down(context, breakage);
        }
        if let Some((_, gone)) = near.gone.take_if(|(at, _)| *at <= now)
            && near.outlives()
        {
            gone.into_iter().for_each(|rank| near.board(context).lose(rank));
        }
        if near.leaves.is_some_and(|leaves| leaves <= now) {
            // Its connections end without a goodbye.
            let me = self.me;
            near.peers.iter().filter(|peer| **peer != me).for_each(|peer| {
                context.post(*peer, Duration::ZERO, Input::NeighbourLost { gone: me });
            });
            self.end_meetings(context, None);
        }
    }

    /// Goes on with what the ranks do together, as far as can be; whether that was something.
    pub(super) fn confer(&mut self, context: &mut Context) -> bool {
        let mut moved = self.confer_here(context);
        for at in 0..self.former.len() {
            moved |= self.with_former(at, |this| this.confer_here(context));
        }
        if moved && !self.former.is_empty() {
            self.equip(context);
        }
        moved
    }

    fn confer_here(&mut self, context: &mut Context) -> bool {
        let mut moved = false;
        while self.confer_once(context) {
            moved = true;
        }
        if let Some(near) = &mut self.neighbours {
            near.due = if near.is_over { None } else { near.agreement.poll_timeout(context.now) };
        }
        moved
    }

    fn confer_once(&mut self, context: &mut Context) -> bool {
        let now = context.now;
        let Some(near) = &mut self.neighbours else { return false };
        while let Some(last) = near.agreement.next_last() {
            let late = near.late.entry(last.rank).or_default();
            *late += last.late.iter().sum::<Duration>();
            assert!(*late <= now.since(near.since), "nobody is waited for longer than the time that passes: {last:?}");
        }
        if let Some(act) = near.agreement.next_act() {
            match act {
                Act::End { load, error } => self.met(context, load, Err(Unmet::Failed(error))),
                Act::Return { load, why } => self.met(context, load, Err(Unmet::NotBegun(why))),
                act => self.begin(context, act),
            }
            return true;
        }
        if near.is_over {
            return false;
        }
        if let Some(last) = near.board(context).last().filter(|_| near.outlives()) {
            return self.end_without_the_lost(context, last);
        }
        while let Some(announcement) = near.agreement.unsaid() {
            near.agreement.said();
            near.send(context, 0, Note::Said(announcement));
        }
        if [DeviceKind::Host, DeviceKind::Cuda].into_iter().any(|place| self.complete(context, place)) {
            return true;
        }
        let Some(near) = &mut self.neighbours else { return false };
        if near.agreement.may_obey()
            && let Some(decisions) = near.next_order()
        {
            if let Err(breakage) = near.agreement.obey(now, decisions) {
                self.break_down(context, breakage);
            }
            return true;
        }
        let room = near.room();
        if near.agreement.may_lead(room) {
            let decisions = near.agreement.lead(ORDERS, room);
            near.board(context).order(decisions.len());
            near.send_all(context, &Note::Ordered(decisions.clone()));
            near.orders.push_back(decisions);
            return true;
        }
        if near.agreement.may_obey() && near.agreement.settle_orphans(now) {
            return true;
        }
        if near.leaves.is_some() && !near.is_busy() {
            near.say_goodbye(context);
            context.witness.leaves(self.me.who);
            self.end_meetings(context, None);
            return true;
        }
        false
    }

    /// A rank is lost, and the job goes on: ends what all that are left can end, and parts from them; whether that was something.
    fn end_without_the_lost(&mut self, context: &mut Context, last: u64) -> bool {
        let near = self.neighbours.as_mut().expect("one of them is lost");
        match near.host.running.front() {
            Some(running) if near.survives(running, context) => return self.complete(context, DeviceKind::Host),
            None if near.obeyed < last && !near.agreement.has_parted() => {
                // It was written before the rank was lost, so it comes.
                let Some(decisions) = near.next_order() else { return false };
                near.agreement.obey(context.now, decisions).expect("ranks follow the rules");
                return true;
            }
            Some(_) | None => {}
        }
        let lost = near.board(context).lost().expect("one is");
        let why = near.agreement.explain(Breakage::Lost(lost));
        near.agreement.part_from_lost(why.clone());
        near.is_over = true;
        let torn = std::mem::take(&mut near.host.running);
        torn.iter().for_each(|_| near.agreement.handle_host_ended());
        for load in torn.into_iter().filter_map(|running| running.load) {
            self.met(context, load, Err(Unmet::NotBegun(why.clone())));
        }
        true
    }

    /// Nothing works any more, on no rank.
    fn break_down(&mut self, context: &mut Context, breakage: Breakage) {
        let near = self.neighbours.as_mut().expect("it broke");
        near.send_all(context, &Note::Broken(breakage));
        let error = near.agreement.explain(breakage);
        self.end_meetings(context, Some(error));
    }

    fn end_meetings(&mut self, context: &mut Context, cause: Option<Error>) {
        let Some(near) = &mut self.neighbours else { return };
        near.is_over = true;
        let error = near.agreement.fail(cause);
        let running =
            [&mut near.host, &mut near.device].into_iter().flat_map(|meetings| std::mem::take(&mut meetings.running));
        let loads: Vec<Load> = running.filter_map(|running| running.load).collect();
        for load in loads {
            self.met(context, load, Err(Unmet::Failed(error.clone())));
        }
    }
}

/// Why the ranks of a former team do not begin what they had not begun.
fn parted() -> Error {
    Error::Unavailable { what: "the sum".to_owned(), cause: "others meet".to_owned() }
}
