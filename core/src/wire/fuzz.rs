//! Hostile bytes, reproducible: mutations of one sample of each message, driven by a seed.
//!
//! What must hold: no panic; bytes that decode can be encoded again, and these bytes decode to the same value.

use super::{Frame, Header, reject, samples};
use crate::error::Error;

/// A short run belongs to the tests. `GRADLANE_FUZZ_ITERATIONS` sets a longer run.
#[test]
fn mutated_bytes_decode_or_fail_but_never_panic() {
    #[expect(clippy::disallowed_methods, reason = "the length of a test run is no setting of the engine")]
    let iterations = std::env::var("GRADLANE_FUZZ_ITERATIONS").map_or(20_000, |count| count.parse().unwrap());
    let accepted = fuzz(1, iterations);
    assert!(accepted > 0 && accepted < iterations, "{accepted} of {iterations} mutants were accepted");
}

/// Decodes `iterations` mutants and returns how many were accepted.
fn fuzz(seed: u64, iterations: u64) -> u64 {
    let corpus = corpus();
    let mut random = SplitMix(seed);
    let mut accepted = 0;
    for _ in 0..iterations {
        let (shape, seed_bytes) = &corpus[random.below(corpus.len())];
        let mut bytes = seed_bytes.clone();
        for _ in 0..=random.below(3) {
            mutate(&mut bytes, &mut random);
        }
        accepted += u64::from(shape.accepts(&bytes));
    }
    accepted
}

/// Which decoder some bytes are for.
#[derive(Clone, Copy)]
enum Shape {
    Frame,
    Header,
    Reject,
}

impl Shape {
    /// Whether the bytes decode. Checks what must hold in both cases.
    fn accepts(self, bytes: &[u8]) -> bool {
        // Frames are compared by their bytes, because a NaN differs from itself.
        let refused = match self {
            Self::Frame => match Frame::decode(bytes, PEER) {
                Ok(frame) => {
                    let again = Frame::decode(&frame.encode(), PEER).expect("what was read can be written");
                    assert_eq!(again.encode(), frame.encode());
                    return true;
                }
                Err(error) => error,
            },
            Self::Header => match Header::decode(bytes, PEER) {
                Ok(header) => {
                    assert_eq!(header.encode(), bytes, "a header has one form");
                    return true;
                }
                Err(error) => error,
            },
            Self::Reject => match reject::from_body(bytes, PEER) {
                Ok(error) => {
                    let again = reject::from_body(&reject::to_body(&error), PEER);
                    assert_eq!(again.as_ref().map(reject::to_body), Ok(reject::to_body(&error)));
                    return true;
                }
                Err(error) => error,
            },
        };
        assert!(matches!(refused, Error::Protocol { .. } | Error::Incompatible { .. }), "{refused}");
        false
    }
}

const PEER: &str = "worker 0";

fn corpus() -> Vec<(Shape, Vec<u8>)> {
    let frames = samples::frames().into_iter().map(|frame| (Shape::Frame, frame.encode()));
    let headers = samples::headers().into_iter().map(|header| (Shape::Header, header.encode()));
    let rejects = samples::errors().into_iter().map(|error| (Shape::Reject, reject::to_body(&error)));
    frames.chain(headers).chain(rejects).collect()
}

/// One small damage, of the kinds that hurt length fields, codes and texts most.
fn mutate(bytes: &mut Vec<u8>, random: &mut SplitMix) {
    let at = random.below(bytes.len().max(1));
    match random.below(6) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at.min(bytes.len()), random.byte()),
        2 if at < bytes.len() => bytes[at] = random.byte(),
        3 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        4 if bytes.len() >= at + 4 => bytes[at..at + 4].copy_from_slice(&EXTREMES[random.below(EXTREMES.len())]),
        5 if at < bytes.len() => {
            let tail = bytes[at..].to_vec();
            bytes.extend_from_slice(&tail);
        }
        _ => bytes.push(random.byte()),
    }
}

const EXTREMES: [[u8; 4]; 6] =
    [[0; 4], [1, 0, 0, 0], [0xff; 4], [0xfe, 0xff, 0xff, 0xff], [0, 0, 0, 0x80], [0xff, 0xff, 0xff, 0x7f]];

/// SplitMix64 (Steele, Lea and Flood 2014): a few lines, and the same numbers on every machine.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next() as u8
    }
}
