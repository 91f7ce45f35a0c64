//! Threads that do the arithmetic for the [node](crate::node::machine). A part belongs to one lane, so that its steps and its bytes are
//! processed in order.
//!
//! **The thread that holds a lane works.** A lane is a queue, the store of its parts under a lock, and a thread that sleeps until it is
//! notified. Jobs are taken from the queue only under the lock, so their order holds whichever thread works. Usually that is the lane's own
//! thread. Three other threads may work instead ([`SumLanes::run`], [`inline_bytes_max`]):
//! - a thread that brings few bytes, because waking another thread would take longer;
//! - a thread that brings bytes faster than the lane adds them, which bounds the queue;
//! - where cores are few, a thread that finds the lane free, because its core has the bytes in its cache.
//!
//! Queues never block. So neither the driver, which submits under its lock, nor a lane, which reports to the driver, waits for the other.
//! Receipts are reported after the lane's lock was given back.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use bytes::Bytes;

use gradlane_core::error::{Error, Result};
use gradlane_core::local::failpoint::{Failpoint, reach};
use gradlane_core::metrics::ServerMetrics;
use gradlane_core::runtime::Clock;
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{ExchangeId, PartId, Time, whole_ns};
use gradlane_core::wire::About;

use crate::checkpoint::FrozenPart;
use crate::handle::Handle;
use crate::node::accumulator::SumResources;
use crate::node::command::{Receipt, Route, Served, Work};
use crate::node::event::{Event, Waits};
use crate::node::store::Store;

/// The most waiting bytes that the thread that brought them adds itself, on a machine of `cores`.
///
/// In general as many bytes as are added, at 10 GB/s, in the time that waking a thread takes. On a machine of two cores or fewer, receiving
/// and the sending peer keep both cores busy: a woken lane would take a core from them and fetch the bytes from the other core's cache.
/// There the lanes' threads get only jobs that arrive while another thread works.
pub(crate) fn inline_bytes_max(cores: usize) -> usize {
    if cores <= BUSY_CORES { BACKLOG_BYTES_MAX } else { 64 << 10 }
}

/// The cores that one sender keeps busy, including its own if it shares the machine.
const BUSY_CORES: usize = 2;
/// With more waiting bytes than this, the thread that brings a job processes the queue first.
const BACKLOG_BYTES_MAX: usize = 8 << 20;

/// The number of jobs after which the driver gets their outcomes.
const JOBS_AT_ONCE: usize = 8;

/// One piece of work. Those of one part run in the order of their submission.
pub(crate) enum Job {
    /// A step of a service.
    Step(Work),
    /// The next bytes of a body.
    Body {
        /// Where they go.
        route: Route,
        /// What brought them.
        exchange: ExchangeId,
        /// The bytes, where they were received.
        chunks: Vec<Bytes>,
    },
    /// What was read of the part of a parameter for an order of the coordinator.
    Read { part: PartId, order: u64, frozen: FrozenPart },
}

/// What a lane tells the driver, for the node.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    /// What became of a body.
    Receipt { route: Route, exchange: ExchangeId, receipt: Receipt },
    /// The squares of a round's gradient.
    Squares { part: PartId, round: u64, sum: f64 },
    /// A use of a table is over.
    Served(Served),
    /// Uses of a part of a table wait until other workers have pushed.
    Waits(Waits),
    /// A lane has refused an exchange, because it cannot give what was asked for.
    Refused { exchange: ExchangeId, about: About, error: Error },
}

/// The outputs of the lanes. None of the functions blocks for long; `tell` may submit further jobs about the same part, `send` may not.
pub(crate) struct Outlets {
    /// Sends blocks and answers, in order.
    pub(crate) send: Box<dyn Fn(Outgoing) + Send + Sync>,
    /// Reports receipts, squares and what becomes of uses to the node, and for how long the lane has been behind.
    pub(crate) tell: Box<dyn Fn(Told, Duration) + Send + Sync>,
    /// Hands over parts that were frozen.
    pub(crate) archive: Box<dyn Fn(u64, PartId, Option<FrozenPart>) + Send + Sync>,
    /// Whether `tell` is to hear [`Told::Waits`].
    pub(crate) hears_waits: bool,
}

