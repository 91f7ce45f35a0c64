//! Lion, from "Symbolic Discovery of Optimization Algorithms" (arXiv:2302.06675).

use super::run::{Real, Run, towards};
use crate::types::Rule;

pub(super) struct Lion<R> {
    rate: R,
    /// The shares of the gradient in what a step goes along, and in its mean.
    of_step: R,
    of_mean: R,
}

impl<R: Real> Lion<R> {
    pub(super) fn of(rule: &Rule, rate: f64) -> Self {
        Self {
            rate: R::of(-rate),
            of_step: R::of(1.0 - rule.setting("beta1")),
            of_mean: R::of(1.0 - rule.setting("beta2")),
        }
    }

    #[inline(always)]
    pub(super) fn change(&self, run: Run<'_, R>) {
        let Run { values, gradients, rows: [means, ..] } = run;
        let Self { rate, of_step, of_mean } = *self;
        for ((value, gradient), mean) in values.iter_mut().zip(gradients).zip(means) {
            *value = *value + rate * towards(*mean, *gradient, of_step).sign();
            *mean = towards(*mean, *gradient, of_mean);
        }
    }
}
