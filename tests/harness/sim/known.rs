//! Findings that are not mended yet: what each is, and how narrowly the simulation spares it.
//!
//! A finding is spared by leaving out exactly what makes it happen, and only in the seeds in which it would. [`run_unspared`] leaves
//! nothing out for one of them, and a test requires that it then still falls out, so that an entry disappears with its mend.
//!
//! [`run_unspared`]: super::run_unspared

/// A finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// R1. A call without a timeout whose way to its server is gone, while the worker still reaches the coordinator, never ends: the
    /// step timeout runs on servers only. Spared: the calls of such a worker have a timeout of their own.
    NoDeadlineWithoutServer,
}

impl Known {
    /// Every finding that is not mended.
    pub const ALL: &'static [Self] = &[Self::NoDeadlineWithoutServer];
}
