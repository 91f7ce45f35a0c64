//! The `gradlane-server` binary: the `gradlane` command for hosts without Python.
//!
//! Without a subcommand it runs the role in `GRADLANE_ROLE` or `DMLC_ROLE`, or else a server, because BytePS's and ps-lite's launch scripts
//! start one program for both.

use std::ffi::OsString;

fn main() {
    let mut argv: Vec<OsString> = std::env::args_os().collect();
    let about_itself = |word: &OsString| matches!(word.to_str(), Some("-h" | "--help" | "-V" | "--version"));
    let names_command = |word: &OsString| !word.to_string_lossy().starts_with('-');
    if !argv.get(1).is_some_and(|word| about_itself(word) || names_command(word)) {
        argv.insert(1.min(argv.len()), "serve".into());
    }
    // The path of this program; if it is unknown, the name under which it was called.
    let this = std::env::current_exe().map_or_else(|_| argv[0].clone(), OsString::from);
    std::process::exit(gradlane_server::cli::main(argv.into_iter(), &[this]));
}
