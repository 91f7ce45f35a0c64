//! A role that runs as a process: how it starts, what it says meanwhile, and how it ends.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, after, bounded, never, select};
use gradlane_core::{Error, Result};

use super::status_printer::StatusPrinter;
use crate::exit;
use crate::launch;

/// A running role.
pub(super) trait Live: Send + Sync + 'static {
    /// What a person at the terminal wants to know now; nothing once that will not change any more. Answers at once.
    fn news(&self) -> Result<Option<String>>;
    /// How long the news may stay the same until a warning; `None` if another part of the role warns.
    fn warns_after(&self) -> Option<Duration>;
    /// Blocks until the job has ended or [`Live::stop`] was called.
    fn wait(&self) -> Result<()>;
    /// Stops: the process ends within two seconds of a signal.
    fn stop(&self);
    /// Has what its flight recorders have written into files. Does not wait for them.
    fn dump(&self);
    /// Stops because of this signal. Returns the exit code.
    fn interrupt(&self, signal: i32) -> i32 {
        self.stop();
        exit::of_signal(signal)
    }
}

/// How long a start that a signal interrupts has for its last steps.
const LAST_STEPS: Duration = Duration::from_secs(1);

/// Starts a role and waits for the end of its job. One of the `interrupts` ends the wait at any time. A start under way ends with the process.
/// Meanwhile each of the `dumps` has the flight recorders of the role written.
pub(super) fn live<R: Live>(
    start: impl FnOnce() -> Result<R> + Send + 'static,
    interrupts: &Receiver<i32>,
    dumps: &Receiver<()>,
) -> Result<i32> {
    let started = in_thread(start)?;
    let role = select! {
        recv(started) -> role => Arc::new(role.unwrap_or_else(panicked)?),
        recv(interrupts) -> signal => {
            // A start that is about to end may have announced the role, and only the role takes that back.
            let signal = watched(signal);
            return Ok(match started.recv_timeout(LAST_STEPS) {
                Ok(Ok(role)) => role.interrupt(signal),
                Ok(Err(_)) | Err(_) => exit::of_signal(signal),
            });
        }
    };
    let waiting = Arc::clone(&role);
    let ended = in_thread(move || waiting.wait())?;
    let mut printer = StatusPrinter::new(role.warns_after());
    let outcome = loop {
        let look_again = if printer.tell(role.news()) { after(LOOK_EVERY) } else { never() };
        select! {
            recv(ended) -> outcome => break outcome.unwrap_or_else(panicked).map(|()| exit::SUCCESS).or_else(told_by_launcher),
            recv(interrupts) -> signal => return Ok(role.interrupt(watched(signal))),
            recv(dumps) -> _ => role.dump(),
            recv(look_again) -> _ => {}
        }
    };
    role.stop();
    outcome
}

/// How often a role is asked for news while its job forms.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a busy coordinator is waited for then. A signal must not wait longer.
pub(super) const NEWS_PATIENCE: Duration = Duration::from_millis(100);

/// Runs `work` in a separate thread and delivers its outcome.
fn in_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Receiver<Result<T>>> {
    let (done, outcome) = bounded(1);
    let run = move || {
        let _ = done.send(work());
    };
    match std::thread::Builder::new().name("gl-role".to_owned()).spawn(run) {
        Ok(_) => Ok(outcome),
        Err(error) => Err(Error::Io { what: "starting a thread".to_owned(), cause: error.to_string() }),
    }
}

/// The exit code of a role whose job failed, if the launcher of the job tells why; else the error.
fn told_by_launcher(error: Error) -> Result<i32> {
    // What the coordinator tells its members, it tells the launcher too. Everything else only this process knows.
    let is_told = matches!(
        error,
        Error::PeerLost { .. }
            | Error::StateLost { .. }
            | Error::QuorumLost { .. }
            | Error::NotFormed { .. }
            | Error::FailedPrecondition { .. }
            | Error::Cancelled
    );
    if !launch::is_launched() || !is_told {
        return Err(error);
    }
    tracing::info!(%error, "the job failed");
    Ok(exit::code(&error))
}

