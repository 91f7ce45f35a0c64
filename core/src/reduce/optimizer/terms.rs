//! A rule at one of its steps: its numbers, worked out once, in the type in which elements are changed.

use super::adagrad::Adagrad;
use super::adam::Adam;
use super::adamax::Adamax;
use super::lion::Lion;
use super::muon::Muon;
use super::rmsprop::RmsProp;
use super::run::{Real, Run};
use super::schedule;
use super::sgd::Sgd;
use crate::types::{Optimizer, Rule};

pub(super) struct Terms<R> {
    /// Gradients are clamped to plus or minus this.
    bound: Option<R>,
    decay: Decay<R>,
    formula: Formula<R>,
}

/// How weights decay.
enum Decay<R> {
    Not,
    /// Apart from the gradient: they are multiplied by this.
    Apart(R),
    /// As a part of the gradient: so much of them is added to it.
    InGradient(R),
}

enum Formula<R> {
    Sgd(Sgd<R>),
    Adam(Adam<R>),
    Adagrad(Adagrad<R>),
    RmsProp(RmsProp<R>),
    Adamax(Adamax<R>),
    Lion(Lion<R>),
    Muon(Muon<R>),
}

impl<R: Real> Terms<R> {
    /// Those of the step of the part with this number, from 1, which so many steps of the job precede.
    pub(super) fn at(rule: &Rule, step: u64, global_step: u64) -> Self {
        let rate = schedule::rate(rule, global_step);
        let bound = rule.setting("clip_value");
        let decay = if rule.optimizer() == Optimizer::SparseAdam { 0.0 } else { rule.setting("weight_decay") };
        let decay = match rule.optimizer() {
            _ if decay == 0.0 => Decay::Not,
            Optimizer::AdamW | Optimizer::Lion | Optimizer::Muon => Decay::Apart(R::of(1.0 - rate * decay)),
            _ => Decay::InGradient(R::of(decay)),
        };
        let formula = match rule.optimizer() {
            Optimizer::Sgd => Formula::Sgd(Sgd::at(rule, rate, step)),
            Optimizer::Adam | Optimizer::AdamW => Formula::Adam(Adam::at(rule, rate, step)),
            Optimizer::SparseAdam => Formula::Adam(Adam::sparse_at(rule, rate, step)),
            Optimizer::Adagrad => Formula::Adagrad(Adagrad::at(rule, rate, step)),
            Optimizer::RmsProp => Formula::RmsProp(RmsProp::of(rule, rate)),
            Optimizer::Adamax => Formula::Adamax(Adamax::at(rule, rate, step)),
            Optimizer::Lion => Formula::Lion(Lion::of(rule, rate)),
            Optimizer::Muon => Formula::Muon(Muon::of(rate)),
            Optimizer::RowwiseAdagrad
            | Optimizer::PaddleAdagrad
            | Optimizer::PaddleStdAdagrad
            | Optimizer::PaddleAdam
            | Optimizer::PaddleSharedAdam => unreachable!("they are `by_row`"),
        };
        Self { bound: Some(R::of(bound)).filter(|_| bound > 0.0), decay, formula }
    }

    /// Changes the values of a run.
    #[inline(always)]
    pub(super) fn change(&self, mut run: Run<'_, R>) {
        if let Some(bound) = self.bound {
            run.gradients.iter_mut().for_each(|gradient| *gradient = gradient.clamp(bound));
        }
        match self.decay {
            Decay::Not => {}
            Decay::Apart(factor) => run.scale(factor),
            Decay::InGradient(share) => run.decay(share),
        }
        match &self.formula {
            Formula::Sgd(terms) => terms.change(run),
            Formula::Adam(terms) => terms.change(run),
            Formula::Adagrad(terms) => terms.change(run),
            Formula::RmsProp(terms) => terms.change(run),
            Formula::Adamax(terms) => terms.change(run),
            Formula::Lion(terms) => terms.change(run),
            Formula::Muon(terms) => terms.change(run),
        }
    }
}
