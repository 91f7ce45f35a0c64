//! Every subcommand at its smoke size, as a user starts it: what it prints, what it writes, and how it ends.

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use skip::skip;

#[path = "../../tests/harness/skip.rs"]
pub mod skip;

#[test]
fn push_pull_verifies_every_sum_of_every_type_and_operation() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let ended = bench(&[
        "push-pull",
        "--smoke",
        "-N",
        "1",
        "--road",
        "quic",
        "-d",
        "all",
        "-o",
        "all",
        "-J",
        json.to_str().unwrap(),
    ]);
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
fn rows_of_tables_are_verified_over_each_road_and_form() {
    for (codec, dtype, spreads) in [("none", "f32", "even,zipf"), ("int8", "bf16", "even"), ("none", "fp16", "zipf")] {
        let few = ["--ids", "300", "--dim", "3", "--servers", "1,2", "--codec", codec, "--spread", spreads];
        let text = succeeded(&bench(&[&["table", "--smoke", "--dtype", dtype], &few[..]].concat()));
        for contender in ["store", "shm-1", "shm-2", "quic-1", "quic-2", "memory"] {
            let rows = text.lines().filter(|line| line.trim_start().starts_with(contender)).count();
            assert_eq!(rows, 2 * spreads.split(',').count(), "{contender}: a row for each use and spread: {text}");
        }
    }
    let refused = bench(&["table", "--smoke", "--codec", "topk"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("none, bf16, fp16, int8"), "{refused:?}");
    let refused = bench(&["table", "--smoke", "--dtype", "f64"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("f32, bf16, fp16"), "{refused:?}");
}

#[test]
fn a_wrong_sum_fails_the_run() {
    for question in ["push-pull", "transport", "latency", "small"] {
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
    let ended = bench(&["push-pull", "--smoke", "--mode", modes, "--servers", "2", "--road", "quic,shm"]);
    let text = succeeded(&ended);
    for (road, mode) in ["quic", "shm"].iter().flat_map(|road| modes.split(',').map(move |mode| (road, mode))) {
        assert!(text.contains(&format!("{road} {mode}")), "{text}");
    }
}

#[test]
fn collectives_are_verified_on_every_road() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let all = ["all-reduce", "reduce-scatter", "all-gather", "all-to-all"];
    for workers in ["2", "3"] {
        let words = ["push-pull", "--smoke", "-N", "1", "--road", "local,shm,quic,mem", "--workers", workers];
        let asked = ["--collective", &all.join(","), "-J", json.to_str().unwrap()];
        let text = succeeded(&bench(&[&words[..], &asked].concat()));
        let results = read(&json);
        assert_eq!(results["wrong"], 0);
        for (road, collective) in ["local", "shm", "quic", "mem"].iter().flat_map(|road| all.map(|of| (road, of))) {
            let rows = results["rows"].as_array().unwrap();
            let rows = rows.iter().filter(|row| row["contender"] == *road && row["collective"] == collective);
            let rows: Vec<&Value> = rows.collect();
            assert_eq!(rows.len(), 2, "sizes of {road} {collective}: {text}");
            for row in rows {
                let (reduces, alone) =
                    (!collective.starts_with("all-g") && collective != "all-to-all", collective != "all-reduce");
                assert_eq!((row["redop"] == "sum", row["in_place"].is_null()), (reduces, alone), "{row}");
                let speed = |of: &str| row["out_of_place"][of]["median"].as_f64().unwrap();
                let workers: f64 = workers.parse().unwrap();
                let factor = (workers - 1.0) / workers * if alone { 1.0 } else { 2.0 };
                assert!((speed("busbw") / speed("algbw") - factor).abs() < 1e-6, "{row}");
            }
        }
    }
}

#[test]
fn several_tensors_of_a_collective_are_in_flight_together() {
    let collectives = "reduce-scatter,all-gather,all-to-all";
    let words = ["push-pull", "--smoke", "-N", "1", "-d", "all", "-o", "max,mean", "--servers", "2", "--inflight", "3"];
    let text = succeeded(&bench(&[&words[..], &["--road", "quic", "--collective", collectives]].concat()));
    let rows = |name: &str| text.lines().filter(|line| line.ends_with(&format!("  quic {name} x3"))).count();
    let counts = ["reduce-scatter", "all-gather", "all-to-all"].map(rows);
    assert_eq!(counts, [8 * 2 * 2, 8 * 2, 8 * 2], "types, operations where there are any, sizes: {text}");
}

#[test]
fn a_wrong_result_of_a_collective_fails_the_run() {
    for collective in ["reduce-scatter", "all-gather", "all-to-all"] {
        let ended = bench(&[
            "push-pull",
            "--smoke",
            "-N",
            "1",
            "--road",
            "quic",
            "--collective",
            collective,
            "--plant-wrong-sum",
        ]);
        assert_eq!(ended.status.code(), Some(1), "{collective}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains("wrong result: 4 elements"), "{collective}: {ended:?}");
    }
}

#[test]
fn transports_and_their_peers_give_back_what_was_pushed() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let modes = "push-pull,push-only,pull-only,push-then-pull";
    let all = ["transport", "--smoke", "--road", "quic,shm,mem", "--mode", modes, "-J", json.to_str().unwrap()];
    succeeded(&bench(&all));
    let results = read(&json);
    assert_eq!((&results["wrong"], results["rows"].as_array().unwrap().len()), (&Value::from(0), 5 * 4 * 2));
    let peers: Vec<&str> =
        results["ratios"].as_array().unwrap().iter().filter_map(|ratio| ratio["peer"].as_str()).collect();
    assert!(peers.contains(&"tcp") && peers.contains(&"tls"), "{peers:?}");
}

#[test]
fn messages_take_turns_over_several_connections() {
    let ended = bench(&["transport", "--smoke", "--road", "quic,shm", "--connections", "1,3"]);
    let text = succeeded(&ended);
    for contender in ["quic", "3 quic", "shm", "3 shm"] {
        assert!(text.contains(contender), "{text}");
    }
}

#[test]
fn latency_is_measured_idle_and_under_a_backlog() {
    let text = succeeded(&bench(&["latency", "--smoke"]));
    assert!(text.contains("quic busy in-place: exchanges 6"), "{text}");
}

#[test]
fn many_small_tensors_are_set_against_one_of_their_length() {
    let text = succeeded(&bench(&["small", "--smoke", "--road", "local,shm,quic", "--expect", "quic x1000/cost>0"]));
    assert!(text.contains("# Expectation quic x1000/cost>0: met"), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains("x1000") && !line.starts_with('#')).count(), 3, "{text}");
}

#[test]
fn mpi_does_the_same_work_where_it_is_installed() {
    let works = |program: &str, words: &[&str]| {
        Command::new(program).args(words).output().is_ok_and(|end| end.status.success())
    };
    let compiles = works("mpicc", &["-fsyntax-only", "-include", "mpi.h", "-x", "c", "/dev/null"]);
    if !compiles || !works("mpirun", &["--version"]) {
        skip("needs MPI");
        return;
    }
    let types = "f32,bf16,f16,i8";
    let words = ["push-pull", "--smoke", "--backend", "mpi", "-d", types, "-o", "sum,min,max", "--inflight", "2"];
    let text = succeeded(&bench(&[&words[..], &["--road", "local"]].concat()));
    assert!(text.contains("# mpi: ") && text.contains("its ranks"), "what it is and how it waits: {text}");
    assert_eq!(
        text.lines().filter(|line| line.ends_with("mpi x2")).count(),
        4 * 3 * 2,
        "types, operations, sizes: {text}"
    );
    for inflight in ["1", "2"] {
        let words = [
            "push-pull",
            "--smoke",
            "-N",
            "1",
            "--road",
            "local",
            "--backend",
            "mpi",
            "-d",
            types,
            "-o",
            "sum,max",
            "--inflight",
            inflight,
        ];
        let collectives = ["--collective", "reduce-scatter,all-gather,all-to-all", "--workers", "3"];
        let text = succeeded(&bench(&[&words[..], &collectives].concat()));
        let rows = text.lines().filter(|line| line.contains("  mpi ")).count();
        assert_eq!(rows, (4 * 2 + 4 + 4) * 2, "types and operations, sizes: {text}");
    }
}

/// `make test` needs none of these peers. Where one is not installed, the run says how to install it.
#[test]
fn peers_of_an_environment_of_their_own_do_the_same_work_or_are_named() {
    for (peer, header) in
        [("mpich", "mpich/include/mpi.h"), ("impi", "intel/include/mpi.h"), ("oneccl", "intel/include/oneapi/ccl.hpp")]
    {
        let collectives = "all-reduce,reduce-scatter,all-gather,all-to-all";
        let words = ["push-pull", "--smoke", "-N", "1", "--road", "local", "--workers", "2", "-d", "f32,bf16"];
        let ended = bench(&[&words[..], &["-o", "sum,max", "--collective", collectives, "--backend", peer]].concat());
        let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv-peers").join(header).is_file();
        if !installed {
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(said.contains(&format!("--backend {peer}")) && said.contains("make bench-peers"), "{said}");
            continue;
        }
        let text = succeeded(&ended);
        let rows = text.lines().filter(|line| line.contains(&format!("  {peer}"))).count();
        assert_eq!(rows, (2 + 2 + 1 + 1) * 2 * 2, "operations where there are any, types, sizes: {text}");
    }
    let ended = bench(&["push-pull", "--smoke", "--backend", "mpich", "--peers", "/nowhere"]);
    assert!(String::from_utf8_lossy(&ended.stderr).contains("not in /nowhere/mpich; `make bench-peers`"), "{ended:?}");
}

#[test]
fn without_a_choice_all_transports_are_measured_and_that_of_training_is_named() {
    // The contender stands behind the fifteen columns of figures.
    let names = |text: &str| -> Vec<String> {
        let rows = text.lines().filter(|line| !line.starts_with('#'));
        rows.filter_map(|row| row.split_whitespace().nth(15).map(str::to_owned)).collect()
    };
    for question in ["push-pull", "latency"] {
        let text = succeeded(&bench(&[question, "--smoke", "-N", "1"]));
        assert!(text.contains("all transports that apply here: local, shm, quic. 2 workers on one machine"), "{text}");
        assert!(text.contains("a training job uses local here"), "{text}");
        let names = names(&text);
        for name in ["local", "shm", "quic"] {
            assert!(names.iter().any(|found| found == name), "{name}: {text}");
        }
    }
    let text = succeeded(&bench(&["push-pull", "--smoke", "-N", "1", "--workers", "1"]));
    assert!(
        text.contains("apply here: shm, quic. 1 worker with a server on its machine: a training job uses shm"),
        "{text}"
    );
    let text = succeeded(&bench(&["push-pull", "--smoke", "-N", "1", "--road", "quic"]));
    assert!(text.contains("uses local here, and quic only to other machines; leave out --road to see it"), "{text}");
    assert!(text.contains("# quic: through servers, as to another machine: encrypted packets"), "{text}");
}

#[test]
fn tables_fit_the_columns_that_there_are_and_a_pipe_gets_no_progress() {
    for words in [
        &["push-pull", "--smoke", "-N", "1"][..],
        &["push-pull", "--smoke", "-N", "1", "--road", "quic", "-d", "f32,bf16", "--inflight", "2", "-I"],
        &["latency", "--smoke"],
        &["transport", "--smoke"],
        &["small", "--smoke"],
        &["reduce", "--smoke"],
        &["sched", "--smoke"],
    ] {
        for columns in ["80", "60"] {
            let ended = bench(&[words, &["--columns", columns]].concat());
            let (text, most) = (succeeded(&ended), columns.parse().unwrap());
            let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > most).collect();
            assert!(wide.is_empty(), "{words:?}: {wide:?} of {text}");
            assert!(ended.stderr.is_empty(), "{words:?}: {ended:?}");
        }
    }
}

