//! The libraries that stand for CUDA and NCCL. Cargo builds them because this crate depends on theirs.

use std::path::PathBuf;

/// The CUDA driver over host memory, for the setting `cuda_lib`; [`fakecuda::Control`] steers it.
pub fn fakecuda() -> PathBuf {
    fakecuda::library()
}

/// NCCL over host memory, for the setting `nccl_lib`.
pub fn fakenccl() -> PathBuf {
    fakenccl::library()
}
