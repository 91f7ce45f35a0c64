//! Tensors that are submitted in one call: those that fill a part between them are one submission.
//!
//! A shared part is sent, summed and failed as one. What is submitted with it as a whole needs no account of its own for each tensor, only
//! its round.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Admitted, Lookup, ReadyPart, Registry, Share, Submitted};
use crate::error::Result;
use crate::types::{Op, PartId, PartLayout, Round, TensorKey, TensorSpec};

/// What of a call is submitted as one. Members count from 0, in the order of the call.
#[derive(Clone, PartialEq, Debug)]
pub enum Unit {
    /// Tensors that fill a part.
    Whole(Whole),
    /// A tensor with parts of its own, one whose part waits for other tensors, or one that has no layout yet.
    Alone {
        /// Which.
        member: usize,
        /// What is known of it.
        known: Lookup,
    },
}

/// Tensors that fill a shared part, all in the same round, and lie nowhere else.
#[derive(Clone, PartialEq, Debug)]
pub struct Whole {
    /// Which members of the call, in piece order.
    pub members: Vec<usize>,
    part: Arc<PartLayout>,
    round: Round,
}

/// A shared part of which some tensors were seen.
struct Gathered<'registry> {
    part: &'registry Arc<PartLayout>,
    /// Which members, in piece order.
    members: Vec<Option<usize>>,
    missing: usize,
}

impl Registry {
    /// As [`lookup`](Self::lookup), for tensors of these keys, each of them once, that are to be submitted next with this reduction; and
    /// in which units, in the order in which these are to be submitted.
    ///
    /// # Errors
    /// What [`submit`](Self::submit) would refuse any of them for, besides.
    pub fn admit_all<'a>(
        &self,
        tensors: impl Iterator<Item = (TensorKey, &'a TensorSpec)>,
        op: Op,
        weight: f64,
    ) -> Result<Vec<Unit>> {
        let (mut units, mut gathered) = (Vec::new(), Gathering::default());
        for (member, (key, spec)) in tensors.enumerate() {
            let Admitted { lookup: known, round, parts } = self.admit(key, spec, op, weight)?;
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

    /// Submits the next round of all tensors of a unit under `ticket`, which the caller chose and uses once. Nothing but units of the same
    /// call was submitted since they were admitted.
    pub fn submit_whole(&mut self, whole: Whole, op: Op, weight: f64, ticket: u64) -> Submitted {
        let Whole { part: layout, round, .. } = whole;
        for piece in &layout.pieces {
            let tensor = self.tensors.get_mut(&piece.tensor).expect("it was admitted");
            assert_eq!(tensor.rounds, round.0, "tensor {}: submitted since it was admitted", tensor.spec.name);
            tensor.rounds += 1;
        }
        let name = Arc::clone(&self.tensors[&layout.pieces[0].tensor].name);
        Submitted {
            name,
            round,
            shares: 1,
            ready: vec![ReadyPart { layout, round, op, weight, tickets: vec![ticket] }],
        }
    }

    /// Whether a part is shared and nothing of this round was submitted.
    fn is_untouched(&self, share: &Share, round: Round) -> bool {
        share.part.pieces.len() > 1 && (self.fusing.is_empty() || !self.fusing.contains_key(&(share.part.part, round)))
    }
}

/// Shared parts of which some tensors were seen.
#[derive(Default)]
struct Gathering<'registry> {
    parts: Vec<Gathered<'registry>>,
    places: BTreeMap<PartId, usize>,
    /// That of the tensor before: neighbours mostly share it.
    last: usize,
}

impl<'registry> Gathering<'registry> {
    /// Adds a tensor; the whole that it completes.
    fn add(&mut self, member: usize, share: &'registry Share, round: Round) -> Option<Whole> {
        if self.parts.get(self.last).is_none_or(|last| !Arc::ptr_eq(last.part, &share.part)) {
            self.last = self.place(&share.part);
        }
        let Gathered { part, members, missing } = &mut self.parts[self.last];
        let before = members[share.position].replace(member);
        assert!(before.is_none(), "a tensor comes once in a call");
        *missing -= 1;
        // All are in one round: where one is behind, its round is half complete, and it did not come here.
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

    /// What is in no whole, in order.
    fn left(self) -> Vec<usize> {
        let mut left: Vec<usize> = self.parts.into_iter().flat_map(|part| part.members).flatten().collect();
        left.sort_unstable();
        left
    }
}
