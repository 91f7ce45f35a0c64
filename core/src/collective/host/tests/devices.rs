//! Memory of devices: the order in which it is handed to its queue, and what becomes of everybody when something breaks.
//!
//! The queue of these tests stands for NCCL: each rank's operations meet those of the others by their number in the queue, and it fails
//! the test if they are not the same. Memory of the device is memory of this process.

use std::collections::BTreeMap;

use super::*;
use crate::collective::order::Decision;
use crate::collective::ranks::Breakage;
use crate::collective::{Bootstrap, Dataflow, DeviceCollective, DeviceMemory, MakeDeviceCollective, Ordered, Team};
use crate::cuda::OnIssue;
use crate::error::Tensors;
use crate::mem::{DeviceRegion, Ordinal};

#[test]
fn what_lies_on_devices_is_reduced_in_one_order_whatever_the_order_in_which_ranks_come() {
    let (machine, queues) = machine(4);
    let parts = 300_usize;
    machine.each(|rank, collective| {
        let mut data: Vec<Vec<i32>> = (0..parts).map(|part| vec![digit(rank, part); part + 1]).collect();
        let (sender, ended) = mpsc::channel();
        for step in 0..parts {
            // Each rank in an order of its own: all of these are prime to the number of parts.
            let part = (step * [1, 7, 11, 299][rank]) % parts;
            let operation = on_device(collective, slot(part as u64, 0), Op::Sum, Goal::AllReduce, &mut data[part]);
            let sender = sender.clone();
            collective
                .0
                .run(operation, Done::new(move |outcome| sender.send(outcome.map_err(Unmet::into_error)).unwrap()));
        }
        for _ in 0..parts {
            assert_eq!(ended.recv_timeout(PATIENCE).unwrap(), Ok(4.0));
        }
        for (part, data) in data.iter().enumerate() {
            let expected: i32 = (0..4).map(|rank| digit(rank, part)).sum();
            assert!(data.iter().all(|value| *value == expected), "part {part}");
        }
    });
    assert_eq!(queues.met(), parts);
}

#[test]
fn parts_of_the_host_and_of_devices_follow_one_order_and_take_two_ways() {
    let (machine, queues) = machine(3);
    let sums = machine.each(|rank, collective| {
        let mut data = vec![vec![digit(rank, 1); 50_000]; 6];
        for (part, data) in (0..).zip(&mut data) {
            if part % 2 == 0 {
                collective.reduce(slot(part, 0), Op::Sum, 1.0, data).unwrap();
            } else {
                collective.run(on_device(collective, slot(part, 0), Op::Sum, Goal::AllReduce, data)).unwrap();
            }
        }
        data
    });
    let expected: i32 = (0..3).map(|rank| digit(rank, 1)).sum();
    assert!(sums.iter().flatten().flatten().all(|sum| *sum == expected));
    assert_eq!(queues.met(), 3);
}

#[test]
fn an_urgent_part_overtakes_what_is_not_in_the_queue_yet() {
    let (machine, queues) = machine(2);
    queues.hold();
    let mut data = [0, 1].map(|_| (0..60).map(|part| vec![1_i32; part + 1]).collect::<Vec<_>>());
    let (sender, ended) = mpsc::channel();
    let mut submit = |part: usize, priority: i32| {
        for (member, data) in machine.0.iter().zip(&mut data) {
            let mut operation = on_device(member, slot(part as u64, 0), Op::Sum, Goal::AllReduce, &mut data[part]);
            operation.claim.priority = Priority(priority);
            let sender = sender.clone();
            member.0.run(operation, Done::new(move |outcome| sender.send(outcome.map_err(Unmet::into_error)).unwrap()));
        }
    };
    // A group each, and then the queue is full.
    for part in 0..2 {
        submit(part, 0);
        queues.wait_for(part + 1);
    }
    for part in 2..59 {
        submit(part, 0);
    }
    submit(59, 1);
    // Until all have said so.
    machine.later(Duration::ZERO);
    queues.release();
    for _ in 0..120 {
        assert!(ended.recv_timeout(PATIENCE).unwrap().is_ok());
    }
    let place = queues.lengths().iter().position(|bytes| *bytes == 60 * 4).unwrap();
    assert_eq!(place, 2, "after what was in the queue");
}

