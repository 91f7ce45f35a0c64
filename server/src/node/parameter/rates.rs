//! The learning rates that operators have changed. They take the place of the `lr` of a rule, which stays what the workers have declared.

use std::collections::BTreeMap;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::TensorKey;

/// By tensor: from which step on, counted from 1, there is which rate. Without a clock that is step 0.
#[derive(Default, Debug)]
pub(super) struct Rates(BTreeMap<TensorKey, BTreeMap<u64, f64>>);

impl Rates {
    /// From now on `key` has this rate in the step of this number, and after it until the next one that is set. Without a step: from now on.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there are [`RATES_MAX`] rates for different steps of this tensor.
    pub(super) fn set(&mut self, key: TensorKey, step: Option<u64>, rate: f64) -> Result<()> {
        let of_tensor = self.0.entry(key).or_default();
        let step = step.unwrap_or(0);
        if of_tensor.len() >= RATES_MAX && !of_tensor.contains_key(&step) {
            return Err(Error::Exhausted {
                what: "learning rates for different steps of one parameter".to_owned(),
                limit: RATES_MAX.to_string(),
                hint: "give the next one when some of these steps have passed, or use a schedule".to_owned(),
            });
        }
        of_tensor.insert(step, rate);
        Ok(())
    }

    /// The rate of the step that `before` steps precede; `before` is `None` without a clock. `None` if it is that of the rule.
    pub(super) fn at(&self, key: TensorKey, before: Option<u64>) -> Option<f64> {
        let step = before.map_or(0, |before| before.saturating_add(1));
        self.0.get(&key)?.range(..=step).next_back().map(|(_, rate)| *rate)
    }

    /// The tensors whose rates were changed.
    pub(super) fn keys(&self) -> impl Iterator<Item = TensorKey> {
        self.0.keys().copied()
    }

    /// Steps of this tensor before this one come no more.
    pub(super) fn pass(&mut self, key: TensorKey, before: u64) {
        let Some(of_tensor) = self.0.get_mut(&key) else { return };
        if let Some(present) = of_tensor.range(..=before.saturating_add(1)).next_back().map(|(step, _)| *step) {
            *of_tensor = of_tensor.split_off(&present);
        }
    }

    /// These tensors have ended.
    pub(super) fn end(&mut self, first: TensorKey, last: TensorKey) {
        self.0.retain(|key, _| !(first..=last).contains(key));
    }
}

/// Rates for different steps of one tensor.
const RATES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: TensorKey = TensorKey(7);

    #[test]
    fn a_rate_holds_from_its_step_until_the_next_one_that_is_set() {
        let mut rates = Rates::default();
        rates.set(KEY, Some(3), 0.5).unwrap();
        rates.set(KEY, Some(6), 0.25).unwrap();
        let all: Vec<Option<f64>> = (0..7).map(|before| rates.at(KEY, Some(before))).collect();
        let (first, second) = (Some(0.5), Some(0.25));
        assert_eq!(all, [None, None, first, first, first, second, second], "the third step has two before it");
        assert_eq!(rates.at(TensorKey(8), Some(9)), None);
        rates.set(KEY, Some(6), 2.0).unwrap();
        assert_eq!(rates.at(KEY, Some(5)), Some(2.0), "set again");
    }

    #[test]
    fn without_a_clock_a_rate_holds_at_once() {
        let mut rates = Rates::default();
        assert_eq!(rates.at(KEY, None), None);
        rates.set(KEY, None, 0.5).unwrap();
        rates.set(KEY, None, 0.25).unwrap();
        assert_eq!(rates.at(KEY, None), Some(0.25));
    }

    #[test]
    fn rates_are_bounded_and_make_room_when_their_steps_have_passed() {
        let mut rates = Rates::default();
        for step in 1..=RATES_MAX as u64 {
            rates.set(KEY, Some(step), step as f64).unwrap();
        }
        assert!(matches!(rates.set(KEY, Some(100), 1.0), Err(Error::Exhausted { .. })));
        assert_eq!(rates.set(KEY, Some(64), 1.0), Ok(()), "not another one");
        rates.pass(KEY, 10);
        assert_eq!((rates.at(KEY, Some(9)), rates.at(KEY, Some(10))), (None, Some(11.0)));
        assert_eq!(rates.set(KEY, Some(100), 1.0), Ok(()));
    }

    #[test]
    fn the_rates_of_a_tensor_end_with_it() {
        let mut rates = Rates::default();
        for key in [KEY, TensorKey(8)] {
            rates.set(key, None, 0.5).unwrap();
        }
        rates.end(KEY, KEY);
        assert_eq!((rates.at(KEY, None), rates.at(TensorKey(8), None)), (None, Some(0.5)));
    }
}