#[test]
fn where_bytes_go_through_memory_its_speed_is_the_bound() {
    let words =
        ["push-pull", "--smoke", "--road", "shm,local,quic", "-d", "bf16,f16", "--expect", "bound>0", "--expect"];
    let text = succeeded(&bench(&[&words[..], &["local/bound>0"]].concat()));
    let (through, among) = (text.matches("of bound (11 S / ").count(), text.matches("of bound (8 S / ").count());
    assert_eq!((through, among), (2 * 2 * 2, 2 * 2 * 2), "types, sizes, places: {text}");
    assert!(!text.lines().any(|line| line.contains(" quic ") && line.contains("bound")), "{text}");
}

#[test]
fn a_job_within_one_process_sums_as_well_and_its_wrong_sums_are_noticed() {
    let words = ["push-pull", "--smoke", "--road", "mem", "--workers", "3", "--servers", "2"];
    let text = succeeded(&bench(&words));
    assert_eq!(text.matches("  mem").count(), 2, "sizes: {text}");
    let ended = bench(&[&words[..], &["--plant-wrong-sum"]].concat());
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
}

#[test]
fn what_one_worker_reduces_is_set_against_plain_streams() {
    let words =
        ["push-pull", "--smoke", "--workers", "1", "--inflight", "4", "--road", "quic,shm", "--backend", "tcp,tls"];
    let text = succeeded(&bench(&words));
    for (ours, peer) in [("quic", "tcp"), ("quic", "tls"), ("shm", "tcp"), ("shm", "tls")] {
        let compared = |line: &&str| line.contains(&format!("  {ours} x4  ")) && line.contains(&format!(" x {peer}"));
        assert_eq!(text.lines().filter(compared).count(), 2, "{ours} and {peer}: {text}");
    }
}

