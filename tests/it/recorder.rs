//! Flight recorders of a job whose workers are processes, one of which stops submitting: their dumps, and what `gradlane explain` says.

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

use crate::actors::{ACTOR, Job};

#[test]
fn a_worker_that_stops_submitting_is_named_by_the_dumps_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = start(dir.path(), 3);
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
        let dump = eventually(&format!("worker {rank} dumps its failure"), || dump(&flight, rank));
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
        "dumps of 3 of 3 workers.",
        "Worker 1 held the job up.\nWorkers 0 and 2 submitted `w` round 1, and worker 1 did not.\n",
        "The last submission of worker 1 was `w` round 0, ",
    ] {
        assert!(explained.contains(sentence), "{sentence:?} in {explained}");
    }

    drop(job.puppets.remove(0));
    let dump = eventually("worker 1 dumps the end of the job", || {
        dump(&flight, 1).filter(|dump| dump["reason"].as_str().unwrap().starts_with("the work of this worker ended: "))
    });
    assert!(dump["end"]["error"].as_str().unwrap().contains("worker 0"), "{}", dump["end"]);
    assert!(explain(&flight).contains("Worker 1 held the job up.\n"), "as before");
}

#[test]
fn an_order_dumps_what_is_open_and_only_below_the_allowed_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = start(dir.path(), 2);
    job.all_do("sum w 0");
    let mut operator = operator(&job);
    let worker = Recipient::Worker(WorkerId(0));
    let outcome = operator.order(order(worker, "../elsewhere"));
    assert!(matches!(&outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
    let outcome = operator.order(order(Recipient::Server(ServerId(0)), "look"));
    assert!(matches!(&outcome, Err(Error::InvalidArgument { .. })), "{outcome:?}");
    operator.order(order(worker, "look")).unwrap();
    let dump = dump(&dir.path().join("look"), 0).expect("the file is whole when the order is answered");
    assert_eq!((&dump["open"], &dump["end"]), (&serde_json::json!([]), &Value::Null));
    assert_eq!((&dump["index"], &dump["workers"]), (&0.into(), &2.into()));
    let events: Vec<&str> = dump["events"].as_array().unwrap().iter().map(|event| event[1].as_str().unwrap()).collect();
    for what in ["formed", "submitted", "queued", "taken", "finished", "resolved"] {
        assert!(events.contains(&what), "{what} in {events:?}");
    }
    assert!(dump["tensors"].as_array().unwrap().contains(&"w".into()), "{}", dump["tensors"]);
}

/// A job of so many workers and a server. A round that waits fails after two seconds.
fn start(dump_dir: &Path, workers: u32) -> Job {
    let dump_dir = dump_dir.to_str().unwrap();
    Job::start(Over::Quic, workers, 1, &[("step_timeout", "2s"), ("stall_warn", "500ms"), ("dump_dir", dump_dir)])
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

/// The dump of a worker, once there is one.
fn dump(directory: &Path, rank: u32) -> Option<Value> {
    let suffix = format!("-worker-{rank}.flight.json");
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
