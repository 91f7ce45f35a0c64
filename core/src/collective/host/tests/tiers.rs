//! Parts that are reduced to one rank, and brought back by it.

use super::*;

#[test]
fn what_is_reduced_to_one_rank_goes_to_no_other() {
    for ranks in [2, 3, 4] {
        let machine = Machine::of(ranks);
        let chunk = layout::Layout::new(ranks).chunk() / 4;
        for (part, len) in (0..).zip([0, 1, 17, 1000, chunk + 1, 9 * chunk + 33]) {
            let owner = part as usize % ranks;
            let found = machine.each(|rank, collective| {
                let mut data: Vec<i32> = (0..len).map(|index| digit(rank, index)).collect();
                collective.tier(part, Op::Sum, 1.0, reduce(owner), &mut data).unwrap();
                data
            });
            for (rank, found) in found.into_iter().enumerate() {
                let of = |index| {
                    if rank == owner { (0..ranks).map(|rank| digit(rank, index)).sum() } else { digit(rank, index) }
                };
                assert_eq!(found, (0..len).map(of).collect::<Vec<i32>>(), "{ranks} ranks, {len} elements, rank {rank}");
            }
        }
    }
}

#[test]
fn what_one_rank_has_every_reduction_can_go_on_with() {
    let machine = Machine::of(3);
    let values = [8.0_f32, -16.0, 24.0];
    let weights = [1.0, 0.0, 3.0];
    // The mean is divided once all machines are in it; the weighted mean of a machine counts as much as its ranks together.
    let table = [
        (Op::Sum, 16.0, 4.0),
        (Op::Mean, 16.0, 4.0),
        (Op::Min, -16.0, 4.0),
        (Op::Max, 24.0, 4.0),
        (Op::WeightedMean, 20.0, 4.0),
        (Op::Broadcast { root: WorkerId(0) }, 8.0, 4.0),
        (Op::Broadcast { root: WorkerId(1) }, -16.0, 4.0),
        // A rank of another machine: nothing changes here.
        (Op::Broadcast { root: WorkerId(9) }, -16.0, 4.0),
    ];
    for (part, (op, expected, weight)) in (0..).zip(table) {
        let results = machine.each(|rank, collective| {
            let mut data = vec![values[rank]; 300_000];
            let total = collective.tier(part, op, weights[rank], reduce(1), &mut data).unwrap();
            (data, total)
        });
        assert!(results.iter().all(|(_, total)| *total == weight), "{op}");
        assert!(results[1].0.iter().all(|found| *found == expected), "{op}");
    }
}

#[test]
fn a_machine_without_weight_has_nothing_to_divide_by() {
    let machine = Machine::of(2);
    let results = machine.each(|_, collective| {
        let mut data = vec![3.0_f32; 10];
        (collective.tier(1, Op::WeightedMean, 0.0, reduce(0), &mut data), data)
    });
    assert_eq!(results[0], (Ok(0.0), vec![0.0; 10]), "and adds nothing");
}

#[test]
fn what_the_owner_has_all_others_get() {
    let machine = Machine::of(3);
    for (part, len) in (0..).zip([0, 1, 1000, 300_000]) {
        let found = machine.each(|rank, collective| {
            let mut data = vec![rank as f32; len];
            collective.tier(part, Op::Sum, 1.0, broadcast(2), &mut data).unwrap();
            data
        });
        assert!(found.iter().all(|data| *data == vec![2.0; len]), "{len} elements");
    }
}

#[test]
fn what_some_ranks_hold_is_added_with_the_help_of_all_and_goes_to_those_who_want_it() {
    let machine = Machine::of(4);
    let holders = [1, 3];
    let values = [0.0_f32, 8.0, 0.0, 24.0];
    // What comes of it for all holders, and what for one who goes on with it. Only who holds something counts.
    let table = [
        (Op::Sum, 32.0, 32.0),
        (Op::Mean, 8.0, 32.0),
        (Op::Min, 8.0, 8.0),
        (Op::Max, 24.0, 24.0),
        (Op::WeightedMean, 20.0, 20.0),
        (Op::Broadcast { root: WorkerId(2) }, 24.0, 24.0),
    ];
    for (part, (op, for_all, for_one)) in (0..).zip(table) {
        for (part, taker, expected) in [(2 * part, None, for_all), (2 * part + 1, Some(1), for_one)] {
            let results = machine.each(|rank, collective| {
                let mut data = vec![values[rank]; if holders.contains(&rank) { 300_000 } else { 0 }];
                let total = collective.join(part, op, [9.0, 1.0, 9.0, 3.0][rank], taker, &mut data).unwrap();
                (data, total)
            });
            for (rank, (data, total)) in results.iter().enumerate() {
                let takes = holders.contains(&rank) && taker.is_none_or(|taker| taker as usize == rank);
                let expected = if takes { expected } else { values[rank] };
                assert!(data.iter().all(|found| *found == expected), "{op} at {rank}: {}", data[0]);
                assert!(*total == 4.0 || op != Op::WeightedMean, "{total}");
            }
        }
    }
    let shared = machine.each(|rank, collective| {
        let mut data = vec![rank as f32; if holders.contains(&rank) { 300_000 } else { 0 }];
        let operation =
            collective.some_memory((100, 300_000), Op::Sum, 1.0, Goal::Share { owner: WorkerId(3) }, &mut data);
        collective.run(operation).unwrap();
        data
    });
    assert_eq!(shared, [vec![], vec![3.0; 300_000], vec![], vec![3.0; 300_000]]);
}

