//! What a rank does with an order of the leader: it starts the operation, or ends it with the reason.

use super::Driver;
use crate::collective::host::board::Breakage;
use crate::collective::host::explain::explain;
use crate::collective::host::pending::Pending;
use crate::collective::host::road::{Part, Running};
use crate::collective::order::{Claim, Decision, Failure};
use crate::collective::{Dataflow, Goal, Memory, Operation, Ordered};
use crate::error::Error;
use crate::types::{Done, Op, Time};

impl Driver {
    /// Acts on what is next: one order, or all of a group.
    pub(super) fn obey(&mut self, now: Time) -> Result<bool, Breakage> {
        let Some(decisions) = self.board.obey(self.obeyed)? else {
            return Ok(self.orphaned && self.give_up_orphaned(now));
        };
        self.obeyed += decisions.len() as u64;
        for decision in decisions {
            self.act_on(now, decision)?;
        }
        if !self.gathered.is_empty() {
            self.devices.issue(std::mem::take(&mut self.gathered), &self.board);
        }
        Ok(true)
    }

    fn act_on(&mut self, now: Time, decision: Decision) -> Result<(), Breakage> {
        match decision {
            Decision::Fail { slot, failure } => {
                if let Some(pending) = self.pending.remove(&slot) {
                    let error = match pending.withdrawn {
                        true => Error::Cancelled,
                        false => explain(&self.ranks, slot, failure, now.since(pending.since)),
                    };
                    pending.end(error);
                }
            }
            Decision::Run { slot, claim, failed, weights } => {
                // The leader knows what this rank claimed; anything else would be written into memory of another length.
                let ours = self.pending.remove(&slot).filter(|pending| pending.operation.claim.agrees_with(&claim));
                let Some(pending) = ours else { return Err(Breakage::Confused(0)) };
                match (failed, self.refusal(&pending.operation, &weights)) {
                    (Some(rank), _) => self.hear_why(now, pending, claim, rank as usize)?,
                    (None, Some(error)) => pending.end(error),
                    (None, None) => self.begin(now, pending, claim, weights),
                }
            }
        }
        Ok(())
    }

    /// Why an operation that is ordered is not carried out, by any rank.
    fn refusal(&self, operation: &Operation, weights: &[f64]) -> Option<Error> {
        let is_whole = matches!(operation.goal, Goal::AllReduce | Goal::Join { taker: None, .. });
        if !is_whole || operation.claim.op != Op::WeightedMean {
            return None;
        }
        let total = self.dataflow(operation).map_or(0.0, |dataflow| dataflow.weight(weights));
        (total <= 0.0 || !total.is_finite()).then(|| Error::InvalidArgument {
            what: format!("the weights of tensor {}, {} add up to {total}", operation.part.key, operation.round),
            hint: "give at least one worker a weight above zero".to_owned(),
        })
    }

    fn begin(&mut self, now: Time, pending: Pending, claim: Claim, weights: Vec<f64>) {
        let Pending { operation, done, .. } = pending;
        let dataflow = self.dataflow(&operation).expect("looked at when it was accepted");
        match operation.memory {
            Memory::Host { source, destination } => {
                self.start(now, Part { claim, weights, dataflow, failure: None, source, destination }, done);
            }
            Memory::Device(memory) => {
                self.gathered.push((Ordered { dataflow, claim, weights, memory }, done));
            }
        }
    }

    /// The rank at position `from` tells the others why there is nothing. That goes the way of the host, whatever the memory is.
    fn hear_why(&mut self, now: Time, pending: Pending, claim: Claim, from: usize) -> Result<(), Breakage> {
        let Pending { operation, done, .. } = pending;
        let failure = operation.failure.filter(|_| from == self.board.me);
        if (from == self.board.me) != failure.is_some() {
            return Err(Breakage::Confused(0));
        }
        let dataflow = Dataflow::Show { from, taker: None };
        self.start(
            now,
            Part { claim, weights: Vec::new(), dataflow, failure, source: Vec::new(), destination: Vec::new() },
            done,
        );
        Ok(())
    }

    fn start(&mut self, now: Time, part: Part, done: Option<Done<f64>>) {
        self.moved = now;
        let running = Running::new(part, self.chunks, self.board.layout.chunk());
        self.current = Some((running, done));
    }

    /// The leader left in order: what it ordered was done, and it will order nothing more.
    fn give_up_orphaned(&mut self, now: Time) -> bool {
        let pending = std::mem::take(&mut self.pending);
        let any = !pending.is_empty();
        for (slot, pending) in pending {
            let left = explain(&self.ranks, slot, Failure::Left { missing: 1 }, now.since(pending.since));
            let error = if pending.withdrawn { Error::Cancelled } else { left };
            pending.end(error);
        }
        any
    }
}
