use std::time::Duration;

use gradlane_core::types::Role;

use super::super::Report;
use super::super::compare::{Comparison, Scale, Unit, compare};
use super::Job;

#[test]
fn equal_runs_differ_in_nothing() {
    let report = Job::default().report();
    let Comparison { facts, differences, noise, doubt } = compare(&report, &report);
    assert_eq!((facts.len(), differences.len(), doubt), (0, 0, None));
    assert!(noise.iter().all(|difference| difference.change == 0.0), "{noise:?}");
    let text = compare(&report, &report).text();
    assert!(text.starts_with("settings, versions, members and hosts are the same\n"), "{text}");
    assert!(text.contains("\nnothing that was measured differs by 5 % or more\n"), "{text}");
}

#[test]
fn settings_come_first_and_the_largest_difference_follows() {
    let a = Job::default().report();
    let b = Job { credit: Some("1 MiB"), late: Duration::from_millis(70), seconds: 11, ..Job::default() }.report();
    let comparison = compare(&a, &b);
    let facts: Vec<_> = comparison.facts.iter().map(|fact| (fact.what.as_str(), fact.b.as_str())).collect();
    assert_eq!(facts, [("setting credit_bytes", "1 MiB")]);
    let whats: Vec<_> = comparison.differences.iter().map(|difference| difference.what.as_str()).collect();
    assert_eq!(whats, ["rank 1 late in a step", "a step"]);
    let first = &comparison.differences[0];
    assert!(first.scale == Scale::Step && (first.change - 0.3).abs() < 1e-9, "30 ms of a step of 100 ms: {first:?}");
    let text = comparison.text();
    assert!(text.contains("setting credit_bytes: 8 MiB -> 1 MiB\n"), "{text}");
    assert!(text.contains("\nrank 1 late in a step: 40.0 ms -> 70.0 ms (+30 % of a step)\n"), "{text}");
    assert!(text.contains("\na step: 100 ms -> 110 ms (+10 %)\n"), "{text}");
}

#[test]
fn small_differences_and_short_runs_are_noise() {
    let a = Job::default().report();
    // 4 ms more of a step of 100 ms.
    let b = Job { late: Duration::from_millis(44), ..Job::default() }.report();
    let comparison = compare(&a, &b);
    assert_eq!(comparison.differences, []);
    assert_eq!(comparison.noise[0].what, "rank 1 late in a step");
    assert!(comparison.text().contains("below 5 %, which is noise:\n  rank 1 late in a step: 40.0 ms -> 44.0 ms"));

    let short = Job { steps: 9, late: Duration::from_millis(90), ..Job::default() }.report();
    let comparison = compare(&a, &short);
    assert_eq!(comparison.differences, []);
    assert_eq!(comparison.doubt.as_deref(), Some("100 and 9 steps are too few to measure: fewer than 10 are noise"));
    assert!(!comparison.text().contains("nothing that was measured"), "{}", comparison.text());
}

#[test]
fn quantiles_differ_if_a_bucket_lies_between_them() {
    let a = Job::default().report();
    for (factor, differs) in [(0.2, true), (0.26, false), (4.0, false), (4.1, true)] {
        let mut b = a.clone();
        b.round.p99_ns = a.round.p99_ns.map(|p99| (p99 as f64 * factor) as u64);
        let comparison = compare(&a, &b);
        assert_eq!(comparison.differences.len(), usize::from(differs), "{factor}: {comparison:?}");
        assert!(comparison.text().contains("a round, p99: "), "{}", comparison.text());
    }
}

#[test]
fn each_fact_that_differs_is_named() {
    let a = Job::default().report();
    let told = |change: fn(&mut Report)| {
        let mut b = a.clone();
        change(&mut b);
        compare(&a, &b).facts.into_iter().map(|fact| fact.what).collect::<Vec<_>>()
    };
    assert_eq!(
        told(|report| drop(report.setup.versions.insert("gradlane".to_owned(), "9".to_owned()))),
        ["gradlane of the coordinator"]
    );
    assert_eq!(told(|report| report.members[0].host = "n7".to_owned()), ["hosts"]);
    assert_eq!(told(|report| report.end.reason = Some("it broke".to_owned())), ["end"]);
    assert_eq!(told(|report| report.losses.push("worker 1".to_owned())), ["losses"]);
    assert_eq!(told(|report| report.setup.settings.clear()), ["setting credit_bytes of the coordinator"]);
    assert_eq!(told(|report| report.verdict = "nobody is late".to_owned()), ["verdict"]);
    assert_eq!(told(|report| report.verdict = "rank 1 late (submit) 7.0 ms a step".to_owned()), Vec::<String>::new());
    assert_eq!(
        told(|report| report.verdict = "rank 1 late (submit) 250 ms a step: its data".to_owned()),
        Vec::<String>::new()
    );
    assert_eq!(told(|report| report.silent.push("worker 1".to_owned())), ["members that told nothing"]);
    let more = compare(&a, &Job { workers: 3, ..Job::default() }.report());
    assert_eq!(more.facts.iter().map(|fact| fact.what.as_str()).collect::<Vec<_>>(), ["workers", "hosts"]);
}

#[test]
fn what_only_one_report_has_is_not_measured_and_json_is_always_finite() {
    let a = Job { silent: vec![(Role::Worker, 0), (Role::Server, 0)], ..Job::default() }.report();
    let comparison = compare(&a, &Job::default().report());
    assert!(comparison.noise.iter().all(|difference| difference.what != "time that lanes of server 0 work"));
    let nothing = Job { workers: 0, servers: 0, formed: None, ..Job::default() }.report();
    for (one, other) in [(&a, &nothing), (&nothing, &a), (&nothing, &nothing)] {
        let json: serde_json::Value = serde_json::from_str(&compare(one, other).json()).unwrap();
        assert!(json["doubt"].is_string(), "{json}");
    }
    let from_nothing = Report { exposed: Some(0.0), ..Job::default().report() };
    let comparison = compare(&from_nothing, &Job::default().report());
    let waits = comparison.differences.iter().find(|difference| difference.what == "time that workers wait").unwrap();
    assert_eq!((waits.unit, waits.scale, waits.change), (Unit::Share, Scale::Whole, 0.25));
    assert!(
        comparison.text().contains("time that workers wait: 0.0 % -> 25.0 % (+25 points)\n"),
        "{}",
        comparison.text()
    );
}

#[test]
fn a_comparison_names_the_processes_whose_versions_changed() {
    let a = Job { workers: 4, torch: vec!["2.13"], ..Job::default() }.report();
    let b = Job { workers: 4, torch: vec!["2.13", "2.12", "2.13", "2.12"], credit: None, ..Job::default() }.report();
    let facts = |a, b| -> Vec<String> {
        compare(a, b).facts.iter().map(|fact| format!("{}: {} -> {}", fact.what, fact.a, fact.b)).collect()
    };
    assert_eq!(facts(&a, &b), ["setting credit_bytes: 8 MiB -> default", "torch of workers 1, 3: 2.13 -> 2.12"]);
    let c = Job { workers: 4, torch: vec!["2.14"], ..Job::default() }.report();
    assert_eq!(facts(&a, &c), ["torch of workers: 2.13 -> 2.14"]);
    let silent = Job { workers: 4, torch: vec!["2.14"], silent: vec![(Role::Worker, 1)], ..Job::default() }.report();
    assert_eq!(facts(&a, &silent)[0], "torch of workers: 2.13 -> 2.14", "of those that told it in both");
}
