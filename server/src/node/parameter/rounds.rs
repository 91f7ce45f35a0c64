//! Changes by their mode: which are too old, which are kept until their round is closed, and what is done when it is.

use gradlane_core::types::{ClockKey, Closing, Effect, ExchangeId, Fate, Merge, Version, WorkerId};
use gradlane_core::wire::{Target, Use};

use super::machine::{Done, Exchange, Parameters, Part, State};
use super::refusals::brought_twice;
use crate::node::budget::Budget;
use crate::node::command::{Change, Command, ValueStep, Work};

impl Parameters {
    /// The coordinator has closed a round, perhaps not for the first time: applies its gradients, and answers who waited for it.
    pub(in crate::node) fn handle_close(&mut self, closing: &Closing, budget: &mut Budget) {
        let Closing { clock, round, ref workers } = *closing;
        let closed = self.closed.entry(clock).or_default();
        if round <= *closed {
            return;
        }
        *closed = round;
        for (id, part) in &mut self.parts {
            let Some((_, _, merge)) = part.claim.mode.rounds().filter(|(of, _, _)| *of == clock) else { continue };
            let later = part.kept.split_off(&(round + 1, WorkerId(0)));
            let ended = std::mem::replace(&mut part.kept, later);
            if ended.is_empty() {
                continue;
            }
            budget.give_back(ended.values().sum());
            let of_round = ended.keys().filter(|(of, _)| *of == round).map(|(_, worker)| *worker);
            let gradients: Vec<WorkerId> = of_round.filter(|worker| workers.contains(*worker)).collect();
            let divisor = if merge == Merge::Mean { workers.len() as f64 } else { 1.0 };
            part.version = Version(part.version.0 + u64::from(!gradients.is_empty()));
            let rule = part.claim.rule.expect("a gradient has a rule");
            let global_step = (round - 1).wrapping_add(self.bases.get(&clock).copied().unwrap_or_default());
            let step = ValueStep::Merge { round, global_step, gradients, divisor, dtype: part.claim.dtype, rule };
            self.commands.push_back(Command::Step(Work::Parameter { part: *id, step }));
        }
        self.answer_early();
    }

    /// The global step that a round of a clock has come to.
    pub(super) fn step_of(&self, clock: ClockKey, round: u64) -> u64 {
        round.wrapping_add(self.bases.get(&clock).copied().unwrap_or_default())
    }

    /// Whether a use reads what its worker knows of, and this server does not yet.
    pub(super) fn is_early(&self, header: &Use) -> bool {
        let clock = header.mode.rounds().map(|(clock, _, _)| clock).filter(|_| header.access.receives());
        clock.is_some_and(|clock| header.clock_at > self.closed.get(&clock).copied().unwrap_or_default())
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
        let closed = self.closed.get(&clock).copied().unwrap_or_default();
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
