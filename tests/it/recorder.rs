//! Flight recorders of a job whose workers are processes, one of which stops submitting: the dumps of its members, and what `gradlane explain`
//! says.

use std::path::Path;
use std::time::Duration;

use gradlane_core::error::Error;
use gradlane_core::runtime::Operator;
use gradlane_core::types::{Control, ControlAnswer, ControlCommand, Recipient, Role, ServerId, WorkerId};
use gradlane_tests::cluster::PATIENCE;
use gradlane_tests::over::Over;
use gradlane_tests::patience::eventually;
use gradlane_tests::processes::Process;
use serde_json::Value;

use crate::actors::{self, ACTOR, Job};

#[test]
fn a_worker_that_stops_submitting_is_named_by_the_dumps_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = start(dir.path(), 3, "2s");
    job.all_do("sum w 0");
    for rank in [0, 2] {
        job.puppets[rank].order("sum w 1");
    }
    for rank in [0, 2] {
        let answer = job.puppets[rank].line();
        assert!(answer.starts_with("failed DeadlineExceeded"), "{answer}");
    }
    let flight = dir.path().join("flight");
    for rank in [0, 2] {
        let dump = eventually(&format!("worker {rank} dumps its failure"), || dump(&flight, &worker(rank)));
        assert!(dump["reason"].as_str().unwrap().starts_with("an operation failed: "), "{}", dump["reason"]);
    }
    let explained = explain(&flight);
    assert!(explained.contains("There is no dump of worker 1."), "nothing has failed there: {explained}");
    assert!(explained.contains("Worker 1 held the job up, as far as the dumps say."), "{explained}");

    let outcome = operator(&job).order(order(Recipient::Worker(WorkerId(1)), "flight")).unwrap();
    let ControlAnswer::Dumped { files } = outcome else { panic!("{outcome:?}") };
    assert_eq!(files.len(), 1);
    let explained = explain(&flight);
    for sentence in [
        "dumps of 3 of 3 workers and 0 of 1 servers.",
        "There is no dump of server 0.\nThere is no dump of the coordinator.\n",
        "Worker 1 held the job up.\nWorkers 0 and 2 submitted `w` round 1, and worker 1 did not.\n",
        "The last submission of worker 1 was `w` round 0, ",
    ] {
        assert!(explained.contains(sentence), "{sentence:?} in {explained}");
    }

    drop(job.puppets.remove(0));
    let ended = eventually("worker 1 dumps the end of the job", || {
        dump(&flight, "worker-1")
            .filter(|dump| dump["reason"].as_str().unwrap().starts_with("the work of this worker ended: "))
    });
    assert!(ended["end"]["error"].as_str().unwrap().contains("worker 0"), "{}", ended["end"]);
    for member in ["server-0", "coordinator"] {
        let ended = eventually(&format!("{member} dumps the end of the job"), || dump(&flight, member));
        assert!(ended["end"]["error"].as_str().unwrap().contains("worker 0"), "{member}: {}", ended["end"]);
    }
    let explained = explain(&flight);
    assert!(explained.contains("dumps of 3 of 3 workers, 1 of 1 servers and the coordinator."), "{explained}");
    assert!(explained.contains("Worker 1 held the job up.\n"), "as before: {explained}");
    assert!(explained.contains("before its dump: worker 0 on "), "{explained}");
}

#[test]
fn the_dumps_of_survivors_have_the_sum_that_the_end_of_the_job_has_broken_off() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = start(dir.path(), 2, "60s");
    job.all_do("sum w 0");
    job.puppets[0].order("sum w 1");
    let (flight, look) = (dir.path().join("flight"), dir.path().join("look"));
    eventually("the server has what was sent", || {
        operator(&job).order(order(Recipient::Server(ServerId(0)), "look")).unwrap();
        dump(&look, "server-0").filter(|dump| dump["open"][0]["whole"] == serde_json::json!([0]))
    });
    drop(job.puppets.remove(1));
    let answer = job.puppets[0].line();
    assert!(answer.starts_with("failed Aborted"), "{answer}");
    let of = |member: &str| eventually(&format!("{member} dumps the end of the job"), || dump(&flight, member));
    let (worker, server) = (of("worker-0"), of("server-0"));
    for dump in [&worker, &server] {
        assert!(dump["end"]["error"].as_str().unwrap().contains("worker 1"), "{}", dump["end"]);
        assert_eq!(dump["open"].as_array().unwrap().len(), 1, "{}", dump["open"]);
    }
    assert_eq!((&worker["open"][0]["tensor"], &worker["open"][0]["round"]), (&"w".into(), &1.into()));
    assert_eq!((&server["open"][0]["round"], &server["open"][0]["due"]), (&1.into(), &serde_json::json!([1])));
}

