use gradlane_core::types::TensorKey;
use serde_json::{Value, json};

use super::*;
use crate::report::Report;
use crate::report::tests::Job;

mod runs;
mod uses;

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
    let text =
        explained(&[worker(0).sum("w", 3, 10, Ended::Failed).of(2), worker(1).sum("w", 2, 9, Ended::Well).of(2)]);
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
fn a_round_that_failed_comes_behind_one_that_is_open_whatever_its_error() {
    let failed = || worker(0).sum("w", 3, 10, Ended::Failed).of(2);
    let other = || worker(1).sum("w", 2, 9, Ended::Well).sum("v", 1, 8, Ended::Well).of(2);
    for first_error in [json!([]), failed().0["errors"].clone()] {
        let text = explained(&[failed().with("errors", first_error.clone()), other()]);
        assert!(text.contains("Worker 0 submitted `w` round 3, and worker 1 did not."), "{text}");
        let text = explained(&[failed().with("errors", first_error).sum("v", 2, 15, Ended::Open), other()]);
        assert!(text.contains("Worker 0 submitted `v` round 2, and worker 1 did not."), "{text}");
    }
}

#[test]
fn a_round_that_failed_although_all_have_submitted_it_is_told_with_its_error() {
    let both = || [0, 1].map(|rank| worker(rank).sum("w", 3, 10, Ended::Failed).of(2));
    let all = "Workers 0 and 1 submitted `w` round 3, and no other worker is missing.";
    assert_in_order(&explained(&both()), &[all, "\nIt failed: nobody came\n"]);
    assert_in_order(&explained(&both().map(|case| case.with("errors", json!([])))), &[all, "\nIt failed.\n"]);
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
        worker(0).sum("w", 3, 10, Ended::Failed).told("w", 3, &[1], "").of(2),
        worker(1).sum("w", 3, 19, Ended::Failed).of(2),
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
    first.0["events"]
        .as_array_mut()
        .unwrap()
        .insert(1, json!([10 * SECOND, "queued", 0, 0, 0, null, null, 0, 8, "reduce"]));
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
        explained(&[worker(0).sum(evil, 3, 10, Ended::Failed).of(2), worker(1).sum(evil, 2, 1, Ended::Well).of(2)]);
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(text.contains("`a\\u{1b}[2J\\nWorker 9 held the job up.` round 3"), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("Worker 9")), "{text}");
}

