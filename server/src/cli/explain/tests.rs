use serde_json::{Value, json};

use super::*;
use crate::report::Report;
use crate::report::tests::Job;

const SECOND: u64 = 1_000_000_000;

#[test]
fn the_worker_that_did_not_submit_is_named_with_what_it_did_last() {
    let text = explained(&[
        worker(0).sum("layer3", 811, 10, Ended::Well).sum("layer4", 812, 12, Ended::Open).of(3),
        worker(1)
            .sum("layer4", 811, 3, Ended::Well)
            .sum("layer3", 812, 8, Ended::Well)
            .of(3)
            .stacks("loader.py:17 (next_batch)"),
        worker(2).sum("layer4", 812, 11, Ended::Open).of(3),
    ]);
    assert_in_order(
        &text,
        &[
            "Job night, epoch 1.2: dumps of 3 of 3 workers.",
            "Worker 1 held the job up.",
            "Workers 0 and 2 submitted `layer4` round 812, and worker 1 did not.",
            "The last submission of worker 1 was `layer3` round 812, 12.0 s before its dump. By its Python stacks it was in loader.py:17 (next_batch).",
        ],
    );
}

#[test]
fn a_report_beside_the_dumps_tells_what_servers_saw() {
    let report = Job::default().report();
    let other = Report { job: "day".to_owned(), duration_ns: report.duration_ns + 1, ..report.clone() };
    let text = explained_with(&[worker(0).sum("w", 3, 10, Ended::Well).of(1)], &[other, report]);
    let expected = "By the metrics of all members in its 10.0 s until its report: rank 1 late (submit) 40.0 ms a step.";
    assert_in_order(&text, &["No sum waits in these dumps.", expected]);
}

#[test]
fn a_round_that_failed_because_nobody_came_is_explained_as_one_that_is_open() {
    let text = explained(&[worker(0).sum("w", 3, 10, Ended::Late).of(2), worker(1).sum("w", 2, 9, Ended::Well).of(2)]);
    assert_in_order(
        &text,
        &[
            "Worker 1 held the job up.",
            "Worker 0 submitted `w` round 3, and worker 1 did not.",
            "worker 0 (n0 pid 100, Gradlane 0.1.0): a test",
            "first error, 10.0 s before its dump: nobody came",
        ],
    );
}

#[test]
fn of_several_rounds_that_wait_the_one_that_waits_longest_counts() {
    let text = explained(&[
        worker(0).sum("first", 5, 10, Ended::Open).sum("second", 5, 15, Ended::Open).of(2),
        worker(1).sum("first", 4, 2, Ended::Well).sum("second", 4, 3, Ended::Well).of(2),
    ]);
    assert!(text.contains("Worker 0 submitted `first` round 5, and worker 1 did not."), "{text}");
}

#[test]
fn a_worker_without_a_dump_is_named_and_suspected() {
    let text = explained(&[worker(0).sum("w", 3, 10, Ended::Open).of(3), worker(2).sum("w", 3, 10, Ended::Open).of(3)]);
    assert_in_order(
        &text,
        &[
            "dumps of 2 of 3 workers.",
            "There is no dump of worker 1.",
            "Worker 1 held the job up, as far as the dumps say.",
            "Workers 0 and 2 submitted `w` round 3. There is no dump of worker 1.",
        ],
    );
}

#[test]
fn what_the_servers_missed_decides_between_workers_that_did_not_submit() {
    let text = explained(&[
        worker(0).sum("w", 3, 10, Ended::Open).told("w", 3, &[2], "rank 2 submitted v").of(3),
        worker(1).of(3),
        worker(2).sum("v", 3, 9, Ended::Well).of(3),
    ]);
    assert_in_order(
        &text,
        &[
            "Worker 2 held the job up.",
            "Worker 0 submitted `w` round 3, and worker 2 did not.",
            "The servers missed worker 2 in this round.",
            "They said: rank 2 submitted v",
        ],
    );
    let late = explained(&[
        worker(0).sum("w", 3, 10, Ended::Late).told("w", 3, &[1], "").of(2),
        worker(1).sum("w", 3, 19, Ended::Late).of(2),
    ]);
    assert!(late.contains("Worker 1 held the job up, and came late to `w` round 3."), "{late}");
}

