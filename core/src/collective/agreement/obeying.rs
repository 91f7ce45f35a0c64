//! Acts on an order of the leader: begins the operation, or ends it with the reason.

use super::words::{Act, Wish};
use super::{Agreement, Pending};
use crate::collective::explain::explain;
use crate::collective::order::{Claim, Decision, Failure};
use crate::collective::ranks::Breakage;
use crate::error::Error;
use crate::types::{Defect, Goal, Op, Time, Unmet, planted, total_weight};

impl<L> Agreement<L> {
    /// Acts on the next decision: one order, or all orders of a group.
    ///
    /// # Errors
    /// If it has no meaning here.
    ///
    /// # Panics
    /// Unless it [may](Self::may_obey).
    pub fn obey(&mut self, now: Time, decisions: Vec<Decision>) -> Result<(), Breakage> {
        assert!(self.may_obey(), "an operation in host memory is under way");
        self.turns.obeyed(decisions.len());
        if planted(self.party.defect, Defect::OrdersSwapped) && self.party.me > 0 && self.held_back.is_empty() {
            self.held_back = decisions;
            return Ok(());
        }
        let held_back = std::mem::take(&mut self.held_back);
        decisions.into_iter().chain(held_back).try_for_each(|decision| self.act_on(now, decision))
    }

    /// This rank has obeyed all orders of the leader. If the leader has left, ends the pending operations, or parts from the others. Returns
    /// whether there was something to do.
    pub fn settle_orphans(&mut self, now: Time) -> bool {
        if !self.has_orphans() {
            return false;
        }
        if self.party.goes_on {
            self.part();
            return true;
        }
        for (slot, pending) in std::mem::take(&mut self.pending) {
            let left = explain(&self.party.ranks, slot, Failure::Left { missing: 1 }, now.since(pending.since));
            let error = if pending.withdrawn { Error::Cancelled } else { left };
            self.end(pending, error);
        }
        true
    }

    /// A rank was lost, and this rank has ended all that those that are left end: gives the other operations back, those that come later
    /// too.
    pub fn part_from_lost(&mut self, why: Error) {
        self.parting = Some(why.clone());
        let unbegun = std::mem::take(&mut self.acts);
        let give_back = |load| Act::Return { load, why: why.clone() };
        self.acts.extend(unbegun.into_iter().filter_map(|act| act.unbegun(give_back)));
        self.part();
    }

    /// The ranks have parted: gives the operations back that no rank has begun, those that come later too.
    fn part(&mut self) {
        let leader = Some(&self.party.ranks[0]).filter(|_| self.orphaned);
        let why = self.parting.clone().unwrap_or_else(|| super::left(leader));
        self.closed.get_or_insert_with(|| Unmet::NotBegun(why.clone()));
        self.due.clear();
        self.unsaid.clear();
        for pending in std::mem::take(&mut self.pending).into_values() {
            let Some(load) = pending.load else { continue };
            self.acts.push_back(match pending.withdrawn {
                true => Act::End { load, error: Error::Cancelled },
                false => Act::Return { load, why: why.clone() },
            });
        }
    }

    fn act_on(&mut self, now: Time, decision: Decision) -> Result<(), Breakage> {
        match decision {
            Decision::Part => self.part(),
            Decision::Fail { slot, failure } => {
                if let Some(pending) = self.pending.remove(&slot) {
                    let error = match pending.withdrawn {
                        true => Error::Cancelled,
                        false => explain(&self.party.ranks, slot, failure, now.since(pending.since)),
                    };
                    self.end(pending, error);
                }
            }
            Decision::Run { slot, claim, failed, weights } => {
                // All ranks read the same decision, so they all find the same fault in it.
                let members =
                    Claim::members_among(claim.members, self.party.ranks.len()).ok_or(Breakage::Confused(0))?;
                if members & (1 << self.party.me) == 0 {
                    let root = if let Op::Broadcast { root } = claim.op { self.party.position(root) } else { None };
                    let shown_by = failed.map(|rank| rank as usize).or(root);
                    self.acts.push_back(Act::Pass { claim, shown_by });
                    return Ok(());
                }
                // The claim must agree with this rank's own. Otherwise data could go into memory of another length.
                let ours = self.pending.remove(&slot).filter(|pending| pending.wish.claim.agrees_with(&claim));
                let Some(pending) = ours else { return Err(Breakage::Confused(0)) };
                match (failed, self.refusal(&pending.wish, &weights)) {
                    (Some(rank), _) => self.tell_why(pending, claim, rank as usize)?,
                    (None, Some(error)) => self.end(pending, error),
                    (None, None) => {
                        let dataflow = self.share(&pending.wish).expect("looked at when it was accepted");
                        let Pending { wish, load, since, .. } = pending;
                        let (goal, waited) = (wish.goal, now.since(since));
                        self.acts.push_back(Act::Run { goal, waited, slot, claim, weights, dataflow, load });
                    }
                }
            }
        }
        Ok(())
    }

    /// The error with which every rank ends an ordered operation instead of carrying it out, if any.
    fn refusal(&self, wish: &Wish, weights: &[f64]) -> Option<Error> {
        let is_whole = matches!(wish.goal, Goal::AllReduce | Goal::Deliver { .. } | Goal::Join { taker: None, .. });
        if !is_whole || wish.claim.op != Op::WeightedMean {
            return None;
        }
        let total = self.share(wish).map_or(0.0, |dataflow| dataflow.weight(weights));
        total_weight(wish.part.key, wish.round, total).err()
    }

    /// The rank at position `from` tells the others why there is no data. It uses host memory, for tensors of any memory.
    fn tell_why(&mut self, pending: Pending<L>, claim: Claim, from: usize) -> Result<(), Breakage> {
        let failure = pending.wish.failure.filter(|_| from == self.party.me);
        if (from == self.party.me) != failure.is_some() {
            return Err(Breakage::Confused(0));
        }
        self.acts.push_back(Act::Tell { claim, from, failure, load: pending.load });
        Ok(())
    }
}