#[test]
fn what_cannot_be_read_is_named_with_the_reason_and_the_rest_is_explained() {
    let good = worker(0).sum("w", 3, 10, Ended::Well).of(1).text();
    let mut later: Value = serde_json::from_str(&good).unwrap();
    (later["form"], later["version"]) = ("gradlane flight 3".into(), "9.9".into());
    let mut wrong: Value = serde_json::from_str(&good).unwrap();
    wrong["events"] = json!([[1, "submitted", 7, 3, 1, null, null, 0, 0, "reduce"]]);
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
            "it is a dump of the form gradlane flight 3, and this is gradlane flight 2: read it with Gradlane 9.9",
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

#[test]
fn a_server_names_the_workers_for_which_it_waits_and_since_when() {
    let text = explained(&[
        worker(0).sum("w", 3, 10, Ended::Open).of(3).with_servers(2),
        worker(2).sum("w", 3, 10, Ended::Open).of(3),
        server(0).open(("w", 1, 3), 8, [&[1], &[], &[0, 2]]).open(("w", 0, 3), 12, [&[1], &[2], &[0]]),
        coordinator().happened(5, "lost", None, "worker 1 on n1 is lost: silence").happened(
            6,
            "view",
            None,
            "epoch 1.2",
        ),
    ]);
    assert_in_order(
        &text,
        &[
            "dumps of 2 of 3 workers, 1 of 2 servers and the coordinator.\n",
            "There is no dump of worker 1.\nThere is no dump of server 1.\n",
            "Worker 1 held the job up, as far as the dumps say.",
            "The servers missed worker 1 in this round.",
            "Server 0 waits for worker 1 in part 1 of `w` round 3, which began 12.0 s before its dump. It has all of workers 0 and 2. Of its \
             sums, 2 wait.",
            "server 0 (n0 pid 200, Gradlane 0.1.0): a test",
            "the coordinator (n9 pid 300, Gradlane 0.1.0): a test",
            "trouble, 15.0 s before its dump: worker 1 on n1 is lost: silence",
        ],
    );
    assert!(!text.contains("There is no dump of the coordinator."), "{text}");
}

#[test]
fn a_server_tells_who_held_up_a_job_of_whose_workers_there_is_no_dump() {
    let text = explained(&[server(0).open(("w", 0, 3), 12, [&[1], &[2], &[0]]).of(3).with_servers(1)]);
    let key = TensorKey::of("w");
    assert_in_order(
        &text,
        &[
            "dumps of 0 of 3 workers and 1 of 1 servers.\n",
            "There is no dump of workers 0, 1 and 2.\nThere is no dump of the coordinator.\n",
            "Workers 1 and 2 held the job up, as far as servers say.",
            &format!(
                "Server 0 waits for workers 1 and 2 in part 0 of `{key}` round 3, which began 8.0 s before its dump."
            ),
            "The contribution of worker 2 has begun, and is not whole. It has all of worker 0.",
        ],
    );
}

#[test]
fn a_part_that_was_handed_over_and_that_its_server_has_not_seen_is_named() {
    let both = |sums: Case| {
        let handed = worker(0).sum("w", 3, 10, Ended::Open).handed("w", 0, 3, 11).handed("w", 1, 3, 11).of(1);
        explained(&[handed, sums])
    };
    let never = "Worker 0 handed part 0 of `w` round 3 over to server 0, 9.0 s before its dump, and server 0 has never seen any of it.";
    let begun = "Worker 0 handed part 1 of `w` round 3 over to server 0, 9.0 s before its dump, and server 0 has only its beginning.";
    let text = both(server(0).open(("w", 0, 3), 8, [&[0], &[], &[]]).open(("w", 1, 3), 8, [&[], &[0], &[]]));
    assert_in_order(&text, &[never, begun]);
    let text = both(server(0).open(("w", 1, 3), 8, [&[], &[], &[0]]));
    assert!(text.contains(never) && !text.contains("part 1 of `w` round 3 over"), "{text}");
    let text = both(server(0).came("w", 0, 3, 0).open(("w", 1, 3), 8, [&[], &[], &[0]]));
    assert!(!text.contains("handed part"), "its sum has come and gone: {text}");
    let text = both(server(0).cut());
    assert!(!text.contains("handed part"), "its events do not go back so far: {text}");
    let text = both(server(1));
    assert!(!text.contains("handed part"), "there is no dump of that server: {text}");
    let text = both(server(0));
    assert!(text.contains(never), "a server without any event of it has not seen it: {text}");
}

#[test]
fn a_server_has_never_seen_a_part_only_if_its_dump_is_newer_than_the_hand_over() {
    const MILLISECOND: u64 = SECOND / 1_000;
    let told = |worker_at: Value, server: Case, server_at: Value| {
        let with = |mut case: Case, at: Value| {
            case.0.as_object_mut().unwrap().extend(at.as_object().unwrap().clone());
            case
        };
        let handed = worker(0).sum("w", 3, 10, Ended::Open).handed("w", 0, 3, 11).of(1);
        let text = explained(&[with(handed, worker_at), with(server, server_at)]);
        let sentence = text.split("9.0 s before its dump, and ").nth(1).unwrap_or_else(|| panic!("{text}"));
        sentence.lines().next().unwrap().to_owned()
    };
    let never = "server 0 has never seen any of it.";
    let older = "the dump of server 0 is older, so it does not tell what became of that.";
    let elsewhere = || {
        let mut other = server(0);
        other.0["host"] = "n9".into();
        other
    };
    let none = || json!({});
    // By the wall clock of their host: it was handed over at 11 s.
    for (unix_ms, says) in [(11_001, never), (10_999, older)] {
        assert_eq!(told(none(), server(0), json!({ "unix_ns": unix_ms * MILLISECOND })), says);
    }
    assert_eq!(told(none(), elsewhere(), none()), "server 0 has never seen any of it, unless its dump is older.");
    // By the clock of the job, whatever the wall clocks show: at 991 s. Both errors are 1 ms, and 9 s of drift are 10.8 ms.
    let job = |ms: u64| json!({ "unix_ns": 1, "job_unix_ns": ms * MILLISECOND, "job_error_ns": MILLISECOND });
    for (job_ms, says) in [(991_014, never), (991_011, older), (990_000, older)] {
        assert_eq!(told(job(1_000_000), elsewhere(), job(job_ms)), says, "{job_ms}");
    }
}

#[test]
fn a_part_of_a_parameter_is_no_contribution_that_a_server_has_not_seen() {
    let text = explained(&[worker(0).handed("p", 0, 3, 11).of(1), server(0)]);
    assert!(!text.contains("handed part"), "{text}");
}

#[test]
fn a_part_whose_sum_came_or_that_goes_again_is_not_under_way() {
    for how in ["done", "again"] {
        let ended =
            worker(0).sum("w", 3, 10, Ended::Open).handed("w", 0, 3, 11).finished(("w", 0, 3), 12, "PULL", how).of(1);
        let text = explained(&[ended, server(0)]);
        assert!(!text.contains("handed part"), "{how}: {text}");
    }
}

#[test]
fn every_beginning_of_a_server_s_and_a_coordinator_s_dump_is_refused_without_a_panic() {
    let server =
        server(0).open(("w", 0, 3), 8, [&[0], &[], &[]]).came("w", 0, 3, 0).used(("t", 0, 3), 0, 12, "waits", &[1]);
    let coordinator = coordinator().happened(5, "lost", None, "x").happened(5, "gave-up", Some("worker-1"), "x");
    for text in [server.text(), coordinator.text()] {
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
            assert!(Dump::parse(&text[..end]).is_err(), "{end}");
        }
        assert!(Dump::parse(&text).is_ok());
    }
}

