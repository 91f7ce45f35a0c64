//! One round of one part: its claim, the contributions that have begun, the workers that were counted, the waiters.
//!
//! The other files decide which rounds may be alive, how exchanges are answered, and how much memory there is.

use std::collections::BTreeMap;
use std::sync::Arc;

use gradlane_core::codec;
use gradlane_core::error::Error;
use gradlane_core::types::{
    CodecSpec, Coming, DType, Declared, Defect, ExchangeId, Extent, Machines, Op, PartId, Participants, TensorKind,
    Time, WorkerId, WorkerSet, planted, total_weight,
};
use gradlane_core::wire::{Body, Hold};

use super::lateness::Lateness;
use crate::node::command::{Order, SlotId, SumSpec, Upload};
use crate::node::config::NodeConfig;
use crate::node::membership::Callers;

/// A round in its slot.
///
/// ```text
///              first push          every caller began        every caller counted         every worker reached the next round
///   (absent) ─────────────► Open ─────────────────► Open ─────────────────────► Published ──────────────────────► (absent)
///                            │                   (flowing)                                                            ▲
///                            │ claims differ, step timeout, no divisor, damage,│
///                            │ a caller gave up                                │                                      │
///                            └─────────────────────────────────────────────────┴───► Failed ──────────────────────────┘
///   Published ─── nobody has read the sum for a step timeout ───► Failed
///   Open ─── nobody was counted, and nobody has sent anything for a step timeout ───► Failed
///   Open ─── the view lost workers ───► Restarted ─── next push ───► Open, with the next attempt
///   Restarted ─── a survivor will not send again, or none has for a step timeout ───► Failed
///   (absent) ─── a worker brings the sum of a lost server ───► Restoring ─── all of it is here ───► Published
///   Restoring ─── it broke off ───► (absent)
///   any ─── the tensor is forgotten, the job ends or aborts, other workers ───► (absent)
/// ```
#[derive(Debug)]
pub(super) enum RoundState {
    /// Contributions are missing, wholly or in part.
    Open(Open),
    /// The sum exists and never changes.
    Published(Published),
    /// There will be no sum; everybody who asks gets this error.
    Failed(Error),
    /// The contributions are void, and the survivors will send again.
    Restarted,
    /// A worker brings the sum, because the server that had it was lost.
    Restoring {
        /// What brings it.
        exchange: ExchangeId,
        /// The sum.
        sum: Published,
    },
}

/// What a published sum is made of.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Published {
    /// What the sum is divided by.
    pub(super) divisor: f64,
    /// The workers that are in it.
    pub(super) contributors: Arc<WorkerSet>,
}

/// A round and what all its states share.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) id: SlotId,
    /// What the first header said of the round.
    pub(super) spec: Spec,
    /// The callers from which it is due.
    pub(super) due: Callers,
    /// How often it restarted.
    pub(super) attempt: u16,
    /// The callers that were counted: all of their contribution is here, or they came to a broadcast and send none. In a failed round all
    /// that came.
    pub(super) arrived: WorkerSet,
    pub(super) state: RoundState,
    /// The callers that have received the whole sum.
    pub(super) served: WorkerSet,
    /// Since when nobody is seen to read the sum.
    pub(super) quiet_since: Option<Time>,
    /// Bytes of memory accounted to it.
    pub(super) booked: u64,
    /// How the sum travels, if a worker brought it.
    pub(super) restored: Option<Body>,
}

impl Slot {
    pub(super) fn new(id: SlotId, spec: Spec, due: Callers, attempt: u16) -> Self {
        let state = RoundState::Open(Open::default());
        let (arrived, served) = (WorkerSet::default(), WorkerSet::default());
        Self { id, spec, due, attempt, arrived, state, served, quiet_since: None, booked: 0, restored: None }
    }

    /// The callers that are due and were not counted.
    pub(super) fn missing(&self) -> Vec<WorkerId> {
        self.due.ranks.iter().copied().filter(|worker| !self.arrived.contains(*worker)).collect()
    }

    /// Whether every caller was counted.
    pub(super) fn all_came(&self) -> bool {
        self.arrived.contains_all(&self.due.set)
    }

    /// Whether every caller has come, with a contribution that is under way or counted: the divisor is known and the sum may flow.
    pub(super) fn all_began(&self, open: &Open) -> bool {
        open.begun.contains_all(&self.due.set)
    }

    /// What the sum of so many workers is divided by; an error where that is no number one can divide by.
    pub(super) fn divisor(&self, open: &Open, workers: usize, config: &NodeConfig) -> Result<f64, Error> {
        let contributors = || f64::from(u32::try_from(workers).unwrap_or(u32::MAX));
        match self.spec.op {
            Op::Sum | Op::Min | Op::Max | Op::Broadcast { .. } => Ok(1.0),
            Op::Mean => Ok(contributors()),
            Op::WeightedMean if planted(config.defect, Defect::DivisorWrong) => Ok(contributors()),
            Op::WeightedMean => {
                // Added by rank and not by arrival, so that equal weights give the same bits in every run.
                let total: f64 = open.uploads.values().map(|uploading| uploading.upload.weight).sum();
                total_weight(self.id.part.key, self.id.round, total)
            }
        }
    }

