//! Threads that do the arithmetic which the [aggregator](crate::aggregate) asked for. A slot lives in one lane, so that its commands run
//! in their order without a lock.
//!
//! Queues have no bound of their own, so that neither the driver, which submits under its lock, nor a lane, which reports to the driver,
//! ever waits for the other. What they hold is bounded by the workers: each has at most its credit of bytes under way.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use crossbeam_channel::{Receiver, Sender, unbounded};

use gradlane_core::error::{Error, Result};
use gradlane_core::mem::{Lease, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{DType, ExchangeId, Op, PartId};
use gradlane_core::wire::{Flags, Header};

use crate::accumulator::{Accumulator, Published};
use crate::aggregate::SlotId;

/// One piece of work. Those of one part run in the order of their submission.
pub(crate) enum Job {
    /// Make the slot's accumulator from the first body.
    Start {
        /// A slot that is new to the lanes.
        slot: SlotId,
        /// Element type of all bodies.
        dtype: DType,
        /// How they are added.
        op: Op,
        /// Factor of this body in a weighted mean.
        weight: f64,
        /// The body.
        body: Lease,
    },
    /// Add a body as long as the first.
    Add {
        /// A started slot.
        slot: SlotId,
        /// Factor of this body in a weighted mean.
        weight: f64,
        /// The body.
        body: Lease,
    },
    /// Finish the sum and freeze it.
    Publish {
        /// A started slot.
        slot: SlotId,
        /// What it is divided by.
        divisor: f64,
    },
    /// Send the sum.
    Answer {
        /// A published slot.
        slot: SlotId,
        /// To whom.
        exchange: ExchangeId,
        /// Complete but for the checksum.
        header: Header,
    },
    /// Free the slot's memory.
    Drop {
        /// Any slot.
        slot: SlotId,
    },
    /// Compare a landed body with the checksum that its header announced.
    Verify {
        /// Of the push.
        header: Header,
        /// The body.
        body: Lease,
        /// Gets the body back, and whether it is what was announced. Must not block.
        then: Box<dyn FnOnce(Lease, bool) + Send>,
    },
}

/// The threads, until they are dropped: then they finish what was submitted and end.
pub(crate) struct SumLanes {
    lanes: Vec<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    sink: Sink,
}

type Sink = Arc<dyn Fn(Outgoing) + Send + Sync>;

impl SumLanes {
    /// Starts `threads` lanes. Answers go to `sink`, which must not block.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread.
    pub(crate) fn new(
        threads: NonZeroUsize,
        kernels: Kernels,
        pool: &Pool,
        sink: impl Fn(Outgoing) + Send + Sync + 'static,
    ) -> Result<Self> {
        let mut this = Self { lanes: Vec::new(), threads: Vec::new(), sink: Arc::new(sink) };
        for index in 0..threads.get() {
            let (lane, jobs) = unbounded();
            let work = Lane { kernels, pool: pool.clone(), sink: Arc::clone(&this.sink), slots: BTreeMap::new() };
            let thread = Builder::new().name(format!("gl-sum-{index}")).spawn(move || work.run(&jobs));
            let io =
                |cause: std::io::Error| Error::Io { what: "start a sum lane".to_owned(), cause: cause.to_string() };
            this.threads.push(thread.map_err(io)?);
            this.lanes.push(lane);
        }
        Ok(this)
    }

    /// Hands a job to the lane of its part.
    pub(crate) fn submit(&self, job: Job) {
        let lane = &self.lanes[lane_of(job.part(), self.lanes.len())];
        if let Err(unsent) = lane.send(job) {
            // A lane ends early only by a panic, which has told its story; who waits for its sums must not wait for ever.
            refuse(&self.sink, unsent.into_inner(), "its sum lane has ended");
        }
    }
}

impl Drop for SumLanes {
    fn drop(&mut self) {
        self.lanes.clear();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a sum lane panicked");
            }
        }
    }
}

impl Job {
    fn part(&self) -> PartId {
        match self {
            Self::Start { slot, .. }
            | Self::Add { slot, .. }
            | Self::Publish { slot, .. }
            | Self::Answer { slot, .. }
            | Self::Drop { slot } => slot.part,
            Self::Verify { header, .. } => header.part,
        }
    }
}

