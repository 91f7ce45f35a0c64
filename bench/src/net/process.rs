//! Processes on the machines of a fabric: what they print is waited for, with a deadline, and none outlives its handle.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// A running process. Dropping it kills it.
pub(crate) struct Process {
    name: String,
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// Starts a command whose standard input and output are ours; its errors go where ours go.
    ///
    /// # Errors
    /// That it could not be started.
    pub(crate) fn start(name: &str, mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{name} does not start: {error}"))?;
        let (orders, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Ok(Self { name: name.to_owned(), child, orders, lines })
    }

    /// Writes a line to its standard input.
    ///
    /// # Errors
    /// That it is gone.
    pub(crate) fn order(&mut self, order: &str) -> Result<(), String> {
        let orders = self.orders.as_mut().expect("its input is open until it is waited for");
        writeln!(orders, "{order}").and_then(|()| orders.flush()).map_err(|_| format!("{} has ended", self.name))
    }

    /// The next line that it prints.
    ///
    /// # Errors
    /// That none came within `patience`, or that it ended first.
    pub(crate) fn line(&mut self, patience: Duration) -> Result<String, String> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(format!("{} said nothing for {patience:?}", self.name)),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().map_err(|error| error.to_string())?;
                Err(format!("{} ended before it was done ({status})", self.name))
            }
        }
    }

    /// Closes its input and waits until it has ended.
    ///
    /// # Errors
    /// That it did not end within `patience`.
    pub(crate) fn end(&mut self, patience: Duration) -> Result<ExitStatus, String> {
        self.orders = None;
        loop {
            // Its output ends when it does, and that can be waited for with a deadline.
            match self.lines.recv_timeout(patience) {
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Err(format!("{} does not end", self.name)),
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().map_err(|error| error.to_string()),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
