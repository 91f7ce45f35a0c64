//! Starts child processes, waits for each on a separate thread, and carries out the commands of [`Supervision`].

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use gradlane_core::Error;
use gradlane_core::config::OnWorkerLoss;
use gradlane_core::runtime::{Clock, Heard, Inputs};
use gradlane_core::types::Role;

use super::supervision::{Command as Decision, Supervision};
use crate::ending::Ending;
use crate::os;

/// An input of a supervisor.
pub(super) enum Event {
    /// A child has ended.
    Ended { child: usize, ending: Ending },
    /// The launcher got a signal.
    Interrupt(i32),
    /// The coordinator gave the job up; `code` is the exit code if no child explains it better.
    JobFailed { code: i32, error: Error },
}

/// A failure, for the user and partly for the coordinator.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Failure {
    /// A child failed; `cause` is such as `worker 1 exited with code 3`. `is_cause` if the job failed because of it, as far as is known.
    Child { pid: u32, cause: String, is_cause: bool },
    /// The job failed before any child did.
    Job(Error),
}

/// A set of child processes that ends as one. Dropping it kills the children that still run.
///
/// Start and run it on one thread that lives to the end: the kernel kills the children when that thread dies
/// ([`os::die_with_this_thread`]).
pub(super) struct Supervisor {
    clock: Clock,
    machine: Supervision,
    children: Vec<Supervised>,
    events: Sender<Event>,
    received: Inputs<Event>,
}

struct Supervised {
    name: String,
    process: Child,
    ended: bool,
}

impl Supervisor {
    /// A supervisor without children. After a failure, the other children get `grace` to end by themselves. `on_worker_loss` is the setting
    /// of the job.
    pub(super) fn new(grace: Duration, on_worker_loss: OnWorkerLoss) -> Self {
        let (events, received) = unbounded();
        let clock = Clock::start();
        let received = Inputs::new(received, clock);
        Self { clock, machine: Supervision::new(grace, on_worker_loss), children: Vec::new(), events, received }
    }

    /// The sender for signals and the job's failure.
    pub(super) fn events(&self) -> Sender<Event> {
        self.events.clone()
    }

    /// Starts `command` as `name` (such as `worker 1`), without standard input, because several processes cannot share a terminal's input.
    ///
    /// # Errors
    /// The error of the system; the other children keep running.
    pub(super) fn spawn(&mut self, role: Role, name: String, mut command: Command) -> std::io::Result<()> {
        os::die_with_this_thread(&mut command);
        let process = command.stdin(Stdio::null()).spawn()?;
        let (pid, child, events) = (process.id(), self.machine.add(role), self.events.clone());
        self.children.push(Supervised { name, process, ended: false });
        std::thread::Builder::new().name(format!("gl-wait-{pid}")).spawn(move || {
            let ending = os::wait_unreaped(pid).expect("a child that nobody else reaps can be waited for");
            let _ = events.send(Event::Ended { child, ending });
        })?;
        Ok(())
    }

    /// Runs until every child has ended, and returns the exit code of the job. Calls `failed` for failures as they happen.
    pub(super) fn run(mut self, mut failed: impl FnMut(Failure)) -> i32 {
        let mut job_error = None;
        loop {
            while let Some(decision) = self.machine.next_command() {
                match decision {
                    Decision::SignalAll(signal) => self.signal(signal),
                    Decision::ReportFailure { child, ending, is_cause } => {
                        let child = &self.children[child];
                        let (pid, cause) = (child.process.id(), format!("{} {ending}", child.name));
                        failed(Failure::Child { pid, cause, is_cause });
                    }
                    Decision::ReportJobFailure => {
                        failed(Failure::Job(job_error.take().expect("the machine was told of it with this error")));
                    }
                    Decision::Finish(code) => {
                        if code == 0 {
                            self.sweep(libc::SIGTERM);
                        }
                        return code;
                    }
                }
            }
            let heard = self.received.next(self.machine.poll_timeout());
            let now = self.clock.now();
            match heard {
                Heard::Input(Event::Ended { child, ending }) => {
                    self.children[child].ended = true;
                    self.machine.handle_exit(now, child, ending);
                }
                Heard::Input(Event::Interrupt(signal)) => self.machine.handle_interrupt(now, signal),
                Heard::Input(Event::JobFailed { code, error }) => {
                    let lost = lost(&error);
                    let culprit = self.children.iter().position(|child| lost == Some(child.name.as_str()));
                    self.machine.handle_job_failure(now, code, culprit);
                    job_error = Some(error);
                }
                Heard::Due => self.machine.handle_timeout(now),
                Heard::Closed => unreachable!("this supervisor holds a sender itself"),
            }
        }
    }

    fn signal(&self, signal: i32) {
        for child in self.children.iter().filter(|child| !child.ended) {
            os::signal_group(child.process.id(), signal);
        }
    }

