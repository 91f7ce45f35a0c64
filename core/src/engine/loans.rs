//! The memory that callers have lent, by submission.
//!
//! Memory in which a result lands belongs to one operation until that has ended. Another one that reads or changes it meanwhile would sum a
//! mixture, so it is refused. Operations that only read the same memory do not disturb each other.

use std::collections::BTreeMap;

use super::memory::Memory;
use crate::mem::Ordinal;
use crate::types::Done;

/// The memory of the open submissions.
#[derive(Default)]
pub(super) struct Loans {
    /// By submission.
    lent: BTreeMap<u64, Lent>,
    /// Where results land: by the begin of a run, its end. No two of them overlap.
    landing: BTreeMap<Place, u64>,
    /// What is only read: by begin and end of a run, how many operations read it.
    read: BTreeMap<(Place, u64), u32>,
    /// The length of the longest run since nothing was read.
    longest_read: u64,
}

/// The memory of a submission, source and destination of each tensor, and the token that resolves its handle.
pub(super) struct Lent {
    pub(super) memory: Vec<(Memory, Memory)>,
    pub(super) done: Done<()>,
}

/// An address of a device, or of the host.
type Place = (Option<Ordinal>, u64);

/// A tensor that cannot be lent, because an operation that has not ended uses its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct InUse {
    /// Its position among those that were to be lent.
    pub(super) tensor: usize,
    /// The other operation's submission, and the tensor's position in it; `None` if it is one of those that were to be lent.
    pub(super) by: Option<(u64, usize)>,
}

impl Loans {
    /// Takes the memory of tensors, source and destination of each, all or nothing. [`lend`](Self::lend) it next.
    pub(super) fn take<'a>(
        &mut self,
        tensors: impl Iterator<Item = (&'a Memory, &'a Memory)> + Clone,
    ) -> Result<(), InUse> {
        for (at, (source, destination)) in tensors.clone().enumerate() {
            if let Err(run) = self.take_one(source, destination) {
                self.give_back_all(tensors.take(at));
                return Err(InUse { tensor: at, by: self.user(run) });
            }
        }
        Ok(())
    }

    /// Gives memory back that was taken and is not lent after all.
    pub(super) fn give_back_all<'a>(&mut self, tensors: impl Iterator<Item = (&'a Memory, &'a Memory)>) {
        tensors.for_each(|(source, destination)| self.give_back(source, destination));
    }

    /// Keeps memory that was taken until the submission ends; `done` reports the end.
    pub(super) fn lend(&mut self, submission: u64, memory: Vec<(Memory, Memory)>, done: Done<()>) {
        self.lent.insert(submission, Lent { memory, done });
    }

    /// The memory of a submission, source and destination of each tensor.
    ///
    /// # Panics
    /// If it has ended.
    pub(super) fn of(&self, submission: u64) -> &[(Memory, Memory)] {
        &self.lent[&submission].memory
    }

    /// A submission ended; the token that resolves its handle.
    ///
    /// # Panics
    /// If it has ended before.
    pub(super) fn end(&mut self, submission: u64) -> Done<()> {
        let lent = self.lent.remove(&submission).expect("memory is lent until its submission ends");
        lent.memory.iter().for_each(|(source, destination)| self.give_back(source, destination));
        lent.done
    }

    /// Ends all submissions; the tokens that resolve their handles.
    pub(super) fn end_all(&mut self) -> Vec<Done<()>> {
        std::mem::take(self).lent.into_values().map(|lent| lent.done).collect()
    }

    /// Takes the memory of one tensor; the run that is in use, if one is.
    fn take_one(&mut self, source: &Memory, destination: &Memory) -> Result<(), Run> {
        let (from, to) = (Run::of(source), Run::of(destination));
        if to.is_empty() {
            return Ok(());
        }
        if self.lands_on(to) || self.reads(to) {
            return Err(to);
        }
        if from != to {
            if self.lands_on(from) || from.overlaps(to) {
                return Err(from);
            }
            *self.read.entry((from.start, from.end)).or_default() += 1;
            self.longest_read = self.longest_read.max(from.end - from.start.1);
        }
        self.landing.insert(to.start, to.end);
        Ok(())
    }

    fn give_back(&mut self, source: &Memory, destination: &Memory) {
        let (from, to) = (Run::of(source), Run::of(destination));
        if to.is_empty() {
            return;
        }
        self.landing.remove(&to.start);
        if from == to {
            return;
        }
        if let Some(readers) = self.read.get_mut(&(from.start, from.end)) {
            *readers -= 1;
            if *readers == 0 {
                self.read.remove(&(from.start, from.end));
            }
        }
        if self.read.is_empty() {
            self.longest_read = 0;
        }
    }

    /// Whether a result lands in some of these bytes. Of disjoint runs, only the last that begins before their end can reach into them.
    fn lands_on(&self, run: Run) -> bool {
        let last = self.landing.range(..(run.start.0, run.end)).next_back();
        last.is_some_and(|(start, end)| Run { start: *start, end: *end }.overlaps(run))
    }

    /// Whether some of these bytes are read.
    fn reads(&self, run: Run) -> bool {
        let first = (run.start.0, run.start.1.saturating_sub(self.longest_read));
        let mut near = self.read.range((first, 0)..((run.start.0, run.end), 0));
        near.any(|((start, end), _)| Run { start: *start, end: *end }.overlaps(run))
    }

    /// The submission and the position in it of a tensor that uses some of these bytes.
    fn user(&self, run: Run) -> Option<(u64, usize)> {
        self.lent.iter().find_map(|(submission, lent)| {
            let uses = |memory: &Memory| Run::of(memory).overlaps(run);
            let at = lent.memory.iter().position(|(source, destination)| uses(source) || uses(destination))?;
            Some((*submission, at))
        })
    }
}

