use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use half::{bf16, f16};

use super::*;
use crate::collective::order::Claim;
use crate::collective::{Goal, LocalRank, Memory, Traffic};
use crate::config::NanCheck;
use crate::local::PrivateSocket;
use crate::mem::borrow::region_of;
use crate::mem::{Copies, Doubt, Region};
use crate::types::{DType, DeviceKind, Epoch, Finding, Incarnation, Op, PartId, Priority, Round, TensorKey, WorkerId};

mod devices;
mod lateness;
mod looks;
mod losses;
mod tiers;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn sums_are_exact_for_any_number_of_ranks_and_any_length() {
    for ranks in [2, 3, 4] {
        let machine = Machine::of(ranks);
        // Lengths around those of a slice, a chunk, and the chunks staged ahead. Also nothing, one element, and odd lengths.
        let chunk = layout::Layout::new(ranks).chunk() / 4;
        for (part, len) in (0..).zip([0, 1, 7, 15, 16, 17, 63, 1000, chunk - 1, chunk, chunk + 1, 9 * chunk + 33]) {
            let sums = machine.each(|rank, collective| {
                let mut data: Vec<i32> = (0..len).map(|index| digit(rank, index)).collect();
                collective.reduce(slot(part, 0), Op::Sum, 1.0, &mut data).unwrap();
                data
            });
            let expected: Vec<i32> = (0..len).map(|index| (0..ranks).map(|rank| digit(rank, index)).sum()).collect();
            assert!(sums.iter().all(|sum| *sum == expected), "{ranks} ranks, {len} elements");
        }
    }
}

#[test]
fn every_type_is_summed_as_exactly_as_it_can_hold() {
    fn check<T: Number>(machine: &Machine, part: u64) {
        let sums = machine.each(|rank, collective| {
            let mut data: Vec<T> = (0..1001).map(|index| T::of(digit(rank, index))).collect();
            collective.reduce(slot(part, 0), Op::Sum, 1.0, &mut data).unwrap();
            data
        });
        for sum in sums {
            for (index, found) in sum.into_iter().enumerate() {
                assert!(found == T::of((0..3).map(|rank| digit(rank, index)).sum()), "{} at {index}", T::DTYPE);
            }
        }
    }
    let machine = Machine::of(3);
    check::<f32>(&machine, 0);
    check::<f64>(&machine, 1);
    check::<f16>(&machine, 2);
    check::<bf16>(&machine, 3);
    check::<i32>(&machine, 4);
    check::<i64>(&machine, 5);
    check::<i8>(&machine, 6);
    check::<u8>(&machine, 7);
}

#[test]
fn every_reduction_means_what_it_says() {
    let machine = Machine::of(3);
    let values = [2.0_f32, -1.0, 8.0];
    let weights = [1.0, 0.0, 3.0];
    let table = [
        (Op::Sum, 9.0),
        (Op::Mean, 3.0),
        (Op::Min, -1.0),
        (Op::Max, 8.0),
        (Op::WeightedMean, 6.5),
        (Op::Broadcast { root: WorkerId(2) }, 8.0),
    ];
    for (part, (op, expected)) in (0..).zip(table) {
        let results = machine.each(|rank, collective| {
            // Long enough for several chunks.
            let mut data = vec![values[rank]; 300_000];
            collective.reduce(slot(part, 0), op, weights[rank], &mut data).unwrap();
            data
        });
        assert!(results.iter().flatten().all(|found| *found == expected), "{op}");
    }
}

#[test]
fn half_size_floats_are_rounded_once() {
    let machine = Machine::of(3);
    // In bf16, 256 + 1 is 256. In f32 the sum of the three is 258.
    let values = [256.0_f32, 1.0, 1.0].map(bf16::from_f32);
    let sums = machine.each(|rank, collective| {
        let mut data = vec![values[rank]; 5];
        collective.reduce(slot(0, 0), Op::Sum, 1.0, &mut data).unwrap();
        data
    });
    assert!(sums.iter().flatten().all(|sum| sum.to_f32() == 258.0), "{sums:?}");
}

