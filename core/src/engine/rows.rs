//! Uses of tables. The ids of a use go to the parts that have their rows, each id once, and the gradients of one id are added up first.

use std::sync::Arc;
use std::time::Duration;

use super::asked::Asked;
use super::driver::Engine;
use super::handle::Handle;
use super::row_sums::Sums;
use super::scans::{PageOf, Pages, Scan};
use super::submit::HERE_BYTES_MAX;
use crate::codec::RowCodec;
use crate::error::{Error, Result};
use crate::mem::borrow::{self, Staging};
use crate::mem::{Copies, Frozen, Lease, Pool};
use crate::pipeline::Stage;
use crate::reduce::{Distinct, Kernels};
use crate::types::{
    Demand, Effect, Epoch, PartId, Priority, Round, RowAction, RowsCut, Shards, ShrinkBounds, Span, TableSpec,
    TensorSpec, Version, WorkerId,
};
use crate::wire::{Rows, Target};

/// One use of a table.
#[derive(Debug)]
pub struct RowsUse<'a> {
    /// Its name and what it is; equal on all workers: see [`TensorSpec::table`].
    pub tensor: TensorSpec,
    /// What to do.
    pub action: RowAction,
    /// The steps of the training before, as this worker counts them.
    pub step: u64,
    /// The ids, in any order, and as often as wanted; none for actions without ids.
    pub ids: &'a [u64],
    /// Of a push: a gradient of a row for each id, one after the other. Of a restore: all numbers of each row.
    pub gradients: &'a [f32],
    /// Of a restore, for each id, which comes once: the step of its last use (the lowest 32 bits), and the bits of its score as f32; a score of
    /// NaN removes the row. Of a push with scores, for each id: the bits of its score as f32.
    pub marks: &'a [u64],
    /// Of a scan: what it asks for.
    pub scan: Scan<'a>,
    /// Of a shrink: the factor of the scores, the least score that is kept, and after how many steps without a use a row goes.
    pub bounds: ShrinkBounds,
    /// How urgent.
    pub priority: Priority,
    /// Give up after this long; the job's step timeout applies in any case.
    pub timeout: Option<Duration>,
}

/// A use of a table that was begun, and what came back once its handle has resolved.
pub struct RowsHandle {
    handle: Handle,
    answer: Arc<Staging>,
    /// For each id that was asked for, which row of the answer is its own.
    places: Vec<u32>,
    dim: usize,
    codec: RowCodec,
    counts: usize,
    /// Of a scan: the page of each part, of what table, and whether it has state.
    pages: Vec<PageOf>,
    table: TableSpec,
    with_state: bool,
}

/// What servers count in a table.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RowCounts {
    /// Rows that a shrink has looked at; 0 otherwise.
    pub scanned: u64,
    /// Rows that a shrink has removed; otherwise all that were ever removed to make room or by a shrink.
    pub evicted: u64,
    /// Rows that are there.
    pub rows: u64,
    /// Ids that were pulled, and have no row yet.
    pub waiting: u64,
    /// Bytes of memory that are taken for all of this.
    pub bytes: u64,
    /// Ids whose gradients were dropped, because they had no row.
    pub dropped: u64,
}

/// The bodies of a use, as they travel.
struct Packed {
    body: Lease,
    cuts: Vec<RowsCut>,
    places: Vec<u32>,
    answer_bytes: usize,
    pages: Vec<PageOf>,
}

impl Engine {
    /// Uses rows of a table. The first use on any worker declares it. The handle resolves when the servers of all parts have answered. A change
    /// is made once, also if a connection breaks. Uses of one table by this worker come one after the other, in the order of these calls.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the tensor is no table, there are more ids than a use may have, or other than `dim` numbers for each;
    /// [`Error::NotFinite`] for a gradient that is none; as [`declare`](Self::declare) and [`push_pull`](Self::push_pull).
    pub fn use_rows(&self, asked: RowsUse<'_>) -> Result<RowsHandle> {
        self.begin_rows(asked, |_| {})
    }

