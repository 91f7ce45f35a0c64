//! Admission: which processes may open exchanges, and which workers exchange a part. Derived from the view alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{
    DType, Defect, Epoch, ExchangeId, Incarnation, Machines, NodeId, PartId, Participants, Phase, Round, View,
    WorkerId, WorkerSet, planted,
};
use gradlane_core::wire::{About, limits};

use super::command::Command;

/// A view's epoch, phase and workers.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) epoch: Epoch,
    /// The first epoch whose rounds go on in this one.
    rounds_since: Epoch,
    pub(super) phase: Phase,
    /// All of them.
    pub(super) workers: Arc<WorkerSet>,
    /// Which worker exchanges which part for its machine.
    pub(super) machines: Machines,
    /// The workers that do not contribute from the first round on, and the round in which each begins.
    joiners: BTreeMap<WorkerId, Round>,
    /// The callers of all parts, if every worker comes alone.
    everybody: Callers,
    lives: BTreeMap<NodeId, (WorkerId, Incarnation)>,
    /// Whether sums may cross a network.
    pub(super) crosses_network: bool,
    /// Whether servers were lost, whose parts come to others in the middle of their rounds.
    pub(super) has_lost_servers: bool,
}

/// An admitted worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sender {
    /// Its process.
    pub(super) node: NodeId,
    /// Its rank in the present view.
    pub(super) worker: WorkerId,
}

/// The workers that exchange a part: of each machine one, and every worker that comes alone.
#[derive(Clone, Debug)]
pub(super) struct Callers {
    /// By rank.
    pub(super) ranks: Arc<[WorkerId]>,
    /// The same workers.
    pub(super) set: Arc<WorkerSet>,
}

/// Rejects an exchange. What it was `asked` about is said under the epoch of `ours`, if there is a membership.
pub(super) fn rejection(ours: Option<&Membership>, exchange: ExchangeId, asked: About, error: Error) -> Command {
    let epoch = ours.map_or(asked.epoch, |ours| ours.epoch);
    Command::Reject { exchange, about: About { epoch, ..asked }, error }
}

