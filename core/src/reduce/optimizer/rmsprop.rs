//! RMSprop: plain, centered, with momentum, or both.

use super::run::{Real, Run, towards};
use crate::types::Rule;

pub(super) struct RmsProp<R> {
    rate: R,
    eps: R,
    /// The shares of the former mean square and of the gradient's square in the next one.
    kept: R,
    taken: R,
    is_centered: bool,
    momentum: Option<R>,
}

impl<R: Real> RmsProp<R> {
    pub(super) fn of(rule: &Rule, rate: f64) -> Self {
        let (alpha, momentum) = (rule.setting("alpha"), rule.setting("momentum"));
        Self {
            rate: R::of(-rate),
            eps: R::of(rule.setting("eps")),
            kept: R::of(alpha),
            taken: R::of(1.0 - alpha),
            is_centered: rule.setting("centered") != 0.0,
            momentum: Some(R::of(momentum)).filter(|_| momentum != 0.0),
        }
    }

    #[inline(always)]
    pub(super) fn change(&self, run: Run<'_, R>) {
        let Run { values, gradients, rows: [squares, second, third] } = run;
        let Self { rate, eps, kept, taken, is_centered, momentum } = *self;
        // Each gradient is divided by the root of its mean square, or of its variance.
        let momenta = if is_centered {
            for ((gradient, square), mean) in gradients.iter_mut().zip(squares).zip(second) {
                *square = kept * *square + taken * (*gradient * *gradient);
                *mean = towards(*mean, *gradient, taken);
                *gradient = *gradient / ((*square - *mean * *mean).sqrt() + eps);
            }
            third
        } else {
            for (gradient, square) in gradients.iter_mut().zip(squares) {
                *square = kept * *square + taken * (*gradient * *gradient);
                *gradient = *gradient / (square.sqrt() + eps);
            }
            second
        };
        let Some(momentum) = momentum else {
            for (value, along) in values.iter_mut().zip(gradients) {
                *value = *value + rate * *along;
            }
            return;
        };
        for ((value, along), moved) in values.iter_mut().zip(gradients).zip(momenta) {
            *moved = momentum * *moved + *along;
            *value = *value + rate * *moved;
        }
    }
}
