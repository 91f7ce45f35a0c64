//! Measures how fast the engine alone copies from and to a device. `make gpu-check` compares the result with the machine's own figure.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use gradlane_core::cuda::OnIssue;
use gradlane_core::device::{Device, Transfer};
use gradlane_core::mem::{DeviceRegion, Doubt, Lease, Ordinal};
use gradlane_core::runtime::Clock;
use gradlane_core::types::{Done, Span, Time};
use gradlane_core::{Error, Result};

use crate::devices::devices;
use crate::memory::leased;
use crate::settings::{Settings, config};

/// The longest time for a chunk.
const PATIENCE: Duration = Duration::from_secs(30);

/// What to copy, and how.
#[derive(Clone, Copy, Debug)]
pub struct CopyOrder {
    /// The device.
    pub device: u16,
    /// The first address of the memory on the device.
    pub address: u64,
    /// Its length.
    pub bytes: usize,
    /// Bytes of one copy.
    pub chunk_bytes: usize,
    /// The number of copies under way at once.
    pub in_flight: usize,
    /// The direction.
    pub direction: Direction,
}

/// The direction of copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the device to pinned host memory.
    Out,
    /// From pinned host memory to the device.
    In,
    /// Half of the bytes each way, at the same time.
    Both,
}

/// The time to copy the memory once.
///
/// # Errors
/// Those of the device; [`Error::Timeout`] if a copy does not end.
pub fn measure(settings: &Settings, order: CopyOrder) -> Result<Duration> {
    let CopyOrder { device, address, bytes, chunk_bytes, in_flight, direction } = order;
    let whole = DeviceRegion::new(Ordinal(device), address, bytes);
    let devices = devices(&config(settings)?);
    let half = (bytes as u64 / 2).next_multiple_of(chunk_bytes as u64).min(bytes as u64);
    let part = |offset: u64, bytes: u64| whole.part(Span { offset, bytes });
    let ways = match direction {
        Direction::Out => vec![(true, part(0, bytes as u64))],
        Direction::In => vec![(false, part(0, bytes as u64))],
        Direction::Both => vec![(true, part(0, half)), (false, part(half, bytes as u64 - half))],
    };
    let measured = run(&devices, &ways, chunk_bytes, in_flight);
    devices.shutdown(&Doubt::default());
    measured
}

/// The index of the direction, the index of the lease, and the outcome of a chunk's copy.
type Ended = (usize, usize, Result<()>);

/// The state of one direction.
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
        let here = leased(&mut self.leases[lease], there.len());
        let transfer = match self.is_out {
            true => Transfer::Out { from: vec![there], to: here },
            false => Transfer::In { from: here, to: vec![there] },
        };
        let ended = ended.clone();
        let done = Done::new(move |outcome| drop(ended.send((number, lease, outcome))));
        devices.copy(transfer, &[], OnIssue::nobody(), done);
        true
    }
}

fn whole(memory: &DeviceRegion) -> Span {
    Span { offset: 0, bytes: memory.len() as u64 }
}