#[test]
fn a_worker_that_never_uses_a_tensor_is_not_blamed_for_it() {
    let text = explained(&[
        worker(0).sum("of two", 3, 10, Ended::Open).of(3),
        worker(1).sum("of two", 2, 5, Ended::Well).of(3),
        worker(2).sum("other", 9, 12, Ended::Well).of(3),
    ]);
    assert!(text.contains("Worker 0 submitted `of two` round 3, and worker 1 did not."), "{text}");
}

#[test]
fn a_sum_that_all_have_submitted_waits_for_its_servers() {
    let both = [0, 1].map(|rank| worker(rank).sum("w", 3, 10, Ended::Open).of(2));
    let text = explained(&both);
    assert!(text.contains("Workers 0 and 1 submitted `w` round 3, and no other worker is missing."), "{text}");
    assert!(text.contains("Of its 4 parts, 4 were handed over to servers and 1 were answered"), "{text}");
    assert!(text.contains("on server 1"), "{text}");
}

#[test]
fn a_job_in_which_nothing_waits_blames_nobody() {
    let text = explained(&[0, 1].map(|rank| worker(rank).sum("w", 3, 10, Ended::Well).of(2)));
    assert!(text.contains("No sum waits in these dumps."), "{text}");
    assert!(!text.contains("held the job up"), "{text}");
}

#[test]
fn a_round_that_its_worker_learned_only_later_is_the_one_of_its_part() {
    let mut first = worker(1).sum("w", 0, 9, Ended::Well).of(2);
    first.0["events"][0][3] = Value::Null;
    first.0["events"].as_array_mut().unwrap().insert(1, json!([10 * SECOND, "queued", 0, 0, 0, null, null, 0, 8]));
    let text = explained(&[worker(0).sum("w", 0, 5, Ended::Well).sum("w", 1, 10, Ended::Open).of(2), first]);
    assert!(text.contains("The last submission of worker 1 was `w` round 0, 11.0 s before its dump."), "{text}");
}

#[test]
fn two_jobs_in_one_directory_are_explained_apart() {
    let other = worker(0).sum("w", 3, 10, Ended::Well).of(1).named("day");
    let text = explained(&[worker(0).sum("w", 3, 10, Ended::Well).of(1), other]);
    assert_in_order(&text, &["Job day,", "Job night,"]);
}

#[test]
fn names_and_errors_cannot_write_to_the_terminal() {
    let evil = "a\u{1b}[2J\nWorker 9 held the job up.";
    let text =
        explained(&[worker(0).sum(evil, 3, 10, Ended::Late).of(2), worker(1).sum(evil, 2, 1, Ended::Well).of(2)]);
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(text.contains("`a\\u{1b}[2J\\nWorker 9 held the job up.` round 3"), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("Worker 9")), "{text}");
}