#[test]
fn no_more_is_in_the_queue_than_an_urgent_part_may_wait_for() {
    let (machine, queues) = machine(2);
    queues.hold();
    let mut data = [0, 1].map(|_| vec![vec![1_i32; 16 << 20]; 2]);
    let (sender, ended) = mpsc::channel();
    for part in 0..2 {
        for (member, data) in machine.0.iter().zip(&mut data) {
            let operation = on_device(member, slot(part, 0), Op::Sum, Goal::AllReduce, &mut data[part as usize]);
            let sender = sender.clone();
            member.0.run(operation, Done::new(move |outcome| sender.send(outcome.map_err(Unmet::into_error)).unwrap()));
        }
    }
    // 64 MiB each: nothing goes behind the first.
    queues.wait_for(1);
    queues.release();
    for _ in 0..4 {
        assert!(ended.recv_timeout(PATIENCE).unwrap().is_ok());
    }
    assert_eq!(queues.most_at_once(), 1);
}

#[test]
fn what_is_ready_at_once_goes_together_and_alike_on_all_ranks() {
    for ranks in [2, 4] {
        let gate = Gate::closed(ranks);
        let mut data: Vec<Vec<Vec<i32>>> =
            (0..ranks).map(|rank| (0..20).map(|part| vec![digit(rank, part); part + 1]).collect()).collect();
        let owner = |part: usize| (part % ranks) as u32;
        let outcomes = gate.submit(&mut data, |member, part, data| {
            on_device(member, slot(part as u64, 0), Op::Sum, reduce_to(owner(part)), data)
        });
        assert_eq!(gate.open(outcomes), vec![Ok(ranks as f64); 20 * ranks]);
        assert_eq!(gate.groups(), [1, 8, 8, 4], "what held the queue, and the rest as soon as it was over");
        for (rank, data) in data.iter().enumerate() {
            for (part, data) in data.iter().enumerate() {
                let sum = (0..ranks).map(|rank| digit(rank, part)).sum();
                let expected = if owner(part) as usize == rank { sum } else { digit(rank, part) };
                assert!(data.iter().all(|value| *value == expected), "part {part} on rank {rank}");
            }
        }
    }
}

#[test]
fn a_group_is_no_longer_than_may_be_nor_than_there_is_room() {
    let gate = Gate::closed(2);
    let mut nothing = vec![vec![vec![]; 5]; 2];
    let outcomes = gate.submit(&mut nothing, |member, part, _| kept(member, slot(part as u64, 0), 12 << 20));
    assert_eq!(gate.open(outcomes), vec![Ok(2.0); 10]);
    // The third of 12 MiB would be above 32; the fifth begins below 64, and nothing may follow it.
    assert_eq!(gate.groups(), [1, 2, 2, 1]);
}

#[test]
fn what_goes_another_way_is_in_no_group() {
    let gate = Gate::closed(2);
    let mut data = vec![vec![vec![1_i32; 8]; 6]; 2];
    let failure = || Error::Unavailable { what: "server 0".to_owned(), cause: "it burns".to_owned() };
    let outcomes = gate.submit(&mut data, |member, part, data| {
        let is_owner = member.0.core.board.me == 0;
        match part {
            2 => member.operation(slot(2, 0), Op::Sum, 1.0, data),
            4 => Operation { failure: is_owner.then(failure), ..on_device(member, slot(4, 0), Op::Sum, from(0), data) },
            _ => on_device(member, slot(part as u64, 0), Op::Sum, Goal::AllReduce, data),
        }
    });
    let outcomes = gate.open(outcomes);
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 10);
    assert_eq!(gate.groups(), [1, 2, 1, 1], "around part 2 of the host and part 4, which has failed");
    assert!(data.iter().flatten().enumerate().all(|(at, data)| *data == [if at % 6 == 4 { 1 } else { 2 }; 8]));
}

#[test]
fn the_rounds_of_a_part_are_not_in_one_group() {
    let gate = Gate::closed(2);
    let mut data = vec![vec![vec![1_i32; 8]; 3]; 2];
    let outcomes = gate.submit(&mut data, |member, round, data| {
        on_device(member, slot(1, round as u64), Op::Sum, Goal::AllReduce, data)
    });
    assert_eq!(gate.open(outcomes), vec![Ok(2.0); 6]);
    assert_eq!(gate.groups(), [1, 1, 1, 1]);
}

