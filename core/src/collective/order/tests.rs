use super::*;
use crate::random::Random;
use crate::types::{DType, DeviceKind, Op, TensorKey};

#[test]
fn what_all_are_ready_for_goes_most_urgent_first() {
    let mut order = Order::new(2, 0);
    for (part, priority) in [(1, 0), (2, 9), (3, 9), (4, 5)] {
        order.handle_ready(1, slot(part, 0), urgent(priority)).unwrap();
    }
    assert_eq!(runs(&mut order), [] as [u64; 0], "nothing without rank 0");
    for part in [4, 3, 2, 1] {
        order.handle_ready(0, slot(part, 0), urgent(0)).unwrap();
    }
    assert_eq!(runs(&mut order), [2, 3, 4, 1], "as urgent as to whom wants it most, else by age");
}

#[test]
fn the_oldest_has_its_turn_now_and_then() {
    let mut order = Order::new(1, 3);
    for (part, priority) in [(1, 0), (2, 0), (3, 9), (4, 9), (5, 9), (6, 9)] {
        order.handle_ready(0, slot(part, 0), urgent(priority)).unwrap();
    }
    assert_eq!(runs(&mut order), [3, 4, 1, 5, 6, 2]);
}

#[test]
fn what_is_upcoming_is_what_is_decided_next() {
    let mut order = Order::new(1, 3);
    for (part, priority) in [(1, 0), (2, 0), (3, 9), (4, 9)] {
        order.handle_ready(0, slot(part, 0), Claim { bytes: 4 * part, ..urgent(priority) }).unwrap();
    }
    for part in [3, 4, 1, 2] {
        assert_eq!(order.upcoming().map(|(slot, claim)| (slot, claim.bytes)), Some((slot(part, 0), 4 * part)));
        assert!(matches!(order.next_decision(), Some(Decision::Run { slot: next, .. }) if next == slot(part, 0)));
    }
    assert_eq!(order.upcoming(), None);
    order.handle_ready(0, slot(5, 0), claim()).unwrap();
    order.handle_withdrawn(0, given_up(6, 0)).unwrap();
    assert_eq!(order.upcoming(), None, "a failure comes first");
    order.next_decision();
    assert_eq!(order.upcoming().map(|(slot, _)| slot), Some(slot(5, 0)));
}

#[test]
fn parts_of_names_that_ended_are_forgotten_and_begin_anew() {
    let mut order = Order::new(2, 0);
    order.handle_ready(0, slot(u64::MAX, 0), claim()).unwrap();
    for part in 0..1_000_000 {
        for rank in [0, 1] {
            order.handle_ready(rank, slot(part, 0), claim()).unwrap();
        }
        order.next_decision().expect("both came");
    }
    assert!(order.announcements.len() < 4 * QUIET_PARTS_MIN, "{} parts", order.announcements.len());
    assert!(order.has_announced(0, slot(u64::MAX, 0)), "rank 1 has not come to it");
    for rank in [0, 1] {
        order.handle_ready(rank, slot(7, 1), claim()).unwrap();
    }
    assert!(order.next_decision().is_some(), "a later round of a part that was forgotten");
}

#[test]
fn every_rank_hears_of_a_mismatch_and_so_does_who_comes_later() {
    let mut order = Order::new(3, 0);
    let other = Claim { op: Op::Max, ..claim() };
    order.handle_ready(2, slot(1, 0), claim()).unwrap();
    order.handle_ready(0, slot(1, 0), other).unwrap();
    let failure = Failure::Mismatch { first: 2, ours: claim(), second: 0, theirs: other };
    let told = Some(Decision::Fail { slot: slot(1, 0), failure });
    assert_eq!((order.next_decision(), order.next_decision()), (told.clone(), None));
    assert!(order.owes_answers(), "to the one that has not come");
    order.handle_ready(1, slot(1, 0), claim()).unwrap();
    assert_eq!((order.next_decision(), order.next_decision()), (told, None), "again, for the one that came late");
    assert!(!order.owes_answers(), "nobody is left to be told");
}

#[test]
fn lengths_types_and_kinds_of_memory_must_agree_too_but_weights_need_not() {
    let claims = [
        (Claim { bytes: 8, ..claim() }, false),
        (Claim { dtype: DType::I32, ..claim() }, false),
        (Claim { device: DeviceKind::Cuda, ..claim() }, false),
        (Claim { weight: 3.0, ..claim() }, true),
    ];
    for (other, runs) in claims {
        let mut order = Order::new(2, 0);
        order.handle_ready(0, slot(1, 0), claim()).unwrap();
        order.handle_ready(1, slot(1, 0), other).unwrap();
        assert_eq!(matches!(order.next_decision(), Some(Decision::Run { .. })), runs, "{other:?}");
    }
}

