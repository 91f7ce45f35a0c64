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

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use self::comm::unique_id;
use self::devices::{NcclDevices, Places};
use self::library::Library;
use super::{DeviceCollective, MakeDeviceCollective};
use crate::config::Config;
use crate::cuda::Line;
use crate::mem::Ordinal;

/// Makes the queue of a rank with these settings. Libraries are looked for at the first operation.
pub fn device_collective(config: &Config) -> MakeDeviceCollective {
    let places = Places { cuda: config.cuda_lib.clone(), nccl: config.nccl_lib.clone() };
    Box::new(move |team| Ok(Arc::new(NcclDevices::new(team, places)) as Arc<dyn DeviceCollective>))
}

/// Looks for NCCL as an engine with these settings does in a training process, and describes it.
///
/// `seen` is the file that lies where PyTorch keeps its own. It goes before those on the loader's path, because a process that has imported
/// PyTorch uses that one.
pub fn describe(config: &Config, seen: Option<&Path>) -> Line {
    let subject = "nccl".to_owned();
    match Library::find(config.nccl_lib.as_deref().or(seen)) {
        Ok(library) => Line { usable: true, subject, found: library.to_string(), advice: listens(&library) },
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

/// What to do about the port that NCCL opens to bring the workers of a machine together.
fn listens(library: &Library) -> String {
    match unique_id(library, Ordinal(0)).map(|id| address(&id)) {
        Ok(Some(address)) if !address.is_loopback() => format!(
            "it brings the workers of a machine together at {address}, without encryption; where all NCCL jobs stay on this machine: export \
             NCCL_SOCKET_IFNAME=lo"
        ),
        Ok(_) | Err(_) => String::new(),
    }
}

/// The address in a unique id, where the first rank listens: a number of eight bytes, then a `sockaddr` (`ncclBootstrapHandle`). `None` for
/// an id of another form.
fn address(id: &[u8]) -> Option<IpAddr> {
    let socket = id.get(8..)?;
    match u16::from_ne_bytes(*socket.first_chunk()?).into() {
        libc::AF_INET => Some(IpAddr::from(*socket.get(4..)?.first_chunk::<4>()?)),
        libc::AF_INET6 => Some(IpAddr::from(*socket.get(8..)?.first_chunk::<16>()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_in_an_id_is_read_where_it_is_one() {
        let id = |family: i32, rest: &[u8]| {
            let family = u16::try_from(family).unwrap();
            [&[7; 8][..], &family.to_ne_bytes(), &[0x1f, 0x90], rest].concat()
        };
        assert_eq!(address(&id(libc::AF_INET, &[10, 0, 0, 7])), Some(IpAddr::from([10_u8, 0, 0, 7])));
        let six = [&[0; 4][..], &[0; 15], &[1]].concat();
        assert!(address(&id(libc::AF_INET6, &six)).unwrap().is_loopback());
        assert_eq!(address(b"/tmp/fakenccl-1234"), None);
        assert_eq!(address(&[]), None);
    }

    #[test]
    fn a_missing_library_is_described_with_what_to_do() {
        let config = Config { nccl_lib: Some("/nowhere/libnccl.so.2".into()), ..Config::default() };
        let line = describe(&config, Some(Path::new("/elsewhere/libnccl.so.2")));
        assert!(!line.usable && line.found.contains("/nowhere/libnccl.so.2"), "{line:?}");
        assert!(line.advice.contains("nccl_lib"), "{line:?}");
    }
}
