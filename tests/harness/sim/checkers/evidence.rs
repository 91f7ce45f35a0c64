//! Which faults concerned whom, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::types::{TensorKey, Time};
use gradlane_core::wire::Target;

use super::Witness;
use crate::sim::workload::timing;
use crate::sim::world::{Address, Who};

/// What a fault concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::sim) enum Concern {
    /// A process, which could not act or be reached.
    Process(Who),
    /// The way between two processes, in one direction or both.
    Path(Who, Who),
}

/// Everything that went wrong so far.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// From, until, what.
    disturbances: Vec<(Time, Time, Concern)>,
    /// From, until, who stood still.
    pauses: Vec<(Time, Time, Who)>,
    /// From, until: the coordinator was away, and nobody can have had an answer of it.
    away: Vec<(Time, Time)>,
    killed: BTreeMap<Address, Time>,
    /// Which worker was refused memory for which part, by the part's first tensor.
    refused: BTreeSet<(Who, TensorKey)>,
    /// Answers that a server believes to be received, and that did not come: to whom, of which part's first tensor and which round.
    lost_answers: BTreeSet<(Who, TensorKey, u64)>,
    /// Contributions that were changed on their way, by tensor and round.
    damaged: BTreeSet<(TensorKey, u64)>,
    /// Answers that were lies: to whom, of which part's first tensor and which round.
    lies: BTreeSet<(Who, TensorKey, u64)>,
    /// Contributions on which some of a sum landed that never came whole.
    overwritten: BTreeSet<(Who, TensorKey, u64)>,
    /// Whether a server was asked to stop.
    pub(super) drains: bool,
}

impl Witness {
    /// What this concerns could not act or be heard for a while.
    pub(in crate::sim) fn disturbed(&mut self, concern: Concern, from: Time, until: Time) {
        self.evidence.disturbances.push((from, until, concern));
    }

    /// A process stands still for a while.
    pub(in crate::sim) fn paused(&mut self, who: Who, from: Time, until: Time) {
        self.evidence.pauses.push((from, until, who));
    }

    /// The coordinator is away for a while.
    pub(in crate::sim) fn coordinator_is_away(&mut self, from: Time, until: Time) {
        self.evidence.away.push((from, until));
    }

    /// A life of a process ended.
    pub(in crate::sim) fn killed(&mut self, address: Address) {
        let now = self.world;
        self.evidence.killed.insert(address, now);
        self.disturbed(Concern::Process(address.who), now, Time(u64::MAX));
    }

    /// A process runs again, and is soon reached.
    pub(super) fn runs_again(&mut self, who: Who) {
        let reached = self.world + timing::DEAD;
        for (_, until, concern) in &mut self.evidence.disturbances {
            if *concern == Concern::Process(who) {
                *until = reached.min(*until);
            }
        }
    }

    /// A server without memory refused a worker a part, whose first tensor this is.
    pub(in crate::sim) fn refused(&mut self, who: Who, part: TensorKey) {
        self.evidence.refused.insert((who, part));
    }

    /// A server will believe that a worker has all of an answer, which does not come.
    pub(in crate::sim) fn loses_answer(&mut self, of: Who, part: TensorKey, round: u64) {
        self.evidence.lost_answers.insert((of, part, round));
    }

    /// Some of a sum landed on the contribution of a worker, and no more of it came.
    pub(in crate::sim) fn overwrites(&mut self, of: Who, part: TensorKey, round: u64) {
        self.evidence.overwritten.insert((of, part, round));
    }

    /// A server was asked to stop.
    pub(in crate::sim) fn drains(&mut self) {
        self.evidence.drains = true;
    }

    /// A server lies to a worker that asked for this.
    pub(in crate::sim) fn lied(&mut self, to: Who, Target { part, round, .. }: Target) {
        self.evidence.lies.insert((to, part.key, round.0));
    }

