use std::time::Duration;

use super::*;
use crate::config::{Launcher, LocalReduce, OnServerLoss, OnWorkerLoss, ProcessRole, TransportChoice};

#[test]
fn arguments_win_over_the_environment_over_its_aliases_over_the_file_over_the_default() {
    let sources = [
        ("argument", "1 MiB", 1 << 20),
        ("GRADLANE_PARTITION_BYTES", "2 MiB", 2 << 20),
        ("BYTEPS_PARTITION_BYTES", "3145728", 3 << 20),
        ("g.toml", "5 MiB", 5 << 20),
        ("default", "", 4 << 20),
    ];
    for first in 0..sources.len() {
        let given = |name: &str| sources[first..].iter().find(|source| source.0 == name).map(|source| source.1);
        let arguments = given("argument").map(|value| format!("partition_bytes={value}")).unwrap_or_default();
        let variables: Vec<(String, String)> = ["GRADLANE_PARTITION_BYTES", "BYTEPS_PARTITION_BYTES"]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), given(name)?.to_owned())))
            .collect();
        let text = given("g.toml").map(|value| format!("partition_bytes = \"{value}\"")).unwrap_or_default();
        let (config, _) = Config::load(&pairs(&arguments), variables, Some(&file(&text))).unwrap();
        let (origin, _, bytes) = sources[first];
        assert_eq!(config.partition_bytes, bytes);
        assert_eq!(config.origin("partition_bytes").to_string(), origin);
    }
}

#[test]
fn a_knob_is_found_by_its_former_name_unless_its_name_is_given_too() {
    let quic = |loaded: Result<(Config, Vec<Warning>)>| {
        let (config, warnings) = loaded.unwrap();
        config.transport == TransportChoice::Quic && warnings.is_empty()
    };
    let former = [("GRADLANE_ROAD".to_owned(), "quic".to_owned())];
    assert!(quic(Config::load(&pairs("road=quic"), [], None)));
    assert!(quic(Config::load(&pairs(""), former.clone(), None)));
    assert!(quic(Config::load(&pairs(""), [], Some(&file("road = \"quic\"")))));
    assert!(!quic(Config::load(&pairs("road=quic transport=shm"), former, None)));
}

#[test]
fn a_setting_without_effect_warns_wherever_it_stands() {
    let (config, warnings) =
        load("quic_driver=async", "GRADLANE_QUIC_DRIVER=async", "quic_driver = \"direct\"").unwrap();
    let named: Vec<&str> = warnings.iter().map(|warning| warning.variable.as_str()).collect();
    assert_eq!(named, ["quic_driver", "GRADLANE_QUIC_DRIVER", "quic_driver in g.toml"]);
    assert!(warnings.iter().all(|warning| warning.problem.contains("has no effect")));
    assert_eq!(config, load("", "", "").unwrap().0);
}

#[test]
fn a_limit_of_memory_that_makes_everything_slow_warns_with_the_figures() {
    let (_, warnings) = load("", "GRADLANE_CREDIT_BYTES=1MiB", "server_bytes_max = \"8 MiB\"").unwrap();
    let told: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with("GRADLANE_CREDIT_BYTES is less than a part (partition_bytes, 4 MiB)"), "{told:?}");
    assert!(told[1].starts_with("server_bytes_max in g.toml holds less than four parts"), "{told:?}");
    assert_eq!(load("", "GRADLANE_CREDIT_BYTES=64MiB", "server_bytes_max = \"1 GiB\"").unwrap().1, []);
}

#[test]
fn a_file_holds_texts_numbers_and_flags() {
    let text = "partition_bytes = 1_048_576\nstall_warn = 0.5\ndeterministic = true\njob = \"a\"\nservers = 2";
    let (config, _) = Config::load(&BTreeMap::new(), [], Some(&file(text))).unwrap();
    assert_eq!(config.partition_bytes, 1 << 20);
    assert_eq!(config.stall_warn.as_millis(), 500);
    assert!(config.deterministic);
    assert_eq!((config.job.as_str(), config.servers), ("a", 2));
}

