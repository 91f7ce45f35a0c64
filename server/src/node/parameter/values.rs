//! The values of parameters: carries out, on memory, the steps that [`Parameters`](super::Parameters) decides. Knows neither threads nor sockets.
//!
//! A value is a row of frozen blocks, which answers share without a copy. So a change never writes into a value: the body was received into
//! fresh blocks, to an addition the old value is added there, and then these blocks are the value.

use std::collections::BTreeMap;
use std::sync::Arc;

use gradlane_core::error::Error;
use gradlane_core::mem::{Frozen, Lease};
use gradlane_core::reduce::{OptimizerState, accumulator_bytes};
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{Average, DType, Defect, ExchangeId, Op, PartId, Rule, Version, WorkerId, planted};
use gradlane_core::wire::{Response, Value as ValueHeader, checksum};

use super::refusals::value_lost;
use crate::checkpoint::FrozenPart;
use crate::handle::Handle;
use crate::node::accumulator::SumResources;
use crate::node::command::{Change, Receipt, Route, ValueStep, ValueUpload};
use crate::node::event::Event;

mod handled;

use handled::Handled;

/// The values of some parts.
#[derive(Debug)]
pub struct Values {
    resources: SumResources,
    /// Does the additions to keys, and their pulls.
    handle: Option<Arc<dyn Handle>>,
    parts: BTreeMap<PartId, Part>,
}

#[derive(Default, Debug)]
struct Part {
    value: Value,
    /// What its rule keeps, once the rule was applied.
    optimizer: Option<OptimizerState>,
    uploads: BTreeMap<ExchangeId, Upload>,
    /// The gradients of rounds that are open.
    kept: BTreeMap<(u64, WorkerId), Vec<Lease>>,
    /// What was read from a checkpoint, for an order of the coordinator, and is not applied.
    read: Option<(u64, FrozenPart)>,
    /// Earlier values, from which workers compute.
    bases: BTreeMap<Version, Vec<Frozen>>,
    /// The gradient of a round that is over, until it is applied.
    merged: Option<(u64, Vec<Lease>)>,
}

/// Until the part is dropped, or a checkpoint is restored:
///
/// ```text
/// Absent ──first change──► Present ──a defect──► Lost
///                             └──its handle fails in a push──► Failed
/// ```
#[derive(Default, Debug)]
enum Value {
    #[default]
    Absent,
    Present {
        blocks: Vec<Frozen>,
        /// CRC-32C of all of them, once somebody has wanted it.
        checksum: Option<u32>,
    },
    Lost,
    /// Bodies are still taken, and every use is answered with this error.
    Failed(Error),
}

/// The body of a change, as far as it came.
#[derive(Debug)]
struct Upload {
    spec: ValueUpload,
    blocks: Vec<Lease>,
    /// Bytes that came.
    received: u64,
    /// CRC-32C of them, if the worker announced one.
    checksum: u32,
}

impl Values {
    /// No values.
    pub fn new(resources: SumResources) -> Self {
        Self { resources, handle: None, parts: BTreeMap::new() }
    }

    /// The same with a handle for keys, if there is one.
    #[must_use]
    pub fn with_handle(self, handle: Option<Arc<dyn Handle>>) -> Self {
        Self { handle, ..self }
    }

