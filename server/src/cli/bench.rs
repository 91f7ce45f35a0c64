//! `gradlane bench`: becomes the benchmark's program, which is one of its own so that no server and no wheel's native module carries it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use gradlane_core::{Error, Result};

const PROGRAM: &str = "gradlane-bench";

/// Becomes `gradlane-bench` with these words: that beside this program, or else the first on the path. Returns only if there is none.
pub(super) fn run(words: &[OsString]) -> Result<i32> {
    let beside = std::env::current_exe().ok().and_then(|this| Some(this.parent()?.join(PROGRAM)));
    let program = beside.filter(|program| program.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let cause = Command::new(&program).args(words).exec();
    Err(Error::FailedPrecondition {
        what: format!("{} does not start: {cause}", program.display()),
        hint: "it comes with the wheel; beside the sources, `cargo install --path bench` puts it on the path"
            .to_owned(),
    })
}