#[test]
fn a_rank_that_dies_takes_all_of_every_group_with_it() {
    let gate = Gate::closed(3);
    let mut data = vec![vec![vec![1_i32; 8]; 20]; 3];
    let outcomes = gate.submit(&mut data, |member, part, data| {
        on_device(member, slot(part as u64, 0), Op::Sum, Goal::AllReduce, data)
    });
    // Two groups are in the queue, of which nothing is carried out any more, and the rest is not.
    gate.queues.carry_out_at_most(1);
    gate.queues.release();
    gate.queues.wait_for(16);
    gate.machine.0[2].0.core.watch.leave(false);
    let outcomes = gate.heard(&outcomes);
    assert_eq!(outcomes.len(), 60);
    for outcome in outcomes {
        assert!(matches!(&outcome, Err(Error::PeerLost { member, .. }) if member == "worker 2"), "{outcome:?}");
    }
}

#[test]
fn a_group_that_means_nothing_is_told_to_be_the_leaders() {
    let (machine, queues) = machine(2);
    let mut data = vec![1_i32; 8];
    let (sender, ended) = mpsc::channel();
    let operation = on_device(&machine.0[1], slot(1, 0), Op::Sum, Goal::AllReduce, &mut data);
    let claim = operation.claim;
    machine.0[1].0.run(operation, Done::new(move |outcome| sender.send(outcome.map_err(Unmet::into_error)).unwrap()));
    let run = |part: u64| Decision::Run { slot: slot(part, 0), claim, failed: None, weights: vec![1.0; 2] };
    let too_many: Vec<Decision> = (1..10).map(run).collect();
    machine.0[0].0.core.board.order(&too_many);
    machine.0[0].0.core.board.knock_others(true);
    let error = ended.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert!(matches!(&error, Error::Protocol { peer, .. } if peer == "worker 0"), "{error}");
    assert_eq!(queues.met(), 0);
}

#[test]
fn ranks_that_disagree_about_the_kind_of_memory_all_hear_both() {
    let (machine, queues) = machine(2);
    let errors = machine.each(|rank, collective| {
        let mut data = [1_i32; 8];
        match rank {
            0 => collective.reduce(slot(1, 0), Op::Sum, 1.0, &mut data).unwrap_err(),
            _ => collective.run(on_device(collective, slot(1, 0), Op::Sum, Goal::AllReduce, &mut data)).unwrap_err(),
        }
    });
    for error in errors {
        let Error::Mismatch { field, first, second, .. } = &error else { panic!("{error}") };
        let mut said = [(first.worker.0, first.value.as_str()), (second.worker.0, second.value.as_str())];
        said.sort_unstable();
        assert_eq!((field.as_str(), said), ("device", [(0, "host"), (1, "cuda")]));
    }
    assert_eq!(queues.met(), 0);
}

#[test]
fn what_a_rank_cannot_do_it_says_at_once_and_to_the_others_too() {
    let queues = Arc::new(Queues::new(2));
    let machine = Machine::with(2, &|rank| match rank {
        0 => Ok(queues.make()),
        _ => Err(no_devices()),
    });
    let errors = machine.each(|_, collective| {
        let mut data = [1_i32; 8];
        collective.run(on_device(collective, slot(1, 0), Op::Sum, Goal::AllReduce, &mut data)).unwrap_err()
    });
    assert!(matches!(&errors[0], Error::Stalled { missing, .. } if *missing == [WorkerId(1)]), "{}", errors[0]);
    assert_eq!(errors[1], no_devices());
    let sums = machine.each(|_, collective| {
        let mut data = [1_i32; 8];
        collective.reduce(slot(1, 1), Op::Sum, 1.0, &mut data).unwrap();
        data
    });
    assert_eq!(sums, [[2; 8]; 2], "host memory is not disturbed");
}

