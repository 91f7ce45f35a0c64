//! The learning rate of each step.

use std::f64::consts::PI;

use crate::types::{Rule, Schedule};

/// That of the step which `before` steps precede.
///
/// A warm-up of W steps comes first, in which the rate is lr·min(1, (k+1)/W) with k steps before. Then k is counted anew, and the schedule's
/// formula holds: that of PyTorch's `StepLR`, `CosineAnnealingLR` and `PolynomialLR`. The latter two end after `steps` steps, and the rate
/// stays what it is there.
pub(super) fn rate(rule: &Rule, before: u64) -> f64 {
    let (rate, warm_up) = (rule.setting("lr"), rule.setting("warm_up"));
    let before = before as f64;
    if before < warm_up {
        return rate * ((before + 1.0) / warm_up);
    }
    let before = before - warm_up;
    let share = || (before / rule.setting("steps")).min(1.0);
    match rule.schedule() {
        Schedule::Const => rate,
        Schedule::Step => rate * rule.setting("gamma").powf((before / rule.setting("every")).floor()),
        Schedule::Cosine => {
            let minimum = rule.setting("minimum");
            minimum + (rate - minimum) * ((1.0 + (PI * share()).cos()) / 2.0)
        }
        Schedule::Poly => rate * (1.0 - share()).powf(rule.setting("power")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_schedule_gives_its_rates() {
        for (text, expected) in [
            ("sgd:lr=8", [8.0; 7]),
            ("sgd:lr=8,warm_up=4", [2.0, 4.0, 6.0, 8.0, 8.0, 8.0, 8.0]),
            ("sgd:lr=8,schedule=step,every=2,gamma=0.5", [8.0, 8.0, 4.0, 4.0, 2.0, 2.0, 1.0]),
            ("sgd:lr=8,schedule=step,every=1,gamma=0.5,warm_up=2", [4.0, 8.0, 8.0, 4.0, 2.0, 1.0, 0.5]),
            (
                "sgd:lr=9,schedule=cosine,steps=4,minimum=1",
                [9.0, 5.0 + 8.0_f64.sqrt(), 5.0, 5.0 - 8.0_f64.sqrt(), 1.0, 1.0, 1.0],
            ),
            ("sgd:lr=8,schedule=poly,steps=4", [8.0, 6.0, 4.0, 2.0, 0.0, 0.0, 0.0]),
            ("sgd:lr=8,schedule=poly,steps=4,power=2,warm_up=1", [8.0, 8.0, 4.5, 2.0, 0.5, 0.0, 0.0]),
        ] {
            let rule = text.parse().unwrap();
            for (before, expected) in (0..).zip(expected) {
                let found = rate(&rule, before);
                assert!((found - expected).abs() < 1e-12, "{text} after {before} steps: {found} {expected}");
            }
        }
    }

    #[test]
    fn the_longest_training_ends_at_the_last_rate() {
        for (text, last) in [
            ("sgd:lr=1,schedule=step,every=10", 0.0),
            ("sgd:lr=1,schedule=cosine,steps=10,minimum=0.5", 0.5),
            ("sgd:lr=1,schedule=poly,steps=10", 0.0),
        ] {
            assert_eq!(rate(&text.parse().unwrap(), u64::MAX), last, "{text}");
        }
    }
}
