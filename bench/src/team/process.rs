//! A process of a contender. It takes orders over pipes, with deadlines, and ends when the benchmark ends.
//!
//! When the benchmark ends, even by SIGKILL, its processes end too: each first asks the kernel to die with its parent (see [`die_with`]),
//! and peers are started through such a process. MPI's ranks end when their orders end.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::orders::{Answer, Order};
use crate::measure::Deadline;

/// The format of orders. Answers are always JSON.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Speech {
    Json,
    Words(fn(&Order) -> String),
}

/// A child that takes orders. Dropping it kills it.
pub(crate) struct Process {
    /// Its name in messages, such as `gloo rank 1`.
    name: String,
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
    speech: Speech,
    /// The end of its output on standard error.
    complaints: Arc<Mutex<Vec<u8>>>,
    /// Disconnected once all of that has been read.
    silence: Receiver<()>,
}

impl Process {
    /// Starts `command`, with pipes for standard input, output and error.
    ///
    /// Call it on the benchmark's main thread: the kernel ties a child to the thread that started it.
    ///
    /// # Errors
    /// If it could not be started.
    pub(crate) fn start(name: &str, mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|cause| format!("{name}: {program} does not start: {cause}"))?;
        let orders = child.stdin.take();
        let (output, errors) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(io::Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let complaints = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&complaints);
        let (talking, silence) = channel();
        std::thread::spawn(move || {
            keep_end(errors, &heard);
            drop(talking);
        });
        Ok(Self { name: name.to_owned(), child, orders, answers, speech: Speech::Json, complaints, silence })
    }

    /// The same process, with another format of orders.
    pub(crate) fn speaking(mut self, speech: Speech) -> Self {
        self.speech = speech;
        self
    }

    /// Sends an order; [`Process::answer`] waits for its answer.
    ///
    /// # Errors
    /// If the process has ended; the text contains its last output.
    pub(crate) fn order(&mut self, order: &Order) -> Result<(), String> {
        let line = match self.speech {
            Speech::Json => serde_json::to_string(order).expect("orders have no maps with odd keys"),
            Speech::Words(words_of) => words_of(order),
        };
        self.tell(&line)
    }

    /// Sends a line that is no order.
    ///
    /// # Errors
    /// As [`Process::order`].
    pub(crate) fn tell(&mut self, line: &str) -> Result<(), String> {
        let orders = self.orders.as_mut().expect("open until it is dismissed");
        if writeln!(orders, "{line}").and_then(|()| orders.flush()).is_err() {
            return Err(self.gone());
        }
        Ok(())
    }

    /// Waits for the answer to the last order.
    ///
    /// # Errors
    /// The error that the process reports; or that it did not answer in time, or has ended.
    pub(crate) fn answer(&mut self, patience: Duration) -> Result<Answer, String> {
        let line = self.line(patience)?;
        match serde_json::from_str(&line) {
            Ok(Answer::Failed { error }) => Err(format!("{}: {error}", self.name)),
            Ok(answer) => Ok(answer),
            Err(cause) => Err(format!("{} answered {line:?}: {cause}", self.name)),
        }
    }

    /// The next line that it prints.
    ///
    /// # Errors
    /// As [`Process::answer`].
    pub(crate) fn line(&mut self, patience: Duration) -> Result<String, String> {
        match self.answers.recv_timeout(patience) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("{} says nothing for {} s{}", self.name, patience.as_secs(), self.complaints()))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.gone()),
        }
    }

    /// Passes every line that it prints to `each`, until it has ended.
    ///
    /// # Errors
    /// If it has not ended by the deadline, and was killed; or if it failed.
    pub(crate) fn hear(&mut self, deadline: Deadline, mut each: impl FnMut(&str)) -> Result<(), String> {
        let patience = deadline.left();
        loop {
            match self.answers.recv_timeout(deadline.left()) {
                Ok(line) => each(&line),
                Err(RecvTimeoutError::Disconnected) => return self.status(),
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.child.kill();
                    return Err(format!("not finished after {:.0} s, so it was killed", patience.as_secs_f64()));
                }
            }
        }
    }

    /// Ends its standard input, so that it leaves; see [`Process::wait`].
    pub(crate) fn dismiss(&mut self) {
        self.orders = None;
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// If it does not end within `patience` (it is killed when dropped), or failed.
    pub(crate) fn wait(&mut self, patience: Duration) -> Result<(), String> {
        loop {
            // Its output ends when it ends, and only the output can be awaited with a deadline.
            match self.answers.recv_timeout(patience) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => return Err(format!("{} does not end", self.name)),
            }
        }
        self.status()
    }

    /// Its exit code, if it has ended and has one.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        self.child.try_wait().ok().flatten().and_then(|status| status.code())
    }

    /// Its exit status, once its output has ended.
    fn status(&mut self) -> Result<(), String> {
        let ended = self.child.wait();
        self.hear_out();
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{} left with {status}{}", self.name, self.complaints())),
            Err(cause) => Err(format!("{}: {cause}", self.name)),
        }
    }

    fn gone(&mut self) -> String {
        let _ = self.child.kill();
        let status = self.child.wait().map_or_else(|cause| cause.to_string(), |status| status.to_string());
        self.hear_out();
        format!("{} ended unasked ({status}){}", self.name, self.complaints())
    }

    /// Waits until the end of its standard error was read; only for a moment, because a child of the process may hold it open.
    fn hear_out(&self) {
        let _ = self.silence.recv_timeout(Duration::from_secs(1));
    }

    fn complaints(&self) -> String {
        let text = self.complaints.lock().expect("nobody panics while holding it").clone();
        match String::from_utf8_lossy(&text).trim() {
            "" => String::new(),
            text => format!("; its last output:\n{text}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that runs this program again, in a hidden role, tied to this process. `before` are words before the command, such as `ip netns
/// exec NAME`.
///
/// # Errors
/// If the path of this program is unknown.
pub(crate) fn role(role: &str, before: &[OsString]) -> Result<Command, String> {
    let this = std::env::current_exe().map_err(|cause| format!("this program does not find itself: {cause}"))?;
    let mut words = before.iter().cloned().chain([this.into_os_string()]);
    let mut command = Command::new(words.next().expect("this program at least"));
    command.args(words).args(["role", "--parent"]).arg(std::process::id().to_string()).arg(role);
    Ok(command)
}

/// A command that runs another program, tied to this process in the same way: the tie outlives the `exec` by which this program
/// becomes the other.
///
/// # Errors
/// As [`role`].
pub(crate) fn tied(words: &[OsString], before: &[OsString]) -> Result<Command, String> {
    let mut command = role("exec", before)?;
    command.arg("--").args(words);
    Ok(command)
}

/// Becomes another program; returns only if that fails.
pub(crate) fn become_program(words: &[OsString]) -> String {
    let Some((program, arguments)) = words.split_first() else { return "there is no program to run".to_owned() };
    let cause = Command::new(program).args(arguments).exec();
    format!("{} does not start: {cause}", program.to_string_lossy())
}

/// Makes the kernel kill this process when its parent, which is `parent`, ends.
///
/// # Errors
/// If the parent has ended already, or the kernel refuses.
pub(crate) fn die_with(parent: u32) -> Result<(), String> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|cause| format!("prctl: {cause}"))?;
    // If the parent ended before the line above, the kernel would not send the signal.
    let living = getppid().map(Pid::as_raw_nonzero).is_some_and(|found| u32::try_from(found.get()) == Ok(parent));
    if living { Ok(()) } else { Err("the benchmark that started this has ended".to_owned()) }
}

/// Reads to the end and keeps the last few kilobytes.
fn keep_end(mut errors: impl Read, kept: &Mutex<Vec<u8>>) {
    const KEPT_BYTES: usize = 4096;
    let mut piece = [0; 1024];
    while let Ok(bytes @ 1..) = errors.read(&mut piece) {
        let mut kept = kept.lock().expect("nobody panics while holding it");
        kept.extend_from_slice(&piece[..bytes]);
        let surplus = kept.len().saturating_sub(KEPT_BYTES);
        kept.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start("a shell", command).expect("there is a shell")
    }

    #[test]
    fn all_that_a_process_prints_is_heard_and_how_it_ended() {
        let mut heard = Vec::new();
        let mut hear =
            |script| shell(script).hear(Deadline::within(Duration::from_secs(60)), |line| heard.push(line.to_owned()));
        assert_eq!(hear("echo one; echo two"), Ok(()));
        let problem = hear("echo three; echo why >&2; exit 3").unwrap_err();
        assert!(problem.contains("exit status: 3") && problem.ends_with("why"), "{problem}");
        assert_eq!(heard, ["one", "two", "three"]);
    }

    #[test]
    fn a_process_that_does_not_end_by_its_deadline_is_ended() {
        let mut process = shell("echo there; exec sleep 600");
        let problem = process.hear(Deadline::within(Duration::from_millis(1)), |_| ()).unwrap_err();
        assert!(problem.contains("not finished after"), "{problem}");
        assert!(process.wait(Duration::from_secs(60)).unwrap_err().contains("signal: 9"));
    }
}
