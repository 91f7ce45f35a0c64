//! The clocks of a job: how far each worker is, who waits, and which workers close a round.
//!
//! A worker ticks a clock when all of its changes of a round were answered, so every value that a worker reads after a tick was answered
//! has the changes of all workers up to the round that the slowest one has finished. A tick is a (worker, round): said again, it is the same
//! one. It counts also if its worker is lost afterwards, because its changes are complete.
//!
//! In a mode with rounds this is the one place that decides which workers close a round. Servers obey it, and are told again when they
//! connect.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use gradlane_core::error::{Claim, Error, Result};
use gradlane_core::types::{ClockKey, Closing, Fate, Mode, Pace, Quorum, Tick, Ticked, Time, WorkerId, WorkerSet};

/// The clocks of a job.
#[derive(Debug)]
pub(super) struct Clocks {
    /// The workers that are waited for.
    due: WorkerSet,
    clocks: BTreeMap<String, Clock>,
    /// The rounds that were closed lately, for servers that may have missed it.
    told: VecDeque<(Time, Closing)>,
    /// How long a server may be away before it is given up.
    remember: Duration,
}

/// The end of one worker's wait.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Answer {
    pub(super) worker: WorkerId,
    pub(super) request: u64,
    pub(super) outcome: Result<Ticked>,
}

/// What follows from an input: waits that end, and rounds that servers are to close.
#[derive(Default, PartialEq, Debug)]
pub(super) struct Turn {
    pub(super) answers: Vec<Answer>,
    pub(super) closed: Vec<Closing>,
}

/// The most clocks of a job.
const CLOCKS_MAX: usize = 4096;

#[derive(Debug)]
struct Clock {
    mode: Mode,
    /// Whose mode it is.
    said_by: WorkerId,
    /// The rounds that each worker has finished. Workers that have not ticked it yet are absent, and at 0.
    finished: BTreeMap<WorkerId, u64>,
    /// The ticks of all workers together.
    ticks: u64,
    /// The rounds that were closed, in a mode with rounds.
    closed: u64,
    /// Who is in the round that is open. Their order counts no more once they are in.
    arrived: WorkerSet,
    waiting: BTreeMap<WorkerId, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    request: u64,
    round: u64,
    since: Time,
    until: Time,
}

impl Clocks {
    /// No clocks, in a job with the workers of ranks 0 to `workers`. A server that was away for `remember` is given up.
    pub(super) fn new(workers: u32, remember: Duration) -> Self {
        let due = (0..workers).map(WorkerId).collect();
        Self { due, clocks: BTreeMap::new(), told: VecDeque::new(), remember }
    }

    /// A worker has finished a round, perhaps not for the first time.
    pub(super) fn tick(&mut self, now: Time, worker: WorkerId, request: u64, tick: Tick) -> Turn {
        let Tick { clock: name, mode, round, wait } = tick;
        let is_full = self.clocks.len() >= CLOCKS_MAX && !self.clocks.contains_key(&name);
        if is_full {
            return Turn::refusal(worker, request, too_many(&name));
        }
        let clock = self.clocks.entry(name.clone()).or_insert_with(|| Clock::new(mode, worker));
        match clock.take(&name, worker, mode, round) {
            Ok(None) => {}
            Ok(Some(ticked)) => return Turn::answer(worker, request, Ok(ticked)),
            Err(error) => return Turn::refusal(worker, request, error),
        }
        if let Some(wait) = wait {
            let since = clock.waiting.get(&worker).filter(|before| before.round == round).map_or(now, |it| it.since);
            clock.waiting.insert(worker, Waiting { request, round, since, until: now + wait });
            return self.advance(now, &name);
        }
        let mut turn = self.advance(now, &name);
        let ticked = self.clocks[&name].ticked(worker, &self.due);
        turn.answers.push(Answer { worker, request, outcome: Ok(ticked) });
        turn
    }

    /// Ends the waits that are out of time. The ticks count all the same.
    pub(super) fn expire(&mut self, now: Time) -> Vec<Answer> {
        let due = &self.due;
        let mut answers = Vec::new();
        for (name, clock) in &mut self.clocks {
            let late = clock.waiting.iter().filter(|(_, waiting)| waiting.until <= now).map(|(worker, _)| *worker);
            for worker in late.collect::<Vec<_>>() {
                let Waiting { request, round, since, .. } = clock.waiting.remove(&worker).expect("found above");
                let what =
                    format!("clock {name:?}, round {round}: waiting for {}", clock.describe_slowest(worker, due));
                let outcome = Err(Error::Timeout { what, waited: now.since(since) });
                answers.push(Answer { worker, request, outcome });
            }
        }
        answers
    }

