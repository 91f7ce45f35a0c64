//! Says at intervals that a process still waits to enter its job, because such waits last for minutes.

use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

/// Says what is waited for, until it is dropped.
#[derive(Debug)]
pub struct Waiting {
    /// The thread that speaks ends when this does.
    _stop: Option<Sender<()>>,
}

impl Waiting {
    /// Says `what` in each interval of `interval`; zero means never. Says nothing if the system gives no thread.
    pub fn start(interval: Duration, what: String) -> Self {
        if interval.is_zero() {
            return Self { _stop: None };
        }
        let (stop, stopped) = bounded::<()>(0);
        let speak = move || {
            let mut waited = interval;
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!(waited_s = waited.as_secs_f64(), reason = what, "this process is not in its job yet");
                waited += interval;
            }
        };
        let started = std::thread::Builder::new().name("gl-waiting".to_owned()).spawn(speak).is_ok();
        Self { _stop: if started { Some(stop) } else { None } }
    }
}
