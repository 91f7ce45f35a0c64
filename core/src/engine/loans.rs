//! The memory that callers have lent, by submission.
//!
//! Memory in which a result lands belongs to one operation until that has ended. Another one that reads or changes it meanwhile would sum a
//! mixture, so it is refused. Operations that only read the same memory do not disturb each other.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};

use super::handle::{EffectTeller, Issue};
use super::memory::Memory;
use crate::cuda::{Mark, Marks};
use crate::mem::Ordinal;
use crate::types::{Done, Effect};

/// The memory of the open submissions.
#[derive(Default)]
pub(super) struct Loans {
    /// By submission.
    lent: BTreeMap<u64, Lent>,
    /// What single tensors use.
    singles: Singles,
    /// What batches use. The submissions of a batch keep it.
    batches: Vec<Weak<Runs>>,
}

/// The memory of a submission, source and destination of each tensor, and the token that resolves its handle.
struct Lent {
    memory: Vec<(Memory, Memory)>,
    done: Done<()>,
    /// `None` once other operations may use the memory again.
    taken: Option<Taken>,
    /// Tells the handle of memory on a device that all work is on the device.
    issue: Option<Issue>,
    /// The marks after the work that is on the device.
    marks: Marks,
    /// Tells the handle of a use of a parameter what that has come to.
    effect: Option<EffectTeller>,
}

/// Memory that was taken, to be [lent](Loans::lend). That of a batch is free again when the last clone of this is dropped, so with the
/// last submission that has it.
#[derive(Clone)]
pub(super) struct Taken(Option<Arc<Runs>>);

/// A tensor that cannot be lent, because an operation that has not ended uses its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct InUse {
    /// Its position among those that were to be lent.
    pub(super) tensor: usize,
    /// For what its memory is in use.
    pub(super) by: User,
}

/// What uses memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum User {
    /// The tensor at this position of this submission.
    Tensor(u64, usize),
    /// A tensor that has its result, of a batch that has not ended.
    Batch,
    /// Another one of those that were to be lent.
    ThisCall,
}

impl Lent {
    /// The marks of the caller before which the engine cannot use the memory.
    fn marks_before(&self) -> impl Iterator<Item = &Mark> {
        self.memory.iter().flat_map(|(from, to)| [from.after(), to.after()]).flatten()
    }
}

impl Loans {
    /// Takes the memory of a tensor, source and destination. [`lend`](Self::lend) it next.
    pub(super) fn take(&mut self, source: &Memory, destination: &Memory) -> Result<Taken, InUse> {
        let (from, to) = (Run::of(source), Run::of(destination));
        let is_free = |runs: &Arc<Runs>| !runs.use_one(from, to);
        if to.is_empty() || (self.batches().iter().all(is_free) && self.singles.take(from, to)) {
            return Ok(Taken(None));
        }
        Err(InUse { tensor: 0, by: self.user(from, to) })
    }

