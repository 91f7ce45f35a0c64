//! Many tensors in one call: checked together, submitted under one lock, with one handle for all of them.
//!
//! Each member keeps its own name, round and outcome: other workers may submit it alone. This file accepts or refuses a batch as a whole,
//! declares its new tensors in one round trip, and resolves its handle.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::driver::Engine;
use super::handle::{Handle, Issue};
use super::memory::Memory;
use super::metrics::Metrics;
use super::submissions::{Submissions, ending};
use super::submit::{HERE_BYTES_MAX, check, check_ranks, in_copies};
use super::watched::Watched;
use crate::cuda::Marks;
use crate::error::{Error, Result};
use crate::types::{Demand, Done, Op, Priority, Round, TensorKey, TensorSpec};
use crate::worker::{Accepted, Tally, Tensor, Terms};

/// Tensors that are reduced together in every round. Made once; it belongs to no engine.
#[derive(Debug)]
pub struct Batch {
    tensors: Vec<TensorSpec>,
    keys: Vec<TensorKey>,
}

/// The reduction of all tensors of a batch.
#[derive(Debug)]
pub struct BatchSubmission<'batch> {
    /// The tensors.
    pub batch: &'batch Batch,
    /// Their memory, in the batch's order.
    pub members: Vec<Member>,
    /// How the contributions become one.
    pub op: Op,
    /// This worker's weight in a weighted mean; 1 elsewhere.
    pub weight: f64,
    /// Give up after this time; the job's step timeout always applies.
    pub timeout: Option<Duration>,
}

/// The memory of one tensor of a batch.
#[derive(Debug)]
pub struct Member {
    /// This worker's contribution, as long as the tensor.
    pub source: Memory,
    /// The memory for the result, as long as the tensor and on the same device. May be the same memory.
    pub destination: Memory,
    /// Its priority.
    pub priority: Priority,
}

impl Batch {
    /// A batch of these tensors.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is none, or a name comes twice.
    pub fn new(tensors: Vec<TensorSpec>) -> Result<Self> {
        let keys: Vec<TensorKey> = tensors.iter().map(TensorSpec::key).collect();
        let mut seen = BTreeSet::new();
        let invalid = |what, hint: &str| Err(Error::InvalidArgument { what, hint: hint.to_owned() });
        if let Some((twice, _)) = tensors.iter().zip(&keys).find(|(_, key)| !seen.insert(**key)) {
            return invalid(
                format!("tensor {} comes twice in a batch", twice.name),
                "give each tensor a different name",
            );
        }
        if tensors.is_empty() {
            return invalid("a batch of no tensors".to_owned(), "do not submit an empty batch");
        }
        Ok(Self { tensors, keys })
    }

    /// The first of its names, and how many more there are, for messages.
    fn names(&self) -> String {
        match self.tensors.as_slice() {
            [only] => only.name.clone(),
            [first, rest @ ..] => format!("{} and {} more", first.name, rest.len()),
            [] => String::new(),
        }
    }

    /// Its tensors, in order.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }
}

impl Engine {
    /// Reduces all tensors of a batch over all workers. The handle resolves when all of them have ended, with the error of the first that
    /// failed; to cancel it cancels all. Its `then` is that of [`push_pull`](Self::push_pull).
    ///
    /// Declares tensors that this worker has not declared yet, in one round trip. Small neighbours among them share parts; such tensors
    /// must all be submitted in every round.
    ///
    /// Waits while more than `submit_bytes_max` bytes are unresolved; a larger batch waits until no bytes are.
    ///
    /// # Errors
    /// As [`push_pull`](Self::push_pull). Also if a tensor has failed before, or was declared differently; then nothing is submitted.
    pub fn push_pull_all(
        &self,
        submission: BatchSubmission<'_>,
        then: impl FnOnce(u64) + Send + 'static,
    ) -> Result<Handle> {
        self.submit_all(submission, HERE_BYTES_MAX, &|| {}, then)
    }

    /// As [`begin_to_reduce`](Self::begin_to_reduce), of a batch.
    ///
    /// # Errors
    /// As [`push_pull_all`](Self::push_pull_all).
    pub fn begin_to_reduce_all(
        &self,
        submission: BatchSubmission<'_>,
        patience: Duration,
        then: impl FnOnce(u64) + Send + 'static,
    ) -> Result<Handle> {
        self.begin(patience, |here_bytes_max, entered| self.submit_all(submission, here_bytes_max, entered, then))
    }

