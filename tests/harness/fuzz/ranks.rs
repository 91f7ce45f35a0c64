//! What the ranks of one machine agree on: the order machine alone, and whole agreements beside a rank that writes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::collective::Goal;
use gradlane_core::collective::agreement::{Act, Agreement, Announcement, Brought, Party, Wish};
use gradlane_core::collective::fuzzing as words;
use gradlane_core::collective::group::{QueueSpace, is_sound};
use gradlane_core::collective::order::{Claim, Decision, Order, Slot};
use gradlane_core::collective::ranks::{Breakage, LocalRank};
use gradlane_core::error::Error;
use gradlane_core::types::{
    DType, Declined, DeviceKind, Incarnation, Op, PartId, Priority, Ready, Round, TensorKey, Time, WorkerId,
};

use super::input::Input;
use super::{Kind, Memory, Target, random_inputs};

pub(super) const ORDER: Target = Target {
    name: "order",
    kind: Kind::Machine,
    check: order,
    seeds: || random_inputs(24, 300),
    memory: Memory { bytes: 256 << 10, times: 1024 },
};

pub(super) const AGREEMENT: Target = Target {
    name: "agreement",
    kind: Kind::Machine,
    check: agreement,
    seeds: || random_inputs(24, 300),
    memory: Memory { bytes: 256 << 10, times: 2048 },
};

/// Ranks announce anything in any order. What all are ready for runs once; what failed never runs; when all have left nothing waits.
fn order(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let ranks = u32::from(input.below(4)) + 1;
    let mut order = Order::new(ranks, u32::from(input.below(4)));
    let mut ended: BTreeMap<Slot, bool> = BTreeMap::new();
    let mut decide = |order: &mut Order| {
        let upcoming = order.upcoming().map(|(slot, claim)| (slot, *claim));
        let Some(decision) = order.next_decision() else {
            assert!(!order.has_decision());
            return false;
        };
        match decision {
            Decision::Run { slot, claim, weights, failed } => {
                let foretold = upcoming.expect("a run is foretold");
                assert_eq!((foretold.0, foretold.1.bytes), (slot, claim.bytes));
                assert!((0..ranks).all(|rank| order.has_announced(rank, slot)), "{slot:?} runs without all ranks");
                assert_eq!((ended.insert(slot, true), weights.len()), (None, ranks as usize), "{slot:?} runs once");
                assert!(failed.is_none_or(|rank| rank < ranks) && failed.is_some() == claim.failed);
            }
            Decision::Fail { slot, .. } => {
                assert!(upcoming.is_none(), "failures come first");
                assert_ne!(ended.insert(slot, false), Some(true), "{slot:?} failed after it ran");
            }
            Decision::Part => unreachable!("the agreement decides that"),
        }
        true
    };
    while !input.is_empty() {
        let rank = u32::from(input.byte()) % ranks;
        match input.below(9) {
            0..=4 => {
                let (slot, claim) = (slot(&mut input), claim(&mut input));
                let known = order.has_announced(rank, slot);
                assert_eq!(
                    order.handle_ready(rank, slot, claim).is_err(),
                    known,
                    "what was announced is announced once"
                );
            }
            5 => {
                let declined = Declined { slot: slot(&mut input), members: Claim::ALL_RANKS };
                assert!(order.handle_withdrawn(rank, declined).is_ok());
            }
            6 => order.handle_overdue(slot(&mut input), Duration::from_millis(3)),
            7 if input.byte() < 16 => order.handle_left(rank),
            _ => drop(decide(&mut order)),
        }
        while let Some(latest) = order.next_latest() {
            assert!(latest.rank < ranks && latest.alone_since <= latest.ready.since);
        }
        for (slot, missing) in order.waiting() {
            assert!(missing != 0 && order.missing(slot) == missing);
        }
    }
    (0..ranks).for_each(|rank| order.handle_left(rank));
    while decide(&mut order) {}
    assert!(!order.has_pending(), "nothing waits for ranks that have left");
}

/// Rank 0 leads, rank 1 obeys, and rank 2 writes anything; or rank 0 writes anything to rank 1. What a rank wished ends once.
fn agreement(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut machine = Machine::new(u32::from(input.below(4)));
    while !input.is_empty() && !machine.is_broken() {
        machine.event(&mut input);
    }
    machine.end();
}

const RANKS: u32 = 3;

struct Machine {
    now: Time,
    /// The two that follow the rules.
    honest: [Agreement<u64>; 2],
    /// The next slot of each part, because a rank comes to them in order.
    next: [BTreeMap<PartId, u64>; 2],
    /// Loads that were handed in, and those that came back.
    given: u64,
    ended: BTreeSet<u64>,
    /// Loads of a rank whose leader wrote nonsense: they end as they are dropped.
    lost: u64,
    broken: [bool; 2],
}

