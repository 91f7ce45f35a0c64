//! SIGINT and SIGTERM as events.

use std::thread::JoinHandle;

use gradlane_core::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// Delivers SIGINT and SIGTERM to a function instead of ending the process. Dropping it stops the deliveries.
pub(crate) struct Interrupts {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Interrupts {
    /// Calls `deliver` with the signal's number, on a thread of its own, each time one arrives.
    pub(crate) fn watch(mut deliver: impl FnMut(i32) + Send + 'static) -> Result<Self> {
        let failed =
            |error: std::io::Error| Error::Io { what: "watching signals".to_owned(), cause: error.to_string() };
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
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
    use super::*;

    #[test]
    fn a_signal_is_delivered_instead_of_ending_the_process() {
        let (signals, received) = crossbeam_channel::unbounded();
        let watch = Interrupts::watch(move |signal| signals.send(signal).expect("the test waits for it")).unwrap();
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert_eq!(received.recv(), Ok(SIGTERM));
        drop(watch);
        assert!(received.recv().is_err(), "nobody watches any more");
    }
}
