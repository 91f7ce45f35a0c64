//! Copies of many small runs, which go through a buffer of the device.

use std::sync::{Arc, Mutex};

use gradlane_core::engine::{Batch, BatchSubmission, Member, Memory, Submission};
use gradlane_core::types::{DType, Op, Priority, TensorSpec};
use gradlane_tests::cluster::{Cluster, all};
use gradlane_tests::devices::element;
use gradlane_tests::over::Over;
use gradlane_tests::random::Random;
use gradlane_tests::tap::{Fate, Tap};

use super::*;

/// The buffer of a direction.
const BUFFER_BYTES: usize = 2 * MIB;

#[test]
fn small_runs_are_copied_like_single_ones_whatever_their_lengths_and_addresses() {
    // More runs than one launch takes; and together longer than the buffer.
    for (seed, runs, len_max) in [(1, 600, 3), (2, 400, 40), (3, 400, 3_000), (4, 24, 250_000)] {
        let (world, mut random) = (World::new(), Random::new(seed));
        let lens: Vec<usize> = (0..runs).map(|_| random.below(len_max) as usize).collect();
        let bytes: usize = lens.iter().sum();
        let mut places = Vec::new();
        let mut end = 0;
        for len in lens {
            let start = end + random.below(8) as usize;
            end = start + len;
            places.push(start..end);
        }
        random.shuffle(&mut places);
        let address = world.control.allocate(world.ordinal(), end.next_multiple_of(8));
        let memory: Vec<u8> = (0..end).map(|_| random.below(256) as u8).collect();
        let mark = world.produce(address, &memory);
        let there = || places.iter().map(|place| world.memory(address + place.start as u64, place.len())).collect();

        let batches = bytes.div_ceil(BUFFER_BYTES) as u64;
        let (before, mut host) = (world.counter("copies_d2h"), vec![0; bytes]);
        world.copy(Transfer::Out { from: there(), to: region(&mut host) }, &[mark]).unwrap();
        let expected: Vec<u8> = places.iter().flat_map(|place| &memory[place.clone()]).copied().collect();
        assert!(host == expected, "seed {seed}, to the host");
        assert_eq!(world.counter("copies_d2h") - before, batches);

        let mut replaced = memory;
        host.iter_mut().for_each(|byte| *byte = !*byte);
        for place in &places {
            replaced[place.clone()].iter_mut().for_each(|byte| *byte = !*byte);
        }
        let before = world.counter("copies_h2d");
        world.copy(Transfer::In { from: region(&mut host), to: there() }, &[]).unwrap();
        assert_eq!(world.counter("copies_h2d") - before, batches);
        assert!(world.bytes(address, end) == replaced, "seed {seed}, to the device: its neighbours too");
    }
}

#[test]
fn few_runs_and_long_ones_are_copied_by_themselves() {
    let world = World::new();
    let address = world.control.allocate(world.ordinal(), 2 * MIB);
    let mut host = vec![0; MIB];
    for lens in [&[7, 9][..], &[300_000; 3], &[300_000, 7, 9]] {
        let from: Vec<_> = lens.iter().map(|len| world.memory(address, *len)).collect();
        let (copies, bytes) = (from.len() as u64, lens.iter().sum());
        let before = world.counter("copies_d2h");
        world.copy(Transfer::Out { from, to: region(&mut host[..bytes]) }, &[]).unwrap();
        assert_eq!((world.counter("copies_d2h") - before, world.counter("kernels")), (copies, 0), "{lens:?}");
    }
}

#[test]
fn where_kernels_cannot_be_loaded_small_runs_are_copied_one_by_one() {
    let world = World::new();
    let _failing = fakes::failing(&format!("cuModuleLoadData:{}=222", world.device));
    let address = world.control.allocate(world.ordinal(), 40);
    let mark = world.produce(address, &pattern(40, 1));
    let mut host = vec![0; 40];
    let from = (0..4).map(|index| world.memory(address + 10 * index, 10)).collect();
    world.copy(Transfer::Out { from, to: region(&mut host) }, &[mark]).unwrap();
    assert_eq!((host, world.counter("copies_d2h")), (pattern(40, 1), 4));
}

