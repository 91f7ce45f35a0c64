//! Streams under capture, and the graphs that come of it.

use cudarc::driver::sys::{CUgraph, CUgraphExec};

use super::*;

/// So that captures of other tests break none of this one: each test is a thread of its own.
const THREAD_LOCAL: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

#[test]
fn what_is_submitted_under_capture_is_not_done() {
    let world = World::new();
    let (device, stream, event) = (world.allocate(4), world.stream(1), world.event());
    assert_eq!(cu!(cuStreamBeginCapture_v2(stream, THREAD_LOCAL)), 0);
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    assert_eq!(cu!(cuStreamIsCapturing(stream, &mut status)), 0);
    assert_eq!(status, sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    assert_eq!(cu!(cuMemsetD8Async(device, 1, 4, stream)), 0);
    assert_eq!(cu!(cuEventRecord(event, stream)), 0);
    let outsider = std::thread::spawn({
        let event = event as usize;
        move || {
            let mut mode = THREAD_LOCAL;
            assert_eq!(cu!(cuThreadExchangeStreamCaptureMode(&mut mode)), 0);
            cu!(cuEventQuery(event as CUevent))
        }
    });
    assert_eq!(outsider.join().expect("no panic"), 907, "an event of a graph");
    let mut graph = null_mut();
    assert_eq!(cu!(cuStreamEndCapture(stream, &mut graph)), 0);
    assert_eq!(world.words(device, 1), [0]);
    // And a call that cannot be captured breaks the capture.
    assert_eq!(cu!(cuStreamBeginCapture_v2(stream, THREAD_LOCAL)), 0);
    assert_eq!(cu!(cuStreamSynchronize(stream)), 900);
    assert_eq!(cu!(cuStreamEndCapture(stream, &mut graph)), 901);
    assert!(graph.is_null(), "what broke has no graph");
    assert_eq!(cu!(cuGraphInstantiateWithFlags(&mut null_mut(), graph, 0)), 1);
}

#[test]
fn the_default_stream_refuses_work_while_a_blocking_stream_is_captured() {
    let world = World::new();
    let (device, blocking, other, event) = (world.allocate(4), world.stream(0), world.stream(1), world.event());
    let status = || {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        cu!(cuStreamIsCapturing(null_mut(), &mut status))
    };
    let mut graph = null_mut();
    assert_eq!(cu!(cuStreamBeginCapture_v2(other, THREAD_LOCAL)), 0);
    assert_eq!(status(), 0);
    assert_eq!(cu!(cuMemsetD8Async(device, 1, 4, null_mut())), 0, "that one is not ordered with it");
    assert_eq!(cu!(cuStreamEndCapture(other, &mut graph)), 0);
    // A question breaks nothing.
    assert_eq!(cu!(cuStreamBeginCapture_v2(blocking, THREAD_LOCAL)), 0);
    assert_eq!(status(), 906);
    assert_eq!(cu!(cuStreamEndCapture(blocking, &mut graph)), 0);
    // Work does.
    assert_eq!(cu!(cuStreamBeginCapture_v2(blocking, THREAD_LOCAL)), 0);
    assert_eq!(cu!(cuEventRecord(event, null_mut())), 906);
    assert_eq!(cu!(cuMemsetD8Async(device, 1, 4, null_mut())), 906);
    assert_eq!(cu!(cuStreamEndCapture(blocking, &mut graph)), 901);
    assert_eq!(status(), 0);
}

#[test]
fn a_graph_does_all_that_was_captured_in_its_order_whenever_it_is_launched() {
    extern "C" fn count(word: *mut c_void) {
        // SAFETY: the test keeps the word until the stream has done this.
        unsafe { *word.cast::<u32>() += 1 };
    }
    let world = World::new();
    let (_, add) = world.kernel();
    let (stream, word, copy) = (world.stream(1), world.allocate(4), world.allocate(4));
    let (first, counted, back) = (world.pinned(4), world.pinned(4), world.pinned(4));
    write(counted, &[0]);
    let exec = world.captured(stream, || {
        assert_eq!(cu!(cuMemcpyHtoDAsync_v2(word, first, 4, stream)), 0);
        assert_eq!(launch_in(stream, add, (1, 1), word, 2), 0);
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(copy, word, 4, stream)), 0);
        assert_eq!(cu!(cuMemsetD32Async(word, 7, 1, stream)), 0);
        let function: unsafe extern "C" fn(*mut c_void) = count;
        assert_eq!(cu!(cuLaunchHostFunc(stream, Some(function), counted)), 0);
    });
    assert_eq!(world.words(word, 1), [0], "it is only captured");
    for launches in 1..=3 {
        // What the graph reads is what is there when it runs.
        write(first, &[10 * launches]);
        assert_eq!(cu!(cuGraphLaunch(exec, stream)), 0);
        assert_eq!(cu!(cuStreamSynchronize(stream)), 0);
        assert_eq!((world.words(copy, 1), world.words(word, 1)), (vec![10 * launches + 2], vec![7]));
        assert_eq!(read(counted, 1), [launches]);
    }
    // It is one step of its stream, behind what comes before it there and before what comes after it.
    world.control.lag(stream as u64, LAG_US);
    world.control.produce(world.device, stream as u64, word, &bytes(&[1]));
    let exec = world.captured(stream, || assert_eq!(launch_in(stream, add, (1, 1), word, 1), 0));
    for _ in 0..2 {
        assert_eq!(cu!(cuGraphLaunch(exec, stream)), 0);
    }
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(back, word, 4, stream)), 0);
    assert_eq!(cu!(cuStreamQuery(stream)), 600, "what is slow is still under way");
    assert_eq!(cu!(cuStreamSynchronize(stream)), 0);
    assert_eq!(read(back, 1), [3]);
}

