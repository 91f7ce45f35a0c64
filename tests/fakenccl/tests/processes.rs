//! Ranks in processes of their own, and settings, which are the process's: one test after the other in one.

#![expect(unsafe_code, reason = "NCCL's interface is C")]

#[expect(dead_code, reason = "shared with tests that need more of it")]
mod team;

use std::ffi::c_int;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use team::{F32, Id, Member, SUM, apart, cu, libraries, now, unique_id};

/// Tells this program that it is the other process, and under which name they meet.
const OTHER: &str = "FAKENCCL_TESTS_MEET";

#[test]
fn processes_add_up_and_notice_the_end_of_one() {
    if let Some(name) = other() {
        return other_process(&name);
    }
    let (nccl, _) = libraries();
    // What is noticed here is not noticed by NCCL.
    fakenccl::Control::open(&fakenccl::library()).set("STRICT", "0");
    let id = unique_id(&nccl);
    let end = id.0.iter().position(|byte| *byte == 0).expect("a text");
    let name = std::str::from_utf8(&id.0[..end]).expect("a path").to_owned();
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "processes_add_up_and_notice_the_end_of_one", "--nocapture"])
        .env(OTHER, name)
        .env("FAKENCCL_STRICT", "0")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut member = Member::new(0, 2, 0);
    assert_eq!((nccl.ncclCommInitRank)(&mut member.comm, 2, id, 0), 0);
    let address = member.floats([1.0, 2.0]);
    assert_eq!(member.all_reduce(address, 2), 0);
    assert_eq!(member.read(address, 2), [11.0, 22.0]);
    // It says the same, and is killed while it does nothing.
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let said = lines.into_iter().find(|line| line.contains("sum "));
    assert!(said.is_some_and(|line| line.contains("sum [11.0, 22.0]")));
    child.kill().expect("it runs");
    child.wait().expect("it is ours");
    let begin = now();
    assert_eq!(member.all_reduce(address, 2), 0);
    assert_eq!(member.failure(), 6);
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(member.last_error().contains("rank 1 ended"), "{}", member.last_error());
    assert_eq!((nccl.ncclCommAbort)(member.comm), 0);
    assert_eq!(cu!(cuStreamSynchronize(member.stream)), 0);
    settings();
}

/// Rank 1, until it is killed.
fn other_process(name: &str) {
    let mut id = Id([0; 128]);
    id.0[..name.len()].copy_from_slice(name.as_bytes());
    let mut member = Member::new(1, 2, 1);
    assert_eq!((member.nccl.ncclCommInitRank)(&mut member.comm, 2, id, 1), 0);
    let address = member.floats([10.0, 20.0]);
    assert_eq!(member.all_reduce(address, 2), 0);
    println!("sum {:?}", member.read(address, 2));
    // The parent closes its end only when it ends itself.
    let _ = std::io::stdin().lines().next();
    loop {
        std::thread::park();
    }
}

fn settings() {
    let control = fakenccl::Control::open(&fakenccl::library());
    a_rank_that_does_not_come_is_an_error_after_a_while(&control);
    the_others_hear_of_a_rank_that_gave_up();
    what_is_launched_later_is_missed_by_an_event_before_it(&control);
    a_call_that_comes_too_early_spoils_the_communicator(&control);
    what_a_test_wants_to_fail_fails(&control);
    what_a_test_holds_waits_in_the_middle_of_a_group(&control);
    assert_eq!(control.counter("live_comms"), 0);
    assert!(control.counter("ncclAllReduce") > 4);
}

fn a_rank_that_does_not_come_is_an_error_after_a_while(control: &fakenccl::Control) {
    control.set("TIMEOUT", "0.2");
    let id = unique_id(&libraries().0);
    apart(2, |member| {
        assert_eq!((member.nccl.ncclCommInitRank)(&mut member.comm, 2, id, member.rank as c_int), 0);
        if member.rank == 0 {
            let address = member.floats([1.0]);
            assert_eq!(member.all_reduce(address, 1), 0);
        }
        // The other one does nothing wrong and hears of it when it calls something.
        if member.rank == 1 {
            let begin = now();
            while begin.elapsed() < Duration::from_millis(600) {
                std::thread::yield_now();
            }
            let address = member.floats([1.0]);
            assert_eq!(member.all_reduce(address, 1), 0);
        }
        assert_eq!(member.failure(), 6);
        assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
    });
    control.set("TIMEOUT", "5");
}

fn the_others_hear_of_a_rank_that_gave_up() {
    let said = team::team(2, |member| {
        if member.rank == 1 {
            assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
            member.comm = 0;
            return (6, "rank 1 gave up".to_owned());
        }
        let address = member.floats([1.0]);
        assert_eq!(member.all_reduce(address, 1), 0);
        let said = (member.failure(), member.last_error());
        assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
        member.comm = 0;
        said
    });
    assert_eq!(said[0].0, 6);
    assert!(said[0].1.contains("rank 1 gave up"), "{}", said[0].1);
}

