//! The devices of this process, looked for when the first tensor on one comes.

use std::fmt;
use std::sync::{Arc, OnceLock};

use gradlane_core::Result;
use gradlane_core::config::Config;
use gradlane_core::cuda::Mark;
use gradlane_core::device::cuda::CudaDevice;
use gradlane_core::device::{Device, Transfer};
use gradlane_core::mem::{Lease, Ordinal};
use gradlane_core::types::Done;

/// The CUDA devices of this process, as these settings have them found.
pub(crate) fn devices(config: &Config) -> Arc<dyn Device> {
    let config = config.clone();
    Arc::new(Late::new(move || Ok(Arc::new(CudaDevice::load(&config)?))))
}

/// Devices that are opened by their first use.
///
/// Not by joining the job: to start the driver takes some 100 ms and a process that reduces host memory alone should not pay that, nor have
/// threads for it. Where a framework has put a tensor on a device it has started the driver already, and opening costs little.
struct Late<Open> {
    open: Open,
    opened: OnceLock<Result<Arc<dyn Device>>>,
}

impl<Open: Fn() -> Result<Arc<dyn Device>>> Late<Open> {
    /// Devices that `open` finds.
    fn new(open: Open) -> Self {
        Self { open, opened: OnceLock::new() }
    }

    /// What was found, or why nothing was; that is said again at every use, and not looked for again.
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

    fn copy(&self, transfer: Transfer, after: &[Mark], done: Done<()>) {
        match self.opened() {
            Ok(devices) => devices.copy(transfer, after, done),
            Err(error) => done.err(error),
        }
    }

    fn shutdown(&self) {
        if let Some(Ok(devices)) = self.opened.get() {
            devices.shutdown();
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
