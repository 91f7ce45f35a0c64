//! What the library does not forgive, as the real one: settings are the process's, so one test after the other in one.

#![expect(unsafe_code, reason = "NCCL's interface is C")]

#[expect(dead_code, reason = "shared with tests that need more of it")]
mod team;

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Barrier;

use team::{Config, PATIENCE, apart, cu, libraries, now, team, unique_id};

#[test]
fn nothing_is_forgiven() {
    let control = fakenccl::Control::open(&fakenccl::library());
    libraries();
    a_rank_that_is_gone_is_waited_for_until_an_abort_which_leaves_anything(&control);
    an_abort_takes_as_long_as_it_is_told(&control);
    a_thread_without_a_context_gets_one_on_the_first_device(&control);
    a_communicator_that_fails_at_once_is_there_all_the_same(&control);
    whoever_frees_a_communicator_waits_for_the_others(&control);
    a_communicator_in_progress_is_not_freed(&control);
    an_abort_waits_for_other_work_of_the_device_and_a_revocation_does_not(&control);
    assert_eq!(control.counter("live_comms"), 0);
}

fn a_rank_that_is_gone_is_waited_for_until_an_abort_which_leaves_anything(control: &fakenccl::Control) {
    let gone = Barrier::new(2);
    team(2, |member| {
        let address = member.floats([1.0]);
        if member.rank == 1 {
            assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
            gone.wait();
        } else {
            gone.wait();
            assert_eq!(member.all_reduce(address, 1), 0);
            until(|| control.counter("begun") > 0, "the operation has begun");
            for _ in 0..1000 {
                assert_eq!((member.state(), cu!(cuStreamQuery(member.stream))), (0, 600));
                std::thread::yield_now();
            }
            assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
            assert_eq!(member.bytes(address, 4), [0xa5; 4]);
        }
        member.comm = 0;
    });
}

fn an_abort_takes_as_long_as_it_is_told(control: &fakenccl::Control) {
    const FOR_EVER: &str = "3600000000";
    team(2, |member| {
        let address = member.floats([1.0]);
        if member.rank == 0 {
            control.set("ABORT_US", FOR_EVER);
            assert_eq!(member.all_reduce(address, 1), 0);
            std::thread::scope(|scope| {
                let (nccl, comm) = (member.nccl.clone(), member.comm);
                let before = control.counter("ncclCommAbort");
                let aborting = scope.spawn(move || (nccl.ncclCommAbort)(comm));
                until(|| control.counter("ncclCommAbort") > before, "the abort has begun");
                assert_eq!(cu!(cuStreamQuery(member.stream)), 600, "the operation goes on");
                control.set("ABORT_US", "0");
                assert_eq!(aborting.join().expect("no panic"), 0);
            });
            assert_eq!(cu!(cuStreamSynchronize(member.stream)), 0);
        } else {
            assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
        }
        member.comm = 0;
    });
    control.set("ABORT_US", "0");
}

fn a_thread_without_a_context_gets_one_on_the_first_device(control: &fakenccl::Control) {
    let before = control.counter("contexts_made");
    let id = unique_id(&libraries().0);
    apart(2, |member| {
        let (ranks, rank) = (member.ranks as c_int, member.rank as c_int);
        assert_eq!((member.nccl.ncclCommInitRankConfig)(&mut member.comm, ranks, id, rank, &Config::not_blocking()), 7);
        assert_eq!(member.settled(), 0);
        if member.rank == 0 {
            assert_eq!(cu!(cuCtxSetCurrent(null_mut())), 0);
        }
        assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
    });
    assert_eq!(control.counter("contexts_made") - before, 1);
}

fn a_communicator_that_fails_at_once_is_there_all_the_same(control: &fakenccl::Control) {
    control.set("INIT_CODE", "3");
    let id = unique_id(&libraries().0);
    apart(1, |member| {
        let code = (member.nccl.ncclCommInitRankConfig)(&mut member.comm, 1, id, 0, &Config::not_blocking());
        assert_eq!((code, control.counter("live_comms")), (3, 1));
        assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
    });
    control.set("INIT_CODE", "0");
}

