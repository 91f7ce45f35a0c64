use super::*;
use crate::collective::order::Failure;
use crate::collective::ranks::LocalRank;
use crate::types::{Incarnation, Op, PartId, Priority, Round, TensorKey, WorkerId};

mod lateness;

const NOW: Time = Time(0);
const STALL_WARN: Duration = Duration::from_secs(2);

#[test]
fn what_all_ranks_are_ready_for_runs_on_all_of_them_in_one_order() {
    let mut ranks = machine(2);
    for (rank, part) in [(1, 1), (1, 2), (0, 2), (0, 1)] {
        ranks[rank].handle_wish(NOW, all_reduce(part), part, Brought::AsClaimed);
    }
    settle(&mut ranks);
    for rank in &mut ranks {
        let done = acts(rank);
        assert!(matches!(done[..], [Act::Run { load: Some(1), .. }, Act::Run { load: Some(2), .. }]), "{done:?}");
    }
}

#[test]
fn operations_in_host_memory_follow_each_other_and_nothing_is_ordered_meanwhile() {
    let mut ranks = machine(2);
    for rank in &mut ranks {
        (1..=2).for_each(|part| rank.handle_wish(NOW, all_reduce(part), part, Brought::AsClaimed));
    }
    let room = QueueSpace::beside(0, 0, 1);
    for announcement in std::iter::from_fn(|| ranks[1].unsaid().inspect(|_| ranks[1].said())).collect::<Vec<_>>() {
        ranks[0].hear(NOW, 1, announcement).unwrap();
    }
    for part in 1..=2 {
        assert!(ranks[0].may_lead(room));
        let decisions = ranks[0].lead(64, room);
        assert!(!ranks[0].may_lead(room), "it has not obeyed what it decided");
        for rank in &mut ranks {
            assert_eq!(rank.obey(NOW, decisions.clone()), Ok(()));
            assert!(matches!(rank.next_act(), Some(Act::Run { load: Some(load), .. }) if load == part));
            assert!(!rank.may_obey() && !rank.may_lead(room), "part {part} is under way");
        }
        ranks[1].handle_host_ended();
        assert!(ranks[1].may_obey() && !ranks[0].may_lead(room));
        ranks[0].handle_host_ended();
    }
    assert!(!ranks[0].may_lead(room), "nothing is left");
}

#[test]
fn what_fails_before_its_turn_ends_with_that_error() {
    let mut ranks = machine(2);
    for rank in &mut ranks {
        rank.handle_wish(NOW, all_reduce(1), 1, Brought::AsClaimed);
    }
    settle(&mut ranks);
    let lost = ranks[1].explain(Breakage::Lost(0));
    ranks[1].fail(Some(lost.clone()));
    assert!(matches!(&acts(&mut ranks[1])[..], [Act::End { load: 1, error }] if *error == lost));
}

#[test]
fn what_one_rank_gives_up_ends_on_all_and_names_it() {
    let mut ranks = machine(2);
    ranks[0].handle_wish(NOW, all_reduce(1), 1, Brought::AsClaimed);
    ranks[1].handle_wish(NOW, all_reduce(2), 2, Brought::AsClaimed);
    ranks[1].handle_abandoned(NOW, all_reduce(2).slot());
    assert!(ranks[1].take_urgency());
    settle(&mut ranks);
    ranks[0].handle_wish(NOW, all_reduce(2), 2, Brought::AsClaimed);
    settle(&mut ranks);
    assert!(matches!(acts(&mut ranks[1])[..], [Act::End { load: 2, error: Error::Cancelled }]));
    let [Act::End { load: 2, error: Error::Stalled { missing, .. } }] = &acts(&mut ranks[0])[..] else {
        panic!("the first part still waits")
    };
    assert_eq!(missing, &[WorkerId(1)]);
}

#[test]
fn who_does_not_want_a_broadcast_lets_go_of_its_memory_and_looks_on() {
    let mut ranks = machine(2);
    let wish = Wish { goal: Goal::Broadcast { owner: WorkerId(0) }, ..all_reduce(1) };
    ranks[1].handle_wish(NOW, wish.clone(), 1, Brought::AsClaimed);
    ranks[1].handle_abandoned(NOW, wish.slot());
    assert!(matches!(acts(&mut ranks[1])[..], [Act::End { load: 1, error: Error::Cancelled }]));
    let much_later = NOW + Duration::from_secs(3600);
    assert_eq!(ranks[1].handle_timeout(much_later), Ok(()), "it waits as long as the owner lives");
    ranks[0].handle_wish(NOW, wish, 1, Brought::AsClaimed);
    settle(&mut ranks);
    assert!(matches!(acts(&mut ranks[1])[..], [Act::Run { load: None, .. }]));
}