    /// From now on clocks wait for these workers only, because others were lost or left.
    pub(super) fn set_due(&mut self, now: Time, due: WorkerSet) -> Turn {
        for clock in self.clocks.values_mut() {
            clock.waiting.retain(|worker, _| due.contains(*worker));
        }
        self.due = due;
        let names: Vec<String> = self.clocks.keys().cloned().collect();
        let turns = names.iter().map(|name| self.advance(now, name));
        turns.fold(Turn::default(), Turn::and)
    }

    /// A worker has left in order.
    pub(super) fn leave(&mut self, now: Time, worker: WorkerId) -> Turn {
        let mut due = self.due.clone();
        due.remove(worker);
        self.set_due(now, due)
    }

    /// Another coordinator goes on with the job: workers that still wait say so again, with the time that they have left.
    pub(super) fn wait_again(&mut self) {
        self.clocks.values_mut().for_each(|clock| clock.waiting.clear());
    }

    /// This coordinator was asleep, so that no wait ends before `until`: workers may have ticked of which it has not heard.
    pub(super) fn be_patient(&mut self, until: Time) {
        for waiting in self.clocks.values_mut().flat_map(|clock| clock.waiting.values_mut()) {
            waiting.until = waiting.until.max(until);
        }
    }

    /// The job failed.
    pub(super) fn fail_all(&mut self, cause: &Error) -> Vec<Answer> {
        let waiting = self.clocks.values_mut().flat_map(|clock| std::mem::take(&mut clock.waiting));
        waiting
            .map(|(worker, Waiting { request, .. })| Answer { worker, request, outcome: Err(cause.clone()) })
            .collect()
    }

    /// When [`Clocks::expire`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.clocks.values().flat_map(|clock| clock.waiting.values()).map(|waiting| waiting.until).min()
    }

    /// What a server that has connected may have missed, in order.
    pub(super) fn told(&self) -> impl Iterator<Item = &Closing> {
        self.told.iter().map(|(_, closing)| closing)
    }

    /// Closes the round of a clock if its workers are there, and answers whom nobody holds up any more.
    fn advance(&mut self, now: Time, name: &str) -> Turn {
        let Self { due, clocks, told, remember } = self;
        let clock = clocks.get_mut(name).expect("it was ticked");
        let mut turn = Turn::default();
        if let Some((key, quorum, _)) = clock.mode.rounds() {
            if let Some(error) = quorum.refusal(name, due) {
                let waiting = std::mem::take(&mut clock.waiting).into_iter();
                turn.answers.extend(waiting.map(|(worker, Waiting { request, .. })| Answer {
                    worker,
                    request,
                    outcome: Err(error.clone()),
                }));
            } else if let Some(closing) = clock.close(key, quorum, due) {
                while told.front().is_some_and(|(at, _)| now.since(*at) > *remember) {
                    told.pop_front();
                }
                told.push_back((now, closing.clone()));
                turn.closed.push(closing);
            }
        }
        let may_go = |worker: WorkerId, waiting: &Waiting| clock.may_go_on(worker, waiting.round, due);
        let gone = clock.waiting.iter().filter(|(worker, waiting)| may_go(**worker, waiting));
        for worker in gone.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            let Waiting { request, .. } = clock.waiting.remove(&worker).expect("found above");
            turn.answers.push(Answer { worker, request, outcome: Ok(clock.ticked(worker, due)) });
        }
        turn
    }
}

impl Clock {
    fn new(mode: Mode, said_by: WorkerId) -> Self {
        let (finished, waiting) = (BTreeMap::new(), BTreeMap::new());
        Self { mode, said_by, finished, ticks: 0, closed: 0, arrived: WorkerSet::default(), waiting }
    }

    /// Counts a tick, once. Returns its answer if the round was closed before.
    fn take(&mut self, name: &str, worker: WorkerId, mode: Mode, round: u64) -> Result<Option<Ticked>> {
        if mode != self.mode {
            let claim = |worker, mode: Mode| Claim { worker, value: mode.to_string() };
            let (first, second) = (claim(self.said_by, self.mode), claim(worker, mode));
            return Err(Error::Mismatch {
                tensor: name.to_owned().into(),
                field: "mode of a clock".to_owned(),
                first,
                second,
            });
        }
        let finished = self.finished.get(&worker).copied().unwrap_or_default();
        if mode.rounds().is_some() {
            if round <= self.closed {
                // A worker that was in the round hears so again.
                let fate = if finished == round { Fate::Accepted } else { Fate::DroppedLate };
                return Ok(Some(Ticked { round: self.closed, step: self.closed, ahead: 0, fate }));
            }
            if round > self.closed + 1 {
                return Err(out_of_order(name, worker, round, self.closed));
            }
            self.arrived.insert(worker);
            self.finished.insert(worker, round);
        } else {
            if round != finished && round != finished + 1 {
                return Err(out_of_order(name, worker, round, finished));
            }
            self.ticks += u64::from(round != finished);
            self.finished.insert(worker, round);
        }
        Ok(None)
    }

