//! Lion, from "Symbolic Discovery of Optimization Algorithms" (arXiv:2302.06675).

use super::run::{Real, Run, towards};
use crate::types::Rule;

#[inline(always)]
pub(super) fn step<R: Real>(rule: &Rule, run: Run<'_, R>) {
    let Run { values, gradients, rows: [means, ..], .. } = run;
    let rate = R::of(-rule.setting("lr"));
    let (of_step, of_mean) = (R::of(1.0 - rule.setting("beta1")), R::of(1.0 - rule.setting("beta2")));
    for ((value, gradient), mean) in values.iter_mut().zip(gradients).zip(means) {
        *value = *value + rate * towards(*mean, *gradient, of_step).sign();
        *mean = towards(*mean, *gradient, of_mean);
    }
}