/// The lanes. When dropped, their threads finish all submitted jobs and end.
pub(crate) struct SumLanes {
    lanes: Vec<Arc<Lane>>,
    threads: Vec<JoinHandle<()>>,
    inline_bytes_max: usize,
}

/// See the module's documentation.
struct Lane {
    queue: Mutex<Queue>,
    bell: Condvar,
    /// Bytes in the queue, and jobs.
    waiting_bytes: AtomicUsize,
    waiting_jobs: Arc<AtomicUsize>,
    store: Mutex<Store>,
    outlets: Arc<Outlets>,
    /// Counts how long it works, as the lane of this index.
    stats: Arc<ServerMetrics>,
    index: usize,
    clock: Clock,
    /// Since when there has always been a job, in nanoseconds of its clock; 0 if there is none. It may be too late if a job comes just when
    /// another one ends.
    behind_since: AtomicU64,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl SumLanes {
    /// Starts `threads` lanes. The thread that brings a job works off as many bytes of the lane as [`inline_bytes_max`] says.
    ///
    /// # Errors
    /// [`Error::Io`] if the system cannot start a thread.
    pub(crate) fn new(
        threads: NonZeroUsize,
        inline_bytes_max: usize,
        resources: &SumResources,
        handle: Option<&Arc<dyn Handle>>,
        stats: &Arc<ServerMetrics>,
        outlets: Outlets,
    ) -> Result<Self> {
        let mut this = Self { lanes: Vec::new(), threads: Vec::new(), inline_bytes_max };
        let outlets = Arc::new(outlets);
        stats.lane_busy_nanoseconds.show(threads.get());
        for index in 0..threads.get() {
            let lane = Arc::new(Lane {
                queue: Mutex::default(),
                bell: Condvar::new(),
                waiting_bytes: AtomicUsize::new(0),
                waiting_jobs: Arc::default(),
                store: Mutex::new(
                    Store::new(resources.clone()).with_handle(handle.cloned()).saying_waits(outlets.hears_waits),
                ),
                outlets: Arc::clone(&outlets),
                stats: Arc::clone(stats),
                index,
                clock: Clock::start(),
                behind_since: AtomicU64::new(0),
            });
            let work = Arc::clone(&lane);
            let thread = Builder::new().name(format!("gl-sum-{index}")).spawn(move || work.serve());
            let io =
                |cause: std::io::Error| Error::Io { what: "start a sum lane".to_owned(), cause: cause.to_string() };
            this.threads.push(thread.map_err(io)?);
            this.lanes.push(lane);
        }
        stats.lane_parts.show(this.lanes.iter().map(|lane| Arc::clone(&lane.waiting_jobs)).collect());
        Ok(this)
    }

    /// Puts a job into the queue of its part's lane; [`SumLanes::run`] makes a thread work on it.
    pub(crate) fn submit(&self, job: Job) {
        self.lanes[lane_of(job.part(), self.lanes.len())].push(job);
    }

    /// Processes short queues on this thread, and wakes the lanes' threads for the others. Called after submitting jobs, without any lock.
    pub(crate) fn run(&self) {
        for lane in self.lanes.iter().filter(|lane| lane.waiting_jobs.load(Ordering::Acquire) > 0) {
            if lane.waiting_bytes.load(Ordering::Acquire) > BACKLOG_BYTES_MAX {
                lane.work(lane.store(), |bytes| bytes > BACKLOG_BYTES_MAX / 2);
            } else if lane.waiting_bytes.load(Ordering::Acquire) <= self.inline_bytes_max {
                match lane.store.try_lock() {
                    Ok(store) => lane.work(store, |bytes| bytes <= self.inline_bytes_max),
                    Err(TryLockError::Poisoned(poisoned)) => lane.work(poisoned.into_inner(), |_| true),
                    // The thread that holds the lane may have looked into the queue for the last time already.
                    Err(TryLockError::WouldBlock) => lane.ring(),
                }
            } else {
                lane.fall_behind(lane.clock.now());
                lane.ring();
            }
        }
    }
}

impl Drop for SumLanes {
    fn drop(&mut self) {
        for lane in &self.lanes {
            lane.queue().closed = true;
            lane.ring();
        }
        for thread in self.threads.drain(..) {
            // The last reference to a driver may be dropped in one of its own lanes.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a sum lane panicked");
            }
        }
    }
}

