//! One round of one part: what was claimed of it, who was counted, in which order bodies are added, who waits for the sum.
//!
//! Which rounds may be alive, what an exchange is told and what memory costs in total is decided by the parent module.

use std::collections::BTreeMap;

use gradlane_core::error::{Claim, Error};
use gradlane_core::types::{DType, Defect, ExchangeId, Op, PartId, Time, WorkerId, planted};
use gradlane_core::wire::Header;

use super::ledger::Ledger;
use super::{AggregatorConfig, SlotId};

/// A round in its slot.
///
/// ```text
///              first push            every sender counted              every worker reached the next round
///   (absent) ─────────────► Open ───────────────────────────► Published ────────────────────────────────► (absent)
///                            │                                                                                ▲
///                            │ claims differ, step timeout, no divisor                                        │
///                            └────────────────────────────────► Failed ───────────────────────────────────────┘
///   any ─── the tensor is forgotten, the job ends or aborts, other workers ───► (absent)
/// ```
#[derive(Debug)]
pub(super) enum RoundState {
    /// Contributions are missing.
    Open(Open),
    /// The sum exists and never changes.
    Published(Published),
    /// There will be no sum; everybody who asks gets this error.
    Failed(Error),
}

/// What a published sum was made of.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Published {
    /// What the sum was divided by.
    pub(super) divisor: f64,
    /// How many bodies are in it.
    pub(super) contributors: u32,
}

/// A round and what all its states share.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) id: SlotId,
    /// What the first header said of the round.
    pub(super) spec: Spec,
    /// Whose contribution was counted or, for those who send none and in a failed round, who has come.
    pub(super) arrived: Ledger,
    pub(super) state: RoundState,
    /// Bytes of memory accounted to it.
    pub(super) booked: u64,
}

impl Slot {
    pub(super) fn new(id: SlotId, spec: Spec) -> Self {
        Self { id, spec, arrived: Ledger::default(), state: RoundState::Open(Open::default()), booked: 0 }
    }

    /// The senders among `workers` whose contribution is missing.
    pub(super) fn missing(&self, workers: &[WorkerId]) -> Vec<WorkerId> {
        let is_missing = |worker: &WorkerId| self.spec.op.sends_body(*worker) && !self.arrived.contains(*worker);
        workers.iter().copied().filter(is_missing).collect()
    }

    /// Whether an open round can be published: every sender was counted.
    pub(super) fn complete(&self, workers: &[WorkerId], config: &AggregatorConfig) -> bool {
        let RoundState::Open(open) = &self.state else { return false };
        let missing = match self.spec.op {
            Op::Broadcast { root } => usize::from(!self.arrived.contains(root)),
            Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => {
                workers.len().saturating_sub(self.arrived.len())
            }
        };
        let tolerated = usize::from(planted(config.defect, Defect::PublishBeforeAll));
        open.folded > 0 && missing <= tolerated
    }

    /// What the sum is divided by; an error where that is no number one can divide by.
    pub(super) fn divisor(&self, open: &Open, config: &AggregatorConfig) -> Result<f64, Error> {
        match self.spec.op {
            Op::Sum | Op::Min | Op::Max | Op::Broadcast { .. } => Ok(1.0),
            Op::Mean => Ok(f64::from(open.folded)),
            Op::WeightedMean if planted(config.defect, Defect::DivisorWrong) => Ok(f64::from(open.folded)),
            Op::WeightedMean => {
                // Added by rank and not by arrival, so that equal weights give the same bits in every run.
                let total: f64 = open.weights.values().sum();
                if total > 0.0 && total.is_finite() {
                    return Ok(total);
                }
                Err(Error::InvalidArgument {
                    what: format!("the weights of tensor {}, {} add up to {total}", self.id.part.key, self.id.round),
                    hint: "give at least one worker a weight above zero".to_owned(),
                })
            }
        }
    }

