//! Rules that keep numbers of a row as a whole, or a number of steps for each row. Those of Paddle have the formulas and the order of its sparse
//! tables.

use super::schedule;
use crate::types::{Optimizer, Rule};

/// Such a rule at one of its steps.
pub(super) struct ByRow {
    /// Gradients are clamped to plus or minus this.
    clip: Option<f32>,
    /// So much of the values is added to the gradients.
    decay: f32,
    rate: f32,
    formula: Formula,
}

enum Formula {
    /// Keeps the sum of the mean squares of gradients.
    RowwiseAdagrad { eps: f32 },
    /// Keeps the same. A step is by the sum before it, and the first ones have their full length.
    PaddleAdagrad { initial: f32 },
    /// Keeps a sum of squares for each element.
    PaddleStdAdagrad { initial: f32 },
    /// Keeps two moments of each element, and the powers of both betas.
    PaddleAdam(Betas),
    /// Keeps two moments of the row, and the powers of both betas.
    PaddleSharedAdam(Betas),
}

#[derive(Clone, Copy)]
struct Betas {
    first: f32,
    second: f32,
    eps: f32,
}

impl ByRow {
    /// Writes what it keeps of a row that it has not changed yet.
    pub(super) fn begin(rule: &Rule, kept: &mut [f32]) {
        kept.fill(match rule.optimizer() {
            Optimizer::RowwiseAdagrad => rule.setting("initial_accumulator_value") as f32,
            _ => 0.0,
        });
        if let (Optimizer::PaddleAdam | Optimizer::PaddleSharedAdam, [.., first, second]) = (rule.optimizer(), kept) {
            (*first, *second) = (rule.setting("beta1") as f32, rule.setting("beta2") as f32);
        }
    }

    /// The rule where `before` steps of the training precede; its schedule follows them.
    pub(super) fn at(rule: &Rule, before: u64) -> Self {
        let setting = |name| rule.setting(name) as f32;
        let betas = || Betas { first: setting("beta1"), second: setting("beta2"), eps: setting("eps") };
        let (decay, formula) = match rule.optimizer() {
            Optimizer::RowwiseAdagrad => (setting("weight_decay"), Formula::RowwiseAdagrad { eps: setting("eps") }),
            Optimizer::PaddleAdagrad => (0.0, Formula::PaddleAdagrad { initial: setting("initial_g2sum") }),
            Optimizer::PaddleStdAdagrad => (0.0, Formula::PaddleStdAdagrad { initial: setting("initial_g2sum") }),
            Optimizer::PaddleAdam => (0.0, Formula::PaddleAdam(betas())),
            Optimizer::PaddleSharedAdam => (0.0, Formula::PaddleSharedAdam(betas())),
            other => unreachable!("{} changes each element by itself", other.name()),
        };
        let clip = Some(setting("clip_value")).filter(|clip| *clip > 0.0);
        Self { clip, decay, rate: schedule::rate(rule, before) as f32, formula }
    }

    /// Changes the values of a row and what is kept of it.
    #[inline(always)]
    pub(super) fn change(&self, values: &mut [f32], gradient: &mut [f32], kept: &mut [f32]) {
        if let Some(clip) = self.clip {
            gradient.iter_mut().for_each(|number| *number = number.clamp(-clip, clip));
        }
        if self.decay > 0.0 {
            gradient.iter_mut().zip(&*values).for_each(|(number, value)| *number += self.decay * value);
        }
        let (rate, dim) = (self.rate, values.len());
        let elements = values.iter_mut().zip(&*gradient);
        match self.formula {
            Formula::RowwiseAdagrad { eps } => {
                kept[0] += mean(gradient.iter().map(|number| number * number));
                let rate = rate / (kept[0].sqrt() + eps);
                elements.for_each(|(value, number)| *value -= rate * number);
            }
            Formula::PaddleAdagrad { initial } => {
                let rate = rate * (initial / (initial + kept[0])).sqrt();
                elements.for_each(|(value, number)| *value -= rate * number);
                kept[0] += mean(gradient.iter().map(|number| number * number));
            }
            Formula::PaddleStdAdagrad { initial } => {
                for ((value, number), sum) in elements.zip(kept) {
                    *value -= rate * number * (initial / (initial + *sum)).sqrt();
                    *sum += number * number;
                }
            }
            Formula::PaddleAdam(betas) => {
                let (moments, powers) = kept.split_at_mut(2 * dim);
                let (firsts, seconds) = moments.split_at_mut(dim);
                let rate = betas.rate(rate, powers);
                for (((value, number), first), second) in elements.zip(firsts).zip(seconds) {
                    [*first, *second] = betas.moments([*first, *second], *number);
                    *value -= rate * *first / (second.sqrt() + betas.eps);
                }
                betas.raise(powers);
            }
            Formula::PaddleSharedAdam(betas) => {
                let (shared, powers) = kept.split_at_mut(2);
                let (rate, before) = (betas.rate(rate, powers), [shared[0], shared[1]]);
                for (value, number) in elements {
                    let [first, second] = betas.moments(before, *number);
                    *value -= rate * first / (second.sqrt() + betas.eps);
                }
                for (at, moment) in shared.iter_mut().enumerate() {
                    *moment = mean(gradient.iter().map(|number| betas.moments(before, *number)[at]));
                }
                betas.raise(powers);
            }
        }
    }
}

