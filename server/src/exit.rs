//! The exit codes of the command, and its error message.

use std::fmt::Display;
use std::io::Write;

use gradlane_core::types::printable;
use gradlane_core::{Code, Error};

/// The job succeeded.
pub(crate) const SUCCESS: i32 = 0;
/// The job failed.
pub(crate) const FAILURE: i32 = 1;
/// The command line or a setting is wrong; nothing was started.
pub(crate) const USAGE: i32 = 2;
/// A peer is not available yet or any more; the same command may succeed later (`EX_TEMPFAIL` of sysexits.h).
pub(crate) const TEMPORARY: i32 = 75;
/// An identity could not be proven (`EX_NOPERM` of sysexits.h).
pub(crate) const PERMISSION: i32 = 77;

/// The table, for `--help`.
pub(crate) const TABLE: &str = "\
Exit codes:
  0      the job ended in order
  1      the job failed
  2      bad usage or settings; nothing was started
  75     temporary: the coordinator is not reachable, or the job did not form in time, or SIGTERM has stopped
         a coordinator with --resume, which left its job to the next one
  77     not permitted: the join string or certificate does not prove who this is
  128+n  ended by signal n
  `run` exits with the code of the first process that failed; 126 or 127 if it cannot be started";

/// The exit code of a process that a signal ended.
pub(crate) fn of_signal(signal: i32) -> i32 {
    128 + signal
}

/// The exit code for an error.
pub(crate) fn code(error: &Error) -> i32 {
    match error {
        // An error of the system has the class `Unavailable`, but waiting does not free a used port or a full disk.
        Error::Io { .. } => FAILURE,
        // A tensor without contributions is a fault of the job, and waiting does not help.
        Error::Stalled { .. } => FAILURE,
        _ => match error.code() {
            Code::InvalidArgument => USAGE,
            Code::Unavailable | Code::DeadlineExceeded => TEMPORARY,
            Code::Unauthenticated => PERMISSION,
            Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::Aborted
            | Code::ResourceExhausted
            | Code::Cancelled
            | Code::Fenced
            | Code::DataLoss
            | Code::Internal => FAILURE,
        },
    }
}

/// Prints the error in one write, because all processes of a job may share standard error.
pub(crate) fn complain(problem: &impl Display) {
    // If standard error is closed, there is no other place for the message.
    let _ = std::io::stderr().write_all(complaint(problem).as_bytes());
}

/// The error as one line. It may name what others have chosen.
fn complaint(problem: &impl Display) -> String {
    format!("gradlane: {}\n", printable(&problem.to_string()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hostile;

    #[test]
    fn the_code_says_whether_to_try_again() {
        let text = String::new;
        let missing = vec!["worker 2".to_owned()];
        for (error, expected) in [
            (Error::Config { knob: text(), problem: text(), hint: text() }, USAGE),
            (Error::NotFormed { missing, waited: Duration::ZERO }, TEMPORARY),
            (Error::Unavailable { what: text(), cause: text() }, TEMPORARY),
            (Error::Timeout { what: text(), waited: Duration::ZERO }, TEMPORARY),
            (Error::Auth { problem: text(), hint: text() }, PERMISSION),
            (Error::PeerLost { member: text(), host: text(), cause: text() }, FAILURE),
            (Error::Io { what: text(), cause: text() }, FAILURE),
        ] {
            assert_eq!(code(&error), expected, "{error}");
        }
    }

    #[test]
    fn an_error_is_one_printable_line() {
        assert_eq!(complaint(&"a\n\u{1b}[2Jb"), "gradlane: a\\n\\u{1b}[2Jb\n");
        hostile::check(|name| complaint(&Error::Io { what: name.to_owned(), cause: name.to_owned() }));
    }

    #[test]
    fn the_help_has_every_code() {
        for code in [SUCCESS, FAILURE, USAGE, TEMPORARY, PERMISSION] {
            assert!(TABLE.lines().any(|line| line.starts_with(&format!("  {code:<7}"))), "{code}");
        }
    }
}
