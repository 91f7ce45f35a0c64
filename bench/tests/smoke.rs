//! Every subcommand at its smoke size, as a user starts it: what it prints, what it writes, and how it ends.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

#[test]
fn push_pull_verifies_every_sum_of_every_type_and_operation() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let ended = bench(&["push-pull", "--smoke", "-N", "1", "-d", "all", "-o", "all", "-J", json.to_str().unwrap()]);
    let text = succeeded(&ended);
    assert!(text.contains("# Out of bounds values : 0 OK"), "{text}");
    let results = read(&json);
    assert_eq!(results["wrong"], 0);
    assert_eq!(results["rows"].as_array().unwrap().len(), 8 * 4 * 2, "types, operations, sizes");
    for row in results["rows"].as_array().unwrap() {
        for place in ["out_of_place", "in_place"] {
            assert_eq!(row[place]["algbw"]["samples"].as_array().unwrap().len(), 2, "{row}");
        }
    }
}

#[test]
fn several_servers_share_tensors_that_are_in_flight_together() {
    let ended = bench(&["push-pull", "--smoke", "--workers", "3", "--servers", "2", "--inflight", "4", "-I", "-S"]);
    assert!(succeeded(&ended).contains("quic x4"), "{ended:?}");
}

#[test]
fn a_wrong_sum_fails_the_run() {
    for question in ["push-pull", "transport", "latency"] {
        let ended = bench(&[question, "--smoke", "--plant-wrong-sum"]);
        assert_eq!(ended.status.code(), Some(1), "{question}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains("wrong result: "), "{question}: {ended:?}");
    }
}

#[test]
fn a_wrong_sum_goes_unseen_only_if_nobody_wants_to_see_it() {
    let ended = bench(&["push-pull", "--smoke", "--plant-wrong-sum", "-c", "0"]);
    assert!(succeeded(&ended).contains("not checked (-c 0)"));
}

#[test]
fn bytes_go_one_way_or_the_other_without_summation() {
    let modes = "push-only,pull-only,push-then-pull";
    let ended = bench(&["push-pull", "--smoke", "--mode", modes, "--servers", "2"]);
    let text = succeeded(&ended);
    for mode in modes.split(',') {
        assert!(text.contains(&format!("quic {mode}")), "{text}");
    }
}

#[test]
fn transports_and_their_peers_give_back_what_was_pushed() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let modes = "push-pull,push-only,pull-only,push-then-pull";
    let all = ["transport", "--smoke", "--road", "quic,mem", "--mode", modes, "-J", json.to_str().unwrap()];
    succeeded(&bench(&all));
    let results = read(&json);
    assert_eq!((&results["wrong"], results["rows"].as_array().unwrap().len()), (&Value::from(0), 4 * 4 * 2));
    let peers: Vec<&str> =
        results["ratios"].as_array().unwrap().iter().filter_map(|ratio| ratio["peer"].as_str()).collect();
    assert!(peers.contains(&"tcp") && peers.contains(&"tls"), "{peers:?}");
}

#[test]
fn latency_is_measured_idle_and_under_a_backlog() {
    let text = succeeded(&bench(&["latency", "--smoke"]));
    assert!(text.contains("quic busy in-place: exchanges 6"), "{text}");
}

#[test]
fn mpi_does_the_same_work_where_it_is_installed() {
    let installed = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !installed("mpicc") || !installed("mpirun") {
        println!("SKIP: no MPI");
        return;
    }
    let words = ["push-pull", "--smoke", "--backend", "mpi", "-d", "f32,bf16,i8", "-o", "sum,max", "--inflight", "2"];
    let text = succeeded(&bench(&words));
    assert_eq!(text.lines().filter(|line| line.ends_with("mpi x2")).count(), 2 * 2 * 2, "no bf16: {text}");
}

#[test]
fn expectations_decide_the_exit_code() {
    let met = bench(&["latency", "--smoke", "--backlog", "0", "--expect", "p99<1e9", "--expect", "wrong<=0@4K"]);
    assert!(succeeded(&met).contains("# Expectation p99<1e9: met"));
    let missed = bench(&["latency", "--smoke", "--backlog", "0", "--expect", "algbw>1e9"]);
    assert_eq!(missed.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missed.stdout).contains("MISSED"), "{missed:?}");
}

#[test]
fn what_cannot_be_measured_is_said_before_anything_starts() {
    for (words, problem) in [
        (&["push-pull", "-b", "0"][..], "nothing would be measured"),
        (&["push-pull", "-b", "4X"], "has the unit"),
        (&["push-pull", "-b", "4M", "-e", "1M"], "must not be larger than the last"),
        (&["push-pull", "-b", "6", "-d", "f32"], "no whole number of float32 elements"),
        (&["push-pull", "-d", "complex64"], "complex64"),
        (&["push-pull", "--set", "partition_bytes"], "write --set name=value"),
        (&["push-pull", "--set", "speed=11"], "speed"),
        (&["push-pull", "--expect", "algbw"], "compares nothing"),
        (&["push-pull", "--road", "air"], "no road"),
        (&["push-pull", "--smoke", "--mode", "push-only", "--model", "vgg16"], "neither --model nor --join"),
        (&["push-pull", "--smoke", "--backend", "gloo", "--python", "/nowhere/python"], "install torch"),
        (&["transport", "-e", "128M", "-b", "128M"], "no exchange carries more"),
        (&["page", "/nowhere.json"], "/nowhere.json"),
    ] {
        let ended = bench(words);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(matches!(ended.status.code(), Some(1 | 2)), "{words:?}: {ended:?}");
        assert!(said.contains(problem), "{words:?}: {said}");
    }
}

#[test]
fn a_page_has_tables_and_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let all = ["transport", "--smoke", "-J", &at("transport.json")];
    succeeded(&bench(&all));
    succeeded(&bench(&["page", "-o", &at("page/README.md"), &at("transport.json")]));
    let page = std::fs::read_to_string(at("page/README.md")).unwrap();
    assert!(
        page.contains("![transport](transport-uint8.svg)") && page.contains("| 4 KiB | uint8 | none | quic x8 | out |"),
        "{page}"
    );
    assert!(std::fs::read_to_string(at("page/transport-uint8.svg")).unwrap().starts_with("<svg "));
}

#[test]
fn a_killed_benchmark_leaves_no_process() {
    let words = ["push-pull", "-b", "4K", "-n", "1000000", "-N", "1000"];
    let mut child = command(&words).stdout(Stdio::piped()).spawn().unwrap();
    // The heading is printed when all processes are there.
    let output = BufReader::new(child.stdout.take().unwrap());
    assert!(output.lines().map_while(Result::ok).any(|line| line.contains("size")));
    let children = children_of(child.id());
    assert_eq!(children.len(), 4, "a coordinator, a server, two workers");
    child.kill().unwrap();
    child.wait().unwrap();
    for process in children {
        let gone = || !Path::new(&format!("/proc/{process}/cmdline")).exists() || is_zombie(process);
        let mut patience = 1_000_000;
        while !gone() && patience > 0 {
            std::thread::yield_now();
            patience -= 1;
        }
        assert!(gone(), "process {process} lives");
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradlane-bench"));
    command.args(words).stdin(Stdio::null());
    command
}

fn bench(words: &[&str]) -> Output {
    command(words).output().expect("it starts")
}

fn succeeded(ended: &Output) -> String {
    assert!(ended.status.success(), "{ended:?}");
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

fn read(json: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(json).unwrap()).expect("it is JSON")
}

fn children_of(parent: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn is_zombie(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}
