//! What a worker knows about its tensors: their declarations, their parts, the round of each, and which fused parts still wait for some of
//! their tensors.
//!
//! ```text
//!  unknown ──declaring──► Declaring ──handle_declared(Ok)──► Ready
//!                             │                               │
//!                             └──handle_declared(Err)──► Failed ◄── handle_forget
//! ```
//! `Failed` is final, with two exceptions: a tensor may be declared again if its declaration failed for a cause that may pass, or after its
//! name has ended (`ending`). The scheduler
//! decides the deadline of a submission and its outcome.
//!
//! **Incomplete parts.** A round of a shared part is sent when all its tensors were submitted. If some of them do not come, the worker
//! gives the round up after a while, with an error that names them. The alternative is to send only the tensors that came. But a worker
//! cannot know whether the other workers leave out the same tensors: two workers would send different bytes for one part, or each step
//! would need one more question and answer. A tensor that comes after its round was given up fails at once. Its round still counts, because
//! the other workers count it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::types::{Demand, Op, PartId, PartLayout, Participants, Round, TensorKey, TensorSpec, Time, WorkerId};
use crate::wire::limits::PART_BYTES_MAX;

/// The tensors of one worker.
#[derive(Debug)]
pub struct Registry {
    rank: WorkerId,
    tensors: BTreeMap<TensorKey, Tensor>,
    parts: BTreeMap<PartId, Arc<PartLayout>>,
    requests: BTreeMap<u64, Vec<TensorKey>>,
    fusing: BTreeMap<(PartId, Round), Assembly>,
    /// The entries of `fusing` that were not given up, by the time at which their first tensor came.
    incomplete: BTreeSet<(Time, PartId, Round)>,
    /// Tensors that are used no more, and of which the coordinator has not heard yet.
    ending: BTreeSet<TensorKey>,
}

#[derive(Debug)]
struct Tensor {
    spec: TensorSpec,
    /// Shared with its submissions, for their messages.
    name: Arc<str>,
    state: State,
    /// How often it was submitted.
    rounds: u64,
}

#[derive(Debug)]
enum State {
    Declaring { request: u64 },
    Ready { parts: Vec<Share> },
    Failed { error: Error, declare_again: bool },
}

/// A part that holds bytes of a tensor.
#[derive(Clone, Debug)]
struct Share {
    part: Arc<PartLayout>,
    /// Position of the tensor among the part's pieces.
    position: usize,
}

/// A round of a fused part, before all its tensors were submitted.
#[derive(Debug)]
struct Assembly {
    demand: Demand,
    /// The submissions that have come, in piece order.
    tickets: Vec<Option<u64>>,
    /// The number of missing tensors.
    missing: usize,
    /// When the first tensor came.
    since: Time,
    /// Why this round can no longer complete, if it was given up.
    given_up: Option<Error>,
}

/// A tensor that may be submitted next, or that has no layout yet.
struct Admitted<'registry> {
    lookup: Lookup,
    round: Round,
    /// Empty if the tensor has no layout.
    parts: &'registry [Share],
}

/// What is known about a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// Nothing: declare it.
    Unknown,
    /// The coordinator was asked.
    Declaring,
    /// It can be submitted.
    Ready,
}

/// A submission that was accepted.
#[derive(Clone, PartialEq, Debug)]
pub struct Submitted {
    /// The tensor's name.
    pub name: Arc<str>,
    /// Which sum of the tensor this is.
    pub round: Round,
    /// The number of its parts; 0 for an empty tensor.
    pub shares: u32,
    /// The parts that can be sent now, in the same order on each rank: a server sends back what has come from all of them. The tensor's
    /// other parts wait for the tensors that share them.
    pub ready: Vec<ReadyPart>,
}

/// A part all of whose tensors were submitted.
#[derive(Clone, PartialEq, Debug)]
pub struct ReadyPart {
    /// Its content and its server.
    pub layout: Arc<PartLayout>,
    /// Which sum.
    pub round: Round,
    /// What is asked of it.
    pub demand: Demand,
    /// The participants of all its tensors; this worker is one of them.
    pub participants: Participants,
    /// The submissions that it serves, in piece order. It is a single one if that submission brings all pieces.
    pub tickets: Vec<u64>,
}

