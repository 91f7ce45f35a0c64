//! One rank's side of the agreement among the ranks of a machine: the operations for which this rank is ready, the operation that all ranks
//! do next, and the reason why an operation fails.
//!
//! # Driving it
//! Every rank has one [`Agreement`]. The lowest rank is the *leader*, and its agreement holds the [`Order`].
//!
//! 1. Hand in the operations for which the rank is ready ([`handle_wish`](Agreement::handle_wish)), those that it gives up
//!    ([`handle_abandoned`](Agreement::handle_abandoned)), and those for which it will never be ready
//!    ([`handle_declined`](Agreement::handle_declined)).
//! 2. Bring every [`unsaid`](Agreement::unsaid) announcement to the leader, in order, and call [`said`](Agreement::said) for each. The
//!    leader's driver gives it to [`hear`](Agreement::hear), and calls [`weigh`](Agreement::weigh) when there are no more.
//! 3. The leader's driver asks for decisions ([`lead`](Agreement::lead)) while it [may](Agreement::may_lead). Bring them to every rank, also
//!    to the leader. Bring all decisions of one answer at once. After [`Decision::Part`] there are no more.
//! 4. Every rank obeys them in that order ([`obey`](Agreement::obey)) while it [may](Agreement::may_obey).
//! 5. After every call, carry out each [`next_act`](Agreement::next_act), count each [`next_last`](Agreement::next_last), and set a timer to
//!    [`poll_timeout`](Agreement::poll_timeout). Say when an operation in host memory has ended
//!    ([`handle_host_ended`](Agreement::handle_host_ended)).
//!
//! All ranks give times by one clock, which the processes of a machine share.
//!
//! `L` is the driver's load of an operation: its memory, and the token of its caller.

mod lateness;
mod obeying;
mod shares;
mod stalls;
mod turns;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use self::lateness::Lateness;
use self::stalls::{StallWatch, Waiting};
use self::turns::Turns;
pub use self::words::{Act, Announcement, Brought, Last, Party, Wish};

use super::explain::{broken, named, not_finite};
use super::group::{self, Blocks, QueueSpace};
use super::order::{Breach, Claim, Decision, Order, Slot};
use super::ranks::{Breakage, LocalRank};
use crate::config::LEADER_PATIENCE;
use crate::error::Error;
use crate::types::{Declined, Defect, DeviceKind, Goal, Ready, Time, Unmet, meeting_again, planted};
use crate::wire::frame::Stall;

/// The machine; see the module's documentation.
#[derive(Debug)]
pub struct Agreement<L> {
    party: Party,
    /// Only the leader has one.
    order: Option<Order>,
    lateness: Lateness,
    stall_watch: StallWatch,
    /// What the watch has found and the driver has not taken yet.
    stalls: Vec<Stall>,
    pending: BTreeMap<Slot, Pending<L>>,
    /// Announcements that were not brought to the leader yet.
    unsaid: VecDeque<Announcement>,
    /// Complaints about late ranks that the leader has not weighed yet.
    complaints: Vec<(Slot, Duration)>,
    /// When pending operations are overdue, the earliest first.
    due: BTreeSet<(Time, Slot)>,
    acts: VecDeque<Act<L>>,
    turns: Turns,
    /// Whether an announcement is urgent for the leader.
    urgent: bool,
    /// Whether the leader has left. Then no more orders will come.
    orphaned: bool,
    /// Why this rank wants to part from the others, once it does.
    parting: Option<Error>,
    /// Why nothing is accepted any more: it failed, or the ranks have parted.
    closed: Option<Unmet>,
    /// Decisions that a planted defect holds back, to obey them after later ones.
    held_back: Vec<Decision>,
}

/// An operation that this rank is ready for and that was not ordered yet.
#[derive(Debug)]
struct Pending<L> {
    wish: Wish,
    /// Absent if the caller does not wait any more: this rank then takes part only because the others need it.
    load: Option<L>,
    since: Time,
    withdrawn: bool,
    /// Whether this rank has complained to the leader that it takes too long.
    overdue: bool,
}

/// How many deadlines of ended operations may stay in `due`. Below that, clearing them costs more than it saves.
const DUE_SLACK: usize = 64;