#[test]
fn a_bad_value_is_named_with_its_source() {
    for (arguments, variables, text, expected) in [
        ("partition_bytes=4M", "", "", "setting partition_bytes: \"4M\" has the unit \"M\""),
        ("", "GRADLANE_STALL_WARN=soon", "", "setting GRADLANE_STALL_WARN: \"soon\" has the unit"),
        ("", "BYTEPS_PARTITION_BYTES=1", "", "setting BYTEPS_PARTITION_BYTES: \"1\" is not between 64 KiB and 64 MiB"),
        (
            "",
            "DMLC_ROLE=joint",
            "",
            "setting DMLC_ROLE: \"joint\" is no role; give one of worker, server, coordinator, both",
        ),
        (
            "",
            "",
            "checksum = 7",
            "setting checksum in g.toml: \"7\" is none of the choices; give one of auto, true, false",
        ),
        ("", "", "size = -1", "setting size in g.toml: \"-1\" is no whole number"),
        ("", "", "size = [1]", "setting size in g.toml: is neither text, number nor flag"),
        ("", "", "size = ", "setting syntax in g.toml: "),
        (
            "join=gradlane1.n1:1.abc.hunter2",
            "",
            "",
            "setting join: is malformed: authentication: the join string has a CA hash",
        ),
        ("", "RANK=0", "", "setting WORLD_SIZE: is missing"),
        ("state_dir=~/x", "", "", "setting state_dir: begins with ~ and HOME is not set"),
    ] {
        let error = load(arguments, variables, text).unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error}");
        assert!(error.to_string().starts_with(expected), "{error}\ninstead of\n{expected}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[test]
fn an_unknown_argument_or_key_is_refused_with_the_nearest() {
    let error = load("partition_byte=1", "", "").unwrap_err().to_string();
    assert_eq!(error, "setting partition_byte: is no argument; did you mean partition_bytes?");
    let error = load("", "", "credits_byte = 1").unwrap_err().to_string();
    assert_eq!(error, "setting credits_byte: is no setting, but stands in g.toml; did you mean credit_bytes?");
    let error = load("", "", "telepathy = true").unwrap_err().to_string();
    assert!(error.ends_with("see `gradlane config` for all settings"), "{error}");
}

#[test]
fn an_unknown_variable_of_ours_warns_with_the_nearest() {
    let (_, warnings) = load("", "GRADLANE_PARTITON_BYTES=1 GRADLANE_XYZZY=1 GRADLANE_CONFIG=x OTHER=1", "").unwrap();
    let texts: Vec<String> = warnings.iter().map(Warning::to_string).collect();
    assert_eq!(
        texts,
        [
            "GRADLANE_PARTITON_BYTES is no setting; did you mean GRADLANE_PARTITION_BYTES?",
            "GRADLANE_XYZZY is no setting; see `gradlane config` for all",
        ]
    );
}

#[test]
fn a_variable_of_byteps_without_meaning_here_warns_unless_it_is_off() {
    let (_, warnings) = load("", "BYTEPS_SCHEDULING_CREDIT=4 BYTEPS_SERVER_DEBUG=0", "").unwrap();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].to_string().contains("GRADLANE_CREDIT_BYTES"), "{}", warnings[0]);
}

#[test]
fn an_empty_variable_is_not_set() {
    let (config, _) = Config::load(&BTreeMap::new(), [("GRADLANE_RANK".to_owned(), String::new())], None).unwrap();
    assert_eq!((config.rank, config.size), (Some(0), Some(1)));
}

