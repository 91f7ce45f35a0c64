//! The decoders of `core::wire`: headers of exchanges, control frames, rejects, and withdrawals as a server puts them together.

use bytes::Bytes;
use gradlane_core::error::Error;
use gradlane_core::types::{DType, Epoch, ExchangeId, LinkId, Op, PartId, Participants, Round, TensorKey, Time};
use gradlane_core::wire::{Frame, Header, HeaderReader, Request, Target as ExchangeTarget, Withdraw, reject, samples};
use gradlane_server::node::command::Command;

use super::input::Input;
use super::members::{joined_node, node_id};
use super::{Kind, Memory, Target};

pub(super) const HEADER: Target = Target {
    name: "header",
    kind: Kind::Decoder,
    check: header,
    seeds: || samples::headers().iter().map(Header::encode).collect(),
    memory: Memory { bytes: 4 << 10, times: 2 },
};

pub(super) const FRAME: Target = Target {
    name: "frame",
    kind: Kind::Decoder,
    check: frame,
    seeds: || samples::frames().iter().map(Frame::encode).collect(),
    // An error in it is escaped, as in a reject.
    memory: Memory { bytes: 16 << 10, times: 40 },
};

pub(super) const REJECT: Target = Target {
    name: "reject",
    kind: Kind::Decoder,
    check: reject_body,
    seeds: || samples::errors().iter().map(reject::to_body).collect(),
    // The text is copied, escaped (a control character has up to ten), written and read again.
    memory: Memory { bytes: 16 << 10, times: 40 },
};

pub(super) const WITHDRAWAL: Target = Target {
    name: "withdrawal",
    kind: Kind::Decoder,
    check: withdrawal,
    seeds: || samples::errors().iter().map(|error| [&[3, 1][..], &reject::to_body(error)].concat()).collect(),
    memory: Memory { bytes: 64 << 10, times: 40 },
};

/// Whole and in pieces, the same header or the same refusal comes out.
fn header(bytes: &[u8]) {
    let whole = Header::decode(bytes, PEER);
    match &whole {
        // Nothing is known of the bytes.
        Ok(Header::Unknown(_)) => {}
        Ok(header) => assert_eq!(header.encode(), bytes, "a header has one form"),
        Err(error) => must_blame_the_peer(error),
    }
    let mut reader = HeaderReader::default();
    let mut rest = bytes;
    while reader.missing() > 0 && !rest.is_empty() {
        let (piece, later) = rest.split_at(rest.len().min(reader.missing()).min(13));
        reader.take(piece);
        rest = later;
    }
    let read = reader.finish(PEER);
    if rest.is_empty() {
        assert_eq!(read, whole, "in pieces");
    } else if let Ok(header) = read
        && !matches!(header, Header::Unknown(_))
    {
        assert!(bytes.starts_with(&header.encode()), "the reader takes no byte that belongs to the body");
    }
}

fn frame(bytes: &[u8]) {
    match Frame::decode(bytes, PEER) {
        Ok(frame) => {
            let encoded = frame.encode();
            // The text of an error is escaped when it is read.
            if encoded != bytes {
                assert!(encoded.contains(&b'\\'), "a frame has one form");
                let again = Frame::decode(&encoded, PEER).expect("what was read can be written");
                assert_eq!(again.encode(), encoded);
            }
        }
        Err(error) => must_blame_the_peer(&error),
    }
}

fn reject_body(bytes: &[u8]) {
    match reject::from_body(bytes, PEER) {
        Ok(error) => {
            assert!(!error.to_string().contains('\u{1b}'), "what is shown to people moves no cursor");
            let body = reject::to_body(&error);
            let again = reject::from_body(&body, PEER).expect("what was read can be written");
            assert_eq!(reject::to_body(&again), body);
        }
        Err(error) => must_blame_the_peer(&error),
    }
}

/// A worker withdraws, and its error comes in pieces. It is answered once, and nothing stays booked.
fn withdrawal(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (piece_bytes, others) = (usize::from(input.byte()).max(1), input.byte());
    let body = input.rest();
    let mut node = joined_node(2);
    (0..2).for_each(|rank| node.handle_link_up(LinkId(rank.into()), node_id(rank)));
    let target = ExchangeTarget {
        epoch: Epoch { term: 1, number: 1 },
        part: PartId { key: TensorKey(7), index: 0 },
        round: Round(u64::from(others % 3)),
    };
    let (participants, error_bytes) = (Participants::ALL, body.len() as u64);
    let header = Request::Withdraw(Withdraw { target, dtype: DType::F32, op: Op::Sum, participants, error_bytes });
    // As long as a header may announce.
    if Header::decode(&header.encode(), PEER).is_err() {
        return;
    }
    node.handle_opened(Time(1), LinkId(0), ExchangeId(1), &header);
    let mut answers = 0;
    let mut drain = |node: &mut gradlane_server::node::Node| {
        while let Some(command) = node.next_command() {
            if let Command::Reject { exchange, error, .. } = command {
                assert_eq!(exchange, ExchangeId(1));
                assert!(reject::to_body(&error).len() as u64 <= gradlane_core::wire::limits::REJECT_BYTES_MAX);
                answers += 1;
            }
        }
    };
    drain(&mut node);
    let chunks = body.chunks(piece_bytes).map(Bytes::copy_from_slice);
    // A body without bytes is complete at once.
    for chunk in chunks.chain(body.is_empty().then(Bytes::new)) {
        node.handle_body(Time(2), ExchangeId(1), &[chunk]);
        drain(&mut node);
    }
    assert_eq!((answers, node.progress().bytes_in_flight), (1, 0), "answered once, and nothing stays booked");
}

fn must_blame_the_peer(error: &Error) {
    assert!(matches!(error, Error::Protocol { .. } | Error::Incompatible { .. }), "{error}");
}

const PEER: &str = "worker 0";
