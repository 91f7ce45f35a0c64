//! Keeps the objects whose memory is lent to the engine alive.

use std::collections::HashMap;
use std::sync::Mutex;

use pyo3::prelude::*;

/// Keeps the objects whose memory is lent to the engine. Engine threads only note what has ended; a Python thread drops it.
#[derive(Default)]
pub(crate) struct Owners {
    held: Mutex<HashMap<u64, Py<PyAny>>>,
    ended: Mutex<Vec<u64>>,
}

impl Owners {
    /// Keeps `owner` until the operation `id` has ended.
    pub(crate) fn hold(&self, id: u64, owner: Py<PyAny>) {
        self.held.lock().expect(LOCK).insert(id, owner);
    }

    /// Notes that an operation has ended. Called by engine threads, which never attach to Python.
    pub(crate) fn note_end(&self, id: u64) {
        self.ended.lock().expect(LOCK).push(id);
    }

    /// Drops the owners of operations that have ended. Called by Python threads only.
    pub(crate) fn release(&self, _py: Python<'_>) {
        let ended = std::mem::take(&mut *self.ended.lock().expect(LOCK));
        if ended.is_empty() {
            return;
        }
        let mut held = self.held.lock().expect(LOCK);
        let mut unheld = Vec::new();
        let mut dropped = Vec::with_capacity(ended.len());
        for id in ended {
            match held.remove(&id) {
                Some(owner) => dropped.push(owner),
                // It ended before its submitter could note the owner.
                None => unheld.push(id),
            }
        }
        drop(held);
        self.ended.lock().expect(LOCK).extend(unheld);
        // Here, without any lock: dropping may run arbitrary Python code.
        drop(dropped);
    }
}

const LOCK: &str = "nobody panics while holding it";