    /// Bytes that the round may occupy in its present state.
    ///
    /// An open round owns its accumulator and room for the bodies that it cannot do without: one, or in rank order one for each sender
    /// not yet added, because there a late rank may occupy its room until all earlier ones came. With less, rounds that wait for each
    /// other's memory could stand still for ever; with this, staging is freed by adding alone and never by somebody's pull.
    pub(super) fn needs(&self, workers: &[WorkerId], config: &AggregatorConfig) -> u64 {
        match &self.state {
            RoundState::Open(open) => {
                let senders = match self.spec.op {
                    Op::Broadcast { .. } => 1,
                    Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => workers.len(),
                };
                let owed = if config.deterministic { senders.saturating_sub(open.folded as usize) } else { 1 };
                let bodies = owed.max(open.landing.len() + open.unfolded.len());
                self.spec.accumulator_bytes() + self.spec.bytes * bodies as u64
            }
            RoundState::Published(_) => self.spec.bytes,
            RoundState::Failed(_) => 0,
        }
    }
}

/// What an open round knows.
#[derive(Debug, Default)]
pub(super) struct Open {
    /// When the first contribution was counted.
    pub(super) since: Option<Time>,
    /// Bodies on their way, the latest exchange of each worker.
    pub(super) landing: BTreeMap<WorkerId, ExchangeId>,
    /// Who gets the sum, the latest exchange of each counted worker.
    pub(super) waiters: BTreeMap<WorkerId, ExchangeId>,
    /// Bodies in memory whose turn has not come.
    pub(super) unfolded: BTreeMap<WorkerId, Contribution>,
    /// Bodies given to the accumulator.
    pub(super) folded: u32,
    /// Weight of each counted body.
    pub(super) weights: BTreeMap<WorkerId, f64>,
}

/// A body in memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Contribution {
    /// The exchange that brought it.
    pub(super) exchange: ExchangeId,
    /// Its factor in a weighted mean.
    pub(super) weight: f64,
}

impl Open {
    /// Takes the body that is to be added next: any, or in rank order that of the lowest rank not yet added.
    pub(super) fn take_turn(&mut self, op: Op, workers: &[WorkerId], deterministic: bool) -> Option<Contribution> {
        let contribution = if deterministic {
            let turn = match op {
                Op::Broadcast { root } => root,
                Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => *workers.get(self.folded as usize)?,
            };
            self.unfolded.remove(&turn)?
        } else {
            self.unfolded.pop_first()?.1
        };
        self.folded += 1;
        Some(contribution)
    }
}

/// What a header claims of a round; equal on all workers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Spec {
    pub(super) said_by: WorkerId,
    pub(super) dtype: DType,
    pub(super) bytes: u64,
    pub(super) op: Op,
}

impl Spec {
    pub(super) fn of(worker: WorkerId, header: &Header) -> Self {
        Self { said_by: worker, dtype: header.dtype, bytes: header.bytes, op: header.op }
    }

    /// What `second` says otherwise of `part`, if anything.
    pub(super) fn disagreement(&self, second: &Self, part: PartId) -> Option<Error> {
        let (field, mine, theirs) = if self.dtype != second.dtype {
            ("dtype", self.dtype.to_string(), second.dtype.to_string())
        } else if self.bytes != second.bytes {
            ("length", format!("{} bytes", self.bytes), format!("{} bytes", second.bytes))
        } else if self.op != second.op {
            ("op", self.op.to_string(), second.op.to_string())
        } else {
            return None;
        };
        Some(Error::Mismatch {
            tensor: part.key.to_string(),
            field: field.to_owned(),
            first: Claim { worker: self.said_by, value: mine },
            second: Claim { worker: second.said_by, value: theirs },
        })
    }

    /// Bytes of the accumulator: that of the half-size floats has twice the size of a body.
    fn accumulator_bytes(&self) -> u64 {
        self.bytes / self.dtype.bytes() * self.dtype.accumulator().bytes()
    }
}
