//! How an error travels: a stable code, then the fields of its variant in the order of the declaration in [`error`](crate::error).
//!
//! Whatever the error holds, it is written in at most [`REJECT_BYTES_MAX`] bytes: texts are cut at [`TEXT_BYTES_MAX`], and a list of
//! missing members ends with a count of those that did not fit.

use super::codec::{Reader, Writer};
use super::limits::{MEMBERS_MAX, REJECT_BYTES_MAX, TEXT_BYTES_MAX};
use crate::error::{Claim, Error, Result};
use crate::types::{Epoch, Round, WorkerId};

/// The body of a reject: `error`, and nothing else.
pub fn to_body(error: &Error) -> Vec<u8> {
    let mut writer = Writer::default();
    encode_error(error, &mut writer);
    let body = writer.into_bytes();
    assert!(body.len() as u64 <= REJECT_BYTES_MAX, "an encoded error has a bounded length");
    body
}

/// The error in the body of a reject that `peer` sent.
///
/// # Errors
/// [`Error::Protocol`] if the body is not exactly one encoded error.
pub fn from_body(body: &[u8], peer: &str) -> Result<Error> {
    let mut reader = Reader::new(body, peer);
    let error = decode_error(&mut reader)?;
    reader.finish()?;
    Ok(error)
}

/// Appends `error`.
pub fn encode_error(error: &Error, writer: &mut Writer) {
    writer.u8(code_of(error));
    let mut text = |text: &str| writer.text(text, TEXT_BYTES_MAX);
    match error {
        Error::InvalidArgument { what, hint } | Error::FailedPrecondition { what, hint } => {
            text(what);
            text(hint);
        }
        Error::Config { knob, problem, hint } => {
            text(knob);
            text(problem);
            text(hint);
        }
        Error::Mismatch { tensor, field, first, second } => {
            text(tensor);
            text(field);
            write_claim(writer, first);
            write_claim(writer, second);
        }
        Error::Stalled { tensor, round, missing, waited, detail } => {
            text(tensor);
            writer.u64(round.0);
            writer.list(&missing[..missing.len().min(MEMBERS_MAX)], |writer, worker| writer.u32(worker.0));
            writer.duration(*waited);
            writer.text(detail, TEXT_BYTES_MAX);
        }
        Error::Timeout { what, waited } => {
            text(what);
            writer.duration(*waited);
        }
        Error::PeerLost { member, host, cause } => {
            text(member);
            text(host);
            text(cause);
        }
        Error::NotFormed { missing, waited } => {
            writer.list(&shortened(missing), |writer, member| writer.text(member, MISSING_BYTES_MAX));
            writer.duration(*waited);
        }
        Error::DuplicateRank { member, holder } => {
            text(member);
            text(holder);
        }
        Error::Incompatible { field, ours, peer, theirs } => {
            text(field);
            text(ours);
            text(peer);
            text(theirs);
        }
        Error::Fenced { current } => {
            writer.u32(current.term);
            writer.u32(current.number);
        }
        Error::Auth { problem, hint } => {
            text(problem);
            text(hint);
        }
        Error::Protocol { peer, field, problem } => {
            text(peer);
            text(field);
            text(problem);
        }
        Error::Checksum { tensor, round, from } => {
            text(tensor);
            writer.u64(round.0);
            writer.text(from, TEXT_BYTES_MAX);
        }
        Error::Exhausted { what, limit, hint } => {
            text(what);
            text(limit);
            text(hint);
        }
        Error::Unavailable { what, cause } | Error::Io { what, cause } => {
            text(what);
            text(cause);
        }
        Error::Cancelled => {}
        Error::Internal { what } => text(what),
        Error::Device { device, what, cause } => {
            text(device);
            text(what);
            text(cause);
        }
    }
}

/// Takes an error.
///
/// # Errors
/// [`Error::Protocol`] naming the field that cannot be.
pub fn decode_error(reader: &mut Reader<'_>) -> Result<Error> {
    let code = reader.u8("error code")?;
    let mut text = |field: &str| reader.text(TEXT_BYTES_MAX, field);
    Ok(match code {
        1 => Error::InvalidArgument { what: text("what")?, hint: text("hint")? },
        2 => Error::Config { knob: text("knob")?, problem: text("problem")?, hint: text("hint")? },
        3 => Error::Mismatch {
            tensor: text("tensor name")?,
            field: text("field")?,
            first: read_claim(reader)?,
            second: read_claim(reader)?,
        },
        4 => Error::Stalled {
            tensor: text("tensor name")?,
            round: Round(reader.u64("round")?),
            missing: reader.list(MEMBERS_MAX, "missing ranks", |reader| reader.u32("missing rank").map(WorkerId))?,
            waited: reader.duration("waiting time")?,
            detail: reader.text(TEXT_BYTES_MAX, "detail")?,
        },
        5 => Error::Timeout { what: text("what")?, waited: reader.duration("waiting time")? },
        6 => Error::PeerLost { member: text("member")?, host: text("host")?, cause: text("cause")? },
        7 => Error::NotFormed {
            missing: reader
                .list(MISSING_MAX, "missing members", |reader| reader.text(MISSING_BYTES_MAX, "missing member"))?,
            waited: reader.duration("waiting time")?,
        },
        8 => Error::DuplicateRank { member: text("member")?, holder: text("holder")? },
        9 => Error::Incompatible {
            field: text("field")?,
            ours: text("ours")?,
            peer: text("peer")?,
            theirs: text("theirs")?,
        },
        10 => Error::Fenced { current: Epoch { term: reader.u32("term")?, number: reader.u32("epoch")? } },
        11 => Error::Auth { problem: text("problem")?, hint: text("hint")? },
        12 => Error::Protocol { peer: text("peer")?, field: text("field")?, problem: text("problem")? },
        13 => Error::Checksum {
            tensor: text("tensor name")?,
            round: Round(reader.u64("round")?),
            from: reader.text(TEXT_BYTES_MAX, "from")?,
        },
        14 => Error::Exhausted { what: text("what")?, limit: text("limit")?, hint: text("hint")? },
        15 => Error::Unavailable { what: text("what")?, cause: text("cause")? },
        17 => Error::FailedPrecondition { what: text("what")?, hint: text("hint")? },
        18 => Error::Cancelled,
        19 => Error::Io { what: text("what")?, cause: text("cause")? },
        20 => Error::Internal { what: text("what")? },
        21 => Error::Device { device: text("device")?, what: text("what")?, cause: text("cause")? },
        code => return Err(reader.bad("error code", format!("is {code}"))),
    })
}