fn what_is_launched_later_is_missed_by_an_event_before_it(control: &fakenccl::Control) {
    control.set("LAUNCH_US", "100000");
    control.set("INIT_US", "50000");
    let id = unique_id(&libraries().0);
    apart(2, |member| {
        let (nccl, rank) = (member.nccl.clone(), member.rank as c_int);
        let config = team::Config::not_blocking();
        assert_eq!((nccl.ncclCommInitRankConfig)(&mut member.comm, 2, id, rank, &config), 7);
        assert_eq!(member.state(), 7, "it meets for 50 ms at least");
        let address = member.floats([1.0]);
        assert_eq!(member.settled(), 0);
        assert_eq!(member.all_reduce(address, 1), 7);
        let mut event = std::ptr::null_mut();
        assert_eq!(cu!(cuEventCreate(&mut event, 2)), 0);
        assert_eq!(cu!(cuEventRecord(event, member.stream)), 0);
        assert_eq!(cu!(cuEventSynchronize(event)), 0);
        assert_eq!(member.read(address, 1), [1.0], "nothing was in the stream");
        assert_eq!(member.settled(), 0);
        assert_eq!(member.read(address, 1), [2.0]);
        assert_eq!((nccl.ncclCommDestroy)(member.comm), 0);
    });
    control.set("LAUNCH_US", "0");
}

fn a_call_that_comes_too_early_spoils_the_communicator(control: &fakenccl::Control) {
    control.set("INIT_US", "50000");
    let id = unique_id(&libraries().0);
    apart(2, |member| {
        let config = team::Config::not_blocking();
        let rank = member.rank as c_int;
        assert_eq!((member.nccl.ncclCommInitRankConfig)(&mut member.comm, 2, id, rank, &config), 7);
        let address = member.floats([1.0]);
        assert_eq!(member.all_reduce(address, 1), 4);
        assert_eq!(member.settled(), 4);
        assert!(member.last_error().contains("before the previous operation"), "{}", member.last_error());
        assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
    });
    control.set("INIT_US", "0");
}

fn what_a_test_wants_to_fail_fails(control: &fakenccl::Control) {
    control.set("FAIL", "ncclAllReduce=3@1*1,AllReduce:1=2@2");
    let id = unique_id(&libraries().0);
    let codes = apart(2, |member| {
        assert_eq!((member.nccl.ncclCommInitRank)(&mut member.comm, 2, id, member.rank as c_int), 0);
        let address = member.floats([1.0]);
        let call = || (member.nccl.ncclAllReduce)(address, address, 1, F32, SUM, member.comm, member.stream);
        // Of the two calls the first fails, whoever it is of.
        let first = call();
        if first != 0 {
            assert_eq!((first, call()), (3, 0));
        }
        assert_eq!(member.read(address, 1), [2.0]);
        assert!([0, 2].contains(&call()), "the other one may have failed already");
        let code = member.failure();
        assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
        code
    });
    assert_eq!(codes, [2, 2]);
    control.set("FAIL", "");
}

fn what_a_test_holds_waits_in_the_middle_of_a_group(control: &fakenccl::Control) {
    let id = unique_id(&libraries().0);
    let together = std::sync::Barrier::new(2);
    let executed = control.counter("executed");
    // One operation of each rank, and the second of a group waits.
    control.set("HOLD", &(executed + 2).to_string());
    let sums = apart(2, |member| {
        let (nccl, stream) = (member.nccl.clone(), member.stream);
        assert_eq!((nccl.ncclCommInitRank)(&mut member.comm, 2, id, member.rank as c_int), 0);
        let tensors = [member.floats([1.0]), member.floats([2.0])];
        assert_eq!((nccl.ncclGroupStart)(), 0);
        assert!(tensors.iter().all(|tensor| member.all_reduce(*tensor, 1) == 0));
        assert_eq!((nccl.ncclGroupEnd)(), 0);
        let begin = now();
        while control.counter("executed") < executed + 2 {
            assert!(begin.elapsed() < team::PATIENCE, "{}", member.last_error());
            std::thread::yield_now();
        }
        assert_eq!(cu!(cuStreamQuery(stream)), 600, "the rest waits");
        together.wait();
        control.set("HOLD", "");
        let sums = tensors.map(|tensor| member.read(tensor, 1)[0]);
        assert_eq!((nccl.ncclCommDestroy)(member.comm), 0);
        sums
    });
    assert_eq!(sums, [[2.0, 4.0]; 2]);
}

#[expect(clippy::disallowed_methods, reason = "the test starts itself as another process")]
fn other() -> Option<String> {
    std::env::var(OTHER).ok()
}
