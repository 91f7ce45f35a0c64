use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::cluster::{Exchange, Offsets};
use crate::metrics::{BySink, Cell as _, Sink, Value as Number};
use crate::pipeline::{Duty, Pipeline, Route, Topology};
use crate::sched::{Command, Scheduler, SchedulerConfig, TaskSpec};
use crate::types::{DeviceKind, Priority, Round, ServerId, TensorKey};

#[test]
fn a_task_leaves_its_stages_and_what_they_were_of() {
    let place = tempfile::tempdir().unwrap();
    let path = record(place.path(), |timeline| {
        let mut trace = TaskTrace::new(Arc::clone(timeline), Window::default());
        let mut scheduler = scheduler();
        let (id, subject) = submit(&mut scheduler);
        trace.submitted(at(0), id, subject, || vec!["weight".to_owned()]);
        let task = scheduler.take(at(10), Stage::Push).unwrap();
        trace.taken(at(10), &task, Stage::Push);
        for (stage, finished) in [(Stage::Push, 30), (Stage::Pull, 80)] {
            trace.finished(at(finished), id, stage, &Outcome::Done);
            scheduler.finish(at(finished), id, Outcome::Done);
        }
        while let Some(command) = scheduler.next_command() {
            if let Command::Release(id) = command {
                trace.released(id);
            }
        }
        assert!(trace.courses.is_empty(), "nothing is kept of what is gone");
    });
    let spans = spans(&path);
    let told: Vec<(&str, f64)> =
        spans.iter().map(|span| (span["name"].as_str().unwrap(), span["dur"].as_f64().unwrap())).collect();
    assert_eq!(told, [("QUEUE", 10.0), ("PUSH", 20.0), ("PULL", 50.0)]);
    assert_eq!(spans[1]["args"], json!({"round": 5, "outcome": "done"}));
    assert_eq!(spans[0]["args"], json!({"round": 5, "for": "PUSH"}));
    let about = json!({
        "name": "weight [2]", "tensor": "weight", "key": "0000000000000001", "part": 2, "tensors": ["weight"],
        "bytes": 100, "priority": -3, "server": 1,
    });
    assert_eq!(rows(&path), [about]);
    let begins: Vec<f64> = spans.iter().map(|span| span["ts"].as_f64().unwrap()).collect();
    assert_eq!(begins, [0.0, 10.0, 30.0], "microseconds since the clock began");
}

#[test]
fn a_repeated_push_says_why() {
    let place = tempfile::tempdir().unwrap();
    let path = record(place.path(), |timeline| {
        let mut trace = TaskTrace::new(Arc::clone(timeline), Window::default());
        let mut scheduler = scheduler();
        let (id, subject) = submit(&mut scheduler);
        trace.submitted(at(0), id, subject, || vec!["a".to_owned(), "b".to_owned()]);
        let task = scheduler.take(at(1), Stage::Push).unwrap();
        trace.taken(at(1), &task, Stage::Push);
        trace.finished(at(2), id, Stage::Push, &Outcome::Retry { error: Error::Cancelled, landed: 0 });
    });
    let spans = spans(&path);
    assert!(spans[1]["args"]["outcome"].as_str().unwrap().starts_with("to be repeated: "));
    assert_eq!(rows(&path)[0]["tensor"], "a + 1 more");
}

#[test]
fn a_span_says_what_differs_from_the_first_task_of_its_row() {
    let place = tempfile::tempdir().unwrap();
    let path = record(place.path(), |timeline| {
        let mut trace = TaskTrace::new(Arc::clone(timeline), Window::default());
        let mut scheduler = scheduler();
        let (id, first) = submit(&mut scheduler);
        let task = scheduler.take(at(1), Stage::Push).unwrap();
        // The same task in other rounds.
        let later = Subject { round: Round(6), bytes: 8, priority: Priority(4), server: ServerId(0), ..first };
        let residual = Subject { is_residual: true, ..first };
        for subject in [first, later, residual] {
            trace.submitted(at(0), id, subject, || vec!["w".to_owned()]);
            trace.taken(at(1), &task, Stage::Push);
            trace.released(id);
        }
    });
    let about: Vec<Value> = spans(&path).into_iter().map(|mut span| span["args"].take()).collect();
    let differs = json!({"round": 6, "bytes": 8, "priority": 4, "server": 0, "for": "PUSH"});
    let residual = json!({"round": 5, "use": "residual", "for": "PUSH"});
    assert_eq!(about, [json!({"round": 5, "for": "PUSH"}), differs, residual]);
    assert_eq!(rows(&path).len(), 1);
}

