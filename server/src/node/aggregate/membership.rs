//! Who may push: the view, as far as the aggregator needs it.

use std::collections::BTreeMap;
use std::sync::Arc;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{
    DType, Defect, Epoch, Incarnation, Machines, NodeId, PartId, Phase, View, WorkerId, planted,
};
use gradlane_core::wire::limits;

/// A view's epoch, phase and workers.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) epoch: Epoch,
    pub(super) phase: Phase,
    /// By rank.
    pub(super) workers: Arc<[WorkerId]>,
    /// Who exchanges which part for whom.
    pub(super) machines: Machines,
    lives: BTreeMap<NodeId, (WorkerId, Incarnation)>,
}

impl Membership {
    pub(super) fn of(view: &View) -> Self {
        // A rank sizes the ledgers. The coordinator numbers densely, so that a rank beyond the limit is nobody's.
        let lives: BTreeMap<NodeId, (WorkerId, Incarnation)> = view
            .workers()
            .filter(|member| (member.index as usize) < limits::MEMBERS_MAX)
            .map(|member| (member.node, (WorkerId(member.index), member.process.incarnation)))
            .collect();
        let mut workers: Vec<WorkerId> = lives.values().map(|(worker, _)| *worker).collect();
        workers.sort_unstable();
        let workers = workers.into();
        Self { epoch: view.epoch, phase: view.phase.clone(), workers, machines: Machines::of(view), lives }
    }

    /// The rank of `node`, if this membership lets it push with a header of `epoch`.
    ///
    /// The end of the job comes first: its cause says more than that the asker has not yet heard of the last epoch.
    pub(super) fn admit(&self, node: NodeId, epoch: Epoch, defect: Option<Defect>) -> Result<WorkerId> {
        let worker = self.lives.get(&node).map(|(worker, _)| *worker);
        if let Some(worker) = worker {
            match &self.phase {
                Phase::Running => {}
                Phase::Forming => return Err(not_yet("members of the job are missing".to_owned())),
                Phase::Ended => return Err(ended()),
                Phase::Aborted(cause) => return Err(self.told(worker, cause)),
            }
        }
        if epoch < self.epoch && !planted(defect, Defect::StaleEpochAccepted) {
            return Err(Error::Fenced { current: self.epoch });
        }
        if epoch > self.epoch {
            return Err(not_yet(format!("it has not heard of {epoch} yet")));
        }
        worker.ok_or_else(|| Error::Auth {
            problem: format!("node {node} is no worker of {}", self.epoch),
            hint: "only members of the job may push; check which join string the process uses".to_owned(),
        })
    }

    /// Who exchanges a part, by rank.
    pub(super) fn callers(&self, part: PartId, dtype: DType) -> Arc<[WorkerId]> {
        // Where everybody comes alone, all parts share one list.
        let all_alone = self.machines.len() == self.workers.len();
        if all_alone { Arc::clone(&self.workers) } else { self.machines.owners(part, dtype).into() }
    }

    /// What `worker` is told of an error of this membership: it has not lost a peer where it was given up itself.
    pub(super) fn told(&self, worker: WorkerId, error: &Error) -> Error {
        match error {
            Error::PeerLost { member, .. } if *member == worker.to_string() => Error::Fenced { current: self.epoch },
            other => other.clone(),
        }
    }

    /// Why all rounds end when this membership follows `before`; `None` if they go on.
    pub(super) fn end_of_rounds(&self, before: Option<&Self>) -> Option<Error> {
        match &self.phase {
            Phase::Aborted(cause) => Some(cause.clone()),
            Phase::Ended => Some(ended()),
            Phase::Forming | Phase::Running if before.is_some_and(|before| before.lives == self.lives) => None,
            Phase::Forming | Phase::Running => Some(Error::Unavailable {
                what: "the round".to_owned(),
                cause: format!("other workers take part since {}", self.epoch),
            }),
        }
    }
}

/// The server is there and cannot take part yet.
pub(super) fn not_yet(cause: String) -> Error {
    Error::Unavailable { what: "the server".to_owned(), cause }
}

fn ended() -> Error {
    let (what, hint) = ("the job has ended".to_owned(), "submit before shutdown".to_owned());
    Error::FailedPrecondition { what, hint }
}
