//! The codecs that make bodies of one length and lose something, with elements of which they lose nothing.

use super::*;

/// One part.
const PART: usize = 15_000;

/// A codec, elements that it holds exactly, and the bytes of their body.
struct Case {
    codec: &'static str,
    element: fn(usize) -> f32,
    body_bytes: usize,
}

/// A block whose first element is the largest number of its codec has the scale 1, and its sum with itself the scale 2.
const CASES: [Case; 5] = [
    Case {
        codec: "bf16:stochastic=1",
        // 8 bits hold them and their sums.
        element: |at| (at % 100) as f32,
        body_bytes: 2 * PART,
    },
    Case {
        codec: "int4:block=32",
        element: |at| if at.is_multiple_of(32) { 7.0 } else { (at % 15) as f32 - 7.0 },
        body_bytes: PART / 2 + 2 * PART.div_ceil(32),
    },
    Case {
        codec: "fp8_e4m3",
        element: |at| if at.is_multiple_of(256) { 448.0 } else { (at % 33) as f32 - 16.0 },
        body_bytes: PART + 4 * PART.div_ceil(256),
    },
    Case {
        codec: "fp8_e5m2",
        element: |at| if at.is_multiple_of(256) { 57_344.0 } else { (at % 17) as f32 - 8.0 },
        body_bytes: PART + 4 * PART.div_ceil(256),
    },
    Case {
        codec: "onebit",
        element: |at| if at.is_multiple_of(3) { -1.5 } else { 1.5 },
        body_bytes: 4 * PART.div_ceil(32) + 4,
    },
];

#[test]
fn sums_of_what_a_codec_holds_are_exact_and_as_many_bytes_travel_as_its_form_has() {
    for over in [Over::Shm, Over::Quic] {
        let cluster = Cluster::start(over, 2, 1);
        all(&cluster.workers, |engine| {
            for (Case { codec, element, body_bytes }, op) in
                CASES.iter().flat_map(|case| [Op::Sum, Op::Mean].map(|op| (case, op)))
            {
                let values = (0..PART).map(element).collect();
                let mut tensor = coded(&format!("{codec} {op}"), codec.parse().unwrap(), values);
                let before = bytes(engine);
                tensor.reduce(engine, op).unwrap();
                assert_eq!(bytes(engine), before.map(|bytes| bytes + *body_bytes as u64), "{over:?}: {op} as {codec}");
                let times = if op == Op::Sum { 2.0 } else { 1.0 };
                for (at, found) in tensor.data.iter().enumerate() {
                    assert_eq!(*found, times * element(at), "{over:?}: {op} as {codec}, element {at}");
                }
            }
        });
    }
}

#[test]
fn levels_of_the_scale_travel_in_few_bits_and_their_sums_are_exact() {
    // The levels 0 and 2 of 2, in the contributions and in their sum.
    let element = |at: usize| [0.0, 6.0, 0.0, -6.0, 0.0][at % 5];
    for over in [Over::Shm, Over::Quic] {
        let cluster = Cluster::start(over, 2, 1);
        all(&cluster.workers, |engine| {
            for codec in ["dithering:s=2", "dithering:s=2,feedback=1", "dithering:s=2,natural=1"] {
                let mut tensor = coded(codec, codec.parse().unwrap(), (0..PART).map(element).collect());
                let before = bytes(engine);
                tensor.reduce(engine, Op::Sum).unwrap();
                assert!(tensor.data.iter().enumerate().all(|(at, sum)| *sum == 2.0 * element(at)), "{over:?}: {codec}");
                let after = bytes(engine);
                let travelled = [after[0] - before[0], after[1] - before[1]];
                // Of two elements in five: a distance of 4 bits, a sign, and a level of 4 bits.
                let due = (PART as u64 * 2 / 5 * 9).div_ceil(32) * 4 + 8;
                assert_eq!(travelled, [due; 2], "{over:?}: {codec}");
            }
            // The largest of elements that are drawn by chance says nothing, so they travel as they are.
            let mut tensor = coded("largest", "dithering".parse().unwrap(), vec![engine.rank().0 as f32 + 0.1; PART]);
            tensor.reduce(engine, Op::Max).unwrap();
            assert!(tensor.data.iter().all(|largest| *largest == 1.1), "{over:?}");
        });
    }
}

#[test]
fn all_workers_send_elements_of_the_same_places_times_the_elements_that_these_stand_for() {
    let codec: CodecSpec = "randomk:k=100000".parse().unwrap();
    for over in [Over::Shm, Over::Quic] {
        let cluster = Cluster::start(over, 2, 1);
        all(&cluster.workers, |engine| {
            let element = |at: usize| (at % 7 + 1) as f32;
            let mut tensor = coded("w", codec, (0..PART).map(element).collect());
            let before = bytes(engine);
            tensor.reduce(engine, Op::Sum).unwrap();
            assert_eq!(bytes(engine), before.map(|bytes| bytes + 8 + 4 * PART as u64 / 10), "{over:?}");
            for (run, found) in tensor.data.chunks(10).enumerate() {
                let sent: Vec<usize> = (0..10).filter(|at| found[*at] != 0.0).collect();
                assert_eq!(sent.len(), 1, "{over:?}: {found:?}");
                assert_eq!(found[sent[0]], 2.0 * 10.0 * element(10 * run + sent[0]), "{over:?}: {found:?}");
            }
        });
    }
}
