//! How an error is sent: the wire code of its variant, then its fields in the order of the table in [`error`](crate::error).
//!
//! Any error takes at most [`REJECT_BYTES_MAX`] bytes: texts are cut at [`TEXT_BYTES_MAX`], and a list of missing members ends with a count
//! of the members that did not fit.

use std::time::Duration;

use super::codec::{Reader, Writer};
use super::limits::{MEMBER_BYTES_MAX, MEMBERS_MAX, REJECT_BYTES_MAX, TEXT_BYTES_MAX};
use crate::error::{Claim, Error, Field, FieldSource, Result, Tensors};
use crate::types::{Epoch, Round, TensorKey, WorkerId, printable};

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
    writer.u8(error.kind().wire_code);
    for (_, field) in error.fields() {
        match field {
            Field::Text(text) => writer.text(text, TEXT_BYTES_MAX),
            Field::Tensors(Tensors::Unknown) => writer.u8(UNKNOWN),
            Field::Tensors(Tensors::Keyed(key)) => {
                writer.u8(KEYED);
                writer.u64(key.0);
            }
            Field::Tensors(Tensors::Named(names)) => {
                writer.u8(NAMED);
                writer.text(names, TEXT_BYTES_MAX);
            }
            Field::Claim(claim) => {
                writer.u32(claim.worker.0);
                writer.text(&claim.value, TEXT_BYTES_MAX);
            }
            Field::Round(round) => writer.u64(round.0),
            Field::Ranks(ranks) => {
                writer.list(&ranks[..ranks.len().min(MEMBERS_MAX)], |writer, worker| writer.u32(worker.0));
            }
            Field::Members(members) => {
                writer.list(&shortened(members), |writer, member| writer.text(member, MEMBER_BYTES_MAX));
            }
            Field::Duration(duration) => writer.duration(duration),
            Field::Number(number) => writer.u32(number),
            Field::Epoch(epoch) => {
                writer.u32(epoch.term);
                writer.u32(epoch.number);
            }
        }
    }
}

/// Reads an error. Its texts are only shown to people, so what is not printable in them is escaped.
///
/// # Errors
/// [`Error::Protocol`] naming the field with an impossible value.
pub fn decode_error(reader: &mut Reader<'_>) -> Result<Error> {
    let code = reader.u8("error code")?;
    Error::from_fields(code, &mut Shown(reader))?.ok_or_else(|| reader.bad("error code", format!("is {code}")))
}

/// Reads the fields of an error.
struct Shown<'a, 'b>(&'b mut Reader<'a>);

impl FieldSource for Shown<'_, '_> {
    type Fault = Error;

    fn text(&mut self, field: &str) -> Result<String> {
        Ok(printable(&self.0.text(TEXT_BYTES_MAX, field)?))
    }

    fn tensors(&mut self, field: &str) -> Result<Tensors> {
        match self.0.u8(field)? {
            UNKNOWN => Ok(Tensors::Unknown),
            KEYED => Ok(Tensors::Keyed(TensorKey(self.0.u64(field)?))),
            NAMED => Ok(Tensors::Named(self.text(field)?)),
            other => Err(self.0.bad(field, format!("has kind {other}"))),
        }
    }

    fn claim(&mut self, field: &str) -> Result<Claim> {
        Ok(Claim { worker: WorkerId(self.0.u32(field)?), value: self.text(field)? })
    }

    fn round(&mut self, field: &str) -> Result<Round> {
        self.0.u64(field).map(Round)
    }

    fn ranks(&mut self, field: &str) -> Result<Vec<WorkerId>> {
        self.0.list(MEMBERS_MAX, field, |reader| reader.u32(field).map(WorkerId))
    }

    fn members(&mut self, field: &str) -> Result<Vec<String>> {
        self.0.list(MISSING_MAX, field, |reader| Ok(printable(&reader.text(MEMBER_BYTES_MAX, field)?)))
    }

    fn duration(&mut self, field: &str) -> Result<Duration> {
        self.0.duration(field)
    }

    fn number(&mut self, field: &str) -> Result<u32> {
        self.0.u32(field)
    }

