//! Gradient descent with momentum.

use super::run::{Real, Run};
use crate::types::Rule;

pub(super) struct Sgd<R> {
    rate: R,
    moving: Option<Moving<R>>,
}

/// With a momentum.
struct Moving<R> {
    momentum: R,
    /// The shares of the former momentum and of the gradient in the next one.
    kept: R,
    taken: R,
    is_nesterov: bool,
}

impl<R: Real> Sgd<R> {
    pub(super) fn at(rule: &Rule, rate: f64, step: u64) -> Self {
        let momentum = rule.setting("momentum");
        // The first momentum is the first gradient.
        let (kept, taken) = if step == 1 { (0.0, 1.0) } else { (momentum, 1.0 - rule.setting("dampening")) };
        let moving = Moving {
            momentum: R::of(momentum),
            kept: R::of(kept),
            taken: R::of(taken),
            is_nesterov: rule.setting("nesterov") != 0.0,
        };
        Self { rate: R::of(-rate), moving: Some(moving).filter(|_| momentum != 0.0) }
    }

    #[inline(always)]
    pub(super) fn change(&self, run: Run<'_, R>) {
        let Run { values, gradients, rows: [momenta, ..] } = run;
        let Some(Moving { momentum, kept, taken, is_nesterov }) = self.moving else {
            for (value, gradient) in values.iter_mut().zip(gradients) {
                *value = *value + self.rate * *gradient;
            }
            return;
        };
        for ((value, gradient), moved) in values.iter_mut().zip(gradients).zip(momenta) {
            *moved = kept * *moved + taken * *gradient;
            let along = if is_nesterov { *gradient + momentum * *moved } else { *moved };
            *value = *value + self.rate * along;
        }
    }
}
