//! RMSprop: plain, centered, with momentum, or both.

use super::run::{Real, Run, towards};
use crate::types::Rule;

#[inline(always)]
pub(super) fn step<R: Real>(rule: &Rule, run: Run<'_, R>) {
    let Run { values, gradients, rows: [squares, second, third], .. } = run;
    let alpha = rule.setting("alpha");
    let (rate, eps) = (R::of(-rule.setting("lr")), R::of(rule.setting("eps")));
    let (kept, taken) = (R::of(alpha), R::of(1.0 - alpha));
    // Each gradient is divided by the root of its mean square, or of its variance.
    let momenta = if rule.setting("centered") == 0.0 {
        for (gradient, square) in gradients.iter_mut().zip(squares) {
            *square = kept * *square + taken * (*gradient * *gradient);
            *gradient = *gradient / (square.sqrt() + eps);
        }
        second
    } else {
        for ((gradient, square), mean) in gradients.iter_mut().zip(squares).zip(second) {
            *square = kept * *square + taken * (*gradient * *gradient);
            *mean = towards(*mean, *gradient, taken);
            *gradient = *gradient / ((*square - *mean * *mean).sqrt() + eps);
        }
        third
    };
    let momentum = rule.setting("momentum");
    if momentum == 0.0 {
        for (value, along) in values.iter_mut().zip(gradients) {
            *value = *value + rate * *along;
        }
        return;
    }
    let momentum = R::of(momentum);
    for ((value, along), moved) in values.iter_mut().zip(gradients).zip(momenta) {
        *moved = momentum * *moved + *along;
        *value = *value + rate * *moved;
    }
}
