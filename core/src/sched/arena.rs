//! A generational arena: a key is never valid again after its value was removed. Constant time, and a fixed order of iteration.
//!
//! A map would need a search for every move of a task. With a plain vector, a late report could reach the next owner of a slot.

/// The key of a value: its slot, and how often that slot was used before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Key {
    pub(super) slot: u32,
    generation: u32,
}

#[derive(Debug)]
pub(super) struct Arena<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Arena<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, value: T) -> Key {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 values are alive")
        });
        let home = &mut self.slots[slot as usize];
        home.value = Some(value);
        Key { slot, generation: home.generation }
    }

    pub(super) fn get(&self, key: Key) -> Option<&T> {
        self.slots.get(key.slot as usize).filter(|home| home.generation == key.generation)?.value.as_ref()
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.slots.get_mut(key.slot as usize).filter(|home| home.generation == key.generation)?.value.as_mut()
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        let home = self.slots.get_mut(key.slot as usize).filter(|home| home.generation == key.generation)?;
        let value = home.value.take()?;
        home.generation = home.generation.wrapping_add(1);
        self.free.push(key.slot);
        Some(value)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        (0u32..).zip(&self.slots).filter_map(|(slot, home)| {
            let key = Key { slot, generation: home.generation };
            home.value.as_ref().map(|value| (key, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_dead_once_its_value_is_gone() {
        let mut arena = Arena::new();
        let first = arena.insert("first");
        assert_eq!(arena.remove(first), Some("first"));
        let second = arena.insert("second");
        assert_eq!(arena.get(first), None, "though the slot is used again");
        assert_eq!(arena.remove(first), None);
        assert_eq!(arena.get(second), Some(&"second"));
        assert_eq!((arena.len(), arena.iter().count()), (1, 1));
    }
}
