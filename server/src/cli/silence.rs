//! What those do who watch a job, while its coordinator does not answer.

use std::time::Duration;

use gradlane_core::types::Time;
use gradlane_core::{Error, Result};

use crate::exit;

/// When the coordinator was asked first of the times that it has not answered. Nothing if it has answered the last time.
#[derive(Default)]
pub(super) struct Silence(Option<Time>);

impl Silence {
    /// What to say at `now` after it was asked in vain, before it is asked again.
    ///
    /// # Errors
    /// `error` if to ask again is in vain, or was so for [`PATIENCE`].
    pub(super) fn after(&mut self, asked: Time, now: Time, error: Error) -> Result<String> {
        let silent = now.since(*self.0.get_or_insert(asked));
        if exit::code(&error) != exit::TEMPORARY || silent >= PATIENCE {
            return Err(error);
        }
        Ok(format!("the coordinator has not answered for {} s; this is what it said last", silent.as_secs()))
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
        let mut after = |seconds: u64, error| silence.after(at(95 + seconds), at(100 + seconds), error);
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