#[test]
fn kernels_and_scheduler_are_measured_into_files_of_the_same_shape() {
    let folder = tempfile::tempdir().unwrap();
    for (words, expectations) in [
        (["reduce", "--smoke"], ["sum/ratio:copy>0", "copy/algbw>0"]),
        (["sched", "--smoke"], ["move/time<1e6@100", "submit/p99<1e6"]),
    ] {
        let json = folder.path().join(format!("{}.json", words[0]));
        let asked = expectations.iter().flat_map(|expectation| ["--expect", expectation]);
        let all: Vec<&str> = words.into_iter().chain(asked).chain(["-J", json.to_str().unwrap()]).collect();
        succeeded(&bench(&all));
        let results = read(&json);
        assert_eq!((&results["question"], &results["complete"]), (&Value::from(words[0]), &Value::from(true)));
        assert!(results["machine"]["load_at_begin"].is_string() && results["machine"]["load_at_end"].is_string());
        for row in results["rows"].as_array().unwrap() {
            let time = &row["in_place"]["time_us"];
            let [min, median, max] = ["min", "median", "max"].map(|name| time[name].as_f64().unwrap());
            assert!(0.0 < min && min <= median && median <= max, "{row}");
        }
    }
}

#[test]
fn a_model_is_one_exchange_and_workers_can_join_a_running_job() {
    let folder = tempfile::tempdir().unwrap();
    let join = folder.path().join("join");
    let mut coordinator = command(&["role", "--parent", &std::process::id().to_string(), "coordinator"]);
    let mut coordinator = Helper(coordinator.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let told = coordinator.tell(r#"{"settings":{"bind":"127.0.0.1:0"},"workers":2,"servers":1,"join":null,"index":0}"#);
    std::fs::write(&join, &told).unwrap();
    let mut server = command(&["role", "--parent", &std::process::id().to_string(), "server"]);
    let mut server = Helper(server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let told = told.trim();
    assert_eq!(
        server.tell(&format!(
            r#"{{"settings":{{"bind":"127.0.0.1:0"}},"workers":2,"servers":1,"join":"{told}","index":0}}"#
        )),
        "listening\n"
    );
    let text = succeeded(&bench(&[
        "push-pull",
        "--smoke",
        "-N",
        "1",
        "--model",
        "resnet50",
        "--join",
        &format!("@{}", join.display()),
    ]));
    assert!(text.contains(" 102228128 ") && text.contains("auto resnet50"), "{text}");
}

#[test]
fn the_suite_makes_a_page_and_says_which_table_failed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("results");
    let only = ["suite", "--short", "--only", "sched,reduce,transport", "-o", out.to_str().unwrap()];
    succeeded(&bench(&only));
    let page = std::fs::read_to_string(out.join("README.md")).unwrap();
    for part in [
        "- transport: made",
        "## reduce",
        "![transport](transport-uint8.svg)",
        "| 100 | none | none | move | in |",
        "at the end",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
    // A folder where the file of a table should be keeps that one from being made, and no other.
    std::fs::remove_file(out.join("reduce.json")).unwrap();
    std::fs::create_dir(out.join("reduce.json")).unwrap();
    let ended = bench(&only);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("1 of 3 tables failed: reduce"), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("## sched: made"), "{ended:?}");
}

#[test]
fn expectations_decide_the_exit_code() {
    let met = bench(&["latency", "--smoke", "--backlog", "0", "--expect", "p99<1e9", "--expect", "wrong<=0@4K"]);
    assert!(succeeded(&met).contains("# Expectation p99<1e9: met"));
    for words in [&["latency", "--smoke", "--backlog", "0"][..], &["reduce", "--smoke"]] {
        let missed = bench(&[words, &["--expect", "algbw>1e9"]].concat());
        assert_eq!(missed.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&missed.stdout).contains("MISSED"), "{missed:?}");
    }
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
        (&["push-pull", "--road", "air"], "no value of --road"),
        (&["push-pull", "--smoke", "--mode", "push-only", "--model", "vgg16"], "neither --model nor --join"),
        (&["push-pull", "--smoke", "--backend", "gloo", "--python", "/nowhere/python"], "install torch"),
        (&["transport", "-e", "128M", "-b", "128M"], "no exchange carries more"),
        (&["push-pull", "--smoke", "--join", "gradlane1", "--road", "quic,shm"], "a single --road"),
        (&["push-pull", "--smoke", "--join", "gradlane1", "--road", "mem"], "cannot join another"),
        (&["push-pull", "--smoke", "--join", "gradlane1"], "fewer than four parts"),
        (&["push-pull", "--smoke", "--backend", "tcp"], "give --workers 1"),
        (&["push-pull", "--collective", "all-scatter"], "all-scatter"),
        (&["push-pull", "--collective", "all-gather", "--mode", "push-only"], "leave out --mode or --collective"),
        (&["push-pull", "--collective", "all-gather", "--model", "vgg16"], "leave out --model or --collective"),
        (&["push-pull", "--collective", "all-gather", "--place", "in"], "leave out --place in"),
        (&["push-pull", "--collective", "all-gather,all-to-all", "-o", "max"], "leave out -o"),
        (
            &["push-pull", "--collective", "all-gather", "--workers", "1", "--backend", "tls"],
            "use --backend gloo or mpi",
        ),
        (&["push-pull", "--collective", "all-to-all", "--workers", "3", "-b", "8"], "not one float32 element for each"),
        (&["reduce", "-b", "4"], "less than one element"),
        (&["suite", "--only", "speed"], "is no table"),
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
    let words = ["push-pull", "--road", "quic", "-b", "4K", "-n", "1000000", "-N", "1000"];
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

/// A process of a job that runs already.
struct Helper(std::process::Child);

impl Helper {
    /// Tells it how to start, and returns what it says when it has.
    fn tell(&mut self, start: &str) -> String {
        writeln!(self.0.stdin.as_mut().expect("piped"), "{start}").unwrap();
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().expect("piped")).read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
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
