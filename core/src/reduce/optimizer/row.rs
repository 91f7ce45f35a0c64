//! Rules of single rows: what tables do. A row has its values, and behind them what the rule keeps of it, in one run of f32.

use super::by_row::ByRow;
use super::initial;
use super::run::{ROWS_MAX, Run};
use super::terms::Terms;
use crate::reduce::kernels::{Kernels, Loops};
use crate::types::Rule;

/// A rule that changes rows of f32 by gradients.
#[derive(Clone, Copy, Debug)]
pub struct RowRule {
    rule: Rule,
    dim: usize,
    /// The elements of a row, with what the rule keeps of it.
    len: usize,
    bound: Option<f32>,
    kernels: Kernels,
}

/// A rule at one of its steps.
pub struct RowStep {
    rule: RowRule,
    formula: Formula,
}

enum Formula {
    /// Each element by itself, as of a parameter.
    ByElement(Terms<f32>),
    ByRow(ByRow),
}

impl RowRule {
    /// The rule for rows of `dim` elements, whose values are clamped to plus or minus `bound` after each step, if there is one.
    ///
    /// # Panics
    /// If the rule changes matrices as a whole.
    pub fn new(rule: Rule, dim: usize, bound: Option<f32>, kernels: Kernels) -> Self {
        assert!(!rule.optimizer().is_of_matrices(), "checked when the table was declared");
        let len = dim + usize::try_from(rule.kept_of_row(dim as u64)).expect("it lies in memory");
        Self { rule, dim, len, bound, kernels }
    }

    /// The elements of a row, with what the rule keeps beside its values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether a row has no elements.
    pub fn is_empty(&self) -> bool {
        self.dim == 0
    }

    /// Writes what the rule keeps of a row that it has not changed yet. The values are the caller's.
    pub fn begin(&self, row: &mut [f32]) {
        let kept = &mut row[self.dim..];
        match self.rule.optimizer().is_of_rows() {
            true => ByRow::begin(&self.rule, kept),
            false => kept.fill(initial(&self.rule) as f32),
        }
    }

    /// The rule at a step, which `before` steps precede.
    pub fn at(self, before: u64) -> RowStep {
        let formula = match self.rule.optimizer().is_of_rows() {
            true => Formula::ByRow(ByRow::at(&self.rule, before)),
            false => Formula::ByElement(Terms::at(&self.rule, before + 1, before)),
        };
        RowStep { formula, rule: self }
    }
}

impl RowStep {
    /// Changes a row by a gradient, which says nothing afterwards.
    ///
    /// # Panics
    /// If they are not as long as they should be.
    pub fn change(&self, row: &mut [f32], gradient: &mut [f32]) {
        let (values, kept) = row.split_at_mut(self.rule.dim);
        self.change_parts(values, kept, gradient);
    }

    /// Changes a row whose values lie elsewhere than what the rule keeps of it.
    ///
    /// # Panics
    /// If they are not as long as they should be.
    #[inline]
    pub fn change_parts(&self, values: &mut [f32], kept: &mut [f32], gradient: &mut [f32]) {
        let RowRule { dim, len, bound, kernels, .. } = self.rule;
        assert_eq!((values.len(), kept.len(), gradient.len()), (dim, len - dim, dim), "a row of the table");
        kernels.vectorise(Change { formula: &self.formula, values, gradient, kept, bound });
    }
}

/// The loops over a row.
struct Change<'a> {
    formula: &'a Formula,
    values: &'a mut [f32],
    gradient: &'a mut [f32],
    kept: &'a mut [f32],
    bound: Option<f32>,
}

impl Loops for Change<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { formula, values, gradient, kept, bound } = self;
        match formula {
            Formula::ByElement(terms) => {
                let mut rows: [&mut [f32]; ROWS_MAX] = Default::default();
                for (row, of_row) in rows.iter_mut().zip(kept.chunks_exact_mut(values.len())) {
                    *row = of_row;
                }
                terms.change(Run { values: &mut *values, gradients: gradient, rows });
            }
            Formula::ByRow(formula) => formula.change(values, gradient, kept),
        }
        if let Some(bound) = bound {
            values.iter_mut().for_each(|value| *value = value.clamp(-bound, bound));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::OptimizerState;
    use crate::types::DType;

    #[test]
    fn a_row_changes_as_a_part_of_a_parameter_does() {
        for text in [
            "sgd:lr=0.1,momentum=0.9",
            "adam:lr=0.01",
            "sparseadam",
            "adagrad:lr=0.1",
            "rmsprop",
            "lion",
            "adamw",
            "adamax",
        ] {
            let rule: Rule = text.parse().unwrap();
            for dim in [1, 3, 16, 65] {
                let of_row = RowRule::new(rule, dim, None, Kernels::detect());
                let mut row = vec![0.0; of_row.len()];
                row[..dim].iter_mut().enumerate().for_each(|(at, value)| *value = at as f32 / 7.0 - 1.0);
                of_row.begin(&mut row);
                let mut value: Vec<u8> = row[..dim].iter().flat_map(|value| value.to_le_bytes()).collect();
                let mut state = OptimizerState::new(rule, DType::F32, value.len() as u64);
                for step in 0..5 {
                    let gradient: Vec<f32> =
                        (0..dim).map(|at| (at as f32 - 2.0) * (step as f32 + 1.0) / 10.0).collect();
                    let mut bytes: Vec<u8> = gradient.iter().flat_map(|number| number.to_le_bytes()).collect();
                    state.step(Kernels::detect(), None, [(value.as_slice(), bytes.as_mut_slice())]);
                    value = bytes;
                    of_row.at(step).change(&mut row, &mut gradient.clone());
                    let wanted: Vec<f32> = value.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                    assert_eq!(row[..dim], wanted, "{text} of {dim} at step {step}");
                }
            }
        }
    }

    #[test]
    fn values_stay_within_their_bound() {
        let rule = RowRule::new("sgd:lr=1".parse().unwrap(), 2, Some(0.5), Kernels::detect());
        let mut row = [0.0, 0.25];
        rule.at(0).change(&mut row, &mut [3.0, -1.0]);
        assert_eq!(row, [-0.5, 0.5]);
    }
}
