//! What the exporter asks of the parts of this process.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::{Error, Result};
use crate::metrics::Instance;
use crate::types::{ControlAnswer, Stats};
use crate::wire::limits::STATS_MAX;

/// A part of this process that the exporter shows: a worker, a server, or a coordinator.
///
/// The exporter's thread calls the methods, and must not wait in them for a lock that the part's own threads hold: a part that is stuck is
/// just when people look.
pub trait Shown: Send + Sync {
    /// What it is, such as `worker`.
    fn name(&self) -> &'static str;
    /// How far it is.
    fn standing(&self) -> Standing;
    /// Its metrics. `None` as long as it does not know what to call itself, such as its rank.
    fn values(&self) -> Option<Instance>;
    /// What the members of its job have told it about themselves. `None` but of a coordinator.
    fn gathered(&self) -> Option<Gathered> {
        None
    }
    /// A page of HTML for people that shows its whole job. It must need nothing from elsewhere. `None` but of a coordinator.
    fn page(&self) -> Option<String> {
        None
    }
}

/// The metrics of the members of a job, as far as they have told them lately.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Gathered {
    /// Of each member that has told them.
    pub instances: Vec<Instance>,
    /// The members that have not, such as `worker 5`.
    pub missing: Vec<String>,
}

/// The answer to an operator who asks for the metrics of `shown`.
///
/// # Errors
/// [`Error::FailedPrecondition`] if it does not know what to call itself.
pub fn stats(shown: &dyn Shown) -> Result<ControlAnswer> {
    let Some(instance) = shown.values() else {
        return Err(Error::FailedPrecondition {
            what: format!("the {} has no place in its job yet", shown.name()),
            hint: "ask again when the job runs".to_owned(),
        });
    };
    let values = instance.pairs_within(STATS_MAX);
    Ok(ControlAnswer::Stats(Stats { scope: instance.scope.to_owned(), label: instance.label, values }))
}

/// How far a worker, a server or a coordinator is in its life. It only goes on, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Standing {
    /// It has no place in its job yet.
    Joining,
    /// It can do its work.
    Ready,
    /// It completes what has begun, and takes nothing new.
    Ending,
    /// It has left its job, or its job is over.
    Ended,
    /// It can do no more, because it or its job failed.
    Failed,
}

impl Standing {
    const ALL: [Self; 5] = [Self::Joining, Self::Ready, Self::Ending, Self::Ended, Self::Failed];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Ready => "ready",
            Self::Ending => "ending",
            Self::Ended => "ended",
            Self::Failed => "failed",
        }
    }
}

/// The [`Standing`] of one part. Its driver writes it, and the exporter reads it without a lock.
#[derive(Default, Debug)]
pub struct StandingCell(AtomicU8);

impl StandingCell {
    /// Goes on to `standing`. Does nothing if that is behind: a late message does not make ready what has ended.
    pub fn advance(&self, standing: Standing) {
        self.0.fetch_max(standing as u8, Ordering::Relaxed);
    }

    /// The last that it advanced to; joining if it never did.
    pub fn now(&self) -> Standing {
        Standing::ALL[usize::from(self.0.load(Ordering::Relaxed))]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;
    use crate::metrics::{CoordinatorMetrics, LinkReading, OfProcess, ServerMetrics, Value, WaitTimes, WorkerMetrics};
    use crate::types::{Cause, LinkLimit, Role, ServerId};
    use crate::wire::frame::Frame;

    #[test]
    fn the_metrics_of_the_largest_members_arrive_whole() {
        for instance in [largest_server(), largest_worker(), largest_coordinator()] {
            assert!(instance.pairs().len() * 2 < STATS_MAX, "{} has {}", instance.scope, instance.pairs().len());
            let ControlAnswer::Stats(told) = stats(&Only(instance.clone())).unwrap() else { panic!("metrics") };
            let frame = Frame::Metrics(told).encode();
            let Frame::Metrics(heard) = Frame::decode(&frame, "a member").unwrap() else { panic!("metrics") };
            assert_eq!(heard.values, instance.pairs(), "{}", instance.scope);
        }
    }

    #[test]
    fn what_is_more_than_its_reader_takes_is_not_sent() {
        let many: Vec<_> = (0..STATS_MAX).map(|rank| (vec![rank.to_string()], 1)).collect();
        let values = vec![("last", Value::Family(many)), ("sent_bytes", Value::Plain(7))];
        let instance = Instance { values, ..ServerMetrics::default().instance(0) };
        let ControlAnswer::Stats(told) = stats(&Only(instance)).unwrap() else { panic!("metrics") };
        let frame = Frame::Metrics(told).encode();
        let Frame::Metrics(heard) = Frame::decode(&frame, "a member").unwrap() else { panic!("metrics") };
        assert_eq!(heard.values, [("sent_bytes".to_owned(), 7)]);
    }

    #[test]
    fn it_only_goes_on() {
        let cell = StandingCell::default();
        for (to, expected) in [
            (Standing::Joining, Standing::Joining),
            (Standing::Ready, Standing::Ready),
            (Standing::Ended, Standing::Ended),
            (Standing::Ending, Standing::Ended),
            (Standing::Ready, Standing::Ended),
            (Standing::Failed, Standing::Failed),
            (Standing::Ended, Standing::Failed),
        ] {
            cell.advance(to);
            assert_eq!(cell.now(), expected, "after {}", to.word());
        }
    }

    #[test]
    fn every_standing_is_read_back() {
        for standing in Standing::ALL {
            let cell = StandingCell::default();
            cell.advance(standing);
            assert_eq!(cell.now(), standing);
        }
    }

    /// It has these metrics, and nothing else.
    struct Only(Instance);

    impl Shown for Only {
        fn name(&self) -> &'static str {
            self.0.scope
        }

        fn standing(&self) -> Standing {
            Standing::Ready
        }

        fn values(&self) -> Option<Instance> {
            Some(self.0.clone())
        }
    }