#[test]
fn a_request_that_fails_and_a_loss_are_dumped_though_the_job_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let settings = [("on_worker_loss", "continue"), ("dump_dir", dir.path().to_str().unwrap())];
    let mut job = Job::start(Over::Quic, 3, 1, &settings);
    job.puppets[0].order("barrier here 100");
    let answer = job.puppets[0].line();
    assert!(answer.starts_with("failed DeadlineExceeded"), "{answer}");
    let flight = dir.path().join("flight");
    let failed = eventually("worker 0 dumps its failure", || dump(&flight, &worker(0)));
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.starts_with("an operation failed: ") && reason.contains("here"), "{reason}");

    drop(job.puppets.remove(2));
    let lost = eventually("the coordinator dumps the loss", || dump(&flight, "coordinator"));
    let reason = lost["reason"].as_str().unwrap();
    assert!(reason.starts_with("the job goes on without worker 2: "), "{reason}");
    assert_eq!(lost["end"], Value::Null);
}

#[test]
fn an_order_dumps_what_is_open_and_only_below_the_allowed_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = start(dir.path(), 2, "2s");
    job.all_do("sum w 0");
    let mut operator = operator(&job);
    let worker = Recipient::Worker(WorkerId(0));
    let outcome = operator.order(order(worker, "../elsewhere"));
    assert!(matches!(&outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
    operator.order(order(worker, "look")).unwrap();
    let dump = dump(&dir.path().join("look"), "worker-0").expect("the file is whole when the order is answered");
    assert_eq!((&dump["open"], &dump["end"]), (&serde_json::json!([]), &Value::Null));
    assert_eq!((&dump["index"], &dump["workers"]), (&0.into(), &vec![0, 1].into()));
    let events: Vec<&str> = dump["events"].as_array().unwrap().iter().map(|event| event[1].as_str().unwrap()).collect();
    for what in ["formed", "submitted", "queued", "taken", "finished", "resolved"] {
        assert!(events.contains(&what), "{what} in {events:?}");
    }
    assert!(dump["tensors"].as_array().unwrap().contains(&"w".into()), "{}", dump["tensors"]);
}

#[test]
fn a_server_names_the_worker_whose_contribution_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = start(dir.path(), 3, "60s");
    job.all_do("sum w 0");
    for rank in [0, 2] {
        job.puppets[rank].order("sum w 1");
    }
    let (flight, of) = (dir.path().join("flight"), |recipient| order(recipient, "flight"));
    let server = Recipient::Server(ServerId(0));
    let open = eventually("the server has what was sent", || {
        operator(&job).order(of(server)).unwrap();
        let open = dump(&flight, "server-0").unwrap()["open"].clone();
        if open[0]["whole"] == serde_json::json!([0, 2]) { Some(open) } else { None }
    });
    assert_eq!(open.as_array().unwrap().len(), 1);
    assert_eq!(
        (&open[0]["round"], &open[0]["due"], &open[0]["begun"]),
        (&1.into(), &vec![1].into(), &Vec::<u32>::new().into())
    );
    let said = explain(&flight);
    assert!(said.contains("Worker 1 held the job up, as far as servers say.\n"), "{said}");

    let mut operator = operator(&job);
    for rank in 0..3 {
        operator.order(of(Recipient::Worker(WorkerId(rank)))).unwrap();
    }
    let ControlAnswer::Dumped { files } = operator.order(of(Recipient::Coordinator)).unwrap() else {
        panic!("it was dumped")
    };
    assert!(files.len() == 2 && files[0].ends_with("-coordinator.flight.json"), "and its report: {files:?}");
    let said = explain(&flight);
    for sentence in [
        "dumps of 3 of 3 workers, 1 of 1 servers and the coordinator.\n",
        "Worker 1 held the job up.\nWorkers 0 and 2 submitted `w` round 1, and worker 1 did not.\n",
        "The servers missed worker 1 in this round.\n",
        "Server 0 waits for worker 1 in part 0 of `w` round 1, which began ",
        " before its dump. It has all of workers 0 and 2.\n",
    ] {
        assert!(said.contains(sentence), "{sentence:?} in {said}");
    }
    assert!(!said.contains("There is no dump of"), "{said}");
    job.puppets[1].order("sum w 1");
    for puppet in &mut job.puppets {
        assert_eq!(puppet.line(), "ok", "the job goes on");
    }
}

