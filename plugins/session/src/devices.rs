//! The devices of this process. They are opened when the first tensor on one of them is submitted.

use std::fmt;
use std::sync::{Arc, OnceLock};

use gradlane_core::Result;
use gradlane_core::config::Config;
use gradlane_core::cuda::{Mark, OnIssue};
use gradlane_core::device::cuda::CudaDevice;
use gradlane_core::device::{Device, Transfer};
use gradlane_core::mem::{DeviceRegion, Doubt, Lease, Ordinal};
use gradlane_core::types::{CodecSpec, DType, Done, InCopies};

/// The CUDA devices of this process, with these settings.
pub(crate) fn devices(config: &Config) -> Arc<dyn Device> {
    let config = config.clone();
    Arc::new(Late::new(move || Ok(Arc::new(CudaDevice::load(&config)?))))
}

/// Devices that are opened by their first use.
///
/// Joining a job does not open them. The driver takes some 100 ms to start and has threads, which a process that reduces only host memory
/// does not need. A framework with a tensor on a device has started the driver already, so opening them costs little then.
struct Late<Open> {
    open: Open,
    opened: OnceLock<Result<Arc<dyn Device>>>,
}

impl<Open: Fn() -> Result<Arc<dyn Device>>> Late<Open> {
    /// Devices that the function `open` finds.
    fn new(open: Open) -> Self {
        Self { open, opened: OnceLock::new() }
    }

    /// The devices, or why there are none. The first answer is kept.
    fn opened(&self) -> Result<&Arc<dyn Device>> {
        self.opened.get_or_init(&self.open).as_ref().map_err(Clone::clone)
    }
}

impl<Open: Fn() -> Result<Arc<dyn Device>> + Send + Sync> Device for Late<Open> {
    fn name(&self, device: Ordinal) -> String {
        self.opened().map_or_else(|_| format!("device {device}"), |devices| devices.name(device))
    }

    fn mark(&self, device: Ordinal, stream: u64) -> Result<Mark> {
        self.opened()?.mark(device, stream)
    }

    fn lease(&self, device: Ordinal, bytes: usize, shown: bool) -> Result<Lease> {
        self.opened()?.lease(device, bytes, shown)
    }

    fn lease_again(&self, device: Ordinal, bytes: usize, shown: bool) -> Option<Lease> {
        self.opened().ok()?.lease_again(device, bytes, shown)
    }

    fn in_copies(&self, dtype: DType, codec: CodecSpec) -> InCopies {
        self.opened().map_or(InCopies::Nothing, |devices| devices.in_copies(dtype, codec))
    }

    fn copy(&self, transfer: Transfer, after: &[Mark], issued: OnIssue, done: Done<()>) {
        match self.opened() {
            Ok(devices) => devices.copy(transfer, after, issued, done),
            Err(error) => done.err(error),
        }
    }

    fn copy_here(&self, transfer: Transfer, after: &[Mark], issued: OnIssue, done: Done<()>) {
        match self.opened() {
            Ok(devices) => devices.copy_here(transfer, after, issued, done),
            Err(error) => done.err(error),
        }
    }

    fn all_finite(&self, runs: Vec<DeviceRegion>, dtype: DType, after: &[Mark], done: Done<bool>) {
        match self.opened() {
            Ok(devices) => devices.all_finite(runs, dtype, after, done),
            Err(error) => done.err(error),
        }
    }

    fn shutdown(&self, doubt: &Doubt) {
        if let Some(Ok(devices)) = self.opened.get() {
            devices.shutdown(doubt);
        }
    }
}

impl<Open> fmt::Debug for Late<Open> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.opened.get() {
            None => f.write_str("not opened"),
            Some(opened) => opened.fmt(f),
        }
    }
}
