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
    /// A rank that gives a call up before its machine can begin to reduce it, because its declaration is open or the round before is not
    /// summed, tells its server and not the other ranks of its machine. They wait for a step timeout. Spared: ranks may hear that a rank of
    /// their machine did not come to a round that it gave up.
    GivenUpUntoldOnMachine,
    /// The owner of a part that is fenced tells the other ranks of its machine that they are. Spared: a rank may be told so if a rank of its
    /// machine was shut out.
    FencedToldToMachine,
    /// The root of a broadcast that gives a round up tells the ranks of its machine at once, also if the round before waits for credit and
    /// was not handed to them yet. They take the round before for given up. Spared: a rank may hear that a rank of its machine gave a round
    /// up if that rank gave up a later one.
    FailureToldTooEarly,
    /// R3. A server keeps the sums of names that are used once. Spared: nobody looks.
    OneShotNamesKept,
}

impl Known {
    /// Every finding that is not mended.
    pub const ALL: &'static [Self] = &[
        Self::NoDeadlineWithoutServer,
        Self::GivenUpUntoldOnMachine,
        Self::FencedToldToMachine,
        Self::FailureToldTooEarly,
        Self::OneShotNamesKept,
    ];
}
