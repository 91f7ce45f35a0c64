//! RMSprop: plain, centered, with momentum, or both.

use super::run::{Real, Run, towards};
use crate::types::Rule;

#[inline(always)]
pub(super) fn step<R: Real>(rule: &Rule, run: Run<'_, R>) {
    let Run { values, gradients, rows: [squares, second, third], .. } = run;
    let alpha = rule.setting("alpha");
    let (rate, eps) = (R::of(-rule.setting("lr")), R::of(rule.setting("eps")));
    let (kept, taken) = (R::of(alpha), R::of(1.0 - alpha));
    let is_centered = rule.setting("centered") != 0.0;
    let (means, momenta) = if is_centered { (second, third) } else { (third, second) };
    // How each gradient is divided.
    for (at, (gradient, square)) in gradients.iter_mut().zip(squares).enumerate() {
        *square = kept * *square + taken * (*gradient * *gradient);
        let mut spread = *square;
        if is_centered {
            means[at] = towards(means[at], *gradient, taken);
            spread = spread - means[at] * means[at];
        }
        *gradient = *gradient / (spread.sqrt() + eps);
    }
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