#[test]
fn why_a_holder_has_nothing_everybody_hears() {
    let machine = Machine::of(3);
    let failure =
        Error::Exhausted { what: "memory of the host".to_owned(), limit: "8 B".to_owned(), hint: String::new() };
    let errors = machine.each(|rank, collective| {
        let mut data = vec![1.0_f32; if rank == 2 { 0 } else { 1000 }];
        let goal = joined(&[0, 1], None);
        let operation = collective.some_memory((1, 1000), Op::Sum, 1.0, goal, &mut data);
        collective.run(Operation { failure: (rank == 1).then(|| failure.clone()), ..operation }).unwrap_err()
    });
    assert_eq!(errors, vec![failure; 3]);
    let refused = machine.each(|_, collective| {
        let goal = joined(&[0, 1], None);
        let operation = collective.some_memory((2, 1000), Op::Sum, 1.0, goal, &mut []);
        collective.run(Operation { failure: Some(Error::Cancelled), ..operation })
    });
    assert_eq!(refused, vec![Err(Error::Cancelled); 3], "all of them have one: the first is told");
}

#[test]
fn why_the_owner_has_nothing_all_others_hear_and_the_next_part_is_not_disturbed() {
    let machine = Machine::of(3);
    let long = "x".repeat(4000);
    let missing: Vec<WorkerId> = (0..4000).map(WorkerId).collect();
    let stalled = |missing| Error::Stalled {
        tensor: "w".into(),
        round: Round(3),
        missing,
        waited: PATIENCE,
        notice: Box::default(),
        detail: long.as_str().into(),
    };
    for (part, error) in (0..).zip([Error::Cancelled, stalled(vec![WorkerId(7)]), stalled(missing)]) {
        let errors = machine.each(|rank, collective| {
            let failure = (rank == 1).then(|| error.clone());
            let mut data = vec![rank as f32; 1_000_000];
            let operation = collective.tier_operation(part, Op::Sum, 1.0, broadcast(1), &mut data);
            let heard = collective.run(Operation { failure, ..operation }).unwrap_err();
            assert!(data.iter().all(|value| *value == rank as f32), "nothing was written");
            heard
        });
        assert_eq!(errors, vec![error; 3]);
        let sums = machine.each(|_, collective| {
            let mut data = vec![1_i32; 300_000];
            collective.reduce(slot(part, 1), Op::Sum, 1.0, &mut data).unwrap();
            data
        });
        assert!(sums.iter().flatten().all(|sum| *sum == 3));
    }
}

#[test]
fn whoever_gives_up_what_the_owner_brings_is_free_at_once_and_disturbs_nobody() {
    let machine = Machine::of(3);
    for giver in [0, 2] {
        let part = giver as u64;
        let mut data = vec![7_i32; 100_000];
        let (sender, ended) = mpsc::channel();
        let member = &machine.0[giver];
        let operation = member.tier_operation(part, Op::Sum, 1.0, broadcast(1), &mut data);
        let slot = operation.slot();
        member.0.run(operation, Done::new(move |outcome| sender.send(outcome.map_err(Unmet::into_error)).unwrap()));
        member.0.abandon(slot);
        assert_eq!(ended.recv_timeout(PATIENCE).unwrap(), Err(Error::Cancelled), "nobody else has come");
        let others = machine.each(|rank, collective| {
            let mut data = vec![rank as i32; 100_000];
            (rank != giver).then(|| collective.tier(part, Op::Sum, 1.0, broadcast(1), &mut data).map(|_| data))
        });
        assert!(others.into_iter().flatten().all(|data| data.unwrap() == vec![1; 100_000]));
        assert!(data.iter().all(|value| *value == 7));
    }
}