impl Machine {
    fn new(oldest_every: u32) -> Self {
        let local = |rank| LocalRank {
            rank: WorkerId(rank),
            incarnation: Incarnation(u128::from(rank)),
            name: format!("worker {rank}"),
            place: String::new(),
            socket_path: String::new(),
        };
        let party = |me| Party {
            ranks: (0..RANKS).map(local).collect(),
            me,
            group: (0..RANKS as usize).collect(),
            step_timeout: Duration::from_secs(5),
            stall_warn: Duration::from_secs(1),
            oldest_every,
            goes_on: oldest_every == 3,
            defect: None,
        };
        Self {
            now: Time(1),
            honest: [0, 1].map(|me| Agreement::new(party(me))),
            next: [const { BTreeMap::new() }; 2],
            given: 0,
            ended: BTreeSet::new(),
            lost: 0,
            broken: [false; 2],
        }
    }

    fn is_broken(&self) -> bool {
        self.broken == [true; 2]
    }

    fn event(&mut self, input: &mut Input<'_>) {
        let who = usize::from(input.byte() & 1);
        match input.below(13) {
            0..=3 => self.wish(who, input),
            4 => {
                let slot = self.known_slot(who, input);
                self.honest[who].handle_abandoned(self.now, slot);
            }
            5 => {
                let (part, round) = slot(input);
                // A rank declines what it never comes to.
                let next = self.next[who].entry(part).or_default();
                if round.0 >= *next {
                    *next = round.0 + 1;
                    let members = members_of(part);
                    self.honest[who].handle_declined(Declined { slot: (part, round), members });
                }
            }
            6 | 7 => {
                if let Some(announcement) = hostile_announcement(input)
                    && let Err(breakage) = self.honest[0].hear(self.now, 2, announcement)
                {
                    assert_eq!(breakage, Breakage::Confused(2), "the rank that wrote it is blamed");
                    self.break_down(0, breakage);
                }
            }
            8 | 9 => self.carry(),
            10 => {
                self.now = self.now + Duration::from_millis(u64::from(input.byte()) * 40);
                for who in 0..2 {
                    let due = self.honest[who].poll_timeout(self.now).is_some_and(|due| due <= self.now);
                    if due && let Err(breakage) = self.honest[who].handle_timeout(self.now) {
                        self.break_down(who, breakage);
                    }
                }
            }
            11 => self.mislead(input),
            _ => match input.below(16) {
                0 => self.honest[0].handle_left(2),
                // A leader that has left orders nothing any more.
                1 => {
                    self.honest[1].handle_left(0);
                    self.honest[1].settle_orphans(self.now);
                    self.act();
                    assert!(!self.honest[1].has_orphans(), "what the leader did not order has ended");
                    (0..2).for_each(|who| self.break_down(who, Breakage::Lost(0)));
                }
                2 => self.honest[who].handle_closed(self.now),
                3 => self.honest[who].handle_parting(Error::Cancelled),
                _ => drop((self.honest[who].take_stalls(), self.honest[who].take_urgency())),
            },
        }
        self.act();
    }

    fn wish(&mut self, who: usize, input: &mut Input<'_>) {
        let (part, _) = slot(input);
        let claim = Claim { members: members_of(part), ..claim(input) };
        let owner = WorkerId(u32::from(input.below(4)));
        let goal = match input.below(6) {
            0 => Goal::Reduce { owner },
            1 => Goal::Broadcast { owner },
            2 => Goal::Share { owner },
            _ => Goal::AllReduce,
        };
        let next = self.next[who].entry(part).or_default();
        let round = Round(next.div_ceil(4));
        let wish = Wish { part, round, goal, failure: claim.failed.then_some(Error::Cancelled), claim };
        *next = wish.slot().1.0 + 1;
        let brought =
            input.pick(&[Brought::AsClaimed, Brought::AsClaimed, Brought::AsClaimed, Brought::Nothing, Brought::Other]);
        self.given += 1;
        self.honest[who].handle_wish(self.now, wish, self.given, brought);
    }

    fn known_slot(&self, who: usize, input: &mut Input<'_>) -> Slot {
        let (part, _) = slot(input);
        let next = self.next[who].get(&part).copied().unwrap_or(0);
        (part, Round(next.saturating_sub(u64::from(input.below(3)))))
    }

    /// Announcements go to the leader, and its decisions to both.
    fn carry(&mut self) {
        while let Some(announcement) = self.honest[1].unsaid() {
            self.honest[1].said();
            let heard = self.honest[0].hear(self.now, 1, announcement);
            assert_eq!(heard, Ok(()), "a rank that follows the rules is not blamed for {announcement:?}");
        }
        self.honest[0].weigh(self.now);
        let room = QueueSpace::beside(0, 0, 1);
        while self.honest[0].may_lead(room) {
            let decisions = self.honest[0].lead(8, room);
            assert!(is_sound(&decisions), "what the leader orders is a group: {decisions:?}");
            for who in 0..2 {
                if self.broken[who] {
                    continue;
                }
                if let Err(breakage) = self.honest[who].obey(self.now, decisions.clone()) {
                    assert!(self.broken[0], "{breakage:?} of {decisions:?}");
                }
            }
            self.act();
        }
    }

