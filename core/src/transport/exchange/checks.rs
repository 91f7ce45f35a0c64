//! The checks of an answer, and the errors that all transports report.

use crate::codec::BodyBytes;
use crate::error::{Error, Result};
use crate::types::CodecSpec;
use crate::wire::{About, Reject, Request, Response, Target, reject};

/// Checks that `response` is the answer to `push` and fits into `landing_bytes` bytes: it has as many, or fewer if its codec makes bodies of any
/// length, or it is a page of a scan.
///
/// # Errors
/// [`Error::Protocol`] naming the field that is wrong.
pub(in crate::transport) fn check_response(
    response: &Response,
    push: &Request,
    landing_bytes: usize,
    peer: &str,
) -> Result<()> {
    let bad = |field: &str, problem: String| Err(bad(peer, field, problem));
    let due = match (response, push) {
        (Response::Sum(_), Request::Contribute(push)) => push.target,
        (Response::Sum(_), Request::Restore(push)) => push.target,
        (Response::Sum(_), Request::AnswerResidual(push)) => push.target,
        (Response::Value(_), Request::Use(push)) => push.target,
        (Response::Rows(_), Request::Rows(push)) => push.target,
        (Response::Sum(_), _) => return bad("kind", "is a sum, which does not answer such a request".to_owned()),
        (Response::Rows(_), _) => return bad("kind", "has rows, which do not answer such a request".to_owned()),
        (Response::Value(_), _) => return bad("kind", "is a value, which does not answer such a request".to_owned()),
    };
    let got = response.target();
    if (got.part, got.round) != (due.part, due.round) {
        let name = |target: Target| format!("{} {}", target.part, target.round);
        return bad("part or round", format!("is {} instead of {}", name(got), name(due)));
    }
    if let (Response::Sum(sum), Request::Contribute(push)) = (response, push) {
        // The sum has the codec of the contribution, or the codec refused it. A worker that contributed no elements gets them plain.
        let codec = push.body().map_or(CodecSpec::PLAIN, |body| body.codec);
        if sum.body.codec != codec {
            return bad("encoding", format!("is {} instead of {codec}", sum.body.codec));
        }
    }
    if let (Response::Sum(sum), Request::AnswerResidual(_)) = (response, push)
        && !sum.body.codec.is_plain()
    {
        return bad("encoding", format!("is {} of a residual, which travels plain", sum.body.codec));
    }
    let due = match response {
        Response::Sum(sum) if sum.body.encoding().varies() => BodyBytes::AtMost(landing_bytes as u64),
        Response::Rows(_) if is_scan(push) => BodyBytes::AtMost(landing_bytes as u64),
        Response::Sum(_) | Response::Value(_) | Response::Rows(_) => BodyBytes::Exact(landing_bytes as u64),
    };
    due.check(response.body_bytes()).or_else(|malformed| bad("length", malformed.to_string()))
}

fn is_scan(push: &Request) -> bool {
    matches!(push, Request::Rows(rows) if rows.action.scans())
}

/// The error for a message of `peer` whose `field` is wrong.
pub(in crate::transport) fn bad(peer: &str, field: &str, problem: impl Into<String>) -> Error {
    Error::Protocol { peer: peer.to_owned(), field: field.to_owned(), problem: problem.into() }
}

/// Whether the worker closes the link of a server whose answer failed with `error`. It keeps the link if bytes were damaged on the way, or if
/// the server gave the exchange up.
pub fn costs_the_link(error: &Error) -> bool {
    !matches!(error, Error::Checksum { .. } | Error::Unavailable { .. })
}

/// Checks that the CRC-32C `got` of an answer equals the one that was `sent`. Passes if the header says that the server computed none.
///
/// # Errors
/// [`Error::Checksum`] if they differ.
pub(in crate::transport) fn check_crc(response: &Response, sent: u32, got: u32, peer: &str) -> Result<()> {
    if !response.has_checksum() || sent == got {
        return Ok(());
    }
    let Target { part, round, .. } = response.target();
    Err(Error::Checksum { tensor: part.key.into(), round, from: peer.to_owned() })
}

/// A reject as it is sent: its header, and the error that follows it.
pub fn reject_of(about: About, error: &Error) -> (Reject, Vec<u8>) {
    let body = reject::to_body(error);
    (Reject { about, error_bytes: body.len() as u64 }, body)
}

/// The error of a worker whose answer began and did not end.
pub fn broken_off() -> Error {
    Error::Unavailable { what: "the sum".to_owned(), cause: "the server broke off sending it".to_owned() }
}

/// The error of the exchanges on a link that ended for this reason. They broke no rule themselves, so they can be repeated on another link.
pub fn of_the_link(reason: &Error, peer: &str) -> Error {
    match reason {
        Error::Protocol { .. } => {
            Error::Unavailable { what: peer.to_owned(), cause: format!("its link was closed: {reason}") }
        }
        other => other.clone(),
    }
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