#[test]
fn weights_come_with_the_decision() {
    let weighted = |weight| Claim { op: Op::WeightedMean, weight, ..claim() };
    let mut order = Order::new(2, 0);
    order.handle_ready(1, slot(1, 0), weighted(2.5)).unwrap();
    order.handle_ready(0, slot(1, 0), weighted(0.0)).unwrap();
    let Some(Decision::Run { weights, .. }) = order.next_decision() else { panic!("not run") };
    assert_eq!(weights, [0.0, 2.5]);
}

#[test]
fn who_withdraws_or_goes_on_is_named() {
    let mut order = Order::new(2, 0);
    order.handle_ready(0, slot(1, 0), claim()).unwrap();
    order.handle_withdrawn(0, given_up(1, 0)).unwrap();
    assert_eq!(failures(&mut order), [(slot(1, 0), Failure::GaveUp { rank: 0 })]);
    order.handle_ready(0, slot(1, 1), claim()).unwrap();
    order.handle_ready(1, slot(1, 2), claim()).unwrap();
    assert_eq!(failures(&mut order), [(slot(1, 1), Failure::WentOn { rank: 1 })], "round 0 was failed before");
    order.handle_ready(0, slot(1, 2), claim()).unwrap();
    assert_eq!(runs(&mut order), [1]);
    order.handle_withdrawn(0, given_up(1, 2)).unwrap();
    assert_eq!(failures(&mut order), [], "too late");
}

#[test]
fn who_will_never_be_ready_is_named_to_who_is_and_to_who_comes_later() {
    let mut order = Order::new(3, 0);
    order.handle_ready(0, slot(1, 0), claim()).unwrap();
    order.handle_withdrawn(1, given_up(1, 0)).unwrap();
    assert_eq!(failures(&mut order), [(slot(1, 0), Failure::GaveUp { rank: 1 })]);
    order.handle_ready(2, slot(1, 0), claim()).unwrap();
    assert_eq!(failures(&mut order), [(slot(1, 0), Failure::GaveUp { rank: 1 })], "again, for the one that came late");
    assert!(!order.owes_answers(), "who gave it up waits for nothing");
    order.handle_withdrawn(1, given_up(2, 0)).unwrap();
    order.handle_withdrawn(0, given_up(2, 0)).unwrap();
    order.handle_withdrawn(2, given_up(2, 0)).unwrap();
    assert!(!order.owes_answers(), "all gave it up");
}

#[test]
fn who_has_nothing_of_a_later_round_may_say_so_before_it_comes_to_the_earlier_ones() {
    let mut order = Order::new(2, 0);
    order.handle_withdrawn(1, given_up(1, 2)).unwrap();
    order.handle_ready(1, slot(1, 1), Claim { failed: true, ..claim() }).unwrap();
    order.handle_ready(0, slot(1, 0), claim()).unwrap();
    assert_eq!(failures(&mut order), [(slot(1, 2), Failure::GaveUp { rank: 1 })]);
    order.handle_ready(1, slot(1, 0), claim()).unwrap();
    assert_eq!(runs(&mut order), [1]);
    order.handle_ready(0, slot(1, 1), claim()).unwrap();
    assert_eq!(runs(&mut order), [1], "rank 1 tells why it has nothing");
    order.handle_withdrawn(1, given_up(1, 1)).unwrap();
    assert_eq!(failures(&mut order), [], "too late");
    order.handle_ready(0, slot(1, 2), claim()).unwrap();
    assert_eq!(failures(&mut order), [(slot(1, 2), Failure::GaveUp { rank: 1 })]);
    assert!(!order.owes_answers());
}

#[test]
fn one_that_failed_is_enough() {
    let mut order = Order::new(2, 0);
    order.handle_ready(1, slot(1, 0), claim()).unwrap();
    order.handle_ready(0, slot(1, 0), Claim { failed: true, ..claim() }).unwrap();
    let Some(Decision::Run { failed, .. }) = order.next_decision() else { panic!("not run") };
    assert_eq!(failed, Some(0));
}

#[test]
fn a_round_that_a_rank_has_passed_fails_as_soon_as_it_is_begun() {
    let mut order = Order::new(2, 0);
    order.handle_ready(1, slot(1, 5), claim()).unwrap();
    order.handle_ready(0, slot(1, 4), claim()).unwrap();
    assert_eq!(failures(&mut order), [(slot(1, 4), Failure::WentOn { rank: 1 })]);
}