/// The wire code of each variant; never changes. Nothing has the code 16.
fn code_of(error: &Error) -> u8 {
    match error {
        Error::InvalidArgument { .. } => 1,
        Error::Config { .. } => 2,
        Error::Mismatch { .. } => 3,
        Error::Stalled { .. } => 4,
        Error::Timeout { .. } => 5,
        Error::PeerLost { .. } => 6,
        Error::NotFormed { .. } => 7,
        Error::DuplicateRank { .. } => 8,
        Error::Incompatible { .. } => 9,
        Error::Fenced { .. } => 10,
        Error::Auth { .. } => 11,
        Error::Protocol { .. } => 12,
        Error::Checksum { .. } => 13,
        Error::Exhausted { .. } => 14,
        Error::Unavailable { .. } => 15,
        Error::FailedPrecondition { .. } => 17,
        Error::Cancelled => 18,
        Error::Io { .. } => 19,
        Error::Internal { .. } => 20,
        Error::Device { .. } => 21,
    }
}

fn write_claim(writer: &mut Writer, claim: &Claim) {
    writer.u32(claim.worker.0);
    writer.text(&claim.value, TEXT_BYTES_MAX);
}

fn read_claim(reader: &mut Reader<'_>) -> Result<Claim> {
    Ok(Claim { worker: WorkerId(reader.u32("rank")?), value: reader.text(TEXT_BYTES_MAX, "claim")? })
}

/// At most [`MISSING_MAX`] entries, the last of which counts those that have no room.
fn shortened(missing: &[String]) -> Vec<String> {
    if missing.len() <= MISSING_MAX {
        return missing.to_vec();
    }
    let named = &missing[..MISSING_MAX - 1];
    let rest = format!("{} more", missing.len() - named.len());
    named.iter().cloned().chain([rest]).collect()
}

/// Entries of a list of missing members; with [`MISSING_BYTES_MAX`] each, half of [`REJECT_BYTES_MAX`]. Nobody reads more.
const MISSING_MAX: usize = 256;
/// Bytes of the name of a missing member, such as `worker 12`.
const MISSING_BYTES_MAX: usize = 124;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wire::samples;

    #[test]
    fn every_error_round_trips_under_its_own_code() {
        let codes: Vec<u8> = (1..=15).chain(17..=21).collect();
        assert_eq!(codes.len(), samples::errors().len());
        for (code, error) in codes.into_iter().zip(samples::errors()) {
            let body = to_body(&error);
            assert_eq!(body[0], code, "{error}");
            assert_eq!(from_body(&body, "server 0"), Ok(error));
        }
    }

    #[test]
    fn golden_bytes() {
        let error = Error::Fenced { current: Epoch { term: 2, number: 3 } };
        assert_eq!(to_body(&error), [10, 2, 0, 0, 0, 3, 0, 0, 0]);
        let error = Error::Timeout { what: "ab".to_owned(), waited: Duration::from_nanos(5) };
        assert_eq!(to_body(&error), [5, 2, 0, 0, 0, b'a', b'b', 5, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn an_unknown_code_is_named() {
        let error = from_body(&[99], "server 0").unwrap_err().to_string();
        assert!(error.contains("server 0") && error.contains("error code is 99"), "{error}");
    }

    #[test]
    fn a_body_ends_with_its_error() {
        let mut body = to_body(&Error::Cancelled);
        body.push(0);
        assert!(matches!(from_body(&body, "server 0"), Err(Error::Protocol { .. })));
    }

    #[test]
    fn an_error_of_any_size_fits_a_reject() {
        let long = "é".repeat(10_000);
        let claim = Claim { worker: WorkerId(1), value: long.clone() };
        for error in [
            Error::Mismatch { tensor: long.clone(), field: long.clone(), first: claim.clone(), second: claim },
            Error::Stalled {
                tensor: long.clone(),
                round: Round(1),
                missing: (0..100_000).map(WorkerId).collect(),
                waited: Duration::MAX,
                detail: long.clone(),
            },
            Error::NotFormed { missing: vec![long.clone(); 300], waited: Duration::ZERO },
        ] {
            let body = to_body(&error);
            let read = from_body(&body, "server 0").unwrap();
            assert!(to_body(&read) == body, "what was cut once is not cut again");
        }
    }

    #[test]
    fn a_long_list_of_missing_members_ends_with_a_count() {
        let missing: Vec<String> = (0..1000).map(|rank| format!("worker {rank}")).collect();
        let read = from_body(&to_body(&Error::NotFormed { missing, waited: Duration::ZERO }), "coordinator").unwrap();
        assert!(read.to_string().contains("worker 254, 745 more"), "{read}");
    }
}
