//! The checks of an answer, and the errors that all transports report.

use crate::error::{Error, Result};
use crate::types::CodecSpec;
use crate::wire::{About, Reject, Request, Sum, Target, reject};

/// Checks that `sum` is the answer to `push` and has `landing_bytes` bytes.
///
/// # Errors
/// [`Error::Protocol`] naming the field that is wrong.
pub(in crate::transport) fn check_sum(sum: &Sum, push: &Request, landing_bytes: usize, peer: &str) -> Result<()> {
    let bad = |field: &str, problem: String| bad(peer, field, problem);
    let Request::Contribute(push) = push else {
        return Err(bad("kind", "is a sum, but only a reject can answer such a request".to_owned()));
    };
    let (got, due) = (sum.target, push.target);
    if (got.part, got.round) != (due.part, due.round) {
        let name = |target: Target| format!("{} {}", target.part, target.round);
        return Err(bad("part or round", format!("is {} instead of {}", name(got), name(due))));
    }
    // The sum has the codec of the contribution. A worker that contributed no elements gets them plain.
    let codec = push.body().map_or(CodecSpec::PLAIN, |body| body.codec);
    if sum.body.codec != codec {
        return Err(bad("encoding", format!("is {} instead of {codec}", sum.body.codec)));
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
pub(in crate::transport) fn reject_of(about: About, error: &Error) -> (Reject, Vec<u8>) {
    let body = reject::to_body(error);
    (Reject { about, error_bytes: body.len() as u64 }, body)
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
