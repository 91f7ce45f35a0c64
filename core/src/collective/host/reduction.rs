//! Reduces one part in host memory among the ranks.
//!
//! A part is processed in chunks, and a chunk is cut into one slice for each rank. For each chunk a rank
//! 1. *stages*: copies its contribution to the others' slices into shared memory,
//! 2. *reduces* its own slice, in the order of the ranks, into shared memory and into its destination,
//! 3. *takes* the results of the others.
//!
//! Several chunks are under way at once. Each step has a counter that the other ranks read, so that a rank waits only for the steps that
//! it needs. A staged byte of a contribution is read twice: by the rank that copies it and by the rank that adds it. The same holds for a
//! byte of the result. With two ranks, each rank reads 2 bytes and writes 2 bytes for each byte of the part. The shared bytes stay in
//! cache.
//!
//! An operation may be of some ranks only, its members. Slices go to the members alone. The other ranks count the chunks of the part and do
//! nothing else, so that the numbers of chunks stay equal on all ranks. For the same reason every data flow counts as many chunks as the
//! claim says, also one that moves fewer.
//!
//! If only one rank wants the result, only that rank takes it. A broadcast has one step: one rank shows whole chunks in the result area,
//! and the others take them. The first chunk carries a verdict: it is either the beginning of the data or an error. After an error nothing
//! else follows.
#![expect(unsafe_code, reason = "contributions and shared memory are known by address, who may touch them by counters")]

use super::board::Board;
use super::fold::Fold;
use super::layout::{DEPTH, Layout, Word};
use super::look::Look;
use super::loss::Cut;
use crate::collective::order::Claim;
use crate::collective::{Dataflow, Needs};
use crate::error::{Error, Result};
use crate::mem::{Copies, Region};
use crate::reduce::Kernels;
use crate::types::{DType, Span};
use crate::wire::reject;

/// A part that is being reduced.
#[derive(Debug)]
pub(super) struct Running {
    claim: Claim,
    /// The ranks that take part, one bit each.
    members: u64,
    weights: Vec<f64>,
    dataflow: Dataflow,
    needs: Needs,
    memory: Memory,
    /// The error, if there is no result.
    failure: Option<Error>,
    /// What is known of the contributions.
    pub(super) look: Look,
    /// Bytes of a chunk: a slice for each member.
    chunk_bytes: usize,
    /// The number of chunks before this part.
    base: u64,
    chunks: u64,
    /// The number of chunks of this part that this rank has finished, by step.
    staged: u64,
    reduced: u64,
    taken: u64,
}

/// One rank's side of a part, before it begins.
pub(super) struct Part {
    pub(super) claim: Claim,
    pub(super) weights: Vec<f64>,
    pub(super) dataflow: Dataflow,
    /// If this rank is no member: the one whose data the others get, if it is one.
    pub(super) shown_by: Option<usize>,
    /// The error that this rank sends instead of data.
    pub(super) failure: Option<Error>,
    /// The contributions at which somebody looks.
    pub(super) look: Look,
    /// The memory of this rank. The claim gives the length. Without any runs if the rank does not want the result any more.
    pub(super) source: Vec<Region>,
    pub(super) destination: Vec<Region>,
}

/// Contribution and result, possibly in the same memory. Without any runs if the rank contributes nothing and wants nothing.
#[derive(Debug)]
struct Memory {
    source: Runs,
    destination: Runs,
}

/// A part's memory, run after run. A slice may begin or end within a run.
#[derive(Debug)]
struct Runs {
    regions: Vec<Region>,
    /// The offset in the part at which each run ends.
    ends: Vec<usize>,
}

/// Private memory for adding.
#[derive(Debug)]
pub(super) struct Scratch {
    kernels: Kernels,
    copies: Copies,
    /// Memory to add 16-bit floats in f32.
    accumulator: Vec<u8>,
    /// A slice of a contribution that lies in several runs.
    gathered: Vec<u8>,
}

impl Scratch {
    pub(super) fn new(slice: usize, copies: Copies) -> Self {
        Self { kernels: Kernels::detect(), copies, accumulator: vec![0; 2 * slice], gathered: vec![0; slice] }
    }
}

