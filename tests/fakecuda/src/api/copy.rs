//! Copies and fills.
//!
//! A copy between a device and memory of the host that is not pinned has ended when the call returns; others are only put into the stream.

use std::ffi::{c_uchar, c_uint};

use super::exported;
use crate::codes::{Code, Outcome};
use crate::copies::{Copy, Direction, Fill};
use crate::driver::Driver;
use crate::memory::{Keeper, Place};
use crate::stream::{Step, Work};

/// The legacy default stream.
const DEFAULT: usize = 0;

exported! {
    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, stream: usize) |driver| {
        copy(driver, End::Host(to), End::Device(from), bytes, stream).map(drop)
    }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, stream: usize) |driver| {
        copy(driver, End::Device(to), End::Host(from), bytes, stream).map(drop)
    }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) |driver| {
        copy(driver, End::Device(to), End::Device(from), bytes, stream).map(drop)
    }
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize) |driver| {
        copy(driver, End::Either(to), End::Either(from), bytes, stream).map(drop)
    }
    fn cuMemcpyDtoH_v2(to: usize, from: u64, bytes: usize) |driver| {
        finish(driver, copy(driver, End::Host(to), End::Device(from), bytes, DEFAULT)?)
    }
    fn cuMemcpyHtoD_v2(to: u64, from: usize, bytes: usize) |driver| {
        finish(driver, copy(driver, End::Device(to), End::Host(from), bytes, DEFAULT)?)
    }
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) |driver| {
        finish(driver, copy(driver, End::Device(to), End::Device(from), bytes, DEFAULT)?)
    }
    fn cuMemcpy(to: u64, from: u64, bytes: usize) |driver| {
        finish(driver, copy(driver, End::Either(to), End::Either(from), bytes, DEFAULT)?)
    }
    fn cuMemcpyPeerAsync(
        to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize, stream: usize,
    ) |driver| {
        let (to_device, from_device) = (driver.of_context(to_context)?.ordinal, driver.of_context(from_context)?.ordinal);
        copy(driver, End::Peer(to, to_device), End::Peer(from, from_device), bytes, stream).map(drop)
    }
    fn cuMemsetD8Async(to: u64, value: c_uchar, count: usize, stream: usize) |driver| {
        fill(driver, to, &[value], count, stream)
    }
    fn cuMemsetD8_v2(to: u64, value: c_uchar, count: usize) |driver| { fill(driver, to, &[value], count, DEFAULT) }
    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: usize) |driver| {
        fill(driver, to, &value.to_ne_bytes(), count, stream)
    }
    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) |driver| {
        fill(driver, to, &value.to_ne_bytes(), count, DEFAULT)
    }
}

/// One side of a copy.
#[derive(Clone, Copy)]
enum End {
    Host(usize),
    /// Of the stream's device.
    Device(u64),
    /// Of the device that is named.
    Peer(u64, usize),
    /// What the address says.
    Either(u64),
}

/// The copy is in the stream, and if memory of the host is not pinned it has ended.
fn copy(driver: &'static Driver, to: End, from: End, bytes: usize, stream: usize) -> Outcome<usize> {
    let found = driver.stream_here(stream)?;
    if bytes == 0 {
        return Ok(stream);
    }
    let copy =
        Copy { to: to.place(driver, found.device, bytes)?, from: from.place(driver, found.device, bytes)?, bytes };
    let waits = copy.is_pageable() && copy.direction() != Direction::Within;
    if waits && driver.captures.of(stream).is_some() {
        driver.captures.refuse(stream)?;
    }
    driver.take_time();
    driver.submit(stream, &found, Step::Work(Work::Copy(copy)));
    if waits {
        let device = &driver.devices()[found.device];
        device.counters.pageable_copies.add(1);
        found.wait(found.submitted());
        device.healthy()?;
    }
    Ok(stream)
}

/// Waits for the stream, as the calls without `Async` do.
fn finish(driver: &Driver, stream: usize) -> Outcome {
    driver.captures.forbid()?;
    driver.synchronize(stream)
}

fn fill(driver: &Driver, to: u64, pattern: &[u8], count: usize, stream: usize) -> Outcome {
    let found = driver.stream_here(stream)?;
    let bytes = count.checked_mul(pattern.len()).ok_or(Code::INVALID_VALUE)?;
    if bytes == 0 {
        return Ok(());
    }
    if !to.is_multiple_of(pattern.len() as u64) {
        return Err(Code::INVALID_VALUE);
    }
    let to = End::Device(to).place(driver, found.device, bytes)?;
    driver.submit(stream, &found, Step::Work(Work::Fill(Fill { to, pattern: pattern.to_vec(), bytes })));
    Ok(())
}

impl End {
    fn place(self, driver: &Driver, device: usize, bytes: usize) -> Outcome<Place> {
        let memory = driver.memory();
        let of = |address: u64, only: usize| {
            let place = memory.device_place(address, bytes)?;
            match &place.keeper {
                Keeper::Device(allocation) if allocation.device == only => Ok(place),
                Keeper::Device(_) | Keeper::Pinned(_) | Keeper::Bytes(_) | Keeper::Pageable => Err(Code::INVALID_VALUE),
            }
        };
        match self {
            Self::Host(address) => memory.host_place(address, bytes),
            Self::Device(address) => of(address, device),
            Self::Peer(address, owner) => of(address, owner),
            Self::Either(address) if memory.around(address).is_some() => of(address, device),
            Self::Either(address) => {
                memory.host_place(usize::try_from(address).map_err(|_| Code::INVALID_VALUE)?, bytes)
            }
        }
    }
}