#[test]
fn a_result_may_go_elsewhere_and_to_several_places() {
    let machine = Machine::of(2);
    let results = machine.each(|rank, collective| {
        let mut source = vec![digit(rank, 1); 1000];
        let (mut first, mut second) = (vec![0_i32; 333], vec![0_i32; 667]);
        let claim = Claim { bytes: 4000, ..claim(Op::Sum, DType::I32, 1.0) };
        let operation = Operation {
            part: slot(1, 0).0,
            round: Round(0),
            goal: Goal::AllReduce,
            failure: None,
            claim,
            memory: Memory::Host {
                source: vec![region(&mut source)],
                destination: vec![region(&mut first), region(&mut second)],
            },
            finding: Finding::default(),
        };
        collective.run(operation).unwrap();
        assert!(source.iter().all(|value| *value == digit(rank, 1)), "the contribution stays");
        [first, second].concat()
    });
    let expected = digit(0, 1) + digit(1, 1);
    assert!(results.iter().flatten().all(|value| *value == expected));
}

#[test]
fn many_parts_in_flight_are_reduced_whatever_the_order_in_which_ranks_come() {
    let machine = Machine::of(4);
    let parts = 2000_u64;
    machine.each(|rank, collective| {
        let mut data: Vec<Vec<i32>> = (0..parts).map(|part| vec![digit(rank, part as usize); 37]).collect();
        let (sender, ended) = mpsc::channel();
        for step in 0..parts {
            // Each rank has its own order. All of these factors are prime to the number of parts.
            let part = (step * [1, 3, 7, 1999][rank]) % parts;
            let sender = sender.clone();
            let operation = collective.operation(slot(part, 0), Op::Sum, 1.0, &mut data[part as usize]);
            collective
                .0
                .run(operation, Done::new(move |outcome| sender.send(outcome.map_err(Unmet::into_error)).unwrap()));
        }
        for _ in 0..parts {
            ended.recv_timeout(PATIENCE).unwrap().unwrap();
        }
        for (part, data) in data.iter().enumerate() {
            let expected: i32 = (0..4).map(|rank| digit(rank, part)).sum();
            assert!(data.iter().all(|value| *value == expected), "part {part}");
        }
    });
}

#[test]
fn ranks_that_disagree_all_learn_both_sides() {
    let machine = Machine::of(3);
    let errors = machine.each(|rank, collective| {
        let op = if rank == 1 { Op::Max } else { Op::Sum };
        collective.reduce(slot(1, 0), op, 1.0, &mut [1_i32; 8]).unwrap_err()
    });
    for error in errors {
        let Error::Mismatch { field, first, second, .. } = &error else { panic!("{error}") };
        assert_eq!(field, "op");
        let mut said = [(first.worker.0, first.value.as_str()), (second.worker.0, second.value.as_str())];
        said.sort_unstable();
        assert!(said.contains(&(1, "max")) && (said.contains(&(0, "sum")) || said.contains(&(2, "sum"))), "{error}");
    }
    let sums = machine.each(|_, collective| {
        let mut data = [1_i32; 8];
        collective.reduce(slot(1, 1), Op::Sum, 1.0, &mut data).unwrap();
        data
    });
    assert_eq!(sums, [[3; 8]; 3], "the next round is not disturbed");
}

#[test]
fn a_rank_that_comes_after_the_others_have_failed_is_told_at_once() {
    let machine = Machine::of(3);
    for round in 0..20 {
        let submit = |rank: usize, op: Op| {
            let (sender, ended) = mpsc::channel();
            let mut data = vec![1_i32; 8];
            let member = &machine.0[rank];
            let operation = member.operation(slot(1, round), op, 1.0, &mut data);
            member.0.run(operation, Done::new(move |outcome| sender.send((outcome, data)).unwrap()));
            // The answer comes before the sum is overdue.
            move || ended.recv_timeout(PATIENCE / 2).unwrap().0.unwrap_err().into_error()
        };
        let (first, second) = (submit(0, Op::Sum), submit(1, Op::Max));
        let errors = [first(), second(), submit(2, Op::Max)()];
        assert!(errors.iter().all(|error| matches!(error, Error::Mismatch { .. })), "{errors:?}");
    }
}