    /// As [`reduce`](Self::reduce), of a batch.
    ///
    /// # Errors
    /// As [`push_pull_all`](Self::push_pull_all) and [`Handle::wait`].
    pub fn reduce_all(&self, submission: BatchSubmission<'_>, patience: Option<Duration>) -> Result<()> {
        self.finish(patience, |patience| self.begin_to_reduce_all(submission, patience, |_| {}))
    }

    fn submit_all(
        &self,
        submission: BatchSubmission<'_>,
        here_bytes_max: u64,
        entered: &dyn Fn(),
        then: impl FnOnce(u64) + Send + 'static,
    ) -> Result<Handle> {
        let BatchSubmission { batch, members, op, weight, timeout } = submission;
        self.submit_batch(batch, members, (Demand::Reduce { op, weight }, timeout), here_bytes_max, entered, then)
    }

    /// As [`submit_all`](Self::submit_all), for any demand of all tensors, each with its memory. Fails after the time that is given, if one is.
    pub(super) fn submit_batch(
        &self,
        batch: &Batch,
        members: Vec<Member>,
        (demand, timeout): (Demand, Option<Duration>),
        here_bytes_max: u64,
        entered: &dyn Fn(),
        then: impl FnOnce(u64) + Send + 'static,
    ) -> Result<Handle> {
        if members.len() != batch.tensors.len() {
            return Err(Error::InvalidArgument {
                what: format!("the memory of {} tensors for a batch of {}", members.len(), batch.tensors.len()),
                hint: "give one for each".to_owned(),
            });
        }
        for (tensor, member) in batch.tensors.iter().zip(&members) {
            check(tensor, &member.source, &member.destination, demand, self.device())?;
        }
        check_ranks(&batch.tensors, demand, self.first_size())?;
        self.shared.followed.check()?;
        let bytes = members.iter().map(|member| member.source.len() as u64).sum();
        let _span = tracing::trace_span!("submit_all", tensors = members.len(), bytes).entered();
        let room = self.reserve(bytes, timeout)?;

        let look =
            |(tensor, member): (&TensorSpec, &Member)| Watched::look(&self.shared, tensor, &member.source, demand);
        let mut watched: Vec<Option<Watched>> = match self.shared.dumps.is_off() {
            true => Vec::new(),
            false => batch.tensors.iter().zip(&members).map(look).collect(),
        };
        let count = members.len() as u64;
        let names: Arc<str> = batch.names().into();
        let limit = self.limit(Arc::clone(&names), timeout);
        let handle = self.shared.with_pushing(here_bytes_max, |state, now| {
            let describe = |index: usize| {
                let Member { source, destination, priority } = &members[index];
                let (bytes, device) = (source.len() as u64, source.device());
                let in_copies = in_copies(&batch.tensors[index], source, self.device(), self.shared.nan_check);
                let in_place = source.is_place_of(destination);
                Tensor { key: batch.keys[index], bytes, device, in_copies, in_place, priority: *priority, cuts: None }
            };
            let memory = members.iter().map(|Member { source, destination, .. }| (source, destination));
            let taken = state.loans.take_all(memory);
            let taken = taken.map_err(|in_use| state.refusal(in_use, &batch.tensors))?;
            let rounds: Vec<Option<Round>> = match watched.is_empty() && !state.is_recorded() {
                true => Vec::new(),
                false => batch.keys.iter().map(|key| state.worker.next_round(*key)).collect(),
            };
            let Accepted { first, submissions } =
                state.worker.submit_all(now, &batch.tensors, describe, Terms { demand, timeout })?;
            entered();
            let ids = first..first + submissions.len() as u64;
            for (id, of) in ids.clone().zip(&submissions).filter(|_| state.is_recorded()) {
                for (position, index) in of.as_slice().iter().enumerate() {
                    let (tensor, bytes) = ((batch.keys[*index], rounds[*index]), members[*index].source.len() as u64);
                    state.record(now, id, tensor, (&demand, bytes), position == 0);
                }
            }
            let (followed, backend) = (&self.shared.followed, Submissions::of_batch(&self.shared, ids.clone()));
            let then = ending(room, followed, names, then);
            let (handle, done) = Handle::new(first, Some(backend), Arc::clone(followed), then);
            let is_on_device = members.iter().any(|member| member.source.device().is_some());
            let open = Arc::new(Open::new(submissions.len(), is_on_device.then(|| handle.issue()), done));
            let mut members: Vec<Option<Member>> = members.into_iter().map(Some).collect();
            for (id, of) in ids.zip(submissions) {
                let memory = of.as_slice().iter().map(|index| {
                    let Member { source, destination, .. } =
                        members[*index].take().expect("each member is in one submission");
                    (source, destination)
                });
                let memory: Vec<(Memory, Memory)> = memory.collect();
                let mut done = Open::member(&open);
                for (index, (_, destination)) in of.as_slice().iter().zip(&memory) {
                    if let Some(watched) = watched.get_mut(*index).and_then(Option::take) {
                        done = watched.follow(&self.shared, rounds[*index], destination, done);
                    }
                }
                state.loans.lend(id, &taken, memory, Open::issue_of_member(&open), done);
            }
            Ok(handle)
        });
        let handle = handle.flatten()?;
        Metrics::add(&self.shared.metrics.submissions, count);
        Ok(self.polling(handle).limited(limit))
    }
}

