//! Orders the common operations of the ranks of one machine: the operations for which all members are ready, the most urgent first.
//!
//! The *members* of an operation are the ranks that take part, usually all ranks of the machine. They are the same in all rounds of a part.
//! Every rank gets every decision, because all ranks count the operations alike.
//!
//! The lowest rank, the *leader*, holds the [`Order`], also of operations of which it is no member. Every rank announces the parts for which
//! it is ready. The order answers each part
//! and round with one [`Decision`], and all ranks carry out the decisions in the same order. So all ranks work on the same part, and memory
//! for one part is enough.
//!
//! ```text
//!  (unknown) ──first ready──► Pending ──last member ready──► Decision::Run
//!                                │
//!                                └─ claims differ, a rank gave up or left, a rank did not come in time ──► Decision::Fail
//! ```
//! A rank that comes to a failed round later gets the failure again. The cost of a decision is logarithmic in the number of pending
//! operations.

mod lateness;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use self::lateness::Arrivals;
pub use self::lateness::Latest;
pub use crate::types::{Claim, Slot};
use crate::types::{Declined, Defect, Goal, Machines, PartId, Priority, Round, planted};

/// A decision, which all ranks carry out.
#[derive(Clone, PartialEq, Debug)]
pub enum Decision {
    /// All members carry out the operation.
    Run {
        /// The operation.
        slot: Slot,
        /// The fields on which all ranks agree, and whether one rank failed. The other fields come from the rank that claimed first.
        claim: Claim,
        /// The rank that sends an error instead, if any. Then the ranks do nothing else.
        failed: Option<u32>,
        /// The weight of each rank.
        weights: Vec<f64>,
    },
    /// No rank carries out the operation.
    Fail {
        /// The operation.
        slot: Slot,
        /// The reason.
        failure: Failure,
    },
    /// The last one: the ranks part. What was not decided before is begun by none of them.
    Part,
}

/// Why an operation fails. A rank is its position among the ranks of the machine. A set of ranks has one bit for each.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Failure {
    /// Two ranks claim different things.
    Mismatch {
        /// The rank that claimed first.
        first: u32,
        /// Its claim.
        ours: Claim,
        /// The rank whose claim differs.
        second: u32,
        /// Its claim.
        theirs: Claim,
    },
    /// A rank withdrew.
    GaveUp {
        /// The rank.
        rank: u32,
    },
    /// A rank went on to a later round, and did not say that it withdrew.
    WentOn {
        /// The rank.
        rank: u32,
    },
    /// Some ranks did not come in time.
    Overdue {
        /// The ranks, one bit each.
        missing: u64,
        /// How long the others waited for them.
        waited: Duration,
    },
    /// Some ranks left the job.
    Left {
        /// The ranks, one bit each.
        missing: u64,
    },
}

/// A rank announced what no rank does that follows the rules. Its memory or its program is damaged, and nothing that it says counts any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Breach;

/// The state machine. Its inputs are the `handle_*` methods, its outputs [`next_decision`](Self::next_decision) and
/// [`next_latest`](Self::next_latest).
#[derive(Debug)]
pub struct Order {
    ranks: u32,
    oldest_every: u32,
    pending: BTreeMap<Slot, Pending>,
    /// Pending operations for which all members are ready, the next one first.
    ready: BTreeSet<(Reverse<Priority>, u64, Slot)>,
    /// The same operations by age.
    ages: BTreeSet<(u64, Slot)>,
    announcements: BTreeMap<PartId, Announcements>,
    /// The number of parts at which [`forget_quiet_parts`](Self::forget_quiet_parts) looks for quiet ones.
    look_at: usize,
    /// Failures that some ranks may not know yet.
    failed: BTreeMap<Slot, Failure>,
    failures: VecDeque<(Slot, Failure)>,
    /// The ranks that came last, until somebody asks for them.
    latest: VecDeque<Latest>,
    left: u64,
    announced: u64,
    /// Rounds in all [`Announced::early`].
    early: usize,
    /// Decisions since the oldest operation had its turn.
    decided: u32,
    defect: Option<Defect>,
}