/// How many chunks are staged before the first is reduced, so that a rank need not wait for another rank that is slightly behind.
const AHEAD: u64 = 2;

impl Running {
    /// Begins a part, after `base` chunks of earlier parts.
    pub(super) fn new(part: Part, base: u64, layout: Layout) -> Self {
        let Part { claim, weights, dataflow, shown_by, failure, look, source, destination } = part;
        let members = Claim::members_among(claim.members, layout.ranks).expect("all ranks checked it");
        let needs = Needs::of(&claim, dataflow, shown_by, layout.ranks);
        let chunk_bytes = layout.slice * members.count_ones() as usize;
        // The first chunk also says whether there is data, so there is always one.
        let chunks = claim.bytes.div_ceil(chunk_bytes as u64).max(1);
        let memory = Memory { source: Runs::new(source), destination: Runs::new(destination) };
        Self {
            claim,
            members,
            weights,
            dataflow,
            needs,
            memory,
            failure,
            look,
            chunk_bytes,
            base,
            chunks,
            staged: 0,
            reduced: 0,
            taken: 0,
        }
    }

    /// Does all work that needs no waiting. Returns whether there was any.
    pub(super) fn advance(&mut self, board: &Board, scratch: &mut Scratch) -> bool {
        match self.dataflow {
            Dataflow::Reduce { .. } => self.add_up(board, scratch),
            Dataflow::Show { from, .. } => self.pass_on(board, from, scratch),
            Dataflow::Keep { .. } | Dataflow::Nothing => self.skip_to(board, self.chunks),
        }
    }

    /// Counts the chunks up to `chunk` without doing anything. Returns whether there were any.
    fn skip_to(&mut self, board: &Board, chunk: u64) -> bool {
        if self.taken == chunk {
            return false;
        }
        (self.staged, self.reduced, self.taken) = (chunk, chunk, chunk);
        for word in [Word::Staged, Word::Reduced, Word::Taken] {
            board.set_count(word, self.base + chunk);
        }
        board.knock_others(false);
        true
    }

    /// The other ranks that take part.
    fn other_members(&self, board: &Board) -> impl Iterator<Item = usize> + use<> {
        let members = self.members;
        board.others().filter(move |rank| members & (1 << rank) != 0)
    }

    fn add_up(&mut self, board: &Board, scratch: &mut Scratch) -> bool {
        let mut moved = false;
        // What members wrote is waited for. Places must be free of all ranks, because the operation before may have had other members.
        if self.reduced > self.taken
            && self.other_members(board).all(|rank| self.done(board, rank, Word::Reduced, self.taken))
        {
            self.take(board);
            moved = true;
        }
        if self.staged > self.reduced
            && self.other_members(board).all(|rank| self.done(board, rank, Word::Staged, self.reduced))
            && board.others().all(|rank| self.free(board, rank, Word::Taken, self.reduced))
        {
            self.reduce(board, scratch);
            moved = true;
        }
        if self.staged < self.chunks
            && self.staged < self.reduced + AHEAD
            && board.others().all(|rank| self.free(board, rank, Word::Reduced, self.staged))
        {
            self.stage(board, scratch);
            moved = true;
        }
        moved
    }

    /// Whether this rank has finished the part.
    pub(super) fn is_over(&self) -> bool {
        self.taken == self.chunks
    }

    /// The number of chunks up to its end.
    pub(super) fn end(&self) -> u64 {
        self.base + self.chunks
    }

    /// Whether it ends on all ranks that are left.
    pub(super) fn survives(&self, cut: &Cut) -> bool {
        cut.has(self.needs, self.end())
    }

    /// The rank for which this one waits.
    pub(super) fn waits_for(&self, board: &Board) -> Option<usize> {
        let step =
            |rank: usize| [Word::Staged, Word::Reduced, Word::Taken].iter().map(|word| board.count(rank, *word)).min();
        board.others_left().min_by_key(|rank| step(*rank))
    }