/// What a new membership means for the rounds that are alive.
pub(super) enum Succession {
    /// The same processes work in the same ranks: all rounds go on.
    Same,
    /// Workers are missing and nobody is new: rounds go on with the survivors.
    Fewer,
    /// All rounds end, and their waiters get this error.
    End(Error),
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
        let everybody = Callers::of(workers);
        let joiners = view.workers().filter(|member| member.first_round > Round(0));
        let joiners = joiners.map(|member| (WorkerId(member.index), member.first_round)).collect();
        let workers = Arc::clone(&everybody.set);
        Self {
            epoch: view.epoch,
            rounds_since: view.epoch,
            phase: view.phase.clone(),
            workers,
            machines: Machines::of(view),
            joiners,
            everybody,
            lives,
            crosses_network: !view.is_on_one_machine(),
            has_lost_servers: view.has_lost_servers(),
        }
    }

    /// As `of`, for a view that follows the one of `before`.
    pub(super) fn following(view: &View, before: Option<&Self>) -> Self {
        let mut next = Self::of(view);
        match (before, next.succession(before)) {
            (Some(before), Succession::Same | Succession::Fewer) => next.rounds_since = before.rounds_since,
            (Some(_), Succession::End(_)) => {}
            // A server that missed the first views has ended no rounds of theirs.
            (None, _) => next.rounds_since = Epoch { number: 0, ..view.epoch },
        }
        next
    }

    /// The rank of `node`, if this membership lets it open an exchange in `epoch`.
    ///
    /// The end of the job is checked first, because its cause says more than "fenced" to a worker that has not heard of the last epoch.
    pub(super) fn admit(&self, node: NodeId, epoch: Epoch, defect: Option<Defect>) -> Result<WorkerId> {
        let worker = self.lives.get(&node).map(|(worker, _)| *worker);
        if let Some(worker) = worker {
            match &self.phase {
                Phase::Running => {}
                Phase::Forming => return Err(not_yet("members of the job are missing".to_owned())),
                Phase::Ended | Phase::FormsAgain => return Err(ended()),
                Phase::Aborted(cause) | Phase::Restores(cause) => return Err(self.told(worker, cause)),
            }
        }
        if epoch < self.epoch && !planted(defect, Defect::StaleEpochAccepted) {
            // A worker of this view has not heard yet that others were lost. It sends again when it has.
            let is_behind = worker.is_some() && epoch >= self.rounds_since && !planted(defect, Defect::SurvivorFenced);
            let behind = || not_yet(format!("it has gone on to {}", self.epoch));
            return Err(if is_behind { behind() } else { Error::Fenced { current: self.epoch } });
        }
        if epoch > self.epoch {
            return Err(not_yet(format!("it has not heard of {epoch} yet")));
        }
        worker.ok_or_else(|| Error::Auth {
            problem: format!("node {node} is no worker of {}", self.epoch),
            hint: "only members of the job may push; check which join string the process uses".to_owned(),
        })
    }

    /// The process of a worker.
    pub(super) fn node(&self, worker: WorkerId) -> Option<NodeId> {
        self.lives.iter().find(|(_, (of, _))| *of == worker).map(|(node, _)| *node)
    }

    /// The workers and their processes, by rank.
    pub(super) fn nodes(&self) -> Arc<[(WorkerId, NodeId)]> {
        let by_rank: BTreeMap<WorkerId, NodeId> =
            self.lives.iter().map(|(node, (worker, _))| (*worker, *node)).collect();
        by_rank.into_iter().collect()
    }

    /// Whether `node` is the process of a worker.
    pub(super) fn has(&self, node: NodeId) -> bool {
        self.lives.contains_key(&node)
    }

    /// The workers that exchange a part of these participants. Only the contributions of all workers of a machine come together.
    pub(super) fn callers(&self, part: PartId, dtype: DType, participants: &Participants) -> Callers {
        if participants.members().is_some() {
            return Callers::of(participants.among(&self.workers).iter().collect());
        }
        if participants.receiver().is_some() {
            return self.everybody.clone();
        }
        let all_alone = self.machines.len() == self.everybody.ranks.len();
        if all_alone { self.everybody.clone() } else { Callers::of(self.machines.owners(part, dtype)) }
    }

    /// Those of `callers` from which `round` is due: at least one worker that contributes with them has begun by then.
    pub(super) fn due_callers(
        &self,
        callers: &Callers,
        dtype: DType,
        participants: &Participants,
        round: Round,
    ) -> Callers {
        if self.joiners.values().all(|first| *first <= round) {
            return callers.clone();
        }
        let is_due = |caller: &WorkerId| {
            self.partners(dtype, participants, *caller).iter().any(|worker| self.is_due(*worker, round))
        };
        Callers::of(callers.ranks.iter().copied().filter(is_due).collect())
    }

    /// The workers whose contributions come with a caller's, itself among them.
    pub(super) fn partners(&self, dtype: DType, participants: &Participants, caller: WorkerId) -> Vec<WorkerId> {
        let partners = self.machines.partners(dtype, caller).filter(|_| participants.is_everybody());
        partners.map_or_else(|| vec![caller], <[_]>::to_vec)
    }

    /// The participants that contribute to `round`, by themselves or with their machine.
    pub(super) fn due_workers(&self, participants: &Participants, round: Round) -> Arc<WorkerSet> {
        let members = participants.among(&self.workers);
        if self.joiners.values().all(|first| *first <= round) {
            return members;
        }
        Arc::new(members.iter().filter(|worker| self.is_due(*worker, round)).collect())
    }

    /// The first round that any worker contributes to.
    pub(super) fn first_round(&self) -> Round {
        let first = |worker| self.joiners.get(&worker).copied().unwrap_or_default();
        self.workers.iter().map(first).min().unwrap_or_default()
    }

    fn is_due(&self, worker: WorkerId, round: Round) -> bool {
        self.joiners.get(&worker).is_none_or(|first| *first <= round)
    }

    /// The form in which `worker` gets `error`: a worker that was declared dead has not lost a peer, nor has its job ended. It is fenced.
    pub(super) fn told(&self, worker: WorkerId, error: &Error) -> Error {
        let is_itself = matches!(error, Error::PeerLost { member, .. } if *member == worker.to_string());
        if is_itself || !self.workers.contains(worker) { Error::Fenced { current: self.epoch } } else { error.clone() }
    }

    /// What this membership means for the rounds that were made under the one `before`.
    pub(super) fn succession(&self, before: Option<&Self>) -> Succession {
        match &self.phase {
            Phase::Aborted(cause) | Phase::Restores(cause) => return Succession::End(cause.clone()),
            Phase::Ended | Phase::FormsAgain => return Succession::End(ended()),
            Phase::Forming | Phase::Running => {}
        }
        match before {
            Some(before) if before.lives == self.lives => Succession::Same,
            Some(before) if self.lives.iter().all(|(node, life)| before.lives.get(node) == Some(life)) => {
                Succession::Fewer
            }
            Some(_) | None => Succession::End(Error::Unavailable {
                what: "the round".to_owned(),
                cause: format!(
                    "the workers of the job changed with {}, so the server gave up the rounds of the former workers",
                    self.epoch
                ),
            }),
        }
    }
}

impl Callers {
    fn of(ranks: Vec<WorkerId>) -> Self {
        Self { set: Arc::new(ranks.iter().copied().collect()), ranks: ranks.into() }
    }
}

/// The answer of a server that cannot take part yet.
pub(super) fn not_yet(cause: String) -> Error {
    Error::Unavailable { what: "the server".to_owned(), cause }
}

pub(super) fn ended() -> Error {
    let (what, hint) = ("the job has ended".to_owned(), "submit before shutdown".to_owned());
    Error::FailedPrecondition { what, hint }
}
