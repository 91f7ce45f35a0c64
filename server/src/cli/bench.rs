//! `gradlane bench`: becomes `gradlane-bench`, a separate program, so that servers and the wheel's native module do not contain it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use gradlane_core::{Error, Result};

const PROGRAM: &str = "gradlane-bench";

/// Becomes `gradlane-bench` with these arguments: the one beside this program, or else the first on the path. Returns only if there is
/// none.
pub(super) fn run(words: &[OsString]) -> Result<i32> {
    let beside = std::env::current_exe().ok().and_then(|this| Some(this.parent()?.join(PROGRAM)));
    let program = beside.filter(|program| program.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let cause = Command::new(&program).args(words).exec();
    Err(Error::FailedPrecondition {
        what: format!("{} does not start: {cause}", program.display()),
        hint: "install the wheel, which contains it, or run `cargo install --path bench` in the sources".to_owned(),
    })
}
