//! The clocks of a job: how far each worker is, who waits, and which workers close a round.
//!
//! A worker ticks a clock when all of its changes of a round were answered, so every value that a worker reads after a tick was answered
//! has the changes of all workers up to the round that the slowest one has finished. A tick is a (worker, round): said again, it is the same
//! one. It counts also if its worker is lost afterwards, because its changes are complete.
//!
//! In a mode with rounds this is the one place that decides which workers close a round. Servers obey it, and are told again when they
//! connect.
//!
//! ```text
//!  open ──enough workers──► closed            (workers go on)
//!   └──enough workers, gradients are clipped──► sealed ──all servers have said their squares──► closed
//! ```
//! No round of a clock is sealed or closed while another one is sealed. Its norm needs servers alone: a worker that is lost delays nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::cluster::ticks;
use gradlane_core::error::{Error, Result};
use gradlane_core::types::{
    ClockKey, ClockStep, Closing, Defect, Fate, Half, Mode, Pace, Quorum, ServerId, Squares, TensorKey, TensorSpec,
    Tick, Ticked, Time, WorkerId, WorkerSet, planted,
};
use gradlane_core::wire::limits::CLOCKS_MAX;

use super::clips::Clips;
use super::lately::Lately;

mod stepping;

/// The clocks of a job.
#[derive(Debug)]
pub(crate) struct Clocks {
    /// The workers of the job.
    due: WorkerSet,
    /// Those that have left the job in order.
    gone: WorkerSet,
    /// The servers of the job, all of which apply each round.
    servers: BTreeSet<ServerId>,
    clips: Clips,
    clocks: BTreeMap<String, Clock>,
    /// Of each clock that nobody has ticked, where it begins, since a checkpoint was loaded.
    begins: BTreeMap<ClockKey, ClockStep>,
    /// How rounds were closed lately, for servers that may have missed it.
    told: Lately<Closing>,
    defect: Option<Defect>,
}

/// The end of one worker's wait.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Answer {
    pub(crate) worker: WorkerId,
    pub(crate) request: u64,
    pub(crate) outcome: Result<Ticked>,
}

/// What follows from an input: waits that end, and what servers are told of rounds.
#[derive(Default, PartialEq, Debug)]
pub(crate) struct Turn {
    pub(crate) answers: Vec<Answer>,
    pub(crate) closed: Vec<Closing>,
}

#[derive(Debug)]
struct Clock {
    defect: Option<Defect>,
    mode: Mode,
    /// What is added to its rounds to make the global step, modulo 2^64.
    base: u64,
    /// Whose mode it is.
    said_by: WorkerId,
    /// The rounds that each worker has finished. Workers that have not ticked it yet are absent, and at 0.
    finished: BTreeMap<WorkerId, u64>,
    /// The ticks of all workers together.
    ticks: u64,
    /// The rounds that were closed, in a mode with rounds, with the one that is sealed.
    closed: u64,
    /// While the last of them is sealed: what the servers have said.
    squares: Option<BTreeMap<ServerId, f64>>,
    /// Who is in the round that is open, with its samples. Their order counts no more once they are in.
    arrived: BTreeMap<WorkerId, u64>,
    /// The samples of the rounds that were closed.
    samples: u64,
    /// Those of the rounds before the last one, while that is sealed.
    samples_settled: u64,
    /// Who ticks it no more.
    left: WorkerSet,
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
    /// No clocks, in a job with the workers of ranks 0 to `workers`, and so many servers. A server that was away for `remember` is given up.
    pub(crate) fn new(workers: u32, servers: u32, remember: Duration, defect: Option<Defect>) -> Self {
        Self {
            due: (0..workers).map(WorkerId).collect(),
            gone: WorkerSet::default(),
            servers: (0..servers).map(ServerId).collect(),
            clips: Clips::default(),
            clocks: BTreeMap::new(),
            begins: BTreeMap::new(),
            told: Lately::new(remember),
            defect,
        }
    }

