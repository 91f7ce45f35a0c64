//! How a test tells that it cannot run on this machine.
//!
//! Test programs of other crates include this file by its path: a dependency would lead in a circle, or make them build the whole harness.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::{env, thread};

/// Notes that the calling test is skipped because of `reason`; the test returns after that.
///
/// The note is printed. It is also added to the file that the variable `SKIPPED_TESTS` names, because the output of a test that passes
/// is not shown; `make test` sets the variable, and ends with the count of the reasons.
///
/// # Panics
/// If [`is_failure`] says so for this process.
#[expect(clippy::disallowed_methods, reason = "no setting: make and CI tell the tests about the run")]
pub fn skip(reason: &str) {
    let is_ci = env::var("CI").is_ok_and(|value| value == "true");
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    assert!(
        !is_failure(reason, is_ci, is_root),
        "a test was skipped in CI: {reason}; let .ci/run install what it needs, or add the reason to tests/allowed_skips.txt"
    );
    println!("SKIP: {reason}");
    if let Some(path) = env::var_os("SKIPPED_TESTS") {
        let line = format!("{}\t{}\n", thread::current().name().unwrap_or("a test"), reason.replace('\n', " "));
        // One write a line: test programs run side by side.
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("SKIPPED_TESTS names a file that can be written");
    }
}

/// Whether a skip is a failure: CI as root installs what tests need, so only the reasons in `tests/allowed_skips.txt` hold there.
pub fn is_failure(reason: &str, is_ci: bool, is_root: bool) -> bool {
    let is_allowed = || {
        let lines = include_str!("../allowed_skips.txt").lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| line.split_once('\t')).any(|(prefix, _)| reason.starts_with(prefix))
    };
    is_ci && is_root && !is_allowed()
}