#[test]
fn a_task_that_runs_already_is_recorded_from_its_next_stage_on() {
    let place = tempfile::tempdir().unwrap();
    let path = record(place.path(), |timeline| {
        let mut scheduler = scheduler();
        let (id, subject) = submit(&mut scheduler);
        scheduler.take(at(1), Stage::Push).unwrap();
        let mut trace = TaskTrace::new(Arc::clone(timeline), Window::default());
        trace.found(at(2), id, subject, || vec!["late".to_owned()]);
        trace.finished(at(3), id, Stage::Push, &Outcome::Done);
        scheduler.finish(at(3), id, Outcome::Done);
        trace.finished(at(9), id, Stage::Pull, &Outcome::Done);
    });
    let names: Vec<String> = spans(&path).iter().map(|span| span["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["PULL"]);
}

#[test]
fn a_window_of_steps_is_recorded_and_its_last_tasks_end_before_the_file_does() {
    let place = tempfile::tempdir().unwrap();
    let timeline = Arc::new(Timeline::new(Clock::start(), None, 1 << 20));
    let window = Window { from: 5, steps: Some(1) };
    let path = timeline.start_within(place.path(), WorkerId(3), window).unwrap();
    let thread = Thread { id: 77, name: "main" };
    let origin = -timeline.clocks.own.since_origin_ns(0);
    let (mut scheduler, mut trace) = (scheduler(), TaskTrace::new(Arc::clone(&timeline), window));
    let (first, of_first) = submit(&mut scheduler);
    timeline.record(thread, "too early", origin, origin + 1);
    // The same task in other rounds.
    let in_round = |round| Subject { round: Round(round), ..of_first };
    trace.begins(Round(4));
    trace.submitted(at(0), first, in_round(4), || vec!["w".to_owned()]);
    trace.released(first);
    assert!(!trace.ends());
    trace.begins(Round(5));
    trace.submitted(at(10), first, in_round(5), || vec!["w".to_owned()]);
    timeline.record(thread, "shown", origin, origin + 1);
    let (second, _) = submit(&mut scheduler);
    trace.begins(Round(6));
    trace.submitted(at(20), second, in_round(6), || vec!["w".to_owned()]);
    assert!(!trace.ends(), "a task of the last step is under way");
    let task = scheduler.take(at(30), Stage::Push).unwrap();
    trace.taken(at(30), &task, Stage::Push);
    trace.finished(at(40), first, Stage::Push, &Outcome::Done);
    trace.released(first);
    assert!(trace.ends());
    // Another one can be recorded at once, while the file is completed.
    timeline.start(&place.path().join("next.json"), WorkerId(3)).unwrap();
    timeline.stop();
    let whole = || std::fs::read_to_string(&path).ok().filter(|text| text.ends_with("]\n"));
    while whole().is_none() {
        std::thread::yield_now();
    }
    let spans = spans(&path);
    let told: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(told, ["shown", "QUEUE", "PUSH"]);
    assert_eq!(spans[2]["args"]["round"], 5);
}

#[test]
fn the_script_has_rows_of_its_own() {
    let place = tempfile::tempdir().unwrap();
    let path = record(place.path(), |timeline| {
        let thread = Thread { id: 77, name: "main \"thread\"" };
        let origin = -timeline.clocks.own.since_origin_ns(0);
        timeline.record(thread, "backward", origin + 1_000_500, origin + 3_000_500);
        timeline.record(thread, "step", origin + 3_000_500, origin + 3_000_500);
        timeline.record(thread, "before", origin - 1_500, origin - 2_000);
    });
    let events = read(&std::fs::read_to_string(&path).unwrap());
    let named = |event: &&Value| event["name"] == "thread_name";
    let names: Vec<&Value> = events.iter().filter(named).map(|event| &event["args"]["name"]).collect();
    assert_eq!(names, ["main \"thread\""], "once");
    let spans = spans(&path);
    assert_eq!((spans[0]["ts"].as_f64(), spans[0]["dur"].as_f64()), (Some(1000.5), Some(2000.0)));
    assert_eq!((spans[2]["ts"].as_f64(), spans[2]["dur"].as_f64()), (Some(-1.5), Some(0.0)), "before the clock began");
    assert_eq!(spans.len(), 3);
}

#[test]
fn a_file_says_when_its_clock_began_and_what_the_wall_clock_shows() {
    let place = tempfile::tempdir().unwrap();
    let path = record(place.path(), |_| {});
    let events = read(&std::fs::read_to_string(&path).unwrap());
    assert_eq!(events[0]["name"], "gradlane_timeline");
    let about = &events[0]["args"];
    assert_eq!((&about["version"], &about["member"]), (&2.into(), &"worker 3".into()));
    assert_eq!(about["process"].as_u64(), Some(u64::from(std::process::id())));
    assert_eq!(about["host"], crate::runtime::process::host());
    assert_eq!(about["monotonic"], Value::from(crate::runtime::process::monotonic_clock()));
    assert!(about["monotonic_ns"].as_u64().unwrap() > 0);
    let base = about["base_unix_ns"].as_u64().unwrap();
    let readings: Vec<&Value> = events.iter().filter(|event| event["name"] == "gradlane_clock").collect();
    assert_eq!(readings.len(), 2, "at the start and at the end");
    for reading in readings {
        let [at, unix] = ["at_ns", "unix_ns"].map(|word| reading["args"][word].as_u64().unwrap());
        assert!(unix.abs_diff(base + at) < 1_000_000_000, "nobody has set the clock by a second");
        assert_eq!(reading["args"].get("job_ns"), None, "there is no coordinator");
    }
}

#[test]
fn a_file_says_what_the_coordinators_clock_shows_and_how_wrong_that_may_be() {
    let place = tempfile::tempdir().unwrap();
    let clock = Clock::start();
    let mut offsets = Offsets::default();
    let (sent, heard) = (clock.now(), clock.now() + Duration::from_micros(1));
    let received = heard + Duration::from_secs(3_600);
    offsets.add(7, Exchange { sent, received, answered: received, heard });
    let timeline = Timeline::new(clock, Some(JobClock::known(clock, offsets)), 1 << 20);
    let path = timeline.start(&place.path().join("job.json"), WorkerId(0)).unwrap();
    timeline.stop();
    let events = read(&std::fs::read_to_string(&path).unwrap());
    let readings: Vec<&Value> = events.iter().filter(|event| event["name"] == "gradlane_clock").collect();
    assert_eq!(readings.len(), 2);
    for reading in readings {
        let [at, job, error] = ["at_ns", "job_ns", "error_ns"].map(|word| reading["args"][word].as_u64().unwrap());
        assert!((job - at).abs_diff(3_600_000_000_000 + 7) <= error, "{reading}");
        assert!(error > 0);
    }
}

#[test]
fn a_full_file_says_how_much_is_missing() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("small.json");
    let (bytes_max, counts) = (4096, TraceCounts::default());
    {
        let timeline = Timeline::new(Clock::start(), None, bytes_max).counted_in(counts.clone());
        timeline.start(&path, WorkerId(0)).unwrap();
        for number in 0..1000 {
            timeline.record(Thread { id: 1, name: "main" }, "step", number, number + 1);
        }
        timeline.stop();
    }
    let text = std::fs::read_to_string(place.path().join("small.0.json")).unwrap();
    assert!(text.len() as u64 <= bytes_max + 100, "{} B", text.len());
    let events = read(&text);
    let written = events.iter().filter(|event| event["ph"] == "X").count() as u64;
    let lost = &events.last().unwrap()["args"]["count"];
    assert!(written > 0);
    assert_eq!(lost.as_u64(), Some(1000 - written));
    let counted = |cell: &BySink| match cell.value() {
        Number::Family(sinks) => sinks[Sink::Timeline as usize].1,
        other => panic!("{other:?}"),
    };
    assert_eq!((counted(&counts.events), counted(&counts.lost)), (1001, 1000 - written), "with the name of the row");
}

#[test]
fn a_file_that_nobody_completed_can_be_read() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("killed.json");
    let writer = Writer::open(
        &path,
        Owner::Worker(WorkerId(1)),
        1 << 20,
        Clocks { own: Clock::start(), job: None },
        TraceCounts::default(),
    )
    .unwrap();
    // The head is there before `open` returns, and whole lines follow.
    let text = std::fs::read_to_string(&path).unwrap();
    let closed = format!("{}]", text.trim_end().trim_end_matches(','));
    assert_eq!(read(&closed)[0]["args"]["member"], "worker 1");
    drop(writer);
}

