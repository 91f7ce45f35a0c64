//! A worker's side of the agreement on a boundary between two steps.
//!
//! Members leave and join where no worker has an operation under way, behind the same step on all of them. No worker can choose that step
//! alone: another one may have begun the next one. So the coordinator first has all of them begin no further step, and tell how many they
//! have begun. Nobody has begun more than the highest of these numbers, so each worker goes on to that step, and stops behind it. When all
//! of them stand there, the change is made, and they go on.
//!
//! ```text
//!          Boundary without a limit       Boundary with one            begun as many as the limit        Passed
//! Free  ──────────────────────────► Held ───────────────────► Limited ────────────────────────► stands ────────► Free
//! ```
//! Where the workers are too few, all of them stand there until others have come: they hold.
//!
//! A worker that rests between two loops need not stand: it has no step to end, and the others may wait for it elsewhere.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::defect::{Defect, planted};
use crate::types::{Passage, StepReport};

/// The steps of one worker, as a state machine.
///
/// Call [`Steps::begin`] before each step and [`Steps::rest`] after the last one, and report what the coordinator says. After each call,
/// send what [`Steps::next_report`] gives, in this order, and let threads that wait ask again.
#[derive(Debug, Default)]
pub struct Steps {
    report: StepReport,
    /// Whether the coordinator must hear of the report.
    is_untold: bool,
    /// While a change is under way.
    limit: Option<Limit>,
    /// If the job holds at the boundary of this change: for how long at most.
    holds: Option<Duration>,
    /// The last passage, for the next step.
    passage: Option<Passage>,
    /// Why this worker waited at the last boundary in vain, or cannot leave.
    missed: Option<Error>,
    ended: Option<Error>,
    defect: Option<Defect>,
}

/// How far a worker may go while a change is under way.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// The last step that it may begin.
    last: u64,
    /// Whether that is the same on all workers, so that the boundary is behind it.
    is_agreed: bool,
}

/// What a worker that wants to begin a step does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Begin {
    /// It has begun. If the membership may have changed since the step before, this is the passage.
    Begun(Option<Passage>),
    /// Let all operations of this worker end, then ask again and say so.
    Settle,
    /// Ask again when the coordinator has said something.
    Wait,
    /// This worker has left the job, as it wanted.
    Left,
    /// All workers have left the job, and form it again with others.
    FormsAgain(Passage),
}

impl Steps {
    /// No step has begun. The machine makes the mistake `defect`.
    pub fn new(defect: Option<Defect>) -> Self {
        Self { defect, ..Self::default() }
    }