#[test]
fn who_does_not_come_or_leaves_is_named() {
    let mut order = Order::new(4, 0);
    order.handle_ready(1, slot(1, 0), claim()).unwrap();
    order.handle_ready(2, slot(1, 0), claim()).unwrap();
    assert_eq!(order.missing(slot(1, 0)), 0b1001);
    order.handle_overdue(slot(1, 0), Duration::from_secs(3));
    let overdue = Failure::Overdue { missing: 0b1001, waited: Duration::from_secs(3) };
    assert_eq!(failures(&mut order), [(slot(1, 0), overdue)]);
    order.handle_ready(1, slot(2, 0), claim()).unwrap();
    order.handle_left(3);
    order.handle_ready(1, slot(3, 0), claim()).unwrap();
    let left = Failure::Left { missing: 0b1000 };
    assert_eq!(failures(&mut order), [(slot(2, 0), left), (slot(3, 0), left)]);
}

#[test]
fn an_operation_waits_for_its_members_only() {
    let mut order = Order::new(4, 0);
    let some = Claim { members: 0b1010, ..claim() };
    order.handle_ready(3, slot(1, 0), some).unwrap();
    assert_eq!(order.missing(slot(1, 0)), 0b0010);
    order.handle_ready(1, slot(1, 0), some).unwrap();
    let Some(Decision::Run { claim, .. }) = order.next_decision() else { panic!("not run") };
    assert_eq!(claim.members, 0b1010);
    order.handle_ready(1, slot(1, 1), some).unwrap();
    order.handle_left(0);
    assert_eq!(failures(&mut order), [], "the one that left is no member");
    order.handle_overdue(slot(1, 1), Duration::from_secs(3));
    let overdue = Failure::Overdue { missing: 0b1000, waited: Duration::from_secs(3) };
    assert_eq!(failures(&mut order), [(slot(1, 1), overdue)]);
    order.handle_withdrawn(3, Declined { slot: slot(1, 1), members: 0b1010 }).unwrap();
    assert!(!order.owes_answers(), "both members know it");
}

#[test]
fn who_names_ranks_that_do_not_exist_or_is_no_member_breaks_the_rules() {
    let mut order = Order::new(3, 0);
    let of = |members| Claim { members, ..claim() };
    for (rank, members) in [(0, 0b110), (1, 0b1010), (1, 0)] {
        assert_eq!(order.handle_ready(rank, slot(1, 0), of(members)), Err(Breach), "{members:b}");
        assert_eq!(order.handle_withdrawn(rank, Declined { slot: slot(1, 0), members }), Err(Breach), "{members:b}");
    }
    let (ours, theirs) = (of(0b110), of(0b111));
    order.handle_ready(1, slot(1, 0), ours).unwrap();
    order.handle_ready(2, slot(1, 0), theirs).unwrap();
    assert_eq!(failures(&mut order), [(slot(1, 0), Failure::Mismatch { first: 1, ours, second: 2, theirs })]);
}

/// Ranks that submit the same parts in orders of their own, some of which they withdraw: each part is decided once, and the decisions
/// are complete.
#[test]
fn whatever_the_order_of_arrival_every_part_is_decided_once() {
    for seed in 0..500_u64 {
        let mut random = Random::new(seed);
        let ranks = 1 + random.below(5) as u32;
        let mut order = Order::new(ranks, random.below(4) as u32);
        // Each rank walks through all parts and rounds, the rounds of a part in order.
        let mut left: Vec<Vec<Slot>> = (0..ranks)
            .map(|_| {
                let mut next = [0; 4];
                let mut dataflow: Vec<u64> = (0..12).map(|step| step % 4).collect();
                random.shuffle(&mut dataflow);
                let slots = dataflow.into_iter().map(|part| {
                    next[part as usize] += 1;
                    slot(part, next[part as usize] - 1)
                });
                let mut slots: Vec<Slot> = slots.collect();
                slots.reverse();
                slots
            })
            .collect();
        let mut decided = BTreeMap::new();
        while left.iter().any(|slots| !slots.is_empty()) {
            let rank = random.below(u64::from(ranks)) as usize;
            let Some(slot) = left[rank].pop() else { continue };
            let claim = urgent(random.below(3) as i32);
            order.handle_ready(rank as u32, slot, claim).unwrap();
            if random.below(20) == 0 {
                order.handle_withdrawn(rank as u32, Declined { slot, members: Claim::ALL_RANKS }).unwrap();
            }
            while let Some(decision) = order.next_decision() {
                let (slot, ran) = match decision {
                    Decision::Run { slot, .. } => (slot, true),
                    Decision::Fail { slot, .. } => (slot, false),
                    Decision::Part => unreachable!("the agreement decides that"),
                };
                let before = decided.insert(slot, ran);
                assert!(before.is_none_or(|before| !before && !ran), "seed {seed}: {slot:?} was decided twice");
            }
        }
        assert_eq!(decided.len(), 12, "seed {seed}");
        assert!(order.pending.is_empty() && order.failed.is_empty() && order.ready.is_empty(), "seed {seed}");
    }
}