#[test]
fn a_rank_that_has_nothing_says_why_and_the_others_hear_it() {
    let mut ranks = machine(2);
    let wish = Wish { goal: Goal::Broadcast { owner: WorkerId(1) }, ..all_reduce(1) };
    ranks[0].handle_wish(NOW, wish.clone(), 1, Brought::AsClaimed);
    ranks[1].handle_wish(NOW, Wish { failure: Some(Error::Cancelled), ..wish }, 1, Brought::AsClaimed);
    settle(&mut ranks);
    assert!(matches!(acts(&mut ranks[0])[..], [Act::Tell { from: 1, failure: None, .. }]));
    assert!(matches!(acts(&mut ranks[1])[..], [Act::Tell { from: 1, failure: Some(Error::Cancelled), .. }]));
}

#[test]
fn the_leader_names_the_ranks_that_do_not_come_long_before_the_deadline() {
    for absent in [0, 1] {
        let mut ranks = machine(2);
        ranks[1 - absent].handle_wish(NOW, all_reduce(1), 1, Brought::AsClaimed);
        settle(&mut ranks);
        // The first look only sees that it waits.
        let first = NOW + STALL_WARN / 8;
        assert_eq!(ranks[0].poll_timeout(NOW), Some(first));
        assert_eq!(ranks[0].handle_timeout(first), Ok(()));
        assert_eq!((ranks[0].take_stalls(), ranks[0].poll_timeout(first)), (Vec::new(), Some(first + STALL_WARN / 8)));
        assert_eq!(ranks[0].handle_timeout(first + STALL_WARN), Ok(()));
        let stalls = ranks[0].take_stalls();
        let [Stall { missing, waited, round, .. }] = &stalls[..] else { panic!("{stalls:?}") };
        assert_eq!((missing.as_slice(), *waited, *round), ([WorkerId(absent as u32)].as_slice(), STALL_WARN, Round(0)));
        ranks[absent].handle_wish(NOW, all_reduce(1), 1, Brought::AsClaimed);
        settle(&mut ranks);
        let later = NOW + STALL_WARN * 2;
        assert_eq!(ranks[0].handle_timeout(later), Ok(()));
        assert_eq!((ranks[0].take_stalls(), ranks[0].poll_timeout(later)), (Vec::new(), None), "nothing waits");
    }
}

#[test]
fn an_operation_that_begins_after_others_have_ended_is_watched_from_its_own_begin() {
    let mut ranks = machine(2);
    for rank in &mut ranks {
        rank.handle_wish(NOW, all_reduce(1), 1, Brought::AsClaimed);
    }
    assert!(ranks[0].poll_timeout(NOW).is_some());
    settle(&mut ranks);
    assert_eq!(ranks[0].poll_timeout(NOW), None);
    let later = NOW + STALL_WARN * 100;
    ranks[0].handle_wish(later, all_reduce(2), 1, Brought::AsClaimed);
    let due = ranks[0].poll_timeout(later).expect("it waits");
    assert!(later + ranks[0].soonest() <= due, "or a thread that sleeps would have to be woken in each operation");
}

#[test]
fn what_waits_too_long_is_complained_of_and_then_the_leader_answers_or_is_stuck() {
    let mut ranks = machine(2);
    let late = NOW + Duration::from_secs(5);
    ranks[1].handle_wish(NOW, all_reduce(1), 1, Brought::AsClaimed);
    let first = NOW + STALL_WARN / 8;
    assert_eq!(ranks[1].poll_timeout(NOW), Some(first));
    assert_eq!(ranks[1].handle_timeout(first), Ok(()));
    assert!(ranks[1].take_urgency(), "a leader that waits for nothing itself hears of it");
    assert_eq!(ranks[1].poll_timeout(first), Some(first + STALL_WARN / 8));
    assert_eq!(ranks[1].handle_timeout(late), Ok(()));
    assert_eq!(ranks[1].handle_timeout(late + LEADER_PATIENCE), Err(Breakage::Stuck(0)));
    settle(&mut ranks);
    let [Act::End { error: Error::Stalled { missing, waited, .. }, .. }] = &acts(&mut ranks[1])[..] else {
        panic!("the leader answers")
    };
    assert_eq!((missing.as_slice(), *waited), ([WorkerId(0)].as_slice(), Duration::from_secs(5)));
}

#[test]
fn the_leader_has_its_time_to_answer_a_rank_that_gives_up_when_it_is_overdue() {
    let mut ranks = machine(2);
    let late = NOW + Duration::from_secs(5);
    ranks[1].handle_wish(NOW, all_reduce(1), 1, Brought::AsClaimed);
    ranks[1].handle_abandoned(late, all_reduce(1).slot());
    assert_eq!(ranks[1].handle_timeout(late), Ok(()));
    assert_eq!(ranks[1].handle_timeout(late + LEADER_PATIENCE), Err(Breakage::Stuck(0)));
}

