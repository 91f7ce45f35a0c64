//! The training loop of a worker: declares, submits, waits, gives up, leaves, as its script says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use gradlane_core::error::{Error, Result};
use gradlane_core::mem::Ordinal;
use gradlane_core::types::{Demand, DeviceKind, TensorSpec, Ticked};
use gradlane_core::worker::{Accepted, Tally, Tensor, Terms};

use super::super::checkers::Checker;
use super::super::oracle;
use super::super::workload::{self, Action, timing};
use super::super::world::{Context, Input, Who};
use super::uses::Used;
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
    /// Uses of parameters, by submission.
    pub(super) uses: BTreeMap<u64, Used>,
    /// Batches that have not ended, by their first submission.
    pub(super) batches: BTreeMap<u64, Batch>,
    /// Where this worker stands on the clock: the rounds that it has finished, and the global step.
    pub(super) clock: Ticked,
}

/// An answer of the coordinator, or of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Awaited {
    /// To a declaration of the machine.
    Declaration(u64),
    /// To an arrival at a barrier.
    Barrier(u64),
    /// The machine has nothing left for names that end.
    Ending(u64),
    /// To a tick of the clock.
    Tick(u64),
}

/// One submission.
#[derive(Debug)]
pub(super) struct Operation {
    /// Its tensors and their rounds; several where they fill a part between them.
    pub(super) members: Vec<(usize, u64)>,
    /// The batch that it is of.
    pub(super) batch: Option<u64>,
    pub(super) outcome: Option<Result<()>>,
}