    /// As [`use_rows`](Self::use_rows). `then` is that of [`push_pull`](Self::push_pull).
    ///
    /// # Errors
    /// As [`use_rows`](Self::use_rows).
    pub fn begin_rows(&self, asked: RowsUse<'_>, then: impl FnOnce(u64) + Send + 'static) -> Result<RowsHandle> {
        let demand = Demand::Rows { action: asked.action, step: asked.step };
        demand.check(&asked.tensor)?;
        let spec = asked.tensor.kind.table().expect("checked just now");
        let codec = RowCodec::of(&spec, self.shared.wire.kernels);
        asked.check(&spec, codec.kernels(), &self.rank().to_string())?;
        self.stages.start(&[Stage::Push])?;
        let parts = self.parts_of_table(&asked.tensor, asked.timeout)?;
        let packed = asked.packed(&spec, &parts, codec, |bytes| self.shared.wire.lease(bytes as u64, false))?;
        let Packed { body, cuts, places, answer_bytes, pages } = packed;
        let source = Arc::new(Staging::new(body));
        let answer = Arc::new(Staging::new(self.shared.wire.lease(answer_bytes as u64, false)));
        let RowsUse { tensor, action, priority, timeout, scan: Scan { with_state, .. }, .. } = asked;
        let counts = if action.has_ids() { 0 } else { cuts.len() };
        let begun = Asked {
            tensor,
            source: source.region().into(),
            destination: answer.region().into(),
            demand,
            priority,
            timeout,
            cuts: Some(cuts.into()),
        };
        let lent = (source, Arc::clone(&answer));
        let ended = move |id| {
            drop(lent);
            then(id);
        };
        let handle = self.submit(begun, HERE_BYTES_MAX, &|| {}, ended)?;
        let dim = usize::try_from(spec.dim).expect("a few");
        Ok(RowsHandle { handle, answer, places, dim, codec, counts, pages, table: spec, with_state })
    }

    /// The parts of a table with their shards. Declares it, if this worker has not done so.
    fn parts_of_table(&self, tensor: &TensorSpec, timeout: Option<Duration>) -> Result<Vec<(PartId, Shards)>> {
        let known = || self.shared.with(|state, _| state.worker.parts_of_table(tensor)).flatten();
        let parts = known()?;
        if !parts.is_empty() {
            return Ok(parts);
        }
        self.declare(vec![tensor.clone()], false, timeout)?;
        known()
    }
}

