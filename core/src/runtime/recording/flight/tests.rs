use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::*;
use crate::cluster::{Exchange, Offsets};
use crate::runtime::recording::dump::{Recorded, lines};
use crate::types::Epoch;

#[test]
fn the_file_names_the_member_and_tells_what_the_job_was() {
    let dir = tempfile::tempdir().unwrap();
    for (role, index, name, told) in [
        (Role::Worker, Some(3), "night-worker-3.flight.json".to_owned(), json!(["worker", 3])),
        (Role::Server, Some(0), "night-server-0.flight.json".to_owned(), json!(["server", 0])),
        (Role::Server, None, format!("night-server-of-pid-{}.flight.json", process_id()), json!(["server", null])),
        (Role::Coordinator, None, "night-coordinator.flight.json".to_owned(), json!(["coordinator", null])),
    ] {
        let flight = of(role, Switch::new(true), None);
        index.into_iter().for_each(|index| flight.joined(index));
        let mut view = View::of_workers(&[(1, ""), (1, ""), (1, "")]);
        view.members.remove(1);
        flight.formed(&View { epoch: Epoch { term: 1, number: 2 }, ..view });
        let path = flight.dump(dir.path(), "a test", None).unwrap();
        assert_eq!(path.file_name().unwrap().to_str(), Some(&*name));
        let dump: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(json!([dump["role"], dump["index"]]), told);
        assert_eq!(json!([dump["epoch"], dump["workers"], dump["servers"]]), json!(["epoch 1.2", [0, 2], []]));
        assert_eq!((&dump["form"], &dump["events"]), (&super::super::FORM.into(), &json!([[1, "one"], [2, "two"]])));
    }
}

#[test]
fn a_dump_tells_what_the_clock_of_the_job_shows_once_that_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let read = |flight: &Arc<Flight<Switch>>| -> serde_json::Value {
        let path = flight.dump(dir.path(), "a test", None).unwrap();
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    };
    let flight = flight(None);
    let dump = read(&flight);
    assert_eq!(json!([dump["job_unix_ns"], dump["job_error_ns"]]), json!([null, null]));
    let mut offsets = Offsets::default();
    let (sent, heard) = (Time(1_000), Time(1_200));
    offsets.add(5_000_000, Exchange { sent, received: Time(1_100), answered: Time(1_100), heard });
    flight.follow_clock(JobClock::known(flight.clock, offsets));
    let dump = read(&flight);
    let number = |name: &str| dump[name].as_u64().unwrap();
    let ahead = number("job_unix_ns").abs_diff(5_000_000 + number("now_ns"));
    assert!(ahead <= number("job_error_ns"), "{ahead} {}", dump["job_error_ns"]);
    assert!(number("job_error_ns") >= 100);
}

#[test]
fn the_first_end_of_a_worker_is_dumped_where_the_setting_says() {
    let dir = tempfile::tempdir().unwrap();
    let flight = flight(Some(dir.path()));
    flight.joined(3);
    flight.ended(&Error::Internal { what: "it broke".to_owned() });
    flight.ended(&Error::Cancelled);
    flight.settle(Duration::from_secs(60));
    let text = std::fs::read_to_string(dir.path().join("flight/night-worker-3.flight.json")).unwrap();
    let dump: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&dump["index"], &dump["end"]["kind"]), (&3.into(), &"Internal".into()));
    assert!(dump["reason"].as_str().unwrap().contains("it broke"), "{}", dump["reason"]);
}

#[test]
fn failures_that_follow_each_other_are_dumped_once() {
    let dir = tempfile::tempdir().unwrap();
    let flight = flight(Some(dir.path()));
    flight.failed(&Error::Internal { what: "first".to_owned() });
    flight.failed(&Error::Internal { what: "second".to_owned() });
    flight.settle(Duration::from_secs(60));
    let text = std::fs::read_to_string(flight.file(&dir.path().join(DIRECTORY))).unwrap();
    assert!(text.contains("first") && !text.contains("second"), "{text}");
}

#[test]
fn the_dump_of_a_failure_has_what_was_open_when_it_was_found() {
    let dir = tempfile::tempdir().unwrap();
    let (changed, changes) = crossbeam_channel::bounded(0);
    let flight = flight(Some(dir.path()));
    flight.ask_for_stacks(Arc::new(Late(changes)));
    flight.ended(&Error::Cancelled);
    flight.recorder.ends.store(true, Ordering::Relaxed);
    changed.send(()).unwrap();
    flight.settle(Duration::from_secs(60));
    let text = std::fs::read(flight.file(&dir.path().join(DIRECTORY))).unwrap();
    let dump: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(dump["events"], json!([[1, "one"], [2, "two"]]), "not what followed from it");
}

#[test]
fn an_end_that_began_with_a_failure_is_dumped_with_what_was_open_then() {
    let lost = |cause: &str| Error::Io { what: "a member".to_owned(), cause: cause.to_owned() };
    for (end, left) in [("lost", 2), ("another", 0)] {
        let dir = tempfile::tempdir().unwrap();
        let flight = flight(Some(dir.path()));
        flight.failed(&lost("lost"));
        flight.recorder.ends.store(true, Ordering::Relaxed);
        flight.ended(&lost(end));
        flight.settle(Duration::from_secs(60));
        let text = std::fs::read(flight.file(&dir.path().join(DIRECTORY))).unwrap();
        let dump: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((&dump["end"]["kind"], dump["events"].as_array().unwrap().len()), (&"Io".into(), left));
    }
}