/// Bytes that lie side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    start: Place,
    end: u64,
}

impl Run {
    fn of(memory: &Memory) -> Self {
        let start = (memory.device(), memory.address());
        Self { start, end: start.1 + memory.len() as u64 }
    }

    fn is_empty(self) -> bool {
        self.start.1 == self.end
    }

    fn overlaps(self, other: Self) -> bool {
        self.start.0 == other.start.0 && self.start.1 < other.end && other.start.1 < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Mark;
    use crate::mem::DeviceRegion;

    #[test]
    fn memory_in_which_a_result_lands_is_nobody_elses() {
        let mut loans = Loans::default();
        lend(&mut loans, 1, &[(at(100, 50), at(100, 50)), (at(300, 10), at(400, 10))]);
        for (source, destination) in [
            (at(100, 50), at(100, 50)),
            (at(149, 1), at(149, 1)),
            (at(90, 11), at(90, 11)),
            (at(90, 100), at(90, 100)),
            (at(120, 1), at(500, 1)),
        ] {
            let taken = loans.take([(&source, &destination)].into_iter());
            assert_eq!(taken, Err(InUse { tensor: 0, by: Some((1, 0)) }), "{source:?}");
        }
        for memory in [at(300, 1), at(309, 5), at(290, 11), at(405, 1)] {
            let taken = loans.take([(&memory, &memory)].into_iter());
            assert_eq!(taken, Err(InUse { tensor: 0, by: Some((1, 1)) }), "{memory:?}");
        }
        lend(&mut loans, 2, &[(at(150, 50), at(150, 50)), (at(50, 50), at(50, 50))]);
        let _ = loans.end(1);
        lend(&mut loans, 3, &[(at(100, 50), at(100, 50)), (at(300, 110), at(300, 110))]);
    }

    #[test]
    fn many_may_read_and_devices_have_addresses_of_their_own() {
        let mut loans = Loans::default();
        lend(&mut loans, 1, &[(at(100, 50), at(200, 50))]);
        lend(&mut loans, 2, &[(at(100, 50), at(300, 50)), (at(120, 50), at(400, 50))]);
        let _ = loans.end(1);
        let again = at(149, 1);
        assert_eq!(loans.take([(&again, &again)].into_iter()), Err(InUse { tensor: 0, by: Some((2, 0)) }));
        let there = on_device(100, 50);
        lend(&mut loans, 3, &[(there, on_device(100, 50))]);
        let _ = loans.end(2);
        lend(&mut loans, 4, &[(at(100, 50), at(100, 50))]);
    }

    #[test]
    fn a_group_is_lent_whole_or_not_at_all_and_no_bytes_disturb_nobody() {
        let mut loans = Loans::default();
        let group = [at(0, 10), at(10, 10), at(5, 1)];
        let taken = loans.take(group.iter().map(|memory| (memory, memory)));
        assert_eq!(taken, Err(InUse { tensor: 2, by: None }), "within the group");
        lend(&mut loans, 1, &[(at(0, 20), at(0, 20)), (at(7, 0), at(7, 0))]);
        lend(&mut loans, 2, &[(at(7, 0), at(7, 0))]);
        assert_eq!(loans.end_all().len(), 2);
        lend(&mut loans, 3, &[(at(0, 20), at(0, 20))]);
        let (source, destination) = (at(30, 10), at(35, 10));
        assert_eq!(loans.take([(&source, &destination)].into_iter()), Err(InUse { tensor: 0, by: None }));
    }

    fn lend(loans: &mut Loans, submission: u64, tensors: &[(Memory, Memory)]) {
        let again = |memory: &Memory| memory.part(crate::types::Span { offset: 0, bytes: memory.len() as u64 });
        assert_eq!(loans.take(tensors.iter().map(|(source, destination)| (source, destination))), Ok(()));
        let memory = tensors.iter().map(|(source, destination)| (again(source), again(destination))).collect();
        loans.lend(submission, memory, Done::new(|_| {}));
    }

    /// As far as loans are concerned, host memory has no more than an address.
    fn at(address: u64, len: usize) -> Memory {
        on(Ordinal(0), address, len)
    }

    fn on_device(address: u64, len: usize) -> Memory {
        on(Ordinal(1), address, len)
    }

    fn on(device: Ordinal, address: u64, len: usize) -> Memory {
        Memory::Device { region: DeviceRegion::new(device, address, len), after: Mark::Reached }
    }
}