    /// Bytes that the round may occupy in its present state.
    ///
    /// An open round owns the memory in which its sum grows. In rank order it also owns room for the contributions of all ranks but the
    /// first, because each may be here whole before the ones before it have begun. Contributions that vary in length are collected before
    /// they are added, so it owns room for all of them, each as long as it can be. All of it is booked when the round begins: rounds that
    /// wait for each other's memory half-way could stand still for ever.
    pub(super) fn needs(&self, config: &NodeConfig) -> u64 {
        match &self.state {
            RoundState::Open(_) => {
                let callers = self.due.ranks.len() as u64;
                let staged = match (self.spec.op, order(config)) {
                    _ if self.spec.codec.varies() => callers,
                    (Op::Broadcast { .. }, _) | (_, Order::Arrival) => 0,
                    (_, Order::Rank) => callers.saturating_sub(1),
                };
                let body = self.spec.body().bytes;
                let grows = self.spec.sum(&[], config.block_bytes_max, config).grown_bytes() + body * staged;
                // The scale of a short block makes its body longer than the sum. A published round never needs more than it did.
                grows.max(body)
            }
            RoundState::Published(_) | RoundState::Restoring { .. } => self.spec.body().bytes,
            RoundState::Failed(_) | RoundState::Restarted => 0,
        }
    }
}

/// What an open round knows.
#[derive(Debug, Default)]
pub(super) struct Open {
    /// When the first contribution was counted.
    pub(super) since: Option<Time>,
    /// The contribution of each sender that has begun.
    pub(super) uploads: BTreeMap<WorkerId, Uploading>,
    /// The callers that have come: their contribution has begun, or they send none.
    pub(super) begun: WorkerSet,
    /// The exchanges that get the sum: the latest one of each worker.
    pub(super) listeners: BTreeMap<WorkerId, ExchangeId>,
    /// The least that its contributions have said of the residual of the part's answers.
    pub(super) hold: Option<Hold>,
    /// What all its contributions say of a residual that was given, and which worker said it first.
    pub(super) given: Option<(WorkerId, bool)>,
    /// Workers that withdrew after they had begun to contribute, and why. They will not come again.
    pub(super) withdrawn: BTreeMap<WorkerId, Error>,
    /// Present once every caller has come: the sum flows to the listeners.
    pub(super) flowing: Option<Published>,
    pub(super) lateness: Lateness,
}

/// A contribution that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uploading {
    /// What brings it: its latest exchange, also when that broke off.
    pub(super) exchange: ExchangeId,
    /// What was said of it.
    pub(super) upload: Upload,
    /// When it began.
    pub(super) coming: Coming,
}

/// What a header claims of a round; equal on all workers.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Spec {
    pub(super) said_by: WorkerId,
    pub(super) dtype: DType,
    /// Of the part in its own element type.
    pub(super) bytes: u64,
    /// Of its bodies.
    pub(super) codec: CodecSpec,
    pub(super) op: Op,
    /// Who is due, and who gets the sum.
    pub(super) participants: Participants,
    /// The only caller that sends a body; absent where all do.
    pub(super) sender: Option<WorkerId>,
    /// What the first contribution said of the residual, for which memory is booked.
    pub(super) hold: Hold,
}

impl Spec {
    /// A claim of a part of no bytes, whose bodies are plain.
    pub(super) fn of(
        said_by: WorkerId,
        part: PartId,
        dtype: DType,
        op: Op,
        participants: &Participants,
        machines: &Machines,
    ) -> Self {
        let sender = machines.only_sender(op, participants, part, dtype);
        let participants = participants.clone();
        Self { said_by, dtype, bytes: 0, codec: CodecSpec::PLAIN, op, participants, sender, hold: Hold::No }
    }

    /// Whether `caller` sends a body.
    pub(super) fn sends_body(&self, caller: WorkerId) -> bool {
        self.sender.is_none_or(|sender| sender == caller)
    }

    /// A contribution as it travels, and the sum. If bodies vary in length, the longest that there can be.
    pub(super) fn body(&self) -> Body {
        let bytes = codec::body_bytes(self.codec, self.dtype, self.bytes).max();
        Body { bytes, codec: self.codec, refused: false }
    }

    /// Bytes of the residual of its answers, with the one before if that is held; 0 without error feedback. Only f32 has it.
    pub(super) fn residual_bytes(&self) -> u64 {
        let residuals = if self.hold == Hold::No { 1 } else { 2 };
        if self.codec.has_answer_feedback() { self.bytes * residuals } else { 0 }
    }

    /// The sum that `callers` make of it, in blocks of `block_bytes`.
    pub(super) fn sum(&self, callers: &[WorkerId], block_bytes: u64, config: &NodeConfig) -> SumSpec {
        let senders = callers.iter().copied().filter(|worker| self.sends_body(*worker)).collect();
        let Self { dtype, bytes, codec, op, .. } = *self;
        SumSpec { bytes, dtype, codec, op, senders, order: order(config), block_bytes }
    }

    /// What `second` says otherwise of `part`, if anything.
    pub(super) fn disagreement(&self, second: &Self, part: PartId) -> Option<Error> {
        let difference = self.declared().difference(&second.declared())?;
        Some(difference.into_error(part.key, self.said_by, second.said_by))
    }

    fn declared(&self) -> Declared<'_> {
        let Self { dtype, bytes, codec, op, participants, .. } = self;
        let (extent, kind) = (Extent::Bytes(*bytes), TensorKind::Sum { codec: *codec });
        Declared { name: None, dtype: *dtype, extent, kind, op: Some(*op), participants }
    }
}

fn order(config: &NodeConfig) -> Order {
    let by_rank = config.deterministic && !planted(config.defect, Defect::AddedByArrival);
    if by_rank { Order::Rank } else { Order::Arrival }
}
