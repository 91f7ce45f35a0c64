//! A rank is lost while operations are under way, in a job that goes on: the others end each of them, or none of them does.

use super::*;

/// What became of the operations of one rank, by part.
type Outcomes = Vec<std::result::Result<(), Unmet>>;

/// The elements of part `part`, so that the number of chunks goes from one to many.
fn len(part: usize, ranks: usize) -> usize {
    let chunk = layout::Layout::new(ranks).chunk() / 4;
    [1, 700, chunk, 3 * chunk + 5, 9 * chunk + 33][part % 5]
}

fn contribution(rank: usize, part: usize, ranks: usize) -> Vec<i32> {
    (0..len(part, ranks)).map(|index| digit(rank, index + part)).collect()
}

fn sum(of: &[usize], part: usize, ranks: usize) -> Vec<i32> {
    (0..len(part, ranks)).map(|index| of.iter().map(|rank| digit(*rank, index + part)).sum()).collect()
}

/// Runs these parts on one rank, each into memory of its own; what became of them, and the memory. `stop` says after how many it is lost.
fn run(member: &Member, rank: usize, parts: &[usize], ranks: usize, stop: Option<usize>) -> (Outcomes, Vec<Vec<i32>>) {
    let mut sources: Vec<Vec<i32>> = parts.iter().map(|part| contribution(rank, *part, ranks)).collect();
    let mut results: Vec<Vec<i32>> = parts.iter().map(|part| vec![0; len(*part, ranks)]).collect();
    let (sender, ended) = mpsc::channel();
    for (place, (source, result)) in sources.iter_mut().zip(&mut results).enumerate() {
        let part = parts[place];
        let root = Op::Broadcast { root: WorkerId((part % ranks) as u32) };
        let op = if part.is_multiple_of(7) { root } else { Op::Sum };
        let memory = Memory::Host { source: vec![region(source)], destination: vec![region(result)] };
        let operation = Operation { memory, ..member.operation(slot(part as u64, 0), op, 1.0, &mut source.clone()) };
        let sender = sender.clone();
        member.0.run(operation, Done::new(move |outcome| sender.send((place, outcome.map(drop))).unwrap()));
    }
    let mut outcomes: Vec<Option<std::result::Result<(), Unmet>>> = vec![None; parts.len()];
    for count in 0..parts.len() {
        if stop == Some(count) {
            // It breaks off, and goes on all the same: the others must find nothing of what it does from now on.
            member.0.core.watch.leave(false);
        }
        let (place, outcome) = ended.recv_timeout(PATIENCE).unwrap();
        outcomes[place] = Some(outcome);
    }
    for (source, part) in sources.iter().zip(parts) {
        assert_eq!(*source, contribution(rank, *part, ranks), "a contribution stays as it was");
    }
    (outcomes.into_iter().map(|outcome| outcome.expect("all have ended")).collect(), results)
}

fn is_broadcast_from(part: usize, rank: usize, ranks: usize) -> bool {
    part.is_multiple_of(7) && part % ranks == rank
}

#[test]
fn when_a_rank_is_lost_the_others_end_an_operation_all_or_none_and_do_the_rest_without_it() {
    let parts: Vec<usize> = (0..60).collect();
    let mut ended_and_not = [0, 0];
    for turn in 0..36 {
        let (ranks, lost) = (3, turn % 3);
        let again = Again::of(ranks);
        let first = again.meet(&[0, 1, 2], false);
        let stop = turn / 3 * 5;
        let ended: Vec<(Outcomes, Vec<Vec<i32>>)> = std::thread::scope(|scope| {
            let of = |(rank, member)| {
                let parts = &parts;
                let stop = if rank == lost { Some(stop) } else { None };
                scope.spawn(move || run(member, rank, parts, ranks, stop))
            };
            let running: Vec<_> = first.iter().enumerate().map(of).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let stay: Vec<usize> = (0..ranks).filter(|rank| *rank != lost).collect();
        let mut left = Vec::new();
        for part in &parts {
            let outcomes: Vec<_> = stay.iter().map(|rank| &ended[*rank].0[*part]).collect();
            let all = match part.is_multiple_of(7) {
                true => contribution(part % ranks, *part, ranks),
                false => sum(&[0, 1, 2], *part, ranks),
            };
            match outcomes.as_slice() {
                [Ok(()), Ok(())] => {
                    ended_and_not[0] += 1;
                    assert!(stay.iter().all(|rank| ended[*rank].1[*part] == all), "turn {turn}, part {part}");
                }
                [Err(Unmet::NotBegun(_)), Err(Unmet::NotBegun(_))] => left.push(*part),
                other => panic!("turn {turn}, part {part}: {other:?}"),
            }
        }
        ended_and_not[1] += left.len();
        let lives: Vec<Incarnation> = stay.iter().map(|rank| local_rank(*rank, "").incarnation).collect();
        stay.iter().for_each(|rank| first[*rank].0.part(why(), &lives, PATIENCE));
        left.retain(|part| !is_broadcast_from(*part, lost, ranks));
        let second = again.meet(&stay, true);
        std::thread::scope(|scope| {
            for (member, rank) in second.iter().zip(&stay) {
                let (left, stay) = (&left, &stay);
                scope.spawn(move || {
                    let (outcomes, results) = run(member, *rank, left, ranks, None);
                    assert!(outcomes.iter().all(std::result::Result::is_ok), "{outcomes:?}");
                    for (part, result) in left.iter().zip(results) {
                        let expected = match part.is_multiple_of(7) {
                            true => contribution(part % ranks, *part, ranks),
                            false => sum(stay, *part, ranks),
                        };
                        assert_eq!(result, expected, "turn {turn}, part {part}");
                    }
                });
            }
        });
    }
    assert!(ended_and_not.iter().all(|count| *count > 100), "both must be seen: {ended_and_not:?}");
}

#[test]
fn a_rank_that_does_nothing_any_more_is_given_up_once_the_others_hear_that_it_is_not_in_the_job() {
    let again = Again::of(3);
    let first = again.meet(&[0, 1, 2], false);
    let mut data = [[0; 9], [1; 9], [2; 9]];
    let (sender, ended) = mpsc::channel();
    let mut begin = |rank: usize| {
        let sender = sender.clone();
        let operation = first[rank].operation(slot(1, 0), Op::Sum, 1.0, &mut data[rank]);
        first[rank].0.run(operation, Done::new(move |outcome| drop(sender.send((rank, outcome)))));
    };
    // It says that it is ready, and does nothing more.
    begin(2);
    let seat = loop {
        // Its own thread is about to leave it.
        if let Some(seat) = first[2].0.core.seat.sit_down() {
            break seat;
        }
        std::thread::yield_now();
    };
    [0, 1].into_iter().for_each(begin);
    let lives: Vec<Incarnation> = [0, 1].map(|rank| local_rank(rank, "").incarnation).to_vec();
    std::thread::scope(|scope| {
        for rank in [0, 1] {
            let (member, lives) = (&first[rank], &lives);
            scope.spawn(move || member.0.part(why(), lives, PATIENCE));
        }
    });
    for _ in 0..2 {
        let (rank, outcome) = ended.recv_timeout(PATIENCE).unwrap();
        assert!(rank < 2 && matches!(outcome, Err(Unmet::NotBegun(_))), "{rank}: {outcome:?}");
    }
    drop(seat);
}
