//! Boundaries between steps: a change passes behind the same step for all, where nothing is open, and nobody is a step ahead. Who wants to
//! leave does so there.

use std::collections::BTreeMap;
use std::time::Duration;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{Passage, StepReport, Time, View, WorkerId, WorkerSet};
use gradlane_core::wire::Frame;

use super::{Checker, Witness};
use crate::sim::workload::{Plan, timing};
use crate::sim::world::Who;

/// What the witness knows of the steps of all workers.
#[derive(Debug, Default)]
pub(super) struct Boundaries {
    walks: BTreeMap<Who, Walk>,
    /// The change that is under way, and its limit, as the coordinator said last.
    open: Option<(u64, Option<u64>)>,
    /// Behind which step each change passed, and the workers from there on. While all hold, those that leave do so one after the other.
    passages: BTreeMap<u64, Vec<(u64, WorkerSet)>>,
    /// Whether workers hold if some of them are lost.
    waits: bool,
    /// Whether others have come.
    have_come: bool,
}

/// The steps of one worker.
#[derive(Debug, Default)]
struct Walk {
    begun: u64,
    rests: bool,
    /// What the coordinator heard last.
    report: StepReport,
    /// Since when it waits at a boundary.
    waits: Option<Time>,
    /// The last change of whose end it has heard.
    heard: u64,
    /// The passage that its next step must tell of.
    news: Option<Passage>,
    /// When it was asked to leave.
    asked: Option<Time>,
}

/// Longer than clocks differ.
const DRIFT: f64 = 1.02;

impl Boundaries {
    pub(super) fn new(plan: &Plan) -> Self {
        Self { waits: plan.classes.waits, ..Self::default() }
    }

    /// Whether a worker waits at a boundary.
    pub(super) fn waits(&self, who: Who) -> bool {
        self.walks.get(&who).is_some_and(|walk| walk.waits.is_some())
    }

    fn walk(&mut self, who: Who) -> &mut Walk {
        self.walks.entry(who).or_default()
    }
}

impl Witness {
    /// A worker whose operations have ended waits at a boundary.
    pub(in crate::sim) fn waits_at_boundary(&mut self, who: Who) {
        let now = self.world;
        self.boundaries.walk(who).waits.get_or_insert(now);
    }

    /// A worker begins a step, and hears of this passage there.
    pub(in crate::sim) fn begins(&mut self, who: Who, passage: Option<&Passage>) {
        let (now, open) = (self.world, self.boundaries.open);
        let walk = self.boundaries.walk(who);
        walk.begun += 1;
        let (begun, rested) = (walk.begun, std::mem::take(&mut walk.rests));
        let (news, asked, _) = (walk.news.take(), walk.asked, walk.waits.take());
        if news.as_ref() != passage {
            let text = format!("{who} hears at the begin of step {begun} of {passage:?}, and not of {news:?}");
            return self.report(Checker::Boundary, text);
        }
        if let Some(Passage { step, .. }) = passage
            && (begun > step + 1 || begun <= *step && !rested)
        {
            let text = format!("{who} hears at the begin of step {begun} of the passage behind step {step}");
            return self.report(Checker::Boundary, text);
        }
        if let Some((change, Some(limit))) = open
            && begun > limit
            && self.is_stepping(who)
        {
            let text = format!("{who} begins step {begun} before change {change} has passed behind step {limit}");
            return self.report(Checker::Boundary, text);
        }
        if self.job.released.contains(&who) {
            return self.report(Checker::Boundary, format!("{who} has left, and begins step {begun}"));
        }
        // It heard of it, or was given up.
        let late = asked.map(|asked| (asked, now.since(asked)));
        let excuse = |asked| self.apart_from_coordinator(who, asked) + timing::DEAD * 2;
        if let Some((asked, waited)) = late
            && waited > timing::LEAVE_GRACE.mul_f64(DRIFT) + excuse(asked)
            && self.job.cause.is_none()
        {
            let text = format!("{who} was asked to leave {:.1} s ago, and begins step {begun}", waited.as_secs_f64());
            self.report(Checker::Boundary, text);
        }
    }

    /// A worker is in no step until it begins the next one.
    pub(in crate::sim) fn rests(&mut self, who: Who) {
        let walk = self.boundaries.walk(who);
        walk.rests = walk.begun > 0;
    }

    /// A worker is asked to leave, and knows it.
    pub(in crate::sim) fn asked_to_leave(&mut self, who: Who) {
        let now = self.world;
        self.boundaries.walk(who).asked.get_or_insert(now);
    }