fn whoever_frees_a_communicator_waits_for_the_others(control: &fakenccl::Control) {
    let together = Barrier::new(2);
    team(2, |member| {
        if member.rank == 0 {
            let (nccl, comm) = (member.nccl.clone(), member.comm);
            let before = control.counter("ncclCommDestroy");
            std::thread::scope(|scope| {
                let freeing = scope.spawn(|| {
                    // It has no context, which is another matter.
                    (nccl.ncclCommDestroy)(comm)
                });
                until(|| control.counter("ncclCommDestroy") > before, "the rank frees its communicator");
                assert!(!freeing.is_finished() && control.counter("live_comms") == 2);
                together.wait();
                assert_eq!(freeing.join().expect("no panic"), 0);
            });
        } else {
            together.wait();
            assert_eq!((member.nccl.ncclCommDestroy)(member.comm), 0);
        }
        member.comm = 0;
    });
}

fn a_communicator_in_progress_is_not_freed(control: &fakenccl::Control) {
    let id = unique_id(&libraries().0);
    // The second of the two never comes.
    apart(1, |member| {
        assert_eq!((member.nccl.ncclCommInitRankConfig)(&mut member.comm, 2, id, 0, &Config::not_blocking()), 7);
        assert_eq!((member.nccl.ncclCommDestroy)(member.comm), 4);
        assert_eq!(control.counter("live_comms"), 1);
        assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
    });
}

fn an_abort_waits_for_other_work_of_the_device_and_a_revocation_does_not(control: &fakenccl::Control) {
    team(2, |member| {
        let address = member.floats([1.0]);
        if member.rank == 1 {
            assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
            member.comm = 0;
            return;
        }
        let (opened, opening) = std::sync::mpsc::channel::<()>();
        let gate = Box::into_raw(Box::new(opening)).cast();
        let mut other = null_mut();
        assert_eq!(cu!(cuStreamCreate(&mut other, 1)), 0);
        let function: unsafe extern "C" fn(*mut std::ffi::c_void) = wait_for_the_test;
        assert_eq!(cu!(cuLaunchHostFunc(other, Some(function), gate)), 0);
        assert_eq!(member.all_reduce(address, 1), 0);
        assert_eq!((member.nccl.ncclCommRevoke)(member.comm, 0), 0);
        assert_eq!(cu!(cuStreamSynchronize(member.stream)), 0, "the operation has stopped");
        assert_eq!((member.settled(), member.all_reduce(address, 1)), (0, 5));
        let mut context = null_mut();
        assert_eq!(cu!(cuCtxGetCurrent(&mut context)), 0);
        let (nccl, comm, context) = (member.nccl.clone(), member.comm, context as usize);
        std::thread::scope(|scope| {
            until(|| control.counter("live_comms") == 1, "the other rank has left");
            let before = control.counter("ncclCommAbort");
            let aborting = scope.spawn(move || {
                assert_eq!(cu!(cuCtxSetCurrent(context as _)), 0);
                (nccl.ncclCommAbort)(comm)
            });
            until(|| control.counter("ncclCommAbort") > before, "the abort has begun");
            assert!(!aborting.is_finished() && control.counter("live_comms") == 1);
            drop(opened);
            assert_eq!(aborting.join().expect("no panic"), 0);
        });
        member.comm = 0;
    });
}

/// Waits for what another thread does.
fn until(came: impl Fn() -> bool, what: &str) {
    let begin = now();
    while !came() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

/// Ends when the test drops its end of the channel.
extern "C" fn wait_for_the_test(gate: *mut std::ffi::c_void) {
    // SAFETY: the test made it for this one call.
    let opening = unsafe { Box::from_raw(gate.cast::<std::sync::mpsc::Receiver<()>>()) };
    let _ = opening.recv();
}