#[test]
fn whoever_does_not_come_is_named_in_time() {
    for absent in [0, 2] {
        let machine = Machine::of(3);
        let (sender, ended) = mpsc::channel();
        let mut data = [[1_i32; 8]; 3];
        for (rank, data) in data.iter_mut().enumerate().filter(|(rank, _)| *rank != absent) {
            let sender = sender.clone();
            let collective = &machine.0[rank];
            let operation = collective.operation(slot(1, 0), Op::Sum, 1.0, data);
            collective
                .0
                .run(operation, Done::new(move |outcome| sender.send(outcome.map_err(Unmet::into_error)).unwrap()));
        }
        // All ranks have announced. Now the time passes.
        machine.later(2 * PATIENCE);
        for _ in 0..2 {
            let error = ended.recv_timeout(PATIENCE).unwrap().unwrap_err();
            let Error::Stalled { missing, waited, .. } = &error else { panic!("{error}") };
            assert_eq!(missing, &[WorkerId(absent as u32)]);
            assert!(*waited >= PATIENCE, "{error}");
        }
    }
}

#[test]
fn a_rank_that_gives_up_is_named_and_its_memory_is_free() {
    let machine = Machine::of(2);
    let (mut given_up, mut waited_for) = (vec![7_i32; 8], vec![1_i32; 8]);
    let (sender, ended) = mpsc::channel();
    let first = &machine.0[1];
    let operation = first.operation(slot(1, 0), Op::Sum, 1.0, &mut given_up);
    first.0.run(operation, Done::new(move |outcome| sender.send(outcome.map_err(Unmet::into_error)).unwrap()));
    first.0.abandon(slot(1, 0));
    assert_eq!(ended.recv_timeout(PATIENCE).unwrap(), Err(Error::Cancelled));
    assert_eq!(given_up, [7; 8], "it belongs to its caller again");
    let error = machine.0[0].reduce(slot(1, 0), Op::Sum, 1.0, &mut waited_for).unwrap_err();
    assert!(matches!(&error, Error::Stalled { missing, .. } if *missing == [WorkerId(1)]), "{error}");
}

#[test]
fn whoever_leaves_in_order_disturbs_nothing_that_was_agreed() {
    for leaver in [0, 1] {
        let machine = Machine::of(2);
        let results = machine.each(|rank, collective| {
            let mut data = vec![1_i32; 100_000];
            let sum = collective.reduce(slot(1, 0), Op::Sum, 1.0, &mut data);
            if rank == leaver {
                collective.0.shutdown();
                return (sum, Ok(()));
            }
            (sum, collective.reduce(slot(1, 1), Op::Sum, 1.0, &mut data))
        });
        assert!(results.iter().all(|(sum, _)| sum.is_ok()), "{results:?}");
        let error = results[1 - leaver].1.as_ref().unwrap_err();
        assert!(matches!(error, Error::Stalled { missing, .. } if *missing == [WorkerId(leaver as u32)]), "{error}");
    }
}

#[test]
fn a_rank_whose_connection_breaks_is_lost_to_all() {
    for lost in [0, 2] {
        let machine = Machine::of(3);
        let errors = machine.each(|rank, collective| {
            if rank == lost {
                collective.0.core.watch.leave(false);
                return None;
            }
            Some(collective.reduce(slot(1, 0), Op::Sum, 1.0, &mut [1_i32; 8]).unwrap_err())
        });
        for error in errors.into_iter().flatten() {
            let Error::PeerLost { member, .. } = &error else { panic!("{error}") };
            assert_eq!(*member, format!("worker {lost}"));
        }
    }
}

