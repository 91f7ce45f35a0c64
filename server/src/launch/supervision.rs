//! Decides how a set of child processes ends: which exit code counts, and when the others are terminated and killed. Decides too whether and
//! when a process that failed is started again.
//!
//! A pure machine; [`super::supervisor`] starts the processes, measures time and delivers the signals.

use std::collections::VecDeque;
use std::time::Duration;

use gradlane_core::config::OnWorkerLoss;
use gradlane_core::types::{Role, Time};

use crate::ending::Ending;

/// An order to the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Command {
    /// Send this signal to every child that still runs.
    SignalAll(i32),
    /// Send SIGTERM to every worker that still runs.
    TerminateWorkers,
    /// This child failed: tell the coordinator, and the user. `is_cause` unless it is a consequence of another failure. Consequences are told
    /// together at the end.
    ReportFailure { child: usize, ending: Ending, is_cause: bool },
    /// This child failed, and is started again after this time: tell the coordinator, and the user.
    ReportRestart { child: usize, ending: Ending, after: Duration },
    /// Start this child again. The driver says with [`Supervision::handle_unstarted`] if it cannot.
    Restart { child: usize },
    /// The job failed, and no child that failed before explains it: tell the user why.
    ReportJobFailure,
    /// Every child has ended; the launcher exits with this code.
    Finish(i32),
}

/// The reason for which the job ends before its workers are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cause {
    /// A child ended with this status.
    Child(Ending),
    /// The coordinator gave the job up, with this exit code. A child that fails afterwards explains the failure better, because its death
    /// is often what the coordinator noticed.
    Job(i32),
    /// The user or the system wants the launcher to end.
    Interrupt(i32),
}

/// Where the job goes on without lost workers ([`OnWorkerLoss::goes_on`]), a worker that fails changes nothing here, nor does a server if the job outlives servers: the coordinator hears
/// of it, and gives the job up or not. SIGTERM then asks the workers to leave at the end of a step, for which they still need their servers.
///
/// ```text
/// Running ── all workers ended in order ─────────────────────► Terminating ── 1 s ──► Killing
///    ├────── SIGTERM ──► Draining ── no worker left, interrupt, or time over ──► ▲
///    │ ├─── interrupt ──────────────────────────────────────────► ▲   ▲ │ interrupt ───► ▲
///    │                                                            │   │
///    └────── a child or the job failed ──► Grace ─ grace over, or no worker left
///                                            └──── interrupt ─────────┘
/// ```
/// From any state `Over` follows once no child runs, and none is to be started again.
///
/// In `Running`, a worker that fails, or a server that the job outlives, is started again while the job runs, restarts are left and no worker has
/// ended in order, because the job is coming to its end then. The first restart of a child comes at once, and later ones after a pause ([`pause`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Running,
    /// The other children learn of the failure through the job and may end by themselves.
    Grace {
        until: Time,
    },
    /// The workers were asked to leave.
    Draining {
        until: Time,
    },
    /// SIGTERM was sent.
    Terminating {
        until: Time,
    },
    /// SIGKILL was sent.
    Killing,
    Over,
}

/// How long a process may take to end after SIGTERM.
pub(super) const TERMINATE_GRACE: Duration = Duration::from_secs(1);

/// The machine.
#[derive(Debug)]
pub(super) struct Supervision {
    state: State,
    cause: Option<Cause>,
    grace: Duration,
    on_worker_loss: OnWorkerLoss,
    outlives_servers: bool,
    leave_grace: Duration,
    /// By child: its role while it runs.
    running: Vec<Option<Role>>,
    /// By child: its ending, if it failed before it was told to end.
    failed: Vec<Option<Ending>>,
    /// By child.
    again: Vec<Again>,
    restarts_left: u32,
    restarts_workers: bool,
    /// Whether the job has formed and is not over, as the driver said last.
    job_runs: bool,
    /// Whether a worker did all its work.
    is_done: bool,
    /// The child because of which the coordinator gave the job up.
    culprit: Option<usize>,
    commands: VecDeque<Command>,
}

/// The starts of a child after its first one.
#[derive(Clone, Copy, Debug)]
struct Again {
    role: Role,
    /// How often it was started again, or was to be.
    times: u32,
    /// When it is started again.
    due: Option<Time>,
}

impl Supervision {
    /// A machine without children. After a failure, the other children get `grace` to end by themselves. `on_worker_loss` is the setting of
    /// the job, and `leave_grace` how long a worker may take to leave.
    pub(super) fn new(grace: Duration, on_worker_loss: OnWorkerLoss, leave_grace: Duration) -> Self {
        Self {
            state: State::Running,
            cause: None,
            grace,
            on_worker_loss,
            outlives_servers: false,
            leave_grace,
            running: Vec::new(),
            failed: Vec::new(),
            again: Vec::new(),
            restarts_left: 0,
            restarts_workers: true,
            job_runs: false,
            is_done: false,
            culprit: None,
            commands: VecDeque::new(),
        }
    }

