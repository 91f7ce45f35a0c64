//! A team is one contender: the processes of its ranks, and the processes that serve them. All teams of a run do the same work in turns.

pub(crate) mod buffers;
pub(crate) mod coded;
pub(crate) mod collective;
pub(crate) mod contest;
pub(crate) mod gloo;
pub(crate) mod mpi;
pub(crate) mod orders;
pub(crate) mod process;
pub(crate) mod rank;

use std::collections::BTreeMap;
use std::time::Duration;

use gradlane_core::types::DType;

use crate::memory::Traffic;
use crate::report::Place;
use collective::Collective;
use orders::{Answer, Case, Measured, Order, Repeat, slowest};
use process::Process;

/// A contender. Dropping it kills its processes.
pub(crate) struct Team {
    /// Its name in tables, such as `quic` or `gloo`.
    pub(crate) name: String,
    /// What it is and how its bytes travel, for the head of the table; empty where that is plain.
    pub(crate) about: String,
    /// Whether it is ours.
    pub(crate) ours: bool,
    /// How many ranks it has.
    pub(crate) size: u32,
    /// The cases that it supports.
    pub(crate) abilities: Abilities,
    /// What the interface counters mean; `None` if its bytes pass no network.
    pub(crate) wire: Option<Wire>,
    /// The bytes of memory that a reduction must touch, if all bytes go through memory.
    pub(crate) traffic: Option<Traffic>,
    /// One process per rank, or one process for all.
    pub(crate) ranks: Vec<Process>,
    /// Coordinator and servers. They only report their processor time, and are dismissed last.
    pub(crate) helpers: Vec<Process>,
    /// How long an order may take.
    pub(crate) patience: Duration,
}

/// The cases that a contender supports; the others are left out of its rows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Abilities {
    /// All-reduces to other memory than the contribution. The other collectives always do.
    pub(crate) out_of_place: bool,
    /// Means, besides sum, min and max.
    pub(crate) mean: bool,
    /// Element types.
    pub(crate) dtypes: &'static [DType],
}

/// Which bytes the interface counters of a rank include.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Wire {
    /// Each rank has its own network namespace, so that the counters include only its bytes.
    OwnLink,
    /// All processes share the loopback interface, which counts every byte once. `ends` is how many ends of it are ranks: 1 where ranks
    /// talk to servers, 2 where they talk to each other.
    Loopback {
        /// See [`Wire::Loopback`].
        ends: u32,
    },
}

/// One repetition of a team.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Repetition {
    /// The time of each exchange, on its slowest rank.
    pub(crate) seconds: Vec<f64>,
    /// The time of all timed exchanges, on the slowest rank.
    pub(crate) total_seconds: f64,
    /// The processor time of all processes for the timed exchanges.
    pub(crate) cpu_seconds: f64,
    /// The bytes on a rank's link in one direction: the mean over directions and ranks. `None` if the bytes pass no network.
    pub(crate) wire_bytes: Option<f64>,
    /// The bytes of bodies that a rank pushed or pulled: the mean over both and over ranks. `None` if no rank counts them.
    pub(crate) body_bytes: Option<f64>,
    pub(crate) wrong: u64,
    pub(crate) wrong_at: Option<String>,
    /// See [`Measured::late`].
    pub(crate) late: u64,
}

impl Team {
    /// Orders every rank to join, each with its own arguments from `with`.
    ///
    /// # Errors
    /// What the first rank that could not says.
    pub(crate) fn join(&mut self, with: impl Fn(u32) -> BTreeMap<String, String>) -> Result<(), String> {
        let ranks = self.size;
        for (rank, process) in (0..).zip(&mut self.ranks) {
            process.order(&Order::Join { rank, ranks, with: with(rank) })?;
        }
        self.all_done()
    }

    /// Waits until every rank has obeyed the order.
    ///
    /// # Errors
    /// As [`Team::join`].
    pub(crate) fn wait_ready(&mut self) -> Result<(), String> {
        self.ranks.iter_mut().try_for_each(|process| process.order(&Order::Usage))?;
        self.ranks.iter_mut().try_for_each(|process| process.answer(self.patience).map(drop))
    }

    /// Whether it supports this case.
    pub(crate) fn can(&self, case: &Case, place: Place) -> bool {
        let Abilities { out_of_place, mean, dtypes } = self.abilities;
        let plain = self.ours || (case.backlog_bytes == 0 && case.codec.is_none());
        let placed = match case.collective {
            Collective::AllReduce => out_of_place || place == Place::In,
            Collective::ReduceScatter | Collective::AllGather | Collective::AllToAll => place == Place::Out,
        };
        plain && placed && (mean || case.op != "mean") && dtypes.contains(&case.dtype())
    }

    /// Prepares a case.
    ///
    /// # Errors
    /// As [`Team::join`].
    pub(crate) fn prepare(&mut self, case: &Case) -> Result<(), String> {
        for process in &mut self.ranks {
            process.order(&Order::Prepare(case.clone()))?;
        }
        self.all_done()
    }

