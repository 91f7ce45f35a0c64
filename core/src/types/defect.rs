//! Planted defects: what the simulation must be able to catch.
//!
//! A machine under test can be told to make one known mistake. The words exist in every build, so that a machine's configuration has
//! one shape; the mistakes themselves are compiled only with the `testing` feature, because [`planted`] is `false` without it.

/// A known mistake that a machine makes on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defect {
    /// What was taken of a contribution that broke off is added once more by its repeat. Shows when a stream is reset or a connection lost
    /// within a body.
    PrefixIgnored,
    /// A push of an earlier membership is accepted. Shows when a process resumes after the epoch moved on.
    StaleEpochAccepted,
    /// A block of a sum is sent while one contribution has not passed it.
    BlockSentEarly,
    /// A repeat whose front is overwritten by the sum is added from its front. Shows when a stream is reset within an answer that began
    /// before its contribution was whole.
    ResumedGarbage,
    /// One slot a part instead of two, and no look at the round: the next round overwrites a sum that a slow worker has not read.
    OneSlot,
    /// A contribution that broke off half-way marks its worker as counted. Shows when a stream is reset or a connection lost.
    TornCounted,
    /// A repeated push of an open round is answered with the published sum of the round before. Shows when a worker repeats a
    /// contribution that had arrived.
    AnswerOldRound,
    /// A repeated push of an open round is not remembered as waiting: it is never answered.
    MissingWaiterLost,
    /// A weighted mean is divided by the number of workers instead of the sum of their weights.
    DivisorWrong,
    /// A task that is repeated keeps the credit of its failed attempt.
    CreditLeaked,
    /// A round of a part is pushed before the sum of the round before has arrived.
    RoundGateOpen,
    /// When the pause before a repeat is over, nobody is woken.
    RetryForgotten,
    /// A contribution is pushed again without saying that the sum had begun to land on top of it. Shows when a connection is lost in a
    /// pull.
    LandingForgotten,
    /// A failed group resolves twice.
    HandleTwice,
    /// A failed group never resolves.
    GroupLost,
    /// A worker that gives a round up tells nobody. Shows when a caller cancels.
    GivenUpInSilence,
    /// A view goes to all members but the last. Shows when a member dies.
    ViewNotBroadcast,
    /// A process that was replaced or declared dead joins as if nothing had happened. Shows when it resumes and reconnects.
    FencedAccepted,
    /// A barrier counts requests instead of workers. Shows when a worker repeats its arrival after a reconnection.
    BarrierCountsRequests,
    /// The answer of a barrier is not remembered: a repeat opens the barrier anew. Shows when the answer was lost.
    BarrierAnswerForgotten,
    /// A rank obeys two orders of its machine in the other order.
    OrdersSwapped,
    /// The leader of a machine orders what one rank has not come to.
    OrderedTooEarly,
    /// A rank of a machine that has nothing of what the others wait for is taken to have it. Shows when the owner of a part fails.
    FailureNotTold,
    /// A rank that gives up what it does with the others of its machine does not say so. Shows when a caller cancels.
    WithdrawnInSilence,
    /// A rank that ends a task before its machine began with it does not say so. Shows when a caller cancels a round that waits for the
    /// round before.
    DeclinedInSilence,
    /// A rank that has nothing of a later round is taken to have passed the earlier ones.
    EarlyWordPasses,
    /// What is pending on a machine is not ended when a rank of it is lost.
    LossKeptPending,
    /// Another rank than the owner gets the sum of a machine.
    OwnerMistaken,
    /// The owner pushes its own contribution instead of the sum of its machine.
    MachineSumNotTaken,
    /// A machine's weighted mean counts with the weight of its owner alone.
    MachineWeightForgotten,
    /// The last PCIe group of a machine is left out of the machine's sum.
    GroupLeftOut,
    /// A holder of a part of its PCIe group does not copy it to the host.
    HolderStagesNothing,
    /// The tensors of a batch that share a part use the memory of the first one.
    BatchMemoryMixed,
    /// A batch ends with its last member but one.
    BatchEndsEarly,
    /// A round of a shared part waits for its tensors for ever. Shows when a tensor is left out of a step.
    IncompleteForEver,
    /// The tensors of a refused list are not declared again. Shows when workers disagree about one of them.
    RefusedListDropped,
    /// A part begins with whatever round its first push names. Shows when a member names a far one.
    FirstRoundUnchecked,
    /// The attempt in a request is not compared. Shows when a member sends another one.
    AttemptIgnored,
    /// When a round fails, one worker that waits for it is not told.
    FailureUntold,
    /// A deterministic sum is added by arrival.
    AddedByArrival,
    /// An open round goes on with the contribution of a worker that was lost. Shows when the job goes on without it.
    RestartSkipped,
    /// A survivor that has not heard of a loss is fenced instead of asked to come back.
    SurvivorFenced,
}

impl Defect {
    /// Every defect.
    pub const ALL: &'static [Self] = &[
        Self::PrefixIgnored,
        Self::StaleEpochAccepted,
        Self::BlockSentEarly,
        Self::ResumedGarbage,
        Self::OneSlot,
        Self::TornCounted,
        Self::AnswerOldRound,
        Self::MissingWaiterLost,
        Self::DivisorWrong,
        Self::CreditLeaked,
        Self::RoundGateOpen,
        Self::RetryForgotten,
        Self::LandingForgotten,
        Self::HandleTwice,
        Self::GroupLost,
        Self::GivenUpInSilence,
        Self::ViewNotBroadcast,
        Self::FencedAccepted,
        Self::BarrierCountsRequests,
        Self::BarrierAnswerForgotten,
        Self::OrdersSwapped,
        Self::OrderedTooEarly,
        Self::FailureNotTold,
        Self::WithdrawnInSilence,
        Self::DeclinedInSilence,
        Self::EarlyWordPasses,
        Self::LossKeptPending,
        Self::OwnerMistaken,
        Self::MachineSumNotTaken,
        Self::MachineWeightForgotten,
        Self::GroupLeftOut,
        Self::HolderStagesNothing,
        Self::BatchMemoryMixed,
        Self::BatchEndsEarly,
        Self::IncompleteForEver,
        Self::RefusedListDropped,
        Self::FirstRoundUnchecked,
        Self::AttemptIgnored,
        Self::FailureUntold,
        Self::AddedByArrival,
        Self::RestartSkipped,
        Self::SurvivorFenced,
    ];
}

/// Whether the mistake `asked` was chosen; never without the `testing` feature.
pub const fn planted(chosen: Option<Defect>, asked: Defect) -> bool {
    match chosen {
        Some(chosen) => cfg!(feature = "testing") && chosen as u8 == asked as u8,
        None => false,
    }
}
