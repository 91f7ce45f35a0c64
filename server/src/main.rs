//! The `gradlane-server` binary: the `gradlane` command for hosts without Python.
//!
//! A user's own server is the same program with a handle: see [`gradlane_server::run_server_with`].

use std::process::ExitCode;

fn main() -> ExitCode {
    gradlane_server::cli::standalone(None)
}