#[derive(Debug)]
struct Pending {
    /// Lower is older.
    order: u64,
    first: u32,
    claim: Claim,
    failed: Option<u32>,
    priority: Priority,
    /// The members that the first claim names, one bit each.
    members: u64,
    arrived: u64,
    arrivals: Arrivals,
    weights: Vec<f64>,
}

/// The announcements of all ranks for one part.
#[derive(Clone, Debug)]
struct Announcements {
    /// The ranks that take part, one bit each, as they say.
    members: u64,
    ranks: Vec<Announced>,
    /// Whether there were any since the last look for quiet parts.
    is_new: bool,
}

/// The announcements of one rank for one part.
#[derive(Clone, Default, Debug)]
struct Announced {
    /// The rank begins to take part in no round before this one any more.
    passed: Round,
    /// This round or later ones for which the rank has no data. It announces them at once, while it may still come to earlier rounds.
    early: BTreeSet<Round>,
}

impl Announced {
    fn has(&self, round: Round) -> bool {
        round < self.passed || self.early.contains(&round)
    }
}

/// The most that the ranks may have announced without a decision that all know: some 200 MB. A worker has fewer parts at a time.
const OPEN_MAX: usize = 1 << 20;
/// From this number of parts on, parts whose names may have ended are looked for. A message about one that is quiet must not be under way any
/// more when it is forgotten, so this is many.
const QUIET_PARTS_MIN: usize = 1 << 13;
/// The most parts of which the order knows what each rank did last. A server takes no more either.
const PARTS_MAX: usize = 1 << 20;

impl Order {
    /// The most ranks of a machine. A set of ranks has one bit for each.
    pub const RANKS_MAX: u32 = Machines::RANKS_MAX;

    /// The order among `ranks` ranks. Every `oldest_every`-th decision goes to the operation that has waited longest, so that a stream of
    /// urgent parts starves no other part. 0 for strict priority.
    ///
    /// # Panics
    /// If there are no ranks or more than [`RANKS_MAX`](Self::RANKS_MAX).
    pub fn new(ranks: u32, oldest_every: u32) -> Self {
        assert!((1..=Self::RANKS_MAX).contains(&ranks), "{ranks} ranks on one machine");
        Self {
            ranks,
            oldest_every,
            pending: BTreeMap::new(),
            ready: BTreeSet::new(),
            ages: BTreeSet::new(),
            announcements: BTreeMap::new(),
            look_at: QUIET_PARTS_MIN,
            failed: BTreeMap::new(),
            failures: VecDeque::new(),
            latest: VecDeque::new(),
            left: 0,
            announced: 0,
            early: 0,
            decided: 0,
            defect: None,
        }
    }

    /// The same order with a planted defect, for the simulation.
    #[must_use]
    pub fn planting(self, defect: Option<Defect>) -> Self {
        Self { defect, ..self }
    }

