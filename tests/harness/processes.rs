//! Processes under test: what they print is waited for, and none outlives its test.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use gradlane_core::types::JoinString;

use crate::cluster::PATIENCE;

/// A child process. Dropping it kills it.
pub struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
    complaints: Option<JoinHandle<String>>,
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// What it printed and nobody had read.
    pub output: Vec<String>,
    /// What it wrote to standard error.
    pub complaints: String,
}

impl Process {
    /// Starts `program` with nothing in its environment but a search path, `home`, and these variables.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(program: &Path, arguments: &[&str], home: &Path, variables: &[(String, String)]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().env("HOME", home).env("PATH", "/usr/local/bin:/usr/bin:/bin");
        command.envs(variables.iter().cloned());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let orders = child.stdin.take();
        let (output, mut errors) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let (sender, lines) = unbounded();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let complaints = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            text
        });
        Self { child, orders, lines, complaints: Some(complaints) }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its standard input.
    ///
    /// # Panics
    /// If it is gone.
    pub fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("its input is open");
        writeln!(orders, "{order}").and_then(|()| orders.flush()).expect("it reads its input");
    }

    /// The next line that it prints.
    ///
    /// # Panics
    /// If none comes, with what it said on standard error if it has ended.
    pub fn line(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("process {} says nothing", self.pid()),
            Err(RecvTimeoutError::Disconnected) => panic!("it ended: {:?}", self.end()),
        }
    }

    /// The lines that it has printed and nobody has read, without waiting for more.
    pub fn lines(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Whether it has ended. If it has, [`end`](Self::end) does not wait.
    ///
    /// # Panics
    /// If the system does not tell.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is ours").is_some()
    }

    /// Whether a signal has stopped it.
    pub fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Whether it has printed nothing that was not read.
    pub fn is_silent(&self) -> bool {
        self.lines.is_empty()
    }

    /// Sends it a signal by name, such as `STOP`.
    ///
    /// # Panics
    /// If it cannot be sent.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits until it has ended, and takes what it left.
    ///
    /// # Panics
    /// If it does not end.
    pub fn end(&mut self) -> Ended {
        self.orders = None;
        let mut output = Vec::new();
        loop {
            // Its output ends when it does, and that can be waited for with a deadline.
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => output.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("process {} does not end", self.pid()),
            }
        }
        let code = self.child.wait().expect("it is ours").code();
        let complaints = self.complaints.take().map(|reader| reader.join().expect("no panic")).unwrap_or_default();
        Ended { code, output, complaints }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal by name, such as `KILL`.
///
/// # Panics
/// If it cannot be sent.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().expect("a shell starts");
    assert!(status.success(), "kill -{name} {pid}");
}

/// Whether a process with this id runs. A zombie does not: whoever adopted it may not have reaped it yet.
pub fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The environment variables that tell a process of the job these settings.
pub fn variables(join: &JoinString, settings: &[(&str, &str)]) -> Vec<(String, String)> {
    environment(&[&[("join", &*join.to_string())], settings].concat())
}

/// The environment variables that mean these settings.
pub fn environment(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    let variable =
        |(name, value): &(&str, &str)| (format!("GRADLANE_{}", name.to_ascii_uppercase()), (*value).to_owned());
    settings.iter().map(variable).collect()
}