    /// Takes the memory of a batch of tensors, source and destination of each, all or nothing. [Lend](Self::lend) it next.
    ///
    /// A batch may have a thousand tensors. It is kept sorted and apart, which costs a tenth of as many entries among the single ones.
    pub(super) fn take_all<'a>(
        &mut self,
        tensors: impl Iterator<Item = (&'a Memory, &'a Memory)> + Clone,
    ) -> Result<Taken, InUse> {
        let batches = self.batches();
        let pairs = || tensors.clone().map(|(source, destination)| (Run::of(source), Run::of(destination)));
        let used = pairs().position(|(from, to)| {
            !to.is_empty() && (self.singles.use_one(from, to) || batches.iter().any(|runs| runs.use_one(from, to)))
        });
        if let Some(tensor) = used {
            let (from, to) = pairs().nth(tensor).expect("found there");
            return Err(InUse { tensor, by: self.user(from, to) });
        }
        let runs = Runs::new(pairs()).map_err(|tensor| InUse { tensor, by: User::ThisCall })?;
        let runs = Arc::new(runs);
        self.batches.push(Arc::downgrade(&runs));
        Ok(Taken(Some(runs)))
    }

    /// Keeps memory that was taken until the submission ends; `done` reports the end. `issue` tells the handle earlier that all work is on a
    /// device.
    pub(super) fn lend(
        &mut self,
        submission: u64,
        taken: &Taken,
        memory: Vec<(Memory, Memory)>,
        issue: Option<Issue>,
        done: Done<()>,
    ) {
        let taken = Some(taken.clone());
        self.lent.insert(submission, Lent { memory, done, taken, issue, marks: Marks::default(), effect: None });
    }

    /// The submission uses a parameter. [`used`](Self::used) tells its handle what that has come to.
    pub(super) fn tell_effect(&mut self, submission: u64, teller: EffectTeller) {
        if let Some(lent) = self.lent.get_mut(&submission) {
            lent.effect = Some(teller);
        }
    }

    /// The use of a parameter has come to this.
    pub(super) fn used(&mut self, submission: u64, effect: Effect) {
        if let Some(teller) = self.lent.get_mut(&submission).and_then(|lent| lent.effect.take()) {
            teller(effect);
        }
    }

    /// Adds a mark after work of the submission, unless it has ended.
    pub(super) fn add_mark(&mut self, submission: u64, mark: Mark) {
        if let Some(lent) = self.lent.get_mut(&submission) {
            lent.marks.add(mark);
        }
    }

    /// All work of the submission is on its device: what tells its handle, and the marks. `None` if its handle need not know.
    pub(super) fn issued(&mut self, submission: u64) -> Option<(Issue, Marks)> {
        let lent = self.lent.get_mut(&submission)?;
        Some((lent.issue.take()?, std::mem::take(&mut lent.marks)))
    }

    /// Lets other operations use the memory of a submission although it has not ended, because they come after it on its device. Does
    /// nothing if it has ended.
    pub(super) fn free(&mut self, submission: u64) {
        let Some(Lent { memory, taken, .. }) = self.lent.get_mut(&submission) else { return };
        if let Some(Taken(None)) = taken.take() {
            memory.iter().for_each(|(from, to)| self.singles.give_back(Run::of(from), Run::of(to)));
        }
    }

    /// The memory of a submission, source and destination of each tensor.
    ///
    /// # Panics
    /// If it has ended.
    pub(super) fn of(&self, submission: u64) -> &[(Memory, Memory)] {
        &self.lent[&submission].memory
    }

    /// The marks of callers before which the engine cannot use the memory of these submissions, or of others on the same devices, whose
    /// work may stand before theirs.
    pub(super) fn marks_before(&self, submissions: Range<u64>) -> Vec<Mark> {
        let asked = self.lent.range(submissions).flat_map(|(_, lent)| lent.marks_before());
        let devices: BTreeSet<Ordinal> = asked.filter_map(Mark::device).collect();
        let mut before: Vec<Mark> = Vec::new();
        for mark in self.lent.values().flat_map(Lent::marks_before) {
            let is_new = !before.iter().any(|known| known.is(mark));
            if is_new && mark.device().is_some_and(|device| devices.contains(&device)) {
                before.push(mark.clone());
            }
        }
        before
    }

    /// A submission ended; the token that resolves its handle.
    ///
    /// # Panics
    /// If it has ended before.
    pub(super) fn end(&mut self, submission: u64) -> Done<()> {
        self.free(submission);
        self.lent.remove(&submission).expect("lent until its submission ends").done
    }

    /// Ends all submissions; the tokens that resolve their handles.
    pub(super) fn end_all(&mut self) -> Vec<Done<()>> {
        std::mem::take(self).lent.into_values().map(|lent| lent.done).collect()
    }

    /// What the batches use that have not ended.
    fn batches(&mut self) -> Vec<Arc<Runs>> {
        self.batches.retain(|runs| runs.strong_count() > 0);
        self.batches.iter().filter_map(Weak::upgrade).collect()
    }

    /// What uses some of these bytes.
    fn user(&self, from: Run, to: Run) -> User {
        let user =
            self.lent.iter().filter(|(_, lent)| lent.taken.is_some()).find_map(|(submission, Lent { memory, .. })| {
                let uses = |(source, destination): &(Memory, Memory)| {
                    let (read, landing) = (Run::of(source), Run::of(destination));
                    landing.overlaps(to) || landing.overlaps(from) || read.overlaps(to)
                };
                memory.iter().position(uses).map(|at| User::Tensor(*submission, at))
            });
        user.unwrap_or(if from != to && from.overlaps(to) { User::ThisCall } else { User::Batch })
    }
}

