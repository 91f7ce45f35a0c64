//! The arithmetic of rules: how a gradient changes the elements of a part, and what an optimizer keeps of them.
//!
//! Each optimizer is a file with its formula for a run of elements. Here are the loops around them: elements are loaded from bytes, changed
//! in f32 (f64 in f64), and stored. f16 and bf16 have a *master*: their values in f32, which is what is changed; what workers see is the
//! master rounded to nearest even. All formulas are those of PyTorch's optimizers, in their order, each operation rounded once. `averages` keeps
//! averages of the values, `schedule` says the learning rate of a step.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use super::element::Element;
use super::kernels::{Kernels, Loops};
use crate::types::{Average, DType, Optimizer, Rule};

mod adagrad;
mod adam;
mod adamax;
mod averages;
mod by_row;
mod compensation;
mod lion;
mod matrix;
mod muon;
mod rmsprop;
mod row;
mod run;
mod saved;
mod schedule;
mod sgd;
mod terms;

use averages::{AverageRows, Averages, Follow, average_rows};
use matrix::WORKING_ROWS;
use run::{ROWS_MAX, Real, Run};
use terms::Terms;

pub use row::{RowRule, RowStep};
pub use saved::Counters;

/// What a rule keeps of a part beside its value. A copy shares the numbers until one of the two changes.
#[derive(Clone, Debug)]
pub struct OptimizerState {
    rule: Rule,
    dtype: DType,
    elements: usize,
    /// How often the rule was applied.
    steps: u64,
    /// The latest global step, for rules of jobs that have one.
    global_step: u64,
    /// Whether the masters are not yet, or no more, what the value says.
    is_new: bool,
    kept: Kept,
}

#[derive(Clone, Debug)]
enum Kept {
    F32(Arc<Numbers<f32>>),
    F64(Arc<Numbers<f64>>),
}

#[derive(Clone, Debug)]
struct Numbers<R> {
    /// The elements of a half-size type in full; of another type none.
    masters: Vec<R>,
    /// A row for each moment of the optimizer, as long as the part.
    rows: Vec<Vec<R>>,
    averages: Averages<R>,
}

/// A block of a part.
struct Block<'a, R> {
    terms: &'a Terms<R>,
    follow: &'a Follow<R>,
    /// Whether the masters are to be made of the value.
    is_new: bool,
    value: &'a [u8],
    /// The new value replaces it.
    gradient: &'a mut [u8],
    /// Those of the block, if there are any.
    masters: &'a mut [R],
    rows: [&'a mut [R]; ROWS_MAX],
    averages: AverageRows<'a, R>,
}

/// Elements that are changed at a time: what they need stays in the first cache.
const RUN: usize = 512;

/// What the rows begin with.
fn initial(rule: &Rule) -> f64 {
    match rule.optimizer() {
        Optimizer::Adagrad => rule.setting("initial_accumulator_value"),
        Optimizer::Sgd
        | Optimizer::Adam
        | Optimizer::AdamW
        | Optimizer::RmsProp
        | Optimizer::Adamax
        | Optimizer::Lion
        | Optimizer::Muon
        | Optimizer::SparseAdam
        | Optimizer::RowwiseAdagrad
        | Optimizer::PaddleAdagrad
        | Optimizer::PaddleStdAdagrad
        | Optimizer::PaddleAdam
        | Optimizer::PaddleSharedAdam => 0.0,
    }
}

impl OptimizerState {
    /// What a rule keeps of a part of `bytes` bytes that it has not changed yet.
    ///
    /// # Panics
    /// If it cannot change elements of this type ([`Rule::changes`]), or there is not a whole number of them, or of rows of a matrix.
    pub fn new(rule: Rule, dtype: DType, bytes: u64) -> Self {
        assert!(rule.changes(dtype), "checked when the parameter was declared");
        assert_eq!(bytes % dtype.bytes(), 0, "a part has whole elements");
        let elements = usize::try_from(bytes / dtype.bytes()).expect("they lie in memory");
        assert!(rule.fits(elements as u64), "checked when the parameter was declared");
        let masters = if dtype.accumulator() == dtype { 0 } else { elements };
        let kept = match dtype.accumulator() {
            DType::F64 => Kept::F64(Arc::new(Numbers::new(&rule, elements, masters))),
            _ => Kept::F32(Arc::new(Numbers::new(&rule, elements, masters))),
        };
        Self { rule, dtype, elements, steps: 0, global_step: 0, is_new: true, kept }
    }