    /// Writes the result of `me` into its destination, if it is not there yet. Returns the sum of the weights of the contributing ranks, or
    /// the error.
    pub(super) fn settle(mut self, me: usize) -> Result<f64> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        let weight = self.dataflow.weight(&self.weights);
        if !self.dataflow.leads_to(me) || self.memory.is_nowhere() {
            return Ok(weight);
        }
        if let Dataflow::Keep { .. } = self.dataflow {
            self.memory.keep(0, usize::try_from(self.claim.bytes).expect("it lies in memory"));
        }
        Ok(weight)
    }

    /// Whether `rank` has finished the step of chunk `number` of this part.
    fn done(&self, board: &Board, rank: usize, word: Word, number: u64) -> bool {
        board.count(rank, word) > self.base + number
    }

    /// Whether `rank` has finished the step of the earlier chunk whose place chunk `number` uses.
    fn free(&self, board: &Board, rank: usize, word: Word, number: u64) -> bool {
        board.count(rank, word).saturating_add(DEPTH) > self.base + number
    }

    fn stage(&mut self, board: &Board, scratch: &Scratch) {
        let number = self.base + self.staged;
        // A rank that contributes nothing still counts its progress.
        for owner in self.other_members(board).filter(|_| self.contributes(board.me)) {
            let (offset, len) = self.slice(self.staged, owner);
            let staged = board.layout.staged(number, board.me, owner);
            // SAFETY: the owner has reduced the earlier chunk here (`free`). It reads here again only after `Staged` counts this chunk.
            let there = unsafe { board.segment.slice_mut(staged, len) };
            self.memory.stage(offset, there, &scratch.copies);
        }
        self.staged += 1;
        board.set_count(Word::Staged, number + 1);
        board.knock_others(false);
    }

    fn reduce(&mut self, board: &Board, scratch: &mut Scratch) {
        let number = self.base + self.reduced;
        let (offset, len) = self.slice(self.reduced, board.me);
        let (op, divisor) = self.dataflow.reduction(self.claim.op, &self.weights);
        let dtype = self.claim.dtype;
        // SAFETY: all others have taken the earlier chunk here (`free`). They read here again only after `Reduced` counts this chunk.
        let result = unsafe { board.segment.slice_mut(board.layout.result(number, board.me), len) };
        let Scratch { kernels, accumulator, gathered, copies } = scratch;
        let ours: &[u8] = match self.contributes(board.me) {
            true => self.memory.contribution(offset, &mut gathered[..len], copies),
            false => &[],
        };
        let contribution = |rank: usize| match rank == board.me {
            true => ours,
            // SAFETY: `Staged` of this rank counts this chunk, and it writes here again only after `Reduced` of ours does.
            false => unsafe { board.segment.slice(board.layout.staged(number, rank, board.me), len) },
        };
        let (of, weights) = (self.contributors(), &self.weights);
        let fold = Fold { kernels: *kernels, op, dtype, divisor };
        let run_bytes = self.look.run_bytes(len);
        for start in (0..len).step_by(run_bytes) {
            let run = start..len.min(start + run_bytes);
            let ranks = (0..).zip(weights).filter(|(rank, _)| of & (1 << rank) != 0);
            let contributions = ranks.map(|(rank, weight)| (*weight, &contribution(rank)[run.clone()]));
            fold.run(contributions, accumulator, &mut result[run.clone()]);
            self.look.see(&fold, &result[run]);
        }
        self.look.judge(board, number, &fold, contribution);
        self.reduced += 1;
        board.set_count(Word::Reduced, number + 1);
        board.knock_others(false);
        // Only after the counter was set, because the other ranks wait for the counter and not for this copy.
        if self.wants_result(board) {
            self.memory.land(offset, result);
        }
    }

    /// The ranks that contribute, one bit each.
    fn contributors(&self) -> u64 {
        if let Dataflow::Reduce { of, .. } = self.dataflow { of } else { 0 }
    }

    /// Whether `rank` contributes.
    fn contributes(&self, rank: usize) -> bool {
        self.contributors() & (1 << rank) != 0
    }

    /// Whether the result goes to this rank.
    fn wants_result(&self, board: &Board) -> bool {
        self.dataflow.leads_to(board.me) && !self.memory.is_nowhere()
    }

    fn take(&mut self, board: &Board) {
        let number = self.base + self.taken;
        let wanted = self.wants_result(board);
        for owner in self.other_members(board) {
            self.look.hear(board, number, owner);
            if !wanted {
                continue;
            }
            let (offset, len) = self.slice(self.taken, owner);
            // SAFETY: `Reduced` of the owner counts this chunk, and it writes here again only after `Taken` of ours does.
            let result = unsafe { board.segment.slice(board.layout.result(number, owner), len) };
            self.memory.land(offset, result);
        }
        self.taken += 1;
        board.set_count(Word::Taken, number + 1);
        board.knock_others(false);
    }

    /// Shows or takes one chunk of `from`'s data, if it is available or there is room for it.
    fn pass_on(&mut self, board: &Board, from: usize, scratch: &Scratch) -> bool {
        if self.is_over() {
            return false;
        }
        let number = self.base + self.taken;
        if from == board.me {
            if !board.others().all(|rank| self.free(board, rank, Word::Taken, self.taken)) {
                return false;
            }
            self.show(board, number, scratch);
        } else {
            if !self.done(board, from, Word::Reduced, self.taken) {
                return false;
            }
            self.look(board, number);
        }
        // After an error nothing else follows.
        self.skip_to(board, if self.failure.is_some() { self.chunks } else { self.taken + 1 })
    }

    /// Shows a chunk, or the error, in a place from which all others have taken the earlier chunk.
    fn show(&mut self, board: &Board, number: u64, scratch: &Scratch) {
        let (offset, len) = self.chunk(self.taken);
        let told = self.failure.as_ref().map(|error| bounded(error, board.layout.chunk()));
        if self.taken == 0 {
            board.set_verdict(number, told.as_ref().map_or(0, Vec::len));
        }
        let bytes = told.as_ref().map_or(len, Vec::len);
        // SAFETY: all others have taken the earlier chunk here (`free`). They read here again only after `Reduced` counts this chunk.
        let there = unsafe { board.segment.slice_mut(board.layout.result(number, 0), bytes) };
        match &told {
            Some(told) => scratch.copies.copy(told, there),
            None => self.memory.stage(offset, there, &scratch.copies),
        }
        if told.is_none() && self.wants_result(board) {
            self.memory.keep(offset, len);
        }
    }

    /// Takes a shown chunk, or the error.
    fn look(&mut self, board: &Board, number: u64) {
        let told = if self.taken == 0 { board.verdict(number).min(board.layout.chunk()) } else { 0 };
        let (offset, len) = self.chunk(self.taken);
        let shown = if told > 0 { told } else { len };
        // SAFETY: `Reduced` of the rank that shows it counts this chunk, and it writes here again only after `Taken` of ours does.
        let there = unsafe { board.segment.slice(board.layout.result(number, 0), shown) };
        if told > 0 {
            // A copy, because other ranks could change the bytes between the check and their use.
            let body = there.to_vec();
            let error = reject::from_body(&body, "another rank of this machine");
            self.failure = Some(error.unwrap_or_else(|unreadable| unreadable));
        } else if self.wants_result(board) {
            self.memory.land(offset, there);
        }
    }

    /// Offset and length of a chunk within the part.
    fn chunk(&self, number: u64) -> (usize, usize) {
        let bytes = usize::try_from(self.claim.bytes).expect("it lies in memory");
        let offset = usize::try_from(number).expect("chunks of it do") * self.chunk_bytes;
        (offset, (bytes - offset).min(self.chunk_bytes))
    }

    /// The slice of `owner`, a member, in a chunk. All slices have the same length, a multiple of 64 bytes, except the last ones.
    fn slice(&self, number: u64, owner: usize) -> (usize, usize) {
        let (offset, len) = self.chunk(number);
        let members = self.members;
        let place = (members & ((1 << owner) - 1)).count_ones() as usize;
        let each = len.div_ceil(members.count_ones() as usize).next_multiple_of(SLICE_ALIGN);
        let start = (place * each).min(len);
        (offset + start, each.min(len - start))
    }
}

