//! The invariants of ARCHITECTURE.md that can be read from the sources: which module may name which. A failed test says what is wrong,
//! and where.

mod circles;
mod queues;
mod shown;
mod source;
mod texts;
mod waits;

use std::collections::{BTreeMap, BTreeSet};

use circles::circles;
use gradlane_core::config::KNOBS;
use source::{Source, files, read, root};

/// The crates whose files and folders must not depend on each other in circles.
const CRATES: [&str; 8] = [
    "core/src",
    "server/src",
    "plugins/abi/src",
    "plugins/session/src",
    "plugins/tensorflow-op/src",
    "plugins/xla-ffi/src",
    "python/src",
    "bench/src",
];

/// The floors of `core`, lowest first.
const FLOORS: [&[&str]; 4] = [
    &["id", "types", "error", "config", "metrics"],
    &["wire", "reduce", "codec", "mem", "pipeline", "sched", "cluster", "worker"],
    &["cuda", "local", "identity", "collective", "device", "transport"],
    &["runtime", "engine"],
];
/// The modules of floor 2 that the others of floor 2 may name: the CUDA driver, memory and messages between processes of one machine, and who a
/// process is.
const SHARED_BY_FLOOR_2: [&str; 3] = ["cuda", "local", "identity"];
/// The names of floor 0 that the crate's root exports.
const ROOT_EXPORTS: [&str; 3] = ["Error", "Result", "Code"];

/// The machine of a server's node.
const NODE_MACHINE: [&str; 13] = [
    "aggregate",
    "budget",
    "command",
    "config",
    "life",
    "machine",
    "membership",
    "names",
    "parameter",
    "refusals",
    "services",
    "table",
    "withdrawals",
];

/// The files that may contain `unsafe`.
const UNSAFE: [&str; 68] = [
    "bench/src/team/buffers.rs",
    "core/src/collective/host/reduction.rs",
    "core/src/collective/nccl/comm.rs",
    "core/src/collective/nccl/table.rs",
    "core/src/cuda/api.rs",
    "core/src/cuda/context.rs",
    "core/src/cuda/driver.rs",
    "core/src/cuda/event.rs",
    "core/src/cuda/kernels.rs",
    "core/src/cuda/kernels/codecs.rs",
    "core/src/cuda/kernels/dithering.rs",
    "core/src/cuda/kernels/finite.rs",
    "core/src/cuda/kernels/module.rs",
    "core/src/cuda/kernels/parts.rs",
    "core/src/cuda/kernels/topk.rs",
    "core/src/cuda/loader.rs",
    "core/src/cuda/memory.rs",
    "core/src/cuda/stream.rs",
    "core/src/device/cuda/copies.rs",
    "core/src/device/cuda/backing.rs",
    "core/src/device/host.rs",
    "core/src/local/backing.rs",
    "core/src/local/numa.rs",
    "core/src/local/peer.rs",
    "core/src/local/process_id.rs",
    "core/src/local/segment.rs",
    "core/src/mem/borrow.rs",
    "core/src/mem/pool.rs",
    "core/src/mem/prefetch.rs",
    "core/src/reduce/f16c.rs",
    "core/src/reduce/kernels.rs",
    "core/src/transport/shm/memory.rs",
    "core/src/transport/quic/data/arena.rs",
    "plugins/session/src/batch.rs",
    "plugins/abi/src/door.rs",
    "plugins/session/src/c/answer.rs",
    "plugins/session/src/c/checkpoints.rs",
    "plugins/session/src/c/landing.rs",
    "plugins/session/src/c/lent.rs",
    "plugins/session/src/c/operations.rs",
    "plugins/session/src/c/parameters.rs",
    "plugins/session/src/c/read.rs",
    "plugins/session/src/c/sessions.rs",
    "plugins/session/src/c/steps.rs",
    "plugins/session/src/c/table.rs",
    "plugins/session/src/c/tables.rs",
    "plugins/session/src/memory.rs",
    "plugins/tensorflow-op/src/api.rs",
    "plugins/tensorflow-op/src/register.rs",
    "plugins/tensorflow-op/src/status.rs",
    "plugins/tensorflow-op/src/submit.rs",
    "plugins/tensorflow-op/src/tensor.rs",
    "plugins/tensorflow-op/src/wait.rs",
    "plugins/xla-ffi/src/call.rs",
    "plugins/xla-ffi/src/frame.rs",
    "plugins/xla-ffi/src/lib.rs",
    "python/src/session.rs",
    "python/src/table.rs",
    "server/src/os.rs",
    "tests/fakecuda/src/api/mod.rs",
    "tests/fakecuda/src/copies.rs",
    "tests/fakecuda/src/kernel.rs",
    "tests/fakecuda/src/memory.rs",
    "tests/fakecuda/src/steering.rs",
    "tests/fakenccl/src/api.rs",
    "tests/fakenccl/src/comm.rs",
    "tests/fakenccl/src/cuda.rs",
    "tests/fakenccl/src/shared.rs",
];

