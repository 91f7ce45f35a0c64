//! What each reduction computes, in every element type, against an oracle in f64.

use std::ops::Range;

use gradlane_core::types::{Op, Priority, WorkerId};
use gradlane_tests::cluster::{Cluster, PATIENCE, SMALL_PARTS, Tensor, all};
use gradlane_tests::element::Element;
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::random::Random;
use half::{bf16, f16};

matrix! {
    [locally, over_shm, over_quic]:
        every_reduction_of_floats_is_as_exact_as_its_type_allows,
        integers_wrap_and_their_mean_rounds_down,
        one_number_of_each_of_four_workers_is_reduced,
        half_size_floats_are_added_in_full_size,
        what_is_no_number_passes_through,
        a_broadcast_gives_everybody_the_bits_of_its_root,
        a_weighted_mean_without_any_weight_fails_on_all,
        deterministic_sums_have_the_same_bits_in_every_run;
}

/// Samples that the workers of the weighted mean have seen.
const WEIGHTS: [f64; 4] = [3.0, 0.0, 5.0, 2.0];

fn every_reduction_of_floats_is_as_exact_as_its_type_allows(over: Over) {
    // Where machines reduce first, what they send is rounded too.
    for (cluster, extra_roundings) in jobs(over, 3, 2, &SMALL_PARTS).into_iter().zip([0.0, 1.0]) {
        floats::<f32>(&cluster, extra_roundings);
        floats::<f64>(&cluster, extra_roundings);
        floats::<f16>(&cluster, extra_roundings);
        floats::<bf16>(&cluster, extra_roundings);
    }
}

fn integers_wrap_and_their_mean_rounds_down(over: Over) {
    for cluster in jobs(over, 3, 1, &[]) {
        let reduced = |op, values: [i32; 3]| reduce_each(&cluster, op, values.map(|value| vec![value]))[0];
        assert_eq!(reduced(Op::Sum, [i32::MAX, 1, 1]), i32::MIN + 1);
        assert_eq!(reduced(Op::Mean, [-7, 2, 4]), -1);
        assert_eq!(reduced(Op::Min, [-7, i32::MIN, 4]), i32::MIN);
        assert_eq!(reduced(Op::Max, [-7, i32::MIN, 4]), 4);
        assert_eq!(reduce_each(&cluster, Op::Sum, [vec![200_u8], vec![50], vec![10]]), [4]);
        assert_eq!(reduce_each(&cluster, Op::Sum, [vec![127_i8], vec![1], vec![0]]), [-128]);
        assert_eq!(reduce_each(&cluster, Op::Sum, [vec![i64::MAX], vec![1], vec![-1]]), [i64::MAX]);
    }
}

fn one_number_of_each_of_four_workers_is_reduced(over: Over) {
    for cluster in jobs(over, 4, 1, &[]) {
        let reduced = |op| reduce_each(&cluster, op, [3.0_f64, -1.0, 7.0, 5.0].map(|value| vec![value]))[0];
        assert_eq!([Op::Sum, Op::Mean, Op::Min, Op::Max].map(reduced), [14.0, 3.5, -1.0, 7.0]);
        // (3 * 3 + 5 * 7 + 2 * 5) / (3 + 5 + 2)
        let mean = reduced(Op::WeightedMean);
        assert!((mean - 5.4_f64).abs() < 1e-12, "{mean}, up to a few roundings");
    }
}

fn half_size_floats_are_added_in_full_size(over: Over) {
    for cluster in jobs(over, 3, 1, &[]) {
        // In f16, 2048 + 1 is 2048 again; added in f32 and rounded once, the two ones count.
        let of = |values: [f64; 3]| values.map(|value| vec![f16::from_f64(value)]);
        assert_eq!(reduce_each(&cluster, Op::Sum, of([2048.0, 1.0, 1.0])), [f16::from_f64(2050.0)]);
        // Their sum is beyond f16, their mean is not.
        assert_eq!(reduce_each(&cluster, Op::Mean, of([60000.0, 60000.0, 60000.0])), [f16::from_f64(60000.0)]);
    }
}