impl ReadyPart {
    /// The reduction, and this worker's weight in a weighted mean.
    ///
    /// # Panics
    /// If it is a part of a parameter or a table, which are not reduced, or only its residual is used.
    pub fn reduction(&self) -> (Op, f64) {
        match self.demand {
            Demand::Reduce { op, weight } => (op, weight),
            Demand::Access { .. } | Demand::Rows { .. } | Demand::AnswerResidual(_) => {
                unreachable!("{} of part {} reduces nothing", self.demand, self.layout.part)
            }
        }
    }
}

impl Registry {
    /// The empty registry of worker `rank`.
    pub fn new(rank: WorkerId) -> Self {
        Self {
            rank,
            tensors: BTreeMap::new(),
            parts: BTreeMap::new(),
            requests: BTreeMap::new(),
            fusing: BTreeMap::new(),
            incomplete: BTreeSet::new(),
            ending: BTreeSet::new(),
        }
    }

    /// What is known about this tensor.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if this worker declared the name with another dtype, shape, codec or other participants before,
    /// [`Error::InvalidArgument`] if this worker is not one of the participants, [`Error::FailedPrecondition`] if the name is ending, else
    /// the tensor's own failure.
    pub fn lookup(&self, spec: &TensorSpec) -> Result<Lookup> {
        self.known(self.tensors.get(&spec.key()), spec)
    }

    fn known(&self, known: Option<&Tensor>, spec: &TensorSpec) -> Result<Lookup> {
        spec.participants.check_member(&spec.name, self.rank)?;
        let Some(known) = known else {
            return self.check_not_ending(spec).map(|()| Lookup::Unknown);
        };
        match &known.state {
            State::Failed { declare_again: true, .. } => Ok(Lookup::Unknown),
            State::Failed { error, declare_again: false } => Err(error.clone()),
            State::Declaring { .. } => comparing::compare(self.rank, &known.spec, spec).map(|()| Lookup::Declaring),
            State::Ready { .. } => comparing::compare(self.rank, &known.spec, spec).map(|()| Lookup::Ready),
        }
    }