    /// A worker hears that it has left, where it wanted to begin a step: as it wanted, or because the job forms again.
    pub(in crate::sim) fn goes(&mut self, who: Who, forms_again: bool) {
        let walk = self.boundaries.walk(who);
        walk.waits = None;
        if walk.asked.is_none() && !forms_again || !self.job.released.contains(&who) {
            self.report(Checker::Boundary, format!("{who} hears that it has left"));
        }
    }

    /// A worker waited at a boundary in vain.
    pub(in crate::sim) fn misses_boundary(&mut self, who: Who, error: &Error) {
        let now = self.world;
        let Some(since) = self.boundaries.walk(who).waits.take() else {
            return self.report(Checker::Boundary, format!("{who} cannot begin a step: {error}"));
        };
        self.calls.held_up(who, since, now);
        let mut others = self.job.workers().filter(|other| *other != who);
        let explained =
            matches!(error, Error::Timeout { .. }) && others.any(|other| self.why_late(other, now).is_some());
        if !explained {
            self.report(Checker::Boundary, format!("{who} cannot begin a step: {error}"));
        }
    }

    /// A worker hears how a change ended.
    pub(in crate::sim) fn hears_of_passage(&mut self, who: Who, change: u64, outcome: &Result<Passage>) {
        let known = self.boundaries.passages.get(&change).cloned().unwrap_or_default();
        let walk = self.boundaries.walk(who);
        if let Ok(Passage { step, workers, leaves, forms_again }) = outcome {
            let is_it = known.contains(&(*step, workers.clone()));
            if !is_it || *leaves && walk.asked.is_none() && !forms_again {
                let text = format!("{who} hears of change {change} as {outcome:?}, and the others {known:?}");
                return self.report(Checker::Boundary, text);
            }
        }
        if change > walk.heard {
            walk.heard = change;
            if let Ok(passage) = outcome {
                walk.news = Some(passage.clone()).filter(|passage| !passage.leaves);
            }
        }
    }

    /// The coordinator hears of the steps of a worker.
    pub(super) fn steps_told(&mut self, who: Who, report: StepReport) {
        self.boundaries.walk(who).report = report;
    }

    /// The coordinator says something of a boundary.
    pub(super) fn boundary_said(&mut self, to: Who, frame: &Frame) {
        match frame {
            Frame::Boundary { change, limit, hold: _ } => {
                let is_new = self.boundaries.open != Some((*change, *limit));
                if let Some((before, Some(known))) = self.boundaries.open
                    && before == *change
                    && is_new
                {
                    let text = format!("the limit of change {change} is {limit:?} after {known}");
                    return self.report(Checker::Boundary, text);
                }
                self.boundaries.open = Some((*change, *limit));
                if let Some(limit) = limit.filter(|_| is_new) {
                    self.check_nobody_is_beyond(*change, limit);
                }
            }
            Frame::Passed { change, outcome } => {
                self.boundaries.open = self.boundaries.open.filter(|(open, _)| open != change);
                if let Ok(passage) = outcome {
                    self.check_passage(*change, passage);
                    if passage.leaves {
                        self.lets_go(to);
                    }
                }
            }
            _ => {}
        }
    }

    /// A view does not show who has left.
    pub(super) fn check_view(&mut self, view: &View) {
        let ranks: Vec<Who> = view.workers().filter_map(|member| self.job.worker_of_rank(member.index)).collect();
        if let Some(who) = ranks.iter().find(|who| self.job.released.contains(who)) {
            self.report(Checker::Boundary, format!("{who} has left, and is in the view of {}", view.epoch));
        }
    }

    /// Finds workers that wait at a boundary for too long.
    pub(super) fn check_boundaries_in_time(&mut self) {
        let now = self.world;
        let waits = self.boundaries.walks.iter().filter_map(|(who, walk)| Some((*who, walk.waits?)));
        let is_late = |(who, since): &(Who, Time)| {
            let hold = if self.boundaries.waits { timing::REJOIN } else { Duration::ZERO };
            let promised = (timing::BOUNDARY + hold + timing::DEAD * 4).mul_f64(DRIFT);
            now.since(*since) > promised
                && now.since(*since) > promised + self.apart_from_coordinator(*who, *since)
                && !self.is_gone(*who)
                // Who was given up while it waited hears so at once.
                && !self.job.is_lost(*who)
        };
        if let Some((who, since)) = waits.into_iter().find(is_late) {
            let text = format!("{who} waits at a boundary for {:.1} s", now.since(since).as_secs_f64());
            self.report(Checker::Liveness, text);
        }
    }

    /// A process has come that could be a worker.
    pub(in crate::sim) fn newcomer_comes(&mut self) {
        self.boundaries.have_come = true;
    }