    /// The bytes that a rule keeps of a part of `bytes` bytes, and those that a step needs for a while if it changes a matrix as a whole.
    pub fn bytes_of(rule: &Rule, dtype: DType, bytes: u64) -> u64 {
        let masters = usize::from(dtype.accumulator() != dtype);
        let working = if rule.optimizer().is_of_matrices() { WORKING_ROWS } else { 0 };
        let rows = rule.moments().len() + average_rows(rule) + masters + working;
        bytes / dtype.bytes() * dtype.accumulator().bytes() * rows as u64
    }

    /// How often the rule was applied.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Takes the notice that something else has changed the value.
    pub fn handle_changed(&mut self) {
        self.is_new = true;
    }

    /// Applies the rule to a whole part. The blocks are its value and the gradient, cut alike; the new value replaces the gradient.
    /// A schedule follows `global_step`, the steps of the job before this one; `None` for those of the part.
    ///
    /// # Panics
    /// If the blocks are not those of the part.
    pub fn step<'a>(
        &mut self,
        kernels: Kernels,
        global_step: Option<u64>,
        blocks: impl IntoIterator<Item = (&'a [u8], &'a mut [u8])>,
    ) {
        self.step_at_rate(kernels, global_step, None, blocks);
    }

    /// As [`step`](Self::step), with `rate` in the place of the rule's `lr`, if it is given.
    ///
    /// # Panics
    /// As [`step`](Self::step).
    pub fn step_at_rate<'a>(
        &mut self,
        kernels: Kernels,
        global_step: Option<u64>,
        rate: Option<f64>,
        blocks: impl IntoIterator<Item = (&'a [u8], &'a mut [u8])>,
    ) {
        self.steps += 1;
        self.global_step = self.global_step.max(global_step.unwrap_or(self.steps - 1));
        let Self { rule, dtype, steps, global_step, is_new, .. } = *self;
        let rule = rate.map_or(rule, |rate| rule.with_rate(rate));
        let terms = (&rule, steps, global_step);
        let changed = match (&mut self.kept, dtype) {
            (Kept::F32(numbers), DType::F16) => Arc::make_mut(numbers).change::<f16>(kernels, terms, is_new, blocks),
            (Kept::F32(numbers), DType::BF16) => Arc::make_mut(numbers).change::<bf16>(kernels, terms, is_new, blocks),
            (Kept::F32(numbers), _) => Arc::make_mut(numbers).change::<f32>(kernels, terms, is_new, blocks),
            (Kept::F64(numbers), _) => Arc::make_mut(numbers).change::<f64>(kernels, terms, is_new, blocks),
        };
        assert_eq!(changed, self.elements, "the blocks are those of the part");
        self.is_new = false;
    }

    /// Writes an average of the values that the rule has made into blocks of the part, rounded to its element type.
    ///
    /// # Panics
    /// If the rule does not keep it ([`Rule::keeps`]) or was never applied, or if the blocks are not those of the part.
    pub fn average<'a>(&self, average: Average, blocks: impl IntoIterator<Item = &'a mut [u8]>) {
        assert!(self.rule.keeps(average) && self.steps > 0, "checked when it was asked for");
        let written = match (&self.kept, self.dtype) {
            (Kept::F32(numbers), DType::F16) => numbers.averages.write::<f16>(average, blocks),
            (Kept::F32(numbers), DType::BF16) => numbers.averages.write::<bf16>(average, blocks),
            (Kept::F32(numbers), _) => numbers.averages.write::<f32>(average, blocks),
            (Kept::F64(numbers), _) => numbers.averages.write::<f64>(average, blocks),
        };
        assert_eq!(written, self.elements, "the blocks are those of the part");
    }
}

