//! Which files are of the newest run of a job.
//!
//! A dump stays in its directory until the same member of a later run writes its own. So a member of the newest run that has written none could be
//! represented by the dump of a former run.

use std::cmp::Reverse;

use gradlane_core::types::Epoch;

use crate::report::Report;

/// What a file says of the run that it is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    /// The latest epoch in it; `None` if its process was no member of the job.
    pub(super) epoch: Option<Epoch>,
    /// When what it tells began, and when it was written, in nanoseconds since 1970; `None` if it does not say.
    pub(super) span: Option<(u64, u64)>,
}

/// A run of a job: the term of its coordinator, and when it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    term: Option<u32>,
    began_ns: Option<u64>,
}

impl Life {
    /// That of a report.
    pub(super) fn of_report(report: &Report) -> Self {
        let Report { epoch, began_unix_ns: began_ns, duration_ns, .. } = report;
        Self { epoch: Epoch::of_text(epoch), span: Some((*began_ns, began_ns.saturating_add(*duration_ns))) }
    }

    fn term(&self) -> Option<u32> {
        self.epoch.map(|epoch| epoch.term)
    }
}

impl Run {
    /// The newest run among those of which these files are.
    ///
    /// A later run has a higher term, unless the coordinator lost its state directory. So of one term, the files that were written before all later
    /// ones began are of a former run, too.
    pub(super) fn newest(lives: &[Life]) -> Self {
        let term = lives.iter().filter_map(Life::term).max();
        let mut spans: Vec<(u64, u64)> =
            lives.iter().filter(|life| life.term() == term).filter_map(|life| life.span).collect();
        spans.sort_by_key(|(_, written_ns)| Reverse(*written_ns));
        let earliest = |run_began_ns: Option<u64>, (began_ns, written_ns): (u64, u64)| match run_began_ns {
            Some(run_began_ns) if written_ns < run_began_ns => Some(run_began_ns),
            Some(run_began_ns) => Some(run_began_ns.min(began_ns)),
            None => Some(began_ns),
        };
        Self { term, began_ns: spans.into_iter().fold(None, earliest) }
    }

    /// Whether a file is of this run, as far as it says.
    pub(super) fn has(&self, life: &Life) -> bool {
        let is_older = life.span.zip(self.began_ns).is_some_and(|((_, written_ns), began_ns)| written_ns < began_ns);
        !is_older && life.term().is_none_or(|term| self.term == Some(term))
    }
}
