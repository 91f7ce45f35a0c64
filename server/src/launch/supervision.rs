//! Decides how a set of child processes ends: which exit code counts, and when the others are terminated and killed.
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
    /// This child failed: tell the coordinator, and the user. `is_cause` unless it is a consequence of another failure. Consequences are told
    /// together at the end.
    ReportFailure { child: usize, ending: Ending, is_cause: bool },
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

/// With [`OnWorkerLoss::Continue`] a worker that fails changes nothing here: the coordinator hears of it, and gives the job up or not.
///
/// ```text
/// Running ── all workers ended in order ─────────────────────► Terminating ── 1 s ──► Killing
///    │ ├─── interrupt ──────────────────────────────────────────► ▲   ▲ │ interrupt ───► ▲
///    │                                                            │   │
///    └────── a child or the job failed ──► Grace ─ grace over, or no worker left
///                                            └──── interrupt ─────────┘
/// ```
/// From any state `Over` follows once no child runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Running,
    /// The other children learn of the failure through the job and may end by themselves.
    Grace {
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
    /// By child: its role while it runs.
    running: Vec<Option<Role>>,
    /// By child: its ending, if it failed before it was told to end.
    failed: Vec<Option<Ending>>,
    /// Whether a worker did all its work.
    is_done: bool,
    /// The child because of which the coordinator gave the job up.
    culprit: Option<usize>,
    commands: VecDeque<Command>,
}

impl Supervision {
    /// A machine without children. After a failure, the other children get `grace` to end by themselves. `on_worker_loss` is the setting of
    /// the job.
    pub(super) fn new(grace: Duration, on_worker_loss: OnWorkerLoss) -> Self {
        Self {
            state: State::Running,
            cause: None,
            grace,
            on_worker_loss,
            running: Vec::new(),
            failed: Vec::new(),
            is_done: false,
            culprit: None,
            commands: VecDeque::new(),
        }
    }

    /// Adds a child that has just been started and numbers it.
    pub(super) fn add(&mut self, role: Role) -> usize {
        self.running.push(Some(role));
        self.failed.push(None);
        self.running.len() - 1
    }

    /// A child has ended.
    pub(super) fn handle_exit(&mut self, now: Time, child: usize, ending: Ending) {
        let role = self.running[child].take();
        let goes_on = self.on_worker_loss == OnWorkerLoss::Continue && role == Some(Role::Worker);
        match self.state {
            // A server that ends in order does so because the job has ended; its workers may still be busy.
            State::Running if ending.in_order() => self.is_done |= role == Some(Role::Worker),
            State::Running if goes_on => {
                self.commands.push_back(Command::ReportFailure { child, ending, is_cause: true });
                self.failed[child] = Some(ending);
            }
            State::Running | State::Grace { .. } if !ending.in_order() => {
                let is_cause = self.cause.is_none() || self.culprit == Some(child);
                self.commands.push_back(Command::ReportFailure { child, ending, is_cause });
                self.failed[child] = Some(ending);
                self.fail(now, Cause::Child(ending));
            }
            // The status of a child that was told to end does not count.
            State::Running | State::Grace { .. } | State::Terminating { .. } | State::Killing | State::Over => {}
        }
        self.advance(now);
    }

    /// The coordinator gave the job up, because of `culprit` if that is a child; `code` is the exit code if no child explains it better.
    pub(super) fn handle_job_failure(&mut self, now: Time, code: i32, culprit: Option<usize>) {
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
        self.fail(now, Cause::Job(code));
        self.advance(now);
    }

