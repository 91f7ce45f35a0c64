//! Meetings, the operations that ranks of a machine carry out together: what a rank shows the others of an operation, and what comes of what they show.

use std::collections::{BTreeMap, VecDeque};

use gradlane_core::collective::agreement::Act;
use gradlane_core::collective::order::Claim;
use gradlane_core::collective::{Dataflow, Needs};
use gradlane_core::error::Result;
use gradlane_core::reduce::{Kernels, accumulator_bytes};
use gradlane_core::sched::TaskId;
use gradlane_core::types::{DeviceKind, Unmet};

use super::super::memory::{Region, gather, scatter};
use super::{Note, WorkerProcess};
use crate::sim::world::Context;

/// What a rank brings to an operation.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) task: TaskId,
    pub(super) takes: bool,
    pub(super) source: Vec<Region>,
    pub(super) destination: Vec<Region>,
}

/// The operations in one kind of memory.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    /// How many were begun.
    pub(super) begun: u64,
    pub(super) running: VecDeque<Running>,
    /// What others showed, by operation and position among all ranks.
    pub(super) shown: BTreeMap<(u64, usize), Result<Vec<u8>>>,
}

/// An operation that all ranks carry out now.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) number: u64,
    pub(super) needs: Needs,
    pub(super) claim: Claim,
    weights: Vec<f64>,
    dataflow: Dataflow,
    /// What this rank shows the others.
    ours: Result<Vec<u8>>,
    /// Absent where nobody waits for it.
    pub(super) load: Option<Load>,
}

impl WorkerProcess {
    /// Shows the others what this rank has of an operation.
    pub(super) fn begin(&mut self, context: &mut Context, act: Act<Load>) {
        let near = self.neighbours.as_mut().expect("it has agreed on something");
        let shown_by = if let Act::Pass { shown_by, .. } = act { shown_by } else { None };
        let (place, claim, weights, dataflow, failure, load) = match act {
            Act::Run { claim, weights, dataflow, load, .. } => (claim.device, claim, weights, dataflow, None, load),
            // The way of the host, whatever the memory is, and without it.
            Act::Tell { claim, from, failure, load } => {
                let dataflow = Dataflow::Show { from, taker: None };
                let load = load.map(|load| Load { source: Vec::new(), destination: Vec::new(), ..load });
                (DeviceKind::Host, claim, Vec::new(), dataflow, failure, load)
            }
            Act::Pass { claim, .. } => (DeviceKind::Host, claim, Vec::new(), Dataflow::Nothing, None, None),
            Act::End { .. } | Act::Return { .. } => unreachable!("what ends is not begun"),
        };
        let reached = near.reached(place);
        let members = Claim::members_among(claim.members, near.peers.len()).expect("ranks name those of their machine");
        let me = reached.iter().position(|rank| *rank == near.me).expect("it reaches itself");
        let source = load.as_ref().filter(|_| dataflow.needs(me) && failure.is_none()).map(|load| &load.source);
        let ours = match (failure, source) {
            (Some(error), _) => Err(error),
            (None, Some(source)) => Ok(gather(context, self.me, &self.memory, source, place)),
            (None, None) => Ok(Vec::new()),
        };
        let meetings = near.meetings(place);
        let number = meetings.begun;
        meetings.begun += 1;
        let shows = match dataflow {
            Dataflow::Reduce { .. } => true,
            Dataflow::Show { from, .. } => from == me,
            Dataflow::Keep { .. } | Dataflow::Nothing => false,
        };
        // On devices only the weights of those count that reach each other.
        let weights = match place {
            DeviceKind::Host => weights,
            DeviceKind::Cuda => reached.iter().map(|rank| weights[*rank]).collect(),
        };
        // A rank that is no member shows nothing.
        let shows = shows && members & (1 << near.me) != 0;
        let own = near.me;
        for to in reached.into_iter().filter(|to| shows && *to != own && members & (1 << *to) != 0) {
            near.send(context, to, Note::Shown { place, number, what: ours.clone() });
        }
        if place == DeviceKind::Host {
            near.board(context).begin(own);
        }
        let needs = Needs::of(&claim, dataflow, shown_by, near.peers.len());
        let running = &mut near.meetings(place).running;
        assert!(place == DeviceKind::Cuda || running.is_empty(), "operations in host memory take turns");
        running.push_back(Running { number, needs, claim, weights, dataflow, ours, load });
    }