#[test]
fn memory_that_is_not_as_long_as_it_claims_is_a_defect_that_is_told() {
    let (machine, _queues) = machine(2);
    let mut data = [1_i32; 8];
    let mut operation = on_device(&machine.0[0], slot(1, 0), Op::Sum, Goal::AllReduce, &mut data);
    operation.claim.bytes = 64;
    assert!(matches!(machine.0[0].run(operation), Err(Error::Internal { .. })));
}

#[test]
fn the_owner_of_a_part_has_it_and_brings_it_back() {
    let (machine, queues) = machine(3);
    let found = machine.each(|rank, collective| {
        let mut data = vec![digit(rank, 0); 1000];
        collective.run(on_device(collective, slot(1, 0), Op::Sum, reduce_to(1), &mut data)).unwrap();
        let reduced = data.clone();
        collective.run(on_device(collective, slot(1, 0), Op::Sum, from(1), &mut data)).unwrap();
        (reduced, data)
    });
    let sum: i32 = (0..3).map(|rank| digit(rank, 0)).sum();
    for (rank, (reduced, back)) in found.into_iter().enumerate() {
        assert_eq!(reduced, vec![if rank == 1 { sum } else { digit(rank, 0) }; 1000], "rank {rank}");
        assert_eq!(back, vec![sum; 1000], "rank {rank}");
    }
    assert_eq!(queues.met(), 2);
}

#[test]
fn why_an_owner_has_nothing_reaches_the_others_beside_the_queue() {
    let (machine, queues) = machine(3);
    let failure = Error::Unavailable { what: "server 0".to_owned(), cause: "it burns".to_owned() };
    let errors = machine.each(|rank, collective| {
        let mut data = vec![1_i32; 300_000];
        let operation = on_device(collective, slot(1, 0), Op::Sum, from(2), &mut data);
        collective.run(Operation { failure: (rank == 2).then(|| failure.clone()), ..operation }).unwrap_err()
    });
    assert!(errors.iter().all(|error| error.to_string() == failure.to_string()), "{errors:?}");
    assert_eq!(queues.met(), 0);
    let again = machine.each(|_, collective| {
        let mut data = vec![1_i32; 300_000];
        collective.run(on_device(collective, slot(2, 0), Op::Sum, Goal::AllReduce, &mut data)).map(|_| data[0])
    });
    assert_eq!(again, [Ok(3), Ok(3), Ok(3)], "the queue is as it was");
}

#[test]
fn a_rank_that_dies_is_lost_to_all_that_is_under_way_on_devices() {
    let (machine, queues) = machine(3);
    let mut data = [[1_i32; 8]; 3];
    let ended = hold_in_the_queue(&machine, &queues, &mut data);
    machine.0[2].0.core.watch.leave(false);
    for _ in 0..3 {
        let error = ended.recv_timeout(PATIENCE).unwrap().unwrap_err();
        assert!(matches!(&error, Error::PeerLost { member, .. } if member == "worker 2"), "{error}");
    }
    let later = on_device(&machine.0[0], slot(2, 0), Op::Sum, Goal::AllReduce, &mut data[0]);
    assert!(matches!(machine.0[0].run(later), Err(Error::PeerLost { .. })));
}

#[test]
fn devices_that_fail_tell_their_rank_how_and_the_others_whose_they_are() {
    let (machine, queues) = machine(3);
    let [device, what, cause] = ["cuda:0", "ncclAllReduce", "code 6"].map(str::to_owned);
    let fault = Error::Device { device, what, tensor: Tensors::Unknown, cause };
    let mut data = [[1_i32; 8]; 3];
    let (sender, ended) = mpsc::channel();
    queues.hold();
    for (rank, (member, data)) in machine.0.iter().zip(&mut data).enumerate() {
        let operation = on_device(member, slot(1, 0), Op::Sum, Goal::AllReduce, data);
        let sender = sender.clone();
        member
            .0
            .run(operation, Done::new(move |outcome| sender.send((rank, outcome.map_err(Unmet::into_error))).unwrap()));
    }
    queues.wait_for(1);
    queues.fail(1, &fault);
    for _ in 0..3 {
        let (rank, outcome) = ended.recv_timeout(PATIENCE).unwrap();
        let error = outcome.unwrap_err();
        match rank {
            1 => assert_eq!(error, fault),
            _ => assert!(matches!(&error, Error::PeerLost { member, .. } if member == "worker 1"), "{error}"),
        }
    }
    let later = on_device(&machine.0[1], slot(2, 0), Op::Sum, Goal::AllReduce, &mut data[1]);
    assert_eq!(machine.0[1].run(later), Err(fault), "there is no way back to order");
}

