//! Follows the formations of the worker: equips the engine for each, one after the other.
//!
//! ```text
//!  Command::Follow ──► bell ──► the latest formation ──► another team? ── no ──► threads of new stages ──► handle_equipped
//!                                                          └─ yes ─► part from the former team ─► meet the new one ─┘
//! ```
//! A formation that comes while an earlier one is followed makes that one obsolete: meeting its team is given up.

use std::sync::Arc;
use std::time::Duration;

use super::formation_news::FormationNews;
use super::local_peers::{self, Accounting};
use super::shared::Shared;
use super::stages::Stages;
use crate::collective::{Begun, Hears};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::local::{OwnThread, PrivateSocket};
use crate::pipeline::Stage;
use crate::types::meeting_again;
use crate::worker::Formation;

/// The thread that follows.
pub(super) struct Following {
    news: Arc<FormationNews>,
    thread: OwnThread,
}

/// What the thread knows and has.
struct Follower {
    shared: Arc<Shared>,
    stages: Arc<Stages>,
    config: Config,
    /// Where other workers of this machine reach this one. Kept only if they may have to meet again.
    socket: Option<Arc<PrivateSocket>>,
    /// The team for which the engine is equipped.
    team: Option<u32>,
}

impl Following {
    /// Starts the thread, which follows whenever [`Shared::following`] is told to. Ends the engine if it cannot follow a formation.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread.
    pub(super) fn start(
        shared: Arc<Shared>,
        stages: Arc<Stages>,
        config: Config,
        socket: Option<PrivateSocket>,
    ) -> Result<Self> {
        let news = Arc::clone(&shared.following);
        let mut follower = Follower { shared, stages, config, socket: socket.map(Arc::new), team: None };
        let thread = OwnThread::start("gl-formation", move || {
            loop {
                if !follower.shared.following.wait() {
                    return;
                }
                let shared = Arc::clone(&follower.shared);
                // A panic ends every handle.
                let _ = shared.guard(|| follower.follow_latest());
            }
        })?;
        Ok(Self { news, thread })
    }

    /// Ends the thread: what it does now is given up. Waits at most for `patience`.
    pub(super) fn end(&self, patience: Duration) {
        self.news.end();
        self.thread.join(patience);
    }
}

impl Follower {
    fn is_over(&self) -> bool {
        self.shared.following.is_over()
    }

    fn follow_latest(&mut self) {
        let latest = self.shared.look(|state| state.worker.formation().cloned().map(|it| (it, state.worker.team())));
        let Some((formation, team)) = latest else { return };
        match self.follow(&formation, team) {
            Ok(()) => {
                self.shared.report(|state, now| state.worker.handle_equipped(now, team));
                self.shared.milestones.change(|reached| reached.equipped = true);
            }
            // Whoever starts the engine gets the error. Later nobody waits for it.
            Err(error) if self.team.is_none() => {
                self.shared.milestones.change(|reached| reached.failed = reached.failed.take().or(Some(error)));
            }
            // It was given up.
            Err(_) if self.is_over() || self.is_obsolete(team) || self.shared.milestones.failed().is_some() => {}
            Err(error) => drop(self.shared.break_down(error)),
        }
    }

    /// Equips the engine for a formation, in which this worker has the team of this number.
    fn follow(&mut self, formation: &Formation, team: u32) -> Result<()> {
        if self.team != Some(team) {
            if let Some(former) = self.shared.company.any() {
                let stay: Vec<_> = formation.view.workers().map(|worker| worker.process.incarnation).collect();
                former.part(parted(), &stay, self.config.step_timeout);
            }
            // Until then, threads that wait for handles find the former one, where nothing happens any more.
            match formation.pipeline.stages().iter().any(|stage| stage.is_collective()) {
                true => self.meet(formation, team)?,
                false => self.shared.company.clear(),
            }
            self.team = Some(team);
        }
        self.stages.start(formation.pipeline.stages())
    }

    fn meet(&mut self, formation: &Formation, team: u32) -> Result<()> {
        let goes_on = local_peers::goes_on(&self.config);
        let socket = if goes_on { self.socket.clone() } else { self.socket.take() };
        let reporter = Arc::downgrade(&self.shared);
        let on_stall = Box::new(move |stall| {
            if let Some(shared) = reporter.upgrade() {
                shared.tell(|membership| membership.reporter().report_stall(stall));
            }
        });
        let witness = Arc::downgrade(&self.shared);
        let peers = local_peers::processes(formation);
        let on_lost: Box<dyn Fn(usize) + Send> = Box::new(move |position: usize| {
            if let Some(shared) = witness.upgrade() {
                let (node, pid) = peers[position];
                shared.tell(|membership| membership.reporter().report_end(node, pid));
            }
        });
        let metrics = &self.shared.metrics;
        let counts = Arc::clone(metrics);
        let on_last = Box::new(move |last| counts.count_last(&last));
        let times = metrics.stage_times();
        let on_begun = Box::new(move |Begun { goal, waited }| {
            let stage = Stage::of(&goal);
            times.met((stage.index(), stage.name()), waited);
        });
        let accounting =
            Accounting { copies: metrics.copies(), doubt: self.shared.doubt.clone(), traffic: metrics.traffic() };
        let given_up = || match self.is_over() || self.is_obsolete(team) {
            true => Some(parted()),
            false => self.shared.milestones.failed(),
        };
        let (is_again, clock) = (self.team.is_some(), self.shared.clock);
        let hears = (Hears { on_stall, on_last, on_begun }, on_lost);
        let collective =
            local_peers::meet(&self.config, formation, (socket, is_again), accounting, clock, hears, &given_up)?;
        self.shared.company.set(team, collective);
        Ok(())
    }

    /// Whether there is a later formation with another team.
    fn is_obsolete(&self, team: u32) -> bool {
        self.shared.look(|state| state.worker.team()) != team
    }
}

/// Why the ranks of a former team do not begin what they had not begun.
fn parted() -> Error {
    meeting_again("their number has changed")
}