    /// Rank 0 writes any words where an order is due.
    fn mislead(&mut self, input: &mut Input<'_>) {
        let count = usize::from(input.below(3)) + 1;
        let decisions: Option<Vec<Decision>> = (0..count).map(|_| hostile_decision(input)).collect();
        let Some(decisions) = decisions.filter(|decisions| is_sound(decisions)) else { return };
        let before = self.given - self.ended.len() as u64 - self.lost;
        let obeyed = self.honest[1].obey(self.now, decisions);
        self.act();
        // From now on it follows nobody.
        let breakage = match obeyed {
            Ok(()) => Breakage::Lost(0),
            Err(breakage) => {
                assert_eq!(breakage, Breakage::Confused(0));
                self.lost += u64::from(before > 0);
                breakage
            }
        };
        self.break_down(1, breakage);
        self.break_down(0, Breakage::Lost(1));
    }

    fn break_down(&mut self, who: usize, breakage: Breakage) {
        let error = self.honest[who].explain(breakage);
        self.honest[who].fail(Some(error));
        self.broken[who] = true;
        self.act();
        assert!(!self.honest[who].is_busy(), "nothing is pending after a breakage");
    }

    fn act(&mut self) {
        for agreement in &mut self.honest {
            while let Some(last) = agreement.next_last() {
                assert!(last.late.iter().sum::<Duration>() <= self.now.since(Time::ZERO), "{last:?}");
            }
            while let Some(act) = agreement.next_act() {
                // Operations take no time here.
                agreement.handle_host_ended();
                let load = match act {
                    Act::Run { load, weights, .. } => {
                        assert_eq!(weights.len(), RANKS as usize);
                        load
                    }
                    Act::Tell { load, from, .. } => {
                        assert!(from < RANKS as usize);
                        load
                    }
                    Act::End { load, .. } | Act::Return { load, .. } => Some(load),
                    Act::Pass { .. } => None,
                };
                assert!(load.is_none_or(|load| self.ended.insert(load)), "{load:?} ends twice");
            }
        }
    }

    fn end(mut self) {
        self.break_down(0, Breakage::Lost(2));
        self.break_down(1, Breakage::Lost(2));
        let ended = self.ended.len() as u64;
        assert!(ended <= self.given && ended + self.lost >= self.given, "{ended} of {} ended", self.given);
    }
}

fn hostile_announcement(input: &mut Input<'_>) -> Option<Announcement> {
    if input.byte() & 1 == 0 {
        return words::announcement(std::array::from_fn(|_| input.word()));
    }
    // Of the right form, which random words seldom have.
    let slot = slot(input);
    let announcement = match input.below(3) {
        0 => Announcement::Ready(slot, Claim { members: any_members(input), ..claim(input) }),
        1 => Announcement::Withdrawn(Declined { slot, members: members_of(slot.0) }),
        _ => Announcement::Overdue(slot, Duration::from_millis(u64::from(input.byte()))),
    };
    Some(announcement)
}

fn hostile_decision(input: &mut Input<'_>) -> Option<Decision> {
    if input.byte() & 1 == 0 {
        let words: Vec<u64> = (0..16 + RANKS).map(|_| input.word()).collect();
        return words::decision(&words, RANKS as usize);
    }
    let (slot, members) = (slot(input), any_members(input));
    let claim = Claim { members, ..claim(input) };
    let failed = input.byte().checked_sub(200).map(|rank| u32::from(rank) % RANKS);
    Some(Decision::Run { slot, claim, failed, weights: vec![1.0; RANKS as usize] })
}

fn slot(input: &mut Input<'_>) -> Slot {
    let part = PartId { key: TensorKey(u64::from(input.below(3))), index: 0 };
    (part, Round(u64::from(input.below(9))))
}

/// The members of a part, for the ranks that follow the rules.
fn members_of(part: PartId) -> u64 {
    if part.key.0 == 2 { 0b011 } else { Claim::ALL_RANKS }
}

/// The members of a part, as a rank says that may lie.
fn any_members(input: &mut Input<'_>) -> u64 {
    input.pick(&[Claim::ALL_RANKS, Claim::ALL_RANKS, 0b011, 0b110, 0b1001, 0])
}

/// Mostly the same, so that ranks agree.
fn claim(input: &mut Input<'_>) -> Claim {
    let chosen = input.byte();
    let device = if chosen & 0x80 == 0 { DeviceKind::Host } else { DeviceKind::Cuda };
    let (op, bytes) = match chosen & 15 {
        0 => (Op::Max, 8),
        1 => (Op::Sum, 16),
        2 => (Op::WeightedMean, 8),
        3 => (Op::Broadcast { root: WorkerId(1) }, 8),
        4 => (Op::Sum, u64::MAX / 8 * 8),
        _ => (Op::Sum, 8),
    };
    Claim {
        op,
        dtype: DType::F32,
        bytes,
        device,
        device_index: 0,
        failed: chosen & 0x70 == 0x70,
        weight: input.pick(&[1.0, 0.0, f64::NAN, f64::INFINITY]),
        priority: Priority(i32::from(chosen)),
        members: Claim::ALL_RANKS,
        ready: Ready { since: Time(u64::from(chosen)), ..Ready::UNKNOWN },
    }
}
