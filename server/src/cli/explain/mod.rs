//! `gradlane explain`: reads the dumps of the flight recorders of all members, and says in words who held the job up.
//!
//! This file finds and reads the files. [`dump`] checks what is in one, with [`worker`], [`server`] or [`coordinator`]. [`verdict`] is a pure
//! function from dumps to text: [`run`] leaves out dumps of former runs, [`servers`] adds the sentences about servers, and [`uses`] those about
//! parameters and tables.

mod coordinator;
mod dump;
mod fields;
mod head;
mod members;
mod run;
mod server;
mod servers;
mod stacks;
#[cfg(test)]
mod tests;
mod uses;
mod verdict;
mod words;
mod worker;

use std::io::Read;
use std::path::{Path, PathBuf};

use gradlane_core::runtime::recording::{STACKS_SUFFIX, SUFFIX};
use gradlane_core::{Error, Result};

use super::screen::say;
use dump::{Dump, Found, Of};

use crate::report::files as reports;

/// Prints who held the job up whose dumps lie in `directory`.
///
/// # Errors
/// [`Error::Io`] if the directory cannot be read; [`Error::NotFound`] if there is no dump in it.
pub(super) fn explain(directory: &Path) -> Result<i32> {
    let (dumps, others) = files(directory)?;
    let found: Vec<Found> = dumps.iter().map(|path| found(path)).collect();
    if found.is_empty() {
        return Err(Error::NotFound {
            what: format!("a dump of a flight recorder in {}", directory.display()),
            hint: format!("give the directory with the files that end in {SUFFIX}: `flight` below dump_dir"),
        });
    }
    say(&verdict::explain(&found, &reports::among(&others)))
}

/// The dumps in a directory and the other files of JSON, by name.
fn files(directory: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let failed = |cause: std::io::Error| Error::Io {
        what: format!("reading {}", directory.display()),
        cause: cause.to_string(),
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // A draft of a file that is being written begins with a point.
        if name.ends_with(".json") && !name.starts_with('.') {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths.into_iter().partition(|path| path.to_string_lossy().ends_with(SUFFIX)))
}

fn found(path: &Path) -> Found {
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut content = text(path).and_then(|text| Dump::parse(&text));
    if let Ok(Dump { of: Of::Worker(worker), .. }) = &mut content {
        worker.stacks = stacks_of(path);
    }
    Found { file, content }
}

/// The Python stacks that were written beside a dump, if there are some.
fn stacks_of(dump: &Path) -> Option<String> {
    let name = dump.file_name()?.to_str()?.strip_suffix(SUFFIX)?.to_owned() + STACKS_SUFFIX;
    let text = text(&PathBuf::from(dump).with_file_name(name)).ok()?;
    stacks::main_thread(&text)
}

/// The text of a file that is not too long for a dump.
fn text(path: &Path) -> std::result::Result<String, String> {
    let read = || {
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error: std::io::Error| error.to_string())?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(format!("it is longer than {} MiB, and so no dump", BYTES_MAX >> 20));
    }
    String::from_utf8(bytes).map_err(|_| "it is no text".to_owned())
}

/// The longest dump, with the most events that can be set, has less.
const BYTES_MAX: u64 = 256 << 20;
