//! The deciding half of a summation server.
//!
//! A [`Node`] is the host of the server's services. It has the links and identities, admission, withdrawals, the budget of memory, the names
//! that ended, draining and the membership of the job. What is done with tensors the [services](super::services) decide, and only they are
//! named there. It owns no bytes of tensors, threads, sockets or clocks. The data plane of a server and the simulation drive the same struct.
//!
//! # Driving it
//!
//! 1. Report what happens: [`handle_link_up`](Node::handle_link_up) and [`handle_link_down`](Node::handle_link_down) for connections,
//!    [`handle_opened`](Node::handle_opened), [`handle_torn`](Node::handle_torn) and [`handle_answered`](Node::handle_answered) for
//!    exchanges, [`handle_member`](Node::handle_member) for the membership. Time is an argument.
//! 2. After each input carry out [`next_command`](Node::next_command) until there is none, in that order. Then call
//!    [`handle_timeout`](Node::handle_timeout) when [`poll_timeout`](Node::poll_timeout) says so.
//! 3. [`Command::Step`] is a step for the [`Store`](super::store::Store), which the driver may spread over threads. The steps of one part keep
//!    their order; steps of different parts may overlap. Report every receipt that comes of them with
//!    [`handle_receipt`](Node::handle_receipt), squares with [`handle_squares`](Node::handle_squares), and uses of tables that are over with
//!    [`handle_served`](Node::handle_served).
//! 4. Keep a table of routes. A step that [receives](super::command::Work::receives) adds one, [`Command::Unroute`] removes it. Bytes of an
//!    exchange with a route go straight to the store, so that no chunk of a body passes this machine. Bytes of an exchange without a route
//!    go to [`handle_body`](Node::handle_body): they are few, because only withdrawals come this way.
//! 5. After each input look at [`state`](Node::state) and [`is_drained`](Node::is_drained), if somebody waits for them.
//!
//! # Admission
//!
//! An exchange is admitted by its header alone: the identity that the connection proved, the epoch, and the membership. Nothing is stored or
//! booked for an exchange that is not admitted, and everything that an admitted one can make grow is booked in one budget first. What a
//! worker has sent and nobody has read is not known here. For that, each worker is granted an equal share of memory that is set apart
//! ([`Command::Grant`]).

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use gradlane_core::Error;
use gradlane_core::cluster::{Contact, MemberEvent};
use gradlane_core::error::Result;
use gradlane_core::types::{
    Epoch, ExchangeId, LinkId, NodeId, PartId, Phase, ServerId, TensorKey, Time, View, WorkerId,
};
use gradlane_core::wire::frame::{Progress, Waiting};
use gradlane_core::wire::{About, Request, Withdraw};

use super::budget::Budget;
use super::command::{Added, Archived, Command, Route, Served};
use super::config::NodeConfig;
use super::life::{ServerState, Turn};
use super::membership::{Membership, Sender, Succession, not_yet, rejection};
use super::names::{Names, undeclared};
use super::services::{Opening, Services};
use super::withdrawals::Withdrawals;

#[cfg(test)]
mod tests;

/// The most links of processes that are not in the view. A worker may be here before the view that names it.
const STRANGERS_MAX: usize = 64;

/// What a worker may have sent and not been read: within these bounds, whatever its share of the memory. More would not make it faster, and
/// with less a link is slow.
const UNREAD_BYTES: RangeInclusive<u64> = 64 << 10..=256 << 20;

/// The machine; the module's documentation says how to drive it.
#[derive(Debug)]
pub struct Node {
    config: NodeConfig,
    state: ServerState,
    /// Absent if the job ends when it loses a worker.
    contact: Option<Contact>,
    /// Known once it has joined.
    index: Option<ServerId>,
    view: Option<View>,
    membership: Option<Arc<Membership>>,
    links: BTreeMap<LinkId, NodeId>,
    /// What each worker may have sent and not been read. It never grows, so that all that was granted fits into the memory.
    unread_bytes: Option<u64>,
    /// Links to which it was granted.
    granted: BTreeMap<LinkId, u64>,
    withdrawals: Withdrawals,
    /// The memory of the whole server.
    budget: Budget,
    pub(super) names: Names,
    pub(super) services: Services,
    commands: VecDeque<Command>,
}

