//! Muon: a momentum of a matrix, made orthogonal ("Muon: An optimizer for hidden layers in neural networks", K. Jordan, 2024).

use super::matrix::orthogonalise;
use super::run::{Real, Run, towards};
use crate::reduce::kernels::Kernels;
use crate::types::Rule;

pub(super) struct Muon<R> {
    rate: R,
}

impl<R: Real> Muon<R> {
    pub(super) fn of(rate: f64) -> Self {
        Self { rate: R::of(-rate) }
    }

    /// Goes along what [`aim`] has made.
    #[inline(always)]
    pub(super) fn change(&self, run: Run<'_, R>) {
        let Run { values, rows: [_, along, _], .. } = run;
        values.iter_mut().zip(along).for_each(|(value, along)| *value = *value + self.rate * *along);
    }
}

/// Makes of the gradient of a whole matrix what a step goes along, and counts it in the momenta. PyTorch orthogonalises in bf16, this in the
/// type in which elements are changed.
pub(super) fn aim<R: Real>(kernels: Kernels, rule: &Rule, momenta: &mut [R], gradient: &mut [R]) {
    let (bound, momentum) = (rule.setting("clip_value"), rule.setting("momentum"));
    let (taken, kept, is_nesterov) = (R::of(1.0 - momentum), R::of(momentum), rule.setting("nesterov") != 0.0);
    for (gradient, moved) in gradient.iter_mut().zip(momenta) {
        if bound > 0.0 {
            *gradient = gradient.clamp(R::of(bound));
        }
        *moved = towards(*moved, *gradient, taken);
        *gradient = if is_nesterov { towards(*gradient, *moved, kept) } else { *moved };
    }
    let rows = rule.setting("rows");
    let columns = gradient.len() as f64 / rows;
    orthogonalise(kernels, rows as usize, R::of(rule.setting("eps")), gradient);
    let factor = R::of(match rule.setting("adjust") as usize {
        0 => (rows / columns).max(1.0).sqrt(),
        1 => 0.2 * rows.max(columns).sqrt(),
        _ => (rows / columns).sqrt(),
    });
    gradient.iter_mut().for_each(|along| *along = *along * factor);
}