#[test]
fn launches_of_one_graph_follow_each_other_on_whatever_streams() {
    let world = World::new();
    let (_, add) = world.kernel();
    let (captured, slow, other) = (world.stream(1), world.stream(1), world.stream(1));
    let (first, second) = (world.allocate(4), world.allocate(4));
    let exec = world.captured(captured, || {
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(second, first, 4, captured)), 0);
        assert_eq!(launch_in(captured, add, (1, 1), first, 1), 0);
    });
    world.control.lag(slow as u64, LAG_US);
    assert_eq!(cu!(cuGraphLaunch(exec, slow)), 0);
    assert_eq!(cu!(cuGraphLaunch(exec, other)), 0);
    assert_eq!(cu!(cuStreamSynchronize(other)), 0);
    assert_eq!((world.words(first, 1), world.words(second, 1)), (vec![2], vec![1]));
    // A launch into a stream under capture is part of that capture.
    let twice = world.captured(captured, || {
        assert_eq!(cu!(cuGraphLaunch(exec, captured)), 0);
        assert_eq!(cu!(cuGraphLaunch(exec, captured)), 0);
    });
    assert_eq!(world.words(first, 1), [2]);
    assert_eq!(cu!(cuGraphLaunch(twice, other)), 0);
    assert_eq!(cu!(cuStreamSynchronize(other)), 0);
    assert_eq!(world.words(first, 1), [4]);
}

#[test]
fn streams_that_wait_for_a_capture_belong_to_its_graph_and_must_be_waited_for() {
    let world = World::new();
    let (_, add) = world.kernel();
    let (stream, side, word) = (world.stream(1), world.stream(1), world.allocate(4));
    let (forked, joined) = (world.event(), world.event());
    let fork = || {
        assert_eq!(cu!(cuMemsetD32Async(word, 5, 1, stream)), 0);
        assert_eq!(cu!(cuEventRecord(forked, stream)), 0);
        assert_eq!(cu!(cuStreamWaitEvent(side, forked, 0)), 0);
        assert_eq!(launch_in(side, add, (1, 1), word, 10), 0);
        assert_eq!(cu!(cuEventRecord(joined, side)), 0);
    };
    let exec = world.captured(stream, || {
        fork();
        assert_eq!(cu!(cuStreamWaitEvent(stream, joined, 0)), 0);
        assert_eq!(launch_in(stream, add, (1, 1), word, 100), 0);
    });
    assert_eq!(cu!(cuGraphLaunch(exec, side)), 0, "the stream is itself again");
    assert_eq!(cu!(cuStreamSynchronize(side)), 0);
    assert_eq!(world.words(word, 1), [115]);
    let mut graph: CUgraph = null_mut();
    assert_eq!(cu!(cuStreamBeginCapture_v2(stream, THREAD_LOCAL)), 0);
    fork();
    assert_eq!(cu!(cuStreamEndCapture(stream, &mut graph)), 904, "nobody waits for the side");
    assert!(graph.is_null());
    assert_eq!(world.words(word, 1), [115]);
}

#[test]
fn a_graph_that_is_gone_or_elsewhere_or_whose_memory_was_freed_is_refused() {
    let world = World::new();
    let (stream, word, kept) = (world.stream(1), world.allocate(4), world.allocate(4));
    let of = |address| world.captured(stream, || assert_eq!(cu!(cuMemsetD32Async(address, 1, 1, stream)), 0));
    let (gone, late, good) = (of(kept), of(word), of(kept));
    world.control.lag(stream as u64, LAG_US);
    assert_eq!(cu!(cuGraphLaunch(gone, stream)), 0);
    assert_eq!(cu!(cuGraphExecDestroy(gone)), 0);
    assert_eq!(cu!(cuStreamSynchronize(stream)), 0);
    assert_eq!(world.words(kept, 1), [1], "what was launched is done");
    assert_eq!(cu!(cuGraphLaunch(gone, stream)), 1);
    assert_eq!(cu!(cuGraphExecDestroy(gone)), 1);
    let other = World::new();
    let there = other.stream(1);
    assert_eq!(cu!(cuGraphLaunch(good, there)), 1, "a stream of another device");
    assert_eq!(cu!(cuCtxSetCurrent(world.context)), 0);
    assert_eq!(cu!(cuMemFree_v2(word)), 0);
    assert_eq!(world.control.counter(world.device, "released_in_use"), 0, "a graph keeps no memory");
    assert_eq!(cu!(cuGraphLaunch(late, stream)), 700);
    assert_eq!(cu!(cuStreamSynchronize(stream)), 700);
}

impl World {
    /// What a stream captures while `submit` runs, ready to be launched. Only this thread can break it, because others capture too.
    fn captured(&self, stream: CUstream, submit: impl FnOnce()) -> CUgraphExec {
        let (mut graph, mut exec) = (null_mut(), null_mut());
        assert_eq!(cu!(cuStreamBeginCapture_v2(stream, THREAD_LOCAL)), 0);
        submit();
        assert_eq!(cu!(cuStreamEndCapture(stream, &mut graph)), 0);
        assert_eq!(cu!(cuGraphInstantiateWithFlags(&mut exec, graph, 0)), 0);
        assert_eq!(cu!(cuGraphDestroy(graph)), 0, "what runs it is not the graph");
        exec
    }
}