/// Neighbouring parts of a tensor go to neighbouring lanes; keys are hashes and need no further mixing.
fn lane_of(part: PartId, lanes: usize) -> usize {
    let spread = part.key.0.wrapping_add(u64::from(part.index));
    usize::try_from(spread % lanes as u64).expect("below the number of lanes")
}

/// What one thread owns.
struct Lane {
    kernels: Kernels,
    pool: Pool,
    sink: Sink,
    slots: BTreeMap<SlotId, Sum>,
}

enum Sum {
    Open(Accumulator),
    Published(Published),
}

impl Lane {
    fn run(mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            self.work(job);
        }
    }

    fn work(&mut self, job: Job) {
        let Self { kernels, pool, sink, slots } = self;
        match job {
            Job::Start { slot, dtype, op, weight, body } => {
                let accumulator = Accumulator::start(*kernels, pool, op, dtype, weight, body);
                slots.insert(slot, Sum::Open(accumulator));
            }
            Job::Add { slot, weight, body } => match slots.get_mut(&slot) {
                Some(Sum::Open(accumulator)) => accumulator.add(*kernels, weight, &body),
                Some(Sum::Published(_)) | None => refuse(sink, Job::Add { slot, weight, body }, "it is not open"),
            },
            Job::Publish { slot, divisor } => match slots.remove(&slot) {
                Some(Sum::Open(accumulator)) => {
                    slots.insert(slot, Sum::Published(accumulator.publish(*kernels, pool, divisor)));
                }
                Some(Sum::Published(published)) => {
                    slots.insert(slot, Sum::Published(published));
                }
                None => refuse(sink, Job::Publish { slot, divisor }, "it was not started"),
            },
            Job::Answer { slot, exchange, header } => match slots.get(&slot) {
                Some(Sum::Published(Published { sum, checksum })) => {
                    let header = Header { flags: header.flags.with(Flags::CHECKSUM), ..header };
                    sink(Outgoing::Answer { exchange, header });
                    sink(Outgoing::Block { exchange, block: sum.clone() });
                    sink(Outgoing::End { exchange, checksum: *checksum });
                }
                Some(Sum::Open(_)) | None => {
                    refuse(sink, Job::Answer { slot, exchange, header }, "it was not published");
                }
            },
            Job::Drop { slot } => {
                slots.remove(&slot);
            }
            Job::Verify { header, body, then } => {
                let ok = !header.flags.contains(Flags::CHECKSUM) || crc32c::crc32c(&body) == header.checksum;
                then(body, ok);
            }
        }
    }
}