impl RowsUse<'_> {
    /// Does the use at once by `serve`, which gets what a server would get of a table in one part, and gives what that would answer. The handle
    /// has the number `id` and has resolved.
    ///
    /// # Errors
    /// As [`Engine::use_rows`].
    pub fn alone(
        self,
        id: u64,
        serve: impl FnOnce(&Rows, &[u8]) -> Result<(Version, Option<Frozen>)>,
    ) -> Result<RowsHandle> {
        Demand::Rows { action: self.action, step: self.step }.check(&self.tensor)?;
        let spec = self.tensor.kind.table().expect("checked just now");
        let codec = RowCodec::of(&spec, Kernels::detect());
        self.check(&spec, codec.kernels(), &WorkerId(0).to_string())?;
        let part = PartId { key: self.tensor.key(), index: 0 };
        let packed = self.packed(&spec, &[(part, Shards::ALL)], codec, |bytes| Pool::new().lease(bytes))?;
        let Packed { body, cuts, places, answer_bytes, pages } = packed;
        let header = Rows {
            target: Target { epoch: Epoch::default(), part, round: Round(id) },
            action: self.action,
            urgency: 0,
            spec,
            shards: Shards::ALL,
            step: self.step,
            ids: cuts[0].ids,
            checksum: None,
        };
        let (mut answer, copies) = (Pool::new().lease(answer_bytes), Copies::default());
        let used = serve(&header, &body).map(|(version, bytes)| {
            if let Some(bytes) = bytes {
                copies.copy(&bytes, &mut answer[..bytes.len()]);
            }
            Effect::accepted(version)
        });
        let counts = if self.action.has_ids() { 0 } else { 1 };
        let dim = usize::try_from(spec.dim).expect("a few");
        let (handle, answer) = (Handle::used(id, used), Arc::new(Staging::new(answer)));
        let with_state = self.scan.with_state;
        Ok(RowsHandle { handle, answer, places, dim, codec, counts, pages, table: spec, with_state })
    }

    fn check(&self, spec: &TableSpec, kernels: Kernels, rank: &str) -> Result<()> {
        let name = &self.tensor.name;
        let invalid = |what: String, hint: &str| Err(Error::InvalidArgument { what, hint: hint.to_owned() });
        if self.ids.len() as u64 > TableSpec::IDS_MAX {
            return invalid(
                format!("table {name}: {} of {} ids at once", self.action, self.ids.len()),
                &format!("use at most {} ids at a time", TableSpec::IDS_MAX),
            );
        }
        if self.step > Rows::STEP_MAX {
            return invalid(
                format!("table {name}: step {}", self.step),
                &format!("count the steps of the training from 0 to {}", Rows::STEP_MAX),
            );
        }
        let (of_row, marks) = match self.action {
            RowAction::Push => (spec.dim, 0),
            RowAction::PushScored => (spec.dim, self.ids.len()),
            RowAction::Restore => (spec.row_len(), self.ids.len()),
            _ => (0, 0),
        };
        if self.gradients.len() as u64 != self.ids.len() as u64 * of_row || self.marks.len() != marks {
            let (numbers, ids) = (self.gradients.len(), self.ids.len());
            return invalid(
                format!(
                    "table {name}: {} of {numbers} numbers and {} marks for {ids} ids",
                    self.action,
                    self.marks.len()
                ),
                &format!("give {of_row} numbers for each id, and {marks} marks"),
            );
        }
        let is_restore = self.action == RowAction::Restore;
        let score = |mark: &u64| f32::from_bits((mark >> if is_restore { 32 } else { 0 }) as u32);
        if let Some(score) = self
            .marks
            .iter()
            .map(score)
            .find(|score| *score < 0.0 || score.is_infinite() || !is_restore && score.is_nan())
        {
            return invalid(format!("table {name}: a row with a score of {score}"), "give scores from 0 on");
        }
        let ShrinkBounds { decay, min_score, .. } = self.bounds;
        if !(0.0..=1.0).contains(&decay) || !min_score.is_finite() {
            return invalid(
                format!("table {name}: a decay of {decay} and a score of {min_score}"),
                "give a decay from 0 to 1, and a finite score",
            );
        }
        if self.action.pushes() && !kernels.all_finite_numbers(self.gradients) {
            let tensor = name.clone().into();
            return Err(Error::NotFinite { tensor, round: Round(self.step), from: rank.to_owned() });
        }
        Ok(())
    }

    /// Cuts the use for these parts.
    fn packed(
        &self,
        spec: &TableSpec,
        parts: &[(PartId, Shards)],
        codec: RowCodec,
        lease: impl FnOnce(usize) -> Lease,
    ) -> Result<Packed> {
        let mut distinct = Distinct::with_capacity(self.ids.len());
        let of_asked: Vec<u32> = self.ids.iter().map(|id| distinct.place_of(*id)).collect();
        let ids = distinct.ids();
        if self.action == RowAction::Restore && ids.len() < self.ids.len() {
            let name = &self.tensor.name;
            return Err(Error::InvalidArgument {
                what: format!("table {name}: a restore of {} ids, of which {} are others", self.ids.len(), ids.len()),
                hint: "give each id once".to_owned(),
            });
        }
        let scans = self.action.scans();
        let bodies = if scans { self.scan.bodies(self.action, &self.tensor.name, parts)? } else { Vec::new() };
        let mut part_of_shard = [0_u16; TableSpec::SHARDS as usize];
        for (index, (_, Shards { first, count })) in parts.iter().enumerate() {
            let shards = *first as usize..(*first + *count) as usize;
            part_of_shard[shards].fill(u16::try_from(index).expect("as many as shards"));
        }
        let part_of = |id: u64| usize::from(part_of_shard[TableSpec::shard_of(id) as usize]);
        let mut counts = vec![0_u64; parts.len()];
        ids.iter().for_each(|id| counts[part_of(*id)] += 1);
        if scans {
            counts.fill(Scan::page_bytes(spec, parts.len()));
        }
        let (mut cuts, mut sent, mut got, mut rows) = (Vec::with_capacity(parts.len()), 0, 0, 0);
        let mark_bytes = match self.action {
            RowAction::Restore => RowAction::MARK_BYTES,
            RowAction::PushScored => RowAction::SCORE_BYTES,
            _ => 0,
        };
        // For each part the next row of its answer, and where its ids, marks and numbers begin in the body.
        let mut next: Vec<(u64, [usize; 3])> = Vec::with_capacity(parts.len());
        for ((part, _), count) in parts.iter().zip(&counts) {
            let [bytes, back] = [self.action.sent_bytes(*count, spec), self.action.got_bytes(*count, spec)];
            check_bytes(&self.tensor.name, bytes.max(back))?;
            let [of_sent, of_got] = [(sent, bytes), (got, back)].map(|(offset, bytes)| Span { offset, bytes });
            cuts.push(RowsCut { part: *part, ids: *count, sent: of_sent, got: of_got });
            let behind_ids = sent + 8 * count;
            next.push((rows, [sent, behind_ids, behind_ids + mark_bytes * count].map(|at| at as usize)));
            (sent, got, rows) = (sent + bytes, got + back, rows + count);
        }
        let mut body = lease(sent as usize);
        let row_bytes = match self.action {
            RowAction::Restore => 4 * spec.row_len() as usize,
            _ => codec.row_bytes(),
        };
        let mark_bytes = mark_bytes as usize;
        // Of each distinct id, its row in the answer and where its mark and its numbers are.
        let mut of_distinct = Vec::with_capacity(ids.len());
        for id in ids {
            let (row, [id_at, mark_at, numbers_at]) = &mut next[part_of(*id)];
            body[*id_at..].as_chunks_mut().0[0] = id.to_le_bytes();
            of_distinct.push((u32::try_from(*row).expect("at most IDS_MAX"), *mark_at, *numbers_at));
            (*row, *id_at) = (*row + 1, *id_at + 8);
            (*mark_at, *numbers_at) = (*mark_at + mark_bytes, *numbers_at + row_bytes);
        }
        if self.action.pushes() {
            let dim = spec.dim as usize;
            let sums = Sums::of(self.gradients, &of_asked, ids.len(), dim);
            if let Some(what) = sums.overflow(dim, codec) {
                return Err(Error::NotFinite {
                    tensor: self.tensor.name.clone().into(),
                    round: Round(self.step),
                    from: what,
                });
            }
            for (sum, (.., at)) in sums.rows(dim).zip(&of_distinct) {
                codec.write(sum, &mut body[*at..][..row_bytes]);
            }
            // As gradients, scores of one id are added up.
            let mut scores = vec![0.0_f32; if self.marks.is_empty() { 0 } else { ids.len() }];
            for (place, mark) in of_asked.iter().zip(self.marks) {
                scores[*place as usize] += f32::from_bits(*mark as u32);
            }
            for (score, (_, at, _)) in scores.iter().zip(&of_distinct) {
                body[*at..].as_chunks_mut().0[0] = score.to_le_bytes();
            }
        } else if self.action == RowAction::Restore {
            let rows = self.gradients.chunks_exact(row_bytes / 4).zip(self.marks);
            for (place, (numbers, mark)) in of_asked.iter().zip(rows) {
                let (_, mark_at, at) = of_distinct[*place as usize];
                body[mark_at..].as_chunks_mut().0[0] = mark.to_le_bytes();
                let to = body[at..at + row_bytes].as_chunks_mut().0;
                to.iter_mut().zip(numbers).for_each(|(to, number)| *to = number.to_le_bytes());
            }
        } else if self.action == RowAction::Shrink {
            let ShrinkBounds { decay, min_score, max_idle, floor } = self.bounds;
            let bounds = [decay.to_bits(), min_score.to_bits(), max_idle, floor];
            for (at, to) in body.as_chunks_mut().0.iter_mut().enumerate() {
                *to = bounds[at % bounds.len()].to_le_bytes();
            }
        }
        for (cut, of_part) in cuts.iter().zip(&bodies) {
            Copies::default().copy(of_part, &mut body[cut.sent.offset as usize..cut.sent.end() as usize]);
        }
        let gots = parts.iter().zip(&cuts).map(|((_, shards), cut)| (shards.first, cut.got));
        let pages = if scans { self.scan.pages(self.action, gots) } else { Vec::new() };
        let places = of_asked.iter().map(|place| of_distinct[*place as usize].0).collect();
        Ok(Packed { body, cuts, places, answer_bytes: got as usize, pages })
    }
}