/// What a pure module must not name: threads, sockets, files, clocks, the environment, randomness, and maps without a fixed order.
const IMPURE: [&str; 12] = [
    "std::thread",
    "std::net",
    "std::env",
    "std::fs",
    "std::process",
    "Instant::now",
    "SystemTime::now",
    "HashMap",
    "HashSet",
    "crossbeam_channel",
    "getrandom",
    "tracing",
];
/// This file reads the environment and the settings file, once.
const IMPURE_BY_PURPOSE: [&str; 1] = ["core/src/config/load.rs"];

/// Calls that copy bytes without counting them.
const UNCOUNTED_COPIES: [&str; 8] = [
    "copy_from_slice",
    "clone_from_slice",
    "extend_from_slice",
    "copy_nonoverlapping",
    "ptr::copy",
    "put_slice",
    ".to_vec()",
    ".concat()",
];
/// The files through which bytes of tensors pass.
const DATA_PATH: [&str; 10] = [
    "core/src/transport/",
    "core/src/engine/",
    "server/src/node/accumulator.rs",
    "server/src/node/accumulator/",
    "server/src/node/connection.rs",
    "server/src/node/lanes.rs",
    "server/src/node/parameter/",
    "server/src/node/server.rs",
    "server/src/node/store.rs",
    "server/src/node/sum.rs",
];
/// Files within these folders that handle only certificates, control frames or timelines. They may copy.
///
/// The arena copies short batches of encrypted packets, because a single packet would otherwise hold a buffer of 64 KiB.
const BESIDE_THE_DATA_PATH: [&str; 6] = [
    "core/src/runtime/timeline",
    "core/src/transport/quic/control/",
    "core/src/transport/quic/data/arena.rs",
    "core/src/transport/quic/enroll.rs",
    "core/src/transport/quic/tls.rs",
    "core/src/transport/shm/greeting.rs",
];

const LINES_MAX: usize = 500;
/// For the harness and the tests of whole systems.
const HARNESS_LINES_MAX: usize = 600;
/// For unit tests: a specification is a list, and may be longer than the code that it specifies.
const TEST_LINES_MAX: usize = 900;

#[test]
fn references_between_floors_point_down() {
    let mut wrong = Vec::new();
    for FolderReference { from, to, place } in references_of_core() {
        let (above, below) = (floor(&from), floor(&to));
        if below > above || (above == 2 && below == 2 && from != to && !SHARED_BY_FLOOR_2.contains(&to.as_str())) {
            wrong.push(format!("{place}: {from} (floor {above}) names {to} (floor {below})"));
        }
    }
    report("references that do not point down", wrong);
}

#[test]
fn siblings_of_a_floor_do_not_go_in_circles() {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for FolderReference { from, to, .. } in references_of_core() {
        if from != to && floor(&from) == 1 && floor(&to) == 1 {
            uses.entry(from).or_default().insert(to);
        }
    }
    // Remove every folder that uses none of the remaining ones. What cannot be removed is in a circle or uses one that is.
    let mut left: BTreeSet<&str> = FLOORS[1].iter().copied().collect();
    loop {
        let free =
            |name: &&str| uses.get(*name).is_none_or(|used| used.iter().all(|used| !left.contains(used.as_str())));
        let Some(taken) = left.iter().copied().find(free) else { break };
        left.remove(taken);
    }
    let describe = |name: &str| format!("{name} uses {:?}", uses[name]);
    report("folders of floor 1 in a circle", left.into_iter().map(describe).collect());
}