#[test]
fn only_one_timeline_is_recorded_at_a_time() {
    let place = tempfile::tempdir().unwrap();
    let timeline = Timeline::new(Clock::start(), None, 1 << 20);
    timeline.start(place.path(), WorkerId(0)).unwrap();
    assert!(matches!(timeline.start(place.path(), WorkerId(0)), Err(Error::FailedPrecondition { .. })));
    timeline.stop();
    timeline.start(place.path(), WorkerId(0)).unwrap();
}

#[test]
fn older_timelines_of_the_same_name_are_kept_up_to_nine() {
    let place = tempfile::tempdir().unwrap();
    let thread = Thread { id: 1, name: "main" };
    let record = |place: &Path, number: u32| {
        let timeline = Timeline::new(Clock::start(), None, 1 << 20);
        let path = timeline.start(place, WorkerId(0)).unwrap();
        timeline.record(thread, &number.to_string(), 0, 1);
        timeline.stop();
        path
    };
    for (place, name) in [(place.path().to_owned(), "comm"), (place.path().join("step.json"), "step.0")] {
        let mut newest = PathBuf::new();
        for number in 1..=12 {
            newest = record(&place, number);
        }
        let told = |name: String| spans(&newest.with_file_name(name))[0]["name"].clone();
        assert_eq!(newest.file_name().unwrap().to_str(), Some(&*format!("{name}.json")));
        assert_eq!(told(format!("{name}.json")), "12");
        assert_eq!([1, 2, 9].map(|age| told(format!("{name}-{age}.json"))), ["11", "10", "3"]);
        assert!(!newest.with_file_name(format!("{name}-10.json")).exists());
        // The chain ends at a free name: what is older stays.
        std::fs::remove_file(newest.with_file_name(format!("{name}-1.json"))).unwrap();
        record(&place, 13);
        assert_eq!([1, 2, 9].map(|age| told(format!("{name}-{age}.json"))), ["12", "10", "3"]);
    }
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let timeline = Timeline::new(Clock::start(), None, 1 << 20);
    let error = timeline.start(Path::new("/dev/null/timeline"), WorkerId(0)).unwrap_err();
    assert!(error.to_string().contains("/dev/null/timeline/0/comm.json"), "{error}");
}