#[test]
fn a_stranger_that_connects_is_refused_and_a_rank_that_does_not_come_is_named() {
    let listener = PrivateSocket::listen(&std::env::temp_dir()).unwrap();
    let path = listener.path();
    let options = |me, listener, job: &str| HostOptions {
        job: job.to_owned(),
        listener,
        join_timeout: Duration::from_millis(400),
        ..options(me, &[0, 1].map(|rank| local_rank(rank, path.to_str().unwrap())))
    };
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| HostCollective::join(options(0, Some(Arc::new(listener)), "job"), &|| None));
        let stranger = HostCollective::join(options(1, None, "another job"), &|| None);
        assert!(matches!(stranger, Err(Error::PeerLost { .. })), "{stranger:?}");
        let error = leader.join().unwrap().unwrap_err();
        assert!(matches!(&error, Error::NotFormed { missing, .. } if *missing == ["worker 1"]), "{error}");
    });
    assert!(!path.exists(), "no name is left");
}

/// Ranks that may meet again: all of them keep their sockets.
struct Again {
    sockets: Vec<Arc<PrivateSocket>>,
}

impl Again {
    fn of(ranks: usize) -> Self {
        let socket = |_| Arc::new(PrivateSocket::listen(&std::env::temp_dir()).unwrap());
        Self { sockets: (0..ranks).map(socket).collect() }
    }

    fn options(&self, rank: usize, of: &[usize], is_again: bool) -> HostOptions {
        let local = |rank: &usize| local_rank(*rank, self.sockets[*rank].path().to_str().unwrap());
        let listener = Some(Arc::clone(&self.sockets[rank]));
        let ranks: Vec<LocalRank> = of.iter().map(local).collect();
        HostOptions { listener, is_again, goes_on: true, ..options(rank, &ranks) }
    }

    fn meet(&self, ranks: &[usize], is_again: bool) -> Vec<Member> {
        meet(ranks, &|rank| self.options(rank, ranks, is_again))
    }
}

/// The lives of all ranks.
fn all() -> Vec<Incarnation> {
    (0..8).map(|rank| local_rank(rank, "").incarnation).collect()
}

fn why() -> Error {
    Error::Unavailable { what: "the sum".to_owned(), cause: "others meet".to_owned() }
}

#[test]
fn when_one_leaves_a_job_that_goes_on_what_nobody_has_begun_comes_back_and_the_others_meet_again() {
    for leaver in [0, 1, 2] {
        let again = Again::of(3);
        let first = again.meet(&[0, 1, 2], false);
        let stay: Vec<usize> = (0..3).filter(|rank| *rank != leaver).collect();
        let (sender, ended) = mpsc::channel();
        let mut data = [[0; 3], [1; 3], [2; 3]];
        for (rank, data) in data.iter_mut().enumerate().filter(|(rank, _)| *rank != leaver) {
            let (sender, operation) = (sender.clone(), first[rank].operation(slot(1, 0), Op::Sum, 1.0, data));
            first[rank].0.run(operation, Done::new(move |outcome| sender.send(outcome).unwrap()));
        }
        first[leaver].0.shutdown();
        for _ in 0..2 {
            let outcome = ended.recv_timeout(PATIENCE).unwrap();
            assert!(matches!(outcome, Err(Unmet::NotBegun(_))), "{leaver}: {outcome:?}");
        }
        assert_eq!(data, [[0; 3], [1; 3], [2; 3]], "no memory was written");
        // What comes before the others have met again comes back too.
        let (sender, ended) = mpsc::channel();
        let late = first[stay[0]].operation(slot(2, 0), Op::Sum, 1.0, &mut data[stay[0]]);
        first[stay[0]].0.run(late, Done::new(move |outcome| sender.send(outcome).unwrap()));
        assert!(matches!(ended.recv_timeout(PATIENCE).unwrap(), Err(Unmet::NotBegun(_))));
        stay.iter().for_each(|rank| first[*rank].0.part(why(), &all(), PATIENCE));
        let second = again.meet(&stay, true);
        std::thread::scope(|scope| {
            for (member, rank) in second.iter().zip(&stay) {
                scope.spawn(move || {
                    let mut data = vec![digit(*rank, 0); 1000];
                    member.reduce(slot(1, 0), Op::Sum, 1.0, &mut data).unwrap();
                    let sum = stay_sum(leaver);
                    assert!(data.iter().all(|found| *found == sum), "{data:?}");
                });
            }
        });
    }

    fn stay_sum(leaver: usize) -> i32 {
        (0..3).filter(|rank| *rank != leaver).map(|rank| digit(rank, 0)).sum()
    }
}

