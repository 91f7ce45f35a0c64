//! The sums of a server's rounds and their readers: carries out, on memory, the steps that the [node](crate::node::machine) decides.
//!
//! Knows neither threads nor sockets. Its driver (`lanes`, or the simulation) hands it steps and received bytes, and carries out the
//! [`Event`]s that come of them.

use std::collections::BTreeMap;

use gradlane_core::codec::feedback::{Residual, Start};
use gradlane_core::codec::{Seed, Workspace};
use gradlane_core::error::Error;
use gradlane_core::mem::Frozen;
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{ExchangeId, PartId, WorkerId};
use gradlane_core::wire::{Body, Response, Sum as SumHeader, Target};

use crate::node::accumulator::{Accumulator, Gathered, SumResources};
use crate::node::command::{Feedback, Receipt, Route, SlotId, Step, Upload};
use crate::node::event::Event;

use residuals::Residuals;

mod residuals;

#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;

/// The sums of some parts.
#[derive(Debug)]
pub struct Sums {
    resources: SumResources,
    /// Of the codecs; kept from sum to sum.
    workspace: Workspace,
    slots: BTreeMap<SlotId, Sum>,
    /// Those of the answers, unless the sum of a part has it.
    residuals: Residuals,
}

/// One sum and its readers.
#[derive(Debug)]
struct Sum {
    memory: Growing,
    answers: BTreeMap<WorkerId, Answering>,
    /// Blocks that every reader had when it was last looked at.
    sent: usize,
}

/// What the contributions become.
#[derive(Debug)]
enum Growing {
    /// Of bodies of one length, in blocks that leave as they are finished.
    Blocks(Accumulator),
    /// Of bodies that vary in length, in one piece.
    Whole(Gathered),
}

/// A reader: how many blocks it was sent, after its header if that is known already.
#[derive(Clone, Debug)]
struct Answering {
    exchange: ExchangeId,
    header: SumHeader,
    is_begun: bool,
    blocks: usize,
}

impl Sums {
    /// No sums.
    pub fn new(resources: SumResources) -> Self {
        Self { resources, workspace: Workspace::default(), slots: BTreeMap::new(), residuals: Residuals::default() }
    }

    /// Carries out a step of the sum of `slot`. Results go to `say`.
    pub fn step(&mut self, slot: SlotId, step: Step, say: &mut impl FnMut(Event)) {
        match step {
            Step::Begin(spec) => {
                let seed = Seed::of(slot.part, slot.round);
                let resources = self.resources.clone();
                let memory = match spec.codec.varies() {
                    true => Growing::Whole(Gathered::new(resources, spec, seed)),
                    false => Growing::Blocks(Accumulator::new(resources, spec, seed)),
                };
                let before = self.slots.insert(slot, Sum { memory, answers: BTreeMap::new(), sent: 0 });
                debug_assert!(before.is_none(), "{slot:?} was begun twice");
            }
            Step::Receive { worker, exchange, upload } => {
                let receipt = self
                    .slots
                    .get_mut(&slot)
                    .map_or(Some(Receipt::Lost), |sum| sum.memory.begin(worker, exchange, upload));
                if let Some(receipt) = receipt {
                    say(Event::Receipt { route: Route::Sum { slot, worker }, exchange, receipt });
                }
            }
            Step::Publish { divisor, residual } => {
                if let Some(sum) = self.slots.get_mut(&slot) {
                    let take = |used: Feedback| (self.residuals.take(slot.part, used), used.start);
                    let residual = residual.map(take);
                    sum.memory.publish(divisor, residual, &mut self.workspace);
                    sum.flow(say);
                }
            }
            Step::Answer { worker, exchange, header } => match self.slots.get_mut(&slot) {
                Some(sum) => {
                    sum.answers.insert(worker, Answering { exchange, header, is_begun: false, blocks: 0 });
                    sum.sent = 0;
                    sum.begin_answers(say);
                    sum.flow(say);
                }
                // The node never refers to a sum that was not begun, so a defect has lost it.
                None => say(Event::Send(no_sum(exchange, header.target))),
            },
            Step::Seal => {
                if let Some(sum) = self.slots.get_mut(&slot) {
                    if let Some(residual) = sum.memory.seal() {
                        self.residuals.put_back(slot.part, residual);
                    }
                    sum.flow(say);
                }
            }
            Step::Drop => drop(self.slots.remove(&slot)),
            Step::DropResidual => self.residuals.drop_of(slot.part),
            Step::TakeGift { exchange, bytes, checksum } => {
                let bytes = usize::try_from(bytes).expect("of a part");
                self.residuals.begin_gift(slot.part, exchange, (bytes, checksum), say);
            }
            Step::DropGift => self.residuals.drop_gift(slot.part),
            Step::AnswerResidual { exchange, header, shown } => {
                self.residuals.answer((&self.resources.pool, slot.part), exchange, header, shown, say);
            }
        }
    }

    /// Takes the next bytes that `exchange` brought for the sum of `slot`; for a sum that is gone it takes none.
    pub fn receive(
        &mut self,
        slot: SlotId,
        worker: WorkerId,
        exchange: ExchangeId,
        chunks: &[impl AsRef<[u8]>],
        say: &mut impl FnMut(Event),
    ) {
        let Some(sum) = self.slots.get_mut(&slot) else { return };
        let receipt = sum.memory.receive(worker, exchange, chunks, &mut self.workspace);
        sum.flow(say);
        if let Some(receipt) = receipt {
            say(Event::Receipt { route: Route::Sum { slot, worker }, exchange, receipt });
        }
    }

