//! Errors with which several services refuse exchanges.

use std::fmt::Display;

use gradlane_core::error::Error;
use gradlane_core::types::Round;

/// The answer to a use by `worker` that is older than one that is known.
pub(super) fn out_of_order(worker: impl Display, round: Round, latest: Round) -> Error {
    Error::Protocol {
        peer: worker.to_string(),
        field: "round".to_owned(),
        problem: format!("is {}, and use {} of this worker came before", round.0, latest.0),
    }
}

/// The end of an older exchange of a worker that has sent a newer one about the same part. The worker has given it up, unless the newer one is a
/// straggler of a lost connection; therefore it is asked to try again and not told that it failed.
pub(super) fn superseded() -> Error {
    let (what, cause) = ("the exchange".to_owned(), "the same worker began it anew".to_owned());
    Error::Unavailable { what, cause }
}
