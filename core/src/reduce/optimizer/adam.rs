//! Adam. Two of its forms differ in the weight decay alone, which is done before. The sparse one adds `eps` to the root before that is
//! corrected.

use super::run::{Real, Run, correction, towards};
use crate::types::Rule;

pub(super) struct Adam<R> {
    rate: R,
    /// The root of the correction of the mean squares.
    root: R,
    eps: R,
    /// The share of the gradient in its mean.
    share: R,
    /// The shares of the former mean square and of the gradient's square in the next one.
    kept: R,
    taken: R,
}

impl<R: Real> Adam<R> {
    pub(super) fn at(rule: &Rule, rate: f64, step: u64) -> Self {
        let (beta1, beta2) = (rule.setting("beta1"), rule.setting("beta2"));
        Self {
            rate: R::of(-rate / correction(beta1, step)),
            root: R::of(correction(beta2, step).sqrt()),
            eps: R::of(rule.setting("eps")),
            share: R::of(1.0 - beta1),
            kept: R::of(beta2),
            taken: R::of(1.0 - beta2),
        }
    }

    /// The sparse form. Its `eps` is divided by the correction here, so that the formula is the same.
    pub(super) fn sparse_at(rule: &Rule, rate: f64, step: u64) -> Self {
        let root = correction(rule.setting("beta2"), step).sqrt();
        Self { eps: R::of(rule.setting("eps") / root), ..Self::at(rule, rate, step) }
    }

    #[inline(always)]
    pub(super) fn change(&self, run: Run<'_, R>) {
        let Run { values, gradients, rows: [means, squares, _] } = run;
        let Self { rate, root, eps, share, kept, taken } = *self;
        for (((value, gradient), mean), square) in values.iter_mut().zip(gradients).zip(means).zip(squares) {
            *mean = towards(*mean, *gradient, share);
            *square = kept * *square + taken * (*gradient * *gradient);
            *value = *value + rate * *mean / (square.sqrt() / root + eps);
        }
    }
}
