//! How fast the engine's copies from and to a device are with nothing around them: what `make gpu-check` holds against the machine.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use gradlane_core::device::{Device, Transfer};
use gradlane_core::mem::{DeviceRegion, Lease, Ordinal};
use gradlane_core::runtime::Clock;
use gradlane_core::types::{Done, Span, Time};
use gradlane_core::{Error, Result};
use pyo3::prelude::*;

use crate::devices::devices;
use crate::errors;
use crate::lent::region;
use crate::settings::{Settings, config};

/// A chunk that takes longer is not copied any more.
const PATIENCE: Duration = Duration::from_secs(30);

/// Seconds to copy the `bytes` bytes from `address` of a device once, in chunks of which `in_flight` are under way: "out" to pinned host
/// memory, "in" from there, or "both" ways at once, each half of the bytes.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "called by name from one script")]
pub(crate) fn copy_seconds(
    py: Python<'_>,
    settings: Settings,
    device: u16,
    address: u64,
    bytes: usize,
    chunk_bytes: usize,
    in_flight: usize,
    direction: &str,
) -> PyResult<f64> {
    let whole = DeviceRegion::new(Ordinal(device), address, bytes);
    let measured = py.detach(|| {
        let devices = devices(&config(&settings)?);
        let half = (bytes as u64 / 2).next_multiple_of(chunk_bytes as u64).min(bytes as u64);
        let part = |offset: u64, bytes: u64| whole.part(Span { offset, bytes });
        let ways = match direction {
            "out" => vec![(true, part(0, bytes as u64))],
            "in" => vec![(false, part(0, bytes as u64))],
            _ => vec![(true, part(0, half)), (false, part(half, bytes as u64 - half))],
        };
        let measured = run(&devices, &ways, chunk_bytes, in_flight);
        devices.shutdown();
        measured
    });
    measured.map(|time| time.as_secs_f64()).map_err(|error| errors::raise(py, &error))
}

/// The number of the direction, that of the lease, and how the copy of a chunk ended.
type Ended = (usize, usize, Result<()>);

/// One direction on its way.
struct Way {
    is_out: bool,
    memory: DeviceRegion,
    leases: Vec<Lease>,
    begun: u64,
}

/// The time of the second of two rounds: the first one pins memory and starts threads.
fn run(devices: &Arc<dyn Device>, ways: &[(bool, DeviceRegion)], chunk: usize, in_flight: usize) -> Result<Duration> {
    let mut ways = ways
        .iter()
        .map(|(is_out, memory)| {
            let leases = (0..in_flight).map(|_| devices.lease(memory.device(), chunk, false)).collect::<Result<_>>()?;
            Ok(Way { is_out: *is_out, memory: memory.part(whole(memory)), leases, begun: 0 })
        })
        .collect::<Result<Vec<_>>>()?;
    round(devices, &mut ways, chunk)?;
    let clock = Clock::start();
    round(devices, &mut ways, chunk)?;
    Ok(clock.now().since(Time::ZERO))
}

fn round(devices: &Arc<dyn Device>, ways: &mut [Way], chunk: usize) -> Result<()> {
    let (sender, ended) = crossbeam_channel::unbounded();
    let mut under_way = 0;
    for (number, way) in ways.iter_mut().enumerate() {
        way.begun = 0;
        for lease in 0..way.leases.len() {
            under_way += u32::from(way.begin(devices, chunk, lease, number, &sender));
        }
    }
    while under_way > 0 {
        let late = |_| Error::Timeout { what: "a copy of a device".to_owned(), waited: PATIENCE };
        let (number, lease, outcome): Ended = ended.recv_timeout(PATIENCE).map_err(late)?;
        outcome?;
        under_way -= 1;
        under_way += u32::from(ways[number].begin(devices, chunk, lease, number, &sender));
    }
    Ok(())
}

impl Way {
    /// Begins the next chunk in this lease; false if there is none.
    fn begin(
        &mut self,
        devices: &Arc<dyn Device>,
        chunk: usize,
        lease: usize,
        number: usize,
        ended: &Sender<Ended>,
    ) -> bool {
        let left = self.memory.len() as u64 - self.begun;
        let bytes = left.min(chunk as u64);
        if bytes == 0 {
            return false;
        }
        let there = self.memory.part(Span { offset: self.begun, bytes });
        self.begun += bytes;
        let here = region(self.leases[lease].as_mut_ptr() as usize, there.len());
        let transfer = match self.is_out {
            true => Transfer::Out { from: vec![there], to: here },
            false => Transfer::In { from: here, to: vec![there] },
        };
        let ended = ended.clone();
        devices.copy(transfer, &[], Done::new(move |outcome| drop(ended.send((number, lease, outcome)))));
        true
    }
}

fn whole(memory: &DeviceRegion) -> Span {
    Span { offset: 0, bytes: memory.len() as u64 }
}