impl<L> Agreement<L> {
    /// An agreement without operations.
    ///
    /// # Panics
    /// If there are no ranks or more than [`Order::RANKS_MAX`].
    pub fn new(party: Party) -> Self {
        let count = u32::try_from(party.ranks.len()).expect("at most RANKS_MAX");
        Self {
            order: (party.me == 0).then(|| Order::new(count, party.oldest_every).planting(party.defect)),
            lateness: Lateness::default(),
            stall_watch: StallWatch::new(party.stall_warn),
            turns: Turns::new(party.defect),
            stalls: Vec::new(),
            party,
            pending: BTreeMap::new(),
            unsaid: VecDeque::new(),
            complaints: Vec::new(),
            due: BTreeSet::new(),
            acts: VecDeque::new(),
            urgent: false,
            orphaned: false,
            parting: None,
            closed: None,
            held_back: Vec::new(),
        }
    }

    /// The rank is ready for an operation. `brought` describes its memory.
    pub fn handle_wish(&mut self, now: Time, wish: Wish, load: L, brought: Brought) {
        let slot = wish.slot();
        let wrong = |what: String| Some(Error::Internal { what: format!("part {}, {} {what}", slot.0, wish.round) });
        let refusal = match (&self.closed, self.share(&wish)) {
            (Some(Unmet::NotBegun(why)), _) => return self.acts.push_back(Act::Return { load, why: why.clone() }),
            (Some(Unmet::Failed(error)), _) => Some(error.clone()),
            _ if self.pending.contains_key(&slot) || self.has_announced(slot) => wrong("is reduced twice".to_owned()),
            (None, None) => {
                self.who_is_gone(&wish).or_else(|| wrong("is not reduced by these ranks of this machine".to_owned()))
            }
            (None, Some(dataflow)) if !self.is_enough(brought, &wish, dataflow) => {
                wrong("with memory of another length".to_owned())
            }
            (None, Some(_)) => None,
        };
        if let Some(error) = refusal {
            return self.acts.push_back(Act::End { load, error });
        }
        if !self.waits_for_owner(&wish) {
            self.due.insert((now + self.party.step_timeout, slot));
        }
        let ready = Ready { since: now, ..wish.claim.ready };
        let claim = Claim { failed: wish.failure.is_some(), ready, ..wish.claim };
        let pending = Pending { wish, load: Some(load), since: now, withdrawn: false, overdue: false };
        self.pending.insert(slot, pending);
        if self.due.len() > 2 * self.pending.len() + DUE_SLACK {
            self.due.retain(|(_, slot)| self.pending.contains_key(slot));
        }
        self.announce(Announcement::Ready(slot, claim));
    }

    /// The rank will not take part in an operation for which it was not ready, and for which the other members may be. Returns the reason if
    /// the agreement accepts nothing any more.
    pub fn handle_declined(&mut self, declined: Declined) -> Option<Error> {
        match &self.closed {
            None => self.announce(Announcement::Withdrawn(declined)),
            Some(Unmet::Failed(error) | Unmet::NotBegun(error)) => return Some(error.clone()),
        }
        None
    }

    /// The caller of an operation does not wait any more.
    pub fn handle_abandoned(&mut self, now: Time, slot: Slot) {
        let Some(pending) = self.pending.get(&slot) else { return };
        if !self.waits_for_owner(&pending.wish) {
            return self.withdraw(now, slot);
        }
        // The others need this rank to take part, but not its memory. On devices it cannot take part without memory. There the operation
        // ends when the owner comes, which has its own deadlines.
        let is_host = pending.wish.claim.device == DeviceKind::Host;
        let pending = self.pending.get_mut(&slot).expect("found above");
        if let Some(load) = pending.load.take_if(|_| is_host) {
            self.acts.push_back(Act::End { load, error: Error::Cancelled });
        }
    }

    /// The rank at this position left in an orderly way.
    pub fn handle_left(&mut self, rank: usize) {
        match &mut self.order {
            Some(_) if self.party.goes_on => self.handle_parting(left(self.party.ranks.get(rank))),
            Some(order) => order.handle_left(u32::try_from(rank).expect("at most RANKS_MAX")),
            None => self.orphaned = true,
        }
    }