    fn epoch(&mut self, field: &str) -> Result<Epoch> {
        Ok(Epoch { term: self.0.u32(field)?, number: self.0.u32(field)? })
    }
}

/// At most [`MISSING_MAX`] entries. The last one counts the entries that do not fit.
fn shortened(missing: &[String]) -> Vec<String> {
    if missing.len() <= MISSING_MAX {
        return missing.to_vec();
    }
    let named = &missing[..MISSING_MAX - 1];
    let rest = format!("{} more", missing.len() - named.len());
    named.iter().cloned().chain([rest]).collect()
}

/// How the tensors of an error are sent: as nothing, as a key, or as a text.
const UNKNOWN: u8 = 0;
const KEYED: u8 = 1;
const NAMED: u8 = 2;
/// Entries of a list of members. With [`MEMBER_BYTES_MAX`] each, they take half of [`REJECT_BYTES_MAX`]. A user who reads the message needs
/// no more.
const MISSING_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wire::{Frame, samples};

    /// The bytes of each error and what it says. A process of another version reads those of an incompatibility and of a refused identity: never
    /// change these. A change of any other line needs another [`VERSION`](crate::wire::VERSION).
    #[rustfmt::skip]
    const GOLDEN: &[(&str, &str)] = &[
        ("0104000000776861740400000068696e74", "what; hint"),
        ("02040000006b6e6f620700000070726f626c656d0400000068696e74", "setting knob: problem; hint"),
        ("03020100000074050000006474797065000000000100000061010000000100000062", "tensor t: worker 0 has dtype a, worker 1 has dtype b; make them equal on all workers or use another name"),
        ("0402010000007407000000000000000200000001000000020000008096980000000000060000006e6f746963650600000064657461696c", "tensor t, round 7: no contribution from ranks 1, 2 after 0.0 s; notice; detail"),
        ("05040000007768617400ca9a3b00000000", "what: not done after 1.0 s"),
        ("0608000000776f726b6572203204000000686f7374050000006361757365", "lost worker 2 on host: cause"),
        ("070200000008000000776f726b6572203008000000736572766572203100b864d945000000", "the job did not form within 300.0 s: missing worker 0, server 1; start them, or check that they use the same join string"),
        ("0808000000776f726b6572203106000000686f6c646572", "worker 1 is taken by holder; give each process its own rank, or none to have one assigned"),
        ("09050000006669656c64010000003104000000706565720100000032", "field differs: this process has 1, peer has 2; start all processes of a job alike"),
        ("0a0200000003000000", "fenced: this process belongs to a membership before epoch 2.3; restart it to join again"),
        ("0b0700000070726f626c656d0400000068696e74", "authentication: problem; hint"),
        ("0c0400000070656572050000006669656c640700000070726f626c656d", "protocol: peer sent a frame whose field problem"),
        ("0d020100000074080000000000000008000000776f726b65722031", "tensor t, round 8: checksum mismatch in what worker 1 sent; memory or software fault on the way"),
        ("0e04000000776861740500000034204769420400000068696e74", "what: limit 4 GiB reached; hint"),
        ("0f0400000077686174050000006361757365", "what is not reachable now: cause"),
        ("1104000000776861740400000068696e74", "what; hint"),
        ("12", "cancelled by the caller"),
        ("130400000077686174050000006361757365", "what: cause"),
        ("140400000077686174", "internal error: what; please report it"),
        ("1506000000646576696365040000007768617400050000006361757365", "device: what failed: cause"),
        ("15060000006465766963650400000077686174020100000074050000006361757365", "device: what (tensor t) failed: cause"),
        ("160500000005000000", "this process belongs to the job of term 5, but the coordinator leads that of term 5: it was started again, which begins a new job; start all processes of the job again"),
        ("170600000073657276657280969800000000000500000063617573650400000068696e74", "server has not answered this worker for 0.0 s: cause; hint"),
        ("1806000000686f6c6465720500000074696d65730400000068696e74", "the certificate of holder is not good now: times; hint"),
        ("190700000070726f626c656d0400000068696e74", "the token in the join string problem; hint"),
        ("1a040000007768617480969800000000000400000068696e74", "what: the engine of this process has not answered for 0.0 s: hint"),
        ("1b04000000776861748096980000000000", "what goes on: not done after 0.0 s"),
        ("1c02010000007404000000776861740400000068696e74", "tensor t: what; hint"),
        ("1d01080000000000000004000000776861740400000068696e74", "tensor 0000000000000008: what; hint"),
        ("1f020100000074080000000000000008000000776f726b65722031", "tensor t, round 8: what worker 1 contributes has a NaN or an infinity; look for its cause there, or set nan_check=off"),
        ("1e020100000074070000000000000008000000776f726b657220328096980000000000", "tensor t, round 7: worker 2 did not take the sum for 0.0 s, and the server freed it"),
        (
            "2001080000000000000004000000726f6f74",
            "tensor 0000000000000008: it comes from root or goes there, and root is not in the job any more; name a worker that is",
        ),
        (
            "21050000000500000002000000040000006c6f73740800000073657276657220318096980000000000",
            "5 of 5 workers are there, without lost, server 1, and no others came within 0.0 s; start others in time (gradlane run does, see --restarts), or set a longer rejoin_timeout or a lower min_workers",
        ),
        ("2204000000776861740400000068696e74", "what is not there; hint"),
        ("230400000066696c650700000070726f626c656d", "the checkpoint is damaged: file: problem; load an earlier one"),
        (
            "24060000006d656d62657204000000686f7374050000006361757365",
            "lost member on host: cause; what it kept is gone, and the job forms again: join it again and go back to the checkpoint (gradlane.checkpoint.run does, with resume)",
        ),
        (
            "2501080000000000000003000000776879",
            "table 0000000000000008: why, so what has changed since this version is not known any more; read all of it (changed without since), or save a full snapshot",
        ),
    ];

    #[test]
    fn golden_bytes() {
        for (hex, text) in GOLDEN {
            let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(digits).collect();
            let error = from_body(&bytes, "server 0").unwrap();
            assert_eq!((error.to_string().as_str(), hex_of(&error).as_str()), (*text, *hex));
        }
        for error in samples::errors() {
            let code = format!("{:02x}", error.kind().wire_code);
            let line = (hex_of(&error), error.to_string());
            assert!(GOLDEN.iter().any(|(hex, _)| hex.starts_with(&code)), "GOLDEN has no line for it; add {line:?}");
        }
    }

    #[test]
    fn every_error_round_trips() {
        for error in samples::errors() {
            assert_eq!(from_body(&to_body(&error), "server 0"), Ok(error));
        }
    }

    #[test]
    fn what_a_peer_says_is_printable_in_every_field() {
        let text = || "fine\nERROR all is lost\u{1b}[2J\u{9b}2J\u{202e} é".to_owned();
        let shown = r"fine\nERROR all is lost\u{1b}[2J\u{9b}2J\u{202e} é";
        let claim = || Claim { worker: WorkerId(1), value: text() };
        for said in [
            Error::Unavailable { what: text(), cause: text() },
            Error::Mismatch { tensor: text().into(), field: text(), first: claim(), second: claim() },
            Error::NotFormed { missing: vec![text(), text()], waited: Duration::ZERO },
        ] {
            let heard = from_body(&to_body(&said), "server 0").unwrap().to_string();
            assert_eq!(heard, said.to_string().replace(&text(), shown));
            let frame = Frame::decode(&Frame::Refused(said).encode(), "the coordinator");
            let Ok(Frame::Refused(told)) = frame else { panic!("{frame:?}") };
            assert_eq!(told.to_string(), heard, "in a frame too");
        }
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
            Error::Mismatch { tensor: long.clone().into(), field: long.clone(), first: claim.clone(), second: claim },
            Error::Stalled {
                tensor: long.clone().into(),
                round: Round(1),
                missing: (0..100_000).map(WorkerId).collect(),
                waited: Duration::MAX,
                notice: long.clone().into(),
                detail: long.clone().into(),
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

    fn hex_of(error: &Error) -> String {
        to_body(error).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