#[test]
fn a_thousand_small_tensors_of_a_job_take_few_launches_and_copies() {
    const TENSORS: usize = 1000;
    let worlds = [World::new(), World::new()];
    let cluster =
        Cluster::with_devices(Over::Quic, 2, 1, &[], |_| Some(Arc::new(CudaDevice::load(&config()).unwrap())));
    let lens = || (0..TENSORS).map(|index| 1 + index % 97);
    for dtype in DType::ALL {
        // Small enough that every type has their sum.
        let elements = |of: &dyn Fn(usize) -> usize| -> Vec<u8> {
            lens().enumerate().flat_map(|(index, len)| element(dtype, of(index) as f64).repeat(len)).collect()
        };
        all(&cluster.workers, |engine| {
            let rank = engine.rank().0 as usize;
            let world = &worlds[rank];
            let own = elements(&|index| index % 31 * (rank + 1));
            let address = world.control.allocate(world.ordinal(), own.len());
            let after = world.produce(address, &own);
            assert!(world.control.consume(world.ordinal(), world.slow, address, own.len()) == own);
            let specs = lens()
                .enumerate()
                .map(|(index, len)| TensorSpec::new(format!("small {dtype} {index}"), dtype, vec![len as u64]));
            let batch = Batch::new(specs.collect()).unwrap();
            let mut at = address;
            let members = lens().map(|len| {
                let bytes = len * dtype.bytes() as usize;
                let memory = |at| Memory::Device { region: world.memory(at, bytes), after: after.clone() };
                let place = at;
                at += bytes as u64;
                let [source, destination] = [place; 2].map(memory);
                Member { source, destination, priority: Priority(0) }
            });
            let counted = || ["kernels", "copies_d2h", "copies_h2d"].map(|name| world.counter(name));
            let (members, before) = (members.collect(), counted());
            let submission = BatchSubmission { batch: &batch, members, op: Op::Sum, weight: 1.0, timeout: None };
            engine.push_pull_all(submission, |_| {}).unwrap().wait(Some(PATIENCE)).unwrap();
            let after = counted();
            assert!(world.bytes(address, own.len()) == elements(&|index| index % 31 * 3), "the sums of {dtype}");
            let [kernels, out, back] = [0, 1, 2].map(|place| after[place] - before[place]);
            // A launch takes 170 runs, and the tensors fill one part.
            assert_eq!((kernels, out, back), (2 * 6, 1, 1), "{dtype}");
        });
    }
}

/// A change of thread costs more than such a push. Now and then the thread of PUSH is awake and comes first, so one push of many by the
/// reaper is enough.
#[test]
fn a_small_tensor_is_pushed_by_the_thread_that_sees_the_end_of_its_copy() {
    const ROUNDS: usize = 20;
    let pushers: Arc<Mutex<Vec<String>>> = Arc::default();
    let worlds = [World::new(), World::new()];
    let cluster = {
        let device = |_| Some(Arc::new(CudaDevice::load(&config()).unwrap()) as Arc<dyn Device>);
        let pushers = Arc::clone(&pushers);
        Cluster::tapped_with_devices(Over::Quic, 2, 1, &[], device, move |transport| {
            let pushers = Arc::clone(&pushers);
            Arc::new(Tap::new(transport, move |_| {
                let name = std::thread::current().name().unwrap_or("?").to_owned();
                pushers.lock().unwrap().push(name);
                Fate::Stay
            }))
        })
    };
    all(&cluster.workers, |engine| {
        let world = &worlds[engine.rank().0 as usize];
        let address = world.control.allocate(world.ordinal(), 4);
        for _ in 0..ROUNDS {
            world.control.produce(world.ordinal(), 0, address, &1_i32.to_le_bytes());
            let after = world.cuda.mark(world.device, 0).unwrap();
            let memory = || Memory::Device { region: world.memory(address, 4), after: after.clone() };
            let tensor = TensorSpec::new("w", DType::I32, vec![1]);
            let (source, destination, priority) = (memory(), memory(), Priority(0));
            let submission =
                Submission { tensor, source, destination, op: Op::Sum, weight: 1.0, priority, timeout: None };
            engine.reduce(submission, Some(PATIENCE)).unwrap();
            assert_eq!(world.bytes(address, 4), 2_i32.to_le_bytes());
        }
    });
    let pushers = pushers.lock().unwrap();
    assert_eq!(pushers.len(), 2 * ROUNDS);
    assert!(pushers.iter().any(|name| name == "gl-reaper"), "{pushers:?}");
    // Whoever finds a sum hands it to the device; no engine of this process has a thread for that.
    let threads = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|thread| {
        // A thread of another test may end meanwhile.
        std::fs::read_to_string(thread.ok()?.path().join("comm")).ok()
    });
    let threads: Vec<String> = threads.map(|name| name.trim_end().to_owned()).collect();
    assert!(threads.iter().any(|name| name == "gl-copyd2h"), "{threads:?}");
    assert!(!threads.iter().any(|name| name == "gl-copyh2d"), "{threads:?}");
}