impl Betas {
    /// The rate by the powers of a row.
    #[inline(always)]
    fn rate(self, rate: f32, powers: &[f32]) -> f32 {
        rate * (1.0 - powers[1]).sqrt() / (1.0 - powers[0])
    }

    #[inline(always)]
    fn moments(self, [first, second]: [f32; 2], number: f32) -> [f32; 2] {
        [self.first * first + (1.0 - self.first) * number, self.second * second + (1.0 - self.second) * number * number]
    }

    #[inline(always)]
    fn raise(self, powers: &mut [f32]) {
        powers[0] *= self.first;
        powers[1] *= self.second;
    }
}

/// The mean of some numbers, which are added up in f64.
#[inline(always)]
fn mean(numbers: impl ExactSizeIterator<Item = f32>) -> f32 {
    let count = numbers.len();
    (numbers.map(f64::from).sum::<f64>() / count as f64) as f32
}

#[cfg(test)]
mod tests {
    use crate::reduce::{Kernels, RowRule};

    /// Values after each of the gradients, from 1 and -1.
    fn steps(text: &str, gradients: &[[f32; 2]]) -> Vec<[f32; 2]> {
        let rule = RowRule::new(text.parse().unwrap(), 2, None, Kernels::detect());
        let mut row = vec![0.0; rule.len()];
        row[..2].copy_from_slice(&[1.0, -1.0]);
        rule.begin(&mut row);
        let change = |(before, gradient): (usize, &[f32; 2])| {
            rule.at(before as u64).change(&mut row, &mut gradient.clone());
            [row[0], row[1]]
        };
        gradients.iter().enumerate().map(change).collect()
    }

    #[track_caller]
    fn assert_near(found: &[[f32; 2]], due: &[[f64; 2]]) {
        assert_eq!(found.len(), due.len());
        for (found, due) in found.iter().flatten().zip(due.iter().flatten()) {
            assert!((f64::from(*found) - due).abs() < 2e-6, "{found} for {due}");
        }
    }

    const GRADIENTS: [[f32; 2]; 2] = [[0.5, -1.0], [2.0, 0.25]];

    #[test]
    fn adagrad_by_row_divides_by_the_root_of_the_mean_squares_that_it_has_added_up() {
        let first: f64 = (0.25 + 1.0) / 2.0;
        let second = first + (4.0 + 0.0625) / 2.0;
        let one = [1.0 - 0.1 * 0.5 / first.sqrt(), -1.0 + 0.1 / first.sqrt()];
        let two = [one[0] - 0.1 * 2.0 / second.sqrt(), one[1] - 0.1 * 0.25 / second.sqrt()];
        assert_near(&steps("rowwiseadagrad:lr=0.1", &GRADIENTS), &[one, two]);
    }

    #[test]
    fn adagrad_of_paddle_takes_the_sum_before_the_step() {
        let root = (3.0f64 / (3.0 + 0.625)).sqrt();
        let one = [1.0 - 0.05 * 0.5, -1.0 + 0.05];
        let two = [one[0] - 0.05 * 2.0 * root, one[1] - 0.05 * 0.25 * root];
        assert_near(&steps("paddleadagrad", &GRADIENTS), &[one, two]);
        let [left, right] = [0.25, 1.0].map(|sum| (3.0f64 / (3.0 + sum)).sqrt());
        let two = [one[0] - 0.05 * 2.0 * left, one[1] - 0.05 * 0.25 * right];
        assert_near(&steps("paddlestdadagrad", &GRADIENTS), &[one, two]);
    }

    #[test]
    fn adam_of_paddle_counts_the_steps_of_each_row() {
        let due = |moments: fn(&mut [[f64; 2]; 2], [[f64; 2]; 2])| {
            let (mut kept, mut value) = ([[0.0f64; 2]; 2], [1.0f64, -1.0]);
            let mut values = Vec::new();
            for (step, gradient) in GRADIENTS.iter().enumerate() {
                let power = step as i32 + 1;
                let rate = 0.1 * (1.0 - 0.99f64.powi(power)).sqrt() / (1.0 - 0.9f64.powi(power));
                let of_element = [0, 1].map(|at| {
                    let [first, second] = kept[at];
                    let number = f64::from(gradient[at]);
                    [0.9 * first + 0.1 * number, 0.99 * second + 0.01 * number * number]
                });
                for (value, [first, second]) in value.iter_mut().zip(of_element) {
                    *value -= rate * first / (second.sqrt() + 1e-8);
                }
                moments(&mut kept, of_element);
                values.push(value);
            }
            values
        };
        let own = due(|kept, of_element| *kept = of_element);
        assert_near(&steps("paddleadam:lr=0.1,beta2=0.99", &GRADIENTS), &own);
        let shared = due(|kept, [one, two]| *kept = [[(one[0] + two[0]) / 2.0, (one[1] + two[1]) / 2.0]; 2]);
        assert_near(&steps("paddlesharedadam:lr=0.1,beta2=0.99", &GRADIENTS), &shared);
    }

    #[test]
    fn clipping_and_decay_come_before_the_formula() {
        let clipped = steps("paddleadagrad:clip_value=0.25", &[[0.5, -1.0]]);
        assert_eq!(clipped, steps("paddleadagrad", &[[0.25, -0.25]]));
        let decayed = steps("rowwiseadagrad:weight_decay=0.5", &[[0.5, -1.0]]);
        assert_eq!(decayed, steps("rowwiseadagrad", &[[1.0, -1.5]]));
    }
}