/// Several submissions that the caller waits for as one.
#[derive(Debug)]
pub(super) struct Batch {
    /// Those that have not ended.
    pub(super) open: BTreeSet<u64>,
    /// What decides when it ends.
    pub(super) tally: Tally,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of: Vec<String> = self.members.iter().map(|(tensor, round)| format!("{tensor}/{round}")).collect();
        write!(f, "tensor/round {}", of.join(" + "))
    }
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
                let open = |operation: &Operation| {
                    operation.outcome.is_none() && operation.members.iter().any(|(_, of)| *of <= round)
                };
                if self.script.operations.values().any(open) {
                    return;
                }
            }
            if let Action::AwaitUses = action
                && self.script.uses.values().any(|used| used.outcome.is_none())
            {
                return;
            }
            if let Action::Step = action
                && !self.begin_step(context)
            {
                return;
            }
            self.script.at += 1;
            context.log.note(context.now, self.me.who, "script", &[self.script.at as u64], || format!("{action:?}"));
            match action {
                Action::Await { .. } | Action::AwaitUses | Action::Step => {}
                Action::Rest => self.rest(context),
                Action::Use { parameter, access, timeout } => self.use_parameter(context, parameter, access, timeout),
                Action::BeginRound { round, actions } => {
                    self.script.at += if self.script.clock.round >= round { actions } else { 0 };
                }
                Action::Tick => self.tick(context, false),
                Action::LeaveClock => self.tick(context, true),
                Action::Ask { asking, patience } => self.ask_store(context, asking, patience),
                Action::CancelUse { parameter } => self.cancel_use(context, parameter),
                Action::Undeclare { tensors } => {
                    let name = |tensor: &usize| context.plan.tensors[*tensor].spec.name.clone();
                    if !self.undeclare(context, tensors.iter().map(name).collect()) {
                        return;
                    }
                }
                Action::UndeclareParameters => {
                    let unclocked = context.plan.parameters.iter().filter(|of| of.spec.kind.mode().clock.is_none());
                    let names = unclocked.map(|parameter| parameter.spec.name.clone());
                    if !self.undeclare(context, names.collect()) {
                        return;
                    }
                }
                Action::Think(pause) => {
                    self.script.woken = true;
                    return context.post(self.me, pause, Input::Script);
                }
                Action::Declare { tensors, fuse } => {
                    let specs = tensors.iter().map(|tensor| self.spec(context, *tensor)).collect();
                    if let Some(request) =
                        self.worker.declare(specs, fuse).ok().and_then(|asked| asked.first().copied())
                    {
                        self.script.waits_for = Some(Awaited::Declaration(request));
                    }
                }
                Action::Submit { tensor, round, timeout } => {
                    context.witness.submits(self.me.who, tensor, round, timeout);
                    self.submit(context, tensor, round, timeout);
                }
                Action::SubmitAll { members, timeout } => self.submit_all(context, members, timeout),
                Action::Cancel { tensor, round } => {
                    context.witness.cancels(self.me.who, tensor, round);
                    let of = |(_, operation): &(&u64, &Operation)| operation.members.contains(&(tensor, round));
                    let ticket = self.script.operations.iter().find(of).map(|(ticket, _)| *ticket);
                    self.worker.cancel(context.now, ticket.expect("submitted before"));
                }
                Action::Barrier { name, patience } => {
                    context.witness.arrives(self.me.who, &name, patience);
                    let request = self.member.member.barrier(context.now, name.clone(), patience);
                    self.barriers.insert(request, name);
                    self.script.waits_for = Some(Awaited::Barrier(request));
                }
            }
            self.settle(context);
        }
    }

    /// Uses these names no more. Returns false if it tries again later.
    fn undeclare(&mut self, context: &mut Context, names: Vec<String>) -> bool {
        match self.worker.undeclare(&names) {
            Ok(request) => self.script.waits_for = Some(Awaited::Ending(request)),
            // The declaration of one has no answer yet, though its submission has ended.
            Err(Error::FailedPrecondition { .. }) => {
                self.script.at -= 1;
                self.script.woken = true;
                context.post(self.me, Duration::from_millis(50), Input::Script);
                return false;
            }
            Err(_) if self.worker.ended().is_some() => {}
            Err(error) => {
                let text = format!("{}: {names:?} cannot end: {error}", self.me.who);
                context.witness.fail(context.now, Checker::Failure, text);
            }
        }
        true
    }

    fn submit(&mut self, context: &mut Context, tensor: usize, round: u64, timeout: Option<Duration>) {
        let (lent, described) = self.lend(context, tensor, round);
        let (spec, terms) = (self.spec(context, tensor), self.terms(context, tensor, round, timeout));
        let id = self.worker.submit(context.now, &spec, described, terms);
        self.lent.insert(id, vec![lent]);
        self.script.operations.insert(id, Operation { members: vec![(tensor, round)], batch: None, outcome: None });
    }

    /// Submits a batch. If it is refused, nothing of it was submitted, and the caller tries its members one by one.
    fn submit_all(&mut self, context: &mut Context, members: Vec<(usize, u64)>, timeout: Option<Duration>) {
        for (tensor, round) in &members {
            context.witness.submits(self.me.who, *tensor, *round, timeout);
        }
        let specs: Vec<TensorSpec> = members.iter().map(|(tensor, _)| self.spec(context, *tensor)).collect();
        let (lent, described): (Vec<[usize; 2]>, Vec<Tensor>) =
            members.iter().map(|(tensor, round)| self.lend(context, *tensor, *round)).unzip();
        let (tensor, round) = members[0];
        let terms = self.terms(context, tensor, round, timeout);
        let Accepted { first, submissions } =
            match self.worker.submit_all(context.now, &specs, |member| described[member].clone(), terms) {
                Ok(accepted) => accepted,
                Err(error) => {
                    context.witness.refuses(self.me.who, &members, &error);
                    lent.into_iter().flatten().for_each(|buffer| self.give_back(buffer));
                    for (tensor, round) in members {
                        self.submit(context, tensor, round, timeout);
                    }
                    return;
                }
            };
        let ids = first..first + submissions.len() as u64;
        for (id, of) in ids.clone().zip(&submissions) {
            let of = of.as_slice();
            self.lent.insert(id, of.iter().map(|member| lent[*member]).collect());
            let members = of.iter().map(|member| members[*member]).collect();
            self.script.operations.insert(id, Operation { members, batch: Some(first), outcome: None });
        }
        let tally = Tally::new(submissions.len(), context.plan.defect);
        self.script.batches.insert(first, Batch { open: ids.collect(), tally });
    }

    /// The memory of a round of a tensor, filled with this worker's contribution, and what the machine is told of it.
    fn lend(&mut self, context: &Context, tensor: usize, round: u64) -> ([usize; 2], Tensor) {
        let plan = &context.plan;
        self.hold_feedback(plan, tensor);
        let workload::Tensor { spec, priority, in_place, on_device, in_copies, .. } = &plan.tensors[tensor];
        let place = if *on_device { DeviceKind::Cuda } else { DeviceKind::Host };
        let source = self.memory.len();
        let contribution = oracle::contribution(plan, tensor, round, self.worker.rank().0);
        let bytes = contribution.len() as u64;
        self.memory.push(Buffer::new(contribution.to_vec(), place));
        let destination = if *in_place { source } else { source + 1 };
        if !in_place {
            self.memory.push(Buffer::new(vec![oracle::JUNK; bytes as usize], place));
        }
        let device = if *on_device { Some(Ordinal(0)) } else { None };
        (
            [source, destination],
            Tensor {
                key: spec.key(),
                bytes,
                device,
                in_copies: *in_copies,
                in_place: *in_place,
                priority: *priority,
                cuts: None,
            },
        )
    }

    fn terms(&self, context: &Context, tensor: usize, round: u64, timeout: Option<Duration>) -> Terms {
        let weight = context.plan.weight(tensor, round, self.worker.rank().0) as f64;
        Terms { demand: Demand::Reduce { op: context.plan.op(tensor, round), weight }, timeout }
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