#[test]
fn what_cannot_be_read_is_named_with_the_reason_and_the_rest_is_explained() {
    let good = worker(0).sum("w", 3, 10, Ended::Well).of(1).text();
    let mut later: Value = serde_json::from_str(&good).unwrap();
    (later["form"], later["version"]) = ("gradlane flight 2".into(), "9.9".into());
    let mut wrong: Value = serde_json::from_str(&good).unwrap();
    wrong["events"] = json!([[1, "submitted", 7, 3, 1, null, "reduce", 0, 0]]);
    let mut short: Value = serde_json::from_str(&good).unwrap();
    short["events"] = json!([[1]]);
    for (text, says) in [
        (good[..good.len() / 2].to_owned(), "it is cut off: copy it again, or have it written again"),
        (String::new(), "it is cut off"),
        ("[1]".to_owned(), "it is no dump: it has no fields"),
        ("{}".to_owned(), "it has no text form"),
        ("nonsense".to_owned(), "it is no dump: "),
        (
            later.to_string(),
            "it is a dump of the form gradlane flight 2, and this is gradlane flight 1: read it with Gradlane 9.9",
        ),
        (wrong.to_string(), "one of its events is of a tensor that it does not name"),
        (short.to_string(), "one of its events has not enough fields"),
    ] {
        let found = |file: &str, text: &str| Found { file: file.to_owned(), content: Dump::parse(text) };
        let text = verdict::explain(&[found("good", &good), found("bad\u{7}", &text)], &[]);
        assert!(text.contains("dumps of 1 of 1 workers"), "{text}");
        assert!(text.contains(&format!("Not read:\n  bad\\u{{7}}: {says}")), "{says}: {text}");
    }
}

#[test]
fn every_beginning_of_a_dump_is_refused_without_a_panic() {
    let text = worker(0).sum("w", 3, 10, Ended::Open).told("w", 3, &[1], "d").of(2).text();
    for end in (0..text.trim_end().len()).filter(|end| text.is_char_boundary(*end)) {
        assert!(Dump::parse(&text[..end]).is_err(), "{end}");
    }
    assert!(Dump::parse(&text).is_ok());
}

#[test]
fn the_dumps_of_a_directory_are_read_with_the_stacks_beside_them() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("night-worker-0.flight.json", &worker(0).sum("w", 3, 10, Ended::Open).of(2).text());
    write("night-worker-1.flight.json", &worker(1).sum("w", 2, 9, Ended::Well).of(2).text());
    write(".night-worker-1.flight.json.77", "half");
    write("notes.txt", "no dump");
    write("night-worker-1.stacks.txt", STACKS_OF_TWO_THREADS);
    let found = read(dir.path());
    assert_eq!(found.len(), 2);
    assert!(
        verdict::explain(&found, &[])
            .contains("it was in loader.py:17 (next_batch), called from train.py:40 (<module>).")
    );
    std::fs::write(dir.path().join("bytes.flight.json"), [0xff, 0xfe]).unwrap();
    assert!(verdict::explain(&read(dir.path()), &[]).contains("bytes.flight.json: it is no text"));
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(explain(empty.path()), Err(Error::NotFound { .. })));
    assert!(matches!(explain(&empty.path().join("nowhere")), Err(Error::Io { .. })));
}

#[test]
fn the_innermost_functions_of_the_main_thread_that_are_not_gradlanes_are_told() {
    assert_eq!(
        stacks::main_thread(STACKS_OF_TWO_THREADS).as_deref(),
        Some("loader.py:17 (next_batch), called from train.py:40 (<module>)")
    );
    let deep: String = (0..9).map(|n| format!("  File \"/a/f{n}.py\", line {n} in g{n}\n")).collect();
    assert_eq!(
        stacks::main_thread(&format!("Current thread 0x1 (most recent call first):\n{deep}")).as_deref(),
        Some("f0.py:0 (g0), called from f1.py:1 (g1), called from f2.py:2 (g2)")
    );
    assert_eq!(stacks::main_thread("nothing of the kind"), None);
    assert_eq!(stacks::main_thread("Thread 0x1 (most recent call first):\n"), None);
    let only_ours = "Thread 0x1 (most recent call first):\n  File \"/x/gradlane/_handle.py\", line 5 in wait\n";
    assert_eq!(stacks::main_thread(only_ours).as_deref(), Some("_handle.py:5 (wait)"));
}

const STACKS_OF_TWO_THREADS: &str = "Thread 0x00007f02 (most recent call first):
  File \"/usr/lib/python3/threading.py\", line 300 in wait

