//! The term of a coordinator: a number that grows with every start, so that the members of an earlier start are told apart.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use gradlane_core::{Error, Result};

use crate::private_file;

/// The term of a coordinator that starts now.
///
/// With a state directory, which must exist, it is one more than that of the last start, and it is on the disk before this returns. Without
/// one, the term is the wall clock in seconds, which also grows unless the clock is set back.
///
/// # Errors
/// [`Error::Io`] if the directory cannot be used, [`Error::FailedPrecondition`] if the journal is damaged.
pub(super) fn next(state_dir: Option<&Path>) -> Result<u32> {
    let Some(dir) = state_dir else { return Ok(clock()) };
    let path = dir.join("term");
    let term = match fs::read_to_string(&path) {
        Ok(text) => after(&text),
        Err(error) if error.kind() == ErrorKind::NotFound => Some(FIRST),
        Err(error) => {
            return Err(Error::Io { what: format!("reading {}", path.display()), cause: error.to_string() });
        }
    };
    let Some(term) = term else {
        return Err(Error::FailedPrecondition {
            what: format!("the term in {} is damaged", path.display()),
            hint: "remove the file once no process of the job is left".to_owned(),
        });
    };
    private_file::write(&path, text(term))?;
    Ok(term)
}

/// The term after the one in the text of a journal; `None` if it is damaged.
pub(crate) fn after(text: &str) -> Option<u32> {
    text.trim().parse::<u32>().ok()?.checked_add(1)
}

/// The text of a journal.
pub(crate) fn text(term: u32) -> String {
    format!("{term}\n")
}

/// The term of the first start in a directory.
const FIRST: u32 = 1;

/// Seconds since 1970, at least 1.
#[expect(clippy::disallowed_methods, reason = "the driver reads the wall clock once, at the start of a coordinator")]
fn clock() -> u32 {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    u32::try_from(seconds).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_in_a_directory_has_the_next_term() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!([(); 3].map(|()| next(Some(dir.path())).unwrap()), [1, 2, 3]);
        assert_eq!(fs::read_to_string(dir.path().join("term")).unwrap(), "3\n");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no draft is left behind");
    }

    #[test]
    fn a_damaged_journal_is_named_and_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        for damaged in ["", "-1", "4294967295", "2\n3"] {
            let path = dir.path().join("term");
            fs::write(&path, damaged).unwrap();
            let error = next(Some(dir.path())).unwrap_err();
            assert!(matches!(error, Error::FailedPrecondition { .. }), "{damaged:?}: {error}");
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
        }
    }

    #[test]
    fn without_a_directory_the_term_is_the_time_of_the_start() {
        let [first, second] = [next(None).unwrap(), next(None).unwrap()];
        assert!(first > 1_700_000_000 && second >= first, "{first}, {second}");
    }
}
