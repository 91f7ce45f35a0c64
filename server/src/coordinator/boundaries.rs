//! Where the workers stand between two steps, and which of them want to leave there. [`gradlane_core::cluster::Steps`] is a worker's side,
//! and says why a boundary needs an agreement.
//!
//! A change begins when a worker wants to leave, when the workers must be told of a loss behind the same step, or when others wait to be taken
//! in. It begins once all workers have begun a step; a script that counts no steps has none. Nobody is taken in while a worker rests: it may
//! have operations under way.
//!
//! If the workers are too few, and the job waits for others then, they *hold*: the change does not pass before enough have come, or their time
//! is over. Who wants to leave is let go meanwhile.
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
    /// How long workers that are too few hold, if they do.
    rejoin: Option<Duration>,
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
    /// Since the workers hold.
    hold: Option<Hold>,
}

/// The workers hold.
#[derive(Clone, Copy, Debug)]
struct Hold {
    until: Time,
    /// How many workers are missing, as all were told.
    lacking: u32,
}

/// The workers that have come or should, besides those of the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Others {
    /// Whether some wait that can be taken in.
    pub(super) wait: bool,
    /// How many are missing besides them. None is missing where the job does not wait for others.
    pub(super) lacking: u32,
    /// Whether the job has formed before. Then all workers count steps, and need not have begun one.
    pub(super) came_before: bool,
}

/// What follows for the workers.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Move {
    /// Tell all workers how far they may go.
    Limit { change: u64, limit: Option<u64> },
    /// All stand behind this step, or rest. The job goes on without the leavers, or forms again without them: then all stand.
    Pass { change: u64, step: u64, leavers: Vec<WorkerId>, forms_again: bool },
    /// The workers stand behind this step, and hold until others have come. Said again if another number of them is missing.
    Hold { change: u64, step: u64 },
    /// The workers hold behind this step, and these want to leave. The others go on holding.
    Release { change: u64, step: u64, leavers: Vec<WorkerId> },
    /// The others have not come in this time.
    GiveUp { waited: Duration },
    /// The change is not made, for this reason.
    Drop { change: u64, reason: Error },
    /// Give up this worker, which did not leave in time.
    Evict { worker: WorkerId, cause: String },
}

impl Boundaries {
    pub(super) fn new(
        patience: Duration,
        leave_grace: Duration,
        rejoin: Option<Duration>,
        defect: Option<Defect>,
    ) -> Self {
        Self {
            patience,
            leave_grace,
            rejoin,
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

    /// Until when the workers hold, if they do.
    pub(super) fn holds_until(&self) -> Option<Time> {
        self.open.and_then(|open| open.hold).map(|hold| hold.until)
    }

    /// Another coordinator goes on with the job, or this one was asleep: who waits at a boundary has its time anew, and so has who wants to
    /// leave, because the workers come back only now.
    pub(super) fn wait_again(&mut self, now: Time) {
        for said in self.workers.values_mut() {
            said.leaves_until = said.leaves_until.map(|_| now + self.leave_grace);
        }
        if let Some(open) = &mut self.open {
            open.until = open.until.map(|_| now + self.patience);
            if let (Some(hold), Some(rejoin)) = (&mut open.hold, self.rejoin) {
                hold.until = now + rejoin;
            }
        }
    }

    /// When to call [`expire`](Self::expire).
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let leavers = self.workers.values().filter_map(|said| said.leaves_until);
        leavers.chain(self.open.and_then(|open| open.until)).chain(self.holds_until()).min()
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
        if let Some(waited) = self.rejoin.filter(|_| self.holds_until().is_some_and(|until| until <= now)) {
            self.open = None;
            moves.push(Move::GiveUp { waited });
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

    /// The next step of the agreement, if one is due. Call it until there is none. `due` are the workers of the job, by rank, and
    /// `others` those that could join them.
    pub(super) fn advance(&mut self, now: Time, due: &[WorkerId], others: Others) -> Option<Move> {
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
        let forms_again = others.wait && (!rests || planted(self.defect, Defect::TakenInAtRest));
        let are_few = others.lacking > 0 && !planted(self.defect, Defect::TooFewPass);
        let is_wanted = due != self.told || due.iter().any(leaves) || forms_again || are_few;
        match self.open {
            None => {
                let all_count = due.iter().map(report).all(|report| report.begun > 0);
                let may_begin = !due.is_empty() && (all_count || are_few && others.came_before);
                (is_wanted && may_begin).then(|| {
                    self.change += 1;
                    self.open = Some(Open { limit: None, until: None, hold: None });
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
                self.open = Some(Open { limit, until: None, hold: None });
                Some(Move::Limit { change, limit })
            }
            Some(open @ Open { limit: Some(step), until, hold }) => {
                if !is_wanted {
                    self.open = None;
                    return Some(Move::Drop { change, reason: Error::Cancelled });
                }
                let ready = due.iter().filter(|worker| self.is_ready(**worker, step)).count();
                let leavers: Vec<WorkerId> = due.iter().copied().filter(leaves).collect();
                if ready == due.len() && are_few {
                    if !leavers.is_empty() {
                        return Some(Move::Release { change, step, leavers });
                    }
                    // Where all rest, nobody waits.
                    let stands = due.iter().any(|worker| report(worker).stands);
                    let rejoin = self.rejoin.filter(|_| stands || hold.is_some());
                    let until = hold.map(|hold| hold.until).or(rejoin.map(|rejoin| now + rejoin))?;
                    self.open = Some(Open { until: None, hold: Some(Hold { until, lacking: others.lacking }), ..open });
                    let is_news = hold.is_none_or(|hold| hold.lacking != others.lacking);
                    return if is_news { Some(Move::Hold { change, step }) } else { None };
                }
                if ready == due.len() {
                    self.open = None;
                    self.told = due.iter().copied().filter(|worker| !leavers.contains(worker)).collect();
                    return Some(Move::Pass { change, step, leavers, forms_again });
                }
                if ready > 0 && until.is_none() && hold.is_none() {
                    self.open = Some(Open { until: Some(now + self.patience), ..open });
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
