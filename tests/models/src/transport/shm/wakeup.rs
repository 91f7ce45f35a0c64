//! A wakeup of the model: it is kept until a thread waits for it.

use std::sync::Arc;

use shuttle::sync::{Condvar, Mutex};

/// Both ends: one side wakes the other, which waits.
#[derive(Clone, Default)]
pub(super) struct Waker(Arc<(Mutex<bool>, Condvar)>);

impl Waker {
    pub(super) fn wake(&self) {
        *self.0.0.lock().expect("no panic") = true;
        self.0.1.notify_one();
    }

    /// Sleeps until a wakeup.
    pub(super) fn wait(&self) {
        let mut woken = self.0.0.lock().expect("no panic");
        while !*woken {
            woken = self.0.1.wait(woken).expect("no panic");
        }
        *woken = false;
    }
}