    /// Refuses a declaration of `worker` that makes no sense beside others of the same clock.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if gradients of a clock are to be clipped to two norms.
    pub(crate) fn check(&self, worker: WorkerId, tensors: &[TensorSpec]) -> Result<()> {
        self.clips.check(worker, tensors)
    }

    /// A worker has declared these tensors.
    pub(crate) fn declare(&mut self, worker: WorkerId, tensors: &[TensorSpec]) {
        self.clips.declare(worker, tensors);
    }

    /// These tensors have ended.
    pub(crate) fn end(&mut self, keys: &[TensorKey]) {
        self.clips.end(keys);
    }

    /// A worker has finished a round, perhaps not for the first time.
    pub(crate) fn tick(&mut self, now: Time, worker: WorkerId, request: u64, tick: Tick) -> Turn {
        let Tick { clock: name, mode, round, samples, leaves, wait } = tick;
        let is_full = self.clocks.len() >= CLOCKS_MAX && !self.clocks.contains_key(&name);
        if is_full {
            return Turn::refusal(worker, request, ticks::too_many(&name, CLOCKS_MAX));
        }
        let begins = mode.clock.and_then(|clock| self.begins.get(&clock));
        let clock = self.clocks.entry(name.clone()).or_insert_with(|| Clock::new(mode, begins, (worker, self.defect)));
        if leaves {
            return self.leave_one(now, worker, request, &name, mode);
        }
        match clock.take(&name, worker, mode, (round, samples)) {
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
        let clock = &self.clocks[&name];
        let ticked = clock.ticked(worker, &clock.active(&self.due, &self.gone));
        turn.answers.push(Answer { worker, request, outcome: Ok(ticked) });
        turn
    }

    /// A server has said its share of the norm of a round, perhaps not for the first time.
    pub(crate) fn take_squares(&mut self, now: Time, server: ServerId, squares: Squares) -> Turn {
        let Squares { clock: key, round, sum } = squares;
        let of_round = |clock: &Clock| clock.mode.clock == Some(key) && clock.closed == round;
        let Some((name, clock)) = self.clocks.iter_mut().find(|(_, clock)| of_round(clock)) else {
            return Turn::default();
        };
        let Some(said) = &mut clock.squares else { return Turn::default() };
        said.entry(server).or_insert(sum);
        let name = name.clone();
        self.settle(now, &name)
    }

    /// Tells the norm of the round that is sealed, once all servers have said their squares.
    fn settle(&mut self, now: Time, name: &str) -> Turn {
        let Self { due, gone, servers, clocks, told, defect, .. } = self;
        let clock = clocks.get_mut(name).expect("it was ticked");
        let all = |said: &BTreeMap<ServerId, f64>| servers.iter().all(|server| said.contains_key(server));
        let is_whole = |said: &mut BTreeMap<ServerId, f64>| all(said) || planted(*defect, Defect::NormWithoutAll);
        let (Some(said), Some(key)) = (clock.squares.take_if(is_whole), clock.mode.clock) else {
            return Turn::default();
        };
        // In the order of the servers, so that each run has the same bits.
        let norm = said.values().fold(0.0, |all, sum| all + sum).sqrt();
        let closing = Closing { clock: key, round: clock.closed, half: Half::Norm(norm) };
        told.push(now, closing.clone());
        // Those that waited for this round hear of it before the next one is closed.
        let turn = Turn { answers: clock.release(&clock.active(due, gone)), closed: vec![closing] };
        turn.and(self.advance(now, name))
    }

    /// A worker ticks this clock no more.
    fn leave_one(&mut self, now: Time, worker: WorkerId, request: u64, name: &str, mode: Mode) -> Turn {
        let clock = self.clocks.get_mut(name).expect("made before");
        if let Err(error) = clock.check_mode(name, worker, mode) {
            return Turn::refusal(worker, request, error);
        }
        clock.left.insert(worker);
        clock.waiting.remove(&worker);
        let ticked = clock.ticked(worker, &WorkerSet::default());
        Turn::answer(worker, request, Ok(ticked)).and(self.advance(now, name))
    }

    /// Ends the waits that are out of time. The ticks count all the same.
    pub(crate) fn expire(&mut self, now: Time) -> Vec<Answer> {
        let due = &self.due;
        let mut answers = Vec::new();
        for (name, clock) in &mut self.clocks {
            let active = clock.active(due, &self.gone);
            let late = clock.waiting.iter().filter(|(_, waiting)| waiting.until <= now).map(|(worker, _)| *worker);
            for worker in late.collect::<Vec<_>>() {
                let Waiting { request, round, since, .. } = clock.waiting.remove(&worker).expect("found above");
                let whom = match &clock.squares {
                    Some(said) if round <= clock.closed => describe_silent(&self.servers, said),
                    _ => clock.describe_slowest(worker, &active),
                };
                let what = format!("clock {name:?}, round {round}: waiting for {whom}");
                let outcome = Err(Error::Timeout { what, waited: now.since(since) });
                answers.push(Answer { worker, request, outcome });
            }
        }
        answers
    }

    /// From now on these are the workers and the servers of the job, because others were lost, or left.
    pub(crate) fn set_due(&mut self, now: Time, due: WorkerSet, servers: BTreeSet<ServerId>) -> Turn {
        for clock in self.clocks.values_mut() {
            clock.waiting.retain(|worker, _| due.contains(*worker));
        }
        (self.due, self.servers) = (due, servers);
        self.advance_all(now)
    }

    /// A worker has left the job in order, and so all of its clocks.
    pub(crate) fn leave(&mut self, now: Time, worker: WorkerId) -> Turn {
        self.gone.insert(worker);
        self.advance_all(now)
    }

    fn advance_all(&mut self, now: Time) -> Turn {
        let names: Vec<String> = self.clocks.keys().cloned().collect();
        let turns = names.iter().map(|name| self.settle(now, name).and(self.advance(now, name)));
        turns.fold(Turn::default(), Turn::and)
    }

    /// Another coordinator goes on with the job: workers that still wait say so again, with the time that they have left.
    pub(crate) fn wait_again(&mut self) {
        self.clocks.values_mut().for_each(|clock| clock.waiting.clear());
    }

    /// This coordinator was asleep, so that no wait ends before `until`: workers may have ticked of which it has not heard.
    pub(crate) fn be_patient(&mut self, until: Time) {
        for waiting in self.clocks.values_mut().flat_map(|clock| clock.waiting.values_mut()) {
            waiting.until = waiting.until.max(until);
        }
    }

    /// The job failed.
    pub(crate) fn fail_all(&mut self, cause: &Error) -> Vec<Answer> {
        let waiting = self.clocks.values_mut().flat_map(|clock| std::mem::take(&mut clock.waiting));
        waiting
            .map(|(worker, Waiting { request, .. })| Answer { worker, request, outcome: Err(cause.clone()) })
            .collect()
    }

    /// When [`Clocks::expire`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.clocks.values().flat_map(|clock| clock.waiting.values()).map(|waiting| waiting.until).min()
    }