#[test]
fn a_thread_that_waits_here_is_free_once_another_rank_has_left_and_this_one_parts() {
    const FOREVER: Duration = Duration::from_secs(3600);
    for leaver in [0, 1] {
        let first = Again::of(2).meet(&[0, 1], false);
        let stays = &first[1 - leaver].0;
        let (sender, free) = mpsc::channel();
        std::thread::scope(|scope| {
            let parted = sender.clone();
            // Nothing of it is under way among these ranks: it waits for the sum that the next ones will make.
            scope.spawn(move || {
                stays.poll(&|| false, FOREVER);
                sender.send(()).unwrap();
            });
            scope.spawn(move || {
                stays.part(why(), &all(), FOREVER);
                parted.send(()).unwrap();
            });
            first[leaver].0.shutdown();
            (0..2).for_each(|_| free.recv_timeout(PATIENCE).unwrap());
        });
        // Also one that comes only then.
        for over in [stays, &first[leaver].0] {
            std::thread::scope(|scope| {
                let (sender, free) = mpsc::channel();
                scope.spawn(move || {
                    over.poll(&|| false, FOREVER);
                    sender.send(()).unwrap();
                });
                free.recv_timeout(PATIENCE).unwrap();
            });
        }
    }
}

#[test]
fn what_all_were_ready_for_is_carried_out_before_they_part() {
    let again = Again::of(2);
    let first = again.meet(&[0, 1], false);
    let sums = std::thread::scope(|scope| {
        let part = |rank: usize| {
            let member = &first[rank];
            move || {
                let (sender, ended) = mpsc::channel();
                let mut data = vec![digit(rank, 0); 1_000_000];
                let operation = member.operation(slot(1, 0), Op::Sum, 1.0, &mut data);
                member.0.run(operation, Done::new(move |outcome| sender.send(outcome).unwrap()));
                (ended, data)
            }
        };
        let submitted = [scope.spawn(part(0)), scope.spawn(part(1))].map(|thread| thread.join().unwrap());
        let parting = [0, 1].map(|rank| {
            let member = &first[rank];
            scope.spawn(move || member.0.part(why(), &all(), PATIENCE))
        });
        parting.into_iter().for_each(|thread| thread.join().unwrap());
        submitted.map(|(ended, data)| (ended.try_recv().expect("it ended before they parted"), data[0]))
    });
    let sum = digit(0, 0) + digit(1, 0);
    assert!(sums.iter().all(|(outcome, found)| outcome.is_ok() && *found == sum), "{sums:?}");
}

#[test]
fn a_rank_that_hears_late_who_is_left_is_waited_for_and_one_that_is_left_alone_reduces_with_itself() {
    let again = Again::of(2);
    let mut members = again.meet(&[0, 1], false);
    drop(members.pop());
    members[0].0.part(why(), &all(), PATIENCE);
    // Rank 1 does not know yet that another one is no more, and introduces itself to a leader that expects others.
    let given_up = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            let options = HostOptions {
                ranks: vec![
                    local_rank(0, again.sockets[0].path().to_str().unwrap()),
                    LocalRank { incarnation: Incarnation(7), ..local_rank(1, "") },
                ],
                ..again.options(1, &[0, 1], true)
            };
            HostCollective::join(options, &|| given_up.load(Ordering::SeqCst).then(why))
        });
        let met = again.meet(&[0, 1], true);
        given_up.store(true, Ordering::SeqCst);
        assert!(late.join().unwrap().is_err(), "it never belongs");
        met.iter().for_each(|member| member.0.shutdown());
    });
    let alone = again.meet(&[0], true);
    let mut data = vec![digit(0, 1); 100_000];
    alone[0].reduce(slot(3, 0), Op::Mean, 1.0, &mut data).unwrap();
    assert!(data.iter().all(|found| *found == digit(0, 1)));
}