#[test]
fn who_gives_up_before_all_are_there_takes_it_from_the_others() {
    let (machine, queues) = machine(2);
    let mut data = [[1_i32; 8]; 2];
    let [first, second] = &mut data;
    let (sender, ended) = mpsc::channel();
    let operation = on_device(&machine.0[1], slot(1, 0), Op::Sum, Goal::AllReduce, first);
    machine.0[1].0.run(operation, Done::new(move |outcome| sender.send(outcome.map_err(Unmet::into_error)).unwrap()));
    machine.0[1].0.abandon(slot(1, 0));
    assert_eq!(ended.recv_timeout(PATIENCE).unwrap(), Err(Error::Cancelled));
    let operation = on_device(&machine.0[0], slot(1, 0), Op::Sum, Goal::AllReduce, second);
    let error = machine.0[0].run(operation).unwrap_err();
    assert!(matches!(&error, Error::Stalled { missing, .. } if *missing == [WorkerId(1)]), "{error}");
    assert_eq!(queues.met(), 0);
}

#[test]
fn who_gives_up_what_an_owner_brings_lends_its_memory_until_that_is_over() {
    let (machine, _queues) = machine(2);
    let (mut wanted, mut brought) = (vec![1_i32; 8], vec![7_i32; 8]);
    let (sender, ended) = mpsc::channel();
    let goal = from(0);
    let operation = on_device(&machine.0[1], slot(1, 0), Op::Sum, goal.clone(), &mut wanted);
    let of_part = operation.slot();
    machine.0[1].0.run(operation, Done::new(move |outcome| sender.send(outcome.map_err(Unmet::into_error)).unwrap()));
    machine.0[1].0.abandon(of_part);
    assert!(ended.try_recv().is_err(), "the owner has not come");
    machine.0[0].run(on_device(&machine.0[0], slot(1, 0), Op::Sum, goal, &mut brought)).unwrap();
    assert!(ended.recv_timeout(PATIENCE).unwrap().is_ok());
    assert_eq!(wanted, [7; 8]);
}

#[test]
fn whoever_leaves_waits_for_what_is_in_the_queue() {
    let (machine, queues) = machine(2);
    let mut data = [[1_i32; 8]; 2];
    let ended = hold_in_the_queue(&machine, &queues, &mut data);
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| machine.0[1].0.shutdown());
        while machine.0[1].0.core.seat.stays() {
            std::thread::yield_now();
        }
        queues.release();
        leaving.join().unwrap();
    });
    for _ in 0..2 {
        assert!(ended.recv_timeout(PATIENCE).unwrap().is_ok());
    }
    assert_eq!(data, [[2; 8]; 2]);
}

#[test]
fn the_end_of_the_job_ends_what_is_in_the_queue_with_its_cause() {
    let (machine, queues) = machine(2);
    let mut data = [1_i32; 8];
    let mut other = [1_i32; 8];
    let (sender, ended) = mpsc::channel();
    queues.hold();
    for (member, data) in machine.0.iter().zip([&mut data, &mut other]) {
        let operation = on_device(member, slot(1, 0), Op::Sum, Goal::AllReduce, data);
        let sender = sender.clone();
        member.0.run(operation, Done::new(move |outcome| sender.send(outcome.map_err(Unmet::into_error)).unwrap()));
    }
    queues.wait_for(1);
    let cause = Error::Unavailable { what: "the job".to_owned(), cause: "it is over".to_owned() };
    for member in &machine.0 {
        member.0.abort(cause.clone());
    }
    for _ in 0..2 {
        assert_eq!(ended.recv_timeout(PATIENCE).unwrap(), Err(cause.clone()));
    }
}

