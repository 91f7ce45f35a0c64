//! Named barriers: one completes when every worker arrived, or ends with one error for all workers that wait at it.
//!
//! An arrival is a (worker, request), so a repeat of the same request is the same arrival. Answers are remembered for a while, because
//! the repeat may come after the answer was lost. A name is free for the next barrier as soon as the last one ended.

use std::collections::BTreeMap;
use std::time::Duration;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::defect::{Defect, planted};
use gradlane_core::types::{Time, WorkerId, WorkerSet};
use gradlane_core::wire::limits;

/// The barriers of a job.
#[derive(Debug)]
pub(super) struct Barriers {
    /// The workers that every barrier waits for.
    due: WorkerSet,
    open: BTreeMap<String, Open>,
    /// The last answers of each worker. A worker waits at no more barriers at once than are remembered.
    answered: BTreeMap<WorkerId, BTreeMap<u64, Result<()>>>,
    /// The worker that left, because of which no barrier can complete any more.
    broken: Option<String>,
    defect: Option<Defect>,
    /// Barriers that failed for good, with the cause.
    failed: BTreeMap<String, Error>,
}

/// A worker at a barrier.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) worker: WorkerId,
    /// Its number for this arrival.
    pub(super) request: u64,
    pub(super) name: String,
    /// How long it waits.
    pub(super) timeout: Duration,
}

/// The end of one worker's wait.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Answer {
    pub(super) worker: WorkerId,
    pub(super) request: u64,
    pub(super) outcome: Result<()>,
}

#[derive(Debug)]
struct Open {
    since: Time,
    /// The earliest of its waiters' deadlines.
    until: Time,
    arrived: BTreeMap<WorkerId, u64>,
    /// How often [`Defect::BarrierCountsRequests`] saw a worker arrive.
    counted: u32,
}

impl Barriers {
    /// The barriers of a job with the workers of ranks 0 to `workers`.
    pub(super) fn new(workers: u32, defect: Option<Defect>) -> Self {
        let due = (0..workers).map(WorkerId).collect();
        let (open, answered, failed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { due, open, answered, failed, broken: None, defect }
    }

    /// A worker arrives, perhaps not for the first time. Returns the answers of the workers that need not wait any longer.
    pub(super) fn arrive(&mut self, now: Time, arrival: Arrival) -> Vec<Answer> {
        let Arrival { worker, request, name, timeout } = arrival;
        let remembered = self.answered.get(&worker).and_then(|answers| answers.get(&request));
        if let Some(outcome) = remembered
            && !planted(self.defect, Defect::BarrierAnswerForgotten)
        {
            return vec![Answer { worker, request, outcome: outcome.clone() }];
        }
        if let Err(error) = self.check(worker, request, &name) {
            return vec![self.answer(worker, request, Err(error))];
        }
        let fresh = Open { since: now, until: now + timeout, arrived: BTreeMap::new(), counted: 0 };
        let open = self.open.entry(name.clone()).or_insert(fresh);
        open.until = open.until.min(now + timeout);
        open.arrived.insert(worker, request);
        open.counted += 1;
        let counted = planted(self.defect, Defect::BarrierCountsRequests) && open.counted as usize >= self.due.len();
        if open.arrived.len() == self.due.len() || counted {
            return self.end(&name, &Ok(()));
        }
        Vec::new()
    }

    /// Another coordinator goes on with the job: all workers come back, and those that still wait say so again, with the time that they have
    /// left. One that has given up in the meantime does not.
    pub(super) fn wait_again(&mut self) {
        if planted(self.defect, Defect::AwayCounts) {
            return;
        }
        self.open.clear();
    }

    /// This coordinator was asleep, so that no barrier ends before `until`: workers may have arrived of which it has not heard.
    pub(super) fn be_patient(&mut self, until: Time) {
        for open in self.open.values_mut() {
            open.until = open.until.max(until);
        }
    }

    /// Ends the barriers whose earliest waiter is out of time, for all their waiters alike.
    pub(super) fn expire(&mut self, now: Time) -> Vec<Answer> {
        let late = self.open.iter().filter(|(_, open)| open.until <= now);
        let verdicts: Vec<(String, Error)> = late
            .map(|(name, open)| {
                let what = format!("barrier {name:?}: waiting for {}", self.describe_missing(open));
                (name.clone(), Error::Timeout { what, waited: now.since(open.since) })
            })
            .collect();
        verdicts.into_iter().flat_map(|(name, error)| self.end(&name, &Err(error))).collect()
    }

    /// This barrier fails for good, also for workers that come later. Returns the answers of those that wait at it.
    pub(super) fn fail(&mut self, name: String, cause: &Error) -> Vec<Answer> {
        let answers = self.end(&name, &Err(cause.clone()));
        self.failed.insert(name, cause.clone());
        answers
    }

    /// From now on barriers wait for these workers only, because others were lost. Returns the answers of the barriers that this completes.
    pub(super) fn set_due(&mut self, due: WorkerSet) -> Vec<Answer> {
        self.answered.retain(|worker, _| due.contains(*worker));
        for open in self.open.values_mut() {
            open.arrived.retain(|worker, _| due.contains(*worker));
        }
        self.open.retain(|_, open| !open.arrived.is_empty());
        let complete = self.open.iter().filter(|(_, open)| open.arrived.len() == due.len());
        let names: Vec<String> = complete.map(|(name, _)| name.clone()).collect();
        self.due = due;
        names.into_iter().flat_map(|name| self.end(&name, &Ok(()))).collect()
    }

    /// A worker left, so no barrier can complete any more: those that are open fail, and so does every later one.
    pub(super) fn break_all(&mut self, who: String) -> Vec<Answer> {
        let names: Vec<String> = self.open.keys().cloned().collect();
        let answers = names.into_iter().flat_map(|name| self.end(&name, &Err(broken(&name, &who)))).collect();
        self.broken.get_or_insert(who);
        answers
    }

    /// The job failed.
    pub(super) fn fail_all(&mut self, cause: &Error) -> Vec<Answer> {
        let names: Vec<String> = self.open.keys().cloned().collect();
        names.into_iter().flat_map(|name| self.end(&name, &Err(cause.clone()))).collect()
    }

    /// When [`Barriers::expire`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.open.values().map(|open| open.until).min()
    }

