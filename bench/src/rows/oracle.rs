//! What rows must be after so many pushes.

use std::collections::BTreeMap;

use gradlane_core::codec::RowCodec;
use gradlane_core::reduce::{Kernels, RowRule};
use gradlane_core::types::TableSpec;

use super::contender::{Case, Contender};

/// Rows, changed by the same rule as those of servers, one after the other.
pub(super) struct Oracle {
    spec: TableSpec,
    rule: RowRule,
    rows: BTreeMap<u64, Vec<f32>>,
}

impl Oracle {
    pub(super) fn new(spec: TableSpec) -> Self {
        let dim = usize::try_from(spec.dim).expect("DIM_MAX");
        Self { spec, rule: RowRule::new(spec.rule, dim, None, Kernels::portable()), rows: BTreeMap::new() }
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
        for (id, sum) in sums {
            let row = self.rows.entry(id).or_insert_with(|| {
                let mut row = vec![0.0; self.rule.len()];
                self.spec.begin(id, &mut row[..dim]);
                self.rule.begin(&mut row);
                row
            });
            let sum = travelled(&sum);
            (0..pushes).for_each(|_| self.rule.at(0).change(row, &mut sum.clone()));
        }
        let due: Vec<f32> = case.ids.iter().flat_map(|id| travelled(&self.rows[id][..dim])).collect();
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
