//! The libraries that stand for CUDA and NCCL. Cargo builds them because this crate depends on theirs.
//!
//! A process has one driver: tests that share a process take devices of their own here, and turns where they disturb all of it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fakecuda::Control;

/// The CUDA driver over host memory, for the setting `cuda_lib`; [`fakecuda::Control`] steers it.
pub fn fakecuda() -> PathBuf {
    fakecuda::library()
}

/// NCCL over host memory, for the setting `nccl_lib`.
pub fn fakenccl() -> PathBuf {
    fakenccl::library()
}

/// Devices that a test has had and left well.
static FREE: Mutex<Vec<u16>> = Mutex::new(Vec::new());

/// The driver, and the ordinal of one of its devices that no other test of this process has had: its counters are 0.
///
/// # Panics
/// If there are more tests than devices.
pub fn device() -> (Control, u16) {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let device = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(device < DEVICES, "more tests than devices");
    (driver(), device)
}

/// As [`device`], for a test that counts nothing: others may have had it before.
///
/// # Panics
/// As [`device`].
pub fn used_device() -> (Control, u16) {
    let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    free.map_or_else(device, |device| (driver(), device))
}

fn driver() -> Control {
    let control = Control::open(&fakecuda());
    control.set("DEVICES", &DEVICES.to_string());
    control.initialize();
    control
}

/// Lets other tests have a device that works as it did.
pub fn leave(device: u16) {
    FREE.lock().unwrap_or_else(PoisonError::into_inner).push(device);
}

/// The most that the fake has.
const DEVICES: u16 = 128;

/// Lets calls and operations fail as `list` says ([`fakecuda::faults`]) until the result is dropped. It should name the test's device.
pub fn failing(list: &str) -> Failing {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let control = Control::open(&fakecuda());
    control.set("FAIL", list);
    Failing { control, _turn: turn }
}

/// Ends the failures when it is dropped.
#[derive(Debug)]
pub struct Failing {
    control: Control,
    _turn: MutexGuard<'static, ()>,
}

impl Drop for Failing {
    fn drop(&mut self) {
        self.control.set("FAIL", "");
    }
}
