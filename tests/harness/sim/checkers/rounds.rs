//! Rounds of a clock: a replay, in one place, of what the coordinator has closed and what servers made of it.
//!
//! - All servers hear the same of a round, and its workers are enough and have come.
//! - A server makes the gradient of a round of the workers that closed it, with all whose gradients it has acknowledged, and applies it once,
//!   after the norm is known if it is clipped.
//! - A value is that of its version, to the bit, and has all rounds that its reader knows of.
//! - A worker that goes on is in the round that it is told, and not too far ahead.

use std::collections::{BTreeMap, BTreeSet};

use gradlane_core::error::Result;
use gradlane_core::reduce::clip_factor;
use gradlane_core::types::{Answer, Closing, Fate, Half, PartId, WorkerId, WorkerSet};

use super::{Checker, UsedPart, Witness};
use crate::sim::oracle;
use crate::sim::workload::{CLIP, Clocked, Plan};
use crate::sim::world::Who;

/// What was seen of the clock.
#[derive(Debug)]
pub(super) struct Rounds {
    clocked: Option<Clocked>,
    /// The process of each rank that has ticked.
    ranks: BTreeMap<WorkerId, Who>,
    /// The rounds that each worker has finished, as far as it has said so.
    ticked: BTreeMap<Who, u64>,
    leaving: BTreeSet<Who>,
    closed: BTreeMap<u64, WorkerSet>,
    norms: BTreeMap<u64, f64>,
    parts: BTreeMap<PartId, Part>,
}

#[derive(Default, Debug)]
struct Part {
    elements: u64,
    /// The ranks whose gradient of a round a server has acknowledged.
    kept: BTreeSet<(u64, WorkerId)>,
    /// The sum of the gradients of a round, in each element.
    sums: BTreeMap<u64, f32>,
    /// Those that count for the norm.
    clipped: BTreeSet<u64>,
    /// The rounds that were applied, and the value then. The first value is 0.
    applied: Vec<(u64, f32)>,
}

