//! Starts child processes, waits for each on a separate thread, and carries out the commands of [`Supervision`].

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use gradlane_core::config::OnWorkerLoss;
use gradlane_core::runtime::{Clock, Heard, Inputs};
use gradlane_core::types::Role;
use gradlane_core::{Error, Result};

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
    /// A worker failed, as `cause` says, and is started again after this time.
    Restarts { pid: u32, cause: String, after: Duration },
    /// The worker of this name could not be started again now.
    Unstarted { name: String, error: Error },
    /// The job failed before any child did.
    Job(Error),
}

/// The job of the children: what a supervisor tells it, and what it asks.
pub(super) trait Job {
    /// A failure has just happened.
    fn failed(&mut self, failure: Failure);

    /// Whether it has formed and is not over. Asked when a worker fails that may be started again.
    fn runs(&self) -> bool;

    /// The command that starts another process in the place of this child, numbered in the order in which children were started first.
    ///
    /// # Errors
    /// Why there is none now.
    fn replacement(&mut self, child: usize) -> Result<Command>;
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
    role: Role,
    name: String,
    process: Child,
    ended: bool,
}

impl Supervisor {
    /// A supervisor without children. After a failure, the other children get `grace` to end by themselves. `on_worker_loss` is the setting
    /// of the job, and `leave_grace` how long a worker may take to leave.
    pub(super) fn new(grace: Duration, on_worker_loss: OnWorkerLoss, leave_grace: Duration) -> Self {
        let (events, received) = unbounded();
        let clock = Clock::start();
        let received = Inputs::new(received, clock);
        let machine = Supervision::new(grace, on_worker_loss, leave_grace);
        Self { clock, machine, children: Vec::new(), events, received }
    }

    /// The job survives the loss of a server that fails.
    pub(super) fn outlive_servers(&mut self) {
        self.machine.outlive_servers();
    }

    /// Processes that fail are started again, so many times in all.
    pub(super) fn allow_restarts(&mut self, restarts: u32) {
        self.machine.allow_restarts(restarts);
    }

    /// Only servers that fail are started again.
    pub(super) fn restart_servers_alone(&mut self) {
        self.machine.restart_servers_alone();
    }

    /// The sender for signals and the job's failure.
    pub(super) fn events(&self) -> Sender<Event> {
        self.events.clone()
    }

    /// Starts `command` as `name` (such as `worker 1`), without standard input, because several processes cannot share a terminal's input.
    ///
    /// # Errors
    /// The error of the system; the other children keep running.
    pub(super) fn spawn(&mut self, role: Role, name: String, command: Command) -> std::io::Result<()> {
        let process = start(command)?;
        let child = self.machine.add(role);
        let pid = process.id();
        self.children.push(Supervised { role, name, process, ended: false });
        self.await_end(child, pid)
    }

    /// Starts `command` in the place of a child that has ended. What that one has left behind is killed, because it may hold memory of devices.
    fn restart(&mut self, child: usize, command: Command) -> std::io::Result<()> {
        let replaced = &mut self.children[child];
        os::signal_group(replaced.process.id(), libc::SIGKILL);
        let process = start(command)?;
        // Reaped after the start, because after a start that failed the group is signalled again, and its number must not be given to others.
        let _ = replaced.process.wait();
        let pid = process.id();
        (replaced.process, replaced.ended) = (process, false);
        self.await_end(child, pid).inspect_err(|_| {
            os::signal_group(pid, libc::SIGKILL);
        })
    }

    /// Waits for the end of a child on a thread of its own.
    fn await_end(&self, child: usize, pid: u32) -> std::io::Result<()> {
        let events = self.events.clone();
        std::thread::Builder::new().name(format!("gl-wait-{pid}")).spawn(move || {
            let ending = os::wait_unreaped(pid).expect("a child that nobody else reaps can be waited for");
            let _ = events.send(Event::Ended { child, ending });
        })?;
        Ok(())
    }