    /// The job survives the loss of a server that fails.
    pub(super) fn outlive_servers(&mut self) {
        self.outlives_servers = true;
    }

    /// Processes that fail are started again, so many times in all: workers where the job goes on without lost workers, and servers if it
    /// outlives them.
    pub(super) fn allow_restarts(&mut self, restarts: u32) {
        self.restarts_left = restarts;
    }

    /// Only servers that fail are started again, because the job takes in no workers.
    pub(super) fn restart_servers_alone(&mut self) {
        self.restarts_workers = false;
    }

    /// Adds a child that has just been started and numbers it.
    pub(super) fn add(&mut self, role: Role) -> usize {
        self.running.push(Some(role));
        self.failed.push(None);
        self.again.push(Again { role, times: 0, due: None });
        self.running.len() - 1
    }

    /// Whether the next [`Self::handle_exit`] needs to know whether the job runs: [`Self::set_job_runs`].
    pub(super) fn asks_for_job(&self) -> bool {
        let may_restart = self.restarts_left > 0 || self.again.iter().any(|again| again.due.is_some());
        self.state == State::Running && may_restart
    }

    /// Whether the job has formed and is not over.
    pub(super) fn set_job_runs(&mut self, job_runs: bool) {
        self.job_runs = job_runs;
    }

    /// A child has ended.
    pub(super) fn handle_exit(&mut self, now: Time, child: usize, ending: Ending) {
        let role = self.running[child].take();
        let goes_on = match role {
            Some(Role::Worker) => self.on_worker_loss.goes_on(),
            Some(Role::Server) => self.outlives_servers,
            Some(Role::Coordinator | Role::Observer | Role::Admin) | None => false,
        };
        match self.state {
            // A server that ends in order does so because the job has ended; its workers may still be busy.
            State::Running | State::Draining { .. } if ending.in_order() => {
                if role == Some(Role::Worker) {
                    self.is_done = true;
                    self.cancel_restarts();
                }
            }
            State::Draining { .. } if role == Some(Role::Worker) => {
                self.cause.get_or_insert(Cause::Interrupt(libc::SIGTERM));
            }
            State::Running if goes_on => {
                self.failed[child] = Some(ending);
                let report = match self.plan_restart(now, child) {
                    Some(after) => Command::ReportRestart { child, ending, after },
                    None => Command::ReportFailure { child, ending, is_cause: true },
                };
                self.commands.push_back(report);
            }
            State::Running | State::Draining { .. } | State::Grace { .. } if !ending.in_order() => {
                let is_cause = self.cause.is_none() || self.culprit == Some(child);
                self.commands.push_back(Command::ReportFailure { child, ending, is_cause });
                self.failed[child] = Some(ending);
                self.fail(now, Cause::Child(ending));
            }
            // The status of a child that was told to end does not count.
            State::Running
            | State::Draining { .. }
            | State::Grace { .. }
            | State::Terminating { .. }
            | State::Killing
            | State::Over => {}
        }
        self.advance(now);
    }

    /// A child could not be started again. It is tried again later, as after a failure.
    pub(super) fn handle_unstarted(&mut self, now: Time, child: usize) {
        self.running[child] = None;
        if self.state == State::Running {
            self.plan_restart(now, child);
        }
        self.advance(now);
    }

    /// The coordinator gave the job up, because of `culprit` if that is a child; `code` is the exit code if no child explains it better.
    pub(super) fn handle_job_failure(&mut self, now: Time, code: i32, culprit: Option<usize>) {
        // Ranks are given anew when workers come, so the coordinator's name for a worker may be that of another child here.
        let culprit = culprit.filter(|_| self.again.iter().all(|again| again.times == 0));
        // A child that ends because of another one may be heard of first.
        let is_explained = match self.cause {
            None => culprit.is_some_and(|culprit| self.failed[culprit].is_some()),
            Some(Cause::Child(_)) => culprit.is_none_or(|culprit| self.failed[culprit].is_some()),
            Some(Cause::Job(_) | Cause::Interrupt(_)) => true,
        };
        if !is_explained {
            self.commands.push_back(Command::ReportJobFailure);
        }
        self.culprit = self.culprit.or(culprit);
        // One that failed before the job did explains it better.
        let failed = self.failed.iter().flatten().next().filter(|_| culprit.is_none());
        self.fail(now, failed.map_or(Cause::Job(code), |ending| Cause::Child(*ending)));
        self.advance(now);
    }

