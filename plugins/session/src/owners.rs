//! Keeps objects alive while their memory is lent to the engine.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// The objects whose memory is lent to the engine, by the number of the operation.
///
/// An engine thread only records that an operation has ended. A thread of the framework drops the objects, because that may need a lock of
/// the framework.
#[derive(Debug)]
pub struct Owners<T> {
    held: Mutex<BTreeMap<u64, T>>,
    ended: Mutex<Vec<u64>>,
}

impl<T> Default for Owners<T> {
    fn default() -> Self {
        Self { held: Mutex::default(), ended: Mutex::default() }
    }
}

impl<T> Owners<T> {
    /// Keeps `owner` until the operation `id` has ended.
    pub fn hold(&self, id: u64, owner: T) {
        self.held.lock().expect(LOCK).insert(id, owner);
    }

    /// Records that an operation has ended. Any thread may call it.
    pub fn note_end(&self, id: u64) {
        self.ended.lock().expect(LOCK).push(id);
    }

    /// Returns the objects of ended operations. The caller drops them outside of all locks, because a drop may run code of the framework.
    #[must_use = "the caller drops the objects on a thread that may"]
    pub fn release(&self) -> Vec<T> {
        let ended = std::mem::take(&mut *self.ended.lock().expect(LOCK));
        if ended.is_empty() {
            return Vec::new();
        }
        let mut held = self.held.lock().expect(LOCK);
        let mut unheld = Vec::new();
        let mut released = Vec::with_capacity(ended.len());
        for id in ended {
            match held.remove(&id) {
                Some(owner) => released.push(owner),
                // It ended before its submitter registered the owner.
                None => unheld.push(id),
            }
        }
        drop(held);
        self.ended.lock().expect(LOCK).extend(unheld);
        released
    }
}

const LOCK: &str = "no thread panics while it holds this lock";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_released_once_its_operation_has_ended() {
        let owners = Owners::default();
        owners.hold(1, "a");
        owners.hold(2, "b");
        assert!(owners.release().is_empty());
        owners.note_end(2);
        assert_eq!(owners.release(), ["b"]);
        assert!(owners.release().is_empty());
    }

    #[test]
    fn an_operation_may_end_before_its_owner_is_handed_over() {
        let owners = Owners::default();
        owners.note_end(1);
        assert!(owners.release().is_empty());
        owners.hold(1, "a");
        assert_eq!(owners.release(), ["a"]);
    }
}
