//! Faults of a device that come after a stream was made to wait for a sum of a server.

use std::sync::Arc;

use gradlane_core::engine::{Engine, Memory, Submission};
use gradlane_core::types::{DType, Op, Priority, TensorSpec};
use gradlane_tests::cluster::{Cluster, all};
use gradlane_tests::over::Over;

use super::*;

#[test]
fn settling_tells_the_fault_and_the_tensor() {
    after_the_fault(|engine, _| engine.settle(Some(PATIENCE)).unwrap_err());
}

#[test]
fn the_next_submission_tells_the_fault_and_the_tensor_of_the_last_one() {
    after_the_fault(|engine, world| {
        let address = world.control.allocate(world.ordinal(), 4);
        let memory = || Memory::Device { region: world.memory(address, 4), after: Mark::Reached };
        engine.push_pull(sum("next", 1, [memory(), memory()]), |_| {}).unwrap_err()
    });
}

/// What is told after a fault of the device, behind a stream that waits for a sum.
fn after_the_fault(told: impl Fn(&Engine, &World) -> Error + Sync) {
    let worlds = [World::new(), World::new()];
    let cluster =
        Cluster::with_devices(Over::Quic, 2, 1, &[], |_| Some(Arc::new(CudaDevice::load(&config()).unwrap())));
    all(&cluster.workers, |engine| {
        let world = &worlds[engine.rank().0 as usize];
        let [from, to] = [(); 2].map(|()| world.control.allocate(world.ordinal(), 4 * LEN));
        let memory = |address, after| Memory::Device { region: world.memory(address, 4 * LEN), after };
        let all_at_once = [memory(from, Mark::Reached), memory(to, Mark::Reached)];
        engine.reduce(sum("warm up", LEN, all_at_once), Some(PATIENCE)).unwrap();

        // The sum waits on the device for the caller's work on its memory.
        world.control.lag(world.slow, 20 * LAG_US);
        let after = world.produce(to, &pattern(4 * LEN, 1));
        let memory = [memory(from, Mark::Reached), memory(to, after)];
        let handle = engine.push_pull(sum("doomed", LEN, memory), |_| {}).unwrap();
        let stream = world.control.user_stream(world.ordinal());
        handle.follow(Some(PATIENCE), |_| Some(stream)).unwrap();
        assert_eq!(handle.outcome(), None, "the stream waits, and no thread");
        world.control.fail_device(world.ordinal(), 700);
        eventually("the fault", || handle.outcome()).unwrap_err();
        let error = told(engine, world);
        assert!(error.to_string().contains("(tensor doomed)") && error.code() == Code::Aborted, "{error}");
    });
}

/// Floats per tensor.
const LEN: usize = 1000;

fn sum(name: &str, len: usize, [source, destination]: [Memory; 2]) -> Submission {
    let tensor = TensorSpec::new(name, DType::F32, vec![len as u64]);
    Submission { tensor, source, destination, op: Op::Sum, weight: 1.0, priority: Priority(0), timeout: None }
}