/// The memory of single tensors.
#[derive(Default)]
struct Singles {
    /// Where results land: by the begin of a run, its end. No two of them overlap.
    landing: BTreeMap<u64, u64>,
    /// What is only read: by begin and end of a run, how many operations read it.
    read: BTreeMap<(u64, u64), u32>,
    /// The length of the longest run since nothing was read.
    longest_read: u64,
}

impl Singles {
    /// Takes the memory of a tensor; whether it was free.
    fn take(&mut self, from: Run, to: Run) -> bool {
        if self.use_one(from, to) || (from != to && from.overlaps(to)) {
            return false;
        }
        self.landing.insert(to.start, to.end);
        if from != to {
            *self.read.entry((from.start, from.end)).or_default() += 1;
            self.longest_read = self.longest_read.max(from.end - from.start);
        }
        true
    }

    /// Whether the memory of a tensor is in use.
    fn use_one(&self, from: Run, to: Run) -> bool {
        self.lands_on(to) || self.reads(to) || (from != to && self.lands_on(from))
    }

    fn give_back(&mut self, from: Run, to: Run) {
        if to.is_empty() {
            return;
        }
        self.landing.remove(&to.start);
        if let Some(readers) = self.read.get_mut(&(from.start, from.end)).filter(|_| from != to) {
            *readers -= 1;
            if *readers == 0 {
                self.read.remove(&(from.start, from.end));
            }
        }
        if self.read.is_empty() {
            self.longest_read = 0;
        }
    }

    /// Of disjoint runs, only the last that begins before the end of `run` can reach into it.
    fn lands_on(&self, run: Run) -> bool {
        let last = self.landing.range(..run.end).next_back();
        last.is_some_and(|(start, end)| Run { start: *start, end: *end }.overlaps(run))
    }

    fn reads(&self, run: Run) -> bool {
        let mut near = self.read.range((run.start.saturating_sub(self.longest_read), 0)..(run.end, 0));
        near.any(|((start, end), _)| Run { start: *start, end: *end }.overlaps(run))
    }
}

/// The memory of a batch, sorted.
pub(super) struct Runs {
    /// Disjoint.
    landing: Vec<Run>,
    read: Vec<Run>,
    /// The length of the longest run that is read.
    longest_read: u64,
}

impl Runs {
    /// The runs of these tensors, each read from and landing in; the position of one that uses the memory of another.
    fn new(pairs: impl Iterator<Item = (Run, Run)> + Clone) -> Result<Self, usize> {
        let mut landing: Vec<Run> = pairs.clone().map(|(_, to)| to).filter(|to| !to.is_empty()).collect();
        landing.sort_unstable_by_key(|run| run.start);
        let apart = |pair: &[Run]| !pair[0].overlaps(pair[1]);
        let own_result = |from: Run, to: Run| from == to || to.is_empty();
        let mut read: Vec<Run> = Vec::new();
        read.extend(pairs.clone().filter(|(from, to)| !own_result(*from, *to)).map(|(from, _)| from));
        read.sort_unstable_by_key(|run| run.start);
        let longest_read = read.iter().map(|run| run.end - run.start).max().unwrap_or(0);
        let runs = Self { landing, read, longest_read };
        if runs.landing.windows(2).all(apart) && !runs.read.iter().any(|from| runs.lands_on(*from)) {
            return Ok(runs);
        }
        let mut before = Singles::default();
        let taken = |(from, to): (Run, Run)| to.is_empty() || before.take(from, to);
        Err(pairs.map(taken).position(|taken| !taken).unwrap_or(0))
    }