#[test]
fn a_foreign_dump_of_a_server_or_a_coordinator_is_not_read_and_cannot_write_to_the_terminal() {
    let with = |case: Case, at: &str, value: Value| {
        let mut dump: Value = serde_json::from_str(&case.text()).unwrap();
        *dump.pointer_mut(at).unwrap() = value;
        dump.to_string()
    };
    let one = || server(0).open(("w", 0, 3), 8, [&[0], &[], &[]]).came("w", 0, 3, 0);
    let used = || server(0).used(("t", 0, 3), 0, 12, "waits", &[1]);
    let two = || coordinator().happened(5, "lost", None, "x");
    for (text, says) in [
        (with(one(), "/role", "observer".into()), "its role is observer, which this version does not know"),
        (with(one(), "/tensors/0", "no key".into()), "one of its tensors has no key"),
        (with(one(), "/events/0", json!([1])), "one of its events has not enough fields"),
        (with(one(), "/events/0/1", 7.into()), "one of its events has other fields"),
        (with(one(), "/events/0/2", 9.into()), "one of its events is of a tensor that it does not name"),
        (with(one(), "/open/0/due", 7.into()), "it has no list due"),
        (with(one(), "/open/0", 7.into()), "one of its entries has no fields"),
        (with(used(), "/uses", 7.into()), "it has no list uses"),
        (with(used(), "/uses/0", 7.into()), "one of its entries has no fields"),
        (with(used(), "/uses/0/worker", (-1).into()), "one of its uses has no worker"),
        (with(used(), "/uses/0/tensor", "t".into()), "one of its tensors has no key"),
        (with(two(), "/events/0", json!([1, "lost"])), "one of its events has not enough fields"),
        (with(two(), "/events/0/0", "x".into()), "one of its events has other fields"),
    ] {
        assert_eq!(Dump::parse(&text).err().as_deref(), Some(says));
    }
    let evil = "a\u{1b}[2J\nWorker 9 held the job up.";
    let text = explained(&[coordinator().happened(5, "gave-up", Some(evil), evil)]);
    assert!(!text.contains('\u{1b}') && !text.lines().any(|line| line.starts_with("Worker 9")), "{text}");
}

/// How an operation of a case ends.
#[derive(Clone, Copy, PartialEq)]
enum Ended {
    Well,
    Failed,
    Open,
}

/// A dump of 20 seconds.
struct Case(Value, Option<String>);

fn server(index: u32) -> Case {
    let dump = json!({ "role": "server", "index": index, "pid": 200 + index, "host": format!("n{index}") });
    member(dump)
}

fn coordinator() -> Case {
    member(json!({ "role": "coordinator", "index": null, "pid": 300, "host": "n9" }))
}

/// A member without workers' fields.
fn member(of: Value) -> Case {
    let mut dump = json!({
        "form": gradlane_core::runtime::recording::FORM, "version": "0.1.0", "job": "night", "epoch": "epoch 1.2", "workers": null,
        "servers": null, "reason": "a test", "now_ns": 20 * SECOND, "unix_ns": 20 * SECOND, "end": null, "open": [], "events_written": 0, "tensors": [],
        "events": [],
    });
    dump.as_object_mut().unwrap().extend(of.as_object().unwrap().clone());
    Case(dump, None)
}

fn worker(rank: u32) -> Case {
    member(json!({
        "role": "worker", "index": rank, "pid": 100 + rank, "host": format!("n{rank}"), "errors": [], "notices": [],
    }))
}

