//! Dumps of former runs and of former members.

use super::*;

#[test]
fn a_member_that_has_only_the_dump_of_a_former_run_has_none() {
    let text = explained(&[
        worker(0).sum("w", 3, 10, Ended::Open).of(2).with("epoch", "epoch 8.1"),
        worker(1).sum("w", 3, 10, Ended::Well).of(2).with("epoch", "epoch 7.9"),
        coordinator().happened(5, "lost", None, "an old loss").with("epoch", "epoch 7.9"),
    ]);
    assert_in_order(
        &text,
        &[
            "Job night, epoch 8.1: dumps of 1 of 2 workers.\n",
            "There is no dump of worker 1.\n",
            "The dumps of worker 1 and the coordinator are of a former run of the job, and are left out.\n",
            "Worker 1 held the job up, as far as the dumps say.\n",
        ],
    );
    assert!(!text.contains("epoch 7.9") && !text.contains("an old loss"), "{text}");
}

#[test]
fn of_equal_terms_what_was_written_before_the_newest_run_began_is_of_a_former_run() {
    // A member at these seconds since 1970, from its begin to its dump.
    let at =
        |case: Case, begin: u64, end: u64| case.with("now_ns", (end - begin) * SECOND).with("unix_ns", end * SECOND);
    let said = |others: [Case; 2]| {
        let newest = at(worker(0).of(4), 1_000, 1_090);
        let [one, other] = others;
        explained(&[newest, one, other])
    };
    // Worker 1 was lost, and worker 2 came then: both were there at the same time as worker 0.
    let text = said([at(worker(1), 1_001, 1_010), at(worker(2), 1_020, 1_080)]);
    assert!(text.contains("dumps of 3 of 4 workers.\n") && !text.contains("former run"), "{text}");
    let text = said([at(worker(1), 800, 950), at(worker(2), 900, 1_001)]);
    assert!(text.contains("dumps of 3 of 4 workers.\n"), "worker 2 joins both to one run: {text}");
    let text = said([at(worker(1), 800, 950), at(worker(2), 900, 999)]);
    assert_in_order(
        &text,
        &[
            "dumps of 1 of 4 workers.\n",
            "There is no dump of workers 1, 2 and 3.\n",
            "The dumps of worker 1 and worker 2 are of a former run of the job, and are left out.\n",
        ],
    );
    let unknown = |case: Case| case.with("index", Value::Null).with("epoch", Value::Null);
    let text = said([at(unknown(worker(1)), 800, 950), at(unknown(worker(2)), 1_095, 1_096)]);
    assert_in_order(
        &text,
        &[
            "The process n2 pid 102 has no rank: it had not joined the job.\n",
            "The dump of a process is of a former run of the job, and is left out.\n",
        ],
    );
    assert!(!text.contains("The process n1"), "{text}");
    let text = said([at(worker(1), 800, 950).with("unix_ns", Value::Null), at(worker(2), 1_020, 1_080)]);
    assert!(text.contains("dumps of 3 of 4 workers.\n"), "it does not say when it was: {text}");
}

#[test]
fn the_clock_of_the_job_tells_runs_apart_where_wall_clocks_differ() {
    let elsewhere = worker(1).of(2).with("unix_ns", 90_000 * SECOND);
    let told = |case: Case| case.with("job_unix_ns", 5_000 * SECOND).with("job_error_ns", 1);
    let text = explained(&[worker(0).of(2), elsewhere]);
    assert!(text.contains("The dump of worker 0 is of a former run of the job, and is left out."), "{text}");
    let elsewhere = worker(1).of(2).with("unix_ns", 90_000 * SECOND);
    let text = explained(&[told(worker(0).of(2)), told(elsewhere)]);
    assert!(text.contains("dumps of 2 of 2 workers."), "{text}");
}

#[test]
fn a_run_that_never_formed_is_newer_than_one_that_did() {
    let text = explained(&[
        coordinator().with("epoch", "epoch 8.0"),
        worker(0).sum("w", 3, 10, Ended::Open).of(1).with("epoch", "epoch 7.1"),
        worker(1).with("index", Value::Null).with("epoch", Value::Null),
    ]);
    assert_in_order(
        &text,
        &[
            "Job night, epoch 8.0: dumps of 0 of 0 workers and the coordinator.\n",
            "The process n1 pid 101 has no rank: it had not joined the job.\n",
            "The dump of worker 0 is of a former run of the job, and is left out.\n",
            "No sum waits in these dumps.\n",
        ],
    );
}

#[test]
fn the_last_report_of_the_run_counts_and_not_the_longest() {
    let report = |term: u32, began: u64, lasted: u64| Report {
        epoch: format!("epoch {term}.2"),
        began_unix_ns: began * SECOND,
        duration_ns: lasted * SECOND,
        ..Job::default().report()
    };
    let dumps = [worker(0).of(1)];
    let said = |reports: &[Report]| {
        let text = explained_with(&dumps, reports);
        let told = text.split("By the metrics of all members in its ").nth(1);
        told.and_then(|told| told.split(' ').next()).map(str::to_owned)
    };
    let one = || report(1, 5, 9);
    assert_eq!(said(&[one(), report(0, 5, 30), report(1, 4, 20), report(2, 5, 40)]).as_deref(), Some("9.0"));
    assert_eq!(said(&[one(), report(1, 5, 12)]).as_deref(), Some("12.0"), "it was written later");
    let mut newer = worker(0).of(1).with("unix_ns", 99 * SECOND);
    newer.0["now_ns"] = SECOND.into();
    assert!(!explained_with(&[newer], &[one()]).contains("By the metrics"), "the report is of a former run");
}

#[test]
fn the_members_without_a_dump_are_those_of_the_newest_epoch() {
    let text = explained(&[
        worker(0).among(&[0, 3, 5]).with("servers", json!([1, 4])).with("epoch", "epoch 1.10"),
        worker(3).among(&[0, 1, 3, 5]).with("servers", json!([0, 1, 4])).with("epoch", "epoch 1.9"),
        server(4).among(&[0, 3, 5]).with("epoch", "epoch 1.10"),
    ]);
    assert_in_order(
        &text,
        &[
            "Job night, epoch 1.9, epoch 1.10: dumps of 2 of 3 workers and 1 of 2 servers.\n",
            "There is no dump of worker 5.\nThere is no dump of server 1.\n",
        ],
    );
}

#[test]
fn a_member_that_was_lost_before_is_not_blamed_for_a_round_of_the_others() {
    let text = explained(&[
        worker(0).sum("w", 3, 10, Ended::Open).among(&[0, 2]).with("epoch", "epoch 1.3"),
        worker(1).sum("w", 1, 5, Ended::Well).of(3),
        worker(2).sum("w", 2, 9, Ended::Well).among(&[0, 2]).with("epoch", "epoch 1.3"),
    ]);
    assert_in_order(
        &text,
        &[
            "dumps of 2 of 2 workers.\n",
            "Worker 1 was lost or left before epoch 1.3.\n",
            "Worker 2 held the job up.\n",
            "Worker 0 submitted `w` round 3, and worker 2 did not.\n",
            "  worker 1 (n1 pid 101, ",
        ],
    );
}