    /// Whether the memory of a tensor is in use.
    fn use_one(&self, from: Run, to: Run) -> bool {
        self.lands_on(to) || self.reads(to) || (from != to && self.lands_on(from))
    }

    fn lands_on(&self, run: Run) -> bool {
        let after = self.landing.partition_point(|landing| landing.start < run.end);
        after.checked_sub(1).is_some_and(|last| self.landing[last].overlaps(run))
    }

    fn reads(&self, run: Run) -> bool {
        let first = self.read.partition_point(|read| read.start + self.longest_read < run.start);
        self.read[first..].iter().take_while(|read| read.start < run.end).any(|read| read.overlaps(run))
    }
}

/// Bytes that lie side by side. Host and devices share one space of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    start: u64,
    end: u64,
}

impl Run {
    fn of(memory: &Memory) -> Self {
        let start = memory.address();
        Self { start, end: start + memory.len() as u64 }
    }

    fn is_empty(self) -> bool {
        self.start == self.end
    }

    fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Mark;
    use crate::mem::{DeviceRegion, Ordinal};

    /// Where a tensor is read from and where its result lands: address and length.
    type Pair = [(u64, usize); 2];

    #[test]
    fn memory_in_which_a_result_lands_is_nobody_elses() {
        for as_batch in [false, true] {
            let mut loans = Loans::default();
            let in_place = lend(&mut loans, as_batch, &[[(100, 50); 2]]);
            let apart = lend(&mut loans, as_batch, &[[(300, 10), (400, 10)]]);
            let in_use = [
                (in_place, [(100, 50); 2]),
                (in_place, [(149, 1); 2]),
                (in_place, [(90, 11); 2]),
                (in_place, [(90, 100); 2]),
                (in_place, [(120, 1), (500, 1)]),
                (apart, [(300, 1); 2]),
                (apart, [(309, 5); 2]),
                (apart, [(290, 11); 2]),
                (apart, [(405, 1), (500, 1)]),
                (apart, [(500, 1), (302, 1)]),
            ];
            for (by, pair) in in_use {
                assert_eq!(one(&mut loans, pair), Err(InUse { tensor: 0, by: User::Tensor(by, 0) }), "{pair:?}");
                assert_eq!(
                    all(&mut loans, &[[(900, 1); 2], pair]),
                    Err(InUse { tensor: 1, by: User::Tensor(by, 0) }),
                    "{pair:?}"
                );
            }
            lend(&mut loans, as_batch, &[[(150, 50); 2]]);
            lend(&mut loans, as_batch, &[[(50, 50); 2]]);
            let _ = loans.end(in_place);
            lend(&mut loans, as_batch, &[[(100, 50); 2]]);
        }
    }

    #[test]
    fn many_may_read_the_same_memory() {
        for as_batch in [false, true] {
            let mut loans = Loans::default();
            let first = lend(&mut loans, as_batch, &[[(100, 50), (200, 50)]]);
            let second = lend(&mut loans, as_batch, &[[(100, 50), (300, 50)]]);
            let third = lend(&mut loans, as_batch, &[[(120, 70), (1000, 70)]]);
            let _ = loans.end(first);
            assert_eq!(one(&mut loans, [(110, 1); 2]), Err(InUse { tensor: 0, by: User::Tensor(second, 0) }));
            let _ = loans.end(second);
            assert_eq!(one(&mut loans, [(189, 9); 2]), Err(InUse { tensor: 0, by: User::Tensor(third, 0) }));
            lend(&mut loans, as_batch, &[[(100, 20); 2]]);
            let _ = loans.end(third);
            lend(&mut loans, as_batch, &[[(120, 30); 2]]);
        }
    }