    /// `rank` is ready to carry out `slot`, or must tell the others why it has no data for it. A rank announces the rounds of a part in
    /// order, except those for which it has no data.
    ///
    /// # Errors
    /// If the rank has announced this slot before, or too many, or if its members cannot be. Nothing changes then.
    pub fn handle_ready(&mut self, rank: u32, slot: Slot, claim: Claim) -> Result<(), Breach> {
        if self.has_announced(rank, slot) || self.is_full(rank, slot) || !self.may_be(rank, claim.members) {
            return Err(Breach);
        }
        match claim.failed {
            true => self.announce_early(rank, slot, claim.members),
            false => self.pass(rank, slot, claim.members),
        }
        if let Some(failure) = self.failed.get(&slot).copied() {
            self.failures.push_back((slot, failure));
            self.forget_if_all_came(slot);
            return Ok(());
        }
        let ranks = self.ranks as usize;
        let members = Claim::members_among(claim.members, ranks).expect("checked above");
        let order = self.announced;
        let first = || Pending {
            order,
            first: rank,
            claim,
            failed: None,
            priority: claim.priority,
            members,
            arrived: 0,
            arrivals: Arrivals::default(),
            weights: vec![1.0; ranks],
        };
        let pending = self.pending.entry(slot).or_insert_with(first);
        let (first, ours) = (pending.first, pending.claim);
        if !ours.agrees_with(&claim) {
            self.fail(slot, Failure::Mismatch { first, ours, second: rank, theirs: claim });
            return Ok(());
        }
        self.announced += u64::from(pending.arrived == 0);
        pending.arrived |= 1 << rank;
        pending.arrivals.add(rank, claim.ready);
        pending.weights[rank as usize] = claim.weight;
        pending.priority = pending.priority.max(claim.priority);
        pending.claim.failed |= claim.failed;
        pending.failed = pending.failed.or(claim.failed.then_some(rank));
        self.complete_or_hopeless(slot);
        Ok(())
    }

    /// `rank` gives up an operation, whether it was ready for it or not. Has no effect after the decision.
    ///
    /// # Errors
    /// If the rank has announced too much, or if its members cannot be. Nothing changes then.
    pub fn handle_withdrawn(&mut self, rank: u32, declined: Declined) -> Result<(), Breach> {
        let Declined { slot, members } = declined;
        if self.is_full(rank, slot) || !self.may_be(rank, members) {
            return Err(Breach);
        }
        let came = self.announced(slot) & (1 << rank) != 0;
        self.announce_early(rank, slot, members);
        if self.failed.contains_key(&slot) {
            self.forget_if_all_came(slot);
        } else if !came || self.pending.contains_key(&slot) {
            self.fail(slot, Failure::GaveUp { rank });
        }
        Ok(())
    }

    /// The deadline of a rank for `slot` has passed.
    pub fn handle_overdue(&mut self, slot: Slot, waited: Duration) {
        let Some(pending) = self.pending.get(&slot) else { return };
        let missing = pending.members & !pending.arrived;
        if missing != 0 {
            self.fail(slot, Failure::Overdue { missing, waited });
        }
    }

    /// `rank` left the job: operations for which it is not ready fail.
    pub fn handle_left(&mut self, rank: u32) {
        self.left |= 1 << rank;
        let slots: Vec<Slot> = self.pending.keys().copied().collect();
        for slot in slots {
            self.complete_or_hopeless(slot);
        }
    }

    /// The next decision: failures first, then the most urgent operation for which all members are ready.
    pub fn next_decision(&mut self) -> Option<Decision> {
        if let Some((slot, failure)) = self.failures.pop_front() {
            return Some(Decision::Fail { slot, failure });
        }
        let (slot, oldest_turn) = self.next_ready()?;
        self.decided = if oldest_turn { 0 } else { self.decided.saturating_add(1) };
        let Pending { claim, failed, weights, .. } = self.remove(slot).expect("what is ready is pending");
        let failed = failed.filter(|_| !planted(self.defect, Defect::FailureNotTold));
        Some(Decision::Run { slot, claim, failed, weights })
    }

    /// The next rank that came last to an operation. The caller must drain them after every input.
    pub fn next_latest(&mut self) -> Option<Latest> {
        self.latest.pop_front()
    }

    /// The operation that [`next_decision`](Self::next_decision) would run, and its claim. `None` if there is none or if the next decision
    /// is a failure.
    pub fn upcoming(&self) -> Option<(Slot, &Claim)> {
        let (slot, _) = self.next_ready().filter(|_| !self.has_failure())?;
        Some((slot, &self.pending[&slot].claim))
    }

