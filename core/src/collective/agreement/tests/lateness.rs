//! Who comes last to an operation, and for how long the others wait for that rank alone.

use super::*;
use crate::random::Random;
use crate::types::{Cause, Wait, Waited};

#[test]
fn the_last_rank_is_late_for_as_long_as_only_it_was_missing() {
    // When each rank is ready for one operation; the last one, and for how long only it was missing.
    for (came, expected) in [([0, 2, 9], (2, 7)), ([0, 9, 2], (1, 7)), ([9, 0, 2], (0, 7)), ([0, 9, 9], (2, 0))] {
        for listens in [true, false] {
            let mut machine = Machine::of(3);
            let mut wishes: Vec<(u64, usize)> = came.into_iter().zip(0..).collect();
            wishes.sort_unstable();
            for (at, rank) in wishes {
                machine.wish(at, rank, all_reduce(1));
                if listens {
                    machine.hear(at);
                }
            }
            // A leader that waits for nothing sleeps. It hears of the others once it comes itself.
            machine.hear(9);
            assert_eq!(machine.lasts(), [(expected.0, expected.1, true)], "{came:?}, the leader listens: {listens}");
        }
    }
}

#[test]
fn time_in_which_several_operations_wait_for_a_rank_counts_once() {
    for late in [0, 1] {
        let mut machine = Machine::of(2);
        for part in [1, 2, 3] {
            machine.wish(part, 1 - late, all_reduce(part));
        }
        for part in [1, 2, 3] {
            machine.wish(70 + part, late, all_reduce(part));
        }
        machine.hear(74);
        let late = late as u32;
        assert_eq!(machine.lasts(), [(late, 70, true), (late, 1, false), (late, 1, false)], "rank {late}");
    }
}

#[test]
fn what_the_part_waited_for_on_its_rank_is_no_late_submission() {
    let mut machine = Machine::of(2);
    machine.wish(0, 0, all_reduce(1));
    let waited = Waited { queue: Wait::of(millis(3)), device: Wait::MAX, ..Waited::default() };
    let wish = all_reduce(1);
    let ready = Ready { waited, ..wish.claim.ready };
    machine.wish(10, 1, Wish { claim: Claim { ready, ..wish.claim }, ..wish });
    machine.hear(10);
    let late = machine.ranks[0].next_last().unwrap().late;
    assert_eq!([Cause::Submit, Cause::Device, Cause::Queue].map(|cause| late[cause as usize]), [0, 7, 3].map(millis));
}