#[test]
fn a_server_names_the_worker_whose_push_to_a_table_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = start(dir.path(), 3, "60s");
    job.all_do("row t 0");
    for rank in [0, 2] {
        job.puppets[rank].order("row t 1");
    }
    let flight = dir.path().join("flight");
    let look = |job: &Job| {
        operator(job).order(order(Recipient::Server(ServerId(0)), "flight")).unwrap();
        dump(&flight, "server-0").unwrap()
    };
    let uses = eventually("the server has what was sent", || {
        let uses = look(&job)["uses"].as_array().unwrap().clone();
        let waits = |used: &Value| used["progress"] == "held" && used["missing"] == serde_json::json!([1]);
        if uses.len() == 2 && uses.iter().all(waits) { Some(uses) } else { None }
    });
    assert!(uses.iter().all(|used| used["of"] == "table" && used["action"] == "push"), "{uses:?}");
    for rank in 0..3 {
        operator(&job).order(order(Recipient::Worker(WorkerId(rank)), "flight")).unwrap();
    }
    let said = explain(&flight);
    for sentence in [
        "Worker 1 held the job up, as far as servers say.\n",
        "Server 0 lets uses of workers 0 and 2 wait until worker 1 pushes to part 0 of `t`, since ",
        "Worker 0 waits for use 1 of table `t`, submitted ",
        "Its part 0 was handed over to server 0, which lets it wait until worker 1 pushes.\n",
    ] {
        assert!(said.contains(sentence), "{sentence:?} in {said}");
    }
    assert!(!said.contains("Worker 1 waits"), "{said}");
    job.puppets[1].order("row t 1");
    for puppet in &mut job.puppets {
        assert_eq!(puppet.line(), "ok", "the job goes on");
    }
    let ended = eventually("nothing is open any more", || {
        Some(look(&job)).filter(|dump| dump["uses"] == serde_json::json!([]))
    });
    let events = ended["events"].as_array().unwrap();
    for what in ["came", "waits", "answered", "taken"] {
        assert!(events.iter().any(|event| event[1] == what && event[7] == "push"), "{what} in {events:?}");
    }
}

#[test]
fn a_signal_dumps_a_server_and_a_coordinator_and_their_job_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let settings = [("dump_dir", dir.path().to_str().unwrap())];
    let (coordinator, join) = actors::coordinator(dir.path(), 1, 1, &settings);
    let server = actors::server(Over::Quic, &join, 0, &settings);
    let mut puppet = actors::worker(Over::Quic, &["puppet"], &join, Some(0), 1, &settings);
    assert_eq!(puppet.line(), "joined 0");
    puppet.order("sum w 0");
    assert_eq!(puppet.line(), "ok");
    for (process, member, events) in [
        (&server, "server-0", ["formed", "linked", "begun", "came", "whole", "published"].as_slice()),
        (&coordinator, "coordinator", ["joined", "view", "formed"].as_slice()),
    ] {
        process.signal("USR1");
        let told = eventually(&format!("{member} dumps"), || dump(&dir.path().join("flight"), member));
        assert_eq!((&told["reason"], &told["end"]), (&"a signal asked for it".into(), &Value::Null));
        let found: Vec<&str> =
            told["events"].as_array().unwrap().iter().map(|event| event[1].as_str().unwrap()).collect();
        for event in events {
            assert!(found.contains(event), "{event} in {found:?}");
        }
    }
    puppet.order("sum w 1");
    assert_eq!(puppet.line(), "ok");
}

/// A job of so many workers and a server. A round that waits fails after `step_timeout`.
fn start(dump_dir: &Path, workers: u32, step_timeout: &str) -> Job {
    let dump_dir = dump_dir.to_str().unwrap();
    Job::start(
        Over::Quic,
        workers,
        1,
        &[("step_timeout", step_timeout), ("stall_warn", "500ms"), ("dump_dir", dump_dir)],
    )
}

fn operator(job: &Job) -> Operator {
    let coordinator = job.embedded.coordinator();
    let credentials = coordinator.credentials(Role::Admin).unwrap();
    Operator::connect(&coordinator.join_string().address, &credentials, PATIENCE).unwrap()
}

fn order(recipient: Recipient, directory: &str) -> Control {
    let command = ControlCommand::DumpRecorder { directory: directory.to_owned() };
    Control { recipient, wait: Duration::from_secs(30), command }
}

fn worker(rank: u32) -> String {
    format!("worker-{rank}")
}

/// The dump of a member, once there is one.
fn dump(directory: &Path, member: &str) -> Option<Value> {
    let suffix = format!("-{member}.flight.json");
    let entries = std::fs::read_dir(directory).ok()?.map(|entry| entry.unwrap().path());
    let is_its = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.ends_with(&suffix) && !name.starts_with('.')
    };
    let text = std::fs::read_to_string(entries.into_iter().find(is_its)?).unwrap();
    Some(serde_json::from_str(&text).expect("a file that has its name is whole"))
}

/// What `gradlane explain` prints.
fn explain(directory: &Path) -> String {
    let ended =
        Process::start(Path::new(ACTOR), &["explain", directory.to_str().unwrap()], Path::new("/tmp"), &[]).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.output.join("\n") + "\n"
}