    #[test]
    fn a_batch_is_taken_whole_or_not_at_all_and_given_back_with_its_last_submission() {
        let mut loans = Loans::default();
        for (at, second) in
            [[(5, 1); 2], [(5, 1), (20, 1)], [(20, 10), (25, 10)], [(20, 1), (9, 1)]].into_iter().enumerate()
        {
            let own = all(&mut loans, &[[(0, 10); 2], second]);
            assert_eq!(own, Err(InUse { tensor: 1, by: User::ThisCall }), "{at}");
        }
        assert_eq!(one(&mut loans, [(20, 10), (25, 10)]), Err(InUse { tensor: 0, by: User::ThisCall }));
        let batch = [[(0, 10); 2], [(10, 10); 2]];
        let taken = all(&mut loans, &batch).map(|taken| batch.map(|pair| put(&mut loans, &taken, pair)));
        let [first, second] = taken.expect("free");
        let _ = loans.end(first);
        assert_eq!(one(&mut loans, [(0, 1); 2]), Err(InUse { tensor: 0, by: User::Batch }));
        assert!(all(&mut loans, &[[(15, 1); 2]]).is_err());
        let _ = loans.end(second);
        drop(all(&mut loans, &batch).expect("all of it was given back"));
        lend(&mut loans, false, &[[(0, 20); 2]]);
        assert_eq!(loans.end_all().len(), 1);
        lend(&mut loans, true, &[[(0, 20); 2]]);
    }

    #[test]
    fn tensors_without_bytes_disturb_nobody() {
        let mut loans = Loans::default();
        let whole = lend(&mut loans, false, &[[(0, 20); 2]]);
        let none = lend(&mut loans, false, &[[(7, 0); 2]]);
        assert!(all(&mut loans, &[[(7, 0); 2], [(7, 0); 2]]).is_ok());
        let _ = loans.end(none);
        assert!(one(&mut loans, [(7, 1); 2]).is_err());
        let _ = loans.end(whole);
        lend(&mut loans, true, &[[(7, 1); 2]]);
    }

    #[test]
    fn memory_for_which_a_stream_waits_may_be_lent_again_before_its_operation_has_ended() {
        for as_batch in [false, true] {
            let mut loans = Loans::default();
            let first = lend(&mut loans, as_batch, &[[(0, 20); 2]]);
            assert!(one(&mut loans, [(0, 20); 2]).is_err());
            loans.free(first);
            let second = lend(&mut loans, false, &[[(0, 20); 2]]);
            let _ = loans.end(first);
            assert!(one(&mut loans, [(0, 20); 2]).is_err(), "the end of the first frees nothing of the second");
            let _ = loans.end(second);
            assert!(one(&mut loans, [(0, 20); 2]).is_ok());
        }
    }

    /// Lends one tensor, alone or as a batch; the submission.
    fn lend(loans: &mut Loans, as_batch: bool, pairs: &[Pair; 1]) -> u64 {
        let taken = if as_batch { all(loans, pairs) } else { one(loans, pairs[0]) };
        put(loans, &taken.expect("free"), pairs[0])
    }

    fn put(loans: &mut Loans, taken: &Taken, [from, to]: Pair) -> u64 {
        let submission = loans.lent.last_key_value().map_or(0, |(last, _)| last + 1);
        loans.lend(submission, taken, vec![(memory(from), memory(to))], None, Done::new(|_| {}));
        submission
    }

    fn one(loans: &mut Loans, [from, to]: Pair) -> Result<Taken, InUse> {
        loans.take(&memory(from), &memory(to))
    }

    fn all(loans: &mut Loans, pairs: &[Pair]) -> Result<Taken, InUse> {
        let memory: Vec<_> = pairs.iter().map(|[from, to]| (memory(*from), memory(*to))).collect();
        loans.take_all(memory.iter().map(|(from, to)| (from, to)))
    }

    /// As far as loans are concerned, memory has an address and a length.
    fn memory((address, len): (u64, usize)) -> Memory {
        Memory::Device { region: DeviceRegion::new(Ordinal(0), address, len), after: Mark::Reached }
    }

    impl PartialEq for Taken {
        fn eq(&self, other: &Self) -> bool {
            self.0.as_ref().map(Arc::as_ptr) == other.0.as_ref().map(Arc::as_ptr)
        }
    }

    impl std::fmt::Debug for Taken {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_tuple("Taken").field(&self.0.as_ref().map(Arc::as_ptr)).finish()
        }
    }
}
