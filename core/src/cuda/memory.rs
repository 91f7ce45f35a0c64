//! Device memory that the engine owns.
#![expect(unsafe_code, reason = "functions of the driver are called")]

use std::sync::Arc;

use super::api::Api;
use super::context::Context;
use crate::error::Result;
use crate::mem::DeviceRegion;

/// Memory of one device, freed when this is dropped.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    region: DeviceRegion,
    context: Arc<Context>,
}

impl Context {
    /// Allocates memory of this device. This takes from some microseconds up to a millisecond, so callers keep their memory.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if the driver cannot allocate it.
    pub(crate) fn memory(self: &Arc<Self>, bytes: usize) -> Result<DeviceMemory> {
        self.within(|| {
            let mut address = 0;
            // SAFETY: it writes one address, which is freed in `drop`.
            let code = unsafe { (self.api().device_alloc)(&raw mut address, bytes) };
            self.checked("taking memory of the device", code)?;
            let region = DeviceRegion::new(self.device(), address, bytes);
            Ok(DeviceMemory { region, context: Arc::clone(self) })
        })
    }
}

impl DeviceMemory {
    /// All of it.
    pub(crate) const fn region(&self) -> &DeviceRegion {
        &self.region
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let api = self.context.api();
        if api.is_ours() {
            let free = || {
                // SAFETY: it was allocated in `memory`, once. The driver waits for work that uses it.
                Api::released("memory of the device", unsafe { (api.device_free)(self.region.address()) });
                Ok(())
            };
            // A device that failed has lost its memory anyway.
            let _ = self.context.within(free);
        }
    }
}
