//! Calls a driver back at the deadlines of its state machines. Sleeps on a channel otherwise.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

use super::Clock;
use crate::error::Result;
use crate::local::OwnThread;
use crate::types::Time;

/// A thread that calls back at a deadline. A caller can set an earlier deadline at any time.
#[derive(Debug)]
pub struct Timer {
    armed: Arc<Mutex<Option<Time>>>,
    bell: Option<Sender<()>>,
    thread: OwnThread,
}

impl Timer {
    /// Starts the thread. It calls `on_due` when the armed time has come. `on_due` returns when to call it next.
    pub fn start(name: &str, clock: Clock, on_due: impl Fn(Time) -> Option<Time> + Send + 'static) -> Result<Self> {
        let (bell, rung) = bounded::<()>(1);
        let armed = Arc::new(Mutex::new(None));
        let armed_there = Arc::clone(&armed);
        let run = move || loop {
            let due: Option<Time> = *armed_there.lock().expect(LOCK);
            let woken = match due {
                Some(due) => rung.recv_deadline(clock.instant(due)),
                None => rung.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match woken {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => {
                    // Cleared before the call, so that a time that is armed during the call is kept.
                    *armed_there.lock().expect(LOCK) = None;
                    if let Some(next) = on_due(clock.now()) {
                        earlier(&armed_there, next);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        };
        let thread = OwnThread::start(name, run)?;
        Ok(Self { armed, bell: Some(bell), thread })
    }

    /// Makes sure that the callback happens at `due` or before. `None` changes nothing.
    pub fn arm(&self, due: Option<Time>) {
        let Some(due) = due else { return };
        if earlier(&self.armed, due)
            && let Some(bell) = &self.bell
        {
            // If the channel is full, the thread is being woken already.
            let _ = bell.try_send(());
        }
    }

    /// Ends the thread and waits for a callback under way, at most for [`ENDING`].
    pub fn stop(&mut self) {
        self.bell = None;
        self.thread.join(ENDING);
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Longer than a callback takes. One that is stuck is left behind, with a warning.
const ENDING: Duration = Duration::from_secs(2);

const LOCK: &str = "nobody panics while holding the armed time";

/// Arms `due` unless that time or an earlier one is armed. Returns whether it armed it.
fn earlier(armed: &Mutex<Option<Time>>, due: Time) -> bool {
    let mut armed = armed.lock().expect(LOCK);
    if armed.is_some_and(|armed| armed <= due) {
        return false;
    }
    *armed = Some(due);
    true
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_calls_back_at_the_earliest_armed_time() {
        let clock = Clock::start();
        let (sender, receiver) = crossbeam_channel::unbounded();
        let timer = Timer::start("test-timer", clock, move |now| {
            sender.send(now).unwrap();
            None
        })
        .unwrap();
        timer.arm(Some(clock.now() + Duration::from_secs(3600)));
        let due = clock.now() + Duration::from_millis(5);
        timer.arm(Some(due));
        assert!(receiver.recv().unwrap() >= due);
    }

    #[test]
    fn stopping_does_not_wait_for_the_armed_time() {
        let clock = Clock::start();
        let mut timer = Timer::start("test-timer", clock, |_| None).unwrap();
        timer.arm(Some(clock.now() + Duration::from_secs(3600)));
        timer.stop();
    }
}