    /// Whether `rank` has come to `slot`, has said that it will not, or has gone beyond it.
    pub fn has_announced(&self, rank: u32, (part, round): Slot) -> bool {
        self.announcements.get(&part).is_some_and(|part| part.ranks[rank as usize].has(round))
    }

    /// Whether [`next_decision`](Self::next_decision) has one.
    pub fn has_decision(&self) -> bool {
        !self.failures.is_empty() || !self.ready.is_empty()
    }

    /// Whether the next decision is a failure.
    pub fn has_failure(&self) -> bool {
        !self.failures.is_empty()
    }

    /// Whether some rank does not know a failure yet, and will wait for its decision.
    pub fn owes_answers(&self) -> bool {
        !self.failed.is_empty()
    }

    /// The ranks for which `slot` waits, one bit each. 0 if it is not pending.
    pub fn missing(&self, slot: Slot) -> u64 {
        self.pending.get(&slot).map_or(0, |pending| pending.members & !pending.arrived)
    }

    /// Whether some operation has begun and is not decided.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The operations that wait for some ranks, with these ranks, one bit each.
    pub fn waiting(&self) -> impl Iterator<Item = (Slot, u64)> {
        let missing = |(slot, pending): (&Slot, &Pending)| (*slot, pending.members & !pending.arrived);
        self.pending.iter().map(missing).filter(|(_, missing)| *missing != 0)
    }

    /// The next operation for which all members are ready, and whether it is chosen because it has waited longest.
    fn next_ready(&self) -> Option<(Slot, bool)> {
        let oldest_turn = self.oldest_every > 0 && self.decided + 1 >= self.oldest_every;
        let slot = if oldest_turn { self.ages.first()?.1 } else { self.ready.first()?.2 };
        Some((slot, oldest_turn))
    }

    /// Whether `rank`, unless it is the leader's own, announces more than the ranks may.
    fn is_full(&self, rank: u32, (part, _): Slot) -> bool {
        let is_open_full = self.pending.len() + self.failed.len() + self.early >= OPEN_MAX;
        let is_part_too_many = self.announcements.len() >= PARTS_MAX && !self.announcements.contains_key(&part);
        rank != 0 && (is_open_full || is_part_too_many)
    }

    /// Whether `rank` may be one of these members, which must be ranks of the machine.
    fn may_be(&self, rank: u32, members: u64) -> bool {
        Claim::members_among(members, self.ranks as usize).is_some_and(|members| members & (1 << rank) != 0)
    }

    /// The members of a part of which something was announced, one bit each.
    fn members(&self, part: PartId) -> u64 {
        self.announcements.get(&part).map_or(0, |part| part.members)
    }

    /// `rank` takes no part in `slot` or has no data for it. It may still come to earlier rounds.
    fn announce_early(&mut self, rank: u32, slot: Slot, members: u64) {
        if planted(self.defect, Defect::EarlyWordPasses) {
            return self.pass(rank, slot, members);
        }
        let announced = self.announced_by(rank, slot.0, members);
        let is_new = slot.1 >= announced.passed && announced.early.insert(slot.1);
        self.early += usize::from(is_new);
    }

    /// `rank` has come to `slot`, so it contributes to no earlier round any more.
    fn pass(&mut self, rank: u32, slot: Slot, members: u64) {
        let (part, round) = slot;
        let announced = self.announced_by(rank, part, members);
        if announced.passed > round {
            return;
        }
        announced.passed = round.next();
        let later = announced.early.split_off(&round.next());
        let passed = std::mem::replace(&mut announced.early, later);
        self.early -= passed.len();
        let earlier = (part, Round(0))..slot;
        let given_up: Vec<Slot> = self
            .pending
            .range(earlier.clone())
            .filter(|(_, pending)| pending.arrived & (1 << rank) == 0)
            .map(|(slot, _)| *slot)
            .collect();
        for slot in given_up {
            self.fail(slot, Failure::WentOn { rank });
        }
        let failed: Vec<Slot> = self.failed.range(earlier).map(|(slot, _)| *slot).collect();
        for slot in failed {
            self.forget_if_all_came(slot);
        }
    }