#[test]
fn what_the_first_rank_puts_up_all_others_read() {
    let (machine, queues) = machine(3);
    let notice: Vec<u8> = (1..=128).collect();
    let read = |rank: usize| queues.bootstrap(rank).read(PATIENCE, &|| false);
    std::thread::scope(|scope| {
        let readers = [1, 2].map(|rank| scope.spawn(move || read(rank)));
        queues.bootstrap(0).post(&notice);
        queues.bootstrap(0).post(b"another");
        for reader in readers {
            assert_eq!(reader.join().unwrap(), Some(notice.clone()), "the first one counts");
        }
    });
    drop(machine);
}

#[test]
fn who_waits_for_a_notice_gives_up_in_time_or_when_told_to() {
    let (machine, queues) = machine(2);
    assert_eq!(queues.bootstrap(1).read(Duration::from_millis(1), &|| false), None);
    assert_eq!(queues.bootstrap(1).read(PATIENCE, &|| true), None);
    machine.0[0].0.core.board.break_down(Breakage::Lost(0));
    assert_eq!(queues.bootstrap(1).read(PATIENCE, &|| false), None);
}

fn machine(ranks: usize) -> (Machine, Arc<Queues>) {
    let queues = Arc::new(Queues::new(ranks));
    (Machine::with(ranks, &|_| Ok(queues.make())), queues)
}

fn reduce_to(owner: u32) -> Goal {
    Goal::Reduce { owner: WorkerId(owner) }
}

fn from(owner: u32) -> Goal {
    Goal::Broadcast { owner: WorkerId(owner) }
}

/// All ranks reduce `data` on devices, and the operation stays on its way; whoever receives hears of the outcomes.
fn hold_in_the_queue(machine: &Machine, queues: &Queues, data: &mut [[i32; 8]]) -> mpsc::Receiver<Result<f64>> {
    let (sender, ended) = mpsc::channel();
    queues.hold();
    for (member, data) in machine.0.iter().zip(data) {
        let operation = on_device(member, slot(1, 0), Op::Sum, Goal::AllReduce, data);
        let sender = sender.clone();
        member.0.run(operation, Done::new(move |outcome| sender.send(outcome.map_err(Unmet::into_error)).unwrap()));
    }
    queues.wait_for(1);
    ended
}

/// A machine whose queue is full of one operation, so that whatever is submitted is ready at once when that is over.
struct Gate {
    machine: Machine,
    queues: Arc<Queues>,
}

type Outcomes = mpsc::Receiver<Result<f64>>;

impl Gate {
    fn closed(ranks: usize) -> Self {
        let (machine, queues) = machine(ranks);
        queues.hold();
        for member in &machine.0 {
            member.0.run(
                kept(member, slot(u64::MAX, 0), 64 << 20),
                Done::new(|outcome: std::result::Result<f64, Unmet>| assert!(outcome.is_ok(), "{outcome:?}")),
            );
        }
        queues.wait_for(1);
        Self { machine, queues }
    }

    /// Every rank submits an operation for each of its data; the first rank comes first, so that its order is the one of all.
    fn submit(
        &self,
        data: &mut [Vec<Vec<i32>>],
        operation: impl Fn(&Member, usize, &mut [i32]) -> Operation,
    ) -> Outcomes {
        let (sender, ended) = mpsc::channel();
        for (member, data) in self.machine.0.iter().zip(data) {
            for (part, data) in data.iter_mut().enumerate() {
                let sender = sender.clone();
                let done = Done::new(move |outcome| sender.send(outcome.map_err(Unmet::into_error)).unwrap());
                member.0.run(operation(member, part, data), done);
            }
            // Until it has said all of it.
            self.machine.later(Duration::ZERO);
        }
        ended
    }

    fn open(&self, outcomes: Outcomes) -> Vec<Result<f64>> {
        self.queues.release();
        self.heard(&outcomes)
    }

    /// What became of everything.
    fn heard(&self, outcomes: &Outcomes) -> Vec<Result<f64>> {
        let mut heard = Vec::new();
        loop {
            match outcomes.recv_timeout(PATIENCE) {
                Ok(outcome) => heard.push(outcome),
                Err(mpsc::RecvTimeoutError::Disconnected) => return heard,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("{} of them ended", heard.len()),
            }
        }
    }