    /// The coordinator ends the job, because too few workers were left for too long.
    pub(in crate::sim) fn gives_up_waiting(&mut self) {
        if !self.boundaries.waits || self.missed().is_none() {
            return self.report(Checker::Boundary, "the job waits for nobody, and ends for that".to_owned());
        }
        self.job.fatal.get_or_insert("nobody came in the place of lost workers".to_owned());
    }

    /// A worker that was lost, and had not left before.
    fn missed(&self) -> Option<Who> {
        self.job.workers().find(|who| self.job.is_lost(*who) && !self.job.left.contains_key(who))
    }

    /// Whether a worker that is given up had wanted to leave for long enough.
    pub(super) fn did_not_leave(&self, who: Who, cause: &str) -> bool {
        let asked = self.boundaries.walks.get(&who).and_then(|walk| walk.asked);
        let is_late = |asked| self.world.since(asked) >= timing::LEAVE_GRACE.mul_f64(2.0 - DRIFT);
        cause.starts_with("it wanted to leave, and did not come to the end of its step") && asked.is_some_and(is_late)
    }

    /// How long a worker could not hear of the coordinator, or could not act.
    fn apart_from_coordinator(&self, who: Who, since: Time) -> Duration {
        let lost = if self.evidence.coordinator_killed() { timing::CONTROL_LOST * 2 } else { Duration::ZERO };
        self.evidence.apart(who, Who::Coordinator, since, self.world) + lost
    }

    /// Whether boundaries wait for a worker.
    fn is_stepping(&self, who: Who) -> bool {
        self.job.is_present(who) && !self.job.left.contains_key(&who) && !self.is_gone(who)
    }

    fn check_nobody_is_beyond(&mut self, change: u64, limit: u64) {
        let beyond = self.boundaries.walks.iter().find(|(who, walk)| walk.begun > limit && self.is_stepping(**who));
        if let Some((who, walk)) = beyond {
            let text = format!("{who} has begun {} steps, and the limit of change {change} is {limit}", walk.begun);
            self.report(Checker::Boundary, text);
        }
    }

    /// The coordinator lets a change pass, or says so again.
    fn check_passage(&mut self, change: u64, Passage { step, workers, leaves, forms_again }: &Passage) {
        let passage = (*step, workers.clone());
        let said = self.boundaries.passages.entry(change).or_default();
        if said.contains(&passage) {
            return;
        }
        said.push(passage);
        if said.len() > 1 && !self.boundaries.waits {
            let text = format!("change {change} passes as {said:?}");
            return self.report(Checker::Boundary, text);
        }
        let holds = self.boundaries.waits && !self.boundaries.have_come && !leaves;
        if let Some(missed) = self.missed().filter(|_| holds) {
            let text = format!("change {change} passes behind step {step} without {missed}, for which all hold");
            return self.report(Checker::Boundary, text);
        }
        let present = |(_, who): &(WorkerId, Who)| self.job.is_present(*who) && !self.job.left.contains_key(who);
        let ranks = (0..).map_while(|rank| Some((WorkerId(rank), self.job.worker_of_rank(rank)?)));
        let (mut wrong, mut leavers) = (None, Vec::new());
        for (rank, who) in ranks.filter(present) {
            let Some(walk) = self.boundaries.walks.get(&who) else {
                wrong = Some(format!("{who} has begun no step"));
                continue;
            };
            let report = walk.report;
            let stands = report.stands && report.begun == *step && report.change == change;
            let rests = report.rests && report.change == change && walk.begun <= *step;
            let goes = stands && report.leaves;
            let is_open = self.calls.open_of(who).next().is_some() || self.uses.open_of(who).next().is_some();
            if stands && (walk.begun != *step || is_open) {
                wrong = Some(format!("{who} has begun {} steps, open: {is_open}", walk.begun));
            } else if !stands && (!rests || *forms_again) {
                wrong = Some(format!("{who} does not stand there: {report:?}"));
            } else if workers.contains(rank) == goes {
                wrong = Some(format!("{who} is of {workers:?}, and said {report:?}"));
            }
            if goes || *forms_again {
                leavers.push(who);
            }
        }
        leavers.into_iter().for_each(|who| self.lets_go(who));
        if let Some(wrong) = wrong {
            self.report(Checker::Boundary, format!("change {change} passes behind step {step}: {wrong}"));
        }
    }

    fn lets_go(&mut self, who: Who) {
        let now = self.world;
        self.job.released.insert(who);
        self.job.left.entry(who).or_insert(now);
    }
}