    /// A contribution to a round of a tensor is changed on its way.
    pub(in crate::sim) fn damaged(&mut self, tensor: TensorKey, round: u64) {
        self.evidence.damaged.insert((tensor, round));
    }
}

impl Evidence {
    /// Whether the coordinator is away at `now`, or was just before, for so long that every worker has noticed it, and this was asked
    /// before it was back.
    pub(super) fn is_away(&self, asked: Time, now: Time) -> bool {
        let noticed = timing::SUSPECT * 2;
        let concerns = |(from, until): &&(Time, Time)| *from + noticed <= *until && asked < *until;
        self.away.iter().filter(concerns).any(|(from, until)| *from + noticed <= now && now < *until + timing::DEAD)
    }

    /// For how much of this time the two processes could not reach each other, because of either or of the way between them. Faults
    /// that overlap count each.
    pub(super) fn apart(&self, one: Who, other: Who, from: Time, until: Time) -> Duration {
        let concerns = |concern: Concern| match concern {
            Concern::Process(who) => who == one || who == other,
            Concern::Path(a, b) => (a, b) == (one, other) || (b, a) == (one, other),
        };
        let of = self.disturbances.iter().filter(|(_, _, concern)| concerns(*concern));
        of.map(|(start, end, _)| overlap(*start, *end, from, until)).sum()
    }

    /// For how much of this time a process stood still.
    pub(super) fn still(&self, who: Who, from: Time, until: Time) -> Duration {
        let of = self.pauses.iter().filter(|(_, _, paused)| *paused == who);
        of.map(|(start, end, _)| overlap(*start, *end, from, until)).sum()
    }

    /// Whether this life was killed.
    pub(super) fn is_killed(&self, address: Address) -> bool {
        self.killed.contains_key(&address)
    }

    /// Whether the coordinator was killed.
    pub(super) fn coordinator_killed(&self) -> bool {
        self.killed.keys().any(|address| address.who == Who::Coordinator)
    }

    /// Whether a server without memory refused this worker, or any, the part of these tensors.
    pub(super) fn is_refused(&self, who: Option<Who>, tensors: &BTreeSet<TensorKey>) -> bool {
        self.refused.iter().any(|(of, part)| who.is_none_or(|who| who == *of) && tensors.contains(part))
    }

    /// Whether a server without memory refused this worker any part.
    pub(super) fn is_refused_any(&self, who: Who) -> bool {
        self.refused.iter().any(|(of, _)| *of == who)
    }

    /// Whether a server freed a sum that this worker did not get: it believed that the worker had it, and was without memory.
    pub(super) fn is_freed_unseen(&self, who: Who, tensors: &BTreeSet<TensorKey>, round: u64) -> bool {
        !self.refused.is_empty() && tensors.iter().any(|tensor| self.lost_answers.contains(&(who, *tensor, round)))
    }

    /// Whether some of a sum landed on the contribution of a worker to this round of one of these tensors.
    pub(super) fn is_overwritten(&self, of: Who, tensors: &BTreeSet<TensorKey>, round: u64) -> bool {
        tensors.iter().any(|tensor| self.overwritten.contains(&(of, *tensor, round)))
    }

    /// Whether a server lied to a worker about one of these tensors, in this round or in any.
    pub(super) fn is_lied_to(&self, who: Who, tensors: &BTreeSet<TensorKey>, round: Option<u64>) -> bool {
        let is_it = |lie: &(Who, TensorKey, u64)| {
            lie.0 == who && tensors.contains(&lie.1) && round.is_none_or(|round| round == lie.2)
        };
        self.lies.iter().any(is_it)
    }

    /// Whether a contribution to this round of one of these tensors was changed on its way.
    pub(super) fn is_damaged(&self, tensors: &BTreeSet<TensorKey>, round: u64) -> bool {
        tensors.iter().any(|tensor| self.damaged.contains(&(*tensor, round)))
    }
}

fn overlap(start: Time, end: Time, from: Time, until: Time) -> Duration {
    end.min(until).since(start.max(from))
}