impl<R: Real> Numbers<R> {
    fn new(rule: &Rule, elements: usize, masters: usize) -> Self {
        let row = vec![R::of(initial(rule)); elements];
        Self {
            masters: vec![R::default(); masters],
            rows: vec![row; rule.moments().len()],
            averages: Averages::new(rule, elements),
        }
    }

    /// Changes blocks of elements of type `E` that follow each other. Returns the number of elements.
    fn change<'a, E: Element<Sum = R>>(
        &mut self,
        kernels: Kernels,
        (rule, step, global_step): (&Rule, u64, u64),
        is_new: bool,
        blocks: impl IntoIterator<Item = (&'a [u8], &'a mut [u8])>,
    ) -> usize {
        let (terms, follow) = (&Terms::at(rule, step, global_step), &self.averages.follow(rule, step));
        let blocks: Vec<_> = blocks.into_iter().collect();
        if let (true, [momenta, along]) = (rule.optimizer().is_of_matrices(), self.rows.as_mut_slice()) {
            let mut places = along.iter_mut();
            for (_, gradient) in &blocks {
                for (element, place) in E::elements(gradient).iter().zip(&mut places) {
                    *place = E::load(*element).widen();
                }
            }
            muon::aim(kernels, rule, momenta, along);
        }
        let mut from = 0;
        for (value, gradient) in blocks {
            assert_eq!(value.len(), gradient.len(), "a gradient is as long as its value");
            let run = from..from + value.len() / size_of::<E>();
            from = run.end;
            let (masters, rows, averages) = self.of(run);
            kernels.vectorise(Change::<E>(Block { terms, follow, is_new, value, gradient, masters, rows, averages }));
        }
        from
    }

    /// The masters, rows and averages of these elements.
    fn of(&mut self, run: Range<usize>) -> (&mut [R], [&mut [R]; ROWS_MAX], AverageRows<'_, R>) {
        let masters = if self.masters.is_empty() { &mut [][..] } else { &mut self.masters[run.clone()] };
        let mut rows: [&mut [R]; ROWS_MAX] = Default::default();
        for (row, of_part) in rows.iter_mut().zip(&mut self.rows) {
            *row = &mut of_part[run.clone()];
        }
        (masters, rows, self.averages.of(run))
    }
}

/// The loops over a block of elements of type `E`.
struct Change<'a, E: Element>(Block<'a, E::Sum>);

impl<E: Element<Sum: Real>> Loops for Change<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Block { terms, follow, is_new, value, gradient, masters, mut rows, mut averages } = self.0;
        let (value, gradient) = (E::elements(value), E::elements_mut(gradient));
        let mut values = [E::Sum::default(); RUN];
        let mut gradients = [E::Sum::default(); RUN];
        for (at, (value, gradient)) in value.chunks(RUN).zip(gradient.chunks_mut(RUN)).enumerate() {
            let run = at * RUN..at * RUN + value.len();
            let (values, gradients) = (&mut values[..value.len()], &mut gradients[..value.len()]);
            match masters.get(run.clone()) {
                Some(masters) if !is_new => values.copy_from_slice(masters),
                _ => values.iter_mut().zip(value).for_each(|(to, from)| *to = E::load(*from).widen()),
            }
            gradients.iter_mut().zip(&*gradient).for_each(|(to, from)| *to = E::load(*from).widen());
            let rows = rows.each_mut().map(|row| row.get_mut(run.clone()).unwrap_or_default());
            follow.begin(values, averages.reborrow().run(run.clone()));
            terms.change(Run { values, gradients, rows });
            follow.change(values, averages.reborrow().run(run.clone()));
            if let Some(masters) = masters.get_mut(run) {
                masters.copy_from_slice(values);
            }
            gradient.iter_mut().zip(&*values).for_each(|(to, from)| *to = E::narrow(*from).store());
        }
    }
}

#[cfg(test)]
mod tests;