    /// Measures the case once.
    ///
    /// # Errors
    /// As [`Team::join`].
    pub(crate) fn repeat(&mut self, repeat: &Repeat) -> Result<Repetition, String> {
        let before = self.helpers_cpu_seconds()?;
        for (rank, process) in self.ranks.iter_mut().enumerate() {
            process.order(&Order::Repeat(Repeat { spoil: repeat.spoil && rank == 0, ..repeat.clone() }))?;
        }
        let mut measured = Vec::new();
        for process in &mut self.ranks {
            match process.answer(self.patience)? {
                Answer::Measured(figures) => measured.push(figures),
                other => return Err(format!("a rank of {} was asked to measure and answered {other:?}", self.name)),
            }
        }
        // Helpers do not know which exchanges are timed, so the warm-up gets its share. The bytes of barriers are too few to matter.
        let timed = f64::from(repeat.iterations) / f64::from(repeat.iterations + repeat.warmup);
        let helpers = (self.helpers_cpu_seconds()? - before) * timed;
        Ok(Repetition::of(&measured, helpers, self.wire))
    }

    /// Ends the team in order.
    ///
    /// # Errors
    /// The processes that did not end, or failed.
    pub(crate) fn end(mut self) -> Result<(), String> {
        const GRACE: Duration = Duration::from_secs(20);
        for process in &mut self.ranks {
            process.dismiss();
        }
        for process in &mut self.ranks {
            process.wait(GRACE)?;
        }
        for process in &mut self.helpers {
            process.dismiss();
        }
        self.helpers.iter_mut().try_for_each(|process| process.wait(GRACE))
    }

    fn all_done(&mut self) -> Result<(), String> {
        for process in &mut self.ranks {
            match process.answer(self.patience)? {
                Answer::Done => {}
                other => return Err(format!("a rank of {} answered {other:?}", self.name)),
            }
        }
        Ok(())
    }

    fn helpers_cpu_seconds(&mut self) -> Result<f64, String> {
        let mut sum = 0.0;
        for process in &mut self.helpers {
            process.order(&Order::Usage)?;
            match process.answer(self.patience)? {
                Answer::Usage { cpu_seconds } => sum += cpu_seconds,
                other => return Err(format!("a helper of {} answered {other:?}", self.name)),
            }
        }
        Ok(sum)
    }
}

impl Repetition {
    fn of(ranks: &[Measured], helpers_cpu_seconds: f64, wire: Option<Wire>) -> Self {
        let total = |rank: &Measured| rank.seconds.iter().sum::<f64>();
        let bytes = |rank: &Measured| (rank.sent_bytes + rank.received_bytes) as f64 / 2.0;
        let counted: Option<u64> = ranks.iter().map(|rank| rank.body_bytes).sum();
        let mean = ranks.iter().map(bytes).sum::<f64>() / ranks.len() as f64;
        Self {
            seconds: slowest(ranks),
            total_seconds: ranks.iter().map(total).fold(0.0, f64::max),
            cpu_seconds: helpers_cpu_seconds + ranks.iter().map(|rank| rank.cpu_seconds).sum::<f64>(),
            wire_bytes: wire.map(|wire| match wire {
                Wire::OwnLink => mean,
                // The loopback interface counts every byte as sent and as received; each direction of a rank has half of the bytes of its
                // ends.
                Wire::Loopback { ends } => mean * f64::from(ends) / (2.0 * ranks.len() as f64),
            }),
            body_bytes: counted.map(|of| of as f64 / 2.0 / ranks.len() as f64),
            wrong: ranks.iter().map(|rank| rank.wrong).sum(),
            late: ranks.iter().map(|rank| rank.late).sum(),
            wrong_at: ranks.iter().find_map(|rank| rank.wrong_at.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(seconds: &[f64], bytes: u64) -> Measured {
        Measured { seconds: seconds.to_vec(), sent_bytes: bytes, received_bytes: bytes, ..Measured::default() }
    }

    #[test]
    fn an_exchange_takes_as_long_as_on_its_slowest_rank() {
        let ranks = [rank(&[1.0, 4.0], 0), rank(&[2.0, 1.0], 0)];
        let repetition = Repetition::of(&ranks, 0.5, None);
        assert_eq!((repetition.seconds, repetition.total_seconds), (vec![2.0, 4.0], 5.0));
        assert_eq!((repetition.cpu_seconds, repetition.wire_bytes), (0.5, None));
    }

    #[test]
    fn the_loopback_counts_each_byte_once_for_all_ranks() {
        // Two workers push 100 bytes each to a server and get 100 each: 400 on the interface, 100 a worker and direction.
        let pushes = [rank(&[1.0], 400), rank(&[1.0], 400)];
        assert_eq!(Repetition::of(&pushes, 0.0, Some(Wire::Loopback { ends: 1 })).wire_bytes, Some(100.0));
        // Two ranks of a ring send 100 bytes each to the other: 200 on the interface.
        let ring = [rank(&[1.0], 200), rank(&[1.0], 200)];
        assert_eq!(Repetition::of(&ring, 0.0, Some(Wire::Loopback { ends: 2 })).wire_bytes, Some(100.0));
        assert_eq!(Repetition::of(&ring, 0.0, Some(Wire::OwnLink)).wire_bytes, Some(200.0));
    }
}