impl Node {
    /// A node that joins its job.
    ///
    /// # Panics
    /// If `stall_warn` is zero.
    pub fn new(config: NodeConfig) -> Self {
        Self {
            services: Services::new(&config),
            // Within this time all memory that nobody needs is freed.
            budget: Budget::new(config.memory_bytes_max, config.step_timeout * 2, config.stall_warn),
            names: Names::default(),
            contact: config.contact.map(Contact::new),
            config,
            state: ServerState::Joining,
            index: None,
            view: None,
            membership: None,
            links: BTreeMap::new(),
            unread_bytes: None,
            granted: BTreeMap::new(),
            withdrawals: Withdrawals::default(),
            commands: VecDeque::new(),
        }
    }

    /// The next command to the driver.
    pub fn next_command(&mut self) -> Option<Command> {
        let shortage = self.budget.shortage().map(|shortage| Command::Short { shortage });
        shortage.or_else(|| self.commands.pop_front()).or_else(|| self.services.next_command())
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.services.poll_timeout()
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Time) {
        for (worker, reason) in self.services.handle_timeout(now, &mut self.budget) {
            let node = self.membership.as_ref().and_then(|ours| ours.node(worker));
            let link = self.links.iter().find(|(_, of)| Some(**of) == node).map(|(link, _)| *link);
            if let Some(link) = link {
                self.disconnect(link, reason);
            }
        }
    }

    /// A process connected, and proved that it is `node`. It has one link: a worker opens another one only when it has lost the one before.
    pub fn handle_link_up(&mut self, link: LinkId, node: NodeId) {
        let before = self.links.iter().find(|(_, of)| **of == node).map(|(before, _)| *before);
        if let Some(before) = before.filter(|before| *before != link) {
            self.disconnect(before, closed("the same process has opened a newer one"));
        }
        self.links.insert(link, node);
        if let Some(worker) = self.worker(node) {
            self.services.handle_worker_back(worker);
        }
        let strangers = self.links.iter().filter(|(_, of)| !self.is_member(**of));
        if strangers.clone().count() > STRANGERS_MAX {
            let oldest = *strangers.map(|(link, _)| link).next().expect("there are several");
            self.disconnect(oldest, closed("too many processes that are not in the job are connected"));
        }
        self.grant();
    }

    /// A connection ended. Its exchanges were reported torn before.
    pub fn handle_link_down(&mut self, link: LinkId) {
        self.forget_link(link);
    }

    /// A header arrived.
    pub fn handle_opened(&mut self, now: Time, link: LinkId, exchange: ExchangeId, header: &Request) {
        if let Err(error) = self.open(now, link, exchange, header) {
            self.reject(exchange, header.about(), error);
        }
    }

    /// Bytes arrived of an exchange that has no route.
    pub fn handle_body(&mut self, now: Time, exchange: ExchangeId, chunks: &[Bytes]) {
        let whole = self.withdrawals.receive(exchange, chunks, &mut self.budget);
        let Some(withdrawal) = whole else { return };
        let header = withdrawal.header.clone();
        // The membership may have changed since the header came.
        let admitted = self.admit(withdrawal.node, header.target.epoch, header.target.part);
        let answer = match admitted.and_then(|sender| Ok((sender, withdrawal.error()?))) {
            Ok((Sender { worker, .. }, error)) => {
                self.services.handle_withdraw(now, worker, &header, &error, &mut self.budget)
            }
            Err(refusal) => refusal,
        };
        self.reject(exchange, header.target.about(), answer);
    }

