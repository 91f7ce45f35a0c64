//! What must not happen whatever breaks below: memory that NCCL may still write is not given away, nothing works on a device that it was not
//! told to, and nothing waits for what does not end. Driver and NCCL are the fakes, as strict as the real ones.

use std::os::unix::fs::symlink;
use std::path::Path;

use gradlane_tests::cluster::PATIENCE;
use gradlane_tests::fakes;
use gradlane_tests::processes::Process;

use crate::actors::ACTOR;
use crate::device_teams::Team;

#[test]
fn memory_that_nccl_may_still_write_is_kept_although_its_operation_has_failed() {
    let mut team = lost_in_the_middle();
    let survivor = &mut team.0[0];
    survivor.order("reuse");
    assert_eq!(survivor.line(), "kept");
    survivor.order("stop");
    assert_eq!(survivor.line(), "written", "nobody else had it");
    survivor.order("reuse");
    assert_eq!(survivor.line(), "reused");
    survivor.order("stop");
    assert_eq!(survivor.line(), "intact");
}

#[test]
fn a_process_ends_although_nccl_does_not() {
    let mut team = lost_in_the_middle();
    let survivor = &mut team.0[0];
    survivor.order("end");
    assert_eq!(survivor.line(), "ended");
}

#[test]
fn ranks_are_not_waited_for_when_one_leaves() {
    let mut team = Team::start(2, &[]);
    assert_eq!(team.all("sum 0"), ["ok 2"; 2]);
    let first = &mut team.0[0];
    first.order("leave");
    assert_eq!(first.line(), "left, 1 communicators are alive", "the second has not left");
    first.order("threads");
    assert_eq!(first.line(), "left are [\"gl-nccl-destroy\"]");
    first.order("end");
    assert_eq!(first.line(), "ended");
}

#[test]
fn processes_end_although_a_communicator_is_never_destroyed() {
    let mut team = Team::start(2, &[("FAKENCCL_DESTROY_US", "3600000000")]);
    assert_eq!(team.all("sum 0"), ["ok 2"; 2]);
    assert_eq!(team.all("leave"), ["left, 1 communicators are alive"; 2]);
    // Only the thread that is there for it waits for NCCL; the queue has ended.
    assert_eq!(team.all("threads"), ["left are [\"gl-nccl-destroy\"]"; 2]);
    assert_eq!(team.all("end"), ["ended"; 2]);
}

#[test]
fn no_thread_makes_a_context_on_a_device_that_it_was_not_told() {
    let mut team = Team::start(3, &[]);
    assert_eq!(team.all("sum 0"), ["ok 3"; 3]);
    team.0[2].signal("KILL");
    for rank in &mut team.0[..2] {
        rank.order("sum 1");
        assert!(rank.line().starts_with("lost worker 2: "));
        rank.order("contexts");
        assert_eq!(rank.line(), "0 contexts", "an abort");
    }
    let mut team = Team::start(2, &[]);
    assert_eq!(team.all("sum 0"), ["ok 2"; 2]);
    assert_eq!(team.all("leave"), ["left, 0 communicators are alive"; 2]);
    assert_eq!(team.all("contexts"), ["0 contexts"; 2], "an orderly end");
}

#[test]
fn a_communicator_that_fails_at_once_is_aborted() {
    let mut team = Team::start(2, &[("FAKENCCL_INIT_CODE", "3")]);
    for outcome in team.all("sum 0") {
        let told = outcome.starts_with("device cuda:") && outcome.contains("code 3");
        assert!(told || outcome.starts_with("lost worker "), "{outcome}");
    }
    // It waits until none is alive.
    assert_eq!(team.all("contexts"), ["0 contexts"; 2]);
}

#[test]
fn ranks_with_different_versions_of_nccl_are_told_which() {
    let version = |rank| vec![("FAKENCCL_VERSION", ["22809", "22707"][rank])];
    let mut team = Team::start_each(2, PATIENCE, &version);
    let outcomes = team.all("sum 0");
    let told = |outcome: &String| outcome.contains("NCCL 2.27.7") && outcome.contains("NCCL 2.28.9");
    assert!(told(&outcomes[1]), "{outcomes:?}");
    // The first has begun to connect, and learns of the other that its devices failed.
    assert!(outcomes[0].starts_with("lost worker 1: "), "{outcomes:?}");
    assert_eq!(team.all("contexts"), ["0 contexts"; 2]);
}

#[test]
fn the_stub_for_linking_does_not_hide_the_driver() {
    let folder = tempfile::tempdir().unwrap();
    // Something that has none of the driver's functions.
    symlink(fakes::fakenccl(), folder.path().join("libcuda.so")).unwrap();
    symlink(fakes::fakecuda(), folder.path().join("libcuda.so.1")).unwrap();
    let variables = [("LD_LIBRARY_PATH".to_owned(), folder.path().to_str().unwrap().to_owned())];
    let mut doctor = Process::start(Path::new(ACTOR), &["doctor"], folder.path(), &variables);
    let report = doctor.end().output.join("\n");
    assert!(report.contains("a driver for CUDA up to 13.0: libcuda.so.1"), "{report}");
}

/// Two ranks of which the second was killed in the middle of an operation of both. The first has been told, and its NCCL goes on.
fn lost_in_the_middle() -> Team {
    let mut team = Team::start(2, &[]);
    assert_eq!(team.all("sum 0"), ["ok 2"; 2]);
    team.0[0].order("pin");
    assert_eq!(team.0[0].line(), "pinned");
    team.0[0].order("abort-slowly");
    assert_eq!(team.0[0].line(), "slow");
    // On the devices of both, and waiting for what the second does not make.
    team.0.iter_mut().zip(["begin 1", "begin-late 1"]).for_each(|(rank, order)| rank.order(order));
    team.0.iter_mut().for_each(|rank| assert_eq!(rank.line(), "issued"));
    team.0[1].signal("KILL");
    let line = team.0[0].line();
    assert!(line.starts_with("lost worker 1: "), "{line}");
    team
}