    /// What a server that has connected may have missed, in order.
    pub(crate) fn told(&self) -> impl Iterator<Item = &Closing> {
        self.told.iter()
    }

    /// Closes the round of a clock if its workers are there, and answers whom nobody holds up any more.
    fn advance(&mut self, now: Time, name: &str) -> Turn {
        let Self { due, gone, clips, clocks, told, .. } = self;
        let clock = clocks.get_mut(name).expect("it was ticked");
        // Who has no more rounds is no loss.
        let members = due.iter().chain(gone.iter()).collect::<WorkerSet>().len();
        let due = &clock.active(due, gone);
        let mut turn = Turn::default();
        if let Some((key, quorum, _)) = clock.mode.rounds() {
            if let Some(error) = ticks::too_few(name, quorum, members) {
                // Of a round that is sealed there were enough.
                let closed = clock.closed;
                let waits = |(_, waiting): &(&WorkerId, &Waiting)| waiting.round > closed;
                let failed: Vec<WorkerId> = clock.waiting.iter().filter(waits).map(|(worker, _)| *worker).collect();
                for worker in failed {
                    let Waiting { request, .. } = clock.waiting.remove(&worker).expect("found above");
                    turn.answers.push(Answer { worker, request, outcome: Err(error.clone()) });
                }
            } else if let Some(closing) = clock.close(key, quorum, due, clips.has(key)) {
                told.push(now, closing.clone());
                turn.closed.push(closing);
            }
        }
        turn.answers.extend(clock.release(due));
        turn
    }
}