fn panicked<T>(_: crossbeam_channel::RecvError) -> Result<T> {
    Err(Error::Internal { what: "a thread of this role panicked; see its message above".to_owned() })
}

fn watched(signal: std::result::Result<i32, crossbeam_channel::RecvError>) -> i32 {
    signal.expect("signals are watched as long as the role lives")
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Sender, unbounded};

    use super::*;

    #[test]
    fn a_role_lives_as_long_as_its_job() {
        for (end, outcome) in [(Ok(()), Ok(exit::SUCCESS)), (Err(Error::Cancelled), Err(Error::Cancelled))] {
            let (stopped, stops) = unbounded();
            let role = Fake { wait: move || end.clone(), stopped, dumped: None };
            assert_eq!(live(move || Ok(role), &never(), &never()), outcome);
            assert_eq!(stops.len(), 1, "what is left of it is stopped");
        }
    }

    #[test]
    fn a_role_that_cannot_start_says_why() {
        assert_eq!(
            live(|| Err::<Fake<fn() -> Result<()>>, _>(Error::Cancelled), &never(), &never()),
            Err(Error::Cancelled)
        );
    }

    #[test]
    fn a_signal_stops_it() {
        let (signals, interrupts) = unbounded();
        let (stopped, stops) = unbounded();
        let wait = move || {
            signals.send(15).unwrap();
            never::<Result<()>>().recv().unwrap()
        };
        assert_eq!(live(move || Ok(Fake { wait, stopped, dumped: None }), &interrupts, &never()), Ok(128 + 15));
        assert_eq!(stops.len(), 1);
    }

    #[test]
    fn a_dump_that_is_asked_for_during_the_start_comes_after_it_and_the_role_lives_on() {
        let (ask, dumps) = unbounded();
        ask.send(()).unwrap();
        let (stopped, stops) = unbounded();
        let (dumped, done) = unbounded();
        let wait = move || {
            done.recv().unwrap();
            Ok(())
        };
        let role = Fake { wait, stopped, dumped: Some(dumped) };
        assert_eq!(live(move || Ok(role), &never(), &dumps), Ok(exit::SUCCESS));
        assert_eq!(stops.len(), 1);
    }

    #[test]
    fn a_signal_during_the_start_does_not_wait_for_it() {
        let (signals, interrupts) = unbounded();
        let start = move || {
            signals.send(2).unwrap();
            never::<Result<Fake<fn() -> Result<()>>>>().recv().unwrap()
        };
        assert_eq!(live(start, &interrupts, &never()), Ok(128 + 2));
    }

    #[test]
    fn a_start_that_ends_with_the_signal_is_stopped_in_order() {
        let (signals, interrupts) = unbounded();
        let (stopped, stops) = unbounded();
        let start = move || {
            signals.send(15).unwrap();
            let wait: fn() -> Result<()> = || never::<Result<()>>().recv().unwrap();
            Ok(Fake { wait, stopped, dumped: None })
        };
        assert_eq!(live(start, &interrupts, &never()), Ok(128 + 15));
        assert_eq!(stops.len(), 1);
    }

    /// Waits as it is told, and tells when it is stopped, and when it is to dump.
    struct Fake<W> {
        wait: W,
        stopped: Sender<()>,
        dumped: Option<Sender<()>>,
    }

    impl<W: Fn() -> Result<()> + Send + Sync + 'static> Live for Fake<W> {
        fn news(&self) -> Result<Option<String>> {
            Ok(None)
        }

        fn warns_after(&self) -> Option<Duration> {
            None
        }

        fn wait(&self) -> Result<()> {
            (self.wait)()
        }

        fn stop(&self) {
            self.stopped.send(()).unwrap();
        }

        fn dump(&self) {
            self.dumped.iter().for_each(|dumped| dumped.send(()).unwrap());
        }
    }
}