    /// Carries out a step of a part. Results go to `say`.
    pub fn step(&mut self, id: PartId, step: ValueStep, say: &mut impl FnMut(Event)) {
        match step {
            ValueStep::Receive { exchange, upload } => {
                let part = self.parts.entry(id).or_default();
                let upload = Upload { spec: upload, blocks: Vec::new(), received: 0, checksum: 0 };
                let receipt = if let Value::Lost = part.value { Some(Receipt::Lost) } else { upload.receipt() };
                part.uploads.insert(exchange, upload);
                say_receipt(id, exchange, receipt, say);
            }
            ValueStep::Change {
                exchange,
                dtype,
                rule,
                change,
                compensation,
                factor,
                global_step,
                rate,
                keeps,
                key,
            } => {
                let Some(part) = self.parts.get_mut(&id) else { return };
                let Some(mut upload) = part.uploads.remove(&exchange) else { return };
                if let Some((kappa, basis)) = compensation {
                    part.compensate(&self.resources, dtype, (kappa, basis), &mut upload.blocks);
                }
                if let (Some(version), Value::Present { blocks, .. }) = (keeps, &part.value) {
                    part.bases.insert(version, blocks.clone());
                }
                if factor != 1.0 {
                    upload.blocks.iter_mut().for_each(|block| self.resources.kernels.scale(dtype, factor, block));
                }
                match self.handle.as_deref().zip(key) {
                    Some((handle, used)) => {
                        part.push_by(&self.resources, &Handled { handle, part: id, used }, upload.blocks);
                    }
                    None => part.change(&self.resources, dtype, rule, (change, global_step, rate), upload.blocks),
                }
            }
            ValueStep::Release { version } => {
                let Some(part) = self.parts.get_mut(&id) else { return };
                part.bases.remove(&version);
            }
            ValueStep::Keep { exchange, round, worker } => {
                let Some(part) = self.parts.get_mut(&id) else { return };
                let Some(upload) = part.uploads.remove(&exchange) else { return };
                part.kept.insert((round, worker), upload.blocks);
            }
            ValueStep::Merge { round, gradients, divisor, dtype, clips } => {
                let mut sum = 0.0;
                if let Some(part) = self.parts.get_mut(&id) {
                    let later = part.kept.split_off(&(round + 1, WorkerId(0)));
                    let mut ended = std::mem::replace(&mut part.kept, later);
                    let gradients = gradients.into_iter().filter_map(|worker| ended.remove(&(round, worker)));
                    part.merged = merged(&self.resources, dtype, divisor, gradients).map(|merged| (round, merged));
                    let blocks = part.merged.iter().flat_map(|(_, blocks)| blocks).filter(|_| clips);
                    sum = blocks.fold(sum, |sum, block| sum + self.resources.kernels.squares(dtype, block));
                }
                if clips {
                    // Said in any case, because the coordinator waits for it.
                    say(Event::Squares { part: id, round, sum });
                }
            }
            ValueStep::Apply { round, factor, global_step, dtype, rule, rate } => {
                let Some(part) = self.parts.get_mut(&id) else { return };
                let Some((_, mut merged)) = part.merged.take_if(|(of, _)| *of == round) else { return };
                if factor != 1.0 {
                    merged.iter_mut().for_each(|block| self.resources.kernels.scale(dtype, factor, block));
                }
                part.change(&self.resources, dtype, Some(rule), (Change::Step, Some(global_step), rate), merged);
            }
            ValueStep::Forget { exchange } => {
                let Some(part) = self.parts.get_mut(&id) else { return };
                let upload = part.uploads.remove(&exchange);
                if planted(self.resources.defect, Defect::HalfChangeDone)
                    && let (Value::Present { blocks, checksum }, Some(upload)) = (&mut part.value, upload)
                {
                    *checksum = None;
                    blocks.iter_mut().zip(upload.blocks).for_each(|(block, came)| *block = came.freeze());
                }
            }
            ValueStep::Answer { exchange, average, key, header } => {
                let handled = self.handle.as_deref().zip(key).map(|(handle, used)| Handled { handle, part: id, used });
                let found = self.parts.get_mut(&id).ok_or_else(|| value_lost(id)).and_then(|part| {
                    let other = part.other(&self.resources, id, average, handled.as_ref())?;
                    Ok((part, other))
                });
                match found {
                    Ok((part, mut other)) => other.as_mut().unwrap_or(&mut part.value).answer(exchange, header, say),
                    Err(error) => say(Event::Send(Outgoing::Reject { exchange, about: header.about(), error })),
                }
            }
            ValueStep::Freeze { order } => {
                let frozen = self.parts.get(&id).and_then(Part::frozen);
                say(Event::Frozen { order, part: id, frozen });
            }
            ValueStep::Restore { order } => {
                let Some(part) = self.parts.get_mut(&id) else { return };
                if let Some((_, FrozenPart { blocks, optimizer, .. })) = part.read.take_if(|(of, _)| *of == order) {
                    part.value = Value::of(blocks);
                    part.optimizer = optimizer;
                }
            }
            ValueStep::Unread => {
                let Some(part) = self.parts.get_mut(&id) else { return };
                part.read = None;
                if let (Value::Absent, true) = (&part.value, part.uploads.is_empty()) {
                    self.parts.remove(&id);
                }
            }
            ValueStep::Drop => drop(self.parts.remove(&id)),
        }
    }

    /// Takes the next bytes of a change that `exchange` brought; of one that was forgotten it takes none.
    pub fn receive(
        &mut self,
        id: PartId,
        exchange: ExchangeId,
        chunks: &[impl AsRef<[u8]>],
        say: &mut impl FnMut(Event),
    ) {
        let Some(upload) = self.parts.get_mut(&id).and_then(|part| part.uploads.get_mut(&exchange)) else { return };
        for chunk in chunks {
            upload.take(&self.resources, chunk.as_ref());
        }
        say_receipt(id, exchange, upload.receipt(), say);
    }

