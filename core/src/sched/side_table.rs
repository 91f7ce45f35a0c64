//! Values that others keep for a task or a submission, beside the scheduler's own record.

use super::arena::Key;
use super::ids::{GroupId, TaskId};

/// A map from [`TaskId`] or [`GroupId`] to `T`. Every operation takes constant time, and iteration has a fixed order.
///
/// A value belongs to one id. An id whose task is gone finds nothing, also when its slot is used again.
#[derive(Clone, Debug)]
pub struct SideTable<K, T> {
    slots: Vec<Option<(K, T)>>,
    len: usize,
}

/// An id that the scheduler gave away.
pub trait Id: Copy + PartialEq {
    /// The slot that the id has to itself as long as it is valid.
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
        Self { slots: Vec::new(), len: 0 }
    }

    /// Keeps `value` for `id`. A value that was kept for an earlier id of the same slot is dropped.
    pub fn insert(&mut self, id: K, value: T) {
        if self.slots.len() <= id.slot() {
            self.slots.resize_with(id.slot() + 1, || None);
        }
        self.len += usize::from(self.slots[id.slot()].replace((id, value)).is_none());
    }

    /// The value of `id`.
    pub fn get(&self, id: K) -> Option<&T> {
        self.slots.get(id.slot())?.as_ref().filter(|(own, _)| *own == id).map(|(_, value)| value)
    }

    /// The value of `id`, to be changed.
    pub fn get_mut(&mut self, id: K) -> Option<&mut T> {
        self.slots.get_mut(id.slot())?.as_mut().filter(|(own, _)| *own == id).map(|(_, value)| value)
    }

    /// Takes the value of `id` out.
    pub fn remove(&mut self, id: K) -> Option<T> {
        let (_, value) = self.slots.get_mut(id.slot())?.take_if(|(own, _)| *own == id)?;
        self.len -= 1;
        Some(value)
    }

    /// Every id with its value.
    pub fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.slots.iter().flatten().map(|(id, value)| (*id, value))
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
    fn an_id_finds_its_own_value_only() {
        let mut arena = Arena::new();
        let first = arena.insert(());
        let mut table = SideTable::new();
        table.insert(TaskId(first), "first");
        arena.remove(first);
        let second = TaskId(arena.insert(()));
        assert_eq!(table.get(second), None, "though it has the same slot");
        table.insert(second, "second");
        assert_eq!((table.get(TaskId(first)), table.get(second), table.len()), (None, Some(&"second"), 1));
        assert_eq!((table.remove(TaskId(first)), table.remove(second), table.len()), (None, Some("second"), 0));
    }
}
