//! The memory of a server's services: carries out the steps that the [node](crate::node::machine) decides.
//!
//! Knows neither threads nor sockets. Its driver (`lanes`, or the simulation) hands it steps and received bytes, and carries out the
//! [`Event`]s that come of them.

use std::sync::Arc;

use gradlane_core::types::{ExchangeId, PartId};

use crate::checkpoint::FrozenPart;
use crate::handle::Handle;
use crate::node::accumulator::SumResources;
use crate::node::command::{Route, Work};
use crate::node::event::Event;
use crate::node::parameter::Values;
use crate::node::sum::Sums;
use crate::node::table::RowStore;

/// What some parts have in memory, one field a service.
#[derive(Debug)]
pub struct Store {
    sums: Sums,
    values: Values,
    rows: RowStore,
}

impl Store {
    /// Nothing.
    pub fn new(resources: SumResources) -> Self {
        Self {
            sums: Sums::new(resources.clone()),
            values: Values::new(resources.clone()),
            rows: RowStore::new(resources),
        }
    }

    /// The same with a handle for keys of `KVWorker`, if there is one.
    #[must_use]
    pub fn with_handle(self, handle: Option<Arc<dyn Handle>>) -> Self {
        Self { values: self.values.with_handle(handle), ..self }
    }

    /// The same, which says for which workers uses of tables wait if `says_waits`.
    #[must_use]
    pub fn saying_waits(self, says_waits: bool) -> Self {
        Self { rows: self.rows.saying_waits(says_waits), ..self }
    }

    /// Carries out a step. Results go to `say`.
    pub fn step(&mut self, work: Work, say: &mut impl FnMut(Event)) {
        match work {
            Work::Sum { slot, step } => self.sums.step(slot, step, say),
            Work::Parameter { part, step } => self.values.step(part, step, say),
            Work::Table { part, step } => self.rows.step(part, step, say),
        }
    }

    /// Takes the next bytes that `exchange` brought, along its route. Bytes for something that is gone are ignored.
    pub fn receive(
        &mut self,
        route: Route,
        exchange: ExchangeId,
        chunks: &[impl AsRef<[u8]>],
        say: &mut impl FnMut(Event),
    ) {
        match route {
            Route::Sum { slot, worker } => self.sums.receive(slot, worker, exchange, chunks, say),
            Route::Gift { part } => self.sums.receive_gift(part, exchange, chunks, say),
            Route::Parameter { part } => self.values.receive(part, exchange, chunks, say),
            Route::Table { part } => self.rows.receive(part, exchange, chunks, say),
        }
    }

    /// Takes what was read of the part of a parameter for an order of the coordinator.
    pub fn take_read(&mut self, part: PartId, order: u64, read: FrozenPart) {
        self.values.take_read(part, order, read);
    }

    /// Drops all, after a defect left it in an unknown state. Exchanges that are being answered get an error.
    pub fn lose_all(&mut self, say: &mut impl FnMut(Event)) {
        self.sums.lose_all(say);
        self.values.lose_all(say);
        self.rows.lose_all(say);
    }

    /// The sums.
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// The values of parameters.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// The rows of tables.
    pub fn rows(&self) -> &RowStore {
        &self.rows
    }
}
