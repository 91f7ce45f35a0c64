//! What those do who watch a job, while its coordinator does not answer.

use std::time::Duration;

use gradlane_core::types::Time;
use gradlane_core::{Error, Result};

use crate::exit;

/// Since when the coordinator has not answered, and what to say of that. Empty if it has answered the last time.
#[derive(Default)]
pub(super) struct Silence {
    /// When it was asked first of those times.
    since: Option<Time>,
    notice: Option<String>,
}

impl Silence {
    /// What to say of it, if there is anything.
    pub(super) fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// It was asked in vain, which is known at `now`. It is to be asked again.
    ///
    /// # Errors
    /// `error` if to ask again is in vain, or was so for [`PATIENCE`].
    pub(super) fn after(&mut self, asked: Time, now: Time, error: Error) -> Result<()> {
        let silent = now.since(*self.since.get_or_insert(asked));
        if exit::code(&error) != exit::TEMPORARY || silent >= PATIENCE {
            return Err(error);
        }
        let seconds = silent.as_secs();
        self.notice = Some(format!("the coordinator has not answered for {seconds} s; this is what it said last"));
        Ok(())
    }
}

/// A coordinator that is started again (`--resume`) is there within this time.
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coordinator_that_does_not_answer_is_asked_again_for_a_minute() {
        let unavailable = || Error::Unavailable { what: "it".to_owned(), cause: "it restarted".to_owned() };
        let timeout = || Error::Timeout { what: "it".to_owned(), waited: Duration::from_secs(5) };
        let auth = || Error::Auth { problem: "it belongs to another job".to_owned(), hint: String::new() };
        let at = |seconds: u64| Time::ZERO + Duration::from_secs(seconds);
        let mut silence = Silence::default();
        let mut after = |seconds: u64, error| {
            silence.after(at(95 + seconds), at(100 + seconds), error)?;
            Ok(silence.notice().unwrap_or_default().to_owned())
        };
        let says = |text: &str| Ok(format!("the coordinator has not answered for {text}; this is what it said last"));
        for (seconds, error, expected) in [
            (0, timeout(), says("5 s")),
            (7, unavailable(), says("12 s")),
            (8, auth(), Err(auth())),
            (54, timeout(), says("59 s")),
            (55, unavailable(), Err(unavailable())),
            (100, timeout(), Err(timeout())),
        ] {
            assert_eq!(after(seconds, error), expected, "{seconds}");
        }
    }
}
