//! Adamax.

use super::run::{Real, Run, correction, towards};
use crate::types::Rule;

#[inline(always)]
pub(super) fn step<R: Real>(rule: &Rule, run: Run<'_, R>) {
    let Run { step, values, gradients, rows: [means, norms, _] } = run;
    let (beta1, beta2) = (rule.setting("beta1"), rule.setting("beta2"));
    let rate = R::of(-rule.setting("lr") / correction(beta1, step));
    let (eps, share, kept) = (R::of(rule.setting("eps")), R::of(1.0 - beta1), R::of(beta2));
    for (((value, gradient), mean), norm) in values.iter_mut().zip(gradients).zip(means).zip(norms) {
        *mean = towards(*mean, *gradient, share);
        *norm = (gradient.abs() + eps).max(kept * *norm);
        *value = *value + rate * *mean / *norm;
    }
}