    fn check(&self, worker: WorkerId, request: u64, name: &str) -> Result<()> {
        limits::check_name("a barrier", name)?;
        // Before `broken`: a worker may leave because of the failure.
        if let Some(cause) = self.failed.get(name) {
            return Err(cause.clone());
        }
        if let Some(who) = &self.broken {
            return Err(broken(name, who));
        }
        let waits = self.open.values().filter(|open| open.arrived.contains_key(&worker)).count();
        match self.open.get(name).and_then(|open| open.arrived.get(&worker)) {
            Some(earlier) if *earlier == request => Ok(()),
            Some(_) => Err(Error::FailedPrecondition {
                what: format!("{worker} waits at barrier {name:?} already"),
                hint: "wait for that to end, or use another name".to_owned(),
            }),
            None if waits >= limits::BARRIERS_MAX => Err(Error::Exhausted {
                what: format!("barriers of {worker} at once"),
                limit: limits::BARRIERS_MAX.to_string(),
                hint: "wait for some before arriving at others".to_owned(),
            }),
            None => Ok(()),
        }
    }

    fn end(&mut self, name: &str, outcome: &Result<()>) -> Vec<Answer> {
        let arrived = self.open.remove(name).map(|open| open.arrived).unwrap_or_default();
        arrived.into_iter().map(|(worker, request)| self.answer(worker, request, outcome.clone())).collect()
    }

    fn answer(&mut self, worker: WorkerId, request: u64, outcome: Result<()>) -> Answer {
        let answers = self.answered.entry(worker).or_default();
        answers.insert(request, outcome.clone());
        if answers.len() > limits::BARRIERS_MAX {
            answers.pop_first();
        }
        Answer { worker, request, outcome }
    }