#[test]
fn no_files_and_no_folders_go_in_a_circle() {
    let mut wrong = Vec::new();
    for folder in CRATES {
        let sources: Vec<Source> = read(folder).into_iter().filter(|source| !source.is_test).collect();
        wrong.extend(circles(&sources).into_iter().map(|circle| format!("{folder} {circle}")));
    }
    report("circles", wrong);
}

#[test]
fn the_machines_of_the_server_use_pure_modules_only() {
    let mut wrong = Vec::new();
    for source in server_machines() {
        for reference in source.references("gradlane_core") {
            let to = &reference.path[0];
            if !ROOT_EXPORTS.contains(&to.as_str()) && floor(to) > 1 {
                wrong.push(format!(
                    "{}:{}: names gradlane_core::{}",
                    source.path,
                    reference.line,
                    reference.path.join("::")
                ));
            }
        }
        for reference in source.references("crate") {
            if !is_machine(&reference.path) || reference.path[0] != source.module[0] {
                wrong.push(format!("{}:{}: names {}", source.path, reference.line, reference.path.join("::")));
            }
        }
    }
    report("machines that know more than they should", wrong);
}

#[test]
fn pure_modules_know_neither_threads_nor_sockets_nor_clocks() {
    let is_pure = |source: &Source| {
        source.module.first().is_some_and(|top| floor(top) <= 1)
            || source.path.starts_with("core/src/transport/exchange/")
    };
    let core = read("core/src").into_iter().filter(is_pure);
    let mut wrong = Vec::new();
    for source in core.chain(server_machines()).filter(|source| !source.is_test) {
        if IMPURE_BY_PURPOSE.contains(&source.path.as_str()) {
            continue;
        }
        for word in IMPURE {
            wrong.extend(source.lines_with(word).map(|line| format!("{}:{line}: {word}", source.path)));
        }
    }
    report("pure modules that name something impure", wrong);
}

#[test]
fn only_the_quic_transport_names_tokio() {
    let elsewhere = everything().into_iter().filter(|source| !source.path.starts_with("core/src/transport/quic/"));
    let lines = elsewhere.flat_map(|source| {
        let line =
            |word: &str| source.lines_with(word).map(|line| format!("{}:{line}", source.path)).collect::<Vec<_>>();
        ["tokio::", "quinn::"].into_iter().flat_map(line).collect::<Vec<_>>()
    });
    report("tokio or quinn elsewhere", lines.collect());
}

#[test]
fn nothing_below_the_wheel_names_pyo3() {
    let sources = ["core/src", "server/src", "plugins/session/src"].into_iter().flat_map(read);
    let lines = sources
        .flat_map(|source| source.lines_with("pyo3").map(|line| format!("{}:{line}", source.path)).collect::<Vec<_>>());
    let manifests = ["core/Cargo.toml", "server/Cargo.toml", "plugins/session/Cargo.toml"];
    let manifests = manifests.into_iter().filter(|path| text(path).contains("pyo3")).map(str::to_owned);
    report("pyo3 below the wheel", lines.chain(manifests).collect());
}

#[test]
fn only_the_listed_files_contain_unsafe() {
    let is_unsafe =
        |source: &Source| ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|word| source.code.contains(word));
    let found: BTreeSet<String> = everything()
        .into_iter()
        .chain(["bench/src", "tests/fakecuda/src", "tests/fakenccl/src"].into_iter().flat_map(read))
        .filter(|source| !source.is_test && is_unsafe(source))
        .map(|source| source.path)
        .collect();
    let listed = UNSAFE.map(str::to_owned).into_iter().collect();
    report("files with unsafe that are not in UNSAFE", found.difference(&listed).cloned().collect());
    report("files in UNSAFE without unsafe", listed.difference(&found).cloned().collect());
}

