//! The C interface: its header is that of the sources, and the example, built by the system's compiler, sums over processes.

use std::path::{Path, PathBuf};
use std::process::Command;

use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::processes::{Process, environment};

use crate::actors::ACTOR;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// What the build script of this crate made of the sources.
const FRESH: &str = concat!(env!("OUT_DIR"), "/gradlane.h");

#[test]
fn the_header_is_what_the_sources_say() {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let header = format!("{ROOT}/plugins/session/include/gradlane.h");
    assert!(read(&header) == read(FRESH), "plugins/session/include/gradlane.h is not up to date: cp {FRESH} {header}");
}

#[test]
fn every_function_for_c_is_in_the_header() {
    let header = std::fs::read_to_string(FRESH).expect("the build script has written it");
    let mut missing = Vec::new();
    for file in std::fs::read_dir(format!("{ROOT}/plugins/session/src/c")).expect("the folder of the interface") {
        let source = std::fs::read_to_string(file.expect("a file").path()).expect("sources alone");
        let functions = source.lines().filter_map(|line| line.split_once("extern \"C\" fn gradlane_"));
        let names = functions.filter_map(|(_, rest)| rest.split_once('(')).map(|(name, _)| format!("gradlane_{name}("));
        missing.extend(names.filter(|name| !header.contains(name.as_str())));
    }
    assert_eq!(missing, Vec::<String>::new(), "name the file of these functions in tests/build.rs");
}

matrix! {
    [locally, over_shm, over_quic]:
        a_program_in_c_sums_under_the_launcher;
    [over_shm, over_quic]:
        rank_0_of_a_program_in_c_embeds_the_server_where_the_launcher_brings_none,
        a_worker_in_c_is_lost_and_another_one_comes,
        a_worker_in_c_leaves_and_the_others_train_on;
}

fn a_program_in_c_sums_under_the_launcher(over: Over) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = build("sum", folder.path());
    let line = ["run", "-n", "2", "-s", "1", "--", program.to_str().expect("text")];
    let ended = Process::start(Path::new(ACTOR), &line, folder.path(), &environment(&over.settings())).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut lines = ended.output;
    lines.sort_unstable();
    assert_eq!(lines, ["rank 0 of 2: all sums are exact", "rank 1 of 2: all sums are exact"], "{}", ended.complaints);
}

fn rank_0_of_a_program_in_c_embeds_the_server_where_the_launcher_brings_none(over: Over) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = build("sum", folder.path());
    let rank = |rank: u32| {
        let variables = ["RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE"].into_iter().zip([rank, rank, 2, 2]);
        let variables = variables.map(|(name, value)| (format!("OMPI_COMM_WORLD_{name}"), value.to_string()));
        let state = ("GRADLANE_STATE_DIR".to_owned(), folder.path().join("state").display().to_string());
        let variables: Vec<_> = variables.chain([state]).chain(environment(&over.settings())).collect();
        Process::start(&program, &[], folder.path(), &variables)
    };
    let processes = [rank(1), rank(0)];
    for (mut process, rank) in processes.into_iter().zip([1, 0]) {
        let ended = process.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(ended.output, [format!("rank {rank} of 2: all sums are exact")]);
    }
}

fn a_worker_in_c_is_lost_and_another_one_comes(over: Over) {
    let (mut lines, complaints) = train(over, &["--elastic", "2:3", "--restarts", "3"], &["20", "3", "1", "5", "9"]);
    lines.sort_unstable();
    // The others hear of the loss and of the worker that came: as two changes, or as one if it came as soon as the loss was known. The worker
    // that came hears only that it came.
    let told = |changes: u32| {
        [("0", changes), ("1", changes), ("2", 1)].map(|(index, changes)| {
            (format!("worker {index} of 3: "), format!(" contributions, {changes} changes, 1 formations"))
        })
    };
    let is_told = |changes: u32| {
        lines.iter().zip(told(changes)).all(|(line, (start, end))| line.starts_with(&start) && line.ends_with(&end))
    };
    assert!(is_told(2) || is_told(1), "{lines:?}, {complaints}");
    assert_eq!(lines.len(), 3, "{lines:?}, {complaints}");
}

fn a_worker_in_c_leaves_and_the_others_train_on(over: Over) {
    let settings = ["-o", "on_worker_loss=continue"];
    let (lines, complaints) = train(over, &settings, &["20", "2", "1", "5", "15"]);
    let left = lines.iter().find_map(|line| line.strip_prefix("rank 1 has left after ")?.strip_suffix(" steps"));
    let left: u32 = left.unwrap_or_else(|| panic!("{lines:?}, {complaints}")).parse().expect("a number");
    assert!(left >= 6, "the step in which it was told is done: {left}");
    for index in ["0", "1"] {
        let line = format!("worker {index} of 2: {} contributions, 1 changes, 0 formations", left * 3 + 20 * 2);
        assert!(lines.contains(&line), "{lines:?}, {complaints}");
    }
}

/// What the workers of an elastic training in C print, and what is said of them.
fn train(over: Over, settings: &[&str], arguments: &[&str]) -> (Vec<String>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = build("elastic", folder.path());
    let command = ["--", program.to_str().expect("text")];
    let line = [&["run", "-n", "3", "-s", "1"], settings, &command, arguments].concat();
    let ended = Process::start(Path::new(ACTOR), &line, folder.path(), &environment(&over.settings())).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    (ended.output, ended.complaints)
}

#[test]
fn a_program_in_c_is_told_why_it_cannot_join() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = build("sum", folder.path());
    let variables = [("GRADLANE_JOIN", "no join string")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let ended = Process::start(&program, &[], folder.path(), &variables).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.complaints.starts_with("init: status 2: setting GRADLANE_JOIN: "), "{}", ended.complaints);
}

/// The example of this name, built into `folder`. Warnings are errors.
fn build(name: &str, folder: &Path) -> PathBuf {
    // Cargo builds the library beside the test programs of every crate that depends on it.
    let libraries = std::env::current_exe().expect("the system tells").parent().expect("in a folder").to_owned();
    assert!(libraries.join("libgradlane_session.so").exists(), "in {}", libraries.display());
    let program = folder.join(name);
    let built = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(format!("{ROOT}/plugins/session/include"))
        .arg(format!("{ROOT}/examples/c/{name}.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&libraries)
        .args(["-lgradlane_session", &format!("-Wl,-rpath,{}", libraries.display())])
        .output()
        .expect("a C compiler, which building the crates needs too");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}
