//! The sums of a server's rounds and their readers: carries out, on memory, the steps that the [node](crate::node::machine) decides.
//!
//! Knows neither threads nor sockets. Its driver (`lanes`, or the simulation) hands it steps and received bytes, and carries out the
//! [`Event`]s that come of them.

use std::collections::BTreeMap;

use gradlane_core::error::Error;
use gradlane_core::mem::Frozen;
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{ExchangeId, WorkerId};
use gradlane_core::wire::{Response, Sum as SumHeader, Target};

use crate::node::accumulator::{Accumulator, SumResources};
use crate::node::command::{Receipt, Route, SlotId, Step};
use crate::node::event::Event;

#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;

/// The sums of some parts.
#[derive(Debug)]
pub struct Sums {
    resources: SumResources,
    slots: BTreeMap<SlotId, Sum>,
}

/// One sum and its readers.
#[derive(Debug)]
struct Sum {
    accumulator: Accumulator,
    answers: BTreeMap<WorkerId, Answering>,
    /// Blocks that every reader had when it was last looked at.
    sent: usize,
}

/// A reader: how many blocks it was sent.
#[derive(Clone, Debug)]
struct Answering {
    exchange: ExchangeId,
    header: SumHeader,
    blocks: usize,
}

impl Sums {
    /// No sums.
    pub fn new(resources: SumResources) -> Self {
        Self { resources, slots: BTreeMap::new() }
    }

    /// Carries out a step of the sum of `slot`. Results go to `say`.
    pub fn step(&mut self, slot: SlotId, step: Step, say: &mut impl FnMut(Event)) {
        match step {
            Step::Begin(spec) => {
                let accumulator = Accumulator::new(self.resources.clone(), spec);
                let before = self.slots.insert(slot, Sum { accumulator, answers: BTreeMap::new(), sent: 0 });
                debug_assert!(before.is_none(), "{slot:?} was begun twice");
            }
            Step::Receive { worker, exchange, upload } => {
                let receipt = self
                    .slots
                    .get_mut(&slot)
                    .map_or(Some(Receipt::Lost), |sum| sum.accumulator.begin(worker, exchange, upload));
                if let Some(receipt) = receipt {
                    say(Event::Receipt { route: Route::Sum { slot, worker }, exchange, receipt });
                }
            }
            Step::Publish { divisor } => {
                if let Some(sum) = self.slots.get_mut(&slot) {
                    sum.accumulator.publish(divisor);
                    sum.flow(say);
                }
            }
            Step::Answer { worker, exchange, header } => match self.slots.get_mut(&slot) {
                Some(sum) => {
                    say(Event::Send(Outgoing::Answer { exchange, header: Response::Sum(header.clone()) }));
                    sum.answers.insert(worker, Answering { exchange, header, blocks: 0 });
                    sum.sent = 0;
                    sum.flow(say);
                }
                // The node never refers to a sum that was not begun, so a defect has lost it.
                None => say(Event::Send(no_sum(exchange, header.target))),
            },
            Step::Seal => {
                if let Some(sum) = self.slots.get_mut(&slot) {
                    sum.accumulator.seal();
                    sum.flow(say);
                }
            }
            Step::Drop => drop(self.slots.remove(&slot)),
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
        let receipt = sum.accumulator.receive(worker, exchange, chunks);
        sum.flow(say);
        if let Some(receipt) = receipt {
            say(Event::Receipt { route: Route::Sum { slot, worker }, exchange, receipt });
        }
    }

    /// Drops all sums, after a defect left them in an unknown state. Their readers get an error.
    pub fn lose_all(&mut self, say: &mut impl FnMut(Event)) {
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

    /// The slots that have one.
    pub fn slots(&self) -> impl Iterator<Item = SlotId> {
        self.slots.keys().copied()
    }
}

impl Sum {
    /// Sends every reader its missing blocks.
    fn flow(&mut self, say: &mut impl FnMut(Event)) {
        let (ready, complete) = (self.accumulator.ready(), self.accumulator.is_complete());
        if self.answers.is_empty() || (ready.len() == self.sent && !complete) {
            return;
        }
        self.sent = ready.len();
        let blocks: Vec<&Frozen> = ready.collect();
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
                let checksum = if wanted { self.accumulator.checksum() } else { 0 };
                say(Event::Send(Outgoing::End { exchange: answer.exchange, checksum }));
            }
        }
    }
}

fn no_sum(exchange: ExchangeId, target: Target) -> Outgoing {
    let about = target.about();
    let error = Error::Internal { what: format!("the sum of part {} was lost", target.part) };
    Outgoing::Reject { exchange, about, error }
}