    /// The launcher got `signal`. A second signal kills the children at once.
    pub(super) fn handle_interrupt(&mut self, now: Time, signal: i32) {
        match self.state {
            State::Running | State::Grace { .. } => {
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
            State::Terminating { until } if until <= now => self.kill(),
            State::Running | State::Grace { .. } | State::Terminating { .. } | State::Killing | State::Over => {}
        }
    }

    /// When to call [`Self::handle_timeout`].
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match self.state {
            State::Grace { until } | State::Terminating { until } => Some(until),
            State::Running | State::Killing | State::Over => None,
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
        if self.state == State::Running {
            self.state = State::Grace { until: now + self.grace };
        }
    }

    /// The transitions that depend on the children that still run.
    fn advance(&mut self, now: Time) {
        if self.running.iter().all(Option::is_none) {
            if self.state != State::Over {
                self.state = State::Over;
                self.commands.push_back(Command::Finish(self.code()));
            }
        } else if !self.running.contains(&Some(Role::Worker)) {
            match self.state {
                State::Running | State::Grace { .. } => self.terminate(now),
                State::Terminating { .. } | State::Killing | State::Over => {}
            }
        }
    }

    fn terminate(&mut self, now: Time) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_all_workers_ended_in_order_the_servers_are_told_to_end() {
        let mut job = job();
        job.handle_exit(at(1), WORKER_0, Ending::Exited(0));
        assert_eq!(commands(&mut job), []);
        job.handle_exit(at(2), WORKER_1, Ending::Exited(0));
        assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGTERM)]);
        job.handle_exit(at(2), SERVER, Ending::Killed(libc::SIGTERM));
        assert_eq!(commands(&mut job), [Command::Finish(0)]);
    }

    #[test]
    fn a_server_that_ends_in_order_before_the_workers_is_no_failure() {
        let mut job = job();
        job.handle_exit(at(1), SERVER, Ending::Exited(0));
        job.handle_exit(at(2), WORKER_0, Ending::Exited(0));
        job.handle_exit(at(3), WORKER_1, Ending::Exited(0));
        assert_eq!(commands(&mut job), [Command::Finish(0)]);
    }

    #[test]
    fn a_server_that_fails_fails_the_job() {
        let mut job = job();
        job.handle_exit(at(1), SERVER, Ending::Exited(70));
        assert_eq!(
            commands(&mut job),
            [Command::ReportFailure { child: SERVER, ending: Ending::Exited(70), is_cause: true }]
        );
        job.handle_exit(at(2), WORKER_0, Ending::Exited(1));
        job.handle_exit(at(2), WORKER_1, Ending::Exited(1));
        assert_eq!(commands(&mut job).last(), Some(&Command::Finish(70)), "the first failure counts");
    }

    #[test]
    fn survivors_of_a_failure_get_the_grace_then_sigterm_then_sigkill() {
        let mut job = job();
        job.handle_exit(at(10), WORKER_0, Ending::Killed(libc::SIGKILL));
        let failed = Command::ReportFailure { child: WORKER_0, ending: Ending::Killed(libc::SIGKILL), is_cause: true };
        assert_eq!(commands(&mut job), [failed]);
        assert_eq!(job.poll_timeout(), Some(at(15)));

        job.handle_timeout(at(15));
        assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGTERM)]);
        job.handle_timeout(at(16));
        assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGKILL)]);
        job.handle_exit(at(16), WORKER_1, Ending::Killed(libc::SIGKILL));
        job.handle_exit(at(16), SERVER, Ending::Killed(libc::SIGKILL));
        assert_eq!(commands(&mut job), [Command::Finish(128 + libc::SIGKILL)]);
    }

    #[test]
    fn without_workers_the_servers_get_no_further_grace() {
        let mut job = job();
        job.handle_exit(at(1), WORKER_0, Ending::Exited(3));
        job.handle_exit(at(2), WORKER_1, Ending::Exited(0));
        assert_eq!(commands(&mut job).last(), Some(&Command::SignalAll(libc::SIGTERM)));
        job.handle_exit(at(2), SERVER, Ending::Exited(0));
        assert_eq!(commands(&mut job), [Command::Finish(3)]);
    }

    #[test]
    fn an_interrupt_terminates_at_once_and_kills_one_second_later() {
        let mut job = job();
        job.handle_interrupt(at(1), libc::SIGINT);
        assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGTERM)]);
        job.handle_exit(at(1), WORKER_0, Ending::Killed(libc::SIGTERM));
        job.handle_timeout(at(2));
        assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGKILL)]);
        job.handle_exit(at(2), WORKER_1, Ending::Killed(libc::SIGKILL));
        job.handle_exit(at(2), SERVER, Ending::Exited(0));
        assert_eq!(commands(&mut job), [Command::Finish(128 + libc::SIGINT)]);
    }

    #[test]
    fn a_second_interrupt_kills() {
        let mut job = job();
        job.handle_interrupt(at(1), libc::SIGINT);
        job.handle_interrupt(at(1), libc::SIGINT);
        assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGTERM), Command::SignalAll(libc::SIGKILL)]);
    }

    #[test]
    fn a_child_explains_the_failure_of_its_job_even_if_it_is_heard_of_later() {
        let mut job = job();
        job.handle_job_failure(at(1), 1, None);
        assert_eq!(commands(&mut job), [Command::ReportJobFailure]);
        job.handle_exit(at(1), WORKER_1, Ending::Exited(7));
        job.handle_exit(at(2), WORKER_0, Ending::Exited(1));
        job.handle_exit(at(2), SERVER, Ending::Exited(1));
        assert_eq!(commands(&mut job).last(), Some(&Command::Finish(7)));
    }

    #[test]
    fn the_child_that_failed_the_job_gives_the_code_also_if_others_end_before_it() {
        let mut job = job();
        job.handle_exit(at(1), WORKER_0, Ending::Exited(3));
        job.handle_job_failure(at(1), 1, Some(WORKER_1));
        job.handle_exit(at(2), WORKER_1, Ending::Exited(7));
        job.handle_exit(at(2), SERVER, Ending::Exited(1));
        assert_eq!(commands(&mut job).last(), Some(&Command::Finish(7)));
    }

    #[test]
    fn a_job_that_fails_while_its_processes_end_in_order_still_fails() {
        let mut job = job();
        job.handle_job_failure(at(1), 75, None);
        for child in [WORKER_0, WORKER_1, SERVER] {
            job.handle_exit(at(2), child, Ending::Exited(0));
        }
        assert_eq!(commands(&mut job).last(), Some(&Command::Finish(75)));
    }

    #[test]
    fn that_a_job_fails_after_its_child_is_no_news() {
        let mut job = job();
        job.handle_exit(at(1), WORKER_1, Ending::Exited(7));
        job.handle_job_failure(at(1), 1, None);
        let failed = Command::ReportFailure { child: WORKER_1, ending: Ending::Exited(7), is_cause: true };
        assert_eq!(commands(&mut job), [failed]);
    }

    #[test]
    fn the_cause_is_told_also_if_a_child_that_ends_because_of_it_is_heard_of_before() {
        let mut job = job();
        job.handle_exit(at(1), WORKER_0, Ending::Exited(1));
        job.handle_job_failure(at(1), 1, Some(WORKER_1));
        job.handle_exit(at(1), WORKER_1, Ending::Exited(7));
        let failure = |child, code| Command::ReportFailure { child, ending: Ending::Exited(code), is_cause: true };
        let told = [failure(WORKER_0, 1), Command::ReportJobFailure, failure(WORKER_1, 7)];
        assert_eq!(commands(&mut job)[..3], told);
    }

    #[test]
    fn a_job_that_goes_on_without_a_worker_succeeds_once_the_others_have() {
        let mut job = job_that_goes_on();
        job.handle_exit(at(1), WORKER_0, KILLED);
        assert_eq!(commands(&mut job), [failed(WORKER_0)], "the coordinator and the user hear of it");
        assert_eq!(job.poll_timeout(), None, "nobody is told to end");
        job.handle_exit(at(60), WORKER_1, Ending::Exited(0));
        assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGTERM)]);
        job.handle_exit(at(60), SERVER, Ending::Exited(0));
        assert_eq!(commands(&mut job), [Command::Finish(0)]);
    }

    #[test]
    fn a_job_that_goes_on_until_no_worker_is_left_fails_as_the_first_one_did() {
        let mut job = job_that_goes_on();
        job.handle_exit(at(1), WORKER_0, KILLED);
        job.handle_exit(at(2), WORKER_1, Ending::Exited(7));
        job.handle_exit(at(2), SERVER, Ending::Exited(0));
        assert_eq!(commands(&mut job).last(), Some(&Command::Finish(128 + libc::SIGKILL)));
    }

    #[test]
    fn a_job_that_the_coordinator_gives_up_after_a_worker_fails_as_that_one_did() {
        let mut job = job_that_goes_on();
        job.handle_exit(at(1), WORKER_1, KILLED);
        job.handle_job_failure(at(1), 1, Some(WORKER_1));
        assert_eq!(commands(&mut job), [failed(WORKER_1)], "the user has heard of it");
        job.handle_exit(at(2), WORKER_0, Ending::Exited(1));
        job.handle_exit(at(2), SERVER, Ending::Exited(1));
        assert_eq!(commands(&mut job).last(), Some(&Command::Finish(128 + libc::SIGKILL)));
    }

    #[test]
    fn a_server_that_fails_fails_also_a_job_that_goes_on_without_workers() {
        let mut job = job_that_goes_on();
        job.handle_exit(at(1), SERVER, Ending::Exited(70));
        assert_eq!(job.poll_timeout(), Some(at(6)), "the others get their grace");
    }

    #[test]
    fn an_ending_is_told_in_words() {
        assert_eq!(Ending::Exited(3).to_string(), "exited with code 3");
        assert_eq!(Ending::Killed(9).to_string(), "killed by signal 9 (SIGKILL)");
    }

    const SERVER: usize = 0;
    const WORKER_0: usize = 1;
    const WORKER_1: usize = 2;

    const KILLED: Ending = Ending::Killed(libc::SIGKILL);

    fn failed(child: usize) -> Command {
        Command::ReportFailure { child, ending: KILLED, is_cause: true }
    }

    fn job() -> Supervision {
        supervised(OnWorkerLoss::Abort)
    }

    fn job_that_goes_on() -> Supervision {
        supervised(OnWorkerLoss::Continue)
    }

    fn supervised(on_worker_loss: OnWorkerLoss) -> Supervision {
        let mut job = Supervision::new(Duration::from_secs(5), on_worker_loss);
        assert_eq!([Role::Server, Role::Worker, Role::Worker].map(|role| job.add(role)), [SERVER, WORKER_0, WORKER_1]);
        job
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn commands(job: &mut Supervision) -> Vec<Command> {
        std::iter::from_fn(|| job.next_command()).collect()
    }
}
