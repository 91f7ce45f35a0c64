//! The driver's way to the road for memory of devices: what is on it, and what becomes of everybody when it breaks.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::board::{Board, Breakage};
use super::group::{self, Room};
use crate::collective::{DeviceMemory, DeviceRoad, Memory, Operation, Ordered};
use crate::error::{Error, Result};
use crate::types::Done;

/// The road of this rank, or why it has none.
#[derive(Clone)]
pub(super) struct Devices {
    road: Result<Arc<dyn DeviceRoad>>,
    /// Whose memory it reaches: the ranks of this one's PCIe group, as positions among all of the machine.
    pub(super) team: Arc<[usize]>,
    flight: Arc<Flight>,
}

/// What the road was given and has not reported yet.
#[derive(Default)]
struct Flight {
    operations: AtomicUsize,
    bytes: AtomicU64,
    /// The first error of the road.
    fault: Mutex<Option<Error>>,
    /// Whether an error of the road is news.
    over: AtomicBool,
}

/// So much may be on the road before the leader orders more: a group that is carried out and one behind it, so that the road is not empty
/// while the next is ordered. It is also what an urgent operation waits for at most, because on the road nothing is overtaken.
const OPERATIONS_MAX: usize = 2 * group::OPERATIONS_MAX;
/// The same in bytes. An operation that is longer is alone.
const BYTES_MAX: u64 = 2 * group::BYTES_MAX;

/// Operations that came to the road together. Room is made for as many at once, so that groups do not crumble.
struct Landing {
    /// Those that have not been reported.
    left: AtomicUsize,
    operations: usize,
    bytes: u64,
}

impl Devices {
    pub(super) fn new(road: Result<Arc<dyn DeviceRoad>>, team: Vec<usize>) -> Self {
        Self { road, team: team.into(), flight: Arc::default() }
    }

    /// Whether an operation can be carried out here, as far as its memory is a device's.
    pub(super) fn check(&self, operation: &Operation) -> Result<u8> {
        match (&operation.memory, &self.road) {
            (Memory::Host { .. }, _) => Ok(0),
            (Memory::Device(memory), Ok(road)) => road.check(memory),
            (Memory::Device(_), Err(error)) => Err(error.clone()),
        }
    }

    /// Gives the road what is next, all that goes together, with the weights of all ranks of the machine. `done` is absent where nobody
    /// waits for it.
    pub(super) fn issue(&self, operations: Vec<(Ordered, Option<Done<f64>>)>, board: &Arc<Board>) {
        let Ok(road) = &self.road else { unreachable!("it was checked before the others heard of it") };
        let bytes = operations.iter().map(|(ordered, _)| ordered.claim.bytes).sum();
        self.flight.operations.fetch_add(operations.len(), Ordering::SeqCst);
        self.flight.bytes.fetch_add(bytes, Ordering::SeqCst);
        let landing = Landing { left: AtomicUsize::new(operations.len()), operations: operations.len(), bytes };
        let landing = Arc::new(landing);
        let watched = |(ordered, done): (Ordered, Option<Done<f64>>)| {
            let weights: Vec<f64> = self.team.iter().map(|rank| ordered.weights[*rank]).collect();
            let total = weights.iter().sum();
            let ordered = Ordered { weights, ..ordered };
            let (landed, board, landing) = (self.clone(), Arc::clone(board), Arc::clone(&landing));
            let hear = move |outcome: Result<()>| {
                let was_full = landed.land(&landing);
                if let Err(error) = &outcome {
                    landed.fail(error, &board);
                }
                if let Some(done) = done {
                    done.report(outcome.map(|()| total));
                }
                // Whoever waited until there is room, or until all is over. Nobody else needs to know.
                board.knock(board.me, was_full);
            };
            (ordered, Done::new(hear))
        };
        road.issue(operations.into_iter().map(watched).collect());
    }

    /// Whether the road has something under way.
    pub(super) fn is_busy(&self) -> bool {
        self.flight.operations.load(Ordering::SeqCst) > 0
    }

    /// Whether nothing more should be ordered for now.
    pub(super) fn is_full(&self) -> bool {
        let Room { operations, bytes } = self.room();
        operations == 0 || bytes == 0
    }

    /// What may be ordered now; the last operation may be longer.
    pub(super) fn room(&self) -> Room {
        let Flight { operations, bytes, .. } = &*self.flight;
        Room {
            operations: OPERATIONS_MAX.saturating_sub(operations.load(Ordering::SeqCst)),
            bytes: BYTES_MAX.saturating_sub(bytes.load(Ordering::SeqCst)),
        }
    }

    /// The error that broke this rank's road.
    pub(super) fn fault(&self) -> Option<Error> {
        self.flight.fault.lock().expect("nothing panics while it is held").clone()
    }

    /// Ends what is under way. Does not wait.
    pub(super) fn abort(&self, cause: &Error) {
        self.flight.over.store(true, Ordering::SeqCst);
        if let Ok(road) = &self.road {
            road.abort(cause.clone());
        }
    }

    /// Ends the road.
    pub(super) fn shutdown(&self) {
        if let Ok(road) = &self.road {
            road.shutdown();
        }
    }

    /// One operation less; whether that makes room, which the last one of a group does.
    fn land(&self, Landing { left, operations, bytes }: &Landing) -> bool {
        if left.fetch_sub(1, Ordering::SeqCst) > 1 {
            return false;
        }
        let was_full = self.is_full();
        self.flight.operations.fetch_sub(*operations, Ordering::SeqCst);
        self.flight.bytes.fetch_sub(*bytes, Ordering::SeqCst);
        was_full
    }

    /// Tells everybody that this rank's devices do nothing any more, unless that was the wish.
    fn fail(&self, error: &Error, board: &Board) {
        if !self.flight.over.swap(true, Ordering::SeqCst) {
            self.flight.fault.lock().expect("nothing panics while it is held").get_or_insert_with(|| error.clone());
            board.break_down(Breakage::Failed(board.me));
        }
    }
}

/// Whether the runs of contribution and result are as long as each other and whole elements, and all of them as long as the claim says.
pub(super) fn fits(memory: &DeviceMemory, bytes: u64, element_bytes: u64) -> bool {
    let DeviceMemory { source, destination, .. } = memory;
    let alike = source.len() == destination.len()
        && source.iter().zip(destination).all(|(from, to)| from.len() == to.len())
        && source.iter().all(|run| (run.len() as u64).is_multiple_of(element_bytes));
    alike && source.iter().map(|run| run.len() as u64).sum::<u64>() == bytes
}