#[test]
fn contradictions_are_refused_with_both_sides() {
    for (arguments, expected) in [
        (
            "suspect_timeout=100ms heartbeat_interval=250ms",
            "suspect_timeout: is 100 ms (argument) and heartbeat_interval is 250 ms (argument)",
        ),
        ("dead_timeout=2s suspect_timeout=2s", "dead_timeout: is 2 s (argument) and suspect_timeout is 2 s (argument)"),
        ("step_timeout=9s stall_warn=10s", "step_timeout: is 9 s (argument) and stall_warn is 10 s (argument)"),
        ("fuse_bytes=5MiB", "fuse_bytes: is 5 MiB (argument) and partition_bytes is 4 MiB (default)"),
        ("submit_bytes_max=1MiB", "submit_bytes_max: is 1 MiB (argument) and credit_bytes is 64 MiB (default)"),
        ("role=server rank=4 size=4", "rank: is 4 (argument) and size is 4 (argument)"),
        ("role=server local_rank=2 local_size=2", "local_rank: is 2 (argument) and local_size is 2 (argument)"),
        ("role=server node_rank=2 num_nodes=2", "node_rank: is 2 (argument) and num_nodes is 2 (argument)"),
        ("role=server local_size=3 size=2", "local_size: is 3 (argument) and size is 2 (argument)"),
        ("role=server server_index=1 servers=1", "server_index: is 1 (argument) and servers is 1 (argument)"),
        ("coordinator_host=n1", "coordinator_host: is n1 (argument) and coordinator_port is not set (default)"),
        ("coordinator_port=9", "coordinator_port: is 9 (argument) and coordinator_host is not set (default)"),
    ] {
        let error = load(arguments, "", "").unwrap_err().to_string();
        assert!(error.starts_with(&format!("setting {expected}")), "{error}\ninstead of\n{expected}");
    }
}

#[test]
fn a_default_gives_way_to_what_was_chosen() {
    let (config, _) = load("step_timeout=2s dead_timeout=1s partition_bytes=64KiB", "", "").unwrap();
    assert_eq!(config.stall_warn, Duration::from_secs(1));
    assert_eq!(
        (config.suspect_timeout, config.heartbeat_interval),
        (Duration::from_millis(500), Duration::from_millis(250))
    );
    assert_eq!(config.fuse_bytes, 64 << 10);
}

#[test]
fn an_elastic_job_goes_on_without_lost_workers_and_its_workers_reduce_alone() {
    let (config, _) = load("elastic=2:8", "", "").unwrap();
    let follows = |config: &Config| (config.on_worker_loss, config.min_workers, config.local_reduce);
    assert_eq!(follows(&config), (OnWorkerLoss::Continue, 2, LocalReduce::Off));
    let (chosen, _) = load("elastic=2:8 local_reduce=auto min_workers=2", "", "").unwrap();
    assert_eq!(chosen.local_reduce, LocalReduce::Auto);
    for (arguments, expected) in [
        ("elastic=2:8 on_worker_loss=abort", "elastic: is 2:8 (argument) and on_worker_loss is abort (argument)"),
        ("elastic=2:8 min_workers=3", "elastic: is 2:8 (argument) and min_workers is 3 (argument)"),
    ] {
        let error = load(arguments, "", "").unwrap_err().to_string();
        assert!(error.starts_with(&format!("setting {expected}")), "{error}");
    }
}

#[test]
fn a_job_whose_workers_wait_for_others_takes_these_in() {
    let (config, _) = load("on_worker_loss=wait", "", "").unwrap();
    assert!(config.takes_newcomers() && config.on_worker_loss.goes_on());
    assert_eq!((config.local_reduce, config.rejoin_timeout.as_secs()), (LocalReduce::Off, 600));
    let (elastic, _) = load("on_worker_loss=wait elastic=2:8 on_server_loss=continue", "", "").unwrap();
    assert_eq!((elastic.on_worker_loss, elastic.min_workers), (OnWorkerLoss::Wait, 2));
    let (chosen, _) = load("on_worker_loss=wait local_reduce=auto min_workers=3", "", "").unwrap();
    assert_eq!((chosen.local_reduce, chosen.min_workers), (LocalReduce::Auto, 3));
    assert!(!load("on_worker_loss=continue", "", "").unwrap().0.takes_newcomers());
}