impl Clock {
    fn new(mode: Mode, begins: Option<&ClockStep>, (said_by, defect): (WorkerId, Option<Defect>)) -> Self {
        let (base, samples) = begins.map_or((0, 0), |begins| (begins.step, begins.samples));
        let (finished, waiting) = (BTreeMap::new(), BTreeMap::new());
        Self {
            defect,
            mode,
            base,
            said_by,
            finished,
            ticks: 0,
            closed: 0,
            squares: None,
            arrived: BTreeMap::new(),
            samples,
            samples_settled: samples,
            left: WorkerSet::default(),
            waiting,
        }
    }

    /// Counts a tick, once. Returns its answer if the round was closed before.
    fn take(
        &mut self,
        name: &str,
        worker: WorkerId,
        mode: Mode,
        (round, samples): (u64, u64),
    ) -> Result<Option<Ticked>> {
        self.check_mode(name, worker, mode)?;
        if self.left.contains(worker) {
            return Err(ticks::after_leaving(name, worker));
        }
        let finished = self.finished_by(worker);
        if mode.rounds().is_some() {
            let was_in = finished == round;
            if was_in && round > self.settled() {
                // It waits for the norm, again if it has said so before.
                return Ok(None);
            }
            if round <= self.closed {
                // A worker that was in the round hears so again.
                let is_accepted = was_in || planted(self.defect, Defect::LateTickAccepted);
                let fate = if is_accepted { Fate::Accepted } else { Fate::DroppedLate };
                return Ok(Some(Ticked { round: self.closed, step: self.step(), ahead: 0, fate }));
            }
            if round > self.closed + 1 {
                return Err(ticks::out_of_order(name, worker, round, self.closed));
            }
            self.arrived.entry(worker).or_insert(samples);
            self.finished.insert(worker, round);
        } else {
            if round != finished && round != finished + 1 {
                return Err(ticks::out_of_order(name, worker, round, finished));
            }
            self.ticks += u64::from(round != finished);
            let is_twice = round == finished && planted(self.defect, Defect::TickCountedTwice);
            self.finished.insert(worker, round + u64::from(is_twice));
        }
        Ok(None)
    }

    fn check_mode(&self, name: &str, worker: WorkerId, mode: Mode) -> Result<()> {
        match mode == self.mode {
            true => Ok(()),
            false => Err(ticks::other_mode(name, (self.said_by, self.mode), (worker, mode))),
        }
    }

    /// Who is waited for.
    fn active(&self, due: &WorkerSet, gone: &WorkerSet) -> WorkerSet {
        due.iter().filter(|worker| !self.left.contains(*worker) && !gone.contains(*worker)).collect()
    }

    /// Closes the round that is open, or seals it if it `clips`, if those are there that close it: all that still tick, if these are fewer.
    fn close(&mut self, clock: ClockKey, quorum: Quorum, due: &WorkerSet, clips: bool) -> Option<Closing> {
        let are_enough = match quorum {
            _ if planted(self.defect, Defect::RoundClosedEarly) => true,
            Quorum::All => false,
            Quorum::First(k) => self.arrived.len() >= k as usize,
        };
        let is_closed = are_enough || due.iter().all(|worker| self.arrived.contains_key(&worker));
        if !is_closed || self.arrived.is_empty() || self.squares.is_some() {
            return None;
        }
        self.closed += 1;
        self.squares = clips.then(BTreeMap::new);
        let (arrived, samples) = (std::mem::take(&mut self.arrived), self.samples);
        self.samples_settled = samples;
        self.samples = arrived.values().fold(samples, |all, of_worker| all.saturating_add(*of_worker));
        let workers = arrived.into_keys().collect();
        Some(Closing { clock, round: self.closed, half: Half::Workers { workers, clips, samples } })
    }

