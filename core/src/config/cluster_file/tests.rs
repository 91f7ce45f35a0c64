use std::fs;

use super::*;
use crate::config::Origin;

const FILE: &str = r#"
[cluster]
coordinator = "n0:7000"
[cluster.server]
0 = "n1:7001"
1 = "n2:7002"
[cluster.worker]
0 = "n3"
10 = "n4"
2 = "n3"
"#;

#[test]
fn the_same_file_places_every_process() {
    let worker = load(FILE, "rank=10").unwrap();
    assert_eq!((worker.rank, worker.size, worker.servers), (Some(2), Some(3), 2));
    assert_eq!((worker.local_rank, worker.local_size, worker.node_rank), (Some(0), Some(1), Some(1)));
    let worker = load(FILE, "rank=2").unwrap();
    assert_eq!((worker.rank, worker.local_rank, worker.local_size), (Some(1), Some(1), Some(2)));
    assert_eq!((worker.coordinator_host.as_deref(), worker.coordinator_port), (Some("n0"), Some(7000)));

    let server = load(FILE, "role=server server_index=1").unwrap();
    assert_eq!((server.server_index, server.servers), (Some(1), 2));
    assert_eq!((server.bind.as_str(), server.advertise.as_deref()), ("0.0.0.0:7002", Some("n2")));

    let coordinator = load(FILE, "role=coordinator").unwrap();
    assert_eq!((coordinator.size, coordinator.servers, coordinator.coordinator_port), (Some(3), 2, Some(7000)));
}

#[test]
fn a_setting_of_three_sources_has_the_value_and_the_name_of_the_first() {
    let sources = [("argument", "argument", 5), ("GRADLANE_SIZE", "GRADLANE_SIZE", 4), ("cluster", "cluster.toml", 3)];
    for first in 0..sources.len() {
        let given = |name: &str| sources[first..].iter().any(|source| source.0 == name);
        let argument = if given("argument") { "rank=0 size=5" } else { "rank=0" };
        let environment = given("GRADLANE_SIZE").then(|| ("GRADLANE_SIZE".to_owned(), "4".to_owned()));
        // The launcher comes last. It is ignored where the file gives a value.
        let launcher = [("RANK", "1"), ("WORLD_SIZE", "9")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = load_with(FILE, argument, environment.into_iter().chain(launcher)).unwrap();
        let (_, origin, size) = sources[first];
        assert_eq!(config.size, Some(size));
        assert!(config.origin("size").to_string().ends_with(origin), "{}", config.origin("size"));
        let line = config.report().lines().find(|line| line.starts_with("  size ")).unwrap().to_owned();
        assert!(line.contains(&size.to_string()) && line.contains(origin), "{line}");
    }
}

#[test]
fn a_task_that_the_file_does_not_have_is_told_those_it_has() {
    for (arguments, expected) in [
        ("rank=1", "is 1, which is no worker of the file; give one of 0, 2, 10"),
        ("role=worker", "is not given; give one of 0, 2, 10"),
        ("role=server server_index=7", "is 7, which is no server of the file; give one of 0, 1"),
    ] {
        let error = load(FILE, arguments).unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error}");
        assert!(error.to_string().ends_with(expected), "{error}");
    }
}

#[test]
fn what_is_malformed_is_named() {
    for (text, expected) in [
        ("[cluster", "syntax in "),
        ("", "cluster in "),
        ("[cluster]", "coordinator in "),
        ("[cluster]\ncoordinator = \"n0\"", "is no host:port"),
        ("[cluster]\ncoordinator = \"n0:1\"\nps = 1", "is no job; the jobs are coordinator, server, worker"),
        ("[cluster]\ncoordinator = \"n0:1\"\nserver = 1", "is no table"),
        ("[cluster]\ncoordinator = \"n0:1\"\n[cluster.server]\n0 = \"n1\"", "server.0 in "),
        ("[cluster]\ncoordinator = \"n0:1\"\n[cluster.worker]\nfirst = \"n1\"", "worker.first in "),
    ] {
        let error = load(text, "role=server").unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("cluster.toml"), "{text}: {error}");
    }
}

#[test]
fn an_exported_file_names_the_cluster_file_instead_of_repeating_it() {
    let exported = load(FILE, "rank=10").unwrap().to_toml();
    assert!(exported.contains("\ncluster_file = "), "{exported}");
    for name in ["rank", "size", "servers", "coordinator_host"] {
        assert!(exported.contains(&format!("\n# {name} = ")), "{exported}");
    }
}

#[test]
fn the_place_came_from_the_file() {
    let config = load(FILE, "rank=2").unwrap();
    assert!(matches!(config.origin("rank"), Origin::Cluster(path) if path.ends_with("cluster.toml")));
}

fn load(text: &str, arguments: &str) -> Result<Config> {
    load_with(text, arguments, [])
}

fn load_with(text: &str, arguments: &str, environment: impl IntoIterator<Item = (String, String)>) -> Result<Config> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cluster.toml");
    fs::write(&path, text).unwrap();
    let named = ("cluster_file".to_owned(), path.display().to_string());
    let pairs = arguments.split(' ').map(|pair| pair.split_once('=').unwrap());
    let arguments = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).chain([named]).collect();
    Config::load(&arguments, environment, None).map(|(config, _)| config)
}
