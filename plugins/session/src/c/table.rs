//! Values under integer keys, for a language without ownership. A key of a removed value, or of another kind, is an error.

use std::sync::Mutex;

use gradlane_core::{Error, Result};

/// A table of values by integers that are never reused.
///
/// An integer holds the kind of the table (8 bits), the generation of the slot (24 bits) and the slot's number from 1 (32 bits). A slot
/// that has used all its generations is not used again.
pub(super) struct Table<T> {
    kind: u8,
    noun: &'static str,
    slots: Mutex<Slots<T>>,
}

struct Slots<T> {
    all: Vec<Slot<T>>,
    free: Vec<u32>,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

const GENERATIONS: u32 = 1 << 24;

impl<T: Clone> Table<T> {
    /// An empty table. `noun` names its values in errors.
    pub(super) const fn new(kind: u8, noun: &'static str) -> Self {
        Self { kind, noun, slots: Mutex::new(Slots { all: Vec::new(), free: Vec::new() }) }
    }

    /// Inserts a value, and returns its integer.
    ///
    /// # Errors
    /// [`Error::Exhausted`] with 2^32 values.
    pub(super) fn insert(&self, value: T) -> Result<u64> {
        let mut slots = self.slots.lock().expect(LOCK);
        let index = match slots.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(slots.all.len()).ok().filter(|index| *index < u32::MAX);
                let Some(index) = index else {
                    return Err(Error::Exhausted {
                        what: format!("{}s of this process", self.noun),
                        limit: u32::MAX.to_string(),
                        hint: "release the ones that have ended".to_owned(),
                    });
                };
                slots.all.push(Slot { generation: 0, value: None });
                index
            }
        };
        let slot = &mut slots.all[index as usize];
        slot.value = Some(value);
        Ok(u64::from(self.kind) << 56 | u64::from(slot.generation) << 32 | u64::from(index + 1))
    }

    /// The value of an integer.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if it was removed, [`Error::InvalidArgument`] if it is not from this table.
    pub(super) fn find(&self, key: u64) -> Result<T> {
        let slots = self.slots.lock().expect(LOCK);
        let index = self.index(&slots, key)?;
        Ok(slots.all[index].value.clone().expect("its generation is the present one"))
    }

    /// Removes the value of an integer, which is not valid afterwards.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub(super) fn remove(&self, key: u64) -> Result<T> {
        let mut slots = self.slots.lock().expect(LOCK);
        let index = self.index(&slots, key)?;
        let slot = &mut slots.all[index];
        slot.generation += 1;
        let is_usable = slot.generation < GENERATIONS;
        let value = slot.value.take().expect("its generation is the present one");
        if is_usable {
            slots.free.push(u32::try_from(index).expect("made from one"));
        }
        Ok(value)
    }

    fn index(&self, slots: &Slots<T>, key: u64) -> Result<usize> {
        let [kind, generation, number] = [key >> 56, key >> 32 & 0xFF_FFFF, key & 0xFFFF_FFFF];
        let slot = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        match slot.and_then(|index| Some((index, slots.all.get(index)?))) {
            Some((index, slot)) if kind == u64::from(self.kind) => match u64::from(slot.generation).cmp(&generation) {
                std::cmp::Ordering::Equal if slot.value.is_some() => Ok(index),
                std::cmp::Ordering::Greater => Err(Error::FailedPrecondition {
                    what: format!("{} {key:#x} was released", self.noun),
                    hint: format!("use the number of a {} that is in use", self.noun),
                }),
                std::cmp::Ordering::Equal | std::cmp::Ordering::Less => Err(self.unknown(key)),
            },
            Some(_) | None => Err(self.unknown(key)),
        }
    }

    fn unknown(&self, key: u64) -> Error {
        Error::InvalidArgument {
            what: format!("{key:#x} is no {}", self.noun),
            hint: format!("give the number that the library wrote for the {}", self.noun),
        }
    }
}

const LOCK: &str = "no thread panics while it holds this lock";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_leads_to_its_value_until_that_is_removed() {
        let table = Table::new(1, "thing");
        let (a, b) = (table.insert("a").unwrap(), table.insert("b").unwrap());
        assert_eq!((table.find(a), table.find(b)), (Ok("a"), Ok("b")));
        assert_eq!(table.remove(a), Ok("a"));
        assert!(matches!(table.remove(a), Err(Error::FailedPrecondition { .. })), "twice");
        let c = table.insert("c").unwrap();
        assert!(matches!(table.find(a), Err(Error::FailedPrecondition { .. })), "its slot is used again");
        assert_eq!((table.find(b), table.find(c)), (Ok("b"), Ok("c")));
    }

    #[test]
    fn integers_that_were_never_given_out_are_unknown() {
        let (table, other) = (Table::new(1, "thing"), Table::new(2, "other"));
        let (key, foreign) = (table.insert(()).unwrap(), other.insert(()).unwrap());
        for wrong in [0, 1, u64::MAX, key + 1, key + (1 << 32), foreign] {
            assert!(matches!(table.find(wrong), Err(Error::InvalidArgument { .. })), "{wrong:#x}");
            assert!(table.remove(wrong).is_err());
        }
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_left_alone() {
        let table = Table::new(1, "thing");
        let first = table.insert(0).unwrap();
        table.slots.lock().unwrap().all[0].generation = GENERATIONS - 1;
        let last = first | u64::from(GENERATIONS - 1) << 32;
        assert_eq!(table.remove(last), Ok(0));
        let next = table.insert(1).unwrap();
        assert_eq!(next & 0xFFFF_FFFF, 2);
        assert!(matches!(table.find(first), Err(Error::FailedPrecondition { .. })));
    }
}
