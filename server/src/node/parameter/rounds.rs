//! Changes by their mode: which are too old, which are kept until their round is closed, and what is done when it is.

use std::collections::BTreeMap;

use gradlane_core::reduce::clip_factor;
use gradlane_core::types::{
    ClockKey, Closing, Defect, Effect, ExchangeId, Fate, Half, Merge, PartId, Squares, TensorKey, Version, WorkerId,
    WorkerSet, planted,
};
use gradlane_core::wire::{Target, Use};

use super::machine::{Closed, Done, Exchange, Parameters, Part, State};
use super::refusals::brought_twice;
use crate::node::budget::Budget;
use crate::node::command::{Change, Command, ValueStep, Work};

impl Parameters {
    /// The coordinator says how a round is closed, perhaps not for the first time.
    pub(in crate::node) fn handle_close(&mut self, closing: &Closing, budget: &mut Budget) {
        let Closing { clock, round, ref half } = *closing;
        let closed = self.closed.entry(clock).or_default();
        match half {
            Half::Workers { workers, clips, samples } if round > closed.round => {
                let clipped = self.merge(clock, round, workers, *clips, budget);
                self.closed.insert(clock, Closed { round, samples: *samples, clipped });
                if *clips {
                    self.say_squares(clock);
                }
                if !clips || planted(self.config.defect, Defect::AppliedBeforeNorm) {
                    self.apply_round(clock, None, budget);
                }
            }
            Half::Norm(norm) if round == closed.round && closed.clipped.is_some() => {
                closed.clipped = None;
                self.apply_round(clock, Some(*norm), budget);
            }
            Half::Workers { .. } | Half::Norm(_) => {}
        }
    }

    /// The store says the squares of the gradient of a part. Those of a round that waits for nothing are ignored.
    pub(in crate::node) fn handle_squares(&mut self, part: PartId, round: u64, sum: f64) {
        for (clock, closed) in self.closed.iter_mut().filter(|(_, closed)| closed.round == round) {
            let Some(squares) = closed.clipped.as_mut().and_then(|clipped| clipped.get_mut(&part)) else { continue };
            if squares.replace(sum).is_none() {
                let clock = *clock;
                return self.say_squares(clock);
            }
        }
    }

    /// Makes one gradient of those of a round that count, in each part. Returns the parts whose squares are to be known, if the round `clips`.
    fn merge(
        &mut self,
        clock: ClockKey,
        round: u64,
        workers: &WorkerSet,
        clips: bool,
        budget: &mut Budget,
    ) -> Option<BTreeMap<PartId, Option<f64>>> {
        let mut clipped = BTreeMap::new();
        let defect = self.config.defect;
        for (id, part) in &mut self.parts {
            let Some((_, _, merge)) = part.claim.mode.rounds().filter(|(of, _, _)| *of == clock) else { continue };
            let later = part.kept.split_off(&(round + 1, WorkerId(0)));
            let ended = std::mem::replace(&mut part.kept, later);
            if ended.is_empty() {
                continue;
            }
            let is_in = |worker| workers.contains(worker) || planted(defect, Defect::LateGradientCounts);
            let counts = |(of, worker): &(u64, WorkerId)| *of == round && is_in(*worker);
            let gradients: Vec<WorkerId> = ended.keys().filter(|key| counts(key)).map(|(_, worker)| *worker).collect();
            let before = part.merged.take();
            part.merged = ended.iter().find(|(key, _)| counts(key)).map(|(_, booked)| *booked);
            let merged = part.merged.unwrap_or_default();
            budget.give_back(before.unwrap_or_default() + ended.values().sum::<u64>() - merged);
            let divisor = if merge == Merge::Mean { workers.len() as f64 } else { 1.0 };
            let dtype = part.claim.dtype;
            let is_clipped = clips && part.claim.rule.is_some_and(|rule| rule.clip_norm().is_some());
            if is_clipped {
                clipped.insert(*id, None);
            }
            let step = ValueStep::Merge { round, gradients, divisor, dtype, clips: is_clipped };
            self.commands.push_back(Command::Step(Work::Parameter { part: *id, step }));
        }
        Some(clipped).filter(|_| clips)
    }

    /// Says this server's share of a norm, once it knows all of it.
    fn say_squares(&mut self, clock: ClockKey) {
        let Closed { round, clipped: Some(clipped), .. } = &self.closed[&clock] else { return };
        // In the order of the parts, so that each run has the same bits.
        let all = clipped.values().try_fold(0.0, |all, squares| squares.map(|squares| all + squares));
        if let Some(sum) = all {
            let sum = if f64::is_nan(sum) { f64::INFINITY } else { sum };
            self.commands.push_back(Command::Measured { squares: Squares { clock, round: *round, sum } });
        }
    }