impl Job {
    fn part(&self) -> PartId {
        match self {
            Self::Step(work) => work.part(),
            Self::Body { route, .. } => route.part(),
            Self::Read { part, .. } => *part,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Step(_) | Self::Read { .. } => 0,
            Self::Body { chunks, .. } => chunks.iter().map(Bytes::len).sum(),
        }
    }
}

/// Neighbouring parts of a tensor go to neighbouring lanes; keys are hashes and need no further mixing.
fn lane_of(part: PartId, lanes: usize) -> usize {
    let spread = part.key.0.wrapping_add(u64::from(part.index));
    usize::try_from(spread % lanes as u64).expect("below the number of lanes")
}

impl Lane {
    fn push(&self, job: Job) {
        self.waiting_bytes.fetch_add(job.bytes(), Ordering::AcqRel);
        self.waiting_jobs.fetch_add(1, Ordering::AcqRel);
        self.queue().jobs.push_back(job);
    }

    fn ring(&self) {
        // Under the lock, so that a thread which found the queue empty already sleeps.
        let _queue = self.queue();
        self.bell.notify_one();
    }

    /// The life of the lane's thread.
    fn serve(&self) {
        loop {
            let waits = |queue: &mut Queue| queue.jobs.is_empty() && !queue.closed;
            let queue = self.bell.wait_while(self.queue(), waits).unwrap_or_else(PoisonError::into_inner);
            if queue.jobs.is_empty() {
                return;
            }
            drop(queue);
            self.work(self.store(), |_| true);
        }
    }

