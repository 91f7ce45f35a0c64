//! Signals as events.

use std::thread::JoinHandle;

use gradlane_core::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::{Handle, Signals};

/// Delivers signals to a function instead of ending the process. Dropping it stops the deliveries.
pub(crate) struct Interrupts {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Interrupts {
    /// Calls `deliver` with the number of SIGINT or SIGTERM, on a thread of its own, each time one arrives.
    pub(crate) fn watch(deliver: impl FnMut(i32) + Send + 'static) -> Result<Self> {
        Self::watch_all(&[SIGINT, SIGTERM], deliver)
    }

    /// The same, and calls `dump` at SIGUSR1, which asks for the flight recorders of this process.
    pub(crate) fn watch_with_dumps(
        mut deliver: impl FnMut(i32) + Send + 'static,
        mut dump: impl FnMut() + Send + 'static,
    ) -> Result<Self> {
        Self::watch_all(&[SIGINT, SIGTERM, SIGUSR1], move |signal| match signal {
            SIGUSR1 => dump(),
            signal => deliver(signal),
        })
    }

    fn watch_all(signals: &[i32], mut deliver: impl FnMut(i32) + Send + 'static) -> Result<Self> {
        let failed =
            |error: std::io::Error| Error::Io { what: "watching signals".to_owned(), cause: error.to_string() };
        let mut signals = Signals::new(signals).map_err(failed)?;
        let handle = signals.handle();
        let thread = std::thread::Builder::new()
            .name("gl-signals".to_owned())
            .spawn(move || signals.forever().for_each(&mut deliver))
            .map_err(failed)?;
        Ok(Self { handle, thread: Some(thread) })
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::unbounded;

    use super::*;

    #[test]
    fn a_signal_is_delivered_instead_of_ending_the_process() {
        let (signals, received) = unbounded();
        let watch = Interrupts::watch(move |signal| signals.send(signal).expect("the test waits for it")).unwrap();
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert_eq!(received.recv(), Ok(SIGTERM));
        drop(watch);
        assert!(received.recv().is_err(), "nobody watches any more");
    }

    #[test]
    fn a_dump_is_asked_for_by_a_signal_of_its_own() {
        let (dumps, asked) = unbounded();
        let watch = Interrupts::watch_with_dumps(|_| {}, move || dumps.send(()).expect("the test waits for it"));
        signal_hook::low_level::raise(SIGUSR1).unwrap();
        assert_eq!(asked.recv(), Ok(()));
        drop(watch);
    }
}