    /// As [`lookup`](Self::lookup), for a tensor of this key that is to be submitted next for this.
    ///
    /// # Errors
    /// Also the errors with which [`submit`](Self::submit) would refuse it.
    fn admit(&self, key: TensorKey, spec: &TensorSpec, demand: Demand) -> Result<Admitted<'_>> {
        let known = self.tensors.get(&key);
        let lookup = self.known(known, spec)?;
        let Some(Tensor { state: State::Ready { parts }, rounds, .. }) = known else {
            return Ok(Admitted { lookup, round: Round(0), parts: &[] });
        };
        demand.check(spec)?;
        let round = Round(*rounds);
        // Usually no round is half complete, and then there is nothing to agree with.
        for share in parts.iter().filter(|share| share.part.pieces.len() > 1 && !self.fusing.is_empty()) {
            self.agree(&share.part, round, key, demand)?;
        }
        Ok(Admitted { lookup, round, parts })
    }

    /// Notes that the coordinator was asked about `specs`, all of them [`Lookup::Unknown`], with `request`.
    pub fn declaring(&mut self, request: u64, specs: &[TensorSpec]) {
        for spec in specs {
            let state = State::Declaring { request };
            let name = Arc::from(spec.name.as_str());
            self.tensors.insert(spec.key(), Tensor { spec: spec.clone(), name, state, rounds: 0 });
        }
        self.requests.insert(request, specs.iter().map(TensorSpec::key).collect());
    }

    /// Ends a request that asked for several tensors. Returns the tensors that still wait for its answer; `None` if it asked for one.
    pub fn take_list(&mut self, request: u64) -> Option<Vec<TensorSpec>> {
        self.requests.get(&request).filter(|keys| keys.len() > 1)?;
        let keys = self.requests.remove(&request)?;
        let tensors = keys.iter().filter_map(|key| self.tensors.get(key));
        let waits = |tensor: &&Tensor| matches!(tensor.state, State::Declaring { request: asked } if asked == request);
        Some(tensors.filter(waits).map(|tensor| tensor.spec.clone()).collect())
    }

    /// Takes the coordinator's answer. Returns the tensors that it made ready or failed. An answer that nobody waits for is ignored.
    pub fn handle_declared(&mut self, request: u64, outcome: Result<Vec<PartLayout>>) -> Vec<TensorKey> {
        let mut keys = self.requests.remove(&request).unwrap_or_default();
        keys.retain(|key| match self.tensors.get(key).map(|tensor| &tensor.state) {
            Some(State::Declaring { request: asked }) => *asked == request,
            Some(State::Ready { .. } | State::Failed { .. }) | None => false,
        });
        let mut parts_of: BTreeMap<TensorKey, Vec<Arc<PartLayout>>> = BTreeMap::new();
        let outcome = outcome.and_then(|layouts| {
            for layout in layouts {
                let layout = self.intern(layout)?;
                for piece in &layout.pieces {
                    parts_of.entry(piece.tensor).or_default().push(Arc::clone(&layout));
                }
            }
            Ok(())
        });
        for key in &keys {
            let tensor = self.tensors.get_mut(key).expect("retained above");
            let parts = parts_of.remove(key).unwrap_or_default();
            tensor.state = match outcome.clone().and_then(|()| tiling(&tensor.spec, parts)) {
                Ok(parts) => State::Ready { parts },
                Err(error) => State::Failed { declare_again: error.retryable(), error },
            };
        }
        keys
    }

    /// Takes the coordinator's message that a tensor failed for good. Returns this tensor and the tensors that share a part with it, which
    /// can never be sent without it. The caller must fail their open submissions.
    pub fn handle_forget(&mut self, key: TensorKey, error: Error) -> Vec<TensorKey> {
        let mut failed = BTreeSet::new();
        let mut next = vec![key];
        while let Some(key) = next.pop() {
            let Some(tensor) = self.tensors.get_mut(&key).filter(|_| failed.insert(key)) else {
                continue;
            };
            let before =
                std::mem::replace(&mut tensor.state, State::Failed { error: error.clone(), declare_again: false });
            let parts = match before {
                State::Ready { parts } => parts,
                State::Declaring { .. } | State::Failed { .. } => Vec::new(),
            };
            next.extend(parts.iter().flat_map(|share| &share.part.pieces).map(|piece| piece.tensor));
            for share in parts {
                self.drop_assemblies(share.part.part);
            }
        }
        failed.into_iter().collect()
    }

    /// Submits the next round of a tensor under `ticket`. The caller chooses the ticket and uses it once. Rounds may be queued ahead. A use of
    /// a residual is of the next round, and leaves it to be submitted.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the tensor cannot do what is asked, or it differs from what is asked of the tensors that share a part
    /// with it; the tensor's own failure; [`Error::FailedPrecondition`] if it is not ready. A submission that is refused for these reasons is
    /// not counted. If the round was given up, the submission is refused with the error of that round, and it is counted.
    pub fn submit(&mut self, now: Time, key: TensorKey, demand: Demand, ticket: u64) -> Result<Submitted> {
        let (name, parts, round, participants) = self.submittable(key, demand)?;
        for share in parts.iter().filter(|share| share.part.pieces.len() > 1) {
            self.agree(&share.part, round, key, demand)?;
        }
        let shares = u32::try_from(parts.len()).expect("PARTS_MAX fits");
        self.tensors.get_mut(&key).expect("submittable").rounds += u64::from(demand.is_counted());
        let assemble = |share: Share| match share.part.pieces.as_slice() {
            [_] => {
                let participants = participants.clone();
                Ok(Some(ReadyPart { layout: share.part, round, demand, participants, tickets: vec![ticket] }))
            }
            _ => self.assemble(now, share, round, demand, ticket),
        };
        let ready = parts.into_iter().map(assemble).filter_map(Result::transpose).collect::<Result<_>>()?;
        Ok(Submitted { name, round, shares, ready })
    }

    /// The time since which the oldest incomplete round of a shared part waits for some of its tensors.
    pub fn oldest_incomplete(&self) -> Option<Time> {
        self.incomplete.first().map(|(since, ..)| *since)
    }

    /// Gives up the oldest incomplete round. Returns the part with the tensors that came, and the error. Tensors of the round that come
    /// later fail with the same error.
    pub fn give_up_oldest(&mut self, now: Time) -> Option<(ReadyPart, Error)> {
        const NAMES_MAX: usize = 8;
        let (since, part, round) = self.incomplete.pop_first()?;
        let (layout, assembly) = (Arc::clone(&self.parts[&part]), &self.fusing[&(part, round)]);
        let names = |came: bool| {
            let pieces = layout.pieces.iter().zip(&assembly.tickets).filter(|(_, ticket)| ticket.is_some() == came);
            let mut names: Vec<String> = pieces.map(|(piece, _)| self.label(piece.tensor)).collect();
            let more = names.len().saturating_sub(NAMES_MAX);
            names.truncate(NAMES_MAX);
            names.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
        };
        let error = Error::FailedPrecondition {
            what: format!(
                "{round}: {} waited {:.1} s for {} on {}, because they were declared together and share a part",
                names(true),
                now.since(since).as_secs_f64(),
                names(false),
                self.rank
            ),
            hint: "submit all tensors of a declaration in every step, or give those that go alone other names, such as by another \
                   prefix, so that they are declared apart"
                .to_owned(),
        };
        let Assembly { demand, tickets, given_up, .. } = self.fusing.get_mut(&(part, round)).expect("it is incomplete");
        *given_up = Some(error.clone());
        let tickets = tickets.iter().copied().flatten().collect();
        let (demand, participants) = (*demand, self.participants_of(&layout));
        Some((ReadyPart { layout, round, demand, participants, tickets }, error))
    }

    /// The tensors that must still be submitted on this worker before the parts that `ticket` shares can be sent. A tensor that this worker
    /// never declared is named by its key.
    pub fn waiting_for(&self, ticket: u64) -> Vec<String> {
        // This is a scan, because it runs only when something stalls. An index would cost time in every submission.
        let mut names = Vec::new();
        for ((part, _), assembly) in &self.fusing {
            let Some(layout) = self.parts.get(part).filter(|_| assembly.tickets.contains(&Some(ticket))) else {
                continue;
            };
            let missing = layout.pieces.iter().zip(&assembly.tickets).filter(|(_, ticket)| ticket.is_none());
            names.extend(missing.map(|(piece, _)| self.label(piece.tensor)));
        }
        names
    }

    /// Keeps one copy of each part, so that all its tensors see the same one.
    fn intern(&mut self, layout: PartLayout) -> Result<Arc<PartLayout>> {
        let distinct: BTreeSet<TensorKey> = layout.pieces.iter().map(|piece| piece.tensor).collect();
        let ends = layout.pieces.iter().try_fold(0u64, |total, piece| {
            piece.span.offset.checked_add(piece.span.bytes)?;
            total.checked_add(piece.span.bytes)
        });
        if layout.pieces.is_empty()
            || distinct.len() < layout.pieces.len()
            || ends.is_none_or(|total| total > PART_BYTES_MAX)
        {
            return Err(broken("has a part that is malformed".to_owned()));
        }
        match self.parts.get(&layout.part) {
            Some(known) if **known == layout => Ok(Arc::clone(known)),
            Some(_) => Err(broken("has a part that was another one before".to_owned())),
            None => {
                let layout = Arc::new(layout);
                self.parts.insert(layout.part, Arc::clone(&layout));
                Ok(layout)
            }
        }
    }

    fn submittable(&self, key: TensorKey, demand: Demand) -> Result<(Arc<str>, Vec<Share>, Round, Participants)> {
        let tensor = self.tensors.get(&key);
        match tensor.map(|tensor| (tensor, &tensor.state)) {
            Some((tensor, State::Ready { parts })) => {
                demand.check(&tensor.spec)?;
                let participants = tensor.spec.participants.clone();
                Ok((Arc::clone(&tensor.name), parts.clone(), Round(tensor.rounds), participants))
            }
            Some((_, State::Failed { error, .. })) => Err(error.clone()),
            Some((_, State::Declaring { .. })) | None => Err(Error::FailedPrecondition {
                what: format!("tensor {} has no layout yet", self.label(key)),
                hint: "declare it and wait for the answer".to_owned(),
            }),
        }
    }

    fn agree(&self, part: &PartLayout, round: Round, key: TensorKey, demand: Demand) -> Result<()> {
        let Some(assembly) = self.fusing.get(&(part.part, round)) else {
            return Ok(());
        };
        if assembly.demand.is(demand) || assembly.given_up.is_some() {
            return Ok(());
        }
        let others = part.pieces.iter().zip(&assembly.tickets).filter(|(_, ticket)| ticket.is_some());
        let names: Vec<String> = others.map(|(piece, _)| self.label(piece.tensor)).collect();
        Err(Error::InvalidArgument {
            what: format!(
                "tensor {}, {round}: {demand}, but it shares a part with {}: {}",
                self.label(key),
                names.join(", "),
                assembly.demand
            ),
            hint: "reduce tensors that share a part alike, or declare them without fusion".to_owned(),
        })
    }

    /// Adds a tensor to a round of a shared part. Returns the part if this tensor completes it.
    fn assemble(
        &mut self,
        now: Time,
        share: Share,
        round: Round,
        demand: Demand,
        ticket: u64,
    ) -> Result<Option<ReadyPart>> {
        let Share { part: layout, position } = share;
        let (part, pieces) = (layout.part, layout.pieces.len());
        let assembly = self.fusing.entry((part, round)).or_insert_with(|| {
            self.incomplete.insert((now, part, round));
            Assembly { demand, tickets: vec![None; pieces], missing: pieces, since: now, given_up: None }
        });
        let before = assembly.tickets[position].replace(ticket);
        assert!(before.is_none(), "a round of a tensor is submitted once");
        assembly.missing -= 1;
        let given_up = assembly.given_up.clone();
        if assembly.missing > 0 {
            return given_up.map_or(Ok(None), Err);
        }
        let Assembly { tickets, since, .. } = self.fusing.remove(&(part, round)).expect("completed above");
        self.incomplete.remove(&(since, part, round));
        if let Some(error) = given_up {
            return Err(error);
        }
        let (participants, tickets) = (self.participants_of(&layout), tickets.into_iter().flatten().collect());
        Ok(Some(ReadyPart { layout, round, demand, participants, tickets }))
    }

    /// The participants of a part. All its tensors have the same.
    fn participants_of(&self, layout: &PartLayout) -> Participants {
        let tensor = layout.pieces.iter().find_map(|piece| self.tensors.get(&piece.tensor));
        tensor.map(|tensor| tensor.spec.participants.clone()).unwrap_or_default()
    }

    fn drop_assemblies(&mut self, part: PartId) {
        self.fusing.retain(|(of, _), _| *of != part);
        self.incomplete.retain(|(_, of, _)| *of != part);
    }
}