Current thread 0x00007f01 (most recent call first):
  File \"/venv/gradlane/_operations.py\", line 9 in push_pull
  File \"/home/me/loader.py\", line 17 in next_batch
  File \"/home/me/train.py\", line 40 in <module>
";

/// How an operation of a case ends.
#[derive(Clone, Copy, PartialEq)]
enum Ended {
    Well,
    Late,
    Open,
}

/// A dump of 20 seconds.
struct Case(Value, Option<String>);

fn worker(rank: u32) -> Case {
    let dump = json!({
        "form": gradlane_core::engine::FLIGHT_FORM, "version": "0.1.0", "job": "night", "role": "worker", "index": rank, "pid": 100 + rank,
        "host": format!("n{rank}"), "epoch": "epoch 1.2", "workers": null, "reason": "a test", "now_ns": 20 * SECOND, "end": null,
        "errors": [], "notices": [], "open": [], "events_written": 0, "tensors": [], "events": [],
    });
    Case(dump, None)
}

impl Case {
    /// A sum that is submitted at this second.
    fn sum(mut self, tensor: &str, round: u64, second: u64, ended: Ended) -> Self {
        let at = second * SECOND;
        let list = |dump: &mut Value, name: &str, value: Value| {
            let list = dump[name].as_array_mut().unwrap();
            list.push(value);
            list.len() as u64
        };
        let position = list(&mut self.0, "tensors", tensor.into()) - 1;
        let id = self.0["events"].as_array().unwrap().len() as u64;
        list(&mut self.0, "events", json!([at, "submitted", position, round, id, null, "reduce", 0, 8]));
        let resolved = |how: &str| json!([at, "resolved", null, null, id, null, how, 0, 1]);
        match ended {
            Ended::Well => drop(list(&mut self.0, "events", resolved("done"))),
            Ended::Late => {
                list(&mut self.0, "events", resolved("failed"));
                let error = json!({ "at_ns": at, "id": id, "kind": "ContributionTimeout", "late": true, "error": "nobody came" });
                list(&mut self.0, "errors", error);
            }
            Ended::Open => {
                let open = json!({
                    "id": id, "tensor": tensor, "round": round, "submitted_ns": at, "operation": "reduce", "server": 1,
                    "parts": 4, "handed_over": 4, "answered": 1,
                });
                list(&mut self.0, "open", open);
            }
        }
        self
    }

    fn told(mut self, tensor: &str, round: u64, missing: &[u32], detail: &str) -> Self {
        let notice = json!({ "at_ns": 1, "tensor": tensor, "round": round, "missing": missing, "detail": detail });
        self.0["notices"].as_array_mut().unwrap().push(notice);
        self
    }

    fn of(mut self, workers: u32) -> Self {
        self.0["workers"] = workers.into();
        self
    }

    fn named(mut self, job: &str) -> Self {
        self.0["job"] = job.into();
        self
    }

    fn stacks(self, at: &str) -> Self {
        Self(self.0, Some(at.to_owned()))
    }

    fn text(&self) -> String {
        self.0.to_string()
    }
}

fn read(directory: &Path) -> Vec<Found> {
    files(directory).unwrap().0.iter().map(|path| found(path)).collect()
}

fn explained(cases: &[Case]) -> String {
    explained_with(cases, &[])
}

fn explained_with(cases: &[Case], reports: &[Report]) -> String {
    let found = cases.iter().map(|case| {
        let dump = Dump { stacks: case.1.clone(), ..Dump::parse(&case.text()).unwrap() };
        Found { file: "a".to_owned(), content: Ok(dump) }
    });
    verdict::explain(&found.collect::<Vec<_>>(), reports)
}

fn assert_in_order(text: &str, parts: &[&str]) {
    let mut at = 0;
    for part in parts {
        let found = text[at..].find(part);
        assert!(found.is_some(), "{part:?} in {text}");
        at += found.unwrap_or(0) + part.len();
    }
}
