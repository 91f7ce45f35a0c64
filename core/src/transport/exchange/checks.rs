//! What every transport checks of an answer, and the errors that they have in common.

use crate::error::{Error, Result};
use crate::types::CodecSpec;
use crate::wire::{About, Reject, Request, Sum, Target, reject};

/// Whether `sum` answers `push` and fits into `landing_bytes`.
///
/// # Errors
/// [`Error::Protocol`] naming the field in which it does not.
pub(in crate::transport) fn check_sum(sum: &Sum, push: &Request, landing_bytes: usize, peer: &str) -> Result<()> {
    let bad = |field: &str, problem: String| bad(peer, field, problem);
    let Request::Contribute(push) = push else {
        return Err(bad("kind", "is a sum where only a reject can be the answer".to_owned()));
    };
    let (got, due) = (sum.target, push.target);
    if (got.part, got.round) != (due.part, due.round) {
        let name = |target: Target| format!("{} {}", target.part, target.round);
        return Err(bad("part or round", format!("is {} instead of {}", name(got), name(due))));
    }
    // A worker takes what it gives; one that gave nothing takes elements.
    let codec = push.body().map_or(CodecSpec::PLAIN, |body| body.codec);
    if sum.body.codec != codec {
        return Err(bad("encoding", format!("is {} instead of {codec}", sum.body.codec)));
    }
    if sum.body.bytes != landing_bytes as u64 {
        return Err(bad("length", format!("is {} where {landing_bytes} bytes are wanted", sum.body.bytes)));
    }
    Ok(())
}

/// What `peer` says cannot be; `field` names what is wrong.
pub(in crate::transport) fn bad(peer: &str, field: &str, problem: impl Into<String>) -> Error {
    Error::Protocol { peer: peer.to_owned(), field: field.to_owned(), problem: problem.into() }
}

/// Whether an answer that failed with `error` costs the server its link: not if bytes were damaged on their way, or if the server gave the
/// exchange up.
pub(in crate::transport) fn costs_the_link(error: &Error) -> bool {
    !matches!(error, Error::Checksum { .. } | Error::Unavailable { .. })
}

/// Whether a sum with the CRC-32C `got` is the one that was `sent`, which counts only if its header says that it was computed.
///
/// # Errors
/// [`Error::Checksum`].
pub(in crate::transport) fn check_crc(sum: &Sum, sent: u32, got: u32, peer: &str) -> Result<()> {
    if !sum.checksum || sent == got {
        return Ok(());
    }
    Err(Error::Checksum { tensor: sum.target.part.to_string(), round: sum.target.round, from: peer.to_owned() })
}

/// A reject as it is sent: its header and what follows.
pub(in crate::transport) fn reject_of(about: About, error: &Error) -> (Reject, Vec<u8>) {
    let body = reject::to_body(error);
    (Reject { about, error_bytes: body.len() as u64 }, body)
}

/// What a worker hears whose answer was begun and not brought to its end.
pub(in crate::transport) fn broken_off() -> Error {
    Error::Unavailable { what: "the sum".to_owned(), cause: "the server broke off sending it".to_owned() }
}

/// What a caller hears who pulls an exchange that is over or never was.
pub(in crate::transport) fn unknown_exchange() -> Error {
    Error::FailedPrecondition {
        what: "the exchange has ended or was never begun".to_owned(),
        hint: "push before pulling, and pull once".to_owned(),
    }
}

/// What a caller hears who pushes to a link that is gone.
pub(in crate::transport) fn link_gone() -> Error {
    Error::Unavailable { what: "the server".to_owned(), cause: "the link is closed; connect again".to_owned() }
}
