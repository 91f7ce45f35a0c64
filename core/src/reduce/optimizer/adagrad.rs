//! Adagrad.

use super::run::{Real, Run};
use crate::types::Rule;

#[inline(always)]
pub(super) fn step<R: Real>(rule: &Rule, run: Run<'_, R>) {
    let Run { step, values, gradients, rows: [sums, ..] } = run;
    let rate = R::of(-rule.setting("lr") / (1.0 + (step - 1) as f64 * rule.setting("lr_decay")));
    let eps = R::of(rule.setting("eps"));
    for ((value, gradient), sum) in values.iter_mut().zip(gradients).zip(sums) {
        *sum = *sum + *gradient * *gradient;
        *value = *value + rate * *gradient / (sum.sqrt() + eps);
    }
}
