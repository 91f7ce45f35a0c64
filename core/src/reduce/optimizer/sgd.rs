//! Gradient descent with momentum.

use super::run::{Real, Run};
use crate::types::Rule;

#[inline(always)]
pub(super) fn step<R: Real>(rule: &Rule, run: Run<'_, R>) {
    let Run { step, values, gradients, rows: [momenta, ..] } = run;
    let rate = R::of(-rule.setting("lr"));
    let momentum = rule.setting("momentum");
    if momentum == 0.0 {
        for (value, gradient) in values.iter_mut().zip(gradients) {
            *value = *value + rate * *gradient;
        }
        return;
    }
    let is_nesterov = rule.setting("nesterov") != 0.0;
    // The first momentum is the first gradient.
    let (kept, taken) = match step {
        1 => (R::of(0.0), R::of(1.0)),
        _ => (R::of(momentum), R::of(1.0 - rule.setting("dampening"))),
    };
    let momentum = R::of(momentum);
    for ((value, gradient), moved) in values.iter_mut().zip(gradients).zip(momenta) {
        *moved = kept * *moved + taken * *gradient;
        let along = if is_nesterov { *gradient + momentum * *moved } else { *moved };
        *value = *value + rate * along;
    }
}