/// A batch under way: its open members, and the tokens that report its progress.
pub(super) struct Open {
    ends: Mutex<(Tally, Option<Done<()>>)>,
    /// `None` for host memory.
    issues: Option<Mutex<Unissued>>,
}

/// The members of a batch whose work is not on their device, the marks of the others, and what tells the handle in the end.
struct Unissued {
    members: usize,
    marks: Marks,
    issue: Option<Issue>,
}

impl Open {
    pub(super) fn new(members: usize, issue: Option<Issue>, done: Done<()>) -> Self {
        let unissued = |issue| Mutex::new(Unissued { members, marks: Marks::default(), issue: Some(issue) });
        Self { ends: Mutex::new((Tally::new(members, None), Some(done))), issues: issue.map(unissued) }
    }

    /// What tells the batch that all work of a member is on its device; `None` for host memory.
    pub(super) fn issue_of_member(open: &Arc<Self>) -> Option<Issue> {
        open.issues.as_ref()?;
        let open = Arc::clone(open);
        Some(Box::new(move |marks| open.issued(marks)))
    }

    fn issued(&self, marks: Marks) {
        let Some(issues) = &self.issues else { return };
        let mut left = issues.lock().expect(LOCK);
        left.marks.extend(marks);
        left.members -= 1;
        if left.members == 0 {
            let (issue, marks) = (left.issue.take(), std::mem::take(&mut left.marks));
            drop(left);
            issue.expect("one member is the last")(marks);
        }
    }

    /// The token of a member.
    pub(super) fn member(open: &Arc<Self>) -> Done<()> {
        let open = Arc::clone(open);
        Done::new(move |outcome| open.ended(outcome))
    }

    fn ended(&self, outcome: Result<()>) {
        let mut left = self.ends.lock().expect(LOCK);
        if let Some(outcome) = left.0.ended(outcome) {
            let done = left.1.take();
            drop(left);
            done.expect("one member is the last").report(outcome);
        }
    }
}

const LOCK: &str = "nobody panics while holding it";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DType;

    fn spec(name: &str) -> TensorSpec {
        TensorSpec::new(name, DType::F32, vec![4])
    }

    #[test]
    fn a_batch_names_each_tensor_once() {
        assert_eq!(Batch::new(vec![spec("a"), spec("b")]).unwrap().tensors().len(), 2);
        let twice = Batch::new(vec![spec("a"), spec("b"), spec("a")]).unwrap_err();
        assert!(twice.to_string().contains("tensor a comes twice"), "{twice}");
        assert!(Batch::new(Vec::new()).is_err());
    }

    #[test]
    fn a_batch_ends_with_its_last_member_and_the_first_error() {
        let (cancelled, other) = (Error::Cancelled, Error::Internal { what: "later".to_owned() });
        for (outcomes, expected) in [
            (vec![Ok(()), Ok(()), Ok(())], Ok(())),
            (vec![Ok(()), Err(cancelled.clone()), Err(other.clone())], Err(cancelled)),
            (vec![Err(other.clone()), Ok(()), Ok(())], Err(other)),
        ] {
            let (handle, done) = Handle::new(1, None, Arc::default(), |_| {});
            let open = Arc::new(Open::new(outcomes.len(), None, done));
            let mut members: Vec<_> = outcomes.iter().map(|_| Open::member(&open)).collect();
            for outcome in outcomes {
                assert_eq!(handle.outcome(), None);
                members.remove(0).report(outcome);
            }
            assert_eq!(handle.outcome(), Some(expected));
        }
    }

    #[test]
    fn a_member_that_is_dropped_fails_the_batch() {
        let (handle, done) = Handle::new(1, None, Arc::default(), |_| {});
        let open = Arc::new(Open::new(1, None, done));
        drop(Open::member(&open));
        assert!(matches!(handle.outcome(), Some(Err(Error::Internal { .. }))));
    }
}
