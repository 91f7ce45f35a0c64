//! Tensors that are submitted in one call. Tensors of a call that together fill a part are one submission.
//!
//! A shared part is sent, summed and failed as one. If a part is submitted as a whole, its tensors need no separate bookkeeping except
//! their round.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Admitted, Lookup, ReadyPart, Registry, Share, Submitted};
use crate::error::Result;
use crate::types::{Demand, PartId, PartLayout, Round, TensorKey, TensorSpec};

/// A unit of a call that is submitted as one. Members count from 0, in the order of the call.
#[derive(Clone, PartialEq, Debug)]
pub enum Unit {
    /// Tensors that fill a part.
    Whole(Whole),
    /// A tensor with parts of its own, a tensor whose part waits for other tensors, or a tensor that has no layout yet.
    Alone {
        /// Its number in the call.
        member: usize,
        /// What is known about it.
        known: Lookup,
    },
}

/// Tensors that fill a shared part, all in the same round. None of them has bytes in another part.
#[derive(Clone, PartialEq, Debug)]
pub struct Whole {
    /// The members of the call, in piece order.
    pub members: Vec<usize>,
    part: Arc<PartLayout>,
    round: Round,
}

/// A shared part of which the call has some tensors so far.
struct Gathered<'registry> {
    part: &'registry Arc<PartLayout>,
    /// The members, in piece order.
    members: Vec<Option<usize>>,
    missing: usize,
}

impl Registry {
    /// As [`lookup`](Self::lookup), for tensors of these keys, each of them once, that are to be submitted next for this.
    /// Returns the units to submit, in the order of submission.
    ///
    /// # Errors
    /// Also the errors with which [`submit`](Self::submit) would refuse any of them.
    pub fn admit_all<'a>(
        &self,
        tensors: impl Iterator<Item = (TensorKey, &'a TensorSpec)>,
        demand: Demand,
    ) -> Result<Vec<Unit>> {
        let (mut units, mut gathered) = (Vec::new(), Gathering::default());
        for (member, (key, spec)) in tensors.enumerate() {
            let Admitted { lookup: known, round, parts } = self.admit(key, spec, demand)?;
            match parts {
                [share] if self.is_untouched(share, round) => {
                    units.extend(gathered.add(member, share, round).map(Unit::Whole));
                }
                _ => units.push(Unit::Alone { member, known }),
            }
        }
        units.extend(gathered.left().into_iter().map(|member| Unit::Alone { member, known: Lookup::Ready }));
        Ok(units)
    }

    /// Submits the next round of all tensors of a unit under `ticket`. The caller chooses the ticket and uses it once. Since the unit was
    /// admitted, only units of the same call may have been submitted.
    pub fn submit_whole(&mut self, whole: Whole, demand: Demand, ticket: u64) -> Submitted {
        let Whole { part: layout, round, .. } = whole;
        for piece in &layout.pieces {
            let tensor = self.tensors.get_mut(&piece.tensor).expect("it was admitted");
            assert_eq!(tensor.rounds, round.0, "tensor {}: submitted since it was admitted", tensor.spec.name);
            tensor.rounds += u64::from(demand.is_counted());
        }
        let name = Arc::clone(&self.tensors[&layout.pieces[0].tensor].name);
        let participants = self.participants_of(&layout);
        Submitted {
            name,
            round,
            shares: 1,
            ready: vec![ReadyPart { layout, round, demand, participants, tickets: vec![ticket] }],
        }
    }

    /// Whether a part is shared and nothing of this round was submitted.
    fn is_untouched(&self, share: &Share, round: Round) -> bool {
        share.part.pieces.len() > 1 && (self.fusing.is_empty() || !self.fusing.contains_key(&(share.part.part, round)))
    }
}

/// Shared parts of which the call has some tensors so far.
#[derive(Default)]
struct Gathering<'registry> {
    parts: Vec<Gathered<'registry>>,
    places: BTreeMap<PartId, usize>,
    /// Index of the previous tensor's part. Neighbours usually share a part.
    last: usize,
}

impl<'registry> Gathering<'registry> {
    /// Adds a tensor. Returns the unit that it completes, if any.
    fn add(&mut self, member: usize, share: &'registry Share, round: Round) -> Option<Whole> {
        if self.parts.get(self.last).is_none_or(|last| !Arc::ptr_eq(last.part, &share.part)) {
            self.last = self.place(&share.part);
        }
        let Gathered { part, members, missing } = &mut self.parts[self.last];
        let before = members[share.position].replace(member);
        assert!(before.is_none(), "a tensor comes once in a call");
        *missing -= 1;
        // All tensors are in one round. If one tensor were behind, its round would be half complete, and `admit_all` would not add it here.
        (*missing == 0).then(|| Whole {
            members: std::mem::take(members).into_iter().flatten().collect(),
            part: Arc::clone(part),
            round,
        })
    }

    fn place(&mut self, part: &'registry Arc<PartLayout>) -> usize {
        *self.places.entry(part.part).or_insert_with(|| {
            let missing = part.pieces.len();
            self.parts.push(Gathered { part, members: vec![None; missing], missing });
            self.parts.len() - 1
        })
    }

    /// The members that are in no `Whole`, in order.
    fn left(self) -> Vec<usize> {
        let mut left: Vec<usize> = self.parts.into_iter().flat_map(|part| part.members).flatten().collect();
        left.sort_unstable();
        left
    }
}