/// The alignment of slices, so that a slice holds whole elements of every type and whole cache lines.
const SLICE_ALIGN: usize = 64;
const INSIDE: &str =
    "slices lie within the part, whose length was checked, and who shows one or reduces has memory for it";

impl Memory {
    fn is_nowhere(&self) -> bool {
        self.destination.regions.is_empty()
    }

    /// Copies a run of the contribution into shared memory. The result must not have overwritten it yet.
    fn stage(&self, offset: usize, there: &mut [u8], copies: &Copies) {
        for (at, run) in self.source.of(offset, there.len()) {
            // SAFETY: the operation owns its contribution until it reports. The result may lie in the same memory; it is written through
            // `&mut self`, and a slice is borrowed from `&self`.
            copies.copy(unsafe { run.as_slice() }, &mut there[at..at + run.len()]);
        }
    }

    /// Bytes of the contribution: in place, or copied into `gathered` if they lie in several runs.
    fn contribution<'a>(&'a self, offset: usize, gathered: &'a mut [u8], copies: &Copies) -> &'a [u8] {
        if let [whole] = self.source.regions.as_slice() {
            // SAFETY: as in `stage`.
            return unsafe { whole.as_slice() }.get(offset..offset + gathered.len()).expect(INSIDE);
        }
        self.stage(offset, gathered, copies);
        gathered
    }