#[test]
fn a_breakage_ends_everything_now_and_later() {
    let mut ranks = machine(3);
    ranks[1].handle_wish(NOW, all_reduce(1), 1, Brought::AsClaimed);
    let lost = ranks[1].explain(Breakage::Lost(2));
    let declined = Declined { slot: all_reduce(3).slot(), members: Claim::ALL_RANKS };
    assert_eq!(ranks[1].fail(Some(lost.clone())), lost);
    ranks[1].handle_wish(NOW, all_reduce(2), 2, Brought::AsClaimed);
    assert_eq!(ranks[1].handle_declined(declined), Some(lost.clone()));
    let [Act::End { load: 1, error: first }, Act::End { load: 2, error: second }] = &acts(&mut ranks[1])[..] else {
        panic!("both end")
    };
    assert!(matches!(first, Error::PeerLost { member, .. } if member == "worker 2"));
    assert_eq!((first, second), (&lost, &lost));
}

#[test]
fn an_order_that_a_rank_did_not_ask_for_is_what_the_leader_is_blamed_for() {
    let mut ranks = machine(2);
    let decision = |bytes| {
        let claim = Claim { bytes, ..all_reduce(1).claim };
        vec![Decision::Run { slot: all_reduce(1).slot(), claim, failed: None, weights: vec![1.0; 2] }]
    };
    assert_eq!(ranks[1].obey(NOW, decision(8)), Err(Breakage::Confused(0)));
    ranks[1].handle_wish(NOW, all_reduce(1), 1, Brought::AsClaimed);
    assert_eq!(ranks[1].obey(NOW, decision(16)), Err(Breakage::Confused(0)), "of another length");
}

#[test]
fn when_the_leader_leaves_what_it_did_not_order_ends() {
    let mut ranks = machine(2);
    ranks[1].handle_wish(NOW, all_reduce(1), 1, Brought::AsClaimed);
    ranks[1].handle_left(0);
    assert!(ranks[1].has_orphans() && ranks[1].settle_orphans(NOW));
    let left = explain_left();
    assert!(
        matches!(&acts(&mut ranks[1])[..], [Act::End { error: Error::Stalled { detail, .. }, .. }] if *detail == left)
    );
    assert!(!ranks[1].has_orphans());
}

fn explain_left() -> Box<str> {
    let ranks = machine::<u64>(2).remove(0).party.ranks;
    let error =
        crate::collective::explain::explain(&ranks, all_reduce(1).slot(), Failure::Left { missing: 1 }, Duration::ZERO);
    let Error::Stalled { detail, .. } = error else { panic!("{error}") };
    detail
}

/// Carries every announcement to the leader and every decision to all.
fn settle(ranks: &mut [Agreement<u64>]) {
    for rank in 1..ranks.len() {
        while let Some(announcement) = ranks[rank].unsaid() {
            ranks[rank].said();
            ranks[0].hear(NOW, rank, announcement).unwrap();
        }
    }
    ranks[0].weigh(NOW);
    let room = QueueSpace::beside(0, 0, 1);
    while ranks[0].may_lead(room) {
        let decisions = ranks[0].lead(64, room);
        for rank in &mut *ranks {
            assert_eq!(rank.obey(NOW, decisions.clone()), Ok(()));
            // What it has to begin is looked at later.
            rank.handle_host_ended();
        }
    }
}

#[test]
fn ranks_that_part_do_what_all_were_ready_for_and_give_the_rest_back() {
    let mut ranks = machine_that(3, true);
    for (rank, part) in [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2)] {
        ranks[rank].handle_wish(NOW, all_reduce(part), part, Brought::AsClaimed);
    }
    ranks[1].handle_parting(parted());
    settle(&mut ranks);
    assert!(matches!(acts(&mut ranks[1])[..], [Act::Run { load: Some(1), .. }]), "the leader decides when they part");
    ranks[0].handle_parting(parted());
    settle(&mut ranks);
    let done: Vec<_> = ranks.iter_mut().map(acts).collect();
    assert!(matches!(done[0][..], [Act::Run { load: Some(1), .. }, Act::Return { load: 2, .. }]), "{done:?}");
    assert!(matches!(done[1][..], [Act::Return { load: 2, .. }]), "{done:?}");
    assert!(matches!(done[2][..], [Act::Run { load: Some(1), .. }]), "{done:?}");
    for rank in &mut ranks {
        rank.handle_wish(NOW, all_reduce(3), 3, Brought::AsClaimed);
        assert!(matches!(acts(rank)[..], [Act::Return { load: 3, .. }]), "nothing begins any more");
        assert_eq!(rank.poll_timeout(NOW), None);
    }
    settle(&mut ranks);
    assert!(!ranks[0].may_lead(QueueSpace::beside(0, 0, 1)), "there is nothing after that");
}

