//! Where the workers stand between two steps, and which of them want to leave there. [`gradlane_core::cluster::Steps`] is a worker's side,
//! and says why a boundary needs an agreement.
//!
//! A change begins when a worker wants to leave, when the workers must be told of a loss behind the same step, or when others wait to be taken
//! in. It begins once all workers have begun a step; a script that counts no steps has none. Nobody is taken in while a worker rests: it may
//! have operations under way.
//!
//! ```text
//!         somebody wants to leave, or a loss is to be told     all have answered      all stand or rest; or nobody wants it; or it is late
//! Quiet ──────────────────────────────────────────────► Held ──────────────────► Limited ─────────────────────────────────────► Quiet
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use gradlane_core::error::Error;
use gradlane_core::types::defect::{Defect, planted};
use gradlane_core::types::{Passage, StepReport, Time, WorkerId};

/// What all workers said of their steps, and the change that is under way.
#[derive(Debug)]
pub(super) struct Boundaries {
    /// How long those that stand wait for the others.
    patience: Duration,
    /// How long a worker that wants to leave has until it stands at a boundary.
    leave_grace: Duration,
    workers: BTreeMap<WorkerId, Said>,
    /// The number of the last change.
    change: u64,
    open: Option<Open>,
    /// The workers of the job as all of them were told last.
    told: Vec<WorkerId>,
    /// Those that have left at a boundary: with which change, and how it passed.
    released: BTreeMap<WorkerId, (u64, Passage)>,
    defect: Option<Defect>,
}

/// What one worker said.
#[derive(Debug)]
struct Said {
    report: StepReport,
    /// If it wants to leave, when it must have done so.
    leaves_until: Option<Time>,
}

/// A change that is under way.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// The last step that any worker begins, once all have answered.
    limit: Option<u64>,
    /// When those that stand have waited long enough; since the first one stands.
    until: Option<Time>,
}

/// What follows for the workers.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Move {
    /// Tell all workers how far they may go.
    Limit { change: u64, limit: Option<u64> },
    /// All stand behind this step, or rest. The job goes on without the leavers, or forms again without them: then all stand.
    Pass { change: u64, step: u64, leavers: Vec<WorkerId>, forms_again: bool },
    /// The change is not made, for this reason.
    Drop { change: u64, reason: Error },
    /// Give up this worker, which did not leave in time.
    Evict { worker: WorkerId, cause: String },
}

impl Boundaries {
    pub(super) fn new(patience: Duration, leave_grace: Duration, defect: Option<Defect>) -> Self {
        Self {
            patience,
            leave_grace,
            workers: BTreeMap::new(),
            change: 0,
            open: None,
            told: Vec::new(),
            released: BTreeMap::new(),
            defect,
        }
    }

    /// A worker says this of its steps. Follow with [`advance`](Self::advance).
    ///
    /// # Errors
    /// The field, and what is wrong with it.
    pub(super) fn report(
        &mut self,
        now: Time,
        worker: WorkerId,
        report: StepReport,
    ) -> std::result::Result<(), (&'static str, String)> {
        if report.change > self.change {
            return Err(("change", format!("is {}, and the last one was {}", report.change, self.change)));
        }
        let before = self.workers.get(&worker);
        if let Some(before) = before.filter(|before| report.begun < before.report.begun) {
            return Err(("begun steps", format!("are {} after {}", report.begun, before.report.begun)));
        }
        let limit = self.open.and_then(|open| open.limit).filter(|_| report.change == self.change);
        if limit.is_some_and(|limit| report.begun > limit)
            || (report.stands && report.begun != limit.unwrap_or(report.begun))
        {
            let limit = limit.map_or_else(|| "of nobody".to_owned(), |limit| limit.to_string());
            return Err(("begun steps", format!("are {}, and the limit is {limit}", report.begun)));
        }
        let asked = before.and_then(|before| before.leaves_until);
        let leaves_until = report.leaves.then(|| asked.unwrap_or(now + self.leave_grace));
        self.workers.insert(worker, Said { report, leaves_until });
        Ok(())
    }

    /// The job begins with these workers, by rank.
    pub(super) fn form(&mut self, workers: Vec<WorkerId>) {
        self.told = workers;
    }

    /// This worker leaves with this change.
    pub(super) fn release(&mut self, worker: WorkerId, change: u64, passage: Passage) {
        self.released.insert(worker, (change, passage));
    }

    /// If this worker has left at a boundary, the change and its passage.
    pub(super) fn released(&self, worker: WorkerId) -> Option<(u64, Passage)> {
        self.released.get(&worker).cloned()
    }