    /// Writes a run of the result into its destination.
    fn land(&mut self, offset: usize, result: &[u8]) {
        for (at, mut run) in self.destination.of(offset, result.len()) {
            let bytes = &result[at..at + run.len()];
            // SAFETY: the operation owns its destination until it reports; that the source may be the same memory is covered by `&mut
            // self`.
            unsafe { run.as_mut_slice() }.copy_from_slice(bytes);
        }
    }

    /// Copies a run of the contribution to the result.
    fn keep(&mut self, offset: usize, len: usize) {
        for (at, there) in self.destination.of(offset, len) {
            for (within, from) in self.source.of(offset + at, there.len()) {
                there.part(Span { offset: within as u64, bytes: from.len() as u64 }).copy_from(&from);
            }
        }
    }
}

impl Runs {
    fn new(regions: Vec<Region>) -> Self {
        let mut end = 0;
        let ends = regions.iter().map(|region| {
            end += region.len();
            end
        });
        Self { ends: ends.collect(), regions }
    }

    /// The runs of `len` bytes from `offset`, each with its offset in these bytes.
    fn of(&self, offset: usize, len: usize) -> impl Iterator<Item = (usize, Region)> {
        assert!(len == 0 || self.ends.last().is_some_and(|end| offset + len <= *end), "{INSIDE}");
        let first = self.ends.partition_point(|end| *end <= offset);
        let runs = self.regions[first..].iter().zip(&self.ends[first..]);
        let runs =
            runs.map(|(region, end)| (region, end - region.len())).take_while(move |(_, start)| *start < offset + len);
        runs.map(move |(region, start)| {
            let begin = offset.max(start);
            let end = (offset + len).min(start + region.len());
            let within = Span { offset: (begin - start) as u64, bytes: (end - begin) as u64 };
            (begin - offset, region.part(within))
        })
    }
}

/// Encodes an error in at most `bytes_max` bytes. Only errors that name very many workers do not fit.
fn bounded(error: &Error, bytes_max: usize) -> Vec<u8> {
    let body = reject::to_body(error);
    if body.len() <= bytes_max {
        return body;
    }
    // The encoding cuts a text after a few kilobytes.
    reject::to_body(&Error::Internal { what: error.to_string() })
}

/// Whether `regions` have the length of the claim.
pub(super) fn fits(claim: &Claim, regions: &[Region]) -> bool {
    regions.iter().map(|region| region.len() as u64).sum::<u64>() == claim.bytes
}

const _: () = assert!((SLICE_ALIGN as u64).is_multiple_of(DType::F64.bytes()));