#[test]
fn nothing_runs_while_nothing_is_to_be_done() {
    let machine = Machine::of(2);
    machine.each(|_, collective| collective.reduce(slot(1, 0), Op::Sum, 1.0, &mut [1_i32; 8]).unwrap());
    // All threads come to rest: the bells do not change any more. A change of a bell would wake a thread.
    let words = |machine: &Machine| {
        machine.0.iter().map(|collective| collective.0.core.board.bell(Word::Idle)).collect::<Vec<u32>>()
    };
    let mut before = words(&machine);
    // Far more pauses than the last steps of the threads need.
    for _ in 0..1000 {
        // A receive without an answer is a pause with a deadline.
        let (_silent, pause) = mpsc::channel::<()>();
        let _ = pause.recv_timeout(Duration::from_millis(50));
        let after = words(&machine);
        if before == after {
            return;
        }
        before = after;
    }
    panic!("the bells never rest");
}

#[test]
fn what_others_are_ready_for_wakes_nobody_who_wants_nothing() {
    let machine = Machine::of(2);
    let [leader, other] = [0, 1].map(|rank| &machine.0[rank].0.core);
    let naps = |core: &Core| core.seat.naps_until() > Time::ZERO;
    while ![leader, other].iter().all(|core| naps(core)) {
        std::thread::yield_now();
    }
    let bells = || [leader, other].map(|core| core.board.bell(Word::Idle));
    let before = bells();
    let seat = loop {
        if let Some(seat) = leader.sit_down() {
            break seat;
        }
        std::thread::yield_now();
    };
    let mut data = [[1_i32; 8]; 2];
    let [ours, theirs] = &mut data;
    let (sender, ended) = mpsc::channel();
    let announced = machine.0[1].operation(slot(1, 0), Op::Sum, 1.0, theirs);
    machine.0[1].0.run(announced, Done::new(move |outcome| sender.send(outcome).unwrap()));
    while leader.board.count(1, Word::Announced) == 0 {
        std::thread::yield_now();
    }
    leader.stand_up(seat);
    assert_eq!(leader.board.count(1, Word::Heard), 1, "whoever leaves the seat has heard of it");
    assert_eq!(bells(), before, "neither thread has anything to do");
    machine.0[0].reduce(slot(1, 0), Op::Sum, 1.0, ours).unwrap();
    ended.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(data, [[2; 8]; 2]);
}

#[test]
fn ranks_that_share_one_core_come_to_an_end() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let machine = Machine::of(2);
    let allowed = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap();
    let mut only = CpuSet::new();
    only.set(first);
    let sums = machine.each(|rank, collective| {
        sched_setaffinity(None, &only).unwrap();
        let mut data: Vec<i32> = (0..20_000).map(|index| digit(rank, index)).collect();
        for round in 0..5 {
            collective.reduce(slot(1, round), Op::Max, 1.0, &mut data).unwrap();
        }
        data
    });
    let expected: Vec<i32> = (0..20_000).map(|index| digit(0, index).max(digit(1, index))).collect();
    assert!(sums.iter().all(|maximum| *maximum == expected));
}