    /// The launcher got `signal`. A further one ends the children sooner, and at last kills them at once.
    pub(super) fn handle_interrupt(&mut self, now: Time, signal: i32) {
        let goes_on = self.on_worker_loss.goes_on();
        match self.state {
            State::Running if signal == libc::SIGTERM && goes_on => {
                self.cancel_restarts();
                self.state = State::Draining { until: now + self.leave_grace + TERMINATE_GRACE };
                self.commands.push_back(Command::TerminateWorkers);
            }
            State::Running | State::Draining { .. } | State::Grace { .. } => {
                self.cause.get_or_insert(Cause::Interrupt(signal));
                self.terminate(now);
            }
            State::Terminating { .. } => self.kill(),
            State::Killing | State::Over => {}
        }
        self.advance(now);
    }

    /// The time of [`Self::poll_timeout`] has come.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        match self.state {
            State::Grace { until } if until <= now => self.terminate(now),
            State::Draining { until } if until <= now => {
                self.cause.get_or_insert(Cause::Interrupt(libc::SIGTERM));
                self.terminate(now);
            }
            State::Terminating { until } if until <= now => self.kill(),
            State::Running => self.advance(now),
            State::Draining { .. } | State::Grace { .. } | State::Terminating { .. } | State::Killing | State::Over => {
            }
        }
    }

    /// When to call [`Self::handle_timeout`].
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match self.state {
            State::Draining { until } | State::Grace { until } | State::Terminating { until } => Some(until),
            State::Running => self.again.iter().filter_map(|again| again.due).min(),
            State::Killing | State::Over => None,
        }
    }

    /// The next command; drain all after each input.
    pub(super) fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    fn fail(&mut self, now: Time, cause: Cause) {
        self.cause = match (self.cause, cause) {
            (None | Some(Cause::Job(_)), _) => Some(cause),
            (Some(Cause::Child(_) | Cause::Interrupt(_)), _) => self.cause,
        };
        if matches!(self.state, State::Running | State::Draining { .. }) {
            self.cancel_restarts();
            self.state = State::Grace { until: now + self.grace };
        }
    }

    /// Plans that this child is started again, if it may be. Returns after which time.
    fn plan_restart(&mut self, now: Time, child: usize) -> Option<Duration> {
        if !self.job_runs {
            // A job that is over takes nobody in.
            self.cancel_restarts();
            return None;
        }
        let is_wanted = self.restarts_workers || self.again[child].role != Role::Worker;
        if self.is_done || self.restarts_left == 0 || !is_wanted {
            return None;
        }
        self.restarts_left -= 1;
        let Again { times, due, .. } = &mut self.again[child];
        let after = pause(*times);
        *times += 1;
        *due = Some(now + after);
        Some(after)
    }

    fn cancel_restarts(&mut self) {
        self.again.iter_mut().for_each(|again| again.due = None);
    }

    /// The transitions that depend on time and on the children that still run.
    fn advance(&mut self, now: Time) {
        for (child, again) in self.again.iter_mut().enumerate() {
            if again.due.is_some_and(|due| due <= now) {
                again.due = None;
                self.running[child] = Some(again.role);
                self.commands.push_back(Command::Restart { child });
            }
        }
        if self.again.iter().any(|again| again.due.is_some()) {
            return;
        }
        if self.running.iter().all(Option::is_none) {
            if self.state != State::Over {
                self.state = State::Over;
                self.commands.push_back(Command::Finish(self.code()));
            }
        } else if !self.running.contains(&Some(Role::Worker)) {
            match self.state {
                State::Running | State::Draining { .. } | State::Grace { .. } => self.terminate(now),
                State::Terminating { .. } | State::Killing | State::Over => {}
            }
        }
    }

    fn terminate(&mut self, now: Time) {
        self.cancel_restarts();
        self.state = State::Terminating { until: now + TERMINATE_GRACE };
        self.commands.push_back(Command::SignalAll(libc::SIGTERM));
    }

    fn kill(&mut self) {
        self.state = State::Killing;
        self.commands.push_back(Command::SignalAll(libc::SIGKILL));
    }

    fn code(&self) -> i32 {
        let culprits = self.culprit.and_then(|child| self.failed[child]);
        match (self.cause, culprits) {
            (None, _) if self.is_done => 0,
            // The job went on without workers until none was left.
            (None, _) => self.failed.iter().flatten().next().map_or(0, |ending| ending.code()),
            (Some(Cause::Interrupt(signal)), _) => 128 + signal,
            // The others end because of it, and may be faster.
            (Some(Cause::Child(_) | Cause::Job(_)), Some(ending)) => ending.code(),
            (Some(Cause::Child(ending)), None) => ending.code(),
            (Some(Cause::Job(code)), None) => code,
        }
    }
}

/// How long a worker that fails again waits until it is started for the next time, so that one that fails at its start does not cost the
/// others a new beginning all the time. `times` is how often it was started again before.
fn pause(times: u32) -> Duration {
    match times {
        0 => Duration::ZERO,
        1..=5 => Duration::from_secs(1 << (times - 1)),
        _ => PAUSE_MAX,
    }
}

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
