//! Streams, host functions, and capture.

use std::ffi::{c_int, c_uint, c_void};

use super::{exported, get, put};
use crate::capture;
use crate::codes::Code;
use crate::copies::Fill;
use crate::event::Last;
use crate::graph::Graph;
use crate::stream::{Call, Step, Stream, Work};

exported! {
    fn cuStreamCreate(stream: *mut usize, flags: c_uint) |driver| {
        if flags > Stream::NON_BLOCKING {
            return Err(Code::INVALID_VALUE);
        }
        put(stream, driver.create_stream(driver.current()?, false, flags, 0))
    }
    fn cuStreamCreateWithPriority(stream: *mut usize, flags: c_uint, priority: c_int) |driver| {
        if flags > Stream::NON_BLOCKING {
            return Err(Code::INVALID_VALUE);
        }
        // What is out of range is brought into it, as the manual says.
        put(stream, driver.create_stream(driver.current()?, false, flags, priority.clamp(-5, 0)))
    }
    fn cuStreamDestroy_v2(stream: usize) |driver| {
        let mut tables = driver.tables();
        let destroyed = tables.streams.remove(&stream).ok_or_else(|| driver.no_handle(&tables, stream, "stream"))?;
        drop(tables);
        destroyed.close();
        driver.devices()[destroyed.device].counters.live_streams.sub(1);
        Ok(())
    }
    fn cuStreamQuery(stream: usize) |driver| {
        let found = driver.stream(stream)?;
        driver.captures.refuse(stream)?;
        driver.captures.forbid()?;
        driver.devices()[found.device].healthy()?;
        if found.is_idle() { Ok(()) } else { Err(Code::NOT_READY) }
    }
    fn cuStreamSynchronize(stream: usize) |driver| { driver.synchronize(stream) }
    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) |driver| {
        let found = driver.stream(stream)?;
        driver.devices()[found.device].healthy()?;
        let event = driver.event(event)?;
        match event.last() {
            Last::Never => Ok(()),
            Last::Captured(capture) => driver.captures.join(stream, capture),
            Last::In(point) => {
                // A graph cannot wait for what is outside of it.
                driver.captures.refuse(stream)?;
                if point.reached().is_none() {
                    driver.submit(stream, &found, Step::Wait(point));
                }
                Ok(())
            }
        }
    }
    fn cuStreamGetPriority(stream: usize, priority: *mut c_int) |driver| {
        put(priority, driver.stream_to_look_at(stream)?.priority)
    }
    fn cuStreamGetFlags(stream: usize, flags: *mut c_uint) |driver| { put(flags, driver.stream_to_look_at(stream)?.flags) }
    fn cuStreamGetCtx(stream: usize, context: *mut usize) |driver| {
        let device = driver.stream_to_look_at(stream)?.device;
        put(context, driver.devices()[device].context())
    }
    fn cuLaunchHostFunc(stream: usize, function: Option<extern "C" fn(*mut c_void)>, argument: usize) |driver| {
        let found = driver.stream(stream)?;
        driver.devices()[found.device].healthy()?;
        let function = function.ok_or(Code::INVALID_VALUE)?;
        driver.take_time();
        driver.submit(stream, &found, Step::Work(Work::Call(Call { function, argument })));
        Ok(())
    }
    fn cuStreamWriteValue32_v2(stream: usize, address: u64, value: c_uint, _flags: c_uint) |driver| {
        let found = driver.stream_here(stream)?;
        if !address.is_multiple_of(4) {
            return Err(Code::INVALID_VALUE);
        }
        let memory = driver.memory();
        let host = usize::try_from(address).map_err(|_| Code::INVALID_VALUE)?;
        let to = memory.device_place(address, 4).or_else(|_| memory.pinned_place(host, 4))?;
        drop(memory);
        let fill = Fill { to, pattern: value.to_ne_bytes().to_vec(), bytes: 4 };
        driver.submit(stream, &found, Step::Work(Work::Fill(fill)));
        Ok(())
    }
    fn cuStreamIsCapturing(stream: usize, status: *mut c_uint) |driver| {
        // A question, which breaks no capture.
        let found = driver.stream_to_look_at(stream)?;
        driver.refuse_default(&found, false)?;
        put(status, status_of(driver.captures.of(stream)))
    }
    fn cuStreamGetCaptureInfo_v2(
        stream: usize, status: *mut c_uint, id: *mut u64, graph: *mut usize, dependencies: *mut usize, count: *mut usize,
    ) |driver| {
        driver.stream(stream)?;
        let capture = driver.captures.of(stream);
        put(status, status_of(capture))?;
        let optional = |place: *mut usize| if place.is_null() { Ok(()) } else { put(place, 0) };
        optional(graph)?;
        optional(dependencies)?;
        optional(count)?;
        match capture {
            Some((number, _)) if !id.is_null() => put(id, number),
            _ => Ok(()),
        }
    }
    fn cuStreamBeginCapture_v2(stream: usize, mode: c_uint) |driver| {
        driver.stream(stream)?;
        if stream <= 1 {
            // The legacy default stream cannot be captured.
            return Err(Code::CAPTURE_UNSUPPORTED);
        }
        driver.captures.begin(stream, mode)
    }
    fn cuStreamEndCapture(stream: usize, graph: *mut usize) |driver| {
        let device = driver.stream(stream)?.device;
        put(graph, 0)?;
        let nodes = driver.captures.end(stream)?.into();
        let mut tables = driver.tables();
        let handle = tables.handle();
        tables.graphs.insert(handle, Graph { device, nodes });
        put(graph, handle)
    }
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) |_| { put(mode, capture::exchange(get(mode)?)?) }
}

fn status_of(capture: Option<(u64, bool)>) -> c_uint {
    match capture {
        None => 0,
        Some((_, false)) => 1,
        Some((_, true)) => 2,
    }
}