    /// This rank parts from the others, because it meets others from now on. What the leader has ordered is still carried out. What it has
    /// not ordered by the time at which it parts too is begun by no rank.
    pub fn handle_parting(&mut self, why: Error) {
        self.parting.get_or_insert(why);
    }

    /// No more operations will follow. Pending ones may still end. The agreement gives up those without a waiting caller.
    pub fn handle_closed(&mut self, now: Time) {
        self.closed.get_or_insert_with(|| Unmet::Failed(shut_down()));
        let unwanted = self.pending.iter().filter(|(_, pending)| pending.load.is_none());
        for slot in unwanted.map(|(slot, _)| *slot).collect::<Vec<Slot>>() {
            self.withdraw(now, slot);
        }
    }

    /// Ends all operations, also later ones, without waiting for other ranks. The first cause counts: the one of an earlier call, or the
    /// shutdown after [`handle_closed`](Self::handle_closed). Without a `cause` it is the shutdown. Returns the cause.
    pub fn fail(&mut self, cause: Option<Error>) -> Error {
        let error = match &self.closed {
            Some(Unmet::Failed(first)) => first.clone(),
            Some(Unmet::NotBegun(_)) | None => cause.or_else(|| self.parting.clone()).unwrap_or_else(shut_down),
        };
        self.closed = Some(Unmet::Failed(error.clone()));
        self.unsaid.clear();
        self.due.clear();
        self.turns = Turns::new(self.party.defect);
        let unbegun = std::mem::take(&mut self.acts);
        let end = |load| Act::End { load, error: error.clone() };
        self.acts.extend(unbegun.into_iter().filter_map(|act| act.unbegun(end)));
        if planted(self.party.defect, Defect::LossKeptPending) {
            return error;
        }
        for pending in std::mem::take(&mut self.pending).into_values() {
            let error = if pending.withdrawn { Error::Cancelled } else { error.clone() };
            self.end(pending, error);
        }
        error
    }

    /// The error that all operations get after a breakage.
    pub fn explain(&self, breakage: Breakage) -> Error {
        broken(&self.party.ranks, breakage)
    }

    /// The error of an operation to which the rank at this position contributed a NaN or an infinity.
    pub fn not_finite(&self, slot: Slot, rank: usize) -> Error {
        not_finite(&self.party.ranks, slot, rank)
    }

    /// The next announcement of this rank for the leader.
    pub fn unsaid(&self) -> Option<Announcement> {
        self.unsaid.front().copied()
    }

    /// The announcement was brought to the leader, or will be, in order.
    pub fn said(&mut self) {
        self.unsaid.pop_front();
    }

    /// Whether an urgent announcement was added since the last call: the leader must read it even if it waits for nothing.
    pub fn take_urgency(&mut self) -> bool {
        std::mem::take(&mut self.urgent)
    }

    /// Gives the leader an announcement of the rank at this position, which it hears now.
    ///
    /// # Errors
    /// If no rank that follows the rules announces this. Nothing changes then.
    pub fn hear(&mut self, now: Time, rank: usize, mut announcement: Announcement) -> Result<(), Breakage> {
        let Some(order) = &mut self.order else { return Ok(()) };
        match &mut announcement {
            Announcement::Ready(_, claim) => claim.ready = self.lateness.bounded(now, claim.ready),
            Announcement::Withdrawn(_) => {}
            Announcement::Overdue(slot, waited) => {
                self.complaints.push((*slot, *waited));
                return Ok(());
            }
        }
        let heard = tell(order, u32::try_from(rank).expect("at most RANKS_MAX"), announcement);
        heard.map_err(|Breach| Breakage::Confused(rank))
    }

    /// The leader has read all announcements. It acts on complaints only now, because a late rank may have announced meanwhile.
    pub fn weigh(&mut self, now: Time) {
        let Some(order) = &mut self.order else { return };
        self.lateness.handle_looked(now);
        for (slot, waited) in self.complaints.drain(..) {
            order.handle_overdue(slot, waited);
        }
    }

    /// On the leader: who came last to the next operation to which all ranks have come. The driver must drain them after every input.
    pub fn next_last(&mut self) -> Option<Last> {
        let latest = self.order.as_mut()?.next_latest()?;
        Some(self.lateness.count(latest, self.party.ranks[latest.rank as usize].rank))
    }