    /// Signals the whole group of every child, the ended ones too, then reaps them: nothing that they started outlives the launcher.
    ///
    /// After a success, remaining processes only get SIGTERM. Some clean up after their parent, such as the resource tracker of Python's
    /// multiprocessing, which ignores SIGTERM and ends by itself.
    fn sweep(&mut self, signal: i32) {
        for mut child in self.children.drain(..) {
            os::signal_group(child.process.id(), signal);
            let _ = child.process.wait();
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.sweep(libc::SIGKILL);
    }
}

/// The member whose loss ended the job, such as `worker 1`.
fn lost(error: &Error) -> Option<&str> {
    match error {
        Error::PeerLost { member, .. } => Some(member),
        _ => None,
    }
}

/// The exit code and the message for a program that could not be started; the codes are those of the shell.
pub(super) fn refused_start(program: &str, error: &std::io::Error) -> (i32, Error) {
    match error.kind() {
        std::io::ErrorKind::NotFound => (
            127,
            Error::InvalidArgument {
                what: format!("program {program} does not exist"),
                hint: "check its name and PATH".to_owned(),
            },
        ),
        std::io::ErrorKind::PermissionDenied => (
            126,
            Error::InvalidArgument {
                what: format!("program {program} may not be executed"),
                hint: "start a script through its interpreter, such as `python train.py`".to_owned(),
            },
        ),
        _ => (1, Error::Io { what: format!("starting {program}"), cause: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::Time;

    use super::*;

    #[test]
    fn all_ended_in_order_is_a_success() {
        let job = started(&["exit 0", "exit 0"]);
        assert_eq!(job.run(|failure| panic!("{failure:?}")), 0);
    }

    #[test]
    fn the_first_failing_exit_code_is_the_launchers() {
        let job = started(&["exec sleep 30", "exit 3"]);
        let mut failures = Vec::new();
        assert_eq!(job.run(|failure| failures.push(cause(failure))), 3);
        assert_eq!(failures, ["worker 1 exited with code 3"]);
    }

    #[test]
    fn a_signal_that_ends_a_child_is_reported_as_such() {
        let job = started(&["kill -KILL $$", "exit 0"]);
        let mut failures = Vec::new();
        assert_eq!(job.run(|failure| failures.push(cause(failure))), 128 + 9);
        assert_eq!(failures, ["worker 0 killed by signal 9 (SIGKILL)"]);
    }

    #[test]
    fn an_interrupt_ends_children_that_ignore_sigterm_too() {
        let mut job = Supervisor::new(GRACE, OnWorkerLoss::Abort);
        // The file says that the trap is set: the shell must not be interrupted before.
        let ready = tempfile::NamedTempFile::new().expect("a temporary file");
        let script = format!("trap '' TERM; echo ready > {}; while :; do sleep 0.1; done", ready.path().display());
        spawn(&mut job, 0, &script);
        await_content(ready.path());
        let clock = Clock::start();
        job.events().send(Event::Interrupt(libc::SIGTERM)).expect("the supervisor listens");
        assert_eq!(job.run(|failure| panic!("{failure:?}")), 128 + libc::SIGTERM);
        assert!(clock.now() < Time::ZERO + Duration::from_secs(2));
    }

    #[test]
    fn what_a_failed_child_left_behind_is_killed() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let job = started(&[&format!("sleep 300 & echo $! > {}; exit 1", file.path().display())]);
        assert_eq!(job.run(|_| ()), 1);
        let grandchild = await_content(file.path());
        eventually(|| !lives(grandchild.trim()));
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let starter = std::thread::spawn(|| {
            let mut command = shell("exec sleep 300");
            os::die_with_this_thread(&mut command);
            command.spawn().expect("a shell starts")
        });
        let mut child = starter.join().expect("the starter only spawns");
        assert_eq!(os::wait_unreaped(child.id()).expect("it is our child"), Ending::Killed(libc::SIGKILL));
        child.wait().expect("it has ended");
    }

    #[test]
    fn a_program_that_does_not_exist_gets_the_shells_exit_code() {
        let mut job = Supervisor::new(GRACE, OnWorkerLoss::Abort);
        let error = job.spawn(Role::Worker, "worker 0".to_owned(), Command::new("/nonexistent/program")).unwrap_err();
        let (code, error) = refused_start("/nonexistent/program", &error);
        assert_eq!(code, 127);
        assert_eq!(error.to_string(), "program /nonexistent/program does not exist; check its name and PATH");
    }

    const GRACE: Duration = Duration::from_millis(50);

    fn started(scripts: &[&str]) -> Supervisor {
        let mut job = Supervisor::new(GRACE, OnWorkerLoss::Abort);
        for (index, script) in scripts.iter().enumerate() {
            spawn(&mut job, index, script);
        }
        job
    }

    fn spawn(job: &mut Supervisor, index: usize, script: &str) {
        job.spawn(Role::Worker, format!("worker {index}"), shell(script)).expect("a shell starts");
    }

    fn cause(failure: Failure) -> String {
        match failure {
            Failure::Child { cause, .. } => cause,
            Failure::Job(error) => error.to_string(),
        }
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn await_content(path: &std::path::Path) -> String {
        let content = || std::fs::read_to_string(path).expect("the file exists");
        eventually(|| content().ends_with('\n'));
        content()
    }

    /// A process does what it was told some time after it was told.
    fn eventually(condition: impl Fn() -> bool) {
        let clock = Clock::start();
        while !condition() {
            assert!(clock.now() < Time::ZERO + Duration::from_secs(5), "it never came true");
            crossbeam_channel::after(Duration::from_millis(5)).recv().expect("a timer fires");
        }
    }

    /// A zombie is dead: whoever adopted it may not have reaped it yet.
    fn lives(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }
}