    /// Takes what was read of a part for an order of the coordinator.
    pub fn take_read(&mut self, id: PartId, order: u64, read: FrozenPart) {
        self.parts.entry(id).or_default().read = Some((order, read));
    }

    /// Loses all values, after a defect left them in an unknown state. Whoever uses one of them, now or later, gets an error.
    pub fn lose_all(&mut self, say: &mut impl FnMut(Event)) {
        for (id, part) in &mut self.parts {
            part.value = Value::Lost;
            for exchange in std::mem::take(&mut part.uploads).into_keys() {
                say_receipt(*id, exchange, Some(Receipt::Lost), say);
            }
        }
    }

    /// The parts of which it keeps the value.
    pub fn parts(&self) -> impl Iterator<Item = PartId> {
        self.parts.keys().copied()
    }

    /// How many parts have a value or a body on its way.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

impl Part {
    /// Makes the blocks of a body the value.
    fn change(
        &mut self,
        resources: &SumResources,
        dtype: DType,
        rule: Option<Rule>,
        (change, global_step, rate): (Change, Option<u64>, Option<f64>),
        mut body: Vec<Lease>,
    ) {
        let bytes = body.iter().map(|block| block.len() as u64).sum();
        let before = match &self.value {
            Value::Lost | Value::Failed(_) => return,
            Value::Present { blocks, .. } => blocks.as_slice(),
            Value::Absent => &[],
        };
        assert!(change == Change::Put || before.len() == body.len(), "all bodies of a part are cut alike");
        match change {
            Change::Put => {}
            Change::Add => {
                for (value, block) in before.iter().zip(&mut body) {
                    // Onto the body, which makes no difference to the sum.
                    resources.kernels.add_elements(dtype, value, block, |bytes| resources.pool.lease(bytes));
                }
            }
            Change::Step => {
                let rule = rule.expect("a header of a step has one");
                let optimizer = self.optimizer.get_or_insert_with(|| OptimizerState::new(rule, dtype, bytes));
                optimizer.step_at_rate(
                    resources.kernels,
                    global_step,
                    rate,
                    before.iter().map(|value| &value[..]).zip(body.iter_mut().map(|block| &mut block[..])),
                );
            }
        }
        if let Some(optimizer) = self.optimizer.as_mut().filter(|_| change != Change::Step) {
            optimizer.handle_changed();
        }
        self.value = Value::of(body.into_iter().map(Lease::freeze).collect());
    }

    /// Lets a handle change the value.
    fn push_by(&mut self, resources: &SumResources, handled: &Handled<'_>, pushed: Vec<Lease>) {
        let Value::Present { blocks, .. } = &self.value else { return };
        self.value = match handled.push(resources, blocks, pushed) {
            Ok(made) => Value::of(made.into_iter().map(Lease::freeze).collect()),
            Err(error) => Value::Failed(error),
        };
        if let Some(optimizer) = &mut self.optimizer {
            optimizer.handle_changed();
        }
    }

    /// Compensates a gradient that was computed from an earlier value.
    fn compensate(
        &self,
        resources: &SumResources,
        dtype: DType,
        (kappa, basis): (f64, Version),
        gradient: &mut [Lease],
    ) {
        let (Value::Present { blocks, .. }, Some(base)) = (&self.value, self.bases.get(&basis)) else { return };
        for ((gradient, value), base) in gradient.iter_mut().zip(blocks).zip(base) {
            resources.kernels.compensate(dtype, kappa, gradient, value, base);
        }
    }

    /// Its value as it is now, with what its rule keeps; `None` if it has none.
    fn frozen(&self) -> Option<FrozenPart> {
        let Value::Present { blocks, .. } = &self.value else { return None };
        Some(FrozenPart { version: Version(0), blocks: blocks.clone(), optimizer: self.optimizer.clone() })
    }

    /// What an answer gives in place of the value: an average, or what a handle says. `None` for the value itself.
    ///
    /// # Errors
    /// Why there is nothing to give.
    fn other(
        &self,
        resources: &SumResources,
        id: PartId,
        average: Option<Average>,
        handled: Option<&Handled<'_>>,
    ) -> Result<Option<Value>, Error> {
        match (&self.value, handled) {
            (Value::Present { blocks, .. }, Some(handled)) => {
                handled.pull(resources, blocks).map(|other| other.map(Value::of))
            }
            (Value::Present { .. }, None) => Ok(average.and_then(|average| self.average(resources, average))),
            (Value::Failed(error), _) => Err(error.clone()),
            // The node never answers for a part without a value, so a defect has lost it.
            (Value::Absent | Value::Lost, _) => Err(value_lost(id)),
        }
    }