    /// Closes the round that is open, if those are there that close it.
    fn close(&mut self, clock: ClockKey, quorum: Quorum, due: &WorkerSet) -> Option<Closing> {
        let is_closed = match quorum {
            Quorum::All => due.iter().all(|worker| self.arrived.contains(worker)),
            Quorum::First(k) => self.arrived.len() >= k as usize,
        };
        if !is_closed || self.arrived.is_empty() {
            return None;
        }
        self.closed += 1;
        let workers = std::mem::take(&mut self.arrived);
        Some(Closing { clock, round: self.closed, workers })
    }

    fn may_go_on(&self, worker: WorkerId, round: u64, due: &WorkerSet) -> bool {
        match self.mode.pace {
            Pace::Async => true,
            Pace::Ssp { bound } => self.ahead(worker, due) <= u64::from(bound),
            Pace::Rounds { .. } => round <= self.closed,
        }
    }

    /// How many rounds the slowest worker is behind this one.
    fn ahead(&self, worker: WorkerId, due: &WorkerSet) -> u64 {
        let of = |worker: WorkerId| self.finished.get(&worker).copied().unwrap_or_default();
        of(worker) - due.iter().map(of).min().unwrap_or_default().min(of(worker))
    }

    fn ticked(&self, worker: WorkerId, due: &WorkerSet) -> Ticked {
        match self.mode.pace {
            Pace::Rounds { .. } => Ticked { round: self.closed, step: self.closed, ahead: 0, fate: Fate::Accepted },
            Pace::Async | Pace::Ssp { .. } => {
                let round = self.finished.get(&worker).copied().unwrap_or_default();
                Ticked { round, step: self.ticks, ahead: self.ahead(worker, due), fate: Fate::Accepted }
            }
        }
    }

    /// Whom a worker waits for.
    fn describe_slowest(&self, worker: WorkerId, due: &WorkerSet) -> String {
        let of = |worker: WorkerId| self.finished.get(&worker).copied().unwrap_or_default();
        let slowest: Vec<String> = match self.mode.pace {
            Pace::Rounds { .. } => {
                let missing = due.iter().filter(|worker| !self.arrived.contains(*worker));
                missing.map(|worker| worker.to_string()).collect()
            }
            Pace::Async | Pace::Ssp { .. } => {
                let least = due.iter().map(of).min().unwrap_or_default();
                let slowest = due.iter().filter(|other| *other != worker && of(*other) == least);
                slowest.map(|other| format!("{other}, which has finished round {least}")).collect()
            }
        };
        slowest.join(", ")
    }
}

impl Turn {
    fn answer(worker: WorkerId, request: u64, outcome: Result<Ticked>) -> Self {
        Self { answers: vec![Answer { worker, request, outcome }], closed: Vec::new() }
    }

    fn refusal(worker: WorkerId, request: u64, error: Error) -> Self {
        Self::answer(worker, request, Err(error))
    }

    fn and(mut self, other: Self) -> Self {
        self.answers.extend(other.answers);
        self.closed.extend(other.closed);
        self
    }
}

/// Why fewer workers than this quorum cannot close a round.
trait Refusal {
    fn refusal(self, clock: &str, due: &WorkerSet) -> Option<Error>;
}

impl Refusal for Quorum {
    fn refusal(self, clock: &str, due: &WorkerSet) -> Option<Error> {
        let Self::First(k) = self else { return None };
        (k as usize > due.len()).then(|| Error::FailedPrecondition {
            what: format!("clock {clock:?}: {k} workers close a round, and the job has {}", due.len()),
            hint: "give fewer, or start more workers".to_owned(),
        })
    }
}

fn out_of_order(clock: &str, worker: WorkerId, round: u64, finished: u64) -> Error {
    Error::FailedPrecondition {
        what: format!(
            "clock {clock:?}: {worker} ticks round {round}, and the last one that was finished is {finished}"
        ),
        hint: "tick each round once, from 1 on, with one clock object a worker".to_owned(),
    }
}

fn too_many(clock: &str) -> Error {
    Error::Exhausted {
        what: format!("clocks of the job, with clock {clock:?}"),
        limit: CLOCKS_MAX.to_string(),
        hint: "use one clock for all parameters that are pushed together".to_owned(),
    }
}

#[cfg(test)]
mod tests;
