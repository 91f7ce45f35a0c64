//! Tensors that travel in fewer bytes than they have. Most codecs are of one length: sums are those of the wire form, added in f32 and rounded once, over every transport.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use gradlane_core::Error;
use gradlane_core::device::Device;
use gradlane_core::engine::{Batch, BatchSubmission, Engine, Handle, Member, Submission};
use gradlane_core::types::{CodecSpec, Op, Priority, WorkerId};
use gradlane_tests::cluster::{Cluster, PATIENCE, SMALL_PARTS, Tensor, all};
use gradlane_tests::element::Element;
use gradlane_tests::gated_device::TestDevice;
use gradlane_tests::over::Over;
use gradlane_tests::tap::{Fate, Tap};
use half::{bf16, f16};

mod forms;
mod lengths;
mod topk;

const CODECS: [CodecSpec; 2] = [CodecSpec::F16, CodecSpec::BF16];
const OPS: [Op; 5] = [Op::Sum, Op::Mean, Op::Min, Op::Max, Op::WeightedMean];
/// Many parts, the last one shorter.
const LEN: usize = 70_003;

#[test]
fn small_whole_numbers_have_exact_sums_and_half_the_bytes_travel() {
    for over in [Over::Shm, Over::Quic] {
        let cluster = Cluster::with(over, 2, 2, &SMALL_PARTS);
        for codec in CODECS {
            all(&cluster.workers, |engine| {
                for op in OPS {
                    exact::<f32>(engine, codec, op, over);
                    exact::<f64>(engine, codec, op, over);
                }
            });
        }
    }
}

fn exact<T: Element>(engine: &Engine, codec: CodecSpec, op: Op, over: Over) {
    let rank = f64::from(engine.rank().0);
    let contribution = |index: usize, rank: f64| (index % 50) as f64 + 2.0 * rank;
    let values = (0..LEN).map(|index| T::of(contribution(index, rank))).collect();
    let mut tensor = coded(&format!("{codec} {op} {}", T::DTYPE), codec, values);
    let before = bytes(engine);
    let weight = if op == Op::WeightedMean { 1.0 + 2.0 * rank } else { 1.0 };
    tensor.submit(engine, op, weight, Priority::default()).unwrap().wait(Some(PATIENCE)).unwrap();
    assert_eq!(bytes(engine).map(|bytes| bytes - before[0]), [2 * LEN as u64; 2], "{over:?}: {codec} both ways");
    for (index, found) in tensor.data.iter().enumerate() {
        let [first, second] = [0.0, 1.0].map(|rank| contribution(index, rank));
        let expected = match op {
            Op::Sum => first + second,
            Op::Mean => (first + second) / 2.0,
            Op::Min => first,
            Op::Max => second,
            // Rounded once: what is no number of the wire type is the nearest one.
            _ => narrow(codec, (first + 3.0 * second) / 4.0),
        };
        assert_eq!(found.value(), expected, "{over:?}: {op} of {}, element {index}", T::DTYPE);
    }
}

#[test]
fn a_byte_travels_for_each_element_and_four_for_the_scale_of_each_block() {
    let codec: CodecSpec = "int8:block=32".parse().unwrap();
    // The largest of each block is 127 of its steps, in the contributions and in the sum, so nothing is rounded.
    let value = |index: usize| if index.is_multiple_of(32) { 127.0 } else { index as f64 % 100.0 - 50.0 };
    for over in [Over::Shm, Over::Quic] {
        let cluster = Cluster::with(over, 2, 2, &SMALL_PARTS);
        all(&cluster.workers, |engine| {
            for op in OPS {
                let values = (0..LEN).map(|index| value(index) as f32).collect();
                let mut tensor = coded(&format!("{op}"), codec, values);
                let before = bytes(engine);
                tensor.submit(engine, op, 1.0, Priority::default()).unwrap().wait(Some(PATIENCE)).unwrap();
                let travelled = (LEN + 4 * LEN.div_ceil(32)) as u64;
                assert_eq!(bytes(engine).map(|bytes| bytes - before[0]), [travelled; 2], "{over:?}: both ways");
                let times = if op == Op::Sum { 2.0 } else { 1.0 };
                for (index, found) in tensor.data.iter().enumerate() {
                    assert_eq!(f64::from(*found), times * value(index), "{over:?}: {op}, element {index}");
                }
            }
        });
    }
}