fn record(folder: &Path, script: impl FnOnce(&Arc<Timeline>)) -> PathBuf {
    let timeline = Arc::new(Timeline::new(Clock::start(), None, 1 << 20));
    let path = timeline.start(folder, WorkerId(3)).unwrap();
    assert_eq!(path, folder.join("3/comm.json"));
    script(&timeline);
    timeline.stop();
    path
}

fn scheduler() -> Scheduler {
    Scheduler::new(SchedulerConfig::default(), Pipeline::for_role(&Topology::flat(2, DeviceKind::Host)))
}

fn submit(scheduler: &mut Scheduler) -> (TaskId, Subject) {
    let subject = Subject {
        part: PartId { key: TensorKey(1), index: 2 },
        round: Round(5),
        bytes: 100,
        priority: Priority(-3),
        server: ServerId(1),
        is_residual: false,
    };
    let Subject { part, round, bytes, priority, server, .. } = subject;
    let group = scheduler.open_group(at(0), "weight".into(), round, 1, None);
    let task = scheduler.submit(
        at(0),
        TaskSpec { part, server, bytes, round, priority, route: Route::host(Duty::Owner), groups: vec![group] },
    );
    (task, subject)
}

fn at(micros: u64) -> Time {
    Time::ZERO + Duration::from_micros(micros)
}

fn spans(path: &Path) -> Vec<Value> {
    let events = read(&std::fs::read_to_string(path).unwrap());
    events.into_iter().filter(|event| event["ph"] == "X").collect()
}

/// What the rows of parts are about.
fn rows(path: &Path) -> Vec<Value> {
    let events = read(&std::fs::read_to_string(path).unwrap());
    let mut rows: Vec<Value> = events.into_iter().filter(|event| event["name"] == "thread_name").collect();
    rows.iter_mut().map(|row| row["args"].take()).collect()
}

fn read(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in:\n{text}"))
}
