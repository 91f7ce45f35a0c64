//! Memory of CUDA devices, reduced among the ranks of a machine by NCCL.
//!
//! ```text
//!  check ─► library (once), a queue for each device         the framework's own copy of NCCL, if it has one
//!  issue ─► queue ─► gl-nccl: marks, kernels ─► one group of NCCL ─► event ─► reaper ─► Done of each
//!  abort, an error of NCCL, a deadline ─► the end: the communicator is aborted, and everything reports the cause
//! ```
//! One thread per device issues groups in the given order, because NCCL needs the same order on all ranks. The communicator of a device is
//! made at its first operation, which all ranks issue. `program` and `blocks`, pure functions, decide the calls of NCCL.

mod blocks;
mod comm;
mod devices;
mod issuer;
mod library;
mod notice;
mod program;
mod queue;
mod table;
mod work;

use std::sync::Arc;

use self::devices::{NcclDevices, Places};
use self::library::Library;
use super::{DeviceCollective, MakeDeviceCollective};
use crate::config::Config;
use crate::cuda::Line;

/// Makes the queue of a rank with these settings. Libraries are looked for at the first operation.
pub fn device_collective(config: &Config) -> MakeDeviceCollective {
    let places = Places { cuda: config.cuda_lib.clone(), nccl: config.nccl_lib.clone() };
    Box::new(move |team| Ok(Arc::new(NcclDevices::new(team, places)) as Arc<dyn DeviceCollective>))
}

/// Looks for NCCL as an engine with these settings does, and describes it.
pub fn describe(config: &Config) -> Line {
    let subject = "nccl".to_owned();
    match Library::find(config.nccl_lib.as_deref()) {
        Ok(library) => Line { usable: true, subject, found: library.to_string(), advice: String::new() },
        Err(absent) => Line {
            usable: false,
            subject,
            found: absent.to_string(),
            advice:
                "needed only if several workers of a machine have devices; name it with nccl_lib if it is in another place"
                    .to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_described_with_what_to_do() {
        let config = Config { nccl_lib: Some("/nowhere/libnccl.so.2".into()), ..Config::default() };
        let line = describe(&config);
        assert!(!line.usable && line.found.contains("/nowhere/libnccl.so.2"), "{line:?}");
        assert!(line.advice.contains("nccl_lib"), "{line:?}");
    }
}
