//! Copies and fills as a stream executes them.

#![expect(unsafe_code, reason = "bytes are moved between places known by address")]

use std::sync::PoisonError;
use std::time::Duration;

use crate::driver::Device;
use crate::memory::{Keeper, Place};

/// Bytes from one place to another.
pub(crate) struct Copy {
    pub(crate) to: Place,
    pub(crate) from: Place,
    pub(crate) bytes: usize,
}

/// One pattern over all bytes.
pub(crate) struct Fill {
    pub(crate) to: Place,
    /// Of 1 or 4 bytes.
    pub(crate) pattern: Vec<u8>,
    pub(crate) bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Out,
    In,
    Within,
}

impl Copy {
    /// As its name stands in the list of faults.
    pub(crate) fn name(&self) -> &'static str {
        match self.direction() {
            Direction::Out => "DtoH",
            Direction::In => "HtoD",
            Direction::Within => "DtoD",
        }
    }

    pub(crate) fn direction(&self) -> Direction {
        let is_device = |place: &Place| matches!(place.keeper, Keeper::Device(_));
        match (is_device(&self.from), is_device(&self.to)) {
            (true, false) => Direction::Out,
            (false, true) => Direction::In,
            (true, true) | (false, false) => Direction::Within,
        }
    }

    pub(crate) fn is_pageable(&self) -> bool {
        matches!(self.from.keeper, Keeper::Pageable) || matches!(self.to.keeper, Keeper::Pageable)
    }

    /// Copies at the rate of the device, whose engine of this direction does one copy after the other.
    pub(crate) fn execute(&self, device: &Device, rate: f64) {
        let direction = self.direction();
        let engine = device.engines[direction as usize].lock().unwrap_or_else(PoisonError::into_inner);
        let begin = crate::time::now();
        // SAFETY: memory of the device is in the register and held by `keeper`, and so is pinned memory of the host; other memory of the
        // host is what the caller promised, who waits for this copy. The driver's caller sees to it that nobody else writes there.
        unsafe { std::ptr::copy(self.from.host as *const u8, self.to.host as *mut u8, self.bytes) };
        if rate > 0.0 {
            let whole = Duration::from_secs_f64(self.bytes as f64 / rate);
            crate::time::pass(whole.saturating_sub(begin.elapsed()));
        }
        drop(engine);
        let counters = &device.counters;
        let (copies, bytes) = match direction {
            Direction::Out => (&counters.copies_d2h, &counters.bytes_d2h),
            Direction::In => (&counters.copies_h2d, &counters.bytes_h2d),
            Direction::Within => (&counters.copies_d2d, &counters.bytes_d2d),
        };
        copies.add(1);
        bytes.add(self.bytes as u64);
    }
}

impl Fill {
    pub(crate) fn execute(&self) {
        for at in (0..self.bytes).step_by(self.pattern.len()) {
            let length = self.pattern.len().min(self.bytes - at);
            let to = (self.to.host + at) as *mut u8;
            // SAFETY: within the place, which is held by its keeper.
            unsafe { std::ptr::copy_nonoverlapping(self.pattern.as_ptr(), to, length) };
        }
    }
}
