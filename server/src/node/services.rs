//! The services of a server: a closed set, and the only place that names them.
//!
//! The [node](super::machine) knows who may ask, what memory there is, and how the server stands in its job. It hands each input to this
//! struct, which hands it to the service that it is about, or to all of them.

use std::ops::RangeInclusive;
use std::sync::Arc;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{Closing, ExchangeId, Order, PartId, Round, TensorKey, Time, WorkerId};
use gradlane_core::wire::frame::Waiting;
use gradlane_core::wire::{About, Request, Service, Withdraw};

use super::aggregate::Aggregator;
use super::budget::Budget;
use super::command::{Added, Archived, Command, Route, Served};
use super::config::NodeConfig;
use super::membership::{Membership, Sender, Succession};
use super::parameter::Parameters;
use super::table::Tables;

/// The services.
#[derive(Debug)]
pub(super) struct Services {
    pub(super) sums: Aggregator,
    pub(super) parameters: Parameters,
    pub(super) tables: Tables,
}

/// What becomes of an exchange that was opened.
#[derive(Debug)]
pub(super) enum Opening {
    /// A service has it, and ends it.
    Taken,
    /// It brings an error, which the node reads before [`Services::handle_withdraw`].
    Withdrawal(Withdraw),
}

impl Services {
    /// Services that wait for their first membership.
    ///
    /// # Panics
    /// If `stall_warn` is zero.
    pub(super) fn new(config: &NodeConfig) -> Self {
        Self {
            sums: Aggregator::new(config.clone()),
            parameters: Parameters::new(config.clone()),
            tables: Tables::new(config.clone()),
        }
    }

    /// The next command.
    pub(super) fn next_command(&mut self) -> Option<Command> {
        let command = self.sums.next_command().or_else(|| self.parameters.next_command());
        command.or_else(|| self.tables.next_command())
    }