    /// Ends the oldest operation in this kind of memory, if all was shown that it needs.
    pub(super) fn complete(&mut self, context: &mut Context, place: DeviceKind) -> bool {
        let near = self.neighbours.as_mut().expect("it has begun something");
        let reached = near.reached(place);
        let own = near.me;
        // Where a rank was lost meanwhile, all that are left must find the same.
        if let Some(running) = near.host.running.front().filter(|_| place == DeviceKind::Host && near.outlives())
            && !near.survives(running, context)
        {
            return false;
        }
        let meetings = near.meetings(place);
        let Some(running) = meetings.running.front() else { return false };
        let number = running.number;
        let needed: Vec<usize> = match running.dataflow {
            Dataflow::Reduce { of, .. } => {
                reached.iter().enumerate().filter(|(at, _)| of & (1 << at) != 0).map(|(_, rank)| *rank).collect()
            }
            Dataflow::Show { from, .. } => vec![reached[from]],
            Dataflow::Keep { .. } | Dataflow::Nothing => Vec::new(),
        };
        if needed.iter().any(|rank| *rank != own && !meetings.shown.contains_key(&(number, *rank))) {
            return false;
        }
        let mut running = meetings.running.pop_front().expect("looked at above");
        let mut shown: Vec<Result<Vec<u8>>> = Vec::new();
        for rank in needed {
            shown.push(match rank == own {
                true => std::mem::replace(&mut running.ours, Ok(Vec::new())),
                false => meetings.shown.remove(&(number, rank)).expect("looked at above"),
            });
        }
        if place == DeviceKind::Host {
            near.agreement.handle_host_ended();
        }
        let me = reached.iter().position(|rank| *rank == own).expect("it reaches itself");
        let Running { claim, weights, dataflow, load, ours, .. } = running;
        let of_whole = match dataflow {
            // Not what PCIe groups have reduced before.
            Dataflow::Reduce { of, whole_of: Some(all), .. } if place == DeviceKind::Host && of.count_ones() == all => {
                near.ranks.iter().enumerate().filter(|(at, _)| of & (1 << at) != 0).map(|(_, rank)| *rank).collect()
            }
            _ => Vec::new(),
        };
        let Some(load) = load else { return true };
        let outcome = result_of(&claim, &weights, dataflow, shown, ours).map(|result| {
            if dataflow.leads_to(me) && !load.destination.is_empty() {
                scatter(context, self.me, &self.memory, &load.destination, &result, place);
            }
            dataflow.weight(&weights)
        });
        // Where no worker is lost, whole tensors are checked.
        let is_checked = outcome.is_ok() && dataflow.leads_to(me) && context.plan.classes.survivors;
        if is_checked && !of_whole.is_empty() && !load.destination.is_empty() {
            self.check_reduced(context, load.task, &of_whole);
        }
        self.met(context, load, outcome.map_err(Unmet::Failed));
        true
    }

    pub(super) fn met(&mut self, context: &mut Context, load: Load, outcome: std::result::Result<f64, Unmet>) {
        if outcome.is_ok() && load.takes {
            self.payload(load.task).contribute_result();
        }
        self.worker.handle_met(context.now, load.task, load.takes, outcome);
    }
}

/// What comes of what the ranks showed, in their order, with the arithmetic of the product.
fn result_of(
    claim: &Claim,
    weights: &[f64],
    dataflow: Dataflow,
    shown: Vec<Result<Vec<u8>>>,
    ours: Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let Claim { op, dtype, bytes, .. } = *claim;
    match dataflow {
        Dataflow::Reduce { of, .. } => {
            let kernels = Kernels::portable();
            let (op, divisor) = dataflow.reduction(op, weights);
            let mut sum = vec![0; accumulator_bytes(dtype, bytes) as usize];
            let weights =
                weights.iter().enumerate().filter(|(rank, _)| of & (1 << rank) != 0).map(|(_, weight)| weight);
            for (turn, (contribution, weight)) in shown.into_iter().zip(weights).enumerate() {
                match turn {
                    0 => kernels.start(op, dtype, *weight, &contribution?, &mut sum),
                    _ => kernels.add(op, dtype, *weight, &contribution?, &mut sum),
                }
            }
            let mut result = vec![0; bytes as usize];
            kernels.finish(op, dtype, divisor, &sum, &mut result);
            Ok(result)
        }
        Dataflow::Show { .. } => shown.into_iter().next().expect("one rank shows something"),
        Dataflow::Keep { .. } => ours,
        Dataflow::Nothing => Ok(Vec::new()),
    }
}
