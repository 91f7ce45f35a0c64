//! What rows must be after so many pushes. It shares the arithmetic of a row with servers, and nothing else of them.

use std::collections::BTreeMap;

use gradlane_core::codec::{Rounding, RowCodec, StoredRows};
use gradlane_core::reduce::{Kernels, RowRule};
use gradlane_core::types::TableSpec;

use super::contender::{Case, Contender};

/// Rows, changed by the same rule as those of servers, one after the other.
pub(super) struct Oracle {
    spec: TableSpec,
    rule: RowRule,
    stored: StoredRows,
    rows: BTreeMap<u64, Kept>,
}

/// A row as it is kept.
struct Kept {
    words: Vec<f32>,
    /// One for each push.
    score: f32,
}

impl Oracle {
    pub(super) fn new(spec: TableSpec) -> Self {
        let dim = usize::try_from(spec.dim).expect("DIM_MAX");
        let rule = RowRule::new(spec.rule, dim, None, Kernels::portable());
        Self { spec, rule, stored: StoredRows::of(&spec, Kernels::portable()), rows: BTreeMap::new() }
    }

    /// Pushes the case so often, and compares the rows of its ids with those of all contenders. Returns for each of them the wrong elements,
    /// and where the first one is.
    ///
    /// # Errors
    /// Why a contender does not tell its rows.
    pub(super) fn verify(
        &mut self,
        case: &Case,
        pushes: u32,
        contenders: &mut [Box<dyn Contender>],
    ) -> Result<Vec<(u64, Option<String>)>, String> {
        let dim = usize::try_from(self.spec.dim).expect("DIM_MAX");
        let codec = RowCodec::of(&self.spec, Kernels::portable());
        let travelled = |row: &[f32]| {
            let (mut body, mut came) = (vec![0; codec.row_bytes()], vec![0.0; dim]);
            codec.write(row, &mut body);
            codec.read(&body, &mut came);
            came
        };
        let mut sums: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        for (id, gradient) in case.ids.iter().zip(case.gradients.chunks_exact(dim)) {
            let sum = sums.entry(*id).or_insert_with(|| vec![0.0; dim]);
            sum.iter_mut().zip(gradient).for_each(|(sum, number)| *sum += number);
        }
        let mut values = vec![0.0; dim];
        for (id, sum) in sums {
            let row = self.rows.entry(id).or_insert_with(|| {
                let mut words = vec![0.0; self.stored.words()];
                self.stored.begin(&mut words, |numbers| {
                    self.spec.begin(id, &mut numbers[..dim]);
                    self.rule.begin(numbers);
                });
                Kept { words, score: 0.0 }
            });
            let sum = travelled(&sum);
            for _ in 0..pushes {
                let rounding = Rounding { id, step: 0, score: row.score };
                self.stored.change(&self.rule.at(0), rounding, &mut row.words, &mut values, &mut sum.clone());
                row.score += 1.0;
            }
        }
        let mut due = Vec::with_capacity(case.ids.len() * dim);
        for id in &case.ids {
            due.extend(travelled(self.stored.numbers(&self.rows[id].words, &mut values)));
        }
        let mut found = vec![0.0; due.len()];
        let mut verdicts = Vec::new();
        for contender in contenders {
            contender.pull(&case.ids, &mut found)?;
            let wrong = |(_, (due, found)): &(usize, (&f32, &f32))| due.to_bits() != found.to_bits();
            let mut all = due.iter().zip(&found).enumerate().filter(wrong);
            let first = all.next().map(|(at, (due, found))| {
                let (name, id, element) = (contender.name(), case.ids[at / dim], at % dim);
                format!("{name}: element {element} of the row of id {id} is {found} and not {due}")
            });
            verdicts.push((all.count() as u64 + u64::from(first.is_some()), first));
        }
        Ok(verdicts)
    }
}
