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
    /// A worker that is refused a declaration because of one tensor has none of its others either, and tells nobody. The others wait a
    /// step timeout for each of its rounds, and several where callers give up. Spared: a tensor that workers disagree about is declared
    /// by its first submission and not in a list.
    RefusedWithoutWithdrawal,
    /// A worker that gives up a broadcast of which it is not the root goes on to the next round. If it is the first that the server
    /// hears of in this part, the round of the broadcast is over before it began, for everybody. Spared: the others may hear that a
    /// broadcast is over which somebody else gave up.
    BroadcastLostByListener,
    /// H1. A call for a tensor that shares a part with one that is left out of a step never ends. Spared: every step reduces every
    /// tensor.
    SharedPartIncomplete,
    /// R3. A server keeps the sums of names that are used once. Spared: nobody looks.
    OneShotNamesKept,
}

impl Known {
    /// Every finding that is not mended.
    pub const ALL: &'static [Self] = &[
        Self::NoDeadlineWithoutServer,
        Self::RefusedWithoutWithdrawal,
        Self::BroadcastLostByListener,
        Self::SharedPartIncomplete,
        Self::OneShotNamesKept,
    ];
}
