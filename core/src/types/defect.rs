//! Planted defects: mistakes that the simulation must be able to catch.
//!
//! A state machine under test can be told to make one known mistake. The names exist in every build, so that the configuration has one
//! form. The mistakes themselves are compiled only with the `testing` feature, because [`planted`] is `false` without it.

/// A known mistake that a state machine makes on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defect {
    /// After a contribution broke off, its repeat adds again the bytes that were already added. Shows when a stream is reset or a
    /// connection is lost within a body.
    PrefixIgnored,
    /// A push of an earlier membership is accepted. Shows when a process resumes after the epoch moved on.
    StaleEpochAccepted,
    /// A block of a sum is sent while one contribution has not passed it.
    BlockSentEarly,
    /// The server adds a repeat from its front, although the sum has overwritten that front. Shows when a stream is reset within an answer
    /// that began before its contribution was complete.
    ResumedGarbage,
    /// One slot per part instead of two, and no check of the round: the next round overwrites a sum that a slow worker has not read.
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
    /// When the pause before a repeat is over, the driver is not woken.
    RetryForgotten,
    /// A contribution is pushed again without telling that the sum had begun to overwrite it. Shows when a connection is lost in a pull.
    LandingForgotten,
    /// A failed group resolves twice.
    HandleTwice,
    /// A failed group never resolves.
    GroupLost,
    /// A worker that gives up a round tells nobody. Shows when a caller cancels.
    GivenUpInSilence,
    /// A view goes to all members but the last. Shows when a member dies.
    ViewNotBroadcast,
    /// A process that was replaced or declared dead joins as if nothing had happened. Shows when it resumes and reconnects.
    FencedAccepted,
    /// A barrier counts requests instead of workers. Shows when a worker repeats its arrival after a reconnection.
    BarrierCountsRequests,
    /// A name ends as soon as one worker has undeclared it.
    NameEndsEarly,
    /// The answer of a barrier is not remembered: a repeat opens the barrier anew. Shows when the answer was lost.
    BarrierAnswerForgotten,
    /// The usual time of a request to the coordinator passes while that is out of contact. Shows when the coordinator is started again.
    UsualTimePasses,
    /// A coordinator that is started again lets the time at barriers pass in which it was away.
    AwayCounts,
    /// The answer of a change of the store is not remembered: a repeat makes it again. Shows when the answer was lost.
    StoreChangeForgotten,
    /// The last step before a boundary is chosen before every worker has said how many it has begun.
    LimitBeforeAnswers,
    /// A boundary passes before every worker stands there.
    PassedEarly,
    /// A worker that hears of a change goes on to begin steps before it knows how far it may go.
    LimitNotInstalled,
    /// Newcomers are taken in while a worker rests, which may have operations under way.
    TakenInAtRest,
    /// A boundary passes though too few workers stand there and the job waits for others.
    TooFewPass,
    /// A coordinator that goes on with a job waits for nobody in the place of lost workers. Shows when the coordinator is started again.
    WaitForgotten,
    /// A worker that has left at a boundary is still in the view, so that sums and barriers wait for it.
    LeaverStillDue,
    /// A worker that reconnects does not hear how the last change ended. Shows when the connection is lost as a boundary passes.
    PassageNotRepeated,
    /// A rank executes two orders of its machine in the wrong order.
    OrdersSwapped,
    /// A rank obeys its leader, and begins what it ordered, while an operation in host memory is under way.
    TurnsIgnored,
    /// The leader of a machine orders an operation for which one rank is not ready.
    OrderedTooEarly,
    /// A rank that does not have the data that the others of its machine wait for is treated as if it had them. Shows when the owner of a
    /// part fails.
    FailureNotTold,
    /// A rank that gives up an operation with the others of its machine does not tell them. Shows when a caller cancels.
    WithdrawnInSilence,
    /// A rank that ends a task before its machine began with it does not tell the others. Shows when a caller cancels a round that waits
    /// for the round before.
    DeclinedInSilence,
    /// A rank that reports that it has no data for a later round is treated as if it had finished the earlier ones.
    EarlyWordPasses,
    /// Operations pending on a machine do not end when one of its ranks is lost.
    LossKeptPending,
    /// Another rank than the owner gets the sum of a machine.
    OwnerMistaken,
    /// The owner pushes its own contribution instead of the sum of its machine.
    MachineSumNotTaken,
    /// A machine's weighted mean uses the weight of its owner only.
    MachineWeightForgotten,
    /// The last PCIe group of a machine is left out of the machine's sum.
    GroupLeftOut,
    /// The rank that holds a part for its PCIe group does not copy it to the host.
    HolderStagesNothing,
    /// The tensors of a batch that share a part use the memory of the first one.
    BatchMemoryMixed,
    /// A batch ends when its last member but one ends.
    BatchEndsEarly,
    /// A round of a shared part waits for its tensors for ever. Shows when a tensor is left out of a step.
    IncompleteForEver,
    /// The tensors of a refused list are not declared again. Shows when workers disagree about one of them.
    RefusedListDropped,
    /// A part begins with any round that its first push names. Shows when a member names a round far ahead.
    FirstRoundUnchecked,
    /// A server keeps a sum until every worker asks for the next one. Shows when a name is used once.
    QuietSumKept,
    /// When a round fails, one worker that waits for it does not hear of it.
    FailureUntold,
    /// A deterministic sum is added in the order of arrival.
    AddedByArrival,
    /// An open round continues with the contribution of a worker that was lost. Shows when the job continues without it.
    RestartSkipped,
    /// A sum lands on a contribution that is kept until the sum is whole. Shows when a worker is lost while the sum comes.
    LandsOnKept,
    /// What the ranks of a machine reduced with one that is lost since goes on to its server.
    ReducedWithTheLost,
    /// What the ranks of a machine have not brought to all of them when they lose one fails, in place of beginning again.
    UndoneFails,
    /// A surviving worker that has not heard of a loss is fenced instead of asked to send again.
    SurvivorFenced,
    /// The repeat of a change of a parameter is done again. Shows when the answer was lost.
    ChangeRepeated,
    /// The body of a change is done although a newer exchange brings the same change. Shows when a repeat overtakes the end of the exchange
    /// before.
    OlderBodyDone,
    /// A server forgets the latest change of a worker when the exchange that brought it breaks off. Shows when the change was done and the
    /// answer was lost.
    LedgerForgotten,
    /// A change whose checksum is wrong is done.
    DamagedChangeDone,
    /// A change that broke off has overwritten as much of the value as came of it.
    HalfChangeDone,
    /// A change is answered before all of it came. Shows when it breaks off.
    ChangeAnsweredEarly,
    /// An init takes the place of the value that a parameter has. Shows when two workers initialise it at once.
    InitOverwrites,
    /// An addition to a parameter makes no new version.
    VersionKept,
    /// A push_pull is answered with the value before its change.
    ValueBeforeChange,
    /// What was booked for a change stays booked when it is done.
    ChangeBookingKept,
    /// A server keeps the values of parameters when the job has ended.
    ValuesKept,
    /// The repeat of a use has a round of its own. Shows when the answer was lost.
    RepeatRenumbered,
    /// A change is sent again from memory on which its answer had begun to land. Shows when a push_pull in place is repeated.
    OverwrittenChangeSent,
    /// A use of a part is sent before the use before it was answered.
    UsesOverlap,
    /// A use tells the highest version of its parts instead of the lowest.
    HighestVersionTold,
    /// Bytes beyond the announced length of an answer are taken. Shows when a server sends too many.
    LongAnswerTaken,
    /// The checksum of an answer is not compared. Shows when the answer is damaged.
    AnswerNotChecked,
    /// An early answer ends the push, whose rest the server still wants.
    EarlySumEndsPush,
    /// An answer to another push is taken. Shows when a server sends one.
    AnswerOfAnother,
    /// A sum lands before the memory of the contribution is back.
    PlacedWhileLent,
    /// The end of an exchange is told while its memory is lent.
    EndToldWhileLent,
    /// A reject is told as the loss of the exchange.
    RejectTakenForLoss,
    /// The rest of a body is passed on after an answer that refuses it.
    BodyNotRefused,
    /// Bytes beyond the announced length of a body are passed on. Shows when a member sends too many.
    LongBodyTaken,
    /// What a codec lost goes on after a sum of other workers. Shows when a worker is lost and the job goes on.
    ResidualOfOthersKept,
    /// What a codec lost goes on after a round without a sum. Shows when a caller cancels.
    ResidualOfFailedKept,
    /// A server takes a sum back as soon as one of its workers has. Shows where others have used it.
    TakenBackByOne,
    /// A contribution that is sent again is encoded again. Shows when a stream is reset or a connection lost.
    EncodedAgain,
    /// What the coordinator says of a stalled round is not kept for the error of that round.
    StallNoticeLost,
    /// A caller's thread is given a part that is longer than it asked for.
    LongTakenForShort,
    /// A caller's thread that leaves parts to the thread of their stage does not learn that there are some.
    RestForgotten,
    /// A server counts as drained while it has one open exchange.
    DrainForgetsOne,
    /// A server keeps the value of a parameter whose name has ended.
    EndedValueKept,
    /// A worker keeps no sum for others, though it tells that it does. Shows when a server is lost.
    SumNotKept,
    /// A worker tells what it has of the parts of a lost server while exchanges of them are still open.
    HoldingsToldEarly,
    /// A coordinator does not wait until all workers have told what they have of the parts of a lost server.
    RecoveredEarly,
    /// A coordinator lets nobody restore a sum that some workers have and others miss.
    NothingRestored,
    /// A server counts the gradients of workers that came too late for their round.
    LateGradientCounts,
    /// A server applies a round that is clipped before it knows the norm.
    AppliedBeforeNorm,
    /// A server answers a read before it has applied the rounds of which its worker knows. Shows when the worker hears of a round first.
    RoundReadEarly,
    /// A server says its share of a norm once only. Shows when the connection to the coordinator is lost then.
    SquaresNotRepeated,
    /// A round is closed by the first worker that comes.
    RoundClosedEarly,
    /// A worker that came too late for a round hears that it was in it.
    LateTickAccepted,
    /// A worker goes on however far it is ahead of the slowest one.
    BoundPassed,
    /// The repeat of a tick is counted as one more. Shows when a connection is lost while a worker waits.
    TickCountedTwice,
    /// A norm is told before every server has said its share.
    NormWithoutAll,
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
        Self::UsualTimePasses,
        Self::AwayCounts,
        Self::StoreChangeForgotten,
        Self::LimitBeforeAnswers,
        Self::PassedEarly,
        Self::LimitNotInstalled,
        Self::TakenInAtRest,
        Self::TooFewPass,
        Self::WaitForgotten,
        Self::LeaverStillDue,
        Self::PassageNotRepeated,
        Self::OrdersSwapped,
        Self::TurnsIgnored,
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
        Self::QuietSumKept,
        Self::NameEndsEarly,
        Self::FailureUntold,
        Self::AddedByArrival,
        Self::RestartSkipped,
        Self::LandsOnKept,
        Self::ReducedWithTheLost,
        Self::UndoneFails,
        Self::SurvivorFenced,
        Self::ChangeRepeated,
        Self::OlderBodyDone,
        Self::LedgerForgotten,
        Self::DamagedChangeDone,
        Self::HalfChangeDone,
        Self::ChangeAnsweredEarly,
        Self::InitOverwrites,
        Self::VersionKept,
        Self::ValueBeforeChange,
        Self::ChangeBookingKept,
        Self::ValuesKept,
        Self::RepeatRenumbered,
        Self::OverwrittenChangeSent,
        Self::UsesOverlap,
        Self::HighestVersionTold,
        Self::LongAnswerTaken,
        Self::AnswerNotChecked,
        Self::EarlySumEndsPush,
        Self::AnswerOfAnother,
        Self::PlacedWhileLent,
        Self::EndToldWhileLent,
        Self::RejectTakenForLoss,
        Self::BodyNotRefused,
        Self::LongBodyTaken,
        Self::ResidualOfOthersKept,
        Self::ResidualOfFailedKept,
        Self::TakenBackByOne,
        Self::EncodedAgain,
        Self::StallNoticeLost,
        Self::LongTakenForShort,
        Self::RestForgotten,
        Self::DrainForgetsOne,
        Self::EndedValueKept,
        Self::SumNotKept,
        Self::HoldingsToldEarly,
        Self::RecoveredEarly,
        Self::NothingRestored,
        Self::LateGradientCounts,
        Self::AppliedBeforeNorm,
        Self::RoundReadEarly,
        Self::SquaresNotRepeated,
        Self::RoundClosedEarly,
        Self::LateTickAccepted,
        Self::BoundPassed,
        Self::TickCountedTwice,
        Self::NormWithoutAll,
    ];
}

/// Whether the mistake `asked` was chosen. Always `false` without the `testing` feature.
pub const fn planted(chosen: Option<Defect>, asked: Defect) -> bool {
    match chosen {
        Some(chosen) => cfg!(feature = "testing") && chosen as u8 == asked as u8,
        None => false,
    }
}
