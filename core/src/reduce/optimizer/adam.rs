//! Adam; its two forms differ in the weight decay alone, which is done before.

use super::run::{Real, Run, correction, towards};
use crate::types::Rule;

#[inline(always)]
pub(super) fn step<R: Real>(rule: &Rule, run: Run<'_, R>) {
    let Run { step, values, gradients, rows: [means, squares, _] } = run;
    let (beta1, beta2) = (rule.setting("beta1"), rule.setting("beta2"));
    let rate = R::of(-rule.setting("lr") / correction(beta1, step));
    let root = R::of(correction(beta2, step).sqrt());
    let (eps, share, kept, taken) = (R::of(rule.setting("eps")), R::of(1.0 - beta1), R::of(beta2), R::of(1.0 - beta2));
    for (((value, gradient), mean), square) in values.iter_mut().zip(gradients).zip(means).zip(squares) {
        *mean = towards(*mean, *gradient, share);
        *square = kept * *square + taken * (*gradient * *gradient);
        *value = *value + rate * *mean / (square.sqrt() / root + eps);
    }
}
