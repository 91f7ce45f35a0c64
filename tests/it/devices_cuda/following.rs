//! Streams of the caller that wait for work of the engine.

use std::sync::Arc;

use gradlane_core::engine::{Memory, Submission};
use gradlane_core::types::{DType, Op, Priority, TensorSpec};
use gradlane_tests::cluster::{Cluster, all};
use gradlane_tests::over::Over;

use super::*;

#[test]
fn a_stream_of_the_caller_waits_for_a_copy_that_is_issued_and_not_done() {
    let world = World::new();
    let address = world.control.allocate(world.ordinal(), MIB);
    let (data, mut host) = (pattern(MIB, 6), world.lease(MIB));
    host.copy_from_slice(&data);
    let mark = world.produce_late(address, &pattern(MIB, 2));
    // SAFETY: `host` outlives the copy, which is waited for.
    let lent = unsafe { Region::new(host.as_mut_ptr(), MIB) };
    let ((told, issued), (sender, done)) = (unbounded(), unbounded());
    let transfer = Transfer::In { from: lent, to: vec![world.memory(address, MIB)] };
    let on_issue = OnIssue::new(move |mark| told.send(mark).unwrap());
    world.cuda.copy(transfer, &[mark], on_issue, Done::new(move |result| sender.send(result).unwrap()));
    let after = issued.recv_timeout(PATIENCE).expect("told at once");
    assert_eq!(after.device(), Some(world.device));
    let stream = world.control.user_stream(world.ordinal());
    after.precede(stream).unwrap();
    assert!(world.control.consume(world.ordinal(), stream, address, MIB) == data, "the stream did not wait");
    done.recv_timeout(PATIENCE).expect("a copy ends").unwrap();
    let error = after.precede(0xdead_0000).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    world.control.begin_capture(stream);
    assert!(matches!(after.precede(stream), Err(Error::FailedPrecondition { .. })));
    world.control.end_capture(stream);
    assert_eq!(after.precede(stream), Ok(()), "the capture survived");
}

/// Some drivers and devices have no operations by which a stream waits for a word of memory or writes one.
#[test]
fn streams_of_the_caller_wait_for_sums_where_streams_cannot_write_memory() {
    const FLOATS: usize = 1000;
    let _failing = fakes::failing("cuStreamWriteValue32_v2=801");
    let worlds = [World::new(), World::new()];
    let cluster =
        Cluster::with_devices(Over::Quic, 2, 1, &[], |_| Some(Arc::new(CudaDevice::load(&config()).unwrap())));
    all(&cluster.workers, |engine| {
        let world = &worlds[engine.rank().0 as usize];
        let own: Vec<u8> = [1.0 + engine.rank().0 as f32; FLOATS].into_iter().flat_map(f32::to_le_bytes).collect();
        let address = world.control.allocate(world.ordinal(), own.len());
        let after = world.produce(address, &own);
        let memory = || Memory::Device { region: world.memory(address, own.len()), after: after.clone() };
        let submission = Submission {
            tensor: TensorSpec::new("w", DType::F32, vec![FLOATS as u64]),
            source: memory(),
            destination: memory(),
            op: Op::Sum,
            weight: 1.0,
            priority: Priority(0),
            timeout: None,
        };
        let handle = engine.push_pull(submission, |_| {}).unwrap();
        let stream = world.control.user_stream(world.ordinal());
        handle.follow(Some(PATIENCE), |_| Some(stream)).unwrap();
        let sum = world.control.consume(world.ordinal(), stream, address, own.len());
        assert!(sum == 3_f32.to_le_bytes().repeat(FLOATS), "the stream waited for the sum");
        handle.wait(Some(PATIENCE)).unwrap();
    });
    assert_eq!(worlds[0].control.calls("cuStreamWriteValue32_v2"), 0, "nobody tried");
}