#[test]
fn a_body_may_be_longer_than_its_element() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    all(&cluster.workers, |engine| {
        for codec in ["int8", "int4", "fp8_e4m3", "fp8_e5m2"] {
            let mut tensor = coded(codec, codec.parse().unwrap(), vec![7_f32]);
            tensor.reduce(engine, Op::Sum).unwrap();
            assert_eq!(tensor.data, [14.0], "{codec}");
        }
    });
}

#[test]
fn blocks_of_small_tensors_are_their_own_and_what_is_no_number_stays_in_its_block() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    let codec: CodecSpec = "int8".parse().unwrap();
    all(&cluster.workers, |engine| {
        let mut tensors: Vec<Tensor> = [("weights", 1e6), ("norm", 0.5), ("broken", f32::NAN)]
            .map(|(name, value)| coded(name, codec, vec![value; 100]))
            .into();
        reduce_all(engine, &mut tensors);
        assert!(tensors[0].data.iter().all(|sum| (sum - 2e6).abs() < 1.0), "{:?}", tensors[0].data);
        assert!(tensors[1].data.iter().all(|sum| (sum - 1.0).abs() < 1e-6), "{:?}", tensors[1].data);
        assert!(tensors[2].data.iter().all(|sum| sum.is_nan()), "{:?}", tensors[2].data);
    });
}

/// Submits them as one batch, whose small tensors may share a part, and waits.
fn reduce_all(engine: &Engine, tensors: &mut [Tensor]) {
    let batch = Batch::new(tensors.iter().map(|tensor| tensor.spec.clone()).collect()).unwrap();
    let members = tensors.iter_mut().map(|tensor| {
        let Submission { source, destination, priority, .. } = tensor.submission(Op::Sum);
        Member { source, destination, priority }
    });
    let members = members.collect();
    let submission = BatchSubmission { batch: &batch, members, op: Op::Sum, weight: 1.0, timeout: None };
    engine.reduce_all(submission, Some(PATIENCE)).unwrap();
}

#[test]
fn what_the_wire_form_cannot_hold_is_infinite_and_nan_stays_nan() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    let found = all(&cluster.workers, |engine| {
        CODECS.map(|codec| {
            let values = vec![f32::NAN, f32::INFINITY, 60_000.0, 1e-9, 70_000.0, 1.0 + 1.0 / 4096.0];
            let mut tensor = coded(&format!("{codec}"), codec, values);
            tensor.reduce(engine, Op::Sum).unwrap();
            tensor.data
        })
    });
    for [as_f16, as_bf16] in found {
        assert!(as_f16[0].is_nan() && as_bf16[0].is_nan());
        assert_eq!(as_f16[1..], [f32::INFINITY, f32::INFINITY, 0.0, f32::INFINITY, 2.0]);
        // Each contribution is rounded, and the sum is.
        let rounded = |value: f32| bf16::from_f32(2.0 * bf16::from_f32(value).to_f32()).to_f32();
        assert_eq!(as_bf16[1..], [f32::INFINITY, rounded(60_000.0), rounded(1e-9), rounded(70_000.0), 2.0]);
    }
}

