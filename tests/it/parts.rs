//! How tensors become messages: small ones share parts, large ones are spread over the servers, and nothing is copied on the way.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use gradlane_core::engine::{Engine, Handle};
use gradlane_core::pipeline::models;
use gradlane_core::types::{Op, TensorSpec};
use gradlane_core::wire::header::HEADER_BYTES;
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor, all};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;

matrix! {
    [over_shm, over_quic]:
        a_thousand_small_tensors_travel_in_few_messages,
        a_round_costs_two_headers_a_part_and_names_nothing;
    [locally, over_shm, over_quic]:
        fusion_and_size_of_parts_give_the_same_sums;
}

fn a_thousand_small_tensors_travel_in_few_messages(over: Over) {
    const TENSORS: u64 = 1000;
    const LEN: usize = 1024;
    let cluster = Cluster::start(over, 2, 3);
    for round in 0..2 {
        let sums = all(&cluster.workers, |engine| {
            let rank = engine.rank().0 as f32;
            let tensor = |index| Tensor::new(&format!("t{index}"), vec![index as f32 + rank; LEN]);
            let mut tensors: Vec<Tensor> = (0..TENSORS).map(tensor).collect();
            engine.declare(tensors.iter().map(|tensor| tensor.spec.clone()).collect(), true, Some(PATIENCE)).unwrap();
            reduce_all(engine, &mut tensors);
            tensors.iter().map(|tensor| tensor.data[LEN - 1]).collect::<Vec<_>>()
        });
        assert!(sums.iter().all(|sums| sums.iter().enumerate().all(|(index, sum)| *sum == 2.0 * index as f32 + 1.0)));
        // 4,000 KiB fit in one part of 4 MiB; a part a server and a partly filled one may be made of them, not more.
        for engine in &cluster.workers {
            let pushes = engine.metrics().pushes.load(Relaxed);
            assert!(pushes <= 4 * (round + 1), "{pushes} pushes in {} rounds", round + 1);
        }
    }
}

fn fusion_and_size_of_parts_give_the_same_sums(over: Over) {
    let lengths = [10_usize, 3000, 5000, 40_000, 7, 16_384];
    let sums = [("64 KiB", "0"), ("64 KiB", "32 KiB"), ("4 MiB", "256 KiB")].map(|(partition, fuse)| {
        let cluster = Cluster::with(over, 2, 2, &[("partition_bytes", partition), ("fuse_bytes", fuse)]);
        let sums = all(&cluster.workers, |engine| {
            let of = |index: usize, len: usize| (0..len).map(|i| ((i + index) % 97) as f32 * 0.1).collect();
            let tensor = |(index, len)| Tensor::new(&format!("t{index}"), of(index, len));
            let mut tensors: Vec<Tensor> = lengths.into_iter().enumerate().map(tensor).collect();
            engine.declare(tensors.iter().map(|tensor| tensor.spec.clone()).collect(), true, Some(PATIENCE)).unwrap();
            reduce_all(engine, &mut tensors);
            tensors.into_iter().map(|tensor| tensor.data).collect::<Vec<_>>()
        });
        sums.into_iter().next().expect("there is a worker")
    });
    assert!(sums[0] == sums[1] && sums[1] == sums[2]);
}

#[test]
fn a_large_tensor_loads_all_servers_alike_and_is_never_copied_over_a_network() {
    const BYTES: u64 = 64 << 20;
    let cluster = Cluster::start(Over::Quic, 1, 3);
    let engine = &cluster.workers[0];
    let mut tensor = Tensor::new("embedding", (0..BYTES / 4).map(|index| index as f32).collect());
    tensor.reduce(engine, Op::Sum).unwrap();
    assert!(tensor.data.iter().enumerate().all(|(index, sum)| *sum == index as f32));

    for server in cluster.embedded.servers() {
        let share = server.stats().received_bytes() as f64 / (BYTES as f64 / 3.0);
        assert!((0.95..=1.05).contains(&share), "{share} of an equal share");
        assert_eq!(server.stats().sent_bytes(), server.stats().received_bytes());
    }
    let metrics = engine.metrics();
    assert_eq!((metrics.push_bytes.load(Relaxed), metrics.pull_bytes.load(Relaxed)), (BYTES, BYTES));
    assert_eq!(metrics.copied_bytes(), 0);
    assert_eq!(metrics.repeats.load(Relaxed), 0);
}

fn a_round_costs_two_headers_a_part_and_names_nothing(over: Over) {
    let cluster = Cluster::start(over, 1, 1);
    let engine = &cluster.workers[0];
    let mut tensor = Tensor::new(&"a long name ".repeat(20), vec![1_f32; 100]);
    for round in 1..=3 {
        tensor.reduce(engine, Op::Sum).unwrap();
        assert_eq!(engine.metrics().header_bytes.load(Relaxed), round * 2 * HEADER_BYTES as u64);
    }
}

#[test]
fn the_bytes_of_a_real_model_arrive_evenly() {
    let cluster = Cluster::start(Over::Quic, 1, 3);
    let engine = &cluster.workers[0];
    let specs = models::resnet50();
    let bytes: u64 = specs.iter().map(|spec| spec.bytes().unwrap()).sum();
    engine.declare(specs.clone(), true, Some(PATIENCE)).unwrap();
    let tensor = |spec: TensorSpec| {
        let elements = spec.shape.iter().product::<u64>() as usize;
        Tensor::shaped(&spec.name, spec.shape, vec![1_f32; elements])
    };
    let mut tensors: Vec<Tensor> = specs.into_iter().map(tensor).collect();
    reduce_all(engine, &mut tensors);
    for server in cluster.embedded.servers() {
        let share = server.stats().received_bytes() as f64 / (bytes as f64 / 3.0);
        assert!((0.9..=1.1).contains(&share), "{share} of an equal share");
    }
}

#[test]
fn every_worker_sees_one_even_layout_of_large_models() {
    for (model, specs) in [("vgg16", models::vgg16()), ("bert-large", models::bert_large())] {
        let cluster = Cluster::start(Over::Quic, 2, 3);
        let layouts = all(&cluster.workers, |engine| {
            engine.declare(specs.clone(), true, Some(PATIENCE)).unwrap();
            engine.layout()
        });
        assert_eq!(layouts[0], layouts[1]);
        let mut loads: BTreeMap<&str, u64> = BTreeMap::new();
        for part in layouts[0].lines() {
            // `part fc.weight/0 float32 4194304 B on server 1 | …`
            let words: Vec<&str> = part.split(' ').collect();
            *loads.entry(words[7]).or_default() += words[3].parse::<u64>().unwrap();
        }
        let bytes: u64 = specs.iter().map(|spec| spec.bytes().unwrap()).sum();
        assert_eq!(loads.values().sum::<u64>(), bytes, "{model}: every byte has its place");
        assert!(loads.values().all(|load| *load as f64 / (bytes as f64 / 3.0) <= 1.1), "{model}: {loads:?}");
    }
}

fn reduce_all(engine: &Engine, tensors: &mut [Tensor]) {
    let handles: Vec<Handle> = tensors.iter_mut().map(|tensor| tensor.push_pull(engine, Op::Sum).unwrap()).collect();
    handles.into_iter().for_each(|handle| handle.wait(Some(PATIENCE)).unwrap());
}