    /// Applies the last round of a clock, clipped to its norm if it has one, and answers who waited for it.
    fn apply_round(&mut self, clock: ClockKey, norm: Option<f64>, budget: &mut Budget) {
        let Closed { round, samples, .. } = self.closed[&clock];
        let steps = self.step_of(clock, round - 1);
        for (id, part) in self.parts.iter_mut().filter(|(_, part)| part.claim.mode.clock == Some(clock)) {
            let Some(merged) = part.merged.take() else { continue };
            budget.give_back(merged);
            part.version = Version(part.version.0 + 1);
            let rule = part.claim.rule.expect("a gradient has a rule");
            let factor = rule.clip_norm().zip(norm).map_or(1.0, |(most, norm)| clip_factor(most, norm));
            let global_step = if rule.is_by_samples() { samples } else { steps };
            let rate = self.rates.at(id.key, Some(steps));
            let step = ValueStep::Apply { round, factor, global_step, dtype: part.claim.dtype, rule, rate };
            self.commands.push_back(Command::Step(Work::Parameter { part: *id, step }));
        }
        let first_part = |key: TensorKey| self.parts.range(PartId { key, index: 0 }..).next();
        let is_of_clock = |key: &TensorKey| {
            first_part(*key).is_some_and(|(id, part)| id.key == *key && part.claim.mode.clock == Some(clock))
        };
        let changed: Vec<TensorKey> = self.rates.keys().filter(is_of_clock).collect();
        changed.into_iter().for_each(|key| self.rates.pass(key, steps));
        self.answer_early();
    }

    /// The global step that a round of a clock has come to.
    pub(super) fn step_of(&self, clock: ClockKey, round: u64) -> u64 {
        round.wrapping_add(self.offsets.get(&clock).copied().unwrap_or_default())
    }

    /// Whether a use reads what its worker knows of, and this server does not yet.
    pub(super) fn is_early(&self, header: &Use) -> bool {
        let clock = header.mode.rounds().map(|(clock, _, _)| clock).filter(|_| header.access.receives());
        let applied = |clock| self.closed.get(&clock).map_or(0, Closed::applied);
        let is_early = clock.is_some_and(|clock| header.clock_at > applied(clock));
        is_early && !planted(self.config.defect, Defect::RoundReadEarly)
    }

    /// Whether the change that came is a gradient of a round.
    pub(super) fn keeps(&self, exchange: ExchangeId) -> bool {
        let header = &self.exchanges[&exchange].header;
        header.access.steps() && header.mode.rounds().is_some()
    }

    /// Keeps a gradient that came until its round is closed. If it is closed, the gradient came too late.
    pub(super) fn keep(&mut self, exchange: ExchangeId, budget: &mut Budget) {
        let Exchange { sender, header, booked, .. } = self.exchanges[&exchange];
        let Target { part: id, round, .. } = header.target;
        let (clock, of) = (header.mode.clock.expect("it has rounds"), header.clock_at);
        let closed = self.closed.get(&clock).map_or(0, |closed| closed.round);
        let part = self.parts.get_mut(&id).expect("it has an exchange");
        let key = (of, sender.worker);
        if part.kept.contains_key(&key) {
            return self.reject(exchange, &brought_twice(id, sender.worker, of), budget);
        }
        let (fate, step) = match of <= closed {
            true => (Fate::DroppedLate, ValueStep::Forget { exchange }),
            false => (Fate::Kept, ValueStep::Keep { exchange, round: of, worker: sender.worker }),
        };
        let effect = Effect { version: part.version, fate, lag: 0 };
        part.ledger.insert(sender.node, Done { round, effect });
        match fate {
            Fate::Kept => drop(part.kept.insert(key, booked)),
            _ => budget.give_back(booked),
        }
        let entry = self.exchanges.get_mut(&exchange).expect("its body was on its way");
        (entry.state, entry.booked) = (State::Answering, 0);
        self.commands.push_back(Command::Unroute { exchange });
        self.step(id, step);
        self.answer(exchange, &header, effect);
    }

    /// Answers the reads that waited for rounds which are closed now.
    fn answer_early(&mut self) {
        let waiting = self.exchanges.iter().filter(|(_, exchange)| exchange.state == State::Early);
        let due = waiting.filter(|(_, exchange)| !self.is_early(&exchange.header));
        for (exchange, header) in due.map(|(id, exchange)| (*id, exchange.header)).collect::<Vec<_>>() {
            self.exchanges.get_mut(&exchange).expect("found above").state = State::Answering;
            let version = self.parts[&header.target.part].version;
            self.answer(exchange, &header, Effect::accepted(version));
        }
    }
}

impl Part {
    /// What becomes of a change by its lag, and the factor by which it is multiplied.
    pub(super) fn judge(&self, header: &Use, change: Option<Change>) -> (Fate, u32, f64) {
        match change {
            Some(Change::Add | Change::Step) if header.basis > Version(0) => {
                let lag = u32::try_from(self.version.0.saturating_sub(header.basis.0)).unwrap_or(u32::MAX);
                let (fate, factor) = self.claim.mode.staleness.judge(lag);
                (fate, lag, factor)
            }
            Some(Change::Add | Change::Step | Change::Put) | None => (Fate::Accepted, 0, 1.0),
        }
    }
}
