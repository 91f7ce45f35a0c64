//! Adagrad.

use super::run::{Real, Run};
use crate::types::Rule;

pub(super) struct Adagrad<R> {
    rate: R,
    eps: R,
}

impl<R: Real> Adagrad<R> {
    pub(super) fn at(rule: &Rule, rate: f64, step: u64) -> Self {
        let slowed = 1.0 + (step - 1) as f64 * rule.setting("lr_decay");
        Self { rate: R::of(-rate / slowed), eps: R::of(rule.setting("eps")) }
    }

    #[inline(always)]
    pub(super) fn change(&self, run: Run<'_, R>) {
        let Run { values, gradients, rows: [sums, ..] } = run;
        let Self { rate, eps } = *self;
        for ((value, gradient), sum) in values.iter_mut().zip(gradients).zip(sums) {
            *sum = *sum + *gradient * *gradient;
            *value = *value + rate * *gradient / (sum.sqrt() + eps);
        }
    }
}