    /// How many operations were in each group, which is the same on all ranks.
    fn groups(&self) -> Vec<usize> {
        let state = self.queues.state.lock().unwrap();
        assert!(state.groups.values().all(|groups| *groups == state.groups[&0]), "{:?}", state.groups);
        state.groups[&0].clone()
    }
}

/// Something so long for which no memory is touched: the first rank keeps what it has.
fn kept(member: &Member, slot: Slot, bytes: usize) -> Operation {
    let region = || DeviceRegion::new(Ordinal(0), 1 << 12, bytes);
    let memory = DeviceMemory {
        source: vec![region()],
        destination: vec![region()],
        after: Vec::new(),
        issued: OnIssue::nobody(),
    };
    let operation = on_device(member, slot, Op::Broadcast { root: WorkerId(0) }, reduce_to(0), &mut []);
    let claim = Claim { bytes: bytes as u64, ..operation.claim };
    Operation { claim, memory: Memory::Device(memory), ..operation }
}

/// Memory of a test as if it were a device's.
fn on_device(member: &Member, slot: Slot, op: Op, goal: Goal, data: &mut [i32]) -> Operation {
    let address = data.as_mut_ptr().expose_provenance() as u64;
    let bytes = size_of_val(data);
    let region = || DeviceRegion::new(Ordinal(0), address, bytes);
    let memory = DeviceMemory {
        source: vec![region()],
        destination: vec![region()],
        after: Vec::new(),
        issued: OnIssue::nobody(),
    };
    let operation = member.operation(slot, op, 1.0, data);
    let claim = Claim { device: DeviceKind::Cuda, ..operation.claim };
    Operation { goal, claim, memory: Memory::Device(memory), ..operation }
}

/// The queues of all ranks of a machine.
struct Queues {
    ranks: usize,
    state: Mutex<QueuesState>,
    changed: std::sync::Condvar,
}

#[derive(Default)]
struct QueuesState {
    held: bool,
    /// As many are carried out and no more.
    carried_out_max: Option<usize>,
    bootstraps: BTreeMap<usize, Arc<dyn Bootstrap>>,
    /// How many operations are in each group that a rank has issued.
    groups: BTreeMap<usize, Vec<usize>>,
    /// Operations that some rank has issued and that are not carried out, by their number in the queue.
    meeting: BTreeMap<usize, BTreeMap<usize, (Ordered, Done<()>)>>,
    carried_out: Vec<u64>,
    most_at_once: usize,
    over: BTreeMap<usize, Error>,
}

struct FakeQueue {
    me: usize,
    queues: Arc<Queues>,
}

impl Queues {
    fn new(ranks: usize) -> Self {
        Self { ranks, state: Mutex::default(), changed: std::sync::Condvar::new() }
    }

    fn make(self: &Arc<Self>) -> MakeDeviceCollective {
        let queues = Arc::clone(self);
        Box::new(move |Team { me, bootstrap, .. }| {
            queues.state.lock().unwrap().bootstraps.insert(me, bootstrap);
            Ok(Arc::new(FakeQueue { me, queues }) as Arc<dyn DeviceCollective>)
        })
    }

    fn bootstrap(&self, rank: usize) -> Arc<dyn Bootstrap> {
        self.state.lock().unwrap().bootstraps[&rank].clone()
    }

    /// Lets nothing be carried out.
    fn hold(&self) {
        self.state.lock().unwrap().held = true;
    }

    fn release(&self) {
        self.state.lock().unwrap().held = false;
        self.go_on();
    }

    /// Lets so many operations be carried out in all.
    fn carry_out_at_most(&self, operations: usize) {
        self.state.lock().unwrap().carried_out_max = Some(operations);
    }

    /// Waits until all ranks have so many operations in the queue.
    fn wait_for(&self, operations: usize) {
        let few = |state: &mut QueuesState| {
            state.meeting.values().filter(|ranks| ranks.len() == self.ranks).count() < operations
        };
        let (_state, timeout) = self.changed.wait_timeout_while(self.state.lock().unwrap(), PATIENCE, few).unwrap();
        assert!(!timeout.timed_out());
    }

    fn met(&self) -> usize {
        self.state.lock().unwrap().carried_out.len()
    }

    /// The lengths of what was carried out, in that order.
    fn lengths(&self) -> Vec<u64> {
        self.state.lock().unwrap().carried_out.clone()
    }