    /// Takes the next bytes that `exchange` brought of the residual that is given for a part.
    pub fn receive_gift(
        &mut self,
        part: PartId,
        exchange: ExchangeId,
        chunks: &[impl AsRef<[u8]>],
        say: &mut impl FnMut(Event),
    ) {
        self.residuals.receive_gift(part, exchange, chunks, say);
    }

    /// Drops all sums, after a defect left them in an unknown state. Their readers get an error.
    pub fn lose_all(&mut self, say: &mut impl FnMut(Event)) {
        self.residuals.lose_all(say);
        for sum in std::mem::take(&mut self.slots).into_values() {
            for Answering { exchange, header, .. } in sum.answers.into_values() {
                say(Event::Send(no_sum(exchange, header.target)));
            }
        }
    }

    /// How many sums there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The parts whose answers have a residual that no sum has now.
    pub fn residuals(&self) -> impl Iterator<Item = PartId> {
        self.residuals.parts()
    }

    /// The slots that have one.
    pub fn slots(&self) -> impl Iterator<Item = SlotId> {
        self.slots.keys().copied()
    }
}

impl Sum {
    /// Sends the headers that were not sent, once the form of the sum is known.
    fn begin_answers(&mut self, say: &mut impl FnMut(Event)) {
        let Some(form) = self.memory.form() else { return };
        for answer in self.answers.values_mut().filter(|answer| !answer.is_begun) {
            answer.begin(form, say);
        }
    }

    /// Sends every reader its missing blocks.
    fn flow(&mut self, say: &mut impl FnMut(Event)) {
        let (ready, complete) = (self.memory.ready_len(), self.memory.is_complete());
        if self.answers.is_empty() || (ready == self.sent && !complete) {
            return;
        }
        self.begin_answers(say);
        self.sent = ready;
        let blocks = self.memory.ready();
        // Block by block, so that all readers have the first before any has the last.
        let first = self.answers.values().map(|answer| answer.blocks).min().unwrap_or(0);
        for (number, block) in blocks.iter().enumerate().skip(first) {
            for answer in self.answers.values_mut().filter(|answer| answer.blocks == number) {
                answer.blocks += 1;
                // A worker that does not receive the sum hears of its end only.
                if answer.header.part_bytes > 0 {
                    let block = Frozen::clone(block);
                    say(Event::Send(Outgoing::Block { exchange: answer.exchange, block }));
                }
            }
        }
        if complete {
            for answer in std::mem::take(&mut self.answers).into_values() {
                let wanted = answer.header.checksum;
                let checksum = if wanted { self.memory.checksum() } else { 0 };
                say(Event::Send(Outgoing::End { exchange: answer.exchange, checksum }));
            }
        }
    }
}

impl Answering {
    /// Sends the header, with the form of the sum if that was not known before.
    fn begin(&mut self, form: Form, say: &mut impl FnMut(Event)) {
        self.is_begun = true;
        if let (Form::Is(body), true) = (form, self.header.part_bytes > 0) {
            self.header.body = body;
        }
        let header = Response::Sum(self.header.clone());
        say(Event::Send(Outgoing::Answer { exchange: self.exchange, header }));
    }
}

/// What is known of the wire form of a sum.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// It was known from the beginning.
    AsDue,
    /// This.
    Is(Body),
}

impl Growing {
    fn begin(&mut self, worker: WorkerId, exchange: ExchangeId, upload: Upload) -> Option<Receipt> {
        match self {
            Self::Blocks(sum) => sum.begin(worker, exchange, upload),
            Self::Whole(sum) => sum.begin(worker, exchange, upload),
        }
    }

    fn receive(
        &mut self,
        worker: WorkerId,
        exchange: ExchangeId,
        chunks: &[impl AsRef<[u8]>],
        workspace: &mut Workspace,
    ) -> Option<Receipt> {
        match self {
            Self::Blocks(sum) => sum.receive(worker, exchange, chunks, workspace),
            Self::Whole(sum) => sum.receive(worker, exchange, chunks, workspace),
        }
    }

    fn publish(&mut self, divisor: f64, residual: Option<(Residual, Start)>, workspace: &mut Workspace) {
        match self {
            Self::Blocks(sum) => sum.publish(divisor, residual, workspace),
            Self::Whole(sum) => sum.publish(divisor, residual, workspace),
        }
    }

    fn seal(&mut self) -> Option<Residual> {
        match self {
            Self::Blocks(sum) => sum.seal(),
            Self::Whole(sum) => sum.seal(),
        }
    }

    /// The form of the sum; absent until it is known.
    fn form(&self) -> Option<Form> {
        match self {
            Self::Blocks(_) => Some(Form::AsDue),
            Self::Whole(sum) => sum.body().map(Form::Is),
        }
    }

    /// How many blocks may be sent.
    fn ready_len(&self) -> usize {
        match self {
            Self::Blocks(sum) => sum.ready().len(),
            Self::Whole(sum) => sum.ready().len(),
        }
    }

    /// The blocks that may be sent, from the first.
    fn ready(&self) -> Vec<&Frozen> {
        match self {
            Self::Blocks(sum) => sum.ready().collect(),
            Self::Whole(sum) => sum.ready().iter().collect(),
        }
    }

    /// Whether all of the sum may be sent.
    fn is_complete(&self) -> bool {
        match self {
            Self::Blocks(sum) => sum.is_complete(),
            Self::Whole(sum) => sum.body().is_some(),
        }
    }

    fn checksum(&mut self) -> u32 {
        match self {
            Self::Blocks(sum) => sum.checksum(),
            Self::Whole(sum) => sum.checksum(),
        }
    }
}

fn no_sum(exchange: ExchangeId, target: Target) -> Outgoing {
    let about = target.about();
    let error = Error::Internal { what: format!("the sum of part {} was lost", target.part) };
    Outgoing::Reject { exchange, about, error }
}