    /// More than this many ranks, lanes or members are not shown each.
    const SHOWN: u32 = 256;
    const SECOND: Duration = Duration::from_secs(1);

    fn largest_server() -> Instance {
        let server = ServerMetrics::default();
        server.late_nanoseconds.show(SHOWN as usize);
        server.last.show(SHOWN as usize);
        server.lane_busy_nanoseconds.show(SHOWN as usize);
        server.lane_parts.show((0..SHOWN).map(|_| Arc::new(AtomicUsize::new(1))).collect());
        server.round_duration_nanoseconds.add(SECOND);
        known(&server);
        server.nic_capacity_bytes_per_second.set(&nics());
        server.placed(Role::Server, 0, "n1");
        whole(server.instance(0))
    }

    fn largest_worker() -> Instance {
        let worker = WorkerMetrics::default();
        let before = LinkReading::default();
        let now = LinkReading { limited_nanoseconds: [1; LinkLimit::ALL.len()], ..before };
        for server in 0..64 {
            worker.link(ServerId(server)).read(&before, &now);
        }
        for rank in 0..SHOWN as usize {
            worker.machine_late_nanoseconds.add(rank, &[SECOND; Cause::ALL.len()]);
            worker.machine_last.add(rank, 1);
        }
        for (index, name) in NAMES.into_iter().enumerate() {
            let times = worker.stage_times();
            times.began((index, name), WaitTimes::default());
            times.met((index, name), SECOND);
            times.ended((index, name), SECOND);
            for cell in [&worker.codec_raw_bytes, &worker.codec_wire_bytes, &worker.errors, &worker.exchange_failures] {
                cell.add((index, name), 1);
            }
        }
        known(&worker);
        worker.nic_capacity_bytes_per_second.set(&nics());
        worker.placed(Role::Worker, 0, "n1");
        whole(worker.instance(0))
    }

    fn largest_coordinator() -> Instance {
        let coordinator = CoordinatorMetrics::default();
        let members = (0..SHOWN).map(|index| ((Role::Worker, index), 1));
        coordinator.member_last_seen_nanoseconds.set(members.collect());
        (0..64).for_each(|server| coordinator.placed_bytes.set(server, Some(1)));
        coordinator.configured(1);
        coordinator.placed(Role::Coordinator, 0, "n1");
        whole(coordinator.instance("night"))
    }

    /// As many as a cell of names has.
    const NAMES: [&str; 16] = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M", "N", "O", "P"];

    fn nics() -> Vec<(String, u64)> {
        (0..32).map(|number| (format!("eth{number}"), 1)).collect()
    }

    /// It knows its settings and the clock of its job.
    fn known(metrics: &impl OfProcess) {
        metrics.configured(1);
        let (error, offset) = metrics.clock_cells().unwrap();
        error.set(1);
        offset.set(1);
    }

    /// The same, of which no metric has no number: one that is not counted here would not be tested.
    fn whole(instance: Instance) -> Instance {
        for (name, value) in &instance.values {
            let is_empty = match value {
                Value::Family(numbers) => numbers.is_empty(),
                Value::Histograms(histograms) => histograms.is_empty(),
                Value::Plain(_) | Value::Histogram(_) => false,
            };
            assert!(!is_empty, "{} {name}", instance.scope);
        }
        instance
    }
}