fn what_is_no_number_passes_through(over: Over) {
    for cluster in jobs(over, 2, 1, &[]) {
        let values = [vec![f32::NAN, f32::INFINITY, f32::INFINITY, 1.0], vec![1.0, 1.0, f32::NEG_INFINITY, 1.0]];
        let sums = reduce_each(&cluster, Op::Sum, values.clone());
        assert!(sums[0].is_nan() && sums[1] == f32::INFINITY && sums[2].is_nan() && sums[3] == 2.0, "{sums:?}");
        for op in [Op::Min, Op::Max] {
            assert!(reduce_each(&cluster, op, values.clone())[0].is_nan(), "NaN wins in {op}");
        }
    }
}

fn a_broadcast_gives_everybody_the_bits_of_its_root(over: Over) {
    for cluster in jobs(over, 3, 2, &SMALL_PARTS) {
        let payload = f32::from_bits(0x7FC0_1234);
        let bits = all(&cluster.workers, |engine| {
            let mut tensor = Tensor::new("weights", vec![engine.rank().0 as f32; 50_000]);
            tensor.data[7] = if engine.rank().0 == 2 { payload } else { 0.0 };
            tensor.reduce(engine, Op::Broadcast { root: WorkerId(2) }).unwrap();
            tensor.data.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        for bits in bits {
            assert_eq!(bits[7], payload.to_bits(), "NaN keeps its payload");
            assert!(bits.iter().enumerate().all(|(index, bits)| index == 7 || *bits == 2_f32.to_bits()));
        }
    }
}

fn a_weighted_mean_without_any_weight_fails_on_all(over: Over) {
    for cluster in jobs(over, 2, 1, &[]) {
        let errors = all(&cluster.workers, |engine| {
            let mut tensor = Tensor::new("a", vec![1_f32; 4]);
            tensor.submit(engine, Op::WeightedMean, 0.0, Priority::default()).unwrap().wait(Some(PATIENCE)).unwrap_err()
        });
        assert!(errors.iter().all(|error| error.to_string().contains("weight")), "{errors:?}");
    }
}

fn deterministic_sums_have_the_same_bits_in_every_run(over: Over) {
    let values: Vec<Vec<f32>> = (0..3).map(|rank| random(rank, 40_000)).collect();
    let mut runs = Vec::new();
    let settings = [&SMALL_PARTS[..], &[("deterministic", "true"), ("sum_threads", "4")]].concat();
    let clusters = jobs(over, 3, 2, &settings);
    for (run, cluster) in clusters.iter().flat_map(|cluster| (0..10).map(move |run| (run, cluster))) {
        // Another order of arrival each time: whoever is late waits for the others to have submitted.
        runs.push(all(&cluster.workers, |engine| {
            let rank = engine.rank().0;
            let mut tensor = Tensor::new(&format!("run {run}"), values[rank as usize].clone());
            let handle = if rank == run % 3 {
                engine.arrive(&format!("late {run}"), None).wait(None).unwrap();
                tensor.push_pull(engine, Op::Sum).unwrap()
            } else {
                let handle = tensor.push_pull(engine, Op::Sum).unwrap();
                engine.arrive(&format!("late {run}"), None).wait(None).unwrap();
                handle
            };
            handle.wait(Some(PATIENCE)).unwrap();
            tensor.data.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        }));
    }
    assert!(runs.iter().flatten().all(|bits| *bits == runs[0][0]));
    let in_order = |index: usize| (values[0][index] + values[1][index] + values[2][index]).to_bits();
    assert!(runs[0][0].iter().enumerate().all(|(index, bits)| *bits == in_order(index)), "added by rank");
}

/// A job whose workers all exchange for themselves. Where there is something to exchange, and there are several workers besides the last,
/// also one whose other workers are on one machine, and reduce among themselves first.
fn jobs(over: Over, workers: u32, servers: u32, settings: &[(&str, &str)]) -> Vec<Cluster> {
    let mut jobs = vec![Cluster::with(over, workers, servers, settings)];
    if over != Over::Local && workers > 2 {
        let machines: Vec<&str> = (1..=workers).map(|nth| if nth < workers { "a" } else { "b" }).collect();
        jobs.push(Cluster::on(over, &machines, servers, settings));
    }
    jobs
}

/// Reduces random tensors of several lengths by every operation and compares.
fn floats<T: Element>(cluster: &Cluster, extra_roundings: f64) {
    const LENGTHS: [usize; 4] = [1, 63, 1000, 70_001];
    let ops = [Op::Sum, Op::Mean, Op::WeightedMean, Op::Min, Op::Max];
    for (length, op) in LENGTHS.into_iter().flat_map(|length| ops.map(|op| (length, op))) {
        let values: [Vec<T>; 3] = std::array::from_fn(|rank| random(rank as u64, length));
        let reduced = reduce_each(cluster, op, values.clone());
        for index in 0..length {
            let bounds = oracle(op, [0, 1, 2].map(|rank| values[rank][index]), extra_roundings);
            let found = reduced[index].value();
            assert!(
                bounds.start <= found && found <= bounds.end,
                "{op} of {} {index}: {found} is not in {bounds:?}",
                T::DTYPE
            );
        }
    }
}

/// What the reduction may be: the exact value, rounded once to its type, after additions in a type at least as long as f32; and so many
/// roundings of what lies in between.
fn oracle<T: Element>(op: Op, values: [T; 3], extra_roundings: f64) -> Range<f64> {
    let values = values.map(Element::value);
    let weights = if op == Op::WeightedMean { [0, 1, 2].map(|rank| WEIGHTS[rank]) } else { [1.0; 3] };
    let divisor: f64 = if op == Op::Sum { 1.0 } else { weights.iter().sum() };
    let terms = [0, 1, 2].map(|rank| values[rank] * weights[rank] / divisor);
    let exact = match op {
        Op::Min => {
            return values.iter().copied().fold(f64::MAX, f64::min)..values.iter().copied().fold(f64::MAX, f64::min);
        }
        Op::Max => {
            return values.iter().copied().fold(f64::MIN, f64::max)..values.iter().copied().fold(f64::MIN, f64::max);
        }
        Op::Sum | Op::Mean | Op::WeightedMean | Op::Broadcast { .. } => terms.iter().sum::<f64>(),
    };
    // Each of the up to eight operations (three products, three sums, a division, the oracle's own) may err by half an epsilon.
    let magnitude = terms.iter().map(|term| term.abs()).sum::<f64>();
    let accumulating = T::EPSILON.min(f64::from(f32::EPSILON)) * 4.0 * magnitude;
    // Of a mean, the division as well.
    let between = extra_roundings * T::EPSILON * magnitude;
    let slack = accumulating + between + T::EPSILON / 2.0 * exact.abs() + T::TINY;
    exact - slack..exact + slack
}

/// Reduces `values[rank]` over the workers; checks that all of them got the same.
fn reduce_each<T: Element, const N: usize>(cluster: &Cluster, op: Op, values: [Vec<T>; N]) -> Vec<T> {
    let name = format!("{op} of {} {}", values[0].len(), T::DTYPE);
    let reduced = all(&cluster.workers, |engine| {
        let rank = engine.rank().0 as usize;
        let mut tensor = Tensor::new(&name, values[rank].clone());
        tensor.submit(engine, op, WEIGHTS[rank], Priority::default()).unwrap().wait(Some(PATIENCE)).unwrap();
        tensor.data
    });
    let bits = |elements: &[T]| format!("{elements:?}");
    assert!(reduced.iter().all(|other| bits(other) == bits(&reduced[0])), "all ranks alike");
    reduced.into_iter().next().expect("there is a worker")
}

fn random<T: Element>(seed: u64, length: usize) -> Vec<T> {
    let mut random = Random::new(seed);
    (0..length).map(|_| T::of(random.unit())).collect()
}
