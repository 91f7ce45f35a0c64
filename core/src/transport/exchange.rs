//! What every transport does alike: the worker's checks of an answer, and a pull that cannot be forgotten.

use super::{Answer, Pulled, Torn};
use crate::error::{Error, Result};
use crate::types::Encoding;
use crate::wire::{Reject, Request, Sum, Target, reject};

/// Reports the end of a pull exactly once: dropped unreported, it reports a failure, so that a forgotten branch is no hang.
pub(super) struct PullEnd(Option<Pulled>);

impl PullEnd {
    pub(super) fn new(done: Pulled) -> Self {
        Self(Some(done))
    }

    pub(super) fn report(mut self, outcome: std::result::Result<Answer, Torn>) {
        self.0.take().expect("taken only here and in drop")(outcome);
    }

    /// The pull failed before anything was written.
    pub(super) fn torn(self, error: Error) {
        self.report(Err(Torn { error, landed: 0 }));
    }
}

impl Drop for PullEnd {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            let error = Error::Internal { what: "a pull was dropped before it reported".to_owned() };
            done(Err(Torn { error, landed: 0 }));
        }
    }
}

/// Whether `sum` answers `push` and fits into `landing_bytes`.
///
/// # Errors
/// [`Error::Protocol`] naming the field in which it does not.
pub(super) fn check_sum(sum: &Sum, push: &Request, landing_bytes: usize, peer: &str) -> Result<()> {
    let bad =
        |field: &str, problem: String| Error::Protocol { peer: peer.to_owned(), field: field.to_owned(), problem };
    let Request::Contribute(push) = push else {
        return Err(bad("kind", "is a sum where a withdrawal was to be rejected".to_owned()));
    };
    let (got, due) = (sum.target, push.target);
    if (got.part, got.round, got.attempt) != (due.part, due.round, due.attempt) {
        let name = |target: Target| format!("{} {} attempt {}", target.part, target.round, target.attempt);
        return Err(bad("part or round", format!("is {} instead of {}", name(got), name(due))));
    }
    // A worker takes what it gives; one that gave nothing takes elements.
    let encoding = push.body().map_or(Encoding::Plain, |body| body.encoding);
    if sum.body.encoding != encoding {
        return Err(bad("encoding", format!("is {} instead of {encoding}", sum.body.encoding)));
    }
    if sum.body.bytes != landing_bytes as u64 {
        return Err(bad("length", format!("is {} where {landing_bytes} bytes are wanted", sum.body.bytes)));
    }
    Ok(())
}

/// Whether a sum with the CRC-32C `got` is the one that was `sent`, which counts only if its header says that it was computed.
///
/// # Errors
/// [`Error::Checksum`].
pub(super) fn check_crc(sum: &Sum, sent: u32, got: u32, peer: &str) -> Result<()> {
    if !sum.checksum || sent == got {
        return Ok(());
    }
    Err(Error::Checksum { tensor: sum.target.part.to_string(), round: sum.target.round, from: peer.to_owned() })
}

/// A reject as it is sent: its header and what follows.
pub(super) fn reject_of(target: Target, error: &Error) -> (Reject, Vec<u8>) {
    let body = reject::to_body(error);
    (Reject { target, error_bytes: body.len() as u64 }, body)
}

/// What a worker hears whose answer was begun and not brought to its end.
pub(super) fn broken_off() -> Error {
    Error::Unavailable { what: "the sum".to_owned(), cause: "the server broke off sending it".to_owned() }
}

/// What a caller hears who pulls an exchange that is over or never was.
pub(super) fn unknown_exchange() -> Error {
    Error::FailedPrecondition {
        what: "the exchange has ended or was never begun".to_owned(),
        hint: "push before pulling, and pull once".to_owned(),
    }
}

/// What a caller hears who pushes to a link that is gone.
pub(super) fn link_gone() -> Error {
    Error::Unavailable { what: "the server".to_owned(), cause: "the link is closed; connect again".to_owned() }
}
