//! Values under integer keys, for a language without ownership. A key of a removed value, or of another kind, is an error.
#![expect(
    unsafe_code,
    reason = "a forked child must not take the lock of its parent, so the lock is reached by address"
)]

use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use gradlane_core::local::process_id;
use gradlane_core::{Error, Result};

/// A table of values by integers that are never reused. Tables are statics.
///
/// An integer holds the kind of the table (8 bits), the generation of the slot (24 bits) and the slot's number from 1 (32 bits). A slot
/// that has used all its generations is not used again.
///
/// A forked child has a share of its own, with higher numbers of slots. It does not touch the share of its parent, whose lock another thread
/// may have held during the fork, and whose values work in the parent only.
pub(super) struct Table<T> {
    kind: u8,
    noun: &'static str,
    /// The share of this process; before its first use, that of its parent, or null.
    share: AtomicPtr<Share<T>>,
}

/// The values of one process.
struct Share<T> {
    process: u32,
    /// In a forked child, the process from which it was forked.
    parent: Option<u32>,
    /// How many slots the processes before this one have.
    first: u32,
    /// How many slots this process has; a child reads it without the lock.
    len: AtomicU32,
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

impl<T: Clone + Send + 'static> Table<T> {
    /// An empty table. `noun` names its values in errors.
    pub(super) const fn new(kind: u8, noun: &'static str) -> Self {
        Self { kind, noun, share: AtomicPtr::new(null_mut()) }
    }

    /// Inserts a value, and returns its integer.
    ///
    /// # Errors
    /// [`Error::Exhausted`] with 2^32 values.
    pub(super) fn insert(&self, value: T) -> Result<u64> {
        let share = self.share();
        let mut slots = share.slots.lock().expect(LOCK);
        let index = match slots.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(slots.all.len()).ok();
                let Some(index) = index.filter(|index| *index < u32::MAX - share.first) else {
                    return Err(Error::Exhausted {
                        what: format!("{}s of this process", self.noun),
                        limit: u32::MAX.to_string(),
                        hint: "release the ones that have ended".to_owned(),
                    });
                };
                slots.all.push(Slot { generation: 0, value: None });
                share.len.store(index + 1, Ordering::Release);
                index
            }
        };
        let slot = &mut slots.all[index as usize];
        slot.value = Some(value);
        Ok(u64::from(self.kind) << 56 | u64::from(slot.generation) << 32 | u64::from(share.first + index + 1))
    }

    /// The value of an integer.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if it was removed, or is of a process from which this one was forked; [`Error::InvalidArgument`] if it
    /// is not from this table.
    pub(super) fn find(&self, key: u64) -> Result<T> {
        let share = self.share();
        self.check_own(share, key)?;
        let slots = share.slots.lock().expect(LOCK);
        let index = self.index(share.first, &slots, key)?;
        Ok(slots.all[index].value.clone().expect("its generation is the present one"))
    }

    /// Gives an integer another value.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub(super) fn replace(&self, key: u64, value: T) -> Result<()> {
        let share = self.share();
        self.check_own(share, key)?;
        let mut slots = share.slots.lock().expect(LOCK);
        let index = self.index(share.first, &slots, key)?;
        let before = slots.all[index].value.replace(value);
        // A value may run foreign code when it is dropped.
        drop(slots);
        drop(before);
        Ok(())
    }

    /// Removes the value of an integer, which is not valid afterwards.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub(super) fn remove(&self, key: u64) -> Result<T> {
        let share = self.share();
        self.check_own(share, key)?;
        let mut slots = share.slots.lock().expect(LOCK);
        let index = self.index(share.first, &slots, key)?;
        let slot = &mut slots.all[index];
        slot.generation += 1;
        let is_usable = slot.generation < GENERATIONS;
        let value = slot.value.take().expect("its generation is the present one");
        if is_usable {
            slots.free.push(u32::try_from(index).expect("made from one"));
        }
        Ok(value)
    }

    /// The share of this process, made by its first use. Takes no lock.
    fn share(&self) -> &Share<T> {
        self.share_of(process_id())
    }

    fn share_of(&self, process: u32) -> &Share<T> {
        loop {
            let present = self.share.load(Ordering::Acquire);
            // SAFETY: null, or a share that is never freed.
            let known = unsafe { present.as_ref() };
            if let Some(share) = known.filter(|share| share.process == process) {
                return share;
            }
            let (parent, first) = match known {
                None => (None, 0),
                Some(inherited) => (Some(inherited.process), inherited.first + inherited.len.load(Ordering::Acquire)),
            };
            let slots = Mutex::new(Slots { all: Vec::new(), free: Vec::new() });
            let new = Box::into_raw(Box::new(Share { process, parent, first, len: AtomicU32::new(0), slots }));
            if self.share.compare_exchange(present, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // Another thread was first. SAFETY: made above, and nobody else has it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    /// Refuses the integers of processes from which this one was forked.
    fn check_own(&self, share: &Share<T>, key: u64) -> Result<()> {
        let is_ours = key >> 56 != u64::from(self.kind) || key & 0xFFFF_FFFF > u64::from(share.first);
        match share.parent.filter(|_| !is_ours) {
            None => Ok(()),
            Some(parent) => Err(Error::FailedPrecondition {
                what: format!(
                    "process {} was forked from process {parent}, which has the {}",
                    share.process, self.noun
                ),
                hint: "call gradlane_init in a process that was not forked from a member of a job".to_owned(),
            }),
        }
    }

    fn index(&self, first: u32, slots: &Slots<T>, key: u64) -> Result<usize> {
        let [kind, generation, number] = [key >> 56, key >> 32 & 0xFF_FFFF, key & 0xFFFF_FFFF];
        let slot = number.checked_sub(u64::from(first) + 1).and_then(|index| usize::try_from(index).ok());
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
        table.share().slots.lock().unwrap().all[0].generation = GENERATIONS - 1;
        let last = first | u64::from(GENERATIONS - 1) << 32;
        assert_eq!(table.remove(last), Ok(0));
        let next = table.insert(1).unwrap();
        assert_eq!(next & 0xFFFF_FFFF, 2);
        assert!(matches!(table.find(first), Err(Error::FailedPrecondition { .. })));
    }

    #[test]
    fn a_forked_child_takes_no_lock_of_its_parent_and_knows_whose_an_integer_is() {
        let table = Table::new(1, "thing");
        let parents = table.insert("parent's").unwrap();
        let locked = table.share().slots.lock().unwrap();
        // Another number of the process stands for a fork.
        let child = std::process::id() + 1;
        let share = table.share_of(child);
        assert_eq!((share.first, share.parent), (1, Some(std::process::id())));
        assert!(matches!(table.check_own(share, parents), Err(Error::FailedPrecondition { .. })));
        assert!(share.slots.lock().unwrap().all.is_empty());
        assert_eq!(table.check_own(share, parents + 1), Ok(()));
        drop(locked);
    }
}
