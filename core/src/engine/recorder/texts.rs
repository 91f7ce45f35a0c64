//! What a dump needs in words: the names of tensors, errors, and what the coordinator said. All of it is bounded.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::types::{TensorKey, TensorSpec, Time};
use crate::wire::frame::Stall;

/// The texts, behind a lock that is held for an insertion or a copy only: it is free while the engine is stuck.
#[derive(Default, Debug)]
pub(super) struct Texts(Mutex<Told>);

/// What there is in words.
#[derive(Clone, Default, Debug)]
pub(super) struct Told {
    /// By key.
    pub(super) names: BTreeMap<u64, Arc<str>>,
    /// The first errors of operations, up to [`ERRORS_MAX`].
    pub(super) first_errors: Vec<Failure>,
    /// The last one, if it is none of those.
    pub(super) last_error: Option<Failure>,
    /// What the coordinator said last of sums that wait, up to [`NOTICES_MAX`].
    pub(super) notices: VecDeque<Notice>,
}

/// An operation that failed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) at: Time,
    /// The number of the submission.
    pub(super) id: u64,
    pub(super) error: Error,
}

/// The coordinator said that a sum waits.
#[derive(Clone, Debug)]
pub(super) struct Notice {
    pub(super) at: Time,
    pub(super) tensor: String,
    pub(super) round: u64,
    /// The ranks that did not contribute.
    pub(super) missing: Vec<u32>,
    /// What they did last.
    pub(super) detail: String,
}

impl Texts {
    /// These tensors have names.
    pub(super) fn name(&self, tensors: &[TensorSpec]) {
        let mut told = self.lock();
        for tensor in tensors {
            if told.names.len() < NAMES_MAX {
                told.names.entry(tensor.key().0).or_insert_with(|| tensor.name.as_str().into());
            }
        }
    }

    /// These names are not used any more.
    pub(super) fn forget(&self, names: &[String]) {
        let mut told = self.lock();
        for name in names {
            told.names.remove(&TensorKey::of(name).0);
        }
    }

    /// An operation failed.
    pub(super) fn failed(&self, at: Time, id: u64, error: &Error) {
        let (mut told, failure) = (self.lock(), Failure { at, id, error: error.clone() });
        if told.first_errors.len() < ERRORS_MAX {
            told.first_errors.push(failure);
        } else {
            told.last_error = Some(failure);
        }
    }

    /// The coordinator said that a sum waits.
    pub(super) fn notice(&self, at: Time, tensor: &str, stall: &Stall, detail: &str) {
        let mut told = self.lock();
        let round = stall.round.0;
        told.notices.retain(|known| (known.tensor.as_str(), known.round) != (tensor, round));
        if told.notices.len() >= NOTICES_MAX {
            told.notices.pop_front();
        }
        let missing = stall.missing.iter().take(RANKS_MAX).map(|rank| rank.0).collect();
        let (tensor, detail) = (tensor.to_owned(), detail.to_owned());
        told.notices.push_back(Notice { at, tensor, round, missing, detail });
    }

    /// A copy of all.
    pub(super) fn read(&self) -> Told {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names that are kept; a tensor beyond is called by its key.
const NAMES_MAX: usize = 1 << 17;
/// Errors of operations that are kept beside the last one: the first ones mostly say why the others came.
const ERRORS_MAX: usize = 8;
/// Notices that are kept.
const NOTICES_MAX: usize = 16;
/// Missing ranks that are kept of a notice.
const RANKS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::types::{DType, PartId, Round, WorkerId};

    #[test]
    fn names_are_known_until_they_are_forgotten() {
        let texts = Texts::default();
        texts.name(&[TensorSpec::new("a", DType::F32, vec![1]), TensorSpec::new("b", DType::F32, vec![1])]);
        texts.forget(&["a".to_owned()]);
        let names: Vec<Arc<str>> = texts.read().names.into_values().collect();
        assert_eq!(names, ["b".into()]);
    }

    #[test]
    fn the_first_errors_and_the_last_are_kept() {
        let texts = Texts::default();
        (0..20).for_each(|id| texts.failed(Time(id), id, &Error::Cancelled));
        let told = texts.read();
        let first: Vec<u64> = told.first_errors.iter().map(|failure| failure.id).collect();
        assert_eq!((first, told.last_error.map(|failure| failure.id)), ((0..8).collect(), Some(19)));
    }

    #[test]
    fn the_newest_notices_are_kept_one_for_each_round() {
        let texts = Texts::default();
        let stall = |round: u64| {
            let part = PartId { key: TensorKey(1), index: 0 };
            Stall { part, round: Round(round), missing: vec![WorkerId(2)], waited: Duration::from_secs(1) }
        };
        (0..30).for_each(|round| texts.notice(Time(round), "w", &stall(round), "reads"));
        texts.notice(Time(99), "w", &stall(20), "sleeps");
        let notices = texts.read().notices;
        assert_eq!(notices.len(), NOTICES_MAX);
        let last = notices.back().expect("there are some");
        assert_eq!((last.round, &*last.detail, &*last.missing), (20, "sleeps", &[2][..]));
        assert_eq!(notices.iter().filter(|notice| notice.round == 20).count(), 1);
    }
}