#[test]
fn the_cuda_driver_is_called_through_its_table_only() {
    // `CU...` are types.
    let called = |source: &Source| {
        let starts = source.code.match_indices("sys::cu").map(|(at, _)| &source.code[at..]);
        starts
            .map(|text| &text[..text.len().min(40)])
            .map(|text| format!("{}: {text}", source.path))
            .collect::<Vec<_>>()
    };
    report(
        "calls of cudarc functions, which panic where the driver lacks the symbol",
        everything().iter().flat_map(called).collect(),
    );
}

#[test]
fn the_data_path_copies_only_where_it_is_counted() {
    let within = |source: &Source, places: &[&str]| places.iter().any(|place| source.path.starts_with(place));
    let passed = |source: &Source| within(source, &DATA_PATH) && !within(source, &BESIDE_THE_DATA_PATH);
    let mut wrong = Vec::new();
    for source in everything().into_iter().filter(|source| !source.is_test && passed(source)) {
        for word in UNCOUNTED_COPIES {
            wrong.extend(source.lines_with(word).map(|line| format!("{}:{line}: {word}", source.path)));
        }
    }
    report("copies that gradlane_core::mem::Copies does not count", wrong);
}

/// Names of values whose end does nothing but free memory. Another one is a guard, perhaps: then write an `if`.
const PLAIN: [&str; 23] = [
    "accept_from",
    "writer",
    "before",
    "body",
    "calls",
    "count",
    "encoding",
    "error",
    "figures",
    "here",
    "json",
    "notice",
    "number",
    "output",
    "path",
    "ports",
    "processors",
    "rank",
    "size",
    "status",
    "transport",
    "ttl",
    "who",
];

#[test]
fn a_value_that_may_not_be_wanted_is_built_only_if_it_is_wanted() {
    let mut wrong = Vec::new();
    for source in read("tests").into_iter().chain(read("bench/src")).chain(everything()) {
        for (at, word) in source.code.match_indices(".then_some(") {
            let argument = argument(&source.code[at + word.len()..]);
            let is_name = argument.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
            if builds(argument) || (is_name && !PLAIN.contains(&argument)) {
                let line = source.code[..at].matches('\n').count() + 1;
                wrong.push(format!("{}:{line}: then_some({argument}): write then(|| ...), or an if", source.path));
            }
        }
    }
    report("values that are built, and dropped, though nobody wants them", wrong);
}

#[test]
fn files_can_be_read_in_one_sitting() {
    let long = |source: &Source| {
        let harness = source.path.starts_with("tests/");
        source.lines
            > if source.is_test {
                TEST_LINES_MAX
            } else if harness {
                HARNESS_LINES_MAX
            } else {
                LINES_MAX
            }
    };
    let harness = read("tests").into_iter().chain(read("bench/src")).chain(everything());
    let found = harness.filter(long).map(|source| format!("{}: {} lines", source.path, source.lines));
    report("files that are too long", found.collect());
}

#[test]
fn the_architecture_can_be_read_at_once() {
    let text = text("ARCHITECTURE.md");
    let wide = (1..).zip(text.lines()).filter(|(_, line)| line.chars().count() > 130);
    report("lines of ARCHITECTURE.md over 130 characters", wide.map(|(number, _)| number.to_string()).collect());
    assert!(text.lines().count() <= 200, "ARCHITECTURE.md has {} lines", text.lines().count());
}

#[test]
fn every_setting_that_is_mentioned_exists() {
    const PREFIX: &str = "GRADLANE_";
    // Variables that are no settings: the path of the settings file, what a launcher tells its children, and what a test tells a process.
    let mut known: BTreeSet<String> =
        ["GRADLANE_CONFIG", "GRADLANE_LAUNCHER", "GRADLANE_FAILPOINT"].map(str::to_owned).into();
    known.extend(KNOBS.iter().map(|knob| knob.env()));
    let mut wrong = Vec::new();
    let places = [("docs", "md"), ("core/src", "rs"), ("server/src", "rs"), ("python", "rs"), ("plugins", "py")];
    let below = places.into_iter().flat_map(|(folder, extension)| files(&root().join(folder), extension));
    for path in below.chain([root().join("README.md")]) {
        // Tests contain wrong settings on purpose.
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let text = text.split("#[cfg(test)]").next().expect("there is a first piece");
        if path.components().any(|part| part.as_os_str().to_string_lossy().starts_with("tests")) {
            continue;
        }
        for (at, _) in text.match_indices(PREFIX) {
            let tail = &text[at + PREFIX.len()..];
            let end = tail.find(|letter: char| !letter.is_ascii_uppercase() && letter != '_').unwrap_or(tail.len());
            let name = format!("{PREFIX}{}", &tail[..end]);
            if end > 0 && !known.contains(&name) {
                wrong.push(format!("{}: {name}", path.display()));
            }
        }
    }
    report("settings that do not exist", wrong);
}

