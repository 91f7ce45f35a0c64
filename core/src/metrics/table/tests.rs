use std::collections::BTreeSet;

use super::*;

#[test]
fn a_snapshot_has_the_rows_of_its_scope_in_their_order() {
    for instance in [
        WorkerMetrics::default().instance(0),
        ServerMetrics::default().instance(0),
        CoordinatorMetrics::default().instance("night"),
        ExporterMetrics::default().instance("0.1.0"),
    ] {
        let rows = METRICS.iter().filter(|metric| metric.scope == instance.scope).map(|metric| metric.name);
        assert_eq!(rows.collect::<Vec<_>>(), instance.values.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }
}

#[test]
fn what_is_added_through_any_holder_of_a_counter_is_read() {
    let metrics = WorkerMetrics::default();
    let shared = Arc::clone(&metrics.copied_bytes);
    WorkerMetrics::add(&metrics.copied_bytes, 3);
    WorkerMetrics::add(&shared, 4);
    WorkerMetrics::add(&metrics.submissions, 5);
    WorkerMetrics::add(&metrics.resolved, 2);
    assert_eq!((metrics.copied_bytes(), metrics.submissions(), metrics.handles_live()), (7, 5, 3));
    assert!(metrics.snapshot().contains(&("copied_bytes", Value::Plain(7))));
}

#[test]
fn a_job_misses_the_members_that_have_not_joined() {
    let metrics = CoordinatorMetrics::default();
    for (gauge, value) in [
        (&metrics.workers_expected, 4),
        (&metrics.servers_expected, 2),
        (&metrics.workers_joined, 3),
        (&metrics.servers_joined, 0),
    ] {
        CoordinatorMetrics::set(gauge, value);
    }
    assert_eq!(metrics.members_missing(), 3);
}

#[test]
fn names_are_unique_end_with_their_unit_and_are_documented() {
    let mut names = BTreeSet::new();
    for metric in METRICS {
        assert!(names.insert((metric.scope, metric.name)), "{} twice", metric.name);
        let unit = ["bytes", "bytes_per_second", "nanoseconds"]
            .into_iter()
            .find(|unit| metric.name.ends_with(&format!("_{unit}")));
        assert_eq!(unit, metric.unit.name(), "{}", metric.name);
        assert!(metric.help.ends_with('.'), "{}: {}", metric.name, metric.help);
    }
}
