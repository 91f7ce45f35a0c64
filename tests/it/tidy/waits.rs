//! Every wait of the production code has a row in WAITS.md, which says what ends it and how long it lasts at most.

use std::collections::BTreeMap;

use super::source::Source;
use super::{everything, report, text};

/// Calls with which a thread sleeps. A join of texts or paths has an argument, and [`OwnThread::join`] waits in its own file.
///
/// [`OwnThread::join`]: gradlane_core::local::OwnThread
const WAITS: [&str; 17] = [
    ".wait(",
    ".wait_while(",
    ".wait_timeout(",
    ".wait_timeout_while(",
    ".recv()",
    ".recv_timeout(",
    ".recv_deadline(",
    "thread.join()",
    "park(",
    "park_timeout(",
    "futex::wait(",
    "wait_word(",
    "wait_any(",
    "epoll::wait(",
    " poll(&mut",
    "event::poll(&mut",
    "block_on(",
];
/// What looks like a wait of a thread, and is none: a name of a machine's method, or a task of tokio.
const NO_WAITS: [&str; 7] =
    ["fn wait_any(", "self.park(", "fn park(", "self.unpark(", "self.endings.wait(", "stream.wait(", ".recv().await"];
/// Files that only tests use, and the network's tasks of tokio.
const ASIDE: [&str; 5] = [
    "core/src/transport/quic/control/",
    "core/src/transport/quic/vandal",
    "core/src/transport/shm/vandal",
    "core/src/transport/contract",
    "fuzzing.rs",
];

#[test]
fn every_wait_has_a_row_that_says_what_ends_it_and_when() {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for source in everything().into_iter().filter(|source| !source.is_test) {
        let count = waits(&source);
        if count > 0 && !ASIDE.iter().any(|aside| source.path.contains(aside)) {
            found.insert(source.path, count);
        }
    }
    let rows = rows(&text("WAITS.md"));
    let known = |path: &String| rows.get(path).copied().unwrap_or(0);
    let wrong = found.iter().filter(|(path, count)| known(path) != **count);
    let wrong = wrong.map(|(path, count)| format!("{path} has {count} waits, and WAITS.md says {}", known(path)));
    let gone = rows.keys().filter(|path| !found.contains_key(*path)).map(|path| format!("{path} has no wait any more"));
    report("waits whose row in WAITS.md is missing or wrong", wrong.chain(gone).collect());
}

fn waits(source: &Source) -> usize {
    let code: String = NO_WAITS.iter().fold(source.code.clone(), |code, none| code.replace(none, ""));
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
    let whole = |at: usize, word: &str| word.starts_with(['.', ' ']) || !code[..at].ends_with(is_letter);
    let count = |word: &str| code.match_indices(word).filter(|(at, _)| whole(*at, word)).count();
    WAITS.into_iter().map(count).sum()
}

/// The number of waits by file. Every cell of a row must say something.
fn rows(page: &str) -> BTreeMap<String, usize> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let path = cells[0].trim_matches('`').to_owned();
        assert!(cells.len() == 4 && cells.iter().all(|cell| !cell.is_empty()), "a row of four cells: {line}");
        (path, cells[1].parse().unwrap_or_else(|_| panic!("the number of waits: {line}")))
    };
    page.lines().filter(|line| line.starts_with("| `")).map(row).collect()
}