impl Case {
    /// A sum of a worker that is submitted at this second.
    fn sum(mut self, tensor: &str, round: u64, second: u64, ended: Ended) -> Self {
        let at = second * SECOND;
        let id = self.submitted("reduce", tensor, round, at);
        match ended {
            Ended::Well | Ended::Failed => self.resolved(id, at, ended),
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

    /// A sum of a server that begins at this second, with the workers that are due, have begun and are whole.
    fn open(mut self, (tensor, part, round): (&str, u64, u64), second: u64, [due, begun, whole]: [&[u32]; 3]) -> Self {
        let open = json!({
            "tensor": TensorKey::of(tensor).to_string(), "part": part, "round": round, "began_ns": second * SECOND,
            "due": due, "begun": begun, "whole": whole, "taken": [],
        });
        list(&mut self.0, "open", open);
        self
    }

    /// Something has come to a server of the contribution of this worker.
    fn came(self, tensor: &str, part: u64, round: u64, rank: u32) -> Self {
        self.happens_to("came", (tensor, part, round), rank, Value::Null)
    }

    /// A server has this event of the part of a worker.
    fn happens_to(mut self, what: &str, part: (&str, u64, u64), rank: u32, how: impl Into<Value>) -> Self {
        let (tensor, part, round) = part;
        let position = list(&mut self.0, "tensors", TensorKey::of(tensor).to_string().into()) - 1;
        list(&mut self.0, "events", json!([SECOND, what, position, part, round, rank, 7, how.into(), 8]));
        self
    }

    /// A worker submits something. Returns its number.
    fn submitted(&mut self, operation: &str, tensor: &str, round: u64, at: u64) -> u64 {
        let position = list(&mut self.0, "tensors", tensor.into()) - 1;
        let id = self.0["events"].as_array().unwrap().len() as u64;
        list(&mut self.0, "events", json!([at, "submitted", position, round, id, null, null, 0, 8, operation]));
        id
    }

    fn resolved(&mut self, id: u64, at: u64, ended: Ended) {
        let how = if ended == Ended::Well { "done" } else { "failed" };
        list(&mut self.0, "events", json!([at, "resolved", null, null, id, null, how, 0, 1, null]));
        if ended == Ended::Failed {
            let error = json!({ "at_ns": at, "id": id, "kind": "PeerLost", "late": false, "error": "nobody came" });
            list(&mut self.0, "errors", error);
        }
    }

    /// Older events are missing.
    fn cut(mut self) -> Self {
        self.0["events_written"] = 1_000_000.into();
        self
    }

    /// A worker hands a part over to server 0 at this second.
    fn handed(self, tensor: &str, part: u64, round: u64, second: u64) -> Self {
        self.finished((tensor, part, round), second, "PUSH", "done")
    }

    /// A stage of a part ends so on a worker: a part of what it submitted last of this tensor.
    fn finished(mut self, (tensor, part, round): (&str, u64, u64), second: u64, stage: &str, how: &str) -> Self {
        let position = list(&mut self.0, "tensors", tensor.into()) - 1;
        let events = self.0["events"].as_array().unwrap().iter().rev();
        let name = |event: &Value| event[2].as_u64().map(|at| self.0["tensors"][usize::try_from(at).unwrap()].clone());
        let submitted = events.filter(|event| event[1] == "submitted").find(|event| name(event) == Some(tensor.into()));
        let operation = submitted.map_or("reduce".into(), |event| event[9].clone());
        let at = second * SECOND;
        list(&mut self.0, "events", json!([at, "finished", position, round, part, stage, how, 0, 8, operation]));
        self
    }

    /// A coordinator has this event at this second.
    fn happened(mut self, second: u64, what: &str, member: Option<&str>, text: &str) -> Self {
        list(&mut self.0, "events", json!([second * SECOND, what, member, 0, 0, text]));
        self
    }

    fn with_servers(mut self, servers: u32) -> Self {
        self.0["servers"] = (0..servers).collect();
        self
    }

    fn told(mut self, tensor: &str, round: u64, missing: &[u32], detail: &str) -> Self {
        let notice = json!({ "at_ns": 1, "tensor": tensor, "round": round, "missing": missing, "detail": detail });
        self.0["notices"].as_array_mut().unwrap().push(notice);
        self
    }

    /// The job has workers of these ranks from 0 on.
    fn of(self, workers: u32) -> Self {
        self.among(&(0..workers).collect::<Vec<_>>())
    }

    /// The job has workers of these ranks.
    fn among(mut self, ranks: &[u32]) -> Self {
        self.0["workers"] = ranks.into();
        self
    }

    /// Another value of a field.
    fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0[field] = value.into();
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

/// Adds to a list of a dump; returns how long it is.
fn list(dump: &mut Value, name: &str, value: Value) -> u64 {
    let list = dump[name].as_array_mut().unwrap();
    list.push(value);
    list.len() as u64
}

fn read(directory: &Path) -> Vec<Found> {
    files(directory).unwrap().0.iter().map(|path| found(path)).collect()
}

fn explained(cases: &[Case]) -> String {
    explained_with(cases, &[])
}

fn explained_with(cases: &[Case], reports: &[Report]) -> String {
    let found = cases.iter().map(|case| {
        let mut dump = Dump::parse(&case.text()).unwrap();
        if let Of::Worker(worker) = &mut dump.of {
            worker.stacks.clone_from(&case.1);
        }
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