    /// Runs until every child has ended, and returns the exit code of the job. Tells `job` of failures as they happen.
    pub(super) fn run(mut self, job: &mut impl Job) -> i32 {
        let mut job_error = None;
        loop {
            while let Some(decision) = self.machine.next_command() {
                match decision {
                    Decision::SignalAll(signal) => self.signal(signal, |_| true),
                    Decision::TerminateWorkers => self.signal(libc::SIGTERM, |role| role == Role::Worker),
                    Decision::ReportFailure { child, ending, is_cause } => {
                        let (pid, cause) = self.children[child].ended_by(ending);
                        job.failed(Failure::Child { pid, cause, is_cause });
                    }
                    Decision::ReportRestart { child, ending, after } => {
                        let (pid, cause) = self.children[child].ended_by(ending);
                        job.failed(Failure::Restarts { pid, cause, after });
                    }
                    Decision::Restart { child } => {
                        let started = job.replacement(child).and_then(|command| {
                            let program = command.get_program().to_string_lossy().into_owned();
                            self.restart(child, command).map_err(|error| refused_start(&program, &error).1)
                        });
                        if let Err(error) = started {
                            job.failed(Failure::Unstarted { name: self.children[child].name.clone(), error });
                            self.machine.handle_unstarted(self.clock.now(), child);
                        }
                    }
                    Decision::ReportJobFailure => {
                        job.failed(Failure::Job(job_error.take().expect("the machine was told of it with this error")));
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
                    if !ending.in_order() && self.machine.asks_for_job() {
                        self.machine.set_job_runs(job.runs());
                    }
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

    fn signal(&self, signal: i32, wanted: impl Fn(Role) -> bool) {
        for child in self.children.iter().filter(|child| !child.ended && wanted(child.role)) {
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

impl Supervised {
    /// The process, and such as `worker 1 exited with code 3`.
    fn ended_by(&self, ending: Ending) -> (u32, String) {
        (self.process.id(), format!("{} {ending}", self.name))
    }
}

/// Starts a child without standard input. It ends with this thread.
fn start(mut command: Command) -> std::io::Result<Child> {
    os::die_with_this_thread(&mut command);
    command.stdin(Stdio::null()).spawn()
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
        assert_eq!(job.run(&mut Told(|failure| panic!("{failure:?}"))), 0);
    }

    #[test]
    fn the_first_failing_exit_code_is_the_launchers() {
        let job = started(&["exec sleep 30", "exit 3"]);
        let mut failures = Vec::new();
        assert_eq!(job.run(&mut Told(|failure| failures.push(cause(failure)))), 3);
        assert_eq!(failures, ["worker 1 exited with code 3"]);
    }

    #[test]
    fn a_signal_that_ends_a_child_is_reported_as_such() {
        let job = started(&["kill -KILL $$", "exit 0"]);
        let mut failures = Vec::new();
        assert_eq!(job.run(&mut Told(|failure| failures.push(cause(failure)))), 128 + 9);
        assert_eq!(failures, ["worker 0 killed by signal 9 (SIGKILL)"]);
    }

    #[test]
    fn an_interrupt_ends_children_that_ignore_sigterm_too() {
        let mut job = Supervisor::new(GRACE, OnWorkerLoss::Abort, GRACE);
        // The file says that the trap is set: the shell must not be interrupted before.
        let ready = tempfile::NamedTempFile::new().expect("a temporary file");
        let script = format!("trap '' TERM; echo ready > {}; while :; do sleep 0.1; done", ready.path().display());
        spawn(&mut job, 0, &script);
        await_content(ready.path());
        let clock = Clock::start();
        job.events().send(Event::Interrupt(libc::SIGTERM)).expect("the supervisor listens");
        assert_eq!(job.run(&mut Told(|failure| panic!("{failure:?}"))), 128 + libc::SIGTERM);
        assert!(clock.now() < Time::ZERO + Duration::from_secs(2));
    }

    #[test]
    fn what_a_failed_child_left_behind_is_killed() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let job = started(&[&format!("sleep 300 & echo $! > {}; exit 1", file.path().display())]);
        assert_eq!(job.run(&mut Told(|_| ())), 1);
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
        let mut job = Supervisor::new(GRACE, OnWorkerLoss::Abort, GRACE);
        let error = job.spawn(Role::Worker, "worker 0".to_owned(), Command::new("/nonexistent/program")).unwrap_err();
        let (code, error) = refused_start("/nonexistent/program", &error);
        assert_eq!(code, 127);
        assert_eq!(error.to_string(), "program /nonexistent/program does not exist; check its name and PATH");
    }

    #[test]
    fn a_worker_that_fails_while_the_job_runs_is_started_again_without_what_it_left_behind() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let mut supervisor = Supervisor::new(GRACE, OnWorkerLoss::Continue, GRACE);
        supervisor.allow_restarts(1);
        spawn(&mut supervisor, 0, &format!("sleep 300 & echo $! > {}; exit 1", file.path().display()));
        let mut job = Running { replacement: Some(shell("exit 0")), told: Vec::new() };
        assert_eq!(supervisor.run(&mut job), 0);
        assert_eq!(job.told, ["worker 0 exited with code 1"]);
        eventually(|| !lives(await_content(file.path()).trim()));
    }

    #[test]
    fn a_worker_that_cannot_be_started_again_is_given_up_with_the_restarts() {
        let mut supervisor = Supervisor::new(GRACE, OnWorkerLoss::Continue, GRACE);
        supervisor.allow_restarts(1);
        spawn(&mut supervisor, 0, "exit 7");
        let mut job = Running { replacement: None, told: Vec::new() };
        assert_eq!(supervisor.run(&mut job), 7);
        assert_eq!(job.told, ["worker 0 exited with code 7", "cancelled by the caller"]);
    }

    const GRACE: Duration = Duration::from_millis(50);

    /// A job that starts no worker again, and what is done with its failures.
    struct Told<F>(F);

    impl<F: FnMut(Failure)> Job for Told<F> {
        fn failed(&mut self, failure: Failure) {
            self.0(failure);
        }

        fn runs(&self) -> bool {
            false
        }

        fn replacement(&mut self, child: usize) -> Result<Command> {
            unreachable!("child {child} is not started again")
        }
    }

    /// A job that runs, with the command of the next replacement.
    struct Running {
        replacement: Option<Command>,
        told: Vec<String>,
    }

    impl Job for Running {
        fn failed(&mut self, failure: Failure) {
            self.told.push(cause(failure));
        }

        fn runs(&self) -> bool {
            true
        }

        fn replacement(&mut self, _child: usize) -> Result<Command> {
            self.replacement.take().ok_or(Error::Cancelled)
        }
    }

    fn started(scripts: &[&str]) -> Supervisor {
        let mut job = Supervisor::new(GRACE, OnWorkerLoss::Abort, GRACE);
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
            Failure::Child { cause, .. } | Failure::Restarts { cause, .. } => cause,
            Failure::Unstarted { error, .. } | Failure::Job(error) => error.to_string(),
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