    fn most_at_once(&self) -> usize {
        self.state.lock().unwrap().most_at_once
    }

    /// A rank's devices fail.
    fn fail(&self, rank: usize, cause: &Error) {
        let mut state = self.state.lock().unwrap();
        state.over.entry(rank).or_insert_with(|| cause.clone());
        let mut waiting: Vec<Done<()>> = Vec::new();
        for ranks in state.meeting.values_mut() {
            waiting.extend(ranks.remove(&rank).map(|(_, done)| done));
        }
        drop(state);
        for done in waiting {
            done.err(cause.clone());
        }
    }

    /// Carries out what all ranks have come to.
    fn go_on(&self) {
        loop {
            let mut state = self.state.lock().unwrap();
            self.changed.notify_all();
            let next = state.carried_out.len();
            let is_met = state.meeting.get(&next).is_some_and(|ranks| ranks.len() == self.ranks);
            if state.held || !is_met || state.carried_out_max == Some(next) {
                return;
            }
            let met = state.meeting.remove(&next).unwrap();
            let (orders, waiting): (Vec<Ordered>, Vec<Done<()>>) = met.into_values().unzip();
            let Ordered { dataflow, claim, .. } = &orders[0];
            for other in &orders {
                assert_eq!(
                    (other.dataflow, other.claim.bytes, other.claim.op),
                    (*dataflow, claim.bytes, claim.op),
                    "{next}"
                );
            }
            state.carried_out.push(claim.bytes);
            carry_out(*dataflow, &orders);
            drop(state);
            for done in waiting {
                done.ok(());
            }
        }
    }
}

fn carry_out(dataflow: Dataflow, orders: &[Ordered]) {
    if let Dataflow::Keep { .. } | Dataflow::Nothing = dataflow {
        return;
    }
    let contributions: Vec<Vec<i32>> = orders.iter().map(|order| read(&order.memory.source[0])).collect();
    let result = match dataflow {
        Dataflow::Reduce { .. } => {
            (0..contributions[0].len()).map(|index| contributions.iter().map(|data| data[index]).sum()).collect()
        }
        Dataflow::Show { from, .. } => contributions[from].clone(),
        Dataflow::Keep { .. } | Dataflow::Nothing => unreachable!("looked at above"),
    };
    for (_, order) in orders.iter().enumerate().filter(|(rank, _)| dataflow.leads_to(*rank)) {
        write(&order.memory.destination[0], &result);
    }
}

impl DeviceCollective for FakeQueue {
    fn check(&self, memory: &DeviceMemory) -> Result<u8> {
        Ok(u8::try_from(memory.source[0].device().0).unwrap())
    }

    fn issue(&self, group: Vec<(Ordered, Done<()>)>) {
        let mut state = self.queues.state.lock().unwrap();
        if let Some(cause) = state.over.get(&self.me) {
            let cause = cause.clone();
            drop(state);
            return group.into_iter().for_each(|(_, done)| done.err(cause.clone()));
        }
        let groups = state.groups.entry(self.me).or_default();
        let first: usize = groups.iter().sum();
        groups.push(group.len());
        for (number, operation) in (first..).zip(group) {
            state.meeting.entry(number).or_default().insert(self.me, operation);
        }
        state.most_at_once = state.most_at_once.max(state.meeting.len());
        drop(state);
        self.queues.go_on();
    }

    fn abort(&self, cause: Error) {
        self.queues.fail(self.me, &cause);
    }

    fn shutdown(&self) {}
}

#[expect(unsafe_code, reason = "a device's memory is a test's vector")]
fn read(region: &DeviceRegion) -> Vec<i32> {
    let (address, len) = (region.address() as usize, region.len() / 4);
    // SAFETY: the test keeps the vector until the operation reports, and looks at it after that only.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<i32>(address), len) }.to_vec()
}

#[expect(unsafe_code, reason = "a device's memory is a test's vector")]
fn write(region: &DeviceRegion, data: &[i32]) {
    let (address, len) = (region.address() as usize, region.len() / 4);
    // SAFETY: as for `read`.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<i32>(address), len) }
        .copy_from_slice(data);
}
