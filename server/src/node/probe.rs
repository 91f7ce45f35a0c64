//! What the exporter shows of a server.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gradlane_core::metrics::{Instance, OfProcess as _, ServerMetrics};
use gradlane_core::runtime::exporter::{Shown, Standing, StandingCell};
use gradlane_core::runtime::{Usage, process};
use gradlane_core::types::{Late, Role, WorkerId};

use crate::node::life::ServerState;
use crate::node::recorder::Flight;

/// The metrics and the state of a server, beside its locks: they can be read while every thread of it is stuck.
pub(crate) struct Probe {
    stats: Arc<ServerMetrics>,
    flight: Arc<Flight>,
    standing: StandingCell,
    /// Its index, once it has one.
    index: OnceLock<u32>,
    /// What its process uses.
    pub(crate) usage: Usage,
}

impl Probe {
    pub(crate) fn new(stats: &Arc<ServerMetrics>, flight: &Arc<Flight>) -> Self {
        Self {
            stats: Arc::clone(stats),
            flight: Arc::clone(flight),
            standing: StandingCell::default(),
            index: OnceLock::new(),
            usage: Usage::new(),
        }
    }

    /// It has joined its job. It has one index for its whole life.
    pub(crate) fn joined(&self, index: u32) {
        let _ = self.index.set(index);
        self.stats.placed(Role::Server, index, &process::host());
    }

    /// It has workers of these ranks, from 0.
    pub(crate) fn show_ranks(&self, count: usize) {
        self.stats.late_nanoseconds.show(count);
        self.stats.last.show(count);
    }

    /// A round has its sum.
    pub(crate) fn count_round(&self, took: Duration, last: Option<&(WorkerId, Late)>, is_step: bool) {
        ServerMetrics::add(&self.stats.steps, u64::from(is_step));
        self.stats.round_duration_nanoseconds.add(took);
        if let Some((worker, late)) = last {
            let rank = worker.0 as usize;
            self.stats.last.add(rank, 1);
            self.stats.late_nanoseconds.add_all(rank, late);
        }
    }

    /// Its state may have changed.
    pub(crate) fn follow(&self, state: &ServerState) {
        self.standing.advance(match state {
            ServerState::Joining => Standing::Joining,
            ServerState::Running => Standing::Ready,
            ServerState::Draining => Standing::Ending,
            ServerState::Stopped => Standing::Ended,
            ServerState::Failed(_) => Standing::Failed,
        });
    }

    /// A thread of it panicked or ended.
    pub(crate) fn broke_down(&self) {
        self.standing.advance(Standing::Failed);
    }
}

impl Shown for Probe {
    fn name(&self) -> &'static str {
        "server"
    }

    fn standing(&self) -> Standing {
        self.standing.now()
    }

    fn values(&self) -> Option<Instance> {
        self.usage.refresh(&*self.stats);
        self.flight.count_in(&self.stats.trace_counts());
        self.index.get().map(|index| self.stats.instance(index))
    }
}