    /// Begins a step, if it may. `is_settled` says that no operation of this worker is under way.
    ///
    /// # Errors
    /// Why the job ended; [`Error::Timeout`] if other workers did not come to the boundary in time; [`Error::FailedPrecondition`] if
    /// this worker wanted to leave and the job cannot go on without it. After such an error of a boundary, the next call begins a step.
    pub fn begin(&mut self, is_settled: bool) -> Result<Begin> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        if let Some(passage) = self.passage.take_if(|passage| passage.leaves) {
            self.ended = Some(left_at(&passage));
            return Ok(if passage.forms_again { Begin::FormsAgain(passage) } else { Begin::Left });
        }
        if let Some(error) = self.missed.take() {
            return Err(error);
        }
        if let Some(limit) = self.limit.filter(|limit| limit.last <= self.report.begun) {
            if !is_settled {
                return Ok(Begin::Settle);
            }
            if limit.is_agreed && !self.report.stands {
                (self.report.stands, self.report.rests, self.is_untold) = (true, false, true);
            }
            return Ok(Begin::Wait);
        }
        self.is_untold |= self.report.begun == 0 || self.report.rests;
        self.report.rests = false;
        self.report.begun += 1;
        Ok(Begin::Begun(self.passage.take()))
    }

    /// Whether [`begin`](Self::begin) would say [`Begin::Wait`] again: the coordinator has said nothing that lets this worker go on or stand.
    pub fn waits(&self) -> bool {
        let is_held =
            self.limit.is_some_and(|limit| limit.last <= self.report.begun && limit.is_agreed == self.report.stands);
        is_held && self.ended.is_none() && self.missed.is_none()
    }

    /// The loop has ended: this worker is in no step until it begins the next one. It may take part in sums and barriers meanwhile.
    pub fn rest(&mut self) {
        if self.report.begun > 0 && !self.report.rests {
            (self.report.rests, self.report.stands, self.is_untold) = (true, false, true);
        }
    }

    /// This worker wants to leave at the next boundary.
    pub fn ask_to_leave(&mut self) {
        self.is_untold |= !self.report.leaves;
        self.report.leaves = true;
    }

    /// A change is under way.
    ///
    /// # Errors
    /// What is wrong with the limit, if this worker has begun more steps already.
    pub fn handle_boundary(&mut self, change: u64, limit: Option<u64>) -> std::result::Result<(), String> {
        if self.is_over(change) {
            return Ok(());
        }
        if change > self.report.change {
            (self.report.change, self.report.stands, self.is_untold) = (change, false, true);
            let last = if planted(self.defect, Defect::LimitNotInstalled) { u64::MAX } else { self.report.begun };
            self.limit = Some(Limit { last, is_agreed: false });
        }
        let Some(last) = limit else { return Ok(()) };
        if last < self.report.begun {
            return Err(format!("is {last}, and this worker has begun {} steps", self.report.begun));
        }
        self.limit = Some(Limit { last, is_agreed: true });
        Ok(())
    }

    /// Whether the workers hold at the boundary of the change that is under way, and for how long at most from now on.
    pub fn handle_hold(&mut self, change: u64, patience: Option<Duration>) {
        if !self.is_over(change) {
            self.holds = patience;
        }
    }

    /// For how long the workers hold at the boundary, at most, as the coordinator said last.
    pub fn holds(&self) -> Option<Duration> {
        self.holds
    }

    /// A change is over, or this worker cannot leave. [`Error::Cancelled`] says that it is not made and that the workers go on.
    pub fn handle_passed(&mut self, change: u64, outcome: Result<Passage>) {
        let is_over = self.is_over(change);
        match outcome {
            Err(error @ Error::FailedPrecondition { .. }) if self.report.leaves => {
                (self.report.leaves, self.missed) = (false, Some(error));
            }
            _ if is_over => {}
            outcome => {
                let (stood, _, _) = (self.report.stands, self.limit.take(), self.holds.take());
                (self.report.change, self.report.stands) = (change, false);
                match outcome {
                    Ok(passage) => self.passage = Some(passage),
                    Err(error) if stood && error != Error::Cancelled => self.missed = Some(error),
                    Err(_) => {}
                }
            }
        }
    }

    /// Whether this worker has heard how a change ended.
    fn is_over(&self, change: u64) -> bool {
        change < self.report.change || (change == self.report.change && self.limit.is_none())
    }

    /// The job has ended for this worker.
    pub fn fail(&mut self, cause: Error) {
        self.ended.get_or_insert(cause);
    }

    /// What the coordinator must hear next, if anything.
    pub fn next_report(&mut self) -> Option<StepReport> {
        std::mem::take(&mut self.is_untold).then_some(self.report)
    }
}