    /// The rounds that were closed, without the one that is sealed.
    fn settled(&self) -> u64 {
        self.closed - u64::from(self.squares.is_some())
    }

    /// Answers whom nobody holds up any more.
    fn release(&mut self, due: &WorkerSet) -> Vec<Answer> {
        let may_go = |(worker, waiting): &(&WorkerId, &Waiting)| self.may_go_on(**worker, waiting.round, due);
        let free: Vec<WorkerId> = self.waiting.iter().filter(may_go).map(|(worker, _)| *worker).collect();
        let answer = |worker| {
            let Waiting { request, .. } = self.waiting.remove(&worker).expect("found above");
            Answer { worker, request, outcome: Ok(self.ticked(worker, due)) }
        };
        free.into_iter().map(answer).collect()
    }

    fn may_go_on(&self, worker: WorkerId, round: u64, due: &WorkerSet) -> bool {
        match self.mode.pace {
            Pace::Async => true,
            Pace::Ssp { .. } if planted(self.defect, Defect::BoundPassed) => true,
            Pace::Ssp { bound } => self.ahead(worker, due) <= u64::from(bound),
            Pace::Rounds { .. } => round <= self.settled(),
        }
    }

    /// How many rounds the slowest worker is behind this one.
    fn ahead(&self, worker: WorkerId, due: &WorkerSet) -> u64 {
        let own = self.finished_by(worker);
        own - self.least_finished(due).min(own)
    }

    /// The rounds that the slowest of these workers has finished.
    fn least_finished(&self, due: &WorkerSet) -> u64 {
        due.iter().map(|worker| self.finished_by(worker)).min().unwrap_or_default()
    }

    fn finished_by(&self, worker: WorkerId) -> u64 {
        self.finished.get(&worker).copied().unwrap_or_default()
    }

    fn ticked(&self, worker: WorkerId, due: &WorkerSet) -> Ticked {
        match self.mode.pace {
            Pace::Rounds { .. } => Ticked { round: self.closed, step: self.step(), ahead: 0, fate: Fate::Accepted },
            Pace::Async | Pace::Ssp { .. } => {
                let (round, ahead) = (self.finished_by(worker), self.ahead(worker, due));
                Ticked { round, step: self.step(), ahead, fate: Fate::Accepted }
            }
        }
    }

    /// Whom a worker waits for.
    fn describe_slowest(&self, worker: WorkerId, due: &WorkerSet) -> String {
        let slowest: Vec<String> = match self.mode.pace {
            Pace::Rounds { .. } => {
                let missing = due.iter().filter(|worker| !self.arrived.contains_key(worker));
                missing.map(|worker| worker.to_string()).collect()
            }
            Pace::Async | Pace::Ssp { .. } => {
                let least = self.least_finished(due);
                let slowest = due.iter().filter(|other| *other != worker && self.finished_by(*other) == least);
                slowest.map(|other| format!("{other}, which has finished round {least}")).collect()
            }
        };
        slowest.join(", ")
    }
}

/// For which servers a round waits that is sealed.
fn describe_silent(servers: &BTreeSet<ServerId>, said: &BTreeMap<ServerId, f64>) -> String {
    let silent = servers.iter().filter(|server| !said.contains_key(server));
    let silent: Vec<String> = silent.map(ServerId::to_string).collect();
    format!("the squares of {}", silent.join(", "))
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

#[cfg(test)]
mod tests;