#[test]
fn the_readme_gives_the_real_defaults() {
    let readme = text("README.md");
    let table = readme.lines().skip_while(|line| !line.starts_with("| setting | default |")).skip(2);
    let mut wrong = Vec::new();
    let mut rows = 0;
    for row in table.take_while(|line| line.starts_with('|')) {
        rows += 1;
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        for (name, default) in cells[0].split(" / ").zip(cells[1].split(" / ")) {
            let name = name.trim_matches('`');
            match KNOBS.iter().find(|knob| knob.name == name) {
                Some(knob) if knob.default == default => {}
                Some(knob) => wrong.push(format!("{name} is {} by default, not {default}", knob.default)),
                None => wrong.push(format!("{name} does not exist")),
            }
        }
    }
    assert!(rows > 0, "the table of settings was found");
    report("rows of README.md", wrong);
}

/// A reference from one folder of `core` to another, or to itself.
struct FolderReference {
    from: String,
    to: String,
    place: String,
}

fn references_of_core() -> Vec<FolderReference> {
    let mut found = Vec::new();
    for source in read("core/src").iter().filter(|source| !source.is_test) {
        let Some(from) = source.module.first() else { continue };
        for reference in source.references("crate") {
            let to = &reference.path[0];
            let to = if ROOT_EXPORTS.contains(&to.as_str()) { "error" } else { to };
            let place = format!("{}:{}", source.path, reference.line);
            found.push(FolderReference { from: from.clone(), to: to.to_owned(), place });
        }
    }
    assert!(found.len() > 100, "the sources were read");
    found
}

fn floor(module: &str) -> usize {
    let floor = FLOORS.iter().position(|floor| floor.contains(&module));
    floor.unwrap_or_else(|| panic!("core::{module} is on no floor: add it to FLOORS here and to ARCHITECTURE.md"))
}

/// The sources of the server's machines.
fn server_machines() -> Vec<Source> {
    let machines = |source: &Source| is_machine(&source.module) && !source.is_test;
    let found: Vec<Source> = read("server/src").into_iter().filter(machines).collect();
    assert!(found.len() > 10, "the sources were read");
    found
}

fn is_machine(module: &[String]) -> bool {
    let of = |index: usize| module.get(index).map(String::as_str);
    match of(0) {
        Some("node") => {
            of(1).is_some_and(|module| NODE_MACHINE.contains(&module))
                && !matches!(of(2), Some("values" | "store" | "alone"))
        }
        Some("coordinator") => of(1) != Some("driver"),
        Some(_) | None => false,
    }
}

fn everything() -> Vec<Source> {
    let plugins = ["plugins/abi/src", "plugins/session/src", "plugins/tensorflow-op/src", "plugins/xla-ffi/src"];
    ["core/src", "server/src", "python/src"].into_iter().chain(plugins).flat_map(read).collect()
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn report(what: &str, wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{what}:\n  {}", wrong.join("\n  "));
}

/// The text up to the parenthesis that closes the argument.
fn argument(text: &str) -> &str {
    let mut depth = 0_usize;
    let end = text.find(|letter| match letter {
        '(' | '[' | '{' => {
            depth += 1;
            false
        }
        ')' if depth == 0 => true,
        ')' | ']' | '}' => {
            depth -= 1;
            false
        }
        _ => false,
    });
    &text[..end.unwrap_or(text.len())]
}

/// Whether an expression calls a function or fills a structure, both of which may make a value whose drop has an effect.
fn builds(expression: &str) -> bool {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '!';
    let opens = expression.match_indices(['(', '{']);
    opens.into_iter().any(|(at, _)| expression[..at].trim_end().ends_with(is_name))
}
