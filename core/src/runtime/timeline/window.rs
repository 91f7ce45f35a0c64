//! Which steps a timeline records.

use crate::types::Round;

/// The steps that a timeline records. The step of a job is the highest round of a sum so far, on each member by itself. All members count the
/// rounds of a tensor alike, so all of them record the same sums.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Window {
    /// The first step; 0 for the present one.
    pub from: u64,
    /// How many steps; `None` for all until somebody stops it.
    pub steps: Option<u64>,
}

impl Window {
    /// By the settings `timeline_from_step` and `timeline_steps`, of which 0 means all.
    pub fn by_settings(from: u32, steps: u32) -> Self {
        Self { from: from.into(), steps: Some(steps.into()).filter(|steps| *steps > 0) }
    }
}

/// Follows the rounds that begin, and says which of them a timeline records.
///
/// Waits ─(a round of the first step, or a later one)─► Records ─(a round after the last step)─► Over
#[derive(Debug)]
pub struct Gate {
    window: Window,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waits,
    Records,
    Over,
}

impl Gate {
    /// No round has begun.
    pub fn new(window: Window) -> Self {
        let state = if window.from == 0 { State::Records } else { State::Waits };
        Self { window, state }
    }

    /// A round of a tensor begins: whether it is recorded. Tensors that are used less often have lower rounds, and are recorded in the same
    /// time.
    pub fn begins(&mut self, Round(round): Round) -> bool {
        let Window { from, steps } = self.window;
        if self.state == State::Waits && round >= from {
            self.state = State::Records;
        }
        if self.state == State::Records && steps.is_some_and(|steps| round >= from.saturating_add(steps)) {
            self.state = State::Over;
        }
        self.records()
    }

    /// Whether what begins now is recorded.
    pub fn records(&self) -> bool {
        self.state == State::Records
    }

    /// Whether the first step has begun.
    pub fn is_open(&self) -> bool {
        self.state != State::Waits
    }

    /// Whether the last step has ended: no further round is recorded.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_recorded_from_the_first_step_to_the_last_also_those_of_tensors_that_are_used_less_often() {
        let mut gate = Gate::new(Window { from: 10, steps: Some(2) });
        assert!(!gate.is_open());
        let recorded = [3, 9, 10, 3, 11, 4, 12, 10, 13].map(|round| gate.begins(Round(round)));
        assert_eq!(recorded, [false, false, true, true, true, true, false, false, false]);
        assert!(gate.is_open() && gate.is_over());
    }

    #[test]
    fn without_a_first_step_it_begins_at_once_and_without_a_number_it_never_ends() {
        let mut gate = Gate::new(Window::default());
        assert!(gate.is_open());
        assert!([0, 7, u64::MAX].into_iter().all(|round| gate.begins(Round(round))));
        let mut gate = Gate::new(Window { from: u64::MAX, steps: Some(u64::MAX) });
        assert!(!gate.begins(Round(5)));
        let mut gate = Gate::new(Window { from: 0, steps: Some(1) });
        assert!(gate.begins(Round(0)) && !gate.begins(Round(1)) && gate.is_over());
    }
}