/// The parts of a tensor in the order of its bytes, if they tile it. The check is needed because the coordinator's answer must not lead
/// outside the tensor.
fn tiling(spec: &TensorSpec, parts: Vec<Arc<PartLayout>>) -> Result<Vec<Share>> {
    let key = spec.key();
    let share = |part: Arc<PartLayout>| {
        let position = part.pieces.iter().position(|piece| piece.tensor == key)?;
        Some(Share { part, position })
    };
    let span = |share: &Share| share.part.pieces[share.position].span;
    let mut shares: Vec<Share> = parts.into_iter().filter_map(share).collect();
    shares.sort_by_key(span);
    let mut end = 0;
    for share in &shares {
        let (part, span) = (&share.part, span(share));
        if (part.dtype, part.kind) != (spec.dtype, spec.kind)
            || span.offset != end
            || span.bytes == 0
            || span.bytes % spec.dtype.bytes() != 0
        {
            return Err(broken(format!("has a part that does not continue tensor {}", spec.name)));
        }
        end = span.end();
    }
    if Some(end) != spec.bytes() {
        return Err(broken(format!("has {end} bytes of tensor {} of shape {:?}", spec.name, spec.shape)));
    }
    Ok(shares)
}

fn broken(problem: String) -> Error {
    Error::Protocol { peer: "the coordinator".to_owned(), field: "layout".to_owned(), problem }
}

mod comparing;
mod ending;
mod looking;
mod texts;
mod together;

pub use together::{Unit, Whole};

#[cfg(test)]
mod tests;