    /// The store says what became of a body, whose latest bytes `exchange` brought along `route`.
    pub fn handle_receipt(&mut self, now: Time, route: Route, exchange: ExchangeId, added: Added) {
        self.services.handle_receipt(now, route, exchange, added, &mut self.budget);
    }

    /// The store is done with a use of a table.
    pub fn handle_served(&mut self, served: &Served) {
        self.services.handle_served(served, &mut self.budget);
    }

    /// The store says the squares of the gradient of a part in a round.
    pub fn handle_squares(&mut self, part: PartId, round: u64, squares: f64) {
        self.services.handle_squares(part, round, squares);
    }

    /// An exchange broke off. Unknown ones are ignored.
    pub fn handle_torn(&mut self, exchange: ExchangeId) {
        self.withdrawals.end(exchange, &mut self.budget);
        self.services.handle_torn(exchange, &mut self.budget);
    }

    /// The answer of an exchange was handed over whole.
    pub fn handle_answered(&mut self, exchange: ExchangeId) {
        self.services.handle_answered(exchange, &mut self.budget);
    }

    /// The job's membership says something.
    pub fn handle_member(&mut self, event: MemberEvent) {
        match event {
            MemberEvent::Joined { index, view } => {
                // A server that lost its connection joins anew, in the same place.
                self.index.get_or_insert(ServerId(index));
                self.follow(view);
                self.turn(Turn::Joined);
            }
            MemberEvent::View(view) => self.follow(view),
            MemberEvent::Ended { keys, below } => keys.into_iter().for_each(|key| self.end_name(key, below)),
            MemberEvent::Close(closing) => self.services.handle_close(&closing, &mut self.budget),
            MemberEvent::Order(order) => self.services.handle_order(order, &mut self.budget),
            MemberEvent::Forget { key, error } => {
                let parts = PartId { key, index: 0 }..=PartId { key, index: u32::MAX };
                self.services.handle_over(parts, &error, &mut self.budget);
                self.names.fail(key, error);
            }
            MemberEvent::Contact { at, is_lost } => {
                if let Some(contact) = &mut self.contact {
                    contact.handle(at, is_lost);
                    self.services.be_patient(contact.patient_until());
                    self.budget.be_patient(contact.patient_until());
                }
            }
            MemberEvent::Failed(error) => {
                self.end(self.phase_after_failing(&error));
                self.turn(Turn::Fail(error));
            }
            MemberEvent::Left => {
                self.end(self.phase_after_leaving());
                self.turn(Turn::End);
            }
            MemberEvent::StallNotice { .. }
            | MemberEvent::Declared { .. }
            | MemberEvent::BarrierDone { .. }
            | MemberEvent::Answered { .. }
            | MemberEvent::Command { .. }
            | MemberEvent::Boundary { .. }
            | MemberEvent::Passed { .. }
            | MemberEvent::Restore { .. }
            | MemberEvent::Renewed { .. }
            | MemberEvent::WorkersKey(_) => {}
        }
    }

    /// An operator has changed the learning rate of a parameter, from a global step on, or at once if it has no clock.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there are too many changes for different steps.
    pub fn handle_rate(&mut self, key: TensorKey, step: Option<u64>, rate: f64) -> Result<()> {
        self.services.handle_rate(key, step, rate)
    }

    /// What an order of the coordinator has wanted was written, or read.
    pub fn handle_archived(&mut self, archived: Archived) {
        self.services.handle_archived(archived, &mut self.budget);
    }

    /// The server is about to stop. From now on new work is refused. Work that was begun is completed and answered.
    pub fn handle_drain(&mut self) {
        let name = self.index.map_or_else(|| "the server".to_owned(), |index| index.to_string());
        self.services.handle_drain(&Error::FailedPrecondition {
            what: format!("{name} is draining"),
            hint: "it was asked to stop; start the job again when its servers stay".to_owned(),
        });
        self.turn(Turn::Drain);
    }

    /// The server stops at once.
    pub fn handle_stop(&mut self) {
        self.turn(Turn::End);
    }