    fn describe_missing(&self, open: &Open) -> String {
        let ranks = self.due.iter().filter(|worker| !open.arrived.contains_key(worker));
        let elsewhere = |worker: WorkerId| {
            self.open.iter().find(|(_, other)| other.arrived.contains_key(&worker)).map(|(name, _)| name)
        };
        let texts: Vec<String> = ranks
            .map(|worker| match elsewhere(worker) {
                Some(other) => format!("{} (it waits at barrier {other:?})", worker.0),
                None => worker.0.to_string(),
            })
            .collect();
        format!("rank{} {}", if texts.len() == 1 { "" } else { "s" }, texts.join(", "))
    }
}

fn broken(name: &str, who: &str) -> Error {
    Error::FailedPrecondition {
        what: format!("barrier {name:?} cannot complete: {who} left the job"),
        hint: "call barriers on all workers before any of them leaves".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_barrier_completes_when_every_worker_arrived() {
        let mut barriers = Barriers::new(2, None);
        assert_eq!(barriers.arrive(at(0), arrival(0, 1, "epoch")), []);
        assert_eq!(barriers.arrive(at(1), arrival(1, 9, "epoch")), [passed(0, 1), passed(1, 9)]);
        assert_eq!(barriers.poll_timeout(), None);
    }

    #[test]
    fn a_name_is_free_again_once_its_barrier_ended() {
        let mut barriers = Barriers::new(1, None);
        assert_eq!(barriers.arrive(at(0), arrival(0, 1, "epoch")), [passed(0, 1)]);
        assert_eq!(barriers.arrive(at(1), arrival(0, 2, "epoch")), [passed(0, 2)]);
    }

    #[test]
    fn a_repeat_is_the_same_arrival() {
        let mut barriers = Barriers::new(2, None);
        assert_eq!(barriers.arrive(at(0), arrival(0, 1, "epoch")), []);
        assert_eq!(barriers.arrive(at(0), arrival(0, 1, "epoch")), []);
        assert_eq!(barriers.arrive(at(1), arrival(1, 1, "epoch")), [passed(0, 1), passed(1, 1)]);
    }

    #[test]
    fn a_repeat_after_the_end_gets_the_same_answer_again() {
        let mut barriers = Barriers::new(2, None);
        barriers.arrive(at(0), arrival(0, 1, "epoch"));
        barriers.arrive(at(0), arrival(1, 1, "epoch"));
        assert_eq!(barriers.arrive(at(5), arrival(0, 1, "epoch")), [passed(0, 1)]);
        assert_eq!(barriers.poll_timeout(), None, "and opens nothing");
    }

    #[test]
    fn answers_are_remembered_for_as_many_requests_as_a_worker_may_have_open() {
        let mut barriers = Barriers::new(1, None);
        for request in 1..=limits::BARRIERS_MAX as u64 + 1 {
            barriers.arrive(at(0), arrival(0, request, "epoch"));
        }
        assert_eq!(barriers.answered[&WorkerId(0)].len(), limits::BARRIERS_MAX);
    }

    #[test]
    fn the_earliest_deadline_ends_the_wait_of_all_and_names_the_missing() {
        let mut barriers = Barriers::new(4, None);
        barriers.arrive(at(0), Arrival { timeout: 9 * SECOND, ..arrival(0, 1, "epoch") });
        barriers.arrive(at(1), Arrival { timeout: 2 * SECOND, ..arrival(2, 1, "epoch") });
        barriers.arrive(at(2), arrival(3, 1, "eval"));
        assert_eq!(barriers.poll_timeout(), Some(at(3)));
        assert_eq!(barriers.expire(at(2)), []);
        let answers = barriers.expire(at(3));
        assert_eq!(answers.iter().map(|answer| answer.worker.0).collect::<Vec<_>>(), [0, 2]);
        for answer in answers {
            let expected = "barrier \"epoch\": waiting for ranks 1, 3 (it waits at barrier \"eval\")";
            assert!(
                matches!(answer.outcome, Err(Error::Timeout { what, waited }) if what == expected && waited == 3 * SECOND)
            );
        }
    }

    #[test]
    fn a_worker_that_left_breaks_the_open_barriers_and_the_next_ones() {
        let mut barriers = Barriers::new(2, None);
        barriers.arrive(at(0), arrival(0, 1, "epoch"));
        let answers = barriers.break_all("worker 1".to_owned());
        assert!(
            matches!(&answers[..], [Answer { outcome: Err(Error::FailedPrecondition { what, .. }), .. }] if what.contains("worker 1"))
        );
        let answers = barriers.arrive(at(1), arrival(0, 2, "epoch"));
        assert!(matches!(&answers[..], [Answer { outcome: Err(Error::FailedPrecondition { .. }), .. }]));
    }

    #[test]
    fn a_barrier_that_waits_for_a_lost_worker_completes_with_those_that_are_left() {
        let mut barriers = Barriers::new(3, None);
        barriers.arrive(at(0), arrival(0, 1, "epoch"));
        barriers.arrive(at(0), arrival(2, 1, "epoch"));
        barriers.arrive(at(0), arrival(1, 1, "of the lost one"));
        barriers.arrive(at(0), arrival(2, 2, "later"));
        let left: WorkerSet = [0, 2].map(WorkerId).into_iter().collect();
        assert_eq!(barriers.set_due(left), [passed(0, 1), passed(2, 1)]);
        assert_eq!(barriers.arrive(at(1), arrival(0, 2, "later")), [passed(0, 2), passed(2, 2)]);
        assert_eq!(barriers.poll_timeout(), None, "nobody waits where the lost one waited alone");
        assert_eq!(barriers.arrive(at(1), arrival(0, 1, "epoch")), [passed(0, 1)], "answers are still remembered");
    }

    #[test]
    fn a_second_wait_of_one_worker_at_one_barrier_is_refused_and_the_first_goes_on() {
        let mut barriers = Barriers::new(2, None);
        barriers.arrive(at(0), arrival(0, 1, "epoch"));
        let answers = barriers.arrive(at(0), arrival(0, 2, "epoch"));
        assert!(matches!(&answers[..], [Answer { request: 2, outcome: Err(Error::FailedPrecondition { .. }), .. }]));
        assert_eq!(barriers.arrive(at(0), arrival(1, 1, "epoch")), [passed(0, 1), passed(1, 1)]);
    }

    #[test]
    fn a_worker_cannot_open_barriers_without_bound() {
        let mut barriers = Barriers::new(2, None);
        for request in 0..limits::BARRIERS_MAX as u64 {
            assert_eq!(barriers.arrive(at(0), arrival(0, request, &request.to_string())), []);
        }
        let answers = barriers.arrive(at(0), arrival(0, 99, "one more"));
        assert!(matches!(&answers[..], [Answer { outcome: Err(Error::Exhausted { .. }), .. }]));
    }

    #[test]
    fn those_that_wait_come_again_to_another_coordinator_and_those_that_have_given_up_do_not() {
        let mut barriers = Barriers::new(2, None);
        barriers.arrive(at(0), arrival(0, 1, "epoch"));
        barriers.arrive(at(0), arrival(0, 2, "given up"));
        barriers.wait_again();
        assert_eq!((barriers.poll_timeout(), barriers.expire(at(99))), (None, vec![]));
        assert_eq!(barriers.arrive(at(99), arrival(1, 1, "given up")), []);
        assert_eq!(
            barriers.arrive(at(99), arrival(0, 3, "given up")),
            [passed(0, 3), passed(1, 1)],
            "it may come anew"
        );
        assert_eq!(barriers.arrive(at(99), arrival(1, 2, "epoch")), []);
        assert_eq!(barriers.arrive(at(100), arrival(0, 1, "epoch")), [passed(0, 1), passed(1, 2)]);
    }

    #[test]
    fn a_coordinator_that_was_asleep_ends_no_barrier_before_it_has_heard_who_has_come() {
        let mut barriers = Barriers::new(2, None);
        barriers.arrive(at(0), arrival(0, 1, "epoch"));
        barriers.be_patient(at(100));
        assert_eq!(barriers.expire(at(99)), []);
        assert_eq!(barriers.expire(at(100)).len(), 1);
    }

    fn arrival(worker: u32, request: u64, name: &str) -> Arrival {
        Arrival { worker: WorkerId(worker), request, name: name.to_owned(), timeout: 60 * SECOND }
    }

    fn passed(worker: u32, request: u64) -> Answer {
        Answer { worker: WorkerId(worker), request, outcome: Ok(()) }
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }
}
