//! Selects the library that reduces device memory among the ranks of a machine, in this build.

use std::path::Path;

use super::device::MakeDeviceCollective;
use crate::config::Config;
use crate::cuda::Line;
#[cfg(not(feature = "cuda"))]
use crate::error::Error;
use crate::error::Result;

/// How this program reduces memory of devices among the ranks of a machine.
///
/// # Errors
/// If this build cannot; the error says what to do.
#[cfg(feature = "cuda")]
pub fn device_collective(config: &Config) -> Result<MakeDeviceCollective> {
    Ok(crate::collective::nccl::device_collective(config))
}

/// This build cannot.
///
/// # Errors
/// What to do about it.
#[cfg(not(feature = "cuda"))]
pub fn device_collective(_config: &Config) -> Result<MakeDeviceCollective> {
    Err(Error::FailedPrecondition {
        what: "this program was built without a way to reduce memory of devices among the workers of a machine"
            .to_owned(),
        hint: "use the Python package, or set local_reduce=off on all workers of the machine".to_owned(),
    })
}

/// Describes the library for people; empty if this build uses none. `seen` is the file that lies where frameworks keep theirs.
pub fn describe(config: &Config, seen: Option<&Path>) -> Option<Line> {
    #[cfg(feature = "cuda")]
    return Some(crate::collective::nccl::describe(config, seen));
    #[cfg(not(feature = "cuda"))]
    {
        let _unused = (config, seen);
        None
    }
}