#[test]
fn the_sum_of_a_machine_is_encoded_once_and_stays_in_range_as_long_as_the_mean_does() {
    for machines in [&["a", "a", "b", "b"][..], &["a", "a", "a", "b"]] {
        let cluster = Cluster::on(Over::Quic, machines, 2, &SMALL_PARTS);
        let found = all(&cluster.workers, |engine| {
            // The sum of a machine is beyond 65,504. That of two ranks has a power of two of them as divisor, that of three has four.
            let mut large = coded("large", CodecSpec::F16, vec![40_000_f32; LEN]);
            large.reduce(engine, Op::Mean).unwrap();
            let rank = engine.rank().0;
            let mut small = coded("small", CodecSpec::F16, vec![rank as f32 * 4.0; LEN]);
            small.reduce(engine, Op::Sum).unwrap();
            let mut least = coded("least", CodecSpec::BF16, vec![rank as f32 - 7.0; LEN]);
            least.reduce(engine, Op::Min).unwrap();
            let mut root = coded("root", CodecSpec::F16, vec![rank as f32 + 1.0 / 4096.0; 10]);
            root.reduce(engine, Op::Broadcast { root: WorkerId(3) }).unwrap();
            [large.data, small.data, least.data, root.data]
        });
        for [large, small, least, root] in found {
            assert!(large.iter().all(|mean| *mean == 40_000.0), "{machines:?}: {}", large[0]);
            assert!(small.iter().all(|sum| *sum == 24.0), "{machines:?}: {}", small[0]);
            assert!(least.iter().all(|least| *least == -7.0), "{machines:?}: {}", least[0]);
            assert!(root.iter().all(|sent| *sent == 3.0 + 1.0 / 4096.0), "a broadcast keeps its bits");
        }
        let pushed: u64 = cluster.workers.iter().map(|engine| bytes(engine)[0]).sum();
        let coded = 2 * 2 * LEN * 3;
        let plain = 4 * 10;
        assert_eq!(pushed, (coded + plain) as u64, "each machine sends each element once, in two bytes");
    }
}

#[test]
fn where_nothing_travels_nothing_is_rounded() {
    let cluster = Cluster::on(Over::Local, &["a", "a"], 1, &[]);
    let value = 1.0 + 1.0 / 4096.0;
    let sums = all(&cluster.workers, |engine| {
        let mut tensor = coded("w", CodecSpec::BF16, vec![value; LEN]);
        tensor.reduce(engine, Op::Sum).unwrap();
        tensor.data
    });
    assert!(sums.iter().flatten().all(|sum| *sum == 2.0 * value));
}

#[test]
fn workers_that_want_different_codecs_all_learn_both() {
    for (over, codecs) in [Over::Local, Over::Shm, Over::Quic].into_iter().flat_map(|over| {
        [["fp16", "none"], ["int8", "int8:block=512"], ["bf16", "int8"], ["int8", "int8:feedback=1"]]
            .map(|codecs| (over, codecs))
    }) {
        let cluster = Cluster::start(over, 2, 1);
        let errors = all(&cluster.workers, |engine| {
            let codec = codecs[engine.rank().0 as usize].parse().unwrap();
            coded("w", codec, vec![1_f32; 8]).reduce(engine, Op::Sum).unwrap_err()
        });
        for error in errors {
            let text = error.to_string();
            assert!(matches!(error, Error::Mismatch { .. }), "{text}");
            for (rank, codec) in codecs.into_iter().enumerate() {
                assert!(text.contains(&format!("worker {rank} has codec {codec}")), "{text}");
            }
        }
    }
}

#[test]
fn sums_stay_exact_when_links_are_cut_again_and_again() {
    let cut = |push| if push % 17 == 0 { Fate::Cut } else { Fate::Stay };
    let cluster = Cluster::tapped(Over::Quic, 2, 2, &SMALL_PARTS, |transport| Arc::new(Tap::new(transport, cut)));
    all(&cluster.workers, |engine| {
        for round in 0..12 {
            let values = |rank: u32| (0..LEN).map(move |index| ((index + round) % 100) as f32 + rank as f32);
            let mut tensor = coded("w", CodecSpec::F16, values(engine.rank().0).collect());
            tensor.reduce(engine, Op::Sum).unwrap();
            let expected = values(0).zip(values(1)).map(|(first, second)| first + second);
            assert!(tensor.data.iter().copied().eq(expected), "round {round}");
        }
    });
    for engine in &cluster.workers {
        assert!(engine.metrics().repeats.load(Relaxed) > 0);
    }
}