fn check_bytes(name: &str, bytes: u64) -> Result<()> {
    let limit = crate::wire::limits::PART_BYTES_MAX;
    if bytes <= limit {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        what: format!("table {name}: a use of {bytes} bytes on one server"),
        hint: format!("use fewer ids at a time: at most {limit} bytes go to a server and come from it"),
    })
}

impl RowsHandle {
    /// Its handle.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Writes the rows that came back, in the order of the ids that were asked for. Call it once the handle has resolved in order.
    ///
    /// # Panics
    /// If `rows` has not `dim` elements for each id, or the use brings no rows.
    pub fn read_rows(&self, rows: &mut [f32]) {
        assert_eq!(rows.len(), self.places.len() * self.dim, "a row for each id");
        self.read(|answer| {
            let row_bytes = self.codec.row_bytes();
            for (row, place) in rows.chunks_exact_mut(self.dim).zip(&self.places) {
                self.codec.read(&answer[*place as usize * row_bytes..][..row_bytes], row);
            }
        });
    }

    /// What all servers together have counted. Call it once the handle has resolved in order.
    pub fn counts(&self) -> RowCounts {
        self.read(|answer| {
            let (numbers, _) = answer.as_chunks::<8>();
            let mut sums = [0_u64; RowAction::COUNTS as usize];
            for of_part in numbers.chunks_exact(sums.len()).take(self.counts) {
                sums.iter_mut().zip(of_part).for_each(|(sum, number)| *sum += u64::from_le_bytes(*number));
            }
            let [scanned, evicted, rows, waiting, bytes, dropped] = sums;
            RowCounts { scanned, evicted, rows, waiting, bytes, dropped }
        })
    }