impl Rounds {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            clocked: plan.clocked.clone(),
            ranks: BTreeMap::new(),
            ticked: BTreeMap::new(),
            leaving: BTreeSet::new(),
            closed: BTreeMap::new(),
            norms: BTreeMap::new(),
            parts: BTreeMap::new(),
        }
    }

    fn clips(&self) -> bool {
        self.clocked.as_ref().is_some_and(|clocked| clocked.clips)
    }

    /// What the coordinator says of a round for the first time.
    fn check_closing(&self, Closing { round, half, .. }: &Closing) -> std::result::Result<(), String> {
        let clocked = self.clocked.as_ref().ok_or("there is no clock")?;
        let is_settled = !self.clips() || *round == 1 || self.norms.contains_key(&(round - 1));
        match half {
            Half::Workers { clips, .. } if *clips != self.clips() => Err(format!("it clips: {clips}")),
            Half::Workers { .. } if !is_settled => Err("the norm of the round before is not known".to_owned()),
            Half::Workers { workers, .. } => {
                if let Some(absent) = workers.iter().find(|rank| !self.has_come(*rank, *round)) {
                    return Err(format!("{absent} has not ticked"));
                }
                let left = self.ticked.keys().filter(|who| !self.leaving.contains(who)).count();
                let due = clocked.quorum().map_or(left, |k| k.min(left));
                let few = workers.len() < due;
                if few { Err(format!("{} workers close it, of {due}", workers.len())) } else { Ok(()) }
            }
            Half::Norm(norm) => {
                let clipped = self.parts.values().filter(|part| part.clipped.contains(round));
                // Whole numbers, whose squares and their sums are exact in any order.
                let squares = clipped.map(|part| part.elements as f64 * f64::from(part.sums[round]).powi(2));
                let due = squares.sum::<f64>().sqrt();
                if *norm == due { Ok(()) } else { Err(format!("the norm is {norm}, and not {due}")) }
            }
        }
    }

    /// Whether a rank has finished this round, by its own word.
    fn has_come(&self, rank: WorkerId, round: u64) -> bool {
        let ticked = self.ranks.get(&rank).and_then(|who| self.ticked.get(who));
        ticked.is_some_and(|ticked| *ticked >= round)
    }

    /// Checks a part of a parameter that a worker reads which knows of so many rounds.
    pub(super) fn check_part(&self, clock_at: u64, read: &UsedPart) -> std::result::Result<(), String> {
        let Some(value) = &read.value else { return Ok(()) };
        let none = Part::default();
        let part = self.parts.get(&read.part).unwrap_or(&none);
        let before = part.applied.len().min(read.version.0 as usize - 1);
        let due = part.applied[..before].last().map_or(0.0, |(_, value)| *value);
        if let Some(other) = value.iter().find(|element| **element != f64::from(due)) {
            return Err(format!("the value is {other}, and not {due}"));
        }
        let lacking = part.kept.iter().find(|(round, rank)| {
            let counts = self.closed.get(round).is_some_and(|workers| workers.contains(*rank));
            *round <= clock_at && counts && !part.applied[..before].iter().any(|(of, _)| of == round)
        });
        lacking.map_or(Ok(()), |(round, _)| Err(format!("it lacks round {round}, and its reader knows of {clock_at}")))
    }

    fn check_merge(&self, id: PartId, round: u64, gradients: &[WorkerId]) -> std::result::Result<(), String> {
        let workers = self.closed.get(&round).ok_or("it is not closed")?;
        if let Some(late) = gradients.iter().find(|rank| !workers.contains(**rank)) {
            return Err(format!("{late} was not in it"));
        }
        let part = self.parts.get(&id).ok_or("it is not known")?;
        if part.sums.contains_key(&round) {
            return Err("it was merged before".to_owned());
        }
        let lost = workers.iter().find(|rank| part.kept.contains(&(round, *rank)) && !gradients.contains(rank));
        lost.map_or(Ok(()), |rank| Err(format!("the gradient of {rank} is lost")))
    }

    fn check_apply(&self, id: PartId, round: u64, factor: f64) -> std::result::Result<(), String> {
        let part = &self.parts[&id];
        if part.applied.last().is_some_and(|(last, _)| *last >= round) {
            return Err("it was applied before".to_owned());
        }
        match self.norms.get(&round) {
            None if self.clips() => Err("its norm is not known".to_owned()),
            Some(norm) if factor != 1.0 && factor != clip_factor(CLIP, *norm) => {
                Err(format!("the norm is {norm}, and the factor {factor}"))
            }
            None | Some(_) => Ok(()),
        }
    }
}

impl Witness {
    /// A worker finishes a round of the clock, or leaves it.
    pub(in crate::sim) fn ticks(&mut self, who: Who, rank: WorkerId, round: u64, leaves: bool) {
        self.rounds.ranks.insert(rank, who);
        self.rounds.ticked.insert(who, round);
        if leaves {
            self.rounds.leaving.insert(who);
        }
    }