/// Ends a job that does not fit the state of its slot. The aggregator never asks for one, so this is a defect; it must cost one sum and
/// not the server.
fn refuse(sink: &Sink, job: Job, problem: &str) {
    let part = job.part();
    tracing::error!(%part, problem, "a slot cannot do what was asked");
    match job {
        Job::Answer { exchange, header, .. } => {
            let error = Error::Internal { what: format!("no sum of part {part} to send: {problem}") };
            sink(Outgoing::Reject { exchange, header, error });
        }
        Job::Verify { body, then, .. } => then(body, false),
        Job::Start { .. } | Job::Add { .. } | Job::Publish { .. } | Job::Drop { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::{Epoch, Round, TensorKey};
    use gradlane_core::wire::HeaderKind;

    use super::*;

    #[test]
    fn a_sum_is_sent_with_its_checksum_to_all_who_wait() {
        let (lanes, pool, sent) = lanes(2);
        for slot in [slot(0), slot(1), slot(2)] {
            lanes.submit(Job::Start { slot, dtype: DType::I32, op: Op::Sum, weight: 1.0, body: body(&pool, 3) });
            lanes.submit(Job::Add { slot, weight: 1.0, body: body(&pool, 4) });
            lanes.submit(Job::Publish { slot, divisor: 1.0 });
            lanes.submit(Job::Answer { slot, exchange: ExchangeId(1), header: header(slot) });
            lanes.submit(Job::Answer { slot, exchange: ExchangeId(2), header: header(slot) });
            lanes.submit(Job::Drop { slot });
        }
        drop(lanes);
        let sent: Vec<Outgoing> = sent.try_iter().collect();
        assert_eq!(sent.len(), 6 * 3);
        for answer in sent.chunks(3) {
            let [Outgoing::Answer { header, .. }, Outgoing::Block { block, .. }, Outgoing::End { checksum, .. }] =
                answer
            else {
                panic!("{answer:?}")
            };
            assert!(header.flags.contains(Flags::CHECKSUM));
            assert_eq!((&block[..], *checksum), (&7_i32.to_le_bytes()[..], crc32c::crc32c(block)));
        }
    }

    #[test]
    fn an_answer_outlives_its_slot_and_then_gives_its_memory_back() {
        let (lanes, pool, sent) = lanes(1);
        let slot = slot(0);
        lanes.submit(Job::Start { slot, dtype: DType::I32, op: Op::Sum, weight: 1.0, body: body(&pool, 3) });
        lanes.submit(Job::Publish { slot, divisor: 1.0 });
        lanes.submit(Job::Answer { slot, exchange: ExchangeId(1), header: header(slot) });
        lanes.submit(Job::Drop { slot });
        drop(lanes);
        let Some(Outgoing::Block { block, .. }) = sent.try_iter().nth(1) else { panic!("no answer") };
        assert_eq!(*block, 3_i32.to_le_bytes());
        assert_ne!(pool.bytes_in_use(), 0);
        drop(block);
        assert_eq!(pool.bytes_in_use(), 0);
    }

    #[test]
    fn a_sum_that_does_not_exist_is_a_reject_and_not_a_silence() {
        let (lanes, _, sent) = lanes(1);
        lanes.submit(Job::Answer { slot: slot(0), exchange: ExchangeId(1), header: header(slot(0)) });
        drop(lanes);
        let reject = sent.try_iter().next();
        assert!(matches!(reject, Some(Outgoing::Reject { error: Error::Internal { .. }, .. })), "{reject:?}");
    }

    #[test]
    fn a_landed_body_is_compared_with_its_checksum() {
        let (lanes, pool, _) = lanes(1);
        let (verdict, verdicts) = unbounded();
        let checksum = crc32c::crc32c(&5_i32.to_le_bytes());
        for value in [5, 6] {
            let verdict = verdict.clone();
            let then = Box::new(move |_: Lease, ok: bool| verdict.send(ok).unwrap());
            let header = Header { flags: Flags::CHECKSUM, checksum, ..header(slot(0)) };
            lanes.submit(Job::Verify { header, body: body(&pool, value), then });
        }
        drop(lanes);
        assert_eq!(verdicts.try_iter().collect::<Vec<bool>>(), [true, false]);
    }

    #[test]
    fn neighbouring_parts_go_to_different_lanes() {
        let lane = |index| lane_of(PartId { index, ..slot(0).part }, 4);
        assert_eq!([0, 1, 2, 3, 4].map(lane), [3, 0, 1, 2, 3]);
    }

    fn lanes(threads: usize) -> (SumLanes, Pool, Receiver<Outgoing>) {
        let (sink, sent) = unbounded();
        let pool = Pool::new();
        let threads = NonZeroUsize::new(threads).unwrap();
        let lanes = SumLanes::new(threads, Kernels::detect(), &pool, move |outgoing| sink.send(outgoing).unwrap());
        (lanes.unwrap(), pool, sent)
    }

    fn body(pool: &Pool, value: i32) -> Lease {
        let mut body = pool.lease(4);
        body.copy_from_slice(&value.to_le_bytes());
        body
    }

    fn slot(index: u32) -> SlotId {
        SlotId { part: PartId { key: TensorKey(7), index }, round: Round(0) }
    }

    fn header(slot: SlotId) -> Header {
        Header {
            kind: HeaderKind::Sum,
            flags: Flags::default(),
            epoch: Epoch::default(),
            part: slot.part,
            dtype: DType::I32,
            op: Op::Sum,
            round: slot.round,
            bytes: 4,
            weight: 1.0,
            contributors: 2,
            urgency: 0,
            checksum: 0,
        }
    }
}
