//! `gradlane-bench net` as a user starts it. A test is skipped where it is not root or a tool is missing.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use gradlane_core::runtime::Clock;
use gradlane_core::types::Time;
use skip::skip;

#[path = "../../tests/harness/skip.rs"]
pub mod skip;

#[test]
fn push_pull_on_shaped_links_is_set_against_the_optimum() {
    let Some(output) = run(&["--smoke", "--expect", "wrong<=0", "--expect", "quic 2+1/optimum>=0.8"]) else { return };
    let text = stdout(&output);
    assert!(text.contains("quic 2+1\n") && text.contains("x on wire bytes;"), "{output:?}");
    assert!(text.contains("# Out of bounds values : 0 OK"), "{output:?}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn bodies_of_tensors_with_a_codec_have_the_bytes_of_its_formula() {
    // A MiB of f32 in 16 parts. Each part is a whole number of blocks.
    let (elements, parts) = (1 << 18, 16);
    let share = |millionths: u64| (elements / parts * millionths).div_ceil(1_000_000);
    let formulas = [
        ("none", None),
        ("fp16", Some(2 * elements)),
        ("bf16:stochastic=1", Some(2 * elements)),
        ("int8", Some(elements + 4 * elements / 256)),
        ("int8:block=1024,feedback=1", Some(elements + 4 * elements / 1024)),
        ("fp8_e4m3", Some(elements + 4 * elements / 256)),
        ("fp8_e5m2", Some(elements + 4 * elements / 256)),
        ("int4", Some(elements / 2 + 2 * elements / 128)),
        ("randomk", Some(parts * (8 + 4 * share(10_000)))),
    ];
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let mut asked = vec!["--smoke", "--expect", "wrong<=0", "--expect", "optimum>=0.8", "-J", json.to_str().unwrap()];
    asked.extend(formulas.iter().flat_map(|(codec, _)| ["--codec", codec]));
    // Its length depends on the places of its elements.
    asked.extend(["--codec", "topk"]);
    let Some(output) = run(&asked) else { return };
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let written: serde_json::Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let rows = written["rows"].as_array().expect("rows");
    for (row, (codec, due)) in rows.iter().zip(formulas) {
        let name = if codec == "none" { "2+1".to_owned() } else { format!("2+1 {codec}") };
        assert_eq!(row["variant"], name);
        assert_eq!(row["in_place"]["body_bytes"]["median"].as_f64(), due.map(|due| due as f64), "{codec}");
    }
    let topk = &rows[formulas.len()]["in_place"]["body_bytes"]["median"];
    let sent = parts * share(10_000);
    assert!((5 * sent..=7 * sent).contains(&(topk.as_f64().expect("counted") as u64)), "{topk}");
}

#[test]
fn an_expectation_that_no_link_can_meet_is_missed() {
    let Some(output) = run(&["--smoke", "--expect", "optimum<=0.5"]) else { return };
    assert!(
        stdout(&output).contains("# Expectation optimum<=0.5: MISSED; not quic 2+1 of 1 MiB in place is"),
        "{output:?}"
    );
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn an_urgent_tensor_is_measured_under_a_backlog() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let asked = ["--expect", "cost>0", "--expect", "quic idle/time>0@64K", "-J", json.to_str().unwrap()];
    let Some(output) = run(&[&["latency", "--smoke"], &asked[..]].concat()) else { return };
    assert!(stdout(&output).contains("under backlog ms"), "{output:?}");
    let text = std::fs::read_to_string(json).expect("it was written");
    assert!(text.contains(r#""variant": "busy""#) && text.contains(r#""question": "net latency""#), "{text}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn loss_is_measured_against_tcp_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let asked = ["--expect", "cost:tcp>0", "--expect", "quic heavy/wrong<=0", "-J", json.to_str().unwrap()];
    let Some(output) = run(&[&["loss", "--smoke"], &asked[..]].concat()) else { return };
    let written = std::fs::read_to_string(json).expect("it was written");
    assert!(written.contains(r#""contender": "tcp""#) && written.contains(r#""variant": "heavy""#), "{written}");
    let text = stdout(&output);
    assert!(text.contains("with loss of 1/1000: our goodput is") && text.contains("0 elements wrong"), "{output:?}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_command_runs_on_every_worker_machine_and_knows_its_place() {
    let script = "echo $RANK of $WORLD_SIZE, $GRADLANE_RANK of $GRADLANE_SIZE, master $MASTER_ADDR; exit $((RANK * 3))";
    let Some(output) = run(&["exec", "--workers", "2", "--servers", "2", "--", "sh", "-c", script]) else { return };
    let text = stdout(&output);
    let lines: BTreeSet<&str> = text.lines().collect();
    let master = "master 10.77.0.1";
    assert_eq!(
        lines,
        [&*format!("0 of 2, 0 of 2, {master}"), &*format!("1 of 2, 1 of 2, {master}")].into(),
        "{output:?}"
    );
    assert_eq!(output.status.code(), Some(3), "that of the worker that failed: {output:?}");
}

#[test]
fn what_is_wrong_with_an_argument_is_said() {
    for (arguments, problem) in [
        (&["--rate", "fast"][..], "write it like 1gbit or 200mbit"),
        (&["--machines", "1+0"], "1+0 has no link"),
        (&["--queue", "1"], "16000"),
        (&["--codec", "int7"], "use one of none, fp16"),
        (&["loss", "--loss", "1"], "write one from 0.001% to 50%"),
    ] {
        let output = bench(arguments).output().expect("it starts");
        assert!(stderr(&output).contains(problem), "{output:?}");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

#[test]
fn a_benchmark_that_is_killed_leaves_no_process_and_no_namespace() {
    let mut bench =
        bench(&["exec", "--workers", "2", "--servers", "1", "--", "sh", "-c", "echo there; sleep 600 & wait"]);
    let mut bench = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(bench.stdout.take().expect("piped")).lines().map_while(Result::ok);
    if lines.next().is_none() {
        let output = bench.wait_with_output().expect("it is ours");
        assert!(skipped(&output), "{output:?}");
        return;
    }
    assert_eq!(lines.next().as_deref(), Some("there"), "on the second machine");
    let ours = fs::read_link("/proc/self/ns/net").expect("there is a network");
    let below = descendants(bench.id());
    let networks: BTreeSet<_> =
        below.iter().filter_map(|pid| network(*pid)).filter(|network| *network != ours).collect();
    assert_eq!(networks.len(), 4, "two workers, a server, the bridge");
    assert!(below.len() >= 4 + 4 + 4, "holders, coordinator and servers, commands: {below:?}");
    bench.kill().expect("it is ours");
    bench.wait().expect("it is ours");
    eventually("the end of all processes", || below.iter().all(|pid| !lives(*pid)));
    let left = processes().into_iter().find(|pid| network(*pid).is_some_and(|network| networks.contains(&network)));
    assert_eq!(left, None, "a process in one of the networks");
}

/// Runs it; nothing, after saying why, where this host cannot.
fn run(arguments: &[&str]) -> Option<Output> {
    let output = bench(arguments).output().expect("it starts");
    (!skipped(&output)).then_some(output)
}

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradlane-bench"));
    command.arg("net").args(arguments).stdin(Stdio::null());
    command
}

fn skipped(output: &Output) -> bool {
    let text = stderr(output);
    let says = |words: &[&str]| output.status.code() == Some(1) && words.iter().any(|word| text.contains(word));
    // Containers may have root and yet no right to make namespaces, or a kernel without the queue.
    let needs = if says(&["need root", "unshare --", "Operation not permitted"]) {
        "needs root"
    } else if says(&["is not installed"]) {
        "needs a program"
    } else if says(&["qdisc kind is unknown", "nft -f"]) {
        "needs shaped links of the kernel"
    } else {
        return false;
    };
    skip(&format!("{needs}: {}", text.trim()));
    true
}

/// All processes below one, at any depth.
fn descendants(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = processes().into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        let of = found[at];
        found.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid));
        at += 1;
    }
    found.split_off(1)
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("it is mounted").filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// What follows the name in `/proc/PID/stat`: state, parent and so on.
fn stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned())
}

fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.split(' ').nth(1)?.parse().ok()
}

/// A zombie has ended: whoever adopted it may not have reaped it yet.
fn lives(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| !stat.starts_with(['Z', 'X']))
}

fn network(pid: u32) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

/// Looks every few milliseconds until it is so.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let clock = Clock::start();
    while !is_so() {
        assert!(clock.now().since(Time::ZERO) < Duration::from_secs(30), "{what} never came");
        crossbeam_channel::after(Duration::from_millis(10)).recv().expect("a timer fires");
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
