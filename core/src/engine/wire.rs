//! Memory for what is encoded on the host, and the arithmetic that encodes it.

use std::sync::Arc;

use crate::local::SharedBacking;
use crate::mem::{Lease, Pool};
use crate::reduce::Kernels;

/// Where bodies lie between COMPRESS and DECOMPRESS. The credit bounds how many bytes that are.
pub(super) struct Wire {
    pub(super) kernels: Kernels,
    private: Pool,
    /// Memory that other processes can be shown.
    shown: Pool,
}

impl Wire {
    pub(super) fn new() -> Self {
        let shown = Pool::on(Arc::new(SharedBacking::numbered_from(FIRST_SEGMENT)));
        Self { kernels: Kernels::detect(), private: Pool::new(), shown }
    }

    /// Memory for a body of so many bytes; with `shown`, other processes can be let read it.
    pub(super) fn lease(&self, bytes: u64, shown: bool) -> Lease {
        let pool = if shown { &self.shown } else { &self.private };
        pool.lease(usize::try_from(bytes).expect("at most PART_BYTES_MAX"))
    }
}

/// A process shows its peers segments of several origins under one number each. Those of devices count from 0.
const FIRST_SEGMENT: u32 = 1 << 31;
