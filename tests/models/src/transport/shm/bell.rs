//! A bell of the model: a ring is kept until a thread waits for it.

use std::sync::Arc;

use shuttle::sync::{Condvar, Mutex};

/// What rings the other side, and what that side waits for.
#[derive(Clone, Default)]
pub(super) struct Rope(Arc<(Mutex<bool>, Condvar)>);

impl Rope {
    pub(super) fn ring(&self) {
        *self.0.0.lock().expect("no panic") = true;
        self.0.1.notify_one();
    }

    /// Sleeps until it was rung.
    pub(super) fn wait(&self) {
        let mut rung = self.0.0.lock().expect("no panic");
        while !*rung {
            rung = self.0.1.wait(rung).expect("no panic");
        }
        *rung = false;
    }
}