#[test]
fn a_job_that_outlives_servers_goes_on_without_lost_workers_too() {
    let (config, _) = load("on_server_loss=continue", "", "").unwrap();
    assert_eq!((config.on_server_loss, config.on_worker_loss), (OnServerLoss::Continue, OnWorkerLoss::Continue));
    let (config, _) = load("on_server_loss=restore", "", "").unwrap();
    assert_eq!((config.on_server_loss, config.on_worker_loss), (OnServerLoss::Restore, OnWorkerLoss::Continue));
    assert!(config.lets_in_later() && !config.takes_newcomers());
    assert!(load("on_server_loss=restore on_worker_loss=abort", "", "").is_err());
    let error = load("on_server_loss=continue on_worker_loss=abort", "", "").unwrap_err().to_string();
    let expected = "setting on_server_loss: is continue (argument) and on_worker_loss is abort (argument)";
    assert!(error.starts_with(expected), "{error}");
    assert!(load("on_server_loss=wait", "", "").is_err());
}

#[test]
fn what_follows_from_a_choice_obeys_the_limits_of_a_choice() {
    let (config, _) = load("dead_timeout=6ms", "", "").unwrap();
    assert_eq!((config.suspect_timeout, config.heartbeat_interval), (Duration::from_millis(3), SHORTEST));
    for arguments in ["dead_timeout=1ms", "dead_timeout=2ms", "suspect_timeout=1ms"] {
        let error = load(arguments, "", "").unwrap_err().to_string();
        assert!(error.contains("timeout"), "{arguments}: {error}");
    }
}

#[test]
fn what_looks_odd_but_works_is_accepted() {
    // A part larger than the credit runs alone; equal limits leave no gap.
    for arguments in ["credit_bytes=1", "step_timeout=10s", "fuse_bytes=0", "oldest_every=0", "servers=0"] {
        assert!(load(arguments, "", "").is_ok(), "{arguments}");
    }
}

#[test]
fn a_worker_takes_its_place_from_the_launcher_and_arguments_win() {
    let (config, _) = load("", "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", "").unwrap();
    assert_eq!((config.rank, config.size, config.local_size, config.num_nodes), (Some(1), Some(4), Some(2), Some(2)));
    assert_eq!(*config.origin("rank"), Origin::Launcher(Launcher::Torchrun));

    let (config, _) = load("rank=2 size=3", "RANK=1 WORLD_SIZE=4", "").unwrap();
    assert_eq!((config.rank, config.size), (Some(2), Some(3)));
    assert_eq!(*config.origin("rank"), Origin::Argument);
}

#[test]
fn byteps_variables_alone_start_each_role() {
    let root = "DMLC_PS_ROOT_URI=n1 DMLC_PS_ROOT_PORT=9000 DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=2";
    let of = |variables: &str| load("", &format!("{root} {variables}"), "").unwrap().0;

    let worker = of("DMLC_ROLE=worker DMLC_WORKER_ID=1");
    assert_eq!((worker.rank, worker.size, worker.servers), (Some(1), Some(2), 2));
    assert_eq!((worker.coordinator_host.as_deref(), worker.coordinator_port), (Some("n1"), Some(9000)));

    let coordinator = of("DMLC_ROLE=scheduler");
    assert_eq!((coordinator.role, coordinator.size, coordinator.rank), (ProcessRole::Coordinator, Some(2), None));

    let server = of("DMLC_ROLE=server");
    assert_eq!((server.role, server.size, server.server_index), (ProcessRole::Server, None, None));
}

