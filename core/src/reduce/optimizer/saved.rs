//! What a rule keeps of a part, as named rows of numbers: how a checkpoint writes it and makes it again.

use std::ops::Range;
use std::sync::Arc;

use super::averages::AVERAGE_ROWS;
use super::run::Real;
use super::{Kept, Numbers, OptimizerState};
use crate::error::Result;
use crate::types::{DType, Rule};

/// What an [`OptimizerState`] counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// How often the rule was applied.
    pub steps: u64,
    /// The latest global step.
    pub global_step: u64,
    /// Whether something else than the rule has changed the value since.
    pub is_new: bool,
    /// How many values are in the window of an average, and how many were in the one before.
    pub window: [u64; 2],
}

/// The name of the elements in full, of a type that is changed in a wider one.
const MASTER: &str = "master";

impl OptimizerState {
    /// What it counts.
    pub fn counters(&self) -> Counters {
        let window = match &self.kept {
            Kept::F32(numbers) => numbers.averages.window,
            Kept::F64(numbers) => numbers.averages.window,
        };
        Counters { steps: self.steps, global_step: self.global_step, is_new: self.is_new, window }
    }

    /// The rule whose state it is.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// The names of its rows: PyTorch's, where it has them.
    pub fn row_names(&self) -> Vec<&'static str> {
        names(&self.rule, self.dtype)
    }

    /// The numbers that a row has for these elements of the part, in little-endian bytes of `dtype.accumulator()`.
    ///
    /// # Panics
    /// If the part has fewer elements.
    pub fn row(&self, name: &str, elements: Range<usize>) -> Vec<u8> {
        match &self.kept {
            Kept::F32(numbers) => bytes_of(&numbers.row(&self.rule, name)[elements]),
            Kept::F64(numbers) => bytes_of(&numbers.row(&self.rule, name)[elements]),
        }
    }

    /// The state of a part of `bytes` bytes that has counted so much, of the rows that `row` has for their names: each as long as the part.
    ///
    /// # Errors
    /// Those of `row`.
    ///
    /// # Panics
    /// As [`new`](Self::new), or if a row has another length.
    pub fn restored(
        rule: Rule,
        dtype: DType,
        bytes: u64,
        counters: Counters,
        mut row: impl FnMut(&'static str) -> Result<Vec<u8>>,
    ) -> Result<Self> {
        let mut state = Self::new(rule, dtype, bytes);
        for name in names(&rule, dtype) {
            let numbers = row(name)?;
            match &mut state.kept {
                Kept::F32(kept) => fill(Arc::make_mut(kept).row_mut(&rule, name), &numbers),
                Kept::F64(kept) => fill(Arc::make_mut(kept).row_mut(&rule, name), &numbers),
            }
        }
        let Counters { steps, global_step, is_new, window } = counters;
        match &mut state.kept {
            Kept::F32(kept) => Arc::make_mut(kept).averages.window = window,
            Kept::F64(kept) => Arc::make_mut(kept).averages.window = window,
        }
        Ok(Self { steps, global_step, is_new, ..state })
    }
}

impl<R: Real> Numbers<R> {
    fn row(&self, rule: &Rule, name: &str) -> &[R] {
        match rule.moments().iter().position(|row| *row == name) {
            Some(index) => &self.rows[index],
            None if name == MASTER => &self.masters,
            None => self.averages.row(name),
        }
    }

    fn row_mut(&mut self, rule: &Rule, name: &str) -> &mut [R] {
        match rule.moments().iter().position(|row| *row == name) {
            Some(index) => &mut self.rows[index],
            None if name == MASTER => &mut self.masters,
            None => self.averages.row_mut(name),
        }
    }
}

/// The rows that a checkpoint has: not what a step needs for a while.
fn names(rule: &Rule, dtype: DType) -> Vec<&'static str> {
    let master = Some(MASTER).filter(|_| dtype.accumulator() != dtype);
    let moments = rule.moments().iter().copied().filter(|row| *row != Rule::SCRATCH);
    let averages = AVERAGE_ROWS.into_iter().filter(|(average, _)| rule.keeps(*average)).map(|(_, name)| name);
    master.into_iter().chain(moments).chain(averages).collect()
}

fn bytes_of<R: Real>(numbers: &[R]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(numbers)];
    R::elements_mut(&mut bytes).iter_mut().zip(numbers).for_each(|(place, number)| *place = number.store());
    bytes
}

fn fill<R: Real>(numbers: &mut [R], bytes: &[u8]) {
    assert_eq!(bytes.len(), size_of_val(numbers), "a row has a number for each element");
    numbers.iter_mut().zip(R::elements(bytes)).for_each(|(number, place)| *number = R::load(*place));
}
