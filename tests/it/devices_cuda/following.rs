//! Streams of the caller that wait for work of the engine.

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