#[test]
fn if_the_job_goes_on_without_a_rank_that_leaves_the_others_part() {
    for leaver in [0, 1] {
        let mut ranks = machine_that(3, true);
        ranks[2].handle_wish(NOW, all_reduce(1), 1, Brought::AsClaimed);
        settle(&mut ranks);
        match leaver {
            // A leader that has left orders nothing any more.
            0 => (1..3).for_each(|rank| ranks[rank].handle_left(0)),
            _ => ranks[0].handle_left(leaver),
        }
        settle(&mut ranks);
        ranks[2].settle_orphans(NOW);
        let done = acts(&mut ranks[2]);
        let [Act::Return { load: 1, why }] = &done[..] else { panic!("{done:?}") };
        let who = if leaver == 0 { "worker 0 on " } else { "one of them left" };
        assert!(why.to_string().contains(who), "{why}");
        // Also the rank that waits for nothing: its threads must learn that nothing happens here any more.
        ranks[1].settle_orphans(NOW);
        assert!(leaver == 1 || ranks[1].has_parted() && !ranks[1].has_orphans());
    }
}

#[test]
fn what_comes_from_a_rank_that_is_gone_or_goes_to_it_names_it() {
    let mut ranks = machine_that(2, true);
    let gone = WorkerId(2);
    let broadcast = Claim { op: Op::Broadcast { root: gone }, ..all_reduce(1).claim };
    let wishes =
        [Wish { claim: broadcast, ..all_reduce(1) }, Wish { goal: Goal::Deliver { receiver: gone }, ..all_reduce(2) }];
    for (wish, load) in wishes.into_iter().zip(1..) {
        ranks[0].handle_wish(NOW, wish, load, Brought::AsClaimed);
    }
    let lost = |part| Error::RootLost { tensor: TensorKey(part).into(), root: gone.to_string() };
    let done = acts(&mut ranks[0]);
    let ended = |act: &Act<u64>| match act {
        Act::End { load, error } => (*load, error.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(done.iter().map(ended).collect::<Vec<_>>(), [1, 2].map(|part| (part, lost(part))));
}

#[test]
fn what_fails_while_ranks_part_fails_and_does_not_come_back() {
    let mut ranks = machine_that(2, true);
    ranks[1].handle_wish(NOW, all_reduce(1), 1, Brought::AsClaimed);
    ranks[1].handle_parting(parted());
    // The leader died before it said what it has ordered.
    let lost = ranks[1].explain(Breakage::Lost(0));
    assert_eq!(ranks[1].fail(Some(lost.clone())), lost);
    let done = acts(&mut ranks[1]);
    assert!(matches!(&done[..], [Act::End { load: 1, error }] if *error == lost), "{done:?}");
}

fn parted() -> Error {
    Error::Unavailable { what: "the sum".to_owned(), cause: "others meet".to_owned() }
}

fn acts(rank: &mut Agreement<u64>) -> Vec<Act<u64>> {
    let next = || {
        rank.handle_host_ended();
        rank.next_act()
    };
    std::iter::from_fn(next).collect()
}

fn machine<L>(ranks: u32) -> Vec<Agreement<L>> {
    machine_that(ranks, false)
}

/// A machine of a job that goes on when one of its ranks leaves, or does not.
fn machine_that<L>(ranks: u32, goes_on: bool) -> Vec<Agreement<L>> {
    let local = |rank| LocalRank {
        rank: WorkerId(rank),
        incarnation: Incarnation(u128::from(rank)),
        name: format!("worker {rank}"),
        place: String::new(),
        socket_path: String::new(),
    };
    let party = |me| Party {
        ranks: (0..ranks).map(local).collect(),
        me,
        group: (0..ranks as usize).collect(),
        step_timeout: Duration::from_secs(5),
        stall_warn: STALL_WARN,
        oldest_every: 0,
        goes_on,
        defect: None,
    };
    (0..ranks as usize).map(|me| Agreement::new(party(me))).collect()
}

fn all_reduce(part: u64) -> Wish {
    let part = PartId { key: TensorKey(part), index: 0 };
    let claim = Claim { bytes: 8, priority: Priority(-(part.key.0 as i32)), ..Claim::SUM };
    Wish { part, round: Round(0), goal: Goal::AllReduce, failure: None, claim }
}
