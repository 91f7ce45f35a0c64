//! Keeps objects alive while their memory is lent to the engine.

use std::collections::BTreeMap;
use std::sync::Mutex;

use gradlane_core::mem::Doubt;

/// The objects whose memory is lent to the engine, by the number of the operation.
///
/// An engine thread only records that an operation has ended. A thread of the framework drops the objects, because that may need a lock of
/// the framework. As long as a device may still write the memory of an operation that failed ([`Doubt`]), no object is dropped. If the
/// session ends meanwhile, they are leaked: memory that is freed too early would be written when it belongs to another tensor.
#[derive(Debug)]
pub struct Owners<T> {
    held: Mutex<BTreeMap<u64, T>>,
    ended: Mutex<Vec<u64>>,
    doubt: Doubt,
}

impl<T> Owners<T> {
    /// Owners of memory of the engine that has this doubt.
    pub fn new(doubt: Doubt) -> Self {
        Self { held: Mutex::default(), ended: Mutex::default(), doubt }
    }

    /// Keeps `owner` until the operation `id` has ended.
    pub fn hold(&self, id: u64, owner: T) {
        self.held.lock().expect(LOCK).insert(id, owner);
    }

    /// Records that an operation has ended. Any thread may call it.
    pub fn note_end(&self, id: u64) {
        self.ended.lock().expect(LOCK).push(id);
    }

    /// Returns the objects of ended operations, none while there is doubt. The caller drops them outside of all locks, because a drop may
    /// run code of the framework.
    #[must_use = "the caller drops the objects on a thread that may"]
    pub fn release(&self) -> Vec<T> {
        let ended = {
            let mut ended = self.ended.lock().expect(LOCK);
            // Looked at after the ends: the doubt is raised before an operation ends whose memory is in doubt.
            if ended.is_empty() || self.doubt.exists() {
                return Vec::new();
            }
            std::mem::take(&mut *ended)
        };
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

impl<T> Drop for Owners<T> {
    fn drop(&mut self) {
        if self.doubt.exists() {
            std::mem::take(self.held.get_mut().expect(LOCK)).into_values().for_each(std::mem::forget);
        }
    }
}

const LOCK: &str = "no thread panics while it holds this lock";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn an_owner_is_released_once_its_operation_has_ended() {
        let owners = Owners::new(Doubt::default());
        owners.hold(1, "a");
        owners.hold(2, "b");
        assert!(owners.release().is_empty());
        owners.note_end(2);
        assert_eq!(owners.release(), ["b"]);
        assert!(owners.release().is_empty());
    }

    #[test]
    fn an_operation_may_end_before_its_owner_is_handed_over() {
        let owners = Owners::new(Doubt::default());
        owners.note_end(1);
        assert!(owners.release().is_empty());
        owners.hold(1, "a");
        assert_eq!(owners.release(), ["a"]);
    }

    #[test]
    fn an_owner_is_kept_while_its_memory_may_be_written_and_leaked_at_the_end() {
        let doubt = Doubt::default();
        let (owners, memory) = (Owners::new(doubt.clone()), Arc::new(()));
        owners.hold(1, Arc::clone(&memory));
        let reason = doubt.raise();
        owners.note_end(1);
        assert!(owners.release().is_empty());
        drop(reason);
        assert_eq!(owners.release().len(), 1);
        owners.hold(2, Arc::clone(&memory));
        owners.note_end(2);
        doubt.raise().keep();
        drop(owners);
        assert_eq!(Arc::strong_count(&memory), 2, "nobody frees it");
    }
}
