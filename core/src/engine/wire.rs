//! Memory for encoded bodies on the host, and the kernels that encode them.

use std::sync::{Arc, Mutex, PoisonError};

use crate::codec::Workspace;
use crate::local::SharedBacking;
use crate::mem::{Lease, Pool};
use crate::reduce::Kernels;

/// The memory of bodies between COMPRESS and DECOMPRESS. Credit bounds its size.
pub(super) struct Wire {
    pub(super) kernels: Kernels,
    private: Pool,
    /// Memory that other processes can map.
    shown: Pool,
    /// The workspaces that no thread uses now: as many as ever encoded at once.
    workspaces: Mutex<Vec<Workspace>>,
}

impl Wire {
    pub(super) fn new() -> Self {
        let shown = Pool::on(Arc::new(SharedBacking::numbered_from(FIRST_SEGMENT)));
        Self { kernels: Kernels::detect(), private: Pool::new(), shown, workspaces: Mutex::default() }
    }

    /// Memory for a body of `bytes` bytes; with `shown`, other processes can map it.
    pub(super) fn lease(&self, bytes: u64, shown: bool) -> Lease {
        let pool = if shown { &self.shown } else { &self.private };
        pool.lease(usize::try_from(bytes).expect("at most PART_BYTES_MAX"))
    }

    /// Calls `act` with a workspace, which nobody else uses meanwhile.
    pub(super) fn with_workspace<T>(&self, act: impl FnOnce(&mut Workspace) -> T) -> T {
        let free = || self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut workspace = free().pop().unwrap_or_default();
        let result = act(&mut workspace);
        free().push(workspace);
        result
    }
}

/// A process shows its peers segments of several origins under one number each. Those of devices count from 0.
const FIRST_SEGMENT: u32 = 1 << 31;
