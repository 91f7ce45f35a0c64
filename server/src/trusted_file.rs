//! Reads files on which the security of a process depends: join strings and secrets that the user has named.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use gradlane_core::{Error, Result};

use crate::os;

/// What a file is for, which decides who else may use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Purpose {
    /// Its name in messages, such as `join file`.
    pub(crate) name: &'static str,
    /// The bits of the mode that it must not have.
    pub(crate) forbidden: u32,
    /// What to do if it has one of them, or another owner.
    pub(crate) hint: &'static str,
    /// How much of it is read at most.
    pub(crate) bytes_max: u64,
}

/// The content of `path`; `None` if there is no such file. The file must belong to this user or to root, as secrets do that are mounted into
/// containers.
///
/// # Errors
/// [`Error::Auth`] for a file of another user, or that others may use in a way that its purpose forbids; [`Error::Io`].
pub(crate) fn read(path: &Path, purpose: Purpose) -> Result<Option<String>> {
    let failed = |error: io::Error| Error::Io { what: format!("reading {}", path.display()), cause: error.to_string() };
    // Does not wait for a writer if it is a pipe. Checks the opened file, so that it cannot be replaced between check and use.
    let mut file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let metadata = file.metadata().map_err(failed)?;
    if let Some(problem) = open_to_others(metadata.uid(), metadata.mode(), os::effective_user(), purpose.forbidden) {
        let problem = format!("the {} {} {problem}", purpose.name, path.display());
        return Err(Error::Auth { problem, hint: purpose.hint.to_owned() });
    }
    bounded(&mut file, purpose.bytes_max).map(Some).map_err(failed)
}

/// The first `bytes_max` bytes of a file.
pub(crate) fn bounded(file: &mut File, bytes_max: u64) -> io::Result<String> {
    let mut content = String::new();
    file.take(bytes_max).read_to_string(&mut content)?;
    Ok(content)
}

/// Of a file that holds a line or two: a join string and an writer are some 300 bytes.
pub(crate) const LINES_BYTES_MAX: u64 = 4096;

/// Why a file with this owner and mode is not trusted; `None` if it is.
fn open_to_others(owner: u32, mode: u32, this_user: u32, forbidden: u32) -> Option<String> {
    if owner != this_user && owner != 0 {
        return Some(format!("belongs to user {owner}"));
    }
    let mode = mode & 0o777;
    match mode & forbidden {
        0 => None,
        found if found & 0o022 != 0 => Some(format!("can be written by others (mode {mode:o})")),
        _ => Some(format!("can be read by others (mode {mode:o})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_only_if_nobody_else_can_have_written_it_or_may_read_what_is_secret() {
        let (me, root, other) = (1000, 0, 1001);
        let (written, read) = (0o022, 0o026);
        for (owner, mode, forbidden, problem) in [
            (me, 0o600, written, None),
            (me, 0o644, written, None),
            (root, 0o440, written, None),
            (other, 0o600, written, Some("belongs to user 1001")),
            (me, 0o620, written, Some("written by others (mode 620)")),
            (root, 0o666, written, Some("written by others (mode 666)")),
            (me, 0o644, read, Some("read by others (mode 644)")),
            (root, 0o440, read, None),
            (me, 0o660, read, Some("written by others (mode 660)")),
        ] {
            let found = open_to_others(owner, 0o100_000 | mode, me, forbidden);
            assert_eq!(found.is_some(), problem.is_some(), "{owner} {mode:o}");
            assert!(found.unwrap_or_default().contains(problem.unwrap_or_default()), "{owner} {mode:o}");
        }
    }
}