    /// When [`Self::handle_timeout`] is due.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.sums.poll_timeout().into_iter().chain(self.tables.poll_timeout()).min()
    }

    /// Time passed. Returns the workers that were given up, and why. Their links are to be closed.
    pub(super) fn handle_timeout(&mut self, now: Time, budget: &mut Budget) -> Vec<(WorkerId, Error)> {
        self.sums.handle_timeout(now, budget);
        self.tables.handle_timeout(now);
        let given_up = self.sums.given_up().into_iter();
        let reason = |(worker, waited)| (worker, Error::Timeout { what: format!("{worker} to read its sums"), waited });
        given_up.map(reason).collect()
    }

    /// An admitted worker opened an exchange. An error is for the caller to send.
    pub(super) fn handle_opened(
        &mut self,
        now: Time,
        sender: Sender,
        exchange: ExchangeId,
        header: &Request,
        budget: &mut Budget,
    ) -> Result<Opening> {
        self.check_kind(sender.worker, header.about())?;
        match header {
            Request::Contribute(header) => {
                self.sums.handle_contribute(now, sender.worker, exchange, header, budget);
            }
            Request::Restore(header) => self.sums.handle_restore(now, sender.worker, exchange, header, budget),
            Request::AnswerResidual(header) => {
                self.sums.handle_residual(now, sender.worker, exchange, header, budget);
            }
            Request::Withdraw(header) => return Ok(Opening::Withdrawal(header.clone())),
            Request::Use(header) => self.parameters.handle_use(now, sender, exchange, header, budget),
            Request::Rows(header) => self.tables.handle_rows(now, sender, exchange, header, budget)?,
            Request::Unknown(about) => return Err(about.service.refusal(&sender.worker.to_string())),
        }
        Ok(Opening::Taken)
    }

    /// An admitted worker said with `header`, and with `error` behind it, that it will not contribute to a round. Returns the error to answer.
    pub(super) fn handle_withdraw(
        &mut self,
        now: Time,
        worker: WorkerId,
        header: &Withdraw,
        error: &Error,
        budget: &mut Budget,
    ) -> Error {
        match self.check_kind(worker, header.target.about()) {
            Ok(()) => self.sums.handle_withdraw(now, worker, header, error, budget),
            Err(refusal) => refusal,
        }
    }

    /// The driver says what became of the body of `exchange`, whose bytes went along `route`.
    pub(super) fn handle_receipt(
        &mut self,
        now: Time,
        route: Route,
        exchange: ExchangeId,
        added: Added,
        budget: &mut Budget,
    ) {
        match route {
            Route::Sum { slot, worker } => self.sums.handle_receipt(now, slot, worker, exchange, added, budget),
            Route::Gift { part } => self.sums.handle_gift(part, exchange, added.receipt, budget),
            Route::Parameter { part: _ } => self.parameters.handle_receipt(exchange, added.receipt, budget),
            Route::Table { part: _ } => unreachable!("tables have no receipts"),
        }
    }

    /// The driver says that the store is done with a use of a table.
    pub(super) fn handle_served(&mut self, served: &Served, budget: &mut Budget) {
        self.tables.handle_served(served, budget);
    }

    /// The driver says the squares of the gradient of a part in a round.
    pub(super) fn handle_squares(&mut self, part: PartId, round: u64, sum: f64) {
        self.parameters.handle_squares(part, round, sum);
    }

    /// An exchange broke off. A service ignores those that it does not know.
    pub(super) fn handle_torn(&mut self, exchange: ExchangeId, budget: &mut Budget) {
        self.sums.handle_torn(exchange, budget);
        self.parameters.handle_torn(exchange, budget);
        self.tables.handle_torn(exchange, budget);
    }

    /// The answer of an exchange was handed over whole.
    pub(super) fn handle_answered(&mut self, exchange: ExchangeId, budget: &mut Budget) {
        self.sums.handle_answered(exchange, budget);
        self.parameters.handle_answered(exchange, budget);
        self.tables.handle_answered(exchange, budget);
    }

    /// Parts of tensors are over. Exchanges of them that are open are rejected with `error`, and nothing is kept of them.
    pub(super) fn handle_over(&mut self, parts: RangeInclusive<PartId>, error: &Error, budget: &mut Budget) {
        self.sums.handle_over(parts.clone(), error, budget);
        self.parameters.handle_over(parts.clone(), error, budget);
        self.tables.handle_over(parts, error, budget);
    }

    /// The coordinator says how a round of a clock is closed.
    pub(super) fn handle_close(&mut self, closing: &Closing, budget: &mut Budget) {
        self.parameters.handle_close(closing, budget);
    }

    /// An operator has changed the learning rate of a parameter.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there are too many.
    pub(super) fn handle_rate(&mut self, key: TensorKey, step: Option<u64>, rate: f64) -> Result<()> {
        self.parameters.handle_rate(key, step, rate)
    }

    /// The coordinator has an order about a checkpoint.
    pub(super) fn handle_order(&mut self, order: Order, budget: &mut Budget) {
        self.parameters.handle_order(order, budget);
    }

    /// What an order has wanted was written, or read.
    pub(super) fn handle_archived(&mut self, archived: Archived, budget: &mut Budget) {
        self.parameters.handle_archived(archived, budget);
    }

    /// A membership that is not older than the present one, and what it means for the work of the one before.
    pub(super) fn handle_membership(&mut self, next: &Arc<Membership>, succession: &Succession, budget: &mut Budget) {
        self.sums.handle_membership(Arc::clone(next), succession, budget);
        self.parameters.handle_membership(Arc::clone(next), succession, budget);
        self.tables.handle_membership(Arc::clone(next), succession, budget);
    }

    /// Nothing fails before that because of a missing worker: nobody can say that it is lost.
    pub(super) fn be_patient(&mut self, until: Time) {
        self.sums.be_patient(until);
    }

    /// The connection of this worker was lost.
    pub(super) fn handle_worker_away(&mut self, worker: WorkerId) {
        self.sums.handle_worker_away(worker);
    }

    /// This worker has a connection. It is its first one, or it follows one that was lost.
    pub(super) fn handle_worker_back(&mut self, worker: WorkerId) {
        self.sums.handle_worker_back(worker);
    }

    /// The server is about to stop: from now on new work is refused with `refusal`. Work that was begun is completed.
    pub(super) fn handle_drain(&mut self, refusal: &Error) {
        self.sums.handle_drain(refusal.clone());
        self.parameters.handle_drain(refusal.clone());
        self.tables.handle_drain(refusal.clone());
    }

    /// Whether the server drains and no service has anything open any more.
    pub(super) fn is_drained(&self) -> bool {
        self.sums.is_drained() && self.parameters.is_drained() && self.tables.is_drained()
    }

    /// How many exchanges are open.
    pub(super) fn pending(&self) -> usize {
        self.sums.pending() + self.parameters.pending() + self.tables.pending()
    }

    /// How many rounds have begun and miss a contribution.
    pub(super) fn waiting_rounds(&self) -> usize {
        self.sums.waiting_rounds()
    }

    /// The sums that have waited for a moment.
    pub(super) fn waits(&self, now: Time) -> Vec<Waiting> {
        self.sums.waits(now)
    }

    /// The latest work, of the first service that has done some.
    pub(super) fn last(&self) -> Option<(TensorKey, Round)> {
        self.sums.last().or_else(|| self.parameters.last()).or_else(|| self.tables.last())
    }

    /// Refuses a request to one service for a part that another one has. The coordinator refuses such a declaration.
    fn check_kind(&self, worker: WorkerId, About { service, part, .. }: About) -> Result<()> {
        let known = [
            (Service::DenseSum, self.sums.knows(part)),
            (Service::Parameter, self.parameters.knows(part)),
            (Service::Table, self.tables.knows(part)),
        ];
        let Some((known, _)) = known.into_iter().find(|(of, knows)| *knows && *of != service) else { return Ok(()) };
        let name = |service| match service {
            Service::DenseSum => "a sum",
            Service::Parameter => "a parameter",
            Service::Table => "a table",
            Service::Unknown(_) => "something else",
        };
        let (asked, known) = (name(service), name(known));
        Err(Error::Protocol {
            peer: worker.to_string(),
            field: "kind".to_owned(),
            problem: format!("is {asked}, and part {part} is one of {known}"),
        })
    }
}