    /// The pages of a scan. Call it once the handle has resolved in order.
    ///
    /// # Errors
    /// [`Error::Protocol`] if a server has sent a page that is none.
    pub fn pages(&self) -> Result<Pages> {
        self.read(|answer| Pages::read(answer, &self.pages, &self.table, self.with_state))
    }

    fn read<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        borrow::read(&[self.answer.region()], &Copies::default(), read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TensorKey;

    #[test]
    fn each_id_goes_once_to_the_part_that_has_it_and_gradients_are_added_up() {
        let ids = [7, 3, 7, 900, 3, 7];
        let gradients: Vec<f32> = (0..12).map(|number| number as f32).collect();
        let asked = RowsUse { action: RowAction::Push, ids: &ids, gradients: &gradients, ..of("sgd;dim=2") };
        let Packed { body, cuts, places, answer_bytes, .. } = packed(&asked, "sgd;dim=2");
        assert_eq!((answer_bytes, body.len()), (0, 3 * (8 + 8)));
        assert_eq!(places.len(), ids.len());
        let mut found = Vec::new();
        for (cut, (_, shards)) in cuts.iter().zip(parts()) {
            let part = &body[cut.sent.offset as usize..cut.sent.end() as usize];
            let (of_ids, of_gradients) = part.split_at(8 * cut.ids as usize);
            for (id, gradient) in of_ids.as_chunks().0.iter().zip(of_gradients.chunks(8)) {
                let id = u64::from_le_bytes(*id);
                assert!(shards.have(id));
                let numbers: Vec<f32> = gradient.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                found.push((id, numbers));
            }
        }
        found.sort_by_key(|(id, _)| *id);
        assert_eq!(found, [(3, vec![10.0, 12.0]), (7, vec![14.0, 17.0]), (900, vec![6.0, 7.0])]);
    }

    #[test]
    fn the_answer_is_read_in_the_order_of_the_ids() {
        let ids: Vec<u64> = (0..100).chain(0..50).collect();
        let asked = RowsUse { action: RowAction::Pull, ids: &ids, ..of("sgd;dim=1") };
        let Packed { body, cuts, places, answer_bytes, .. } = packed(&asked, "sgd;dim=1");
        assert_eq!((answer_bytes, body.len()), (400, 800));
        // What the parts are asked for, in the order in which their answers lie.
        let sent: Vec<u64> = cuts
            .iter()
            .flat_map(|cut| body[cut.sent.offset as usize..cut.sent.end() as usize].as_chunks().0)
            .map(|bytes| u64::from_le_bytes(*bytes))
            .collect();
        assert!(ids.iter().zip(&places).all(|(id, place)| sent[*place as usize] == *id));
        assert!(cuts.iter().all(|cut| cut.ids > 0), "both have some of a hundred ids: {cuts:?}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let spec: TableSpec = "sgd;dim=2".parse().unwrap();
        let many = vec![1; TableSpec::IDS_MAX as usize + 1];
        let refused = |asked: RowsUse<'_>| asked.check(&spec, Kernels::portable(), "worker 0").unwrap_err().to_string();
        assert!(refused(RowsUse { ids: &many, ..of("sgd;dim=2") }).contains("1048577 ids at once"));
        let short = RowsUse { action: RowAction::Push, ids: &[1], gradients: &[1.0], ..of("sgd;dim=2") };
        assert!(refused(short).contains("push of 1 numbers and 0 marks for 1 ids"));
        let odd = RowsUse { action: RowAction::Push, ids: &[1], gradients: &[1.0, f32::NAN], ..of("sgd;dim=2") };
        assert!(matches!(odd.check(&spec, Kernels::portable(), "worker 0"), Err(Error::NotFinite { .. })));
        let rising = ShrinkBounds { decay: 1.5, ..ShrinkBounds::KEEP };
        assert!(refused(RowsUse { bounds: rising, ..of("sgd;dim=2") }).contains("decay of 1.5"));
    }

    fn packed(asked: &RowsUse<'_>, spec: &str) -> Packed {
        let spec = spec.parse().unwrap();
        let codec = RowCodec::of(&spec, Kernels::portable());
        asked.packed(&spec, &parts(), codec, |bytes| Pool::new().lease(bytes)).unwrap()
    }

    fn of(spec: &str) -> RowsUse<'static> {
        RowsUse {
            tensor: TensorSpec::table("rows", spec.parse().unwrap()),
            action: RowAction::Look,
            step: 0,
            ids: &[],
            gradients: &[],
            marks: &[],
            scan: Scan::default(),
            bounds: ShrinkBounds::KEEP,
            priority: Priority(0),
            timeout: None,
        }
    }

    fn parts() -> [(PartId, Shards); 2] {
        let part = |index| PartId { key: TensorKey::of("rows"), index };
        [(part(4), Shards { first: 0, count: 300 }), (part(5), Shards { first: 300, count: 724 })]
    }
}