#[test]
fn a_damaged_body_is_found_by_the_checksum_of_its_wire_form() {
    // Not by the number of a push, because a server that does not know the view yet has the first one repeated.
    let is_second = Arc::new(AtomicBool::new(false));
    let cluster = Cluster::tapped(Over::Quic, 2, 1, &[], |transport| {
        let damages = Arc::clone(&is_second);
        Arc::new(Tap::new(transport, move |_| if damages.load(Relaxed) { Fate::Damage } else { Fate::Stay }))
    });
    let outcomes = all(&cluster.workers, |engine| {
        [0, 1].map(|round| {
            // The server has taken all pushes of a round when anybody has its sum.
            is_second.fetch_or(round == 1, Relaxed);
            let outcome = coded("w", CodecSpec::BF16, vec![1_f32; 100]).reduce(engine, Op::Sum);
            assert_eq!(outcome.is_ok(), round == 0, "{outcome:?}");
            outcome
        })
    });
    assert!(outcomes.iter().all(|[_, second]| matches!(second, Err(Error::Checksum { .. }))), "{outcomes:?}");
}

#[test]
fn small_tensors_of_one_codec_share_parts() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    all(&cluster.workers, |engine| {
        let mut tensors: Vec<Tensor> =
            (0..50).map(|index| coded(&format!("t{index}"), CodecSpec::BF16, vec![index as f32; 1 + index])).collect();
        reduce_all(engine, &mut tensors);
        for (index, tensor) in tensors.iter().enumerate() {
            assert_eq!(tensor.data, vec![2.0 * index as f32; 1 + index]);
        }
        assert!(engine.metrics().pushes.load(Relaxed) < 10, "a message for each");
    });
}

#[test]
fn a_server_of_the_machine_adds_what_is_encoded_where_it_lies() {
    let cluster = Cluster::start(Over::Shm, 2, 1);
    all(&cluster.workers, |engine| {
        for round in 1..=3_u32 {
            let values = |factor: u32| (0..LEN).map(move |index| ((index % 500) as u32 * round * factor) as f32);
            let mut tensor = coded("w", CodecSpec::F16, values(1).collect());
            tensor.reduce(engine, Op::Sum).unwrap();
            let narrowed = values(2).map(|sum| f16::from_f32(sum).to_f32());
            assert!(tensor.data.iter().copied().eq(narrowed), "round {round}");
        }
        assert_eq!(engine.metrics().copied_bytes(), 0);
    });
}

#[test]
fn a_device_moves_only_the_wire_form() {
    for over in [Over::Shm, Over::Quic] {
        let devices = |_| Some(TestDevice::start() as Arc<dyn Device>);
        let cluster = Cluster::with_devices(over, 2, 2, &SMALL_PARTS, devices);
        all(&cluster.workers, |engine| {
            for codec in CODECS {
                let before = engine.metrics().d2h_bytes.load(Relaxed);
                let mut tensor =
                    coded(&format!("{codec}"), codec, (0..LEN).map(|index| (index % 100) as f32).collect());
                let handles: [Handle; 1] = [engine.push_pull(tensor.on_device(Op::Sum), |_| {}).unwrap()];
                handles.iter().for_each(|handle| handle.wait(Some(PATIENCE)).unwrap());
                assert!(tensor.data.iter().enumerate().all(|(index, sum)| *sum == 2.0 * (index % 100) as f32));
                assert_eq!(engine.metrics().d2h_bytes.load(Relaxed) - before, 2 * LEN as u64, "{over:?}: {codec}");
            }
            let h2d = engine.metrics().h2d_bytes.load(Relaxed);
            assert_eq!(h2d, 2 * 2 * LEN as u64);
        });
    }
}

fn coded<T: Element>(name: &str, codec: CodecSpec, values: Vec<T>) -> Tensor<T> {
    let Tensor { spec, data } = Tensor::new(name, values);
    Tensor { spec: spec.with_codec(codec), data }
}

/// The nearest number of the wire type.
fn narrow(codec: CodecSpec, value: f64) -> f64 {
    if codec == CodecSpec::F16 { f16::of(value).value() } else { bf16::of(value).value() }
}

/// Bytes of bodies that were pushed and pulled.
fn bytes(engine: &Engine) -> [u64; 2] {
    let metrics = engine.metrics();
    [&metrics.push_bytes, &metrics.pull_bytes].map(|count| count.load(Relaxed))
}