#[test]
fn a_rank_knows_whether_another_was_last_on_its_core() {
    let machine = Machine::of(2);
    let [leader, other] = [0, 1].map(|rank| &machine.0[rank].0.core);
    // No other thread changes the cores of the ranks while this one holds the seats.
    let sit = |core| std::iter::from_fn(|| Some(Core::sit_down(core))).flatten().next().unwrap();
    let seats = (sit(leader), sit(other));
    other.board.settle_on(7);
    assert!(leader.board.settle_on(7));
    assert!(!leader.board.settle_on(8));
    assert!(!other.board.settle_on(7));
    assert!(other.board.settle_on(8));
    leader.stand_up(seats.0);
    other.stand_up(seats.1);
}

/// The ranks of a machine, in one process. Each has its own mapping.
struct Machine(Vec<Member>, Arc<AtomicU64>);

struct Member(HostCollective);

impl Machine {
    fn of(ranks: usize) -> Self {
        Self::with(ranks, &|_| Err(no_devices()))
    }

    /// A machine with these transports for device memory.
    fn with(ranks: usize, devices: &(dyn Fn(usize) -> Result<crate::collective::MakeDeviceCollective> + Sync)) -> Self {
        Self::that(ranks, &|rank, options| HostOptions { devices: devices(rank), ..options })
    }

    /// A machine whose ranks have these options.
    fn that(ranks: usize, with: &(dyn Fn(usize, HostOptions) -> HostOptions + Sync)) -> Self {
        let listener = PrivateSocket::listen(&std::env::temp_dir()).unwrap();
        let path = listener.path();
        let (listener, (clock, skew)) = (Mutex::new(Some(Arc::new(listener))), clock());
        let locals: Vec<_> = (0..ranks).map(|rank| local_rank(rank, path.to_str().unwrap())).collect();
        let members = meet(&(0..ranks).collect::<Vec<_>>(), &|rank| {
            let listener = if rank == 0 { listener.lock().unwrap().take() } else { None };
            with(rank, HostOptions { listener, clock: Arc::clone(&clock), ..options(rank, &locals) })
        });
        assert!(!path.exists(), "nothing with a name is left once all are here");
        Self(members, skew)
    }

    /// Lets time pass.
    fn later(&self, by: Duration) {
        for core in self.0.iter().map(|member| &member.0.core) {
            // The rank has taken all earlier requests when no thread holds the seat and no request waits.
            while core.seat.has_requests() {
                std::thread::yield_now();
            }
            loop {
                if let Some(driver) = core.sit_down() {
                    break core.stand_up(driver);
                }
                std::thread::yield_now();
            }
        }
        self.1.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
        for member in &self.0 {
            member.0.core.board.ring(member.0.core.board.me, Word::Idle);
        }
    }

    fn each<T: Send>(&self, run: impl Fn(usize, &Member) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let run = &run;
            let running: Vec<_> =
                self.0.iter().enumerate().map(|(rank, member)| scope.spawn(move || run(rank, member))).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}

impl Member {
    fn operation<T: Number>(&self, slot: Slot, op: Op, weight: f64, data: &mut [T]) -> Operation {
        let bytes = size_of_val(data) as u64;
        Operation {
            part: slot.0,
            round: slot.1,
            goal: Goal::AllReduce,
            failure: None,
            claim: Claim { bytes, ..claim(op, T::DTYPE, weight) },
            memory: Memory::Host { source: vec![region(data)], destination: vec![region(data)] },
            finding: Finding::default(),
        }
    }

    /// Reduces in place, and does the work on the calling thread.
    fn reduce<T: Number>(&self, slot: Slot, op: Op, weight: f64, data: &mut [T]) -> Result<()> {
        self.run(self.operation(slot, op, weight, data)).map(drop)
    }

    fn run(&self, operation: Operation) -> Result<f64> {
        let (sender, ended) = mpsc::channel();
        self.0.run(operation, Done::new(move |outcome| sender.send(outcome).unwrap()));
        let outcome = std::cell::RefCell::new(None);
        let enough = || {
            if outcome.borrow().is_none() {
                *outcome.borrow_mut() = ended.try_recv().ok();
            }
            outcome.borrow().is_some()
        };
        self.0.poll(&enough, PATIENCE);
        outcome.take().unwrap_or_else(|| ended.recv_timeout(PATIENCE).unwrap()).map_err(Unmet::into_error)
    }
}

/// Lets these ranks meet, each with its own options.
fn meet(ranks: &[usize], options: &(dyn Fn(usize) -> HostOptions + Sync)) -> Vec<Member> {
    std::thread::scope(|scope| {
        let join = |rank: usize| Member(HostCollective::join(options(rank), &|| None).unwrap());
        let joining: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || join(*rank))).collect();
        joining.into_iter().map(|member| member.join().unwrap()).collect()
    })
}

