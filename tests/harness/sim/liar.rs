//! A server that lies: answers that are no answers to their push. A worker must refuse each, and may leave the server for it.

use gradlane_core::types::{CodecSpec, Effect, PartId, Round, TensorKey, Version};
use gradlane_core::wire::{Body, Contributors, Reject, Response, RowsAnswer, Sum, Target, Value};

use super::oracle;
use crate::random::Random;

/// What a server sends in place of an answer.
pub(super) struct Lie {
    /// What is wrong with it.
    pub(super) what: &'static str,
    /// All of it.
    pub(super) bytes: Vec<u8>,
}

/// Something other than this answer.
pub(super) fn lie(random: &mut Random, answer: &Response) -> Lie {
    let due = answer.body_bytes();
    let target = answer.target();
    let with = |target: Target| match answer {
        Response::Sum(header) => Response::Sum(Sum { target, ..header.clone() }),
        Response::Value(header) => Response::Value(Value { target, ..*header }),
        Response::Rows(header) => Response::Rows(RowsAnswer { target, ..*header }),
    };
    let part = PartId { key: TensorKey(7), index: 0 };
    let (what, header, bytes) = match (random.below(7), answer) {
        (0, _) => ("another round", with(Target { round: Round(target.round.0 + 1), ..target }), due),
        (1, _) => ("another part", with(Target { part, ..target }), due),
        (2, Response::Sum(_)) => ("another kind", value(target, due), due),
        (2, Response::Value(_) | Response::Rows(_)) => ("another kind", sum(target, due), due),
        (3, Response::Sum(header)) if header.body.codec.is_plain() && due > 0 => {
            let body = Body { codec: CodecSpec::BF16, ..header.body };
            ("another codec", Response::Sum(Sum { body, ..header.clone() }), due)
        }
        (4, _) => {
            let header = Reject { about: target.about(), error_bytes: 12 };
            let bytes = [&header.encode()[..], &[u8::MAX; 12]].concat();
            return Lie { what: "an error that is none", bytes };
        }
        (5, _) if due > 0 => ("too few bytes", answer.clone(), due - 1),
        _ => ("too many bytes", answer.clone(), due + 1),
    };
    let body = vec![oracle::JUNK; bytes as usize];
    let mut all = header.encode();
    all.extend_from_slice(&body);
    // So that nothing but the length is wrong.
    let trailer = crc32c::crc32c(&body[..due.min(bytes) as usize]).to_le_bytes();
    if bytes > due {
        all.truncate(all.len() - 1);
        all.extend_from_slice(&trailer[..header.trailer_bytes()]);
        all.push(oracle::JUNK);
    } else if bytes == due {
        all.extend_from_slice(&trailer[..header.trailer_bytes()]);
    }
    Lie { what, bytes: all }
}

fn value(target: Target, part_bytes: u64) -> Response {
    Response::Value(Value { target, effect: Effect::accepted(Version(1)), part_bytes, checksum: true })
}

fn sum(target: Target, bytes: u64) -> Response {
    Response::Sum(Sum {
        target,
        attempt: 0,
        part_bytes: bytes,
        body: Body::plain(bytes),
        divisor: 1.0,
        contributors: Contributors::Due,
        early: false,
        checksum: true,
    })
}