#[test]
fn tensorflows_variable_alone_starts_each_role() {
    let of = |arguments: &str, task: &str| {
        let cluster = r#"{"chief":["n0:1"],"worker":["n1:1"],"ps":["n2:1","n3:1"]}"#;
        load(arguments, &format!(r#"TF_CONFIG={{"cluster":{cluster},"task":{task}}}"#), "")
    };
    let worker = of("", r#"{"type":"worker","index":0}"#).unwrap().0;
    assert_eq!((worker.role, worker.rank, worker.size), (ProcessRole::Worker, Some(1), Some(2)));
    assert_eq!((worker.servers, worker.server_index), (2, None));
    assert_eq!(*worker.origin("job"), Origin::Launcher(Launcher::TfConfig));

    let server = of("", r#"{"type":"ps","index":1}"#).unwrap().0;
    assert_eq!((server.role, server.rank, server.size), (ProcessRole::Server, None, None));
    assert_eq!((server.servers, server.server_index), (2, Some(1)));
    assert_eq!(server.job, worker.job);

    assert_eq!(of("job=night", r#"{"type":"ps","index":1}"#).unwrap().0.job, "night", "what was said goes first");
    let error = of("role=worker", r#"{"type":"ps","index":1}"#).unwrap_err().to_string();
    assert!(error.contains("which is a server"), "{error}");
}

#[test]
fn a_job_without_a_name_has_that_of_its_launcher() {
    let job = |arguments: &str, variables: &str| load(arguments, variables, "").unwrap().0.job;
    let slurm = "SLURM_JOB_ID=7 SLURM_STEP_ID=2 SLURM_STEP_NODELIST=n1 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_NODEID=0 \
                 SLURM_LOCALID=0 SLURM_TASKS_PER_NODE=1";
    assert_eq!(job("", slurm), "slurm_7.2");
    assert_eq!(job("role=server", slurm), "slurm_7", "servers may have a step of their own");
    assert_eq!(job("role=coordinator", slurm), "slurm_7");
    assert_eq!(job("job=night", slurm), "night", "what was said goes first");
    assert_eq!(job("coordinator_host=n1 coordinator_port=9", slurm), "default", "it is named after its coordinator");
    assert_eq!(job("", ""), "default");
}

#[test]
fn the_home_directory_is_expanded() {
    let (config, _) = load("join_file=~/join", "HOME=/home/a", "").unwrap();
    assert_eq!(config.state_dir, Some(PathBuf::from("/home/a/.gradlane")));
    assert_eq!(config.join_file, Some(PathBuf::from("/home/a/join")));
    assert_eq!(load("", "", "").unwrap().0.state_dir, None, "without a home there is no default");
}

#[test]
fn settings_never_show_the_secret() {
    let hash = "a".repeat(52);
    let (config, _) = load(&format!("join=gradlane1.n1:1.{hash}.bbbbbbbbbbbbbbbbbbbbbbbbba"), "", "").unwrap();
    assert!(config.join.is_some());
    assert!(!format!("{config:?}").contains("bbbb"));
}

#[test]
fn a_process_reads_the_file_that_it_is_given() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("g.toml").display().to_string();
    let arguments = BTreeMap::from([("config".to_owned(), path.clone()), ("role".to_owned(), "server".to_owned())]);

    let error = Config::from_process(&arguments).unwrap_err().to_string();
    assert!(error.starts_with(&format!("setting GRADLANE_CONFIG: names {path}, which cannot be read")), "{error}");

    std::fs::write(&path, "socket_buffer_bytes = \"1 MiB\"").unwrap();
    let (config, _) = Config::from_process(&arguments).unwrap();
    assert_eq!(config.socket_buffer_bytes, 1 << 20);
    assert_eq!(*config.origin("socket_buffer_bytes"), Origin::File(path));
}

fn load(arguments: &str, variables: &str, text: &str) -> Result<(Config, Vec<Warning>)> {
    Config::load(&pairs(arguments), pairs(variables), Some(&file(text)))
}

fn file(text: &str) -> File {
    File { path: "g.toml".to_owned(), text: text.to_owned() }
}

/// `name=value name=value`; a value may hold one space before its unit.
fn pairs(text: &str) -> BTreeMap<String, String> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for word in text.split_whitespace() {
        match word.split_once('=') {
            Some((name, value)) => pairs.push((name.to_owned(), value.to_owned())),
            None => pairs.last_mut().expect("a unit follows a value").1.push_str(word),
        }
    }
    pairs.into_iter().collect()
}