/// The options of the rank `rank` of these.
fn options(rank: usize, ranks: &[LocalRank]) -> HostOptions {
    HostOptions {
        job: "test".to_owned(),
        epoch: Epoch { term: 1, number: rank as u32 },
        me: ranks.iter().position(|other| other.rank.0 as usize == rank).unwrap(),
        group: (0..ranks.len()).collect(),
        ranks: ranks.to_vec(),
        listener: None,
        is_again: false,
        goes_on: false,
        join_timeout: PATIENCE,
        step_timeout: PATIENCE,
        stall_warn: Duration::ZERO,
        hears: Hears::default(),
        on_lost: Box::new(|_| ()),
        oldest_every: 16,
        nan_check: NanCheck::Off,
        copies: Copies::default(),
        traffic: Traffic::default(),
        devices: Err(no_devices()),
        doubt: Doubt::default(),
        clock: clock().0,
    }
}

trait Number: Copy + PartialEq + Send {
    const DTYPE: DType;
    fn of(value: i32) -> Self;
}

macro_rules! numbers {
    ($($type:ty: $dtype:ident, $of:expr;)+) => { $(
        impl Number for $type {
            const DTYPE: DType = DType::$dtype;
            fn of(value: i32) -> Self {
                $of(value)
            }
        }
    )+ };
}

numbers! {
    f32: F32, |value| value as f32;
    f64: F64, f64::from;
    f16: F16, |value| f16::from_f32(value as f32);
    bf16: BF16, |value| bf16::from_f32(value as f32);
    i32: I32, |value| value;
    i64: I64, i64::from;
    i8: I8, |value| value as i8;
    u8: U8, |value| value as u8;
}

/// The contribution of a rank: its own digit in base 4. So a sum shows each rank whose contribution is missing or was counted twice. The
/// values are small enough for every type.
fn digit(rank: usize, index: usize) -> i32 {
    (1 + (index % 2) as i32) << (2 * (rank % 3))
}

fn slot(part: u64, round: u64) -> Slot {
    (PartId { key: TensorKey(part), index: 0 }, Round(round))
}

fn claim(op: Op, dtype: DType, weight: f64) -> Claim {
    Claim { op, dtype, bytes: 0, weight, ..Claim::SUM }
}

#[expect(unsafe_code, reason = "a test's vector becomes a region")]
fn region<T: Number>(data: &mut [T]) -> Region {
    // SAFETY: the bytes of any element are valid bytes. The test waits for the operation before it reads them again.
    region_of(unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast::<u8>(), size_of_val(data)) })
}

fn no_devices() -> Error {
    Error::FailedPrecondition { what: "no queue".to_owned(), hint: "build one".to_owned() }
}

fn local_rank(rank: usize, path: &str) -> LocalRank {
    LocalRank {
        rank: WorkerId(rank as u32),
        incarnation: Incarnation(100 + rank as u128),
        name: format!("worker {rank}"),
        place: "here (pid 1)".to_owned(),
        socket_path: path.to_owned(),
    }
}

#[expect(clippy::disallowed_methods, reason = "a test is its own driver")]
fn clock() -> (Arc<dyn Fn() -> Time + Send + Sync>, Arc<AtomicU64>) {
    let (start, skew) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let ahead = Arc::clone(&skew);
    let now = move || Time::ZERO + start.elapsed() + Duration::from_nanos(ahead.load(Ordering::SeqCst));
    (Arc::new(now), skew)
}
