//! What the exporter asks of the parts of this process.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::{Error, Result};
use crate::metrics::Instance;
use crate::types::{ControlAnswer, Stats};

/// A part of this process that the exporter shows: a worker, a server, or a coordinator.
///
/// The exporter's thread calls the methods, and must not wait in them for a lock that the part's own threads hold: a part that is stuck is
/// just when people look.
pub trait Shown: Send + Sync {
    /// What it is, such as `worker`.
    fn name(&self) -> &'static str;
    /// How far it is.
    fn standing(&self) -> Standing;
    /// Its metrics. `None` as long as it does not know what to call itself, such as its rank.
    fn values(&self) -> Option<Instance>;
    /// What the members of its job have told it about themselves. `None` but of a coordinator.
    fn gathered(&self) -> Option<Gathered> {
        None
    }
    /// A page of HTML for people that shows its whole job. It must need nothing from elsewhere. `None` but of a coordinator.
    fn page(&self) -> Option<String> {
        None
    }
}

/// The metrics of the members of a job, as far as they have told them lately.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Gathered {
    /// Of each member that has told them.
    pub instances: Vec<Instance>,
    /// The members that have not, such as `worker 5`.
    pub missing: Vec<String>,
}

/// The answer to an operator who asks for the metrics of `shown`.
///
/// # Errors
/// [`Error::FailedPrecondition`] if it does not know what to call itself.
pub fn stats(shown: &dyn Shown) -> Result<ControlAnswer> {
    let Some(instance) = shown.values() else {
        return Err(Error::FailedPrecondition {
            what: format!("the {} has no place in its job yet", shown.name()),
            hint: "ask again when the job runs".to_owned(),
        });
    };
    let values = instance.pairs();
    Ok(ControlAnswer::Stats(Stats { scope: instance.scope.to_owned(), label: instance.label, values }))
}

/// How far a worker, a server or a coordinator is in its life. It only goes on, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Standing {
    /// It has no place in its job yet.
    Joining,
    /// It can do its work.
    Ready,
    /// It completes what has begun, and takes nothing new.
    Ending,
    /// It has left its job, or its job is over.
    Ended,
    /// It can do no more, because it or its job failed.
    Failed,
}

impl Standing {
    const ALL: [Self; 5] = [Self::Joining, Self::Ready, Self::Ending, Self::Ended, Self::Failed];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Ready => "ready",
            Self::Ending => "ending",
            Self::Ended => "ended",
            Self::Failed => "failed",
        }
    }
}

/// The [`Standing`] of one part. Its driver writes it, and the exporter reads it without a lock.
#[derive(Default, Debug)]
pub struct StandingCell(AtomicU8);

impl StandingCell {
    /// Goes on to `standing`. Does nothing if that is behind: a late message does not make ready what has ended.
    pub fn advance(&self, standing: Standing) {
        self.0.fetch_max(standing as u8, Ordering::Relaxed);
    }

    /// The last that it advanced to; joining if it never did.
    pub fn now(&self) -> Standing {
        Standing::ALL[usize::from(self.0.load(Ordering::Relaxed))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_only_goes_on() {
        let cell = StandingCell::default();
        for (to, expected) in [
            (Standing::Joining, Standing::Joining),
            (Standing::Ready, Standing::Ready),
            (Standing::Ended, Standing::Ended),
            (Standing::Ending, Standing::Ended),
            (Standing::Ready, Standing::Ended),
            (Standing::Failed, Standing::Failed),
            (Standing::Ended, Standing::Failed),
        ] {
            cell.advance(to);
            assert_eq!(cell.now(), expected, "after {}", to.word());
        }
    }

    #[test]
    fn every_standing_is_read_back() {
        for standing in Standing::ALL {
            let cell = StandingCell::default();
            cell.advance(standing);
            assert_eq!(cell.now(), standing);
        }
    }
}