    /// Where the server stands in its life.
    pub fn state(&self) -> &ServerState {
        &self.state
    }

    /// Whether its job forms again, for which a new server is needed.
    pub fn forms_again(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.phase.forms_again())
    }

    /// Whether it drains and nothing is open any more.
    pub fn is_drained(&self) -> bool {
        self.services.is_drained() && self.withdrawals.is_empty()
    }

    /// The state for each heartbeat to the coordinator.
    pub fn progress(&self) -> Progress {
        let pending = u32::try_from(self.services.pending()).unwrap_or(u32::MAX);
        Progress { last: self.services.last(), pending, bytes_in_flight: self.budget.booked() }
    }

    /// How many rounds have begun and miss a contribution.
    pub fn waiting_rounds(&self) -> usize {
        self.services.waiting_rounds()
    }

    /// The rounds that have waited for a moment, for the coordinator's status.
    pub fn waits(&self, now: Time) -> Vec<Waiting> {
        self.services.waits(now)
    }

    /// The membership that it follows, once it has joined.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// The worker at the other end of a link, if there is one.
    pub fn worker_at(&self, link: LinkId) -> Option<WorkerId> {
        self.worker(*self.links.get(&link)?)
    }

    /// What its services know.
    pub(super) fn services(&self) -> &Services {
        &self.services
    }

    /// Admits an exchange and hands it to its service; an error is for the caller to send.
    fn open(&mut self, now: Time, link: LinkId, exchange: ExchangeId, header: &Request) -> Result<()> {
        let node = *self.links.get(&link).ok_or_else(|| closed("this server has closed it"))?;
        let unknown = || header.about().service.refusal(&format!("node {node}"));
        let target = header.target().ok_or_else(unknown)?;
        let sender = self.admit(node, target.epoch, target.part)?;
        match self.services.handle_opened(now, sender, exchange, header, &mut self.budget)? {
            Opening::Taken => Ok(()),
            Opening::Withdrawal(header) => self.expect_withdrawal(now, node, exchange, header),
        }
    }

    fn is_member(&self, node: NodeId) -> bool {
        self.view.as_ref().is_some_and(|view| view.workers().any(|member| member.node == node))
    }

    /// Grants every worker its share of the memory for what was not read.
    fn grant(&mut self) {
        let Some(bytes) = self.unread_bytes else { return };
        let workers = self.links.iter().filter(|(_, node)| self.is_member(**node)).map(|(link, _)| *link);
        for link in workers.collect::<Vec<_>>() {
            if self.granted.insert(link, bytes) != Some(bytes) {
                self.commands.push_back(Command::Grant { link, unread_bytes_max: bytes });
            }
        }
    }

    fn forget_link(&mut self, link: LinkId) {
        self.granted.remove(&link);
        let node = self.links.remove(&link);
        if let Some(worker) = node.and_then(|node| self.worker(node)) {
            self.services.handle_worker_away(worker);
        }
    }

    fn worker(&self, node: NodeId) -> Option<WorkerId> {
        let member = self.view.as_ref()?.workers().find(|member| member.node == node)?;
        Some(WorkerId(member.index))
    }

    fn disconnect(&mut self, link: LinkId, reason: Error) {
        self.forget_link(link);
        self.commands.push_back(Command::Disconnect { link, reason });
    }

    fn expect_withdrawal(&mut self, now: Time, node: NodeId, exchange: ExchangeId, header: Withdraw) -> Result<()> {
        self.withdrawals.begin(now, node, exchange, header, &mut self.budget)?;
        self.commands.push_back(Command::Accept { exchange });
        Ok(())
    }

    /// Whether `node` may ask for `part` in `epoch`.
    fn admit(&self, node: NodeId, epoch: Epoch, part: PartId) -> Result<Sender> {
        let unknown = || not_yet("it does not know the members of the job yet".to_owned());
        let membership = self.membership.as_ref().ok_or_else(unknown)?;
        let worker = membership.admit(node, epoch, self.config.defect)?;
        self.names.check(part)?;
        Ok(Sender { node, worker })
    }

    /// A tensor ended, with all parts below this index.
    fn end_name(&mut self, key: TensorKey, below: u32) {
        if let Some(last) = below.checked_sub(1) {
            let parts = PartId { key, index: 0 }..=PartId { key, index: last };
            self.services.handle_over(parts, &undeclared(key), &mut self.budget);
        }
        self.names.end(key, below);
    }

    /// Follows the membership. Views may come twice or late.
    fn follow(&mut self, view: View) {
        if self.membership.as_ref().is_some_and(|ours| view.epoch < ours.epoch) {
            return;
        }
        let membership = Arc::new(Membership::following(&view, self.membership.as_deref()));
        let succession = membership.succession(self.membership.as_deref());
        let workers = view.workers().count().max(1) as u64;
        self.view = Some(view);
        self.services.handle_membership(&membership, &succession, &mut self.budget);
        if let Succession::End(_) = succession {
            self.names.forgive();
        }
        self.membership = Some(membership);
        self.refuse_withdrawals();
        let share = (self.config.unread_bytes_max / workers).clamp(*UNREAD_BYTES.start(), *UNREAD_BYTES.end());
        self.unread_bytes = Some(self.unread_bytes.map_or(share, |before| before.min(share)));
        self.grant();
    }

    /// What the job is to the workers that ask this server after it has left.
    fn phase_after_leaving(&self) -> Phase {
        match self.view.as_ref().map(|view| &view.phase) {
            Some(phase @ (Phase::FormsAgain | Phase::Restores(_))) => phase.clone(),
            // It was asked to stop. The job goes on without it, or ends: workers hear which from the coordinator.
            Some(Phase::Running) => Phase::Aborted(not_yet("it was asked to stop, and has left the job".to_owned())),
            Some(Phase::Forming | Phase::Ended | Phase::Aborted(_)) | None => Phase::Ended,
        }
    }

    /// What the job is to the workers that ask this server after it has failed.
    fn phase_after_failing(&self, error: &Error) -> Phase {
        match self.view.as_ref().map(|view| &view.phase) {
            Some(phase @ Phase::Restores(_)) => phase.clone(),
            Some(Phase::Forming | Phase::Running | Phase::Ended | Phase::FormsAgain | Phase::Aborted(_)) | None => {
                Phase::Aborted(for_workers(error))
            }
        }
    }

    /// The job is over for this server: every waiter gets the reason.
    fn end(&mut self, phase: Phase) {
        if let Some(view) = &self.view {
            self.follow(View { phase, ..view.clone() });
        }
    }

    /// Rejects withdrawals whose senders are no longer admitted.
    fn refuse_withdrawals(&mut self) {
        for exchange in self.withdrawals.exchanges() {
            let (node, target) = self.withdrawals.sender(exchange).expect("it is arriving");
            if let Err(error) = self.admit(node, target.epoch, target.part) {
                self.withdrawals.end(exchange, &mut self.budget);
                self.reject(exchange, target.about(), error);
            }
        }
    }

    fn reject(&mut self, exchange: ExchangeId, asked: About, error: Error) {
        self.commands.push_back(rejection(self.membership.as_deref(), exchange, asked, error));
    }

    fn turn(&mut self, turn: Turn) {
        if let Some(next) = self.state.after(turn) {
            self.state = next;
        }
    }
}

fn closed(cause: &str) -> Error {
    Error::Unavailable { what: "the connection".to_owned(), cause: cause.to_owned() }
}

/// The error for workers when this server has ended. Workers must not restart because this server was fenced; the coordinator will tell
/// them why the job ended.
fn for_workers(error: &Error) -> Error {
    match error {
        Error::Fenced { .. } => {
            Error::Unavailable { what: "the server".to_owned(), cause: "it was given up for dead".to_owned() }
        }
        other => other.clone(),
    }
}
