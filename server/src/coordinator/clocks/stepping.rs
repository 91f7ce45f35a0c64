//! How far the clocks are, and from where they go on when a checkpoint is loaded.

use gradlane_core::types::{ClockKey, ClockStep, Pace};

use super::{Clock, Clocks};

impl Clocks {
    /// The global step of each clock, and its samples, of the rounds that servers have applied.
    pub(crate) fn steps(&self) -> Vec<ClockStep> {
        let at = |clock: &Clock| {
            let samples = if clock.squares.is_some() { clock.samples_settled } else { clock.samples };
            let step = clock.base.wrapping_add(clock.progress());
            Some(ClockStep { clock: clock.mode.clock?, step, samples })
        };
        self.clocks.values().filter_map(at).collect()
    }

    /// The first global step of a clock of which no server was told yet.
    pub(crate) fn next_step(&self, key: ClockKey) -> u64 {
        let clock = self.clocks.values().find(|clock| clock.mode.clock == Some(key));
        let begins = || self.begins.get(&key).map_or(0, |begins| begins.step);
        clock.map_or_else(begins, Clock::step).saturating_add(1)
    }

    /// Clocks go on from these. Returns of each what is added to its rounds for that, modulo 2^64.
    pub(crate) fn go_back(&mut self, steps: &[ClockStep]) -> Vec<ClockStep> {
        let progress =
            |key| self.clocks.values().find(|clock| clock.mode.clock == Some(key)).map_or(0, Clock::progress);
        let base = |at: &ClockStep| ClockStep { step: at.step.wrapping_sub(progress(at.clock)), ..*at };
        let bases: Vec<ClockStep> = steps.iter().map(base).collect();
        self.begin_at(&bases);
        bases
    }

    /// As [`go_back`](Self::go_back), with what is added.
    pub(crate) fn begin_at(&mut self, bases: &[ClockStep]) {
        self.begins = bases.iter().map(|base| (base.clock, *base)).collect();
        for clock in self.clocks.values_mut() {
            let begins = clock.mode.clock.and_then(|key| self.begins.get(&key));
            clock.base = begins.map_or(0, |begins| begins.step);
            clock.samples = begins.map_or(clock.samples, |begins| begins.samples);
        }
    }
}

impl Clock {
    /// The global step.
    pub(super) fn step(&self) -> u64 {
        match self.mode.pace {
            Pace::Rounds { .. } => self.base.wrapping_add(self.closed),
            Pace::Async | Pace::Ssp { .. } => self.base.wrapping_add(self.ticks),
        }
    }

    /// The steps since it was begun that servers have applied.
    fn progress(&self) -> u64 {
        match self.mode.pace {
            Pace::Rounds { .. } => self.settled(),
            Pace::Async | Pace::Ssp { .. } => self.ticks,
        }
    }
}
