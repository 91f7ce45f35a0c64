use super::*;

const CLUSTER: &str = r#"{"chief": ["n0:1"], "worker": ["n1:1", "n0:2", "n1:2"], "ps": ["n2:1", "n3:1"]}"#;

#[test]
fn chief_and_workers_are_workers_and_parameter_servers_are_servers() {
    // Rank, size, local rank, local size, host, hosts.
    for (task, place) in [
        (("chief", 0), [0, 4, 0, 2, 0, 2]),
        (("worker", 0), [1, 4, 0, 2, 1, 2]),
        (("worker", 1), [2, 4, 1, 2, 0, 2]),
        (("worker", 2), [3, 4, 1, 2, 1, 2]),
    ] {
        let found = find(CLUSTER, task).unwrap();
        assert_eq!(found.worker().unwrap().values().map(|(_, value)| value), place, "{task:?}");
        assert_eq!((found.role(), found.servers), (ProcessRole::Worker, 2));
    }
    for index in [0, 1] {
        let found = find(CLUSTER, ("ps", index)).unwrap();
        assert_eq!((found.role(), found.task), (ProcessRole::Server, Task::Server(index)));
    }
}

#[test]
fn a_cluster_needs_neither_chief_nor_servers() {
    let found = find(r#"{"worker": ["n1:1", "n2:1"]}"#, ("worker", 1)).unwrap();
    let launch = found.worker().unwrap();
    assert_eq!((launch.rank, launch.size, found.servers), (1, 2, 0));
}

#[test]
fn gaps_between_indices_are_closed_by_ranks() {
    let cluster = r#"{"worker": {"10": "n10:1", "0": "n0:1", "2": "n2:1"}, "ps": {"7": "n7:1"}}"#;
    for (index, rank) in [(0, 0), (2, 1), (10, 2)] {
        let launch = find(cluster, ("worker", index)).unwrap().worker().unwrap();
        assert_eq!((launch.rank, launch.size), (rank, 3));
    }
    assert_eq!(find(cluster, ("ps", 7)).unwrap().task, Task::Server(0));
    let error = find(cluster, ("worker", 1)).unwrap_err().to_string();
    assert!(error.ends_with("give one of worker 0, worker 2, worker 10, ps 7"), "{error}");
}

#[test]
fn all_tasks_of_a_cluster_name_the_job_alike_and_no_other_does() {
    let name = |cluster, task| find(cluster, task).unwrap().job;
    let job = name(CLUSTER, ("worker", 0));
    assert!(job.starts_with("tf_") && job.len() == 19, "{job}");
    assert_eq!(job, name(CLUSTER, ("ps", 1)));
    let rewritten =
        r#"{"ps":{"0":"n2:1","1":"n3:1"},"worker":["n1:1","n0:2","n1:2"],"chief":["n0:1"],"evaluator":["n9:1"]}"#;
    assert_eq!(job, name(rewritten, ("chief", 0)));
    assert_ne!(job, name(&CLUSTER.replace("n3:1", "n3:2"), ("worker", 0)));
}

#[test]
fn a_task_that_the_cluster_does_not_have_is_told_those_it_has() {
    for task in [("worker", 3), ("ps", 2), ("chief", 1), ("master", 0), ("", 0)] {
        let error = find(CLUSTER, task).unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error}");
        let expected = "which its cluster does not have; give one of chief 0, worker 0, worker 1, worker 2, ps 0, ps 1";
        assert!(error.to_string().ends_with(expected), "{error}");
    }
}

#[test]
fn an_evaluator_takes_no_part() {
    let error = find(CLUSTER, ("evaluator", 0)).unwrap_err().to_string();
    assert!(error.contains("has the task evaluator, which takes no part"), "{error}");
}

#[test]
fn a_parameter_server_does_not_train() {
    let error = find(CLUSTER, ("ps", 1)).unwrap().worker().unwrap_err().to_string();
    assert!(error.contains("has the task ps 1") && error.ends_with("start `gradlane server` for it"), "{error}");
}

#[test]
fn what_is_malformed_is_refused() {
    for (text, problem) in [
        ("{", "is no JSON"),
        (r#"{"cluster": {"worker": "n1:1"}}"#, "has \"n1:1\" as worker"),
        (r#"{"cluster": {"worker": [1]}}"#, "has [1] as worker"),
        (r#"{"cluster": {"ps": {"first": "n1:1"}}}"#, "as ps of its cluster"),
        (r#"{"cluster": {"worker": ["n1:1"]}}"#, "has the task null"),
        (r#"{"cluster": {"worker": ["n1:1"]}, "task": {"type": "worker", "index": -1}}"#, "which its cluster"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.starts_with("setting TF_CONFIG: ") && error.contains(problem), "{text}: {error}");
    }
}

#[test]
fn without_a_cluster_it_says_nothing() {
    for text in ["{}", r#"{"cluster": {}, "task": {"type": "worker", "index": 0}}"#, "[]"] {
        assert_eq!(read(text), Ok(None), "{text}");
    }
}

fn find(cluster: &str, (kind, index): (&str, u32)) -> Result<TfConfig> {
    let task = format!(r#"{{"type": "{kind}", "index": {index}}}"#);
    Ok(read(&format!(r#"{{"cluster": {cluster}, "task": {task}}}"#))?.expect("there is a cluster"))
}

fn read(text: &str) -> Result<Option<TfConfig>> {
    TfConfig::find(&|name: &str| (name == "TF_CONFIG").then(|| text.to_owned()))
}