    /// An average of its values, in blocks of its own; `None` before the first step, when it is the value.
    fn average(&self, resources: &SumResources, average: Average) -> Option<Value> {
        let (Value::Present { blocks, .. }, Some(optimizer)) = (&self.value, &self.optimizer) else { return None };
        let mut mean: Vec<Lease> = blocks.iter().map(|block| resources.pool.lease(block.len())).collect();
        optimizer.average(average, mean.iter_mut().map(|block| &mut block[..]));
        Some(Value::of(mean.into_iter().map(Lease::freeze).collect()))
    }
}

impl Value {
    /// The value in these blocks.
    fn of(blocks: Vec<Frozen>) -> Self {
        Self::Present { blocks, checksum: None }
    }

    /// Sends the answer, with all blocks of this value if they are wanted.
    fn answer(&mut self, exchange: ExchangeId, header: ValueHeader, say: &mut impl FnMut(Event)) {
        let Self::Present { blocks, checksum: known } = self else { return };
        say(Event::Send(Outgoing::Answer { exchange, header: Response::Value(header) }));
        let wanted = if header.part_bytes > 0 { blocks.as_slice() } else { &[] };
        for block in wanted {
            say(Event::Send(Outgoing::Block { exchange, block: Frozen::clone(block) }));
        }
        let crc = || blocks.iter().fold(0, |crc, block| checksum(crc, block));
        let checksum = if header.checksum { *known.get_or_insert_with(crc) } else { 0 };
        say(Event::Send(Outgoing::End { exchange, checksum }));
    }
}

impl Upload {
    fn take(&mut self, resources: &SumResources, mut bytes: &[u8]) {
        if self.spec.checksum.is_some() {
            // Computed here, because the bytes are still in the cache.
            self.checksum = checksum(self.checksum, bytes);
        }
        let ValueUpload { bytes: whole, block_bytes, .. } = self.spec;
        while !bytes.is_empty() && self.received < whole {
            let begin = self.received / block_bytes * block_bytes;
            let end = (begin + block_bytes).min(whole);
            if self.received == begin {
                self.blocks.push(resources.pool.lease(place(end - begin)));
            }
            let block = self.blocks.last_mut().expect("pushed for its first byte");
            let run = bytes.len().min(place(end - self.received));
            let (now, later) = bytes.split_at(run);
            let at = place(self.received - begin);
            resources.copies.copy(now, &mut block[at..at + run]);
            self.received += run as u64;
            bytes = later;
        }
    }

    /// The receipt, once all of it came.
    fn receipt(&self) -> Option<Receipt> {
        if self.received < self.spec.bytes {
            return None;
        }
        let is_right = self.spec.checksum.is_none_or(|announced| announced == self.checksum);
        Some(if is_right { Receipt::Whole } else { Receipt::Damaged })
    }
}

/// The sum of gradients over `divisor`, added up in the wider type of their elements, in the blocks of the first one; `None` if there are none.
fn merged(
    resources: &SumResources,
    dtype: DType,
    divisor: f64,
    mut gradients: impl Iterator<Item = Vec<Lease>>,
) -> Option<Vec<Lease>> {
    let (kernels, mut first) = (resources.kernels, gradients.next()?);
    let others: Vec<Vec<Lease>> = gradients.collect();
    for (index, block) in first.iter_mut().enumerate() {
        let mut sum = resources.pool.lease(place(accumulator_bytes(dtype, block.len() as u64)));
        kernels.start(Op::Mean, dtype, 1.0, block, &mut sum);
        for other in &others {
            kernels.add(Op::Mean, dtype, 1.0, &other[index], &mut sum);
        }
        kernels.finish(Op::Mean, dtype, divisor, &sum, block);
    }
    Some(first)
}

fn say_receipt(part: PartId, exchange: ExchangeId, receipt: Option<Receipt>, say: &mut impl FnMut(Event)) {
    if let Some(receipt) = receipt {
        say(Event::Receipt { route: Route::Parameter { part }, exchange, receipt });
    }
}

/// A number of bytes within a block.
fn place(bytes: u64) -> usize {
    usize::try_from(bytes).expect("within a part")
}
