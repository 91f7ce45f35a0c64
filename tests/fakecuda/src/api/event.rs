//! Events.

use std::ffi::c_uint;
use std::sync::Arc;

use super::{exported, put};
use crate::codes::{Code, Outcome};
use crate::driver::Driver;
use crate::event::{Event, Last};

exported! {
    fn cuEventCreate(event: *mut usize, flags: c_uint) |driver| {
        let known = Event::BLOCKING_SYNC | Event::DISABLE_TIMING | Event::INTERPROCESS;
        let untimed = flags & Event::INTERPROCESS == 0 || flags & Event::DISABLE_TIMING != 0;
        if flags & !known != 0 || !untimed {
            return Err(Code::INVALID_VALUE);
        }
        let device = driver.current()?;
        let mut tables = driver.tables();
        let handle = tables.handle();
        tables.events.insert(handle, Arc::new(Event::new(device.ordinal, flags)));
        device.counters.live_events.add(1);
        put(event, handle)
    }
    fn cuEventDestroy_v2(event: usize) |driver| {
        let mut tables = driver.tables();
        let destroyed = tables.events.remove(&event).ok_or_else(|| driver.no_handle(&tables, event, "event"))?;
        drop(tables);
        driver.devices()[destroyed.device].counters.live_events.sub(1);
        Ok(())
    }
    fn cuEventRecord(event: usize, stream: usize) |driver| {
        let found = driver.stream(stream)?;
        let event = driver.event(event)?;
        driver.devices()[found.device].healthy()?;
        if event.device != found.device {
            return Err(Code::INVALID_HANDLE);
        }
        driver.record(&event, stream, &found);
        Ok(())
    }
    fn cuEventQuery(event: usize) |driver| {
        let event = driver.event(event)?;
        driver.captures.forbid()?;
        driver.devices()[event.device].healthy()?;
        match event.last() {
            Last::Never => Ok(()),
            Last::Captured(_) => Err(Code::CAPTURED_EVENT),
            Last::In(point) if point.reached().is_some() => driver.devices()[event.device].healthy(),
            Last::In(_) => Err(Code::NOT_READY),
        }
    }
    fn cuEventSynchronize(event: usize) |driver| {
        let event = driver.event(event)?;
        driver.captures.forbid()?;
        let device = &driver.devices()[event.device];
        device.counters.waits.add(1);
        match event.last() {
            Last::Never => {}
            Last::Captured(_) => return Err(Code::CAPTURED_EVENT),
            Last::In(point) => point.wait(),
        }
        device.healthy()
    }
    fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) |driver| {
        put(milliseconds, elapsed(driver, start, end)?)
    }
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: usize, end: usize) |driver| {
        put(milliseconds, elapsed(driver, start, end)?)
    }
}

fn elapsed(driver: &Driver, start: usize, end: usize) -> Outcome<f32> {
    let (start, end) = (driver.event(start)?, driver.event(end)?);
    if !start.is_timed() || !end.is_timed() {
        return Err(Code::INVALID_HANDLE);
    }
    let (Last::In(start), Last::In(end)) = (start.last(), end.last()) else { return Err(Code::INVALID_HANDLE) };
    let (start, end) = (start.reached().ok_or(Code::NOT_READY)?, end.reached().ok_or(Code::NOT_READY)?);
    Ok((end.saturating_duration_since(start).as_secs_f64() * 1e3) as f32)
}
