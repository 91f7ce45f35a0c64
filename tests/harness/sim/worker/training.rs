//! The training loop of a worker: declares, submits, waits, gives up, leaves, as its script says.

use std::collections::BTreeMap;
use std::time::Duration;

use gradlane_core::error::Result;
use gradlane_core::types::TensorSpec;
use gradlane_core::worker::{Tensor, Terms};

use super::super::oracle;
use super::super::workload::{Action, timing};
use super::super::world::{Context, Input, Who};
use super::{Buffer, WorkerProcess};

/// The training loop.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) at: usize,
    pub(super) running: bool,
    /// What it waits for, if not for submissions.
    pub(super) waits_for: Option<Awaited>,
    pub(super) woken: bool,
    pub(super) done: bool,
    pub(super) operations: BTreeMap<u64, Operation>,
}

/// An answer of the coordinator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Awaited {
    /// To a declaration of the machine.
    Declaration(u64),
    /// To an arrival at a barrier.
    Barrier(u64),
}

/// One submission.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) tensor: usize,
    pub(super) round: u64,
    pub(super) outcome: Option<Result<()>>,
}

impl WorkerProcess {
    pub(super) fn wake(&mut self, context: &mut Context) {
        if !std::mem::replace(&mut self.script.woken, true) {
            let after = context.random.millis(0, 5);
            context.post(self.me, after, Input::Script);
        }
    }

    pub(super) fn wake_if_waiting(&mut self, context: &mut Context, answered: Awaited) {
        if self.script.waits_for.take_if(|awaited| *awaited == answered).is_some() {
            self.wake(context);
        }
    }

    pub(super) fn run_script(&mut self, context: &mut Context) {
        self.script.woken = false;
        let Who::Worker(number) = self.me.who else { unreachable!("a worker runs a script") };
        while self.script.running && !self.script.done && self.script.waits_for.is_none() {
            let Some(action) = context.plan.scripts[number as usize].get(self.script.at).cloned() else {
                return self.leave(context);
            };
            if let Action::Await { round } = action {
                let open = |operation: &Operation| operation.outcome.is_none() && operation.round <= round;
                if self.script.operations.values().any(open) {
                    return;
                }
            }
            self.script.at += 1;
            context.log.note(context.now, self.me.who, "script", &[self.script.at as u64], || format!("{action:?}"));
            match action {
                Action::Await { .. } => {}
                Action::Think(pause) => {
                    self.script.woken = true;
                    return context.post(self.me, pause, Input::Script);
                }
                Action::Declare { tensors, fuse } => {
                    let specs = tensors.iter().map(|tensor| self.spec(context, *tensor)).collect();
                    if let Ok(Some(request)) = self.worker.declare(specs, fuse) {
                        self.script.waits_for = Some(Awaited::Declaration(request));
                    }
                }
                Action::Submit { tensor, round, timeout } => {
                    context.witness.submits(self.me.who, tensor, round, timeout);
                    self.submit(context, tensor, round, timeout);
                }
                Action::Cancel { tensor, round } => {
                    context.witness.cancels(self.me.who, tensor, round);
                    let of =
                        |(_, operation): &(&u64, &Operation)| operation.tensor == tensor && operation.round == round;
                    let ticket = self.script.operations.iter().find(of).map(|(ticket, _)| *ticket);
                    self.worker.cancel(context.now, ticket.expect("submitted before"));
                }
                Action::Barrier { name, timeout } => {
                    context.witness.arrives(self.me.who, &name, timeout);
                    let request = self.member.member.barrier(context.now, name.clone(), timeout);
                    self.barriers.insert(request, name);
                    self.script.waits_for = Some(Awaited::Barrier(request));
                }
            }
            self.settle(context);
        }
    }

    fn submit(&mut self, context: &mut Context, tensor: usize, round: u64, timeout: Option<Duration>) {
        let rank = self.worker.rank().0;
        let plan = &context.plan;
        let (priority, in_place, op) =
            (plan.tensors[tensor].priority, plan.tensors[tensor].in_place, plan.op(tensor, round));
        let weight = plan.weight(tensor, round, rank) as f64;
        let source = self.memory.len();
        let contribution = oracle::contribution(plan, tensor, round, rank);
        let junk = vec![oracle::JUNK; contribution.len()];
        self.memory.push(Buffer { bytes: contribution, lent: true });
        let destination = if in_place { source } else { source + 1 };
        if !in_place {
            self.memory.push(Buffer { bytes: junk, lent: true });
        }
        let spec = self.spec(context, tensor);
        let bytes = self.memory[source].bytes.len() as u64;
        let lent = Tensor { key: spec.key(), bytes, device: None, priority };
        let id = self.worker.submit(context.now, &spec, lent, Terms { op, weight, timeout });
        self.lent.insert(id, [source, destination]);
        self.script.operations.insert(id, Operation { tensor, round, outcome: None });
    }

    /// A tensor as this worker declares it.
    fn spec(&self, context: &Context, tensor: usize) -> TensorSpec {
        let mut spec = context.plan.tensors[tensor].spec.clone();
        if context.plan.mismatch.is_some_and(|(worker, at)| (Who::Worker(worker), at) == (self.me.who, tensor)) {
            // The same bytes in another shape: found by the registry or not at all.
            spec.shape.insert(0, 1);
        }
        spec
    }

    fn leave(&mut self, context: &mut Context) {
        self.script.done = true;
        self.worker.handle_leave(context.now, timing::LEAVE);
    }
}
