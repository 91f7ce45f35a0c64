//! Connects the driver to the transport for device memory ([`DeviceCollective`]). Counts the groups on it, and tells all ranks when it
//! breaks.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::board::Board;
use crate::collective::group::QueueSpace;
use crate::collective::ranks::Breakage;
use crate::collective::{DeviceCollective, DeviceMemory, Memory, Operation, Ordered};
use crate::error::{Error, Result};
use crate::types::{Done, Unmet};

/// The device transport of this rank, or the error if it has none.
#[derive(Clone)]
pub(super) struct Devices {
    queue: Result<Arc<dyn DeviceCollective>>,
    /// The ranks that it connects: those of this rank's PCIe group, as positions among all ranks of the machine.
    team: Arc<[usize]>,
    flight: Arc<Flight>,
}

/// The operations on the transport that have not ended.
#[derive(Default)]
struct Flight {
    groups: AtomicUsize,
    bytes: AtomicU64,
    /// How many devices were used.
    devices: AtomicUsize,
    /// The first error of the transport.
    fault: Mutex<Option<Error>>,
    /// Whether the transport has ended or failed already. A later error of it is then not reported to the other ranks.
    over: AtomicBool,
}

/// Operations that were issued together. Their room becomes free together, so that groups do not become smaller and smaller.
struct Landing {
    /// How many of them have not ended.
    left: AtomicUsize,
    bytes: u64,
}

impl Devices {
    pub(super) fn new(queue: Result<Arc<dyn DeviceCollective>>, team: Vec<usize>) -> Self {
        Self { queue, team: team.into(), flight: Arc::default() }
    }

    /// Checks an operation on device memory; returns the index of its device.
    pub(super) fn check(&self, operation: &Operation) -> Result<u8> {
        match (&operation.memory, &self.queue) {
            (Memory::Host { .. }, _) => Ok(0),
            (Memory::Device(memory), Ok(queue)) => queue.check(memory),
            (Memory::Device(_), Err(error)) => Err(error.clone()),
        }
    }

    /// Issues the next group to the transport. The operations have the weights of all ranks of the machine.
    pub(super) fn issue(&self, operations: Vec<(Ordered, Done<f64, Unmet>)>, board: &Arc<Board>) {
        let Ok(queue) = &self.queue else { unreachable!("it was checked before the others heard of it") };
        let bytes = operations.iter().map(|(ordered, _)| ordered.claim.bytes).sum();
        let device = operations.first().map_or(0, |(ordered, _)| usize::from(ordered.claim.device_index));
        self.flight.devices.fetch_max(device + 1, Ordering::SeqCst);
        self.flight.groups.fetch_add(1, Ordering::SeqCst);
        self.flight.bytes.fetch_add(bytes, Ordering::SeqCst);
        let landing = Arc::new(Landing { left: AtomicUsize::new(operations.len()), bytes });
        let watched = |(ordered, done): (Ordered, Done<f64, Unmet>)| {
            let weights: Vec<f64> = self.team.iter().map(|rank| ordered.weights[*rank]).collect();
            let total = weights.iter().sum();
            let ordered = Ordered { weights, ..ordered };
            let (landed, board, landing) = (self.clone(), Arc::clone(board), Arc::clone(&landing));
            let hear = move |outcome: Result<()>| {
                let was_full = landed.land(&landing);
                if let Err(error) = &outcome {
                    landed.fail(error, &board);
                }
                done.report(outcome.map(|()| total).map_err(Unmet::Failed));
                // Wakes the driver, which may wait for room, or for the end of all operations.
                board.knock(board.me, was_full);
            };
            (ordered, Done::new(hear))
        };
        queue.issue(operations.into_iter().map(watched).collect());
    }

    /// Whether operations are on the transport.
    pub(super) fn is_busy(&self) -> bool {
        self.flight.groups.load(Ordering::SeqCst) > 0
    }

    /// The room for further operations.
    pub(super) fn room(&self) -> QueueSpace {
        let Flight { groups, bytes, devices, .. } = &*self.flight;
        QueueSpace::beside(groups.load(Ordering::SeqCst), bytes.load(Ordering::SeqCst), devices.load(Ordering::SeqCst))
    }

    /// The error that broke this rank's transport, if any.
    pub(super) fn fault(&self) -> Option<Error> {
        self.flight.fault.lock().expect("nothing panics while it is held").clone()
    }

    /// Ends the operations under way. Does not wait.
    pub(super) fn abort(&self, cause: &Error) {
        self.flight.over.store(true, Ordering::SeqCst);
        if let Ok(queue) = &self.queue {
            queue.abort(cause.clone());
        }
    }

    /// Ends the transport.
    pub(super) fn shutdown(&self) {
        if let Ok(queue) = &self.queue {
            queue.shutdown();
        }
    }

    /// Counts the end of an operation. The last one of a group frees the room of the group. Returns true if this was the last one and
    /// there was no room before.
    fn land(&self, Landing { left, bytes }: &Landing) -> bool {
        if left.fetch_sub(1, Ordering::SeqCst) > 1 {
            return false;
        }
        let was_full = self.room().is_none();
        self.flight.groups.fetch_sub(1, Ordering::SeqCst);
        self.flight.bytes.fetch_sub(*bytes, Ordering::SeqCst);
        was_full
    }

    /// Tells all ranks that this rank's devices failed. Does nothing if this rank ended the transport itself, or has told them already.
    fn fail(&self, error: &Error, board: &Board) {
        if !self.flight.over.swap(true, Ordering::SeqCst) {
            self.flight.fault.lock().expect("nothing panics while it is held").get_or_insert_with(|| error.clone());
            board.break_down(Breakage::Failed(board.me));
        }
    }
}

/// Whether the runs of contribution and result have equal lengths in whole elements, and together the length of the claim.
pub(super) fn fits(memory: &DeviceMemory, bytes: u64, element_bytes: u64) -> bool {
    let DeviceMemory { source, destination, .. } = memory;
    let alike = source.len() == destination.len()
        && source.iter().zip(destination).all(|(from, to)| from.len() == to.len())
        && source.iter().all(|run| (run.len() as u64).is_multiple_of(element_bytes));
    alike && source.iter().map(|run| run.len() as u64).sum::<u64>() == bytes
}
