//! The training loop of a worker: declares, submits, waits, gives up, leaves, as its script says.

use std::collections::BTreeMap;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{TensorSpec, Time};

use super::super::engine::Ticket;
use super::super::oracle;
use super::super::workload::{Action, timing};
use super::super::world::{Context, Input, Who};
use super::{Buffer, WorkerProcess};

/// The training loop.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) at: usize,
    pub(super) running: bool,
    /// The request of the membership that it waits for.
    pub(super) waits_for: Option<u64>,
    pub(super) woken: bool,
    pub(super) done: bool,
    pub(super) operations: BTreeMap<u64, Operation>,
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

    pub(super) fn wake_if_waiting(&mut self, context: &mut Context, request: u64) {
        if self.script.waits_for.take_if(|waited| *waited == request).is_some() {
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
                    if let Ok((request, unknown)) = self.engine.declare(specs)
                        && !unknown.is_empty()
                    {
                        self.script.waits_for = Some(self.declare(request, unknown, fuse));
                    }
                }
                Action::Submit { tensor, round, timeout } => {
                    let deadline = timeout.map(|timeout| context.now + timeout);
                    self.submit(context, tensor, round, deadline);
                }
                Action::Cancel { tensor, round } => {
                    let of =
                        |(_, operation): &(&u64, &Operation)| operation.tensor == tensor && operation.round == round;
                    let ticket = self.script.operations.iter().find(of).map(|(ticket, _)| *ticket);
                    self.engine.cancel(context.now, ticket.expect("submitted before"));
                }
                Action::Barrier { name, timeout } => {
                    context.witness.arrives(self.me.who, &name, timeout == timing::BARRIER);
                    let request = self.member.member.barrier(context.now, name.clone(), timeout);
                    self.barriers.insert(request, name);
                    self.script.waits_for = Some(request);
                }
            }
            self.settle(context);
        }
    }

    fn submit(&mut self, context: &mut Context, tensor: usize, round: u64, deadline: Option<Time>) {
        let rank = self.engine.rank.0;
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
        let ticket = Ticket {
            key: spec.key(),
            name: spec.name.as_str().into(),
            source,
            destination,
            op,
            weight,
            priority,
            submitted: context.now,
            deadline,
            group: None,
        };
        let (id, declare) = self.engine.accept(context.now, ticket, &spec);
        self.script.operations.insert(id, Operation { tensor, round, outcome: None });
        if let Some(request) = declare {
            self.declare(request, vec![spec], false);
        }
    }

    fn declare(&mut self, request: u64, specs: Vec<TensorSpec>, fuse: bool) -> u64 {
        let number = self.member.member.declare(specs, fuse);
        self.declarations.insert(number, request);
        number
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
        let pending = Error::FailedPrecondition {
            what: "the engine was shut down while the operation was under way".to_owned(),
            hint: "wait for the handles before shutdown()".to_owned(),
        };
        self.script.done = true;
        self.engine.end(context.now, &pending);
        self.member.member.leave();
    }
}
