//! The codecs that make bodies of one length and lose something, with elements of which they lose nothing; and those that lose nothing ever.

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
    let element = |at: usize| [0.0_f32, 6.0, 0.0, -6.0, 0.0][at % 5];
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
fn nothing_is_lost_of_elements_of_any_type_and_what_repeats_travels_once() {
    for over in [Over::Shm, Over::Quic] {
        let cluster = Cluster::with(over, 2, 2, &SMALL_PARTS);
        all(&cluster.workers, |engine| {
            for op in OPS {
                exact_and_short::<f32>(engine, op, over);
                exact_and_short::<f64>(engine, op, over);
                exact_and_short::<f16>(engine, op, over);
                exact_and_short::<bf16>(engine, op, over);
                if op != Op::WeightedMean {
                    exact_and_short::<i32>(engine, op, over);
                    exact_and_short::<i64>(engine, op, over);
                }
            }
            let strange = |at: usize| match at % 4 {
                0 => f32::NAN,
                1 => f32::NEG_INFINITY,
                2 => f32::from_bits(at as u32),
                _ => 1.0 / (at as f32),
            };
            let lossless = CodecSpec::LOSSLESS;
            let mut tensors = [CodecSpec::PLAIN, lossless]
                .map(|codec| coded(&format!("{codec}"), codec, (0..LEN).map(strange).collect::<Vec<f32>>()));
            tensors.iter_mut().for_each(|tensor| tensor.reduce(engine, Op::Sum).unwrap());
            let [plain, exact] = tensors.map(|tensor| tensor.data);
            let is_same =
                |(plain, exact): (&f32, &f32)| plain.to_bits() == exact.to_bits() || plain.is_nan() && exact.is_nan();
            assert!(plain.iter().zip(&exact).all(is_same), "{over:?}");
        });
    }
}

/// Reduces elements, nine of ten of which are zero, as they are and without loss, and compares.
fn exact_and_short<T: Element>(engine: &Engine, op: Op, over: Over) {
    let rank = f64::from(engine.rank().0);
    let element = |at: usize| T::of(if at.is_multiple_of(10) { (at % 97) as f64 + 2.0 * rank } else { 0.0 });
    let weight = if op == Op::WeightedMean { 1.0 + 2.0 * rank } else { 1.0 };
    let name = format!("{op} {}", T::DTYPE);
    let mut travelled = Vec::new();
    let found = [CodecSpec::PLAIN, CodecSpec::LOSSLESS].map(|codec| {
        let mut tensor = coded(&format!("{codec} {name}"), codec, (0..LEN).map(element).collect());
        let before = bytes(engine);
        tensor.submit(engine, op, weight, Priority::default()).unwrap().wait(Some(PATIENCE)).unwrap();
        let after = bytes(engine);
        travelled.push([after[0] - before[0], after[1] - before[1]]);
        tensor.data.iter().map(|element| element.value().to_bits()).collect::<Vec<u64>>()
    });
    assert!(found[0] == found[1], "{over:?}: {name}");
    let is_short = (0..2).all(|way| travelled[1][way] < travelled[0][way] / 3);
    assert!(is_short, "{over:?}: {name}: {travelled:?}");
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
