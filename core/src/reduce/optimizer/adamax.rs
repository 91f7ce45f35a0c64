//! Adamax.

use super::run::{Real, Run, correction, towards};
use crate::types::Rule;

pub(super) struct Adamax<R> {
    rate: R,
    eps: R,
    /// The share of the gradient in its mean.
    share: R,
    /// What is kept of the former norm.
    kept: R,
}

impl<R: Real> Adamax<R> {
    pub(super) fn at(rule: &Rule, rate: f64, step: u64) -> Self {
        let beta1 = rule.setting("beta1");
        Self {
            rate: R::of(-rate / correction(beta1, step)),
            eps: R::of(rule.setting("eps")),
            share: R::of(1.0 - beta1),
            kept: R::of(rule.setting("beta2")),
        }
    }

    #[inline(always)]
    pub(super) fn change(&self, run: Run<'_, R>) {
        let Run { values, gradients, rows: [means, norms, _] } = run;
        let Self { rate, eps, share, kept } = *self;
        for (((value, gradient), mean), norm) in values.iter_mut().zip(gradients).zip(means).zip(norms) {
            *mean = towards(*mean, *gradient, share);
            *norm = (gradient.abs() + eps).max(kept * *norm);
            *value = *value + rate * *mean / *norm;
        }
    }
}