#[test]
fn an_owner_that_gives_up_takes_it_from_all() {
    let machine = Machine::of(3);
    let (mut given_up, mut waited_for) = (vec![7_i32; 8], [vec![1_i32; 8], vec![1; 8]]);
    let (sender, ended) = mpsc::channel();
    let begin = |rank: usize, data: &mut [i32]| {
        let (sender, collective) = (sender.clone(), &machine.0[rank]);
        let operation = collective.tier_operation(1, Op::Sum, 1.0, broadcast(0), data);
        let slot = operation.slot();
        collective
            .0
            .run(operation, Done::new(move |outcome| sender.send((rank, outcome.map_err(Unmet::into_error))).unwrap()));
        slot
    };
    begin(1, &mut waited_for[0]);
    let slot = begin(0, &mut given_up);
    machine.0[0].0.abandon(slot);
    begin(2, &mut waited_for[1]);
    for _ in 0..3 {
        let (rank, outcome) = ended.recv_timeout(PATIENCE).unwrap();
        let error = outcome.unwrap_err();
        match rank {
            0 => assert_eq!(error, Error::Cancelled),
            _ => assert!(matches!(&error, Error::Stalled { missing, .. } if *missing == [WorkerId(0)]), "{error}"),
        }
    }
}

#[test]
fn who_waits_for_the_owner_waits_as_long_as_it_takes_and_who_does_not_come_is_named() {
    let machine = Machine::of(3);
    let (sender, ended) = mpsc::channel();
    let mut data = [[1_i32; 8]; 3];
    let [first, second, third] = &mut data;
    let begin = |rank: usize, data: &mut [i32; 8]| {
        let (sender, collective) = (sender.clone(), &machine.0[rank]);
        let operation = collective.tier_operation(1, Op::Sum, 1.0, broadcast(1), data);
        collective
            .0
            .run(operation, Done::new(move |outcome| sender.send((rank, outcome.map_err(Unmet::into_error))).unwrap()));
    };
    begin(0, first);
    machine.later(2 * PATIENCE);
    assert!(ended.try_recv().is_err(), "its exchange has deadlines of its own");
    begin(1, second);
    machine.later(2 * PATIENCE);
    for _ in 0..2 {
        let (rank, outcome) = ended.recv_timeout(PATIENCE).unwrap();
        let error = outcome.unwrap_err();
        assert!(matches!(&error, Error::Stalled { missing, .. } if *missing == [WorkerId(2)]), "{rank}: {error}");
    }
    begin(2, third);
    assert!(ended.recv_timeout(PATIENCE).unwrap().1.is_err(), "also who comes too late");
}

fn reduce(owner: usize) -> Goal {
    Goal::Reduce { owner: WorkerId(owner as u32) }
}

/// The holders of these groups add up what they have.
fn joined(holders: &[u32], taker: Option<u32>) -> Goal {
    let holders: Vec<WorkerId> = holders.iter().copied().map(WorkerId).collect();
    Goal::Join { origin: holders.last().copied(), holders, taker: taker.map(WorkerId) }
}

fn broadcast(owner: usize) -> Goal {
    Goal::Broadcast { owner: WorkerId(owner as u32) }
}

impl Member {
    fn tier<T: Number>(&self, part: u64, op: Op, weight: f64, goal: Goal, data: &mut [T]) -> Result<f64> {
        self.run(self.tier_operation(part, op, weight, goal, data))
    }

    fn tier_operation<T: Number>(&self, part: u64, op: Op, weight: f64, goal: Goal, data: &mut [T]) -> Operation {
        Operation { goal, ..self.operation(slot(part, 0), op, weight, data) }
    }

    /// Adds up what the ranks 1 and 3 hold, 300,000 floats; the others only look on.
    fn join(&self, part: u64, op: Op, weight: f64, taker: Option<u32>, data: &mut [f32]) -> Result<f64> {
        self.run(self.some_memory((part, 300_000), op, weight, joined(&[1, 3], taker), data))
    }

    /// An operation on so many floats, to which this rank brings `data`, or nothing.
    fn some_memory(&self, (part, len): (u64, u64), op: Op, weight: f64, goal: Goal, data: &mut [f32]) -> Operation {
        let looks_on = data.is_empty();
        let operation = self.tier_operation(part, op, weight, goal, data);
        let claim = Claim { bytes: 4 * len, ..operation.claim };
        let nothing = || Memory::Host { source: Vec::new(), destination: Vec::new() };
        Operation { claim, memory: if looks_on { nothing() } else { operation.memory }, ..operation }
    }
}