#[test]
fn after_the_end_of_the_work_no_failure_is_dumped() {
    let dir = tempfile::tempdir().unwrap();
    let flight = flight(Some(dir.path()));
    flight.ended(&Error::Cancelled);
    // As if it was long ago.
    flight.writing.lock().unwrap().last = None;
    flight.failed(&Error::Internal { what: "second".to_owned() });
    flight.troubled(|| panic!("nobody asks for its text"));
    assert_eq!(flight.writing.lock().unwrap().last, None);
}

#[test]
fn a_request_that_was_answered_has_not_failed() {
    let text = || "x".to_owned();
    for (error, fails) in [
        (Error::Timeout { what: text(), waited: Duration::ZERO }, true),
        (Error::PeerLost { member: text(), host: text(), cause: text() }, true),
        (Error::Unavailable { what: text(), cause: text() }, true),
        (Error::NotFound { what: text(), hint: text() }, false),
        (Error::FailedPrecondition { what: text(), hint: text() }, false),
        (Error::InvalidArgument { what: text(), hint: text() }, false),
        (Error::Cancelled, false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let flight = flight(Some(dir.path()));
        flight.request_failed(&error);
        flight.settle(Duration::from_secs(60));
        assert_eq!(flight.file(&dir.path().join(DIRECTORY)).exists(), fails, "{error}");
    }
}

#[test]
fn a_failure_is_not_dumped_if_no_setting_says_where() {
    let flight = flight(None);
    assert!(!flight.is_kept());
    flight.ended(&Error::Cancelled);
    flight.troubled(|| panic!("nobody asks for its text"));
    assert!(flight.writing.lock().unwrap().thread.is_none());
}

#[test]
fn a_recorder_that_is_off_is_not_dumped() {
    let dir = tempfile::tempdir().unwrap();
    let flight = of(Role::Worker, Switch::new(false), Some(dir.path()));
    flight.ended(&Error::Cancelled);
    let refused = flight.dump(dir.path(), "a test", None);
    assert!(matches!(&refused, Err(Error::FailedPrecondition { .. })), "{refused:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_dump_has_the_stacks_of_the_program_beside_it_and_never_older_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (flight, answers) =
        (flight(Some(dir.path())), Arc::new(Answers(Mutex::new(vec![Some("of all, "), None, Some("of the program")]))));
    flight.joined(3);
    flight.ask_for_stacks(answers);
    let path = dir.path().join("night-worker-3.stacks.txt");
    for (told, expected) in
        [(None, Some("of the program")), (None, None), (Some("of a handler"), Some("of all, of a handler"))]
    {
        let told = told.map(|text: &str| text.as_bytes().to_vec());
        flight.dump(dir.path(), "a test", told).unwrap();
        assert_eq!(std::fs::read_to_string(&path).ok().as_deref(), expected);
    }
    flight.ask_for_stacks(Arc::new(Answers(Mutex::new(vec![Some("of another")]))));
    flight.dump(dir.path(), "a test", None).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "of another");
    flight.signalled(Some(b"of a signal".to_vec()));
    flight.settle(Duration::from_secs(60));
    let there = dir.path().join(DIRECTORY);
    assert_eq!(std::fs::read_to_string(there.join("night-worker-3.stacks.txt")).unwrap(), "of a signal");
    assert!(
        std::fs::read_to_string(there.join("night-worker-3.flight.json")).unwrap().contains("a signal asked for it")
    );
}

#[test]
fn stacks_of_a_worker_without_a_recorder_are_written_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = write_stacks_alone(dir.path(), "night", b"of main").unwrap();
    assert_eq!(path, dir.path().join(format!("flight/night-worker-of-pid-{}.stacks.txt", process_id())));
    assert_eq!(std::fs::read(path).unwrap(), b"of main");
}

/// What the program says each time it is asked, the last one first.
#[derive(Debug)]
struct Answers(Mutex<Vec<Option<&'static str>>>);

impl Stacks for Answers {
    fn text(&self) -> Option<Vec<u8>> {
        self.0.lock().unwrap().pop().flatten().map(|text| text.as_bytes().to_vec())
    }
}

/// Stacks that come once somebody says so.
#[derive(Debug)]
struct Late(crossbeam_channel::Receiver<()>);

impl Stacks for Late {
    fn text(&self) -> Option<Vec<u8>> {
        self.0.recv().ok()?;
        None
    }
}

fn flight(directory: Option<&Path>) -> Arc<Flight<Switch>> {
    of(Role::Worker, Switch::new(true), directory)
}

fn of(role: Role, recorder: Switch, directory: Option<&Path>) -> Arc<Flight<Switch>> {
    let (job, dump_dir) = ("night".to_owned(), directory.map(Path::to_owned));
    let config = Config { job, dump_dir, ..Config::default() };
    Arc::new(Flight::new(&config, role, Clock::start(), recorder))
}

/// Has two events if it is on, until they end.
#[derive(Debug)]
struct Switch {
    is_on: bool,
    ends: AtomicBool,
}

impl Switch {
    fn new(is_on: bool) -> Self {
        Self { is_on, ends: AtomicBool::new(false) }
    }
}

impl Recorder for Switch {
    fn is_on(&self) -> bool {
        self.is_on
    }

    fn copy(&self) -> Copied {
        let left = if self.ends.load(Ordering::Relaxed) { 0 } else { 2 };
        let events = [json!([1, "one"]), json!([2, "two"])].into_iter().take(left);
        Arc::new(move || Recorded { events: lines(events.clone()), ..Recorded::default() })
    }

    fn counts(&self) -> (u64, u64) {
        (2, 0)
    }
}