    /// Whether this rank leads, has obeyed what it decided, and has something to decide, with this much room on devices.
    pub fn may_lead(&self, room: QueueSpace) -> bool {
        let parts = self.parting.is_some() && self.closed.is_none();
        let is_next = |order: &Order| match order.has_decision() {
            true => order.has_failure() || !room.is_none(),
            false => parts,
        };
        self.turns.may_lead() && !self.has_parted() && self.order.as_ref().is_some_and(is_next)
    }

    /// Whether this rank may obey the next decisions: it has nothing under way in host memory.
    pub fn may_obey(&self) -> bool {
        self.turns.may_obey()
    }

    /// The operation in host memory that this rank began last has ended.
    pub fn handle_host_ended(&mut self) {
        self.turns.end();
    }

    /// The next decisions for all ranks, at most `orders` orders.
    ///
    /// # Panics
    /// Unless it [may](Self::may_lead).
    pub fn lead(&mut self, orders: u64, room: QueueSpace) -> Vec<Decision> {
        let mut order = self.order.take().expect("it leads");
        if !order.has_decision() {
            assert!(self.parting.is_some(), "there is a decision");
            self.order = Some(order);
            self.turns.decided(1);
            return vec![Decision::Part];
        }
        let starts = |slot| self.pending.get(&slot).is_some_and(|pending| self.starts_block(&pending.wish));
        let decisions = group::next(&mut order, orders, &room, &Blocks { operations: self.party.group.len(), starts });
        self.order = Some(order);
        self.turns.decided(decisions.len());
        decisions
    }

    /// The next act for the driver. The driver must drain them after every input. What needs the turn in host memory comes once the one
    /// before has ended.
    pub fn next_act(&mut self) -> Option<Act<L>> {
        let is_next = self.acts.front().is_some_and(|act| self.turns.begin(act));
        if is_next { self.acts.pop_front() } else { None }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&mut self, now: Time) -> Option<Time> {
        while self.due.first().is_some_and(|(_, slot)| !self.pending.contains_key(slot)) {
            self.due.pop_first();
        }
        let is_pending = self.order.as_ref().map_or(!self.pending.is_empty(), Order::has_pending);
        let look = self.stall_watch.poll_timeout(now, is_pending).filter(|_| self.closed.is_none());
        self.due.first().map(|(due, _)| *due).into_iter().chain(look).min()
    }

    /// No operation that begins from now on has a deadline sooner than this.
    pub fn soonest(&self) -> Duration {
        let overdue = self.party.step_timeout.min(LEADER_PATIENCE);
        self.stall_watch.interval().map_or(overdue, |look| look.min(overdue))
    }

    /// On the leader: the operations that wait for some ranks for too long, since the last call. For the log.
    pub fn take_stalls(&mut self) -> Vec<Stall> {
        std::mem::take(&mut self.stalls)
    }

