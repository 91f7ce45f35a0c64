//! Short copies to the host that the calling thread submits.

use std::thread::ThreadId;

use super::*;

#[test]
fn a_short_copy_is_submitted_by_the_thread_that_asks_for_it() {
    let world = World::new();
    let (address, data) = (world.control.allocate(world.ordinal(), 4096), pattern(4096, 5));
    let again = || world.cuda.lease_again(world.device, 4096, false);
    assert!(again().is_none(), "nothing is pinned yet");
    drop(world.lease(4096));
    let pinned = world.counter("pinned_ranges");
    let mut host = again().expect("what was given back");
    assert!(again().is_none(), "there is one, and it is in use");
    assert_eq!(world.counter("pinned_ranges"), pinned);

    let mark = world.produce_late(address, &data);
    let pageable = world.counter("pageable_copies");
    let out = Transfer::Out { from: vec![world.memory(address, 4096)], to: region(&mut host) };
    let (told, outcome) = here(&world, out, &[mark]);
    assert_eq!(told.try_recv(), Ok(std::thread::current().id()), "it is on its stream when the call returns");
    outcome.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(host[..] == data);
    assert_eq!(world.counter("pageable_copies"), pageable);
}

/// A copy of memory that is not pinned holds the thread of its direction up in the driver.
#[test]
fn a_short_copy_comes_after_those_that_were_submitted_before() {
    let world = World::new();
    let [first, second] = [(); 2].map(|()| world.control.allocate(world.ordinal(), 4096));
    world.control.produce(world.ordinal(), 0, second, &pattern(4096, 9));
    let (mut slow, mut short) = (vec![0; 4096], world.lease(4096));
    let mark = world.produce_late(first, &pattern(4096, 5));
    let (order, issued) = unbounded();
    let tell = |name| {
        let order = order.clone();
        OnIssue::new(move |_| order.send(name).expect("somebody listens"))
    };
    let (done, ended) = unbounded();
    let report = || {
        let done = done.clone();
        Done::new(move |outcome: Result<()>| done.send(outcome).expect("somebody listens"))
    };
    let from = |address| vec![world.memory(address, 4096)];
    world.cuda.copy(Transfer::Out { from: from(first), to: region(&mut slow) }, &[mark], tell("slow"), report());
    world.cuda.copy_here(Transfer::Out { from: from(second), to: region(&mut short) }, &[], tell("short"), report());
    for _ in 0..2 {
        ended.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    assert_eq!(issued.try_iter().collect::<Vec<_>>(), ["slow", "short"]);
    assert!(slow == pattern(4096, 5) && short[..] == pattern(4096, 9));
}

#[test]
fn a_short_copy_after_the_shutdown_is_refused() {
    let world = World::new();
    let (address, mut host) = (world.control.allocate(world.ordinal(), 8), world.lease(8));
    let mut out = || Transfer::Out { from: vec![world.memory(address, 8)], to: region(&mut host) };
    here(&world, out(), &[]).1.recv_timeout(PATIENCE).unwrap().unwrap();
    world.cuda.shutdown(&Doubt::default());
    let refused = here(&world, out(), &[]).1.recv_timeout(PATIENCE).unwrap();
    assert_eq!(refused.unwrap_err().code(), Code::FailedPrecondition);
}

/// Begins it; the thread that put it on a stream, and its outcome.
fn here(world: &World, transfer: Transfer, after: &[Mark]) -> (Receiver<ThreadId>, Receiver<Result<()>>) {
    let ((told, teller), (outcome, ended)) = (unbounded(), unbounded());
    let issued = OnIssue::new(move |_| told.send(std::thread::current().id()).expect("somebody listens"));
    world.cuda.copy_here(transfer, after, issued, Done::new(move |result| drop(outcome.send(result))));
    (teller, ended)
}
