//! The bytes that travel are those of each codec's formula.

use std::collections::BTreeSet;

use gradlane_core::types::{CodecSpec, Encoding, Op};
use gradlane_tests::cluster::{Cluster, SMALL_PARTS, all};
use gradlane_tests::over::Over;

use super::{bytes, coded};

/// A part that is no whole number of blocks.
const LEN: u64 = 10_007;

/// Every codec whose bodies have one length, and the bytes of a part of [`LEN`] elements of f32.
const FORMULAS: [(&str, u64); 11] = [
    ("none", 4 * LEN),
    ("fp16", 2 * LEN),
    ("bf16", 2 * LEN),
    ("int8", LEN + 4 * LEN.div_ceil(256)),
    ("int8:block=1024", LEN + 4 * LEN.div_ceil(1024)),
    ("fp8_e4m3", LEN + 4 * LEN.div_ceil(256)),
    ("fp8_e5m2", LEN + 4 * LEN.div_ceil(256)),
    ("int4", LEN.div_ceil(2) + 2 * LEN.div_ceil(128)),
    // Words of bits, and the scale.
    ("onebit", 4 * LEN.div_ceil(32) + 4),
    // A seed, and the elements.
    ("randomk", 8 + 4 * LEN.div_ceil(100)),
    ("randomk:k=100000", 8 + 4 * LEN.div_ceil(10)),
];

#[test]
fn contributions_and_sums_have_the_bytes_of_the_formula() {
    for over in [Over::Shm, Over::Quic] {
        let cluster = Cluster::with(over, 2, 1, &SMALL_PARTS);
        all(&cluster.workers, |engine| {
            for (text, due) in FORMULAS {
                let mut tensor = coded(text, text.parse().unwrap(), vec![1_f32; LEN as usize]);
                let before = bytes(engine);
                tensor.reduce(engine, Op::Sum).unwrap();
                let [pushed, pulled] = bytes(engine);
                assert_eq!([pushed - before[0], pulled - before[1]], [due; 2], "{over:?}: {text}");
            }
        });
    }
}

#[test]
fn every_codec_of_one_length_has_a_formula() {
    let named: BTreeSet<Encoding> =
        FORMULAS.iter().map(|(text, _)| text.parse::<CodecSpec>().unwrap().encoding()).collect();
    for encoding in Encoding::all().filter(|encoding| !CodecSpec::of(*encoding).varies()) {
        assert!(named.contains(&encoding), "{encoding}");
    }
}