    /// Processes the queue, including jobs that receipts add, until it is empty or `goes_on` is false for the waiting bytes. The lane's
    /// thread gets the rest.
    fn work<'a>(&'a self, mut store: MutexGuard<'a, Store>, goes_on: impl Fn(usize) -> bool) {
        loop {
            let mut told = Vec::new();
            let mut say = |event| match event {
                Event::Send(outgoing) => {
                    if let Outgoing::Reject { exchange, about, error } = &outgoing {
                        tracing::debug!(exchange = exchange.0, %error, "a value or a sum cannot be given");
                        told.push(Told::Refused { exchange: *exchange, about: *about, error: error.clone() });
                    }
                    (self.outlets.send)(outgoing);
                }
                Event::Receipt { route, exchange, receipt } => told.push(Told::Receipt { route, exchange, receipt }),
                Event::Squares { part, round, sum } => told.push(Told::Squares { part, round, sum }),
                Event::Served(served) => told.push(Told::Served(served)),
                Event::Waits(waits) => told.push(Told::Waits(waits)),
                Event::Frozen { order, part, frozen } => (self.outlets.archive)(order, part, frozen),
            };
            let began = self.clock.now();
            self.fall_behind(began);
            // A panic is a defect. It must end only the work of this lane, not the thread that works here.
            let worked = catch_unwind(AssertUnwindSafe(|| self.some_jobs(&mut store, &mut say)));
            if worked.is_err() {
                tracing::error!("a sum lane panicked; its sums and values are lost");
                store.lose_all(&mut say);
            }
            drop(store);
            let now = self.clock.now();
            self.stats.lane_busy_nanoseconds.add(self.index, whole_ns(now.since(began)));
            let behind = now.since(Time(self.behind_since.load(Ordering::Relaxed)));
            if self.waiting_jobs.load(Ordering::Acquire) == 0 {
                self.behind_since.store(0, Ordering::Relaxed);
            }
            for told in told {
                (self.outlets.tell)(told, behind);
            }
            if self.waiting_jobs.load(Ordering::Acquire) == 0 {
                return;
            }
            if !goes_on(self.waiting_bytes.load(Ordering::Acquire)) {
                return self.ring();
            }
            store = self.store();
        }
    }

    /// There is a job now.
    fn fall_behind(&self, now: Time) {
        let _ = self.behind_since.compare_exchange(0, now.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// A few jobs, so that receipts do not wait for long.
    fn some_jobs(&self, store: &mut Store, say: &mut impl FnMut(Event)) {
        for job in std::iter::from_fn(|| self.next_job()).take(JOBS_AT_ONCE) {
            match job {
                Job::Step(work) => store.step(work, say),
                Job::Body { route, exchange, chunks } => {
                    reach(Failpoint::Adds);
                    store.receive(route, exchange, &chunks, say);
                }
                Job::Read { part, order, frozen } => store.take_read(part, order, frozen),
            }
        }
    }

    fn next_job(&self) -> Option<Job> {
        let job = self.queue().jobs.pop_front()?;
        self.waiting_bytes.fetch_sub(job.bytes(), Ordering::AcqRel);
        self.waiting_jobs.fetch_sub(1, Ordering::AcqRel);
        Some(job)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, unbounded};
    use gradlane_core::mem::{Copies, Pool};
    use gradlane_core::metrics::{Cell as _, Value};
    use gradlane_core::reduce::Kernels;
    use gradlane_core::types::{CodecSpec, DType, Op, WorkerId};
    use gradlane_core::wire::Body;

    use super::*;
    use crate::node::aggregate::tests::{slot, sum};
    use crate::node::command::{Order, SlotId, Step, SumSpec, Upload};

    #[test]
    fn little_is_worked_off_by_who_brings_it() {
        let (lanes, sent, _) = lanes(1);
        begin(&lanes, 0, 40, 16);
        lanes.submit(body(0, 40));
        lanes.run();
        assert_eq!(blocks(&sent), 40, "before anybody else had to wake up");
    }

    #[test]
    fn with_few_cores_much_is_worked_off_by_who_brings_it_too() {
        let (lanes, sent, _) = lanes_where(inline_bytes_max(2), 1);
        begin(&lanes, 0, 1 << 20, BLOCK);
        lanes.submit(body(0, 1 << 20));
        lanes.run();
        assert_eq!(blocks(&sent), 1 << 20, "before anybody else had to wake up");
    }

    #[test]
    fn much_is_worked_off_by_the_threads() {
        let (lanes, sent, told) = lanes(2);
        for index in 0..4 {
            begin(&lanes, index, 1 << 20, BLOCK);
            lanes.submit(body(index, 1 << 20));
        }
        lanes.run();
        for _ in 0..4 {
            assert!(matches!(told.recv(), Ok(Told::Receipt { receipt: Receipt::Whole, .. })));
        }
        drop(lanes);
        assert_eq!(blocks(&sent), 4 << 20);
    }

    #[test]
    fn who_brings_more_than_is_added_works_off_what_waits() {
        let (lanes, _, _) = lanes(1);
        let busy = lanes.lanes[0].store();
        begin(&lanes, 0, 32 << 20, BLOCK);
        for _ in 0..10 {
            lanes.submit(body(0, 1 << 20));
        }
        let shown = |number: u64| Value::Family(vec![(vec!["0".to_owned()], number)]);
        assert_eq!(lanes.lanes[0].stats.lane_parts.value(), shown(5 + 10), "the steps and the pieces behind them");
        drop(busy);
        lanes.run();
        let waiting = lanes.lanes[0].waiting_bytes.load(Ordering::Acquire);
        assert!(waiting <= BACKLOG_BYTES_MAX, "{waiting} bytes");
    }

    #[test]
    fn a_defect_costs_the_sums_of_one_lane_and_not_its_thread() {
        // Blocks of no bytes are refused with a panic.
        let (lanes, sent, told) = lanes(1);
        begin(&lanes, 0, 40, 0);
        lanes.run();
        drop(lanes);
        assert!(matches!(sent.try_recv(), Ok(Outgoing::Reject { error: Error::Internal { .. }, .. })));
        assert!(told.try_iter().any(|told| matches!(told, Told::Refused { error: Error::Internal { .. }, .. })));
    }

    #[test]
    fn neighbouring_parts_go_to_different_lanes() {
        let lane = |index| lane_of(PartId { index, ..slot(0).part }, 4);
        assert_eq!([0, 1, 2, 3, 4].map(lane), [1, 2, 3, 0, 1]);
    }

    const BLOCK: u64 = 64 << 10;

    fn lanes(threads: usize) -> (SumLanes, Receiver<Outgoing>, Receiver<Told>) {
        lanes_where(inline_bytes_max(8), threads)
    }

    fn lanes_where(inline: usize, threads: usize) -> (SumLanes, Receiver<Outgoing>, Receiver<Told>) {
        let ((sink, sent), (ear, told)) = (unbounded(), unbounded());
        let (kernels, pool) = (Kernels::detect(), Pool::new());
        let resources = SumResources { kernels, pool, copies: Copies::default(), defect: None };
        let stats = Arc::default();
        let outlets = Outlets {
            send: Box::new(move |outgoing| drop(sink.send(outgoing))),
            tell: Box::new(move |told, _| ear.send(told).unwrap_or_default()),
            archive: Box::new(|_, _, _| unreachable!("nothing is frozen")),
            hears_waits: false,
        };
        (
            SumLanes::new(NonZeroUsize::new(threads).unwrap(), inline, &resources, None, &stats, outlets).unwrap(),
            sent,
            told,
        )
    }

    /// A sealed sum with one sender and one reader.
    fn begin(lanes: &SumLanes, index: u32, bytes: u64, block_bytes: u64) {
        let slot = part(index);
        let (worker, exchange) = (WorkerId(0), ExchangeId(u64::from(index)));
        let (dtype, codec, order) = (DType::U8, CodecSpec::PLAIN, Order::Arrival);
        let spec = SumSpec { bytes, dtype, codec, op: Op::Sum, senders: vec![worker], order, block_bytes };
        let upload = Upload { body: Body::plain(0), weight: 1.0, checksum: None, landed: 0 };
        for step in [
            Step::Begin(spec),
            Step::Receive { worker, exchange, upload },
            Step::Publish { divisor: 1.0, residual: None },
            Step::Answer { worker, exchange, header: sum(0) },
            Step::Seal,
        ] {
            lanes.submit(Job::Step(Work::Sum { slot, step }));
        }
    }

    fn body(index: u32, bytes: usize) -> Job {
        let chunks = vec![Bytes::from(vec![1; bytes])];
        let route = Route::Sum { slot: part(index), worker: WorkerId(0) };
        Job::Body { route, exchange: ExchangeId(u64::from(index)), chunks }
    }

    fn part(index: u32) -> SlotId {
        SlotId { part: PartId { index, ..slot(0).part }, ..slot(0) }
    }

    fn blocks(sent: &Receiver<Outgoing>) -> usize {
        let len = |outgoing| if let Outgoing::Block { block, .. } = outgoing { block.len() } else { 0 };
        sent.try_iter().map(len).sum()
    }
}
