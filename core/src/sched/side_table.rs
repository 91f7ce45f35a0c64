//! A table for the values that a driver keeps for each task or submission.

use std::collections::BTreeMap;

use super::arena::Key;
use super::ids::{GroupId, TaskId};

/// A map from [`TaskId`] or [`GroupId`] to `T`. Every operation takes constant time, and iteration has a fixed order.
///
/// The scheduler may reuse a slot before the commands about its last task are drained. Then both tasks have their values here.
#[derive(Clone, Debug)]
pub struct SideTable<K, T> {
    slots: Vec<Option<(K, T)>>,
    /// Values of old ids whose slot was reused; mostly none.
    displaced: BTreeMap<K, T>,
    len: usize,
}

/// An id from the scheduler.
pub trait Id: Copy + Ord {
    /// The slot of the id. No other valid id has it.
    fn slot(self) -> usize;
}

impl Id for TaskId {
    fn slot(self) -> usize {
        self.0.slot()
    }
}

impl Id for GroupId {
    fn slot(self) -> usize {
        self.0.slot()
    }
}

impl Key {
    const fn slot(self) -> usize {
        self.slot as usize
    }
}

impl<K: Id, T> SideTable<K, T> {
    /// An empty table.
    pub const fn new() -> Self {
        Self { slots: Vec::new(), displaced: BTreeMap::new(), len: 0 }
    }

    /// Inserts the value of `id`, which has none yet.
    pub fn insert(&mut self, id: K, value: T) {
        if self.slots.len() <= id.slot() {
            self.slots.resize_with(id.slot() + 1, || None);
        }
        self.displaced.extend(self.slots[id.slot()].replace((id, value)));
        self.len += 1;
    }

    /// The value of `id`.
    pub fn get(&self, id: K) -> Option<&T> {
        match self.slots.get(id.slot())? {
            Some((own, value)) if *own == id => Some(value),
            Some(_) | None => self.displaced.get(&id),
        }
    }

    /// The value of `id`, mutable.
    pub fn get_mut(&mut self, id: K) -> Option<&mut T> {
        match self.slots.get_mut(id.slot())? {
            Some((own, value)) if *own == id => Some(value),
            Some(_) | None => self.displaced.get_mut(&id),
        }
    }

    /// Removes the value of `id`.
    pub fn remove(&mut self, id: K) -> Option<T> {
        let value = match self.slots.get_mut(id.slot())?.take_if(|(own, _)| *own == id) {
            Some((_, value)) => value,
            None => self.displaced.remove(&id)?,
        };
        self.len -= 1;
        Some(value)
    }

    /// Every id with its value.
    pub fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        let displaced = self.displaced.iter().map(|(id, value)| (*id, value));
        self.slots.iter().flatten().map(|(id, value)| (*id, value)).chain(displaced)
    }

    /// How many values there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no value.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<K: Id, T> Default for SideTable<K, T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::arena::Arena;

    #[test]
    fn ids_of_one_slot_have_a_value_each() {
        let mut arena = Arena::new();
        let first = arena.insert(());
        let mut table = SideTable::new();
        table.insert(TaskId(first), "first");
        arena.remove(first);
        let second = TaskId(arena.insert(()));
        let first = TaskId(first);
        assert_eq!((first.slot(), table.get(second)), (second.slot(), None));
        table.insert(second, "second");
        assert_eq!((table.get(first), table.get(second), table.len()), (Some(&"first"), Some(&"second"), 2));
        assert_eq!((table.remove(second), table.get(first)), (Some("second"), Some(&"first")));
        assert_eq!((table.remove(first), table.remove(first), table.len()), (Some("first"), None, 0));
    }
}
