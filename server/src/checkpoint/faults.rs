//! The errors of files.

use std::path::Path;

use gradlane_core::error::Error;

/// The system has refused something about a file.
pub(super) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |error| Error::Io { what, cause: error.to_string() }
}

/// A file of a checkpoint is not what it was.
pub(super) fn corrupt(file: impl Into<String>, problem: impl Into<String>) -> Error {
    Error::CorruptCheckpoint { file: file.into(), problem: problem.into() }
}

/// A directory has no checkpoint.
pub(super) fn no_checkpoint(directory: &Path) -> Error {
    Error::NotFound {
        what: format!("a whole checkpoint in {}", directory.display()),
        hint: "give the directory to which one was saved".to_owned(),
    }
}