#[test]
fn a_rank_knows_how_long_it_has_waited_for_the_others() {
    let mut machine = Machine::of(2);
    machine.wish(2, 0, all_reduce(1));
    machine.wish(9, 1, all_reduce(1));
    machine.hear(9);
    let decisions = machine.ranks[0].lead(64, QueueSpace::beside(0, 0, 1));
    let waited = machine.ranks.iter_mut().map(|rank| {
        rank.obey(Time::ZERO + millis(10), decisions.clone()).unwrap();
        match acts(rank).pop() {
            Some(Act::Run { goal: Goal::AllReduce, waited, .. }) => waited,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(waited.collect::<Vec<_>>(), [8, 1].map(millis));
}

#[test]
fn whatever_its_clock_shows_a_rank_came_after_the_leader_looked_last() {
    // What the clock of rank 1 shows, and for how long rank 2 was missing alone, which comes at 9. The leader looks at 5.
    for (shown, late) in [(0, 4), (4, 4), (5, 4), (6, 3), (9, 0), (7_000, 0)] {
        let mut machine = Machine::of(3);
        machine.wish(3, 0, all_reduce(1));
        machine.hear(5);
        machine.wish(shown, 1, all_reduce(1));
        machine.wish(9, 2, all_reduce(1));
        machine.hear(9);
        assert_eq!(machine.lasts(), [(2, late, true)], "it shows {shown}");
    }
}

#[test]
fn nobody_is_last_where_no_contributions_are_added_or_none_is_there() {
    let mut machine = Machine::of(2);
    let brought = Wish { goal: Goal::Broadcast { owner: WorkerId(1) }, ..all_reduce(1) };
    let failed = Wish { failure: Some(Error::Cancelled), ..all_reduce(2) };
    let alone = Wish { claim: Claim { members: 0b01, ..all_reduce(3).claim }, ..all_reduce(3) };
    machine.wish(0, 0, brought.clone());
    machine.wish(0, 0, all_reduce(2));
    machine.wish(0, 0, alone);
    machine.wish(9, 1, brought);
    machine.wish(9, 1, failed);
    machine.hear(9);
    assert_eq!(machine.lasts(), []);
}

#[test]
fn no_rank_is_blamed_for_more_than_the_time_in_which_only_it_was_missing() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (ranks, parts) = (2 + random.below(3), 1 + random.below(4));
        let mut machine = Machine::of(ranks as u32);
        // When each rank is ready for each part, in an order of its own.
        let mut wishes: Vec<(u64, usize, u64)> = Vec::new();
        for rank in 0..ranks {
            wishes.extend((1..=parts).map(|part| (random.below(100), rank as usize, part)));
        }
        wishes.sort_unstable();
        let mut alone = vec![BTreeSet::new(); ranks as usize];
        for part in 1..=parts {
            let came: Vec<_> = wishes.iter().filter(|(.., of)| *of == part).collect();
            let [.., (since, ..), (until, last, _)] = came[..] else { panic!("two ranks at least") };
            alone[*last].extend(*since..*until);
        }
        for (at, rank, part) in wishes {
            machine.wish(at, rank, all_reduce(part));
            if random.below(3) == 0 {
                machine.hear(at);
            }
        }
        machine.hear(100);
        let lasts = machine.lasts();
        assert_eq!(lasts.len() as u64, parts, "seed {seed}");
        for (rank, alone) in (0..).zip(&alone) {
            let late: u64 = lasts.iter().filter(|(last, ..)| *last == rank).map(|(_, late, _)| late).sum();
            assert!(late <= alone.len() as u64, "seed {seed}, rank {rank}: {late} of {alone:?}");
            let is_exact = parts > 1 || late == alone.len() as u64;
            assert!(is_exact, "seed {seed}, rank {rank}: {late} of {alone:?}");
        }
    }
}

/// Ranks whose leader hears of the others when it is told to.
struct Machine {
    ranks: Vec<Agreement<u64>>,
}

impl Machine {
    fn of(ranks: u32) -> Self {
        let mut machine = Self { ranks: machine(ranks) };
        machine.hear(0);
        machine
    }

    /// A rank is ready for an operation at this millisecond.
    fn wish(&mut self, at: u64, rank: usize, wish: Wish) {
        self.ranks[rank].handle_wish(Time::ZERO + millis(at), wish, 1, Brought::AsClaimed);
    }

    /// The leader reads the announcements of the others.
    fn hear(&mut self, at: u64) {
        let now = Time::ZERO + millis(at);
        for rank in 1..self.ranks.len() {
            while let Some(announcement) = self.ranks[rank].unsaid() {
                self.ranks[rank].said();
                self.ranks[0].hear(now, rank, announcement).unwrap();
            }
        }
        self.ranks[0].weigh(now);
    }

    /// Who came last, for how many milliseconds only that rank was missing, and whether it is a further step.
    fn lasts(&mut self) -> Vec<(u32, u64, bool)> {
        let next = || self.ranks[0].next_last();
        let of = |Last { rank, late, is_step }: Last| {
            let late: Duration = late.iter().sum();
            (rank.0, late.as_micros() as u64 / 1024, is_step)
        };
        std::iter::from_fn(next).map(of).collect()
    }
}

/// 1024 us, so that the waits of a few of them are exact.
fn millis(count: u64) -> Duration {
    Duration::from_micros(1024 * count)
}