    /// Complains to the leader about overdue operations. The leader looks for operations that wait for too long.
    ///
    /// # Errors
    /// If the leader does not answer.
    pub fn handle_timeout(&mut self, now: Time) -> Result<(), Breakage> {
        self.look_for_stalls(now);
        while let Some((due, slot)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, slot));
            let Some(pending) = self.pending.get_mut(&slot) else { continue };
            if pending.withdrawn || std::mem::replace(&mut pending.overdue, true) {
                if self.order.is_none() {
                    // The leader does not answer. This rank cannot leave alone, because the leader may still order the operation.
                    return Err(Breakage::Stuck(0));
                }
                continue;
            }
            let overdue = Announcement::Overdue(slot, now.since(pending.since));
            self.due.insert((now + LEADER_PATIENCE, slot));
            self.announce(overdue);
        }
        Ok(())
    }

    fn look_for_stalls(&mut self, now: Time) {
        let Some(order) = &self.order else {
            // A leader that waits for nothing itself sleeps, and does not know what others wait for.
            self.urgent |= self.stall_watch.is_due(now, !self.pending.is_empty());
            return;
        };
        for Waiting { slot: (part, place), missing, waited } in self.stall_watch.handle_timeout(now, order) {
            let missing = named(&self.party.ranks, missing);
            self.stalls.push(Stall { part, round: Goal::round(place), missing, waited });
        }
    }

    /// Whether something is pending or unsaid, or waits for its turn.
    pub fn is_busy(&self) -> bool {
        !self.pending.is_empty() || !self.unsaid.is_empty() || !self.acts.is_empty()
    }

    /// Whether another rank may wait for an answer of this one.
    pub fn owes_answers(&self) -> bool {
        self.order.as_ref().is_some_and(Order::owes_answers)
    }

    /// Whether this rank leads.
    pub fn leads(&self) -> bool {
        self.order.is_some()
    }

    /// Whether [`settle_orphans`](Self::settle_orphans) has something to do.
    pub fn has_orphans(&self) -> bool {
        let parts = self.party.goes_on && self.closed.is_none();
        self.orphaned && (parts || !self.pending.is_empty())
    }

    /// Whether it has failed or was shut down: nothing will be done any more.
    pub fn has_failed(&self) -> bool {
        matches!(self.closed, Some(Unmet::Failed(_)))
    }

    /// Whether those that are left go on if a rank is lost. Not where devices are in several PCIe groups: what these have reduced, the ranks
    /// add in host memory, and it does not begin again.
    pub fn outlives(&self) -> bool {
        self.party.goes_on && self.party.group.len() == self.party.ranks.len()
    }

    /// Whether the ranks have parted.
    pub fn has_parted(&self) -> bool {
        matches!(self.closed, Some(Unmet::NotBegun(_)))
    }

    /// Announces to the leader, which may be this rank.
    fn announce(&mut self, announcement: Announcement) {
        match &announcement {
            // A leader that is no member has no reason of its own to look.
            Announcement::Ready(_, claim) => self.urgent |= claim.members & 1 == 0,
            Announcement::Withdrawn(..) if planted(self.party.defect, Defect::WithdrawnInSilence) => return,
            // Urgent even if no rank waits: the others should know at once.
            Announcement::Withdrawn(..) | Announcement::Overdue(..) => self.urgent = true,
        }
        match &mut self.order {
            Some(order) => {
                let own = tell(order, 0, announcement);
                debug_assert!(own.is_ok(), "wishes were checked when they came");
            }
            None => self.unsaid.push_back(announcement),
        }
    }

    /// Whether this rank leads, and has announced the operation before.
    fn has_announced(&self, slot: Slot) -> bool {
        self.order.as_ref().is_some_and(|order| order.has_announced(0, slot))
    }

    /// Withdraws an operation from all ranks, unless the leader has already ordered it.
    fn withdraw(&mut self, now: Time, slot: Slot) {
        let Some(pending) = self.pending.get_mut(&slot).filter(|pending| !pending.withdrawn) else { return };
        pending.withdrawn = true;
        let members = pending.wish.claim.members;
        // From now on the operation does not wait for the other ranks, but for the leader's answer.
        self.due.remove(&(pending.since + self.party.step_timeout, slot));
        self.due.insert((now + LEADER_PATIENCE, slot));
        self.announce(Announcement::Withdrawn(Declined { slot, members }));
    }

    fn end(&mut self, pending: Pending<L>, error: Error) {
        if let Some(load) = pending.load {
            self.acts.push_back(Act::End { load, error });
        }
    }

    /// Whether another rank owns the source of the operation. That rank comes when it can.
    fn waits_for_owner(&self, wish: &Wish) -> bool {
        wish.goal.bringer().is_some_and(|owner| owner != self.party.ranks[self.party.me].rank)
    }
}

fn tell(order: &mut Order, rank: u32, announcement: Announcement) -> Result<(), Breach> {
    match announcement {
        Announcement::Ready(slot, claim) => order.handle_ready(rank, slot, claim),
        Announcement::Withdrawn(declined) => order.handle_withdrawn(rank, declined),
        Announcement::Overdue(slot, waited) => {
            order.handle_overdue(slot, waited);
            Ok(())
        }
    }
}

/// Why ranks part of which one has left, if it is known which.
fn left(gone: Option<&LocalRank>) -> Error {
    let who = gone.map_or_else(|| "one of them".to_owned(), |gone| format!("{} on {}", gone.name, gone.place));
    meeting_again(&format!("{who} left"))
}

fn shut_down() -> Error {
    Error::FailedPrecondition {
        what: "the engine was shut down".to_owned(),
        hint: "submit before shutdown()".to_owned(),
    }
}

#[cfg(test)]
mod tests;
