//! The largest elements of each part: bodies that vary in length, values that are refused, and sums that have the entries of all.

use gradlane_tests::random::mix;

use super::*;

/// One part.
const PART: usize = 15_000;

#[test]
fn sums_are_those_of_the_largest_elements_and_as_many_bytes_travel_as_these_have() {
    let codec: CodecSpec = "topk:k=20000".parse().unwrap();
    for over in [Over::Shm, Over::Quic] {
        let cluster = Cluster::start(over, 3, 1);
        all(&cluster.workers, |engine| {
            for (op, len) in [(Op::Sum, PART), (Op::Mean, PART), (Op::WeightedMean, 333), (Op::Sum, 1)] {
                let sent = [0, 1, 2].map(|rank| kept(&values(rank, len), 20_000));
                let rank = engine.rank().0;
                let mut tensor = coded(&format!("{op} {len}"), codec, values(rank, len));
                let before = bytes(engine);
                let weight = if op == Op::WeightedMean { f64::from(1 << rank) } else { 1.0 };
                tensor.submit(engine, op, weight, Priority::default()).unwrap().wait(Some(PATIENCE)).unwrap();
                let due: Vec<f32> = (0..len).map(|at| reduced(op, sent.each_ref().map(|sent| sent[at]))).collect();
                assert!(tensor.data == due, "{over:?}: {op} of {len}");
                let travelled = [&sent[rank as usize], &due].map(|elements| body_bytes(elements));
                assert_eq!(
                    bytes(engine),
                    [before[0] + travelled[0], before[1] + travelled[1]],
                    "{over:?}: {op} of {len}"
                );
            }
            // What is left out is no candidate for a maximum, so these travel as they are.
            let mut tensor = coded("largest", codec, values(engine.rank().0, PART));
            let before = bytes(engine);
            tensor.reduce(engine, Op::Max).unwrap();
            assert_eq!(bytes(engine), before.map(|bytes| bytes + 4 * PART as u64), "{over:?}");
            let due = (0..PART).map(|at| (0..3).map(|rank| value(rank, at)).fold(f32::MIN, f32::max));
            assert!(tensor.data.iter().copied().eq(due));
        });
    }
}

#[test]
fn a_part_with_a_nan_travels_plain_and_its_neighbours_do_not() {
    for over in [Over::Shm, Over::Quic] {
        let cluster = Cluster::start(over, 2, 1);
        all(&cluster.workers, |engine| {
            let rank = engine.rank().0;
            let mut tensors = ["broken", "whole"].map(|name| coded(name, "topk".parse().unwrap(), values(rank, PART)));
            if rank == 1 {
                tensors[0].data[7] = f32::NAN;
            }
            let before = bytes(engine);
            tensors.iter_mut().for_each(|tensor| tensor.reduce(engine, Op::Sum).unwrap());
            let sent = [0, 1].map(|rank| kept(&values(rank, PART), 10_000));
            let [broken, whole] = tensors.map(|tensor| tensor.data);
            assert!(broken[7].is_nan(), "{over:?}");
            let is_due = |at: &usize| broken[*at] == sent[0][*at] + value(1, *at);
            assert_eq!((0..PART).filter(|at| !is_due(at)).collect::<Vec<_>>(), [7], "{over:?}");
            let due: Vec<f32> = sent[0].iter().zip(&sent[1]).map(|(one, two)| one + two).collect();
            assert!(whole == due, "{over:?}");
            let plain = 4 * PART as u64;
            let small = body_bytes(&sent[rank as usize]);
            let pushed = small + if rank == 1 { plain } else { small };
            assert_eq!(bytes(engine), [before[0] + pushed, before[1] + plain + body_bytes(&due)], "{over:?}");
        });
    }
}

/// A tensor of many parts with fewer elements that are not zero than are sent of each part.
fn sparse(rank: u32, round: u64, len: usize) -> Vec<f32> {
    let is_there = |at: usize| mix(at as u64 ^ round << 40).is_multiple_of(300);
    (0..len).map(|at| if is_there(at + rank as usize) { 1.0 + (at % 100) as f32 } else { 0.0 }).collect()
}

#[test]
fn what_is_sparse_has_exact_sums_also_where_a_machine_reduces_first_and_links_are_cut() {
    let cut = |push| if push % 17 == 0 { Fate::Cut } else { Fate::Stay };
    for cluster in [
        Cluster::on(Over::Quic, &["a", "a", "b"], 2, &SMALL_PARTS),
        Cluster::tapped(Over::Quic, 3, 2, &SMALL_PARTS, |transport| Arc::new(Tap::new(transport, cut))),
        Cluster::tapped(Over::Shm, 3, 2, &SMALL_PARTS, |transport| Arc::new(Tap::new(transport, cut))),
        Cluster::with(Over::Quic, 3, 1, &[("partition_bytes", "64 KiB"), ("deterministic", "true")]),
    ] {
        all(&cluster.workers, |engine| {
            for round in 0..8 {
                let mut tensor = coded("w", "topk".parse().unwrap(), sparse(engine.rank().0, round, LEN));
                tensor.reduce(engine, Op::Sum).unwrap();
                let sent = [0, 1, 2].map(|rank| sparse(rank, round, LEN));
                let due = (0..LEN).map(|at| sent[0][at] + sent[1][at] + sent[2][at]);
                assert!(tensor.data.iter().copied().eq(due), "round {round}");
            }
        });
    }
}