    /// How far a worker that has reconnected may go: the change that is under way, and its limit.
    pub(super) fn limit(&self) -> Option<(u64, Option<u64>)> {
        self.open.map(|open| (self.change, open.limit))
    }

    /// When to call [`expire`](Self::expire).
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let leavers = self.workers.values().filter_map(|said| said.leaves_until);
        leavers.chain(self.open.and_then(|open| open.until)).min()
    }

    /// What is too late. Follow with [`advance`](Self::advance). `name` describes a worker.
    pub(super) fn expire(&mut self, now: Time, due: &[WorkerId], name: impl Fn(WorkerId) -> String) -> Vec<Move> {
        let mut moves = Vec::new();
        if let Some(Open { limit: Some(step), .. }) = self.open.filter(|open| open.until.is_some_and(|at| at <= now)) {
            self.open = None;
            let missing: Vec<String> =
                due.iter().filter(|worker| !self.is_ready(**worker, step)).map(|worker| name(*worker)).collect();
            let what = format!("the boundary behind step {step}: waiting for {}", missing.join(", "));
            let reason = Error::Timeout { what, waited: self.patience };
            moves.push(Move::Drop { change: self.change, reason });
        }
        for (worker, said) in &mut self.workers {
            if said.leaves_until.take_if(|until| *until <= now).is_some() {
                let seconds = self.leave_grace.as_secs_f64();
                let cause =
                    format!("it wanted to leave, and did not come to the end of its step within {seconds:.1} s");
                moves.push(Move::Evict { worker: *worker, cause });
            }
        }
        moves
    }

    /// The next step of the agreement, if one is due. Call it until there is none. `due` are the workers of the job, by rank; `newcomers` says
    /// whether others wait to be taken in.
    pub(super) fn advance(&mut self, now: Time, due: &[WorkerId], newcomers: bool) -> Option<Move> {
        self.workers.retain(|worker, _| due.contains(worker));
        let report = |worker: &WorkerId| self.workers.get(worker).map_or_else(StepReport::default, |said| said.report);
        let change = self.change;
        // Nobody can wait for a leaver that rests: it may itself wait for the others, in a sum outside of any step. It leaves at a later
        // boundary, when it is in a step again.
        let leaves = |worker: &WorkerId| {
            let report = report(worker);
            report.leaves && !report.rests
        };
        let rests = due.iter().any(|worker| report(worker).rests);
        let forms_again = newcomers && (!rests || planted(self.defect, Defect::TakenInAtRest));
        let is_wanted = due != self.told || due.iter().any(leaves) || forms_again;
        match self.open {
            None => {
                let all_count = !due.is_empty() && due.iter().map(report).all(|report| report.begun > 0);
                (is_wanted && all_count).then(|| {
                    self.change += 1;
                    self.open = Some(Open { limit: None, until: None });
                    Move::Limit { change: self.change, limit: None }
                })
            }
            Some(Open { limit: None, .. }) => {
                let answered = |report: &StepReport| report.change == change;
                let reports: Vec<StepReport> = due.iter().map(report).collect();
                if !reports.iter().all(answered) && !planted(self.defect, Defect::LimitBeforeAnswers) {
                    return None;
                }
                let limit = reports.iter().map(|report| report.begun).max();
                self.open = Some(Open { limit, until: None });
                Some(Move::Limit { change, limit })
            }
            Some(Open { limit: Some(step), until }) => {
                if !is_wanted {
                    self.open = None;
                    return Some(Move::Drop { change, reason: Error::Cancelled });
                }
                let ready = due.iter().filter(|worker| self.is_ready(**worker, step)).count();
                if ready == due.len() {
                    let leavers: Vec<WorkerId> = due.iter().copied().filter(leaves).collect();
                    self.open = None;
                    self.told = due.iter().copied().filter(|worker| !leavers.contains(worker)).collect();
                    return Some(Move::Pass { change, step, leavers, forms_again });
                }
                if ready > 0 && until.is_none() {
                    self.open = Some(Open { limit: Some(step), until: Some(now + self.patience) });
                }
                None
            }
        }
    }

    /// Whether the others need not wait for this worker behind `step`.
    fn is_ready(&self, worker: WorkerId, step: u64) -> bool {
        let report = self.workers.get(&worker).map(|said| said.report);
        report.is_some_and(|report| {
            let stands = report.stands && report.begun == step;
            report.change == self.change && (stands || report.rests || planted(self.defect, Defect::PassedEarly))
        })
    }
}