    /// A tick was answered.
    pub(in crate::sim) fn ticked(&mut self, who: Who, outcome: &Result<Answer>) {
        let rounds = &mut self.rounds;
        let ticked = match outcome {
            Ok(Answer::Ticked(ticked)) => *ticked,
            Ok(Answer::Store(_) | Answer::Checkpointed(_)) => unreachable!("a member compares answers with requests"),
            Err(error) => {
                let (error, is_explained) = (error.clone(), self.is_of_the_end(who, error));
                if !is_explained {
                    self.report(Checker::Clock, format!("{who}: a tick fails: {error}"));
                }
                return;
            }
        };
        if rounds.leaving.contains(&who) {
            return;
        }
        let Some(clocked) = &rounds.clocked else { return };
        let round = rounds.ticked[&who];
        let is_me = |rank: WorkerId| rounds.ranks.get(&rank) == Some(&who);
        let wrong = match (clocked.mode.rounds(), clocked.bound()) {
            (Some(_), _) => {
                let was_in = rounds.closed.get(&round).is_some_and(|workers| workers.iter().any(is_me));
                let is_right = rounds.closed.contains_key(&ticked.round) && was_in == (ticked.fate == Fate::Accepted);
                (!is_right).then(|| format!("{who} ticks round {round} and hears {ticked:?}, was in: {was_in}"))
            }
            (None, Some(bound)) => {
                let others = rounds.ticked.iter().filter(|(other, _)| !rounds.leaving.contains(other));
                let slowest = others.map(|(_, finished)| *finished).min().unwrap_or(round);
                let is_ahead = round > slowest + bound;
                is_ahead.then(|| format!("{who} goes on after round {round}, and the slowest is at {slowest}"))
            }
            (None, None) => None,
        };
        rounds.ticked.insert(who, ticked.round);
        if let Some(wrong) = wrong {
            self.report(Checker::Clock, wrong);
        }
    }

    /// A server has answered a use of a part of so many bytes; of a gradient that it keeps, for this round.
    pub(in crate::sim) fn knows_part(&mut self, id: PartId, bytes: u64, rank: WorkerId, round: Option<u64>) {
        let part = self.rounds.parts.entry(id).or_default();
        part.elements = bytes / 4;
        part.kept.extend(round.map(|round| (round, rank)));
    }

    /// The coordinator tells a server how a round is closed.
    pub(super) fn closes(&mut self, closing: &Closing) {
        let rounds = &self.rounds;
        let (round, known) = match &closing.half {
            Half::Workers { workers, .. } => {
                (closing.round, rounds.closed.get(&closing.round).map(|known| known == workers))
            }
            Half::Norm(norm) => (closing.round, rounds.norms.get(&closing.round).map(|known| known == norm)),
        };
        let wrong = match known {
            Some(true) => None,
            Some(false) => Some("it was said otherwise before".to_owned()),
            None => rounds.check_closing(closing).err(),
        };
        if let Some(why) = wrong {
            return self.report(Checker::Clock, format!("round {round} is closed by {:?}: {why}", closing.half));
        }
        match &closing.half {
            Half::Workers { workers, .. } => drop(self.rounds.closed.insert(round, workers.clone())),
            Half::Norm(norm) => drop(self.rounds.norms.insert(round, *norm)),
        }
    }

    /// A server makes the gradient of a round.
    pub(in crate::sim) fn merges(&mut self, server: Who, id: PartId, round: u64, gradients: &[WorkerId], clips: bool) {
        if let Err(why) = self.rounds.check_merge(id, round, gradients) {
            let text = format!("{server}: part {id}: round {round} of {gradients:?}: {why}");
            return self.report(Checker::Clock, text);
        }
        let of_rank = |rank: &WorkerId| oracle::gradient(self.rounds.ranks[rank]) as f32;
        let sum: f32 = gradients.iter().map(of_rank).sum();
        let part = self.rounds.parts.get_mut(&id).expect("checked");
        if clips {
            part.clipped.insert(round);
        }
        part.sums.insert(round, sum);
    }

    /// A server applies the gradient of a round.
    pub(in crate::sim) fn applies(&mut self, server: Who, id: PartId, round: u64, factor: f64) {
        if let Err(why) = self.rounds.check_apply(id, round, factor) {
            return self.report(Checker::Clock, format!("{server}: part {id}: round {round} is applied: {why}"));
        }
        let part = self.rounds.parts.get_mut(&id).expect("it was merged");
        let before = part.applied.last().map_or(0.0, |(_, value)| *value);
        // As the rule does it: the learning rate is 1.
        let value = before - part.sums[&round] * factor as f32;
        part.applied.push((round, value));
    }
}