#[test]
fn a_device_that_encodes_copies_as_many_bytes_as_a_body_can_have() {
    let devices = |_| Some(TestDevice::start() as Arc<dyn Device>);
    let cluster = Cluster::with_devices(Over::Quic, 2, 1, &SMALL_PARTS, devices);
    all(&cluster.workers, |engine| {
        let mut tensor = coded("w", "topk".parse().unwrap(), sparse(engine.rank().0, 1, LEN));
        let handle = engine.push_pull(tensor.on_device(Op::Sum), |_| {}).unwrap();
        handle.wait(Some(PATIENCE)).unwrap();
        let due = sparse(0, 1, LEN).into_iter().zip(sparse(1, 1, LEN)).map(|(one, two)| one + two);
        assert!(tensor.data.iter().copied().eq(due));
        let [out, back] = [&engine.metrics().d2h_bytes, &engine.metrics().h2d_bytes].map(|bytes| bytes.load(Relaxed));
        let [pushed, pulled] = bytes(engine);
        assert!(pushed < out && out < LEN as u64 / 10, "{pushed} bytes are sent of {out}");
        assert_eq!(back, pulled, "of a sum the length is known");
    });
}

#[test]
fn each_small_tensor_sends_its_own_largest_elements() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    all(&cluster.workers, |engine| {
        let mut tensors: Vec<Tensor> = [1e6, 1.0, 1e-6]
            .map(|scale| {
                let mut values = vec![0.0; 100];
                (values[3], values[60]) = (scale, scale / 2.0);
                coded(&format!("{scale}"), "topk".parse().unwrap(), values)
            })
            .into();
        reduce_all(engine, &mut tensors);
        for (tensor, scale) in tensors.iter().zip([1e6, 1.0, 1e-6]) {
            assert_eq!((tensor.data[3], tensor.data[60]), (2.0 * scale, 0.0), "1 of 100");
        }
    });
}

#[test]
fn a_body_longer_than_it_can_be_is_refused_with_a_typed_error_and_the_link_lives() {
    for (over, codec) in [(Over::Shm, "topk"), (Over::Quic, "topk"), (Over::Quic, "bf16"), (Over::Quic, "none")] {
        let lies = Arc::new(AtomicBool::new(false));
        let cluster = Cluster::tapped(over, 2, 1, &[("step_timeout", "2 s"), ("stall_warn", "200 ms")], |transport| {
            let lies = Arc::clone(&lies);
            Arc::new(Tap::new(transport, move |_| if lies.swap(false, Relaxed) { Fate::Overlong } else { Fate::Stay }))
        });
        let sum = |engine: &Engine| {
            let mut tensor = coded("w", codec.parse().unwrap(), vec![2_f32; 64]);
            tensor.reduce(engine, Op::Sum).map(|()| tensor.data)
        };
        all(&cluster.workers, |engine| sum(engine).unwrap());
        lies.store(true, Relaxed);
        let errors = all(&cluster.workers, |engine| sum(engine).unwrap_err());
        // Worker 0 or 1 lied; the other one waits for it.
        let is_told = |error: &&Error| matches!(error, Error::Protocol { field, .. } if field == "body length");
        let waits = |error: &&Error| matches!(error, Error::Stalled { missing, .. } if missing.len() == 1);
        let counts = (errors.iter().filter(is_told).count(), errors.iter().filter(waits).count());
        assert_eq!(counts, (1, 1), "{over:?}: {errors:?}");
        let sums = all(&cluster.workers, |engine| sum(engine).unwrap());
        assert!(sums.iter().flatten().any(|sum| *sum == 4.0), "{over:?}: {sums:?}");
        let connections = cluster.workers.iter().map(|engine| engine.metrics().connections.load(Relaxed));
        assert_eq!(connections.sum::<u64>(), 2, "{over:?}: no link was lost");
    }
}

fn values(rank: u32, len: usize) -> Vec<f32> {
    (0..len).map(|at| value(rank, at)).collect()
}

/// A whole number of at most 1,000, often one that others have too.
fn value(rank: u32, at: usize) -> f32 {
    (mix(u64::from(rank) << 32 | at as u64) % 2_001) as f32 - 1_000.0
}

/// What is sent of a part: its largest elements, by sorting all of them.
fn kept(values: &[f32], millionths: usize) -> Vec<f32> {
    let count = (values.len() * millionths).div_ceil(1_000_000);
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|one, other| values[*other].abs().total_cmp(&values[*one].abs()).then(one.cmp(other)));
    let mut kept = vec![0.0; values.len()];
    order[..count].iter().for_each(|at| kept[*at] = values[*at]);
    kept
}

fn reduced(op: Op, values: [f32; 3]) -> f32 {
    match op {
        Op::WeightedMean => (values[0] + 2.0 * values[1] + 4.0 * values[2]) / 7.0,
        Op::Mean => values.iter().sum::<f32>() / 3.0,
        _ => values.iter().sum(),
    }
}

/// The bytes of a part of which these elements are sent: a count, for each element a gap and four bytes; or plain if that is no shorter.
fn body_bytes(elements: &[f32]) -> u64 {
    let number = |number: usize| if number == 0 { 1 } else { u64::from(number.ilog2()) / 7 + 1 };
    let places: Vec<usize> = (0..elements.len()).filter(|at| elements[*at] != 0.0).collect();
    let mut next = 0;
    let gaps = places.iter().map(|at| number(at - std::mem::replace(&mut next, at + 1)));
    let sparse = number(places.len()) + gaps.sum::<u64>() + 4 * places.len() as u64;
    sparse.min(4 * elements.len() as u64)
}