    /// Updates a pending operation. It is ready if all members are, waits if the others may still come, and fails if one never will.
    fn complete_or_hopeless(&mut self, slot: Slot) {
        let pending = &self.pending[&slot];
        let missing = pending.members & !pending.arrived;
        let is_hasty = planted(self.defect, Defect::OrderedTooEarly) && missing.count_ones() == 1;
        if missing == 0 || is_hasty {
            let is_new = self.ready.insert((Reverse(pending.priority), pending.order, slot));
            self.ages.insert((pending.order, slot));
            if is_new && !pending.claim.failed && Goal::adds_contributions(slot.1) {
                self.latest.extend(pending.arrivals.latest(slot));
            }
            return;
        }
        if missing & self.left != 0 {
            return self.fail(slot, Failure::Left { missing: missing & self.left });
        }
        let gone = missing & self.announced(slot);
        if gone != 0 {
            self.fail(slot, Failure::WentOn { rank: gone.trailing_zeros() });
        }
    }

    fn fail(&mut self, slot: Slot, failure: Failure) {
        self.remove(slot);
        self.failures.push_back((slot, failure));
        self.failed.insert(slot, failure);
        self.forget_if_all_came(slot);
    }

    fn forget_if_all_came(&mut self, slot: Slot) {
        if self.members(slot.0) & !(self.left | self.announced(slot)) == 0 {
            self.failed.remove(&slot);
        }
    }

    /// The ranks that announce nothing more about a slot, one bit each.
    fn announced(&self, (part, round): Slot) -> u64 {
        let announced = self.announcements.get(&part).into_iter().flat_map(|part| &part.ranks);
        announced.enumerate().fold(0, |ranks, (rank, announced)| ranks | u64::from(announced.has(round)) << rank)
    }

    fn announced_by(&mut self, rank: u32, part: PartId, members: u64) -> &mut Announced {
        if self.announcements.len() >= self.look_at && !self.announcements.contains_key(&part) {
            self.forget_quiet_parts();
        }
        let members = Claim::members_among(members, self.ranks as usize).expect("it was checked");
        let none =
            || Announcements { members: 0, ranks: vec![Announced::default(); self.ranks as usize], is_new: true };
        let announcements = self.announcements.entry(part).or_insert_with(none);
        announcements.is_new = true;
        announcements.members |= members;
        &mut announcements.ranks[rank as usize]
    }

    /// Forgets the parts of which nothing was announced since the last look and for which no rank waits: their names may have ended. If a
    /// later round of one comes after all, it begins as the first one does.
    fn forget_quiet_parts(&mut self) {
        let Self { announcements, pending, failed, .. } = self;
        announcements.retain(|part, announced| {
            let rounds = (*part, Round(0))..=(*part, Round(u64::MAX));
            let is_member = |(rank, _): &(usize, &Announced)| announced.members & (1 << rank) != 0;
            let mut members = announced.ranks.iter().enumerate().filter(is_member).map(|(_, member)| member);
            let passed = members.clone().next().map(|first| first.passed);
            let is_settled = members.all(|member| Some(member.passed) == passed && member.early.is_empty());
            let is_over =
                is_settled && pending.range(rounds.clone()).next().is_none() && failed.range(rounds).next().is_none();
            std::mem::take(&mut announced.is_new) || !is_over
        });
        self.look_at = QUIET_PARTS_MIN.max(self.announcements.len() * 2);
    }

    fn remove(&mut self, slot: Slot) -> Option<Pending> {
        let pending = self.pending.remove(&slot)?;
        self.ready.remove(&(Reverse(pending.priority), pending.order, slot));
        self.ages.remove(&(pending.order, slot));
        Some(pending)
    }
}

#[cfg(test)]
mod tests;
