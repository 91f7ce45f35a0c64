//! Kernels in the queue of a stream: what a GPU would compile out of PTX is run as the PTX says ([`ptx`](crate::ptx)).

#![expect(unsafe_code, reason = "what a kernel reaches is raw memory")]

use std::sync::Arc;

use crate::codes::Code;
use crate::driver::Driver;
use crate::ptx::{self, Fault};

/// A launch, of one dimension.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) kernel: Arc<ptx::Kernel>,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    /// The bytes of all, one behind the other.
    pub(crate) arguments: Vec<u8>,
}

impl Launch {
    /// The code with which it failed.
    pub(crate) fn execute(&self, driver: &Driver) -> Result<(), Code> {
        let ran = self.kernel.run(self.blocks, self.threads, &self.arguments, &mut Reached(driver));
        ran.map_err(|fault| match fault {
            Fault::Apart => Code::LAUNCH_FAILED,
            Fault::Access { .. } if fault.is_misaligned() => Code::MISALIGNED_ADDRESS,
            Fault::Access { .. } => Code::ILLEGAL_ADDRESS,
        })
    }
}

/// The memory of the devices, word by word.
struct Reached<'a>(&'a Driver);

impl ptx::Memory for Reached<'_> {
    fn load(&self, address: u64, to: &mut [u8]) -> bool {
        let Ok(place) = self.0.memory().device_place(address, to.len()) else { return false };
        // SAFETY: the place is that long and held by its keeper, and the stream's queue lets nothing else of the device's work at it.
        unsafe { std::ptr::copy_nonoverlapping(place.host as *const u8, to.as_mut_ptr(), to.len()) };
        true
    }

    fn store(&mut self, address: u64, from: &[u8]) -> bool {
        let Ok(place) = self.0.memory().device_place(address, from.len()) else { return false };
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), place.host as *mut u8, from.len()) };
        true
    }
}