/// Why a worker that has left the job at this boundary can do nothing in it any more.
pub fn left_at(passage: &Passage) -> Error {
    let step = passage.step;
    match passage.forms_again {
        true => Error::FailedPrecondition {
            what: format!("the workers left the job behind step {step}, because it forms again with others"),
            hint: "join it again, and let operations outside of steps end before the next step".to_owned(),
        },
        false => Error::FailedPrecondition {
            what: format!("this worker left the job behind step {step}, as it wanted"),
            hint: "let the loop over the steps end, and the process exit".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{WorkerId, WorkerSet};

    #[test]
    fn without_a_change_steps_begin_and_only_the_first_is_told() {
        let mut steps = Steps::default();
        assert_eq!((steps.begin(false), steps.next_report()), begun(StepReport { begun: 1, ..StepReport::default() }));
        for _ in 0..3 {
            assert_eq!((steps.begin(false), steps.next_report()), (Ok(Begin::Begun(None)), None));
        }
    }

    #[test]
    fn a_worker_goes_on_to_the_step_that_the_furthest_has_begun_and_stands_behind_it() {
        let mut steps = after(3);
        steps.handle_boundary(1, None).unwrap();
        assert_eq!(steps.next_report(), Some(StepReport { begun: 3, change: 1, ..StepReport::default() }));
        assert_eq!(steps.begin(false), Ok(Begin::Settle));
        assert_eq!((steps.begin(true), steps.next_report()), (Ok(Begin::Wait), None), "nobody knows where to stand");
        steps.handle_boundary(1, Some(4)).unwrap();
        assert_eq!(steps.begin(false), Ok(Begin::Begun(None)));
        assert_eq!(steps.begin(true), Ok(Begin::Wait));
        let stands = StepReport { begun: 4, change: 1, stands: true, ..StepReport::default() };
        assert_eq!(steps.next_report(), Some(stands));
        assert_eq!((steps.begin(true), steps.next_report()), (Ok(Begin::Wait), None), "it is told once");
        let passed = passage(4, &[0, 1], false);
        steps.handle_passed(1, Ok(passed.clone()));
        assert_eq!(steps.begin(false), Ok(Begin::Begun(Some(passed))));
        assert_eq!(steps.begin(false), Ok(Begin::Begun(None)));
    }

    #[test]
    fn a_worker_that_wants_to_leave_does_so_at_the_boundary() {
        let mut steps = after(3);
        steps.ask_to_leave();
        assert_eq!(steps.next_report(), Some(StepReport { begun: 3, leaves: true, ..StepReport::default() }));
        assert_eq!(steps.begin(false), Ok(Begin::Begun(None)), "not before");
        steps.handle_boundary(1, None).unwrap();
        steps.handle_boundary(1, Some(4)).unwrap();
        assert_eq!(steps.begin(true), Ok(Begin::Wait));
        steps.handle_passed(1, Ok(passage(4, &[0], true)));
        assert_eq!(steps.begin(false), Ok(Begin::Left));
        assert_eq!(steps.begin(false), Err(left_at(&passage(4, &[0], true))));
    }

    #[test]
    fn where_the_job_forms_again_all_leave_it_and_know_who_goes_on() {
        let mut steps = after(3);
        steps.handle_boundary(1, None).unwrap();
        steps.handle_boundary(1, Some(3)).unwrap();
        assert_eq!(steps.begin(true), Ok(Begin::Wait));
        let again = Passage { forms_again: true, ..passage(3, &[0, 1], true) };
        steps.handle_passed(1, Ok(again.clone()));
        assert_eq!(steps.begin(false), Ok(Begin::FormsAgain(again.clone())));
        assert_eq!(steps.begin(false), Err(left_at(&again)));
    }

    #[test]
    fn repeats_and_late_words_change_nothing() {
        let mut steps = after(3);
        for _ in 0..2 {
            steps.handle_boundary(1, None).unwrap();
            steps.handle_boundary(1, Some(3)).unwrap();
        }
        steps.handle_boundary(1, None).unwrap();
        assert_eq!(steps.begin(true), Ok(Begin::Wait));
        for _ in 0..2 {
            steps.handle_passed(1, Ok(passage(3, &[0], false)));
            steps.handle_boundary(1, Some(3)).unwrap();
        }
        assert!(matches!(steps.begin(false), Ok(Begin::Begun(Some(_)))));
        assert_eq!(steps.begin(false), Ok(Begin::Begun(None)));
        steps.handle_passed(1, Ok(passage(3, &[0], false)));
        assert_eq!(steps.begin(false), Ok(Begin::Begun(None)));
    }

    #[test]
    fn a_worker_that_rests_is_told_of_the_change_when_it_begins_again() {
        let mut steps = after(3);
        steps.rest();
        assert_eq!(steps.next_report(), Some(StepReport { begun: 3, rests: true, ..StepReport::default() }));
        steps.rest();
        assert_eq!(steps.next_report(), None);
        steps.handle_boundary(1, None).unwrap();
        assert_eq!(steps.next_report().map(|report| (report.change, report.rests)), Some((1, true)));
        steps.handle_boundary(1, Some(3)).unwrap();
        let passed = passage(3, &[0], false);
        steps.handle_passed(1, Ok(passed.clone()));
        assert_eq!((steps.begin(false), steps.next_report()), {
            let report = StepReport { begun: 4, change: 1, ..StepReport::default() };
            (Ok(Begin::Begun(Some(passed))), Some(report))
        });
    }

    #[test]
    fn a_boundary_that_others_do_not_reach_is_an_error_for_those_that_wait_and_the_next_step_begins() {
        let late = Error::Timeout { what: "the boundary".to_owned(), waited: std::time::Duration::from_secs(1) };
        let mut waits = after(3);
        let mut works = after(3);
        for steps in [&mut waits, &mut works] {
            steps.handle_boundary(1, None).unwrap();
            steps.handle_boundary(1, Some(3)).unwrap();
        }
        assert_eq!(waits.begin(true), Ok(Begin::Wait));
        for steps in [&mut waits, &mut works] {
            steps.handle_passed(1, Err(late.clone()));
        }
        assert_eq!(waits.begin(false), Err(late));
        assert_eq!((waits.begin(false), works.begin(false)), (Ok(Begin::Begun(None)), Ok(Begin::Begun(None))));
    }

    #[test]
    fn a_passage_is_told_though_the_next_boundary_is_missed() {
        let mut steps = after(3);
        let passed = passage(3, &[0, 1], false);
        let late = Error::Timeout { what: "the boundary".to_owned(), waited: std::time::Duration::from_secs(1) };
        for (change, outcome) in [(1, Ok(passed.clone())), (2, Err(late.clone()))] {
            steps.handle_boundary(change, None).unwrap();
            steps.handle_boundary(change, Some(3)).unwrap();
            assert_eq!(steps.begin(true), Ok(Begin::Wait));
            steps.handle_passed(change, outcome);
        }
        assert_eq!(steps.begin(false), Err(late));
        assert_eq!(steps.begin(false), Ok(Begin::Begun(Some(passed))));
    }

    #[test]
    fn a_change_that_is_not_made_lets_all_go_on() {
        let mut steps = after(3);
        steps.handle_boundary(1, None).unwrap();
        steps.handle_boundary(1, Some(3)).unwrap();
        assert_eq!(steps.begin(true), Ok(Begin::Wait));
        steps.handle_passed(1, Err(Error::Cancelled));
        assert_eq!(steps.begin(false), Ok(Begin::Begun(None)));
    }

    #[test]
    fn a_limit_behind_this_worker_is_no_limit() {
        let mut steps = after(3);
        let problem = steps.handle_boundary(1, Some(2)).unwrap_err();
        assert_eq!(problem, "is 2, and this worker has begun 3 steps");
    }

    #[test]
    fn a_worker_knows_for_how_long_all_hold_until_the_change_is_over() {
        let [long, short] = [600, 90].map(Duration::from_secs);
        let mut steps = after(3);
        steps.handle_boundary(1, None).unwrap();
        steps.handle_boundary(1, Some(3)).unwrap();
        assert_eq!((steps.begin(true), steps.holds()), (Ok(Begin::Wait), None));
        for patience in [long, short] {
            steps.handle_hold(1, Some(patience));
            assert_eq!((steps.begin(true), steps.holds(), steps.waits()), (Ok(Begin::Wait), Some(patience), true));
        }
        steps.handle_passed(1, Ok(passage(3, &[0, 1], false)));
        steps.handle_hold(1, Some(long));
        assert_eq!(steps.holds(), None, "a late word");
        assert!(matches!(steps.begin(false), Ok(Begin::Begun(Some(_)))));
    }

    #[test]
    fn workers_that_are_too_few_from_the_start_stand_before_their_first_step() {
        let mut steps = Steps::default();
        steps.handle_boundary(1, None).unwrap();
        assert_eq!(steps.next_report(), Some(StepReport { change: 1, ..StepReport::default() }));
        steps.handle_boundary(1, Some(0)).unwrap();
        assert_eq!(steps.begin(true), Ok(Begin::Wait));
        assert_eq!(steps.next_report(), Some(StepReport { change: 1, stands: true, ..StepReport::default() }));
        let again = Passage { forms_again: true, ..passage(0, &[0, 1], true) };
        steps.handle_passed(1, Ok(again.clone()));
        assert_eq!(steps.begin(false), Ok(Begin::FormsAgain(again)));
    }

    #[test]
    fn the_end_of_the_job_ends_the_steps() {
        let mut steps = after(1);
        steps.handle_boundary(1, None).unwrap();
        steps.fail(Error::Cancelled);
        assert_eq!(steps.begin(true), Err(Error::Cancelled));
    }

    fn after(begun: u64) -> Steps {
        let mut steps = Steps::default();
        (0..begun).for_each(|_| drop(steps.begin(false).unwrap()));
        steps.next_report();
        steps
    }

    fn begun(report: StepReport) -> (Result<Begin>, Option<StepReport>) {
        (Ok(Begin::Begun(None)), Some(report))
    }

    fn passage(step: u64, workers: &[u32], leaves: bool) -> Passage {
        Passage {
            step,
            workers: workers.iter().copied().map(WorkerId).collect::<WorkerSet>(),
            leaves,
            forms_again: false,
        }
    }
}
