//! Work with files for which the thread of a coordinator waits, but not for long.

use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};
use gradlane_core::local::OwnThread;
use gradlane_core::{Error, Result};

/// Does `work`, called `what`, in a thread of its own, because a disk may hang, and waits for it at most for `patience`.
///
/// # Errors
/// That of `work`; [`Error::Timeout`] if it takes longer; [`Error::Internal`] if it panics; [`Error::Io`] if the system gives no thread.
pub(super) fn within<T: Send + 'static>(
    patience: Duration,
    what: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, done) = bounded(1);
    let work = move || {
        let _ = sender.send(work());
    };
    let _thread = OwnThread::start("gl-files", work)?;
    let failed = |error| match error {
        RecvTimeoutError::Timeout => Error::Timeout { what: what.to_owned(), waited: patience },
        RecvTimeoutError::Disconnected => Error::Internal { what: format!("{what}: the thread panicked") },
    };
    done.recv_timeout(patience).map_err(failed)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_takes_too_long_is_left_behind_and_a_panic_is_told() {
        let long = Duration::from_secs(60);
        assert_eq!(within(long, "writing", || Ok(7)), Ok(7));
        assert_eq!(within(long, "writing", || Err::<(), _>(Error::Cancelled)), Err(Error::Cancelled));
        let (_held, hangs) = bounded::<()>(0);
        let late = within(Duration::from_millis(1), "writing", move || Ok(hangs.recv().is_ok()));
        assert_eq!(late, Err(Error::Timeout { what: "writing".to_owned(), waited: Duration::from_millis(1) }));
        let panicked = within(long, "writing", || -> Result<()> { panic!("planted") });
        assert_eq!(panicked, Err(Error::Internal { what: "writing: the thread panicked".to_owned() }));
    }
}