#[test]
fn who_announces_twice_breaks_the_rules_and_changes_nothing() {
    let mut order = Order::new(2, 0);
    order.handle_ready(1, slot(1, 0), urgent(1)).unwrap();
    assert_eq!(order.handle_ready(1, slot(1, 0), urgent(9)), Err(Breach), "while it waits");
    order.handle_ready(0, slot(1, 0), claim()).unwrap();
    assert_eq!(order.handle_ready(1, slot(1, 0), urgent(9)), Err(Breach), "while all are ready");
    assert_eq!(runs(&mut order), [1]);
    assert_eq!(order.handle_ready(1, slot(1, 0), claim()), Err(Breach), "after the decision");
    order.handle_withdrawn(1, given_up(1, 1)).unwrap();
    assert_eq!(order.handle_ready(1, slot(1, 1), claim()), Err(Breach), "after its withdrawal");
    assert_eq!(failures(&mut order), [(slot(1, 1), Failure::GaveUp { rank: 1 })]);
}

#[test]
fn a_rank_cannot_fill_the_memory_of_the_leader() {
    let mut order = Order::new(2, 0);
    let refused = (0..=OPEN_MAX as u64 + 1).find(|round| order.handle_withdrawn(1, given_up(1, *round)).is_err());
    assert!(refused.is_some(), "there is a limit");
    assert_eq!(order.handle_ready(1, slot(2, 0), claim()), Err(Breach));
    order.handle_ready(0, slot(2, 0), claim()).unwrap();
}

/// Ranks that announce anything: nothing panics, and what is ready is decided.
#[test]
fn whatever_ranks_announce_the_order_goes_on() {
    for seed in 0..2_000_u64 {
        let mut random = Random::new(seed);
        let ranks = 1 + random.below(3) as u32;
        let mut order = Order::new(ranks, random.below(3) as u32);
        for _ in 0..60 {
            let rank = random.below(u64::from(ranks)) as u32;
            let slot = slot(random.below(2), random.below(3));
            match random.below(8) {
                0 => drop(order.handle_withdrawn(rank, Declined { slot, members: members(&mut random) })),
                1 => order.handle_overdue(slot, Duration::from_secs(1)),
                2 if random.below(10) == 0 => order.handle_left(rank),
                3 => while order.next_decision().is_some() {},
                _ => {
                    let failed = random.below(8) == 0;
                    let bytes = 4 + 4 * (random.below(10) / 9);
                    let (members, claim) = (members(&mut random), urgent(random.below(3) as i32));
                    let _ = order.handle_ready(rank, slot, Claim { failed, bytes, members, ..claim });
                }
            }
            assert_eq!(order.ready.len(), order.ages.len(), "seed {seed}");
        }
        while order.next_decision().is_some() {}
        assert!(order.ready.is_empty(), "seed {seed}");
    }
}

/// All ranks mostly, else any bits.
fn members(random: &mut Random) -> u64 {
    if random.below(4) > 0 { Claim::ALL_RANKS } else { random.below(16) }
}

fn slot(part: u64, round: u64) -> Slot {
    (PartId { key: TensorKey(part), index: 0 }, Round(round))
}

fn given_up(part: u64, round: u64) -> Declined {
    Declined { slot: slot(part, round), members: Claim::ALL_RANKS }
}

fn claim() -> Claim {
    Claim { bytes: 4, ..Claim::SUM }
}

fn urgent(priority: i32) -> Claim {
    Claim { priority: Priority(priority), ..claim() }
}

fn runs(order: &mut Order) -> Vec<u64> {
    let next = || match order.next_decision()? {
        Decision::Run { slot, .. } => Some(slot.0.key.0),
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(next).collect()
}

fn failures(order: &mut Order) -> Vec<(Slot, Failure)> {
    let next = || match order.next_decision()? {
        Decision::Fail { slot, failure } => Some((slot, failure)),
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(next).collect()
}
