//! The checks of an answer, and the errors that all transports report.

use crate::error::{Error, Result};
use crate::types::Encoding;
use crate::wire::{Reject, Request, Sum, Target, reject};

/// Checks that `sum` is the answer to `push` and has `landing_bytes` bytes.
///
/// # Errors
/// [`Error::Protocol`] naming the field that is wrong.
pub(in crate::transport) fn check_sum(sum: &Sum, push: &Request, landing_bytes: usize, peer: &str) -> Result<()> {
    let bad = |field: &str, problem: String| bad(peer, field, problem);
    let Request::Contribute(push) = push else {
        return Err(bad("kind", "is a sum, but the worker sent a withdrawal, which has no sum".to_owned()));
    };
    let (got, due) = (sum.target, push.target);
    if (got.part, got.round, got.attempt) != (due.part, due.round, due.attempt) {
        let name = |target: Target| format!("{} {} attempt {}", target.part, target.round, target.attempt);
        return Err(bad("part or round", format!("is {} instead of {}", name(got), name(due))));
    }
    // The sum has the encoding of the contribution. A worker that contributed no elements gets them plain.
    let encoding = push.body().map_or(Encoding::Plain, |body| body.encoding);
    if sum.body.encoding != encoding {
        return Err(bad("encoding", format!("is {} instead of {encoding}", sum.body.encoding)));
    }
    if sum.body.bytes != landing_bytes as u64 {
        return Err(bad("length", format!("is {}, but the worker expects {landing_bytes} bytes", sum.body.bytes)));
    }
    Ok(())
}

/// The error for a message of `peer` whose `field` is wrong.
pub(in crate::transport) fn bad(peer: &str, field: &str, problem: impl Into<String>) -> Error {
    Error::Protocol { peer: peer.to_owned(), field: field.to_owned(), problem: problem.into() }
}

/// Whether the worker closes the link of a server whose answer failed with `error`. It keeps the link if bytes were damaged on the way, or if
/// the server gave the exchange up.
pub(in crate::transport) fn costs_the_link(error: &Error) -> bool {
    !matches!(error, Error::Checksum { .. } | Error::Unavailable { .. })
}

/// Checks that the CRC-32C `got` of a sum equals the one that was `sent`. Passes if the header says that the server computed none.
///
/// # Errors
/// [`Error::Checksum`] if they differ.
pub(in crate::transport) fn check_crc(sum: &Sum, sent: u32, got: u32, peer: &str) -> Result<()> {
    if !sum.checksum || sent == got {
        return Ok(());
    }
    Err(Error::Checksum { tensor: sum.target.part.to_string(), round: sum.target.round, from: peer.to_owned() })
}

/// A reject as it is sent: its header, and the error that follows it.
pub(in crate::transport) fn reject_of(target: Target, error: &Error) -> (Reject, Vec<u8>) {
    let body = reject::to_body(error);
    (Reject { target, error_bytes: body.len() as u64 }, body)
}

/// The error of a worker whose answer began and did not end.
pub(in crate::transport) fn broken_off() -> Error {
    Error::Unavailable { what: "the sum".to_owned(), cause: "the server broke off sending it".to_owned() }
}

/// The error of a caller that pulls an exchange which has ended or was never pushed.
pub(in crate::transport) fn unknown_exchange() -> Error {
    Error::FailedPrecondition {
        what: "the exchange has ended or was never begun".to_owned(),
        hint: "push before pulling, and pull once".to_owned(),
    }
}

/// The error of a caller that pushes to a link which is closed.
pub(in crate::transport) fn link_gone() -> Error {
    Error::Unavailable { what: "the server".to_owned(), cause: "the link is closed; connect again".to_owned() }
}
