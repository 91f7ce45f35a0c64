//! Joins the aggregator to a listener: events in, commands out. The only place of the server where the machine meets memory, threads
//! and connections.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;

use gradlane_core::Error;
use gradlane_core::error::Result;
use gradlane_core::mem::{Copies, Pool};
use gradlane_core::metrics::ServerMetrics;
use gradlane_core::reduce::Kernels;
use gradlane_core::runtime::{Clock, Membership, Timer};
use gradlane_core::transport::{Incoming, Listener, Outgoing};
use gradlane_core::types::{ExchangeId, LinkId, NodeId, Phase, TensorKey, Time, View, WorkerId};
use gradlane_core::wire::frame::{Progress, Stall};
use gradlane_core::wire::{Request, Service};

use crate::node::accumulator::Workshop;
use crate::node::aggregate::{Aggregator, AggregatorConfig, Command, SlotId, Step};
use crate::node::lanes::{Job, Outlets, SumLanes, Told, inline_bytes_max};
use crate::node::withdrawals::{Letters, Word};

/// The data side of one server.
pub(crate) struct DataPlane {
    clock: Clock,
    pool: Pool,
    pub(crate) stats: ServerMetrics,
    state: Mutex<State>,
    /// Where the bodies go that are being received. A lock of its own, because bytes come more often than anything else.
    routes: Mutex<BTreeMap<ExchangeId, Route>>,
    /// Whose rounds are being given up. As much a lock of its own.
    letters: Mutex<Letters>,
    /// Told when nothing is open any more, or will be waited for.
    drained: Condvar,
    lanes: OnceLock<SumLanes>,
    listener: OnceLock<Listener>,
    timer: OnceLock<Timer>,
    /// Where stalls are reported.
    membership: OnceLock<Weak<Mutex<Membership>>>,
}

struct State {
    aggregator: Aggregator,
    view: Option<View>,
    links: BTreeMap<LinkId, NodeId>,
    stopped: bool,
}

/// Where the bytes of an exchange go.
#[derive(Clone, Copy)]
struct Route {
    slot: SlotId,
    worker: WorkerId,
}

impl DataPlane {
    /// A data plane without a listener: see [`DataPlane::attach`].
    pub(crate) fn new(
        config: AggregatorConfig,
        sum_threads: NonZeroUsize,
        pool: Pool,
        clock: Clock,
    ) -> Result<Arc<Self>> {
        let kernels = Kernels::detect();
        let stats = ServerMetrics::default();
        let copies = Copies::counted_in(&stats.copied_bytes);
        let workshop =
            Workshop { kernels, pool: pool.clone(), copies, block_bytes: config.block_bytes, defect: config.defect };
        let plane = Arc::new(Self {
            clock,
            pool,
            stats,
            state: Mutex::new(State {
                aggregator: Aggregator::new(config),
                view: None,
                links: BTreeMap::new(),
                stopped: false,
            }),
            routes: Mutex::new(BTreeMap::new()),
            letters: Mutex::new(Letters::default()),
            drained: Condvar::new(),
            lanes: OnceLock::new(),
            listener: OnceLock::new(),
            timer: OnceLock::new(),
            membership: OnceLock::new(),
        });
        let (sender, listener) = (Arc::downgrade(&plane), Arc::downgrade(&plane));
        let outlets = Outlets {
            send: Box::new(move |outgoing| {
                if let Some(plane) = sender.upgrade() {
                    plane.send(outgoing);
                }
            }),
            tell: Box::new(move |told| {
                if let Some(plane) = listener.upgrade() {
                    plane.hear(told);
                }
            }),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let lanes = SumLanes::new(sum_threads, inline_bytes_max(cores), &workshop, outlets)?;
        let timed = Arc::downgrade(&plane);
        let timer = Timer::start("gl-aggregate", clock, move |_| {
            // The next deadline is armed by `with` itself.
            if let Some(plane) = timed.upgrade() {
                plane.with(|state, now| state.aggregator.handle_timeout(now));
            }
            None
        })?;
        assert!(plane.lanes.set(lanes).is_ok() && plane.timer.set(timer).is_ok(), "set once, here");
        Ok(plane)
    }

    /// The function that a listener calls with what happens.
    pub(crate) fn inbox(self: &Arc<Self>) -> gradlane_core::transport::Inbox {
        let plane = Arc::downgrade(self);
        Box::new(move |incoming| {
            if let Some(plane) = plane.upgrade() {
                plane.handle(incoming);
            }
        })
    }

    /// Connects the outgoing side. Nothing was received before: peers learn the address from the view.
    pub(crate) fn attach(&self, listener: Listener, membership: Weak<Mutex<Membership>>) {
        let fresh = self.listener.set(listener).is_ok() && self.membership.set(membership).is_ok();
        assert!(fresh, "attached once");
    }

    /// Follows the membership.
    pub(crate) fn handle_view(self: &Arc<Self>, view: View) {
        self.with(|state, now| {
            state.aggregator.handle_view(now, &view);
            state.view = Some(view);
        });
    }

    /// The job is over: everybody who waits gets `cause`.
    pub(crate) fn handle_failure(self: &Arc<Self>, cause: &Error) {
        self.with(|state, now| {
            if let Some(view) = &state.view {
                let view = View { phase: Phase::Aborted(cause.clone()), ..view.clone() };
                state.aggregator.handle_view(now, &view);
            }
        });
    }

    /// Drops a tensor that failed for good.
    pub(crate) fn handle_forget(self: &Arc<Self>, key: TensorKey, error: Error) {
        self.with(|state, now| state.aggregator.handle_forget(now, key, error));
    }

    /// What the coordinator is told with each heartbeat.
    pub(crate) fn progress(&self) -> Progress {
        self.state.lock().expect(LOCK).aggregator.progress()
    }

    /// Bytes of memory for sums: in use, and taken from the system.
    pub(crate) fn memory_bytes(&self) -> (u64, u64) {
        (self.pool.bytes_in_use() as u64, self.pool.bytes_held() as u64)
    }

    /// From now on refuses rounds that nobody has begun.
    pub(crate) fn refuse(self: &Arc<Self>, refusal: Error) {
        self.with(|state, now| state.aggregator.handle_drain(now, refusal));
    }

    /// After [`DataPlane::refuse`], waits for the rounds that are open, at most `patience` or until somebody stops this plane. Whether
    /// all were completed and answered.
    pub(crate) fn drain(&self, patience: Duration) -> bool {
        let waits = |state: &mut State| !state.stopped && !state.aggregator.is_drained();
        let state = self.state.lock().expect(LOCK);
        let (state, _) = self.drained.wait_timeout_while(state, patience, waits).expect(LOCK);
        state.aggregator.is_drained()
    }

    /// Stops listening. The lanes end with the last reference to this plane.
    pub(crate) fn stop(&self, patience: Duration) {
        self.state.lock().expect(LOCK).stopped = true;
        self.drained.notify_all();
        if let Some(listener) = self.listener.get() {
            (listener.stop)(patience);
        }
    }

    fn handle(self: &Arc<Self>, incoming: Incoming) {
        match incoming {
            Incoming::LinkUp { link, node, address } => {
                tracing::debug!(link = link.0, %node, address, "peer connected");
                self.with(|state, _| state.links.insert(link, node));
            }
            Incoming::LinkDown { link, reason } => {
                tracing::debug!(link = link.0, %reason, "peer gone");
                self.with(|state, _| state.links.remove(&link));
            }
            Incoming::Opened { link, exchange, header } => self.with(|state, now| {
                let node = *state.links.get(&link).expect("a link is up before its exchanges");
                match header.target().service {
                    Service::DenseSum => {}
                    Service::Unknown(code) => {
                        let (target, error) = (header.target(), Service::refusal(code, &node.to_string()));
                        return self.send(Outgoing::Reject { exchange, target, error });
                    }
                }
                match header {
                    Request::Contribute(header) => state.aggregator.handle_opened(now, node, exchange, &header),
                    Request::Withdraw(header) => {
                        self.letters().begin(node, exchange, header);
                        self.send(Outgoing::Accept { exchange });
                    }
                }
            }),
            Incoming::Body { exchange, chunks } => self.receive(exchange, chunks),
            Incoming::Torn { exchange, reason } => {
                tracing::debug!(exchange = exchange.0, %reason, "exchange torn");
                self.routes().remove(&exchange);
                self.letters().end(exchange);
                self.with(|state, now| state.aggregator.handle_torn(now, exchange));
            }
            Incoming::Answered { exchange } => {
                self.routes().remove(&exchange);
                self.with(|state, now| state.aggregator.handle_answered(now, exchange));
            }
        }
    }

    /// Hands the next bytes of a body to the lane of its part.
    fn receive(self: &Arc<Self>, exchange: ExchangeId, chunks: Vec<Bytes>) {
        let route = self.routes().get(&exchange).copied();
        if route.is_none() {
            let word = self.letters().take(exchange, &chunks);
            return word.into_iter().for_each(|word| self.read(exchange, word));
        }
        if let Some(Route { slot, worker }) = route {
            ServerMetrics::add(&self.stats.received_bytes, chunks.iter().map(|chunk| chunk.len() as u64).sum());
            self.lanes().submit(Job::Body { slot, worker, exchange, chunks });
            self.lanes().run();
        }
    }

    /// Somebody gives a round up.
    fn read(self: &Arc<Self>, exchange: ExchangeId, Word { node, header, error }: Word) {
        match error {
            Ok(error) => {
                self.with(|state, now| state.aggregator.handle_given_up(now, node, exchange, &header, &error));
            }
            Err(error) => self.send(Outgoing::Reject { exchange, target: header.target, error }),
        }
    }

    /// A lane says what became of a contribution.
    fn hear(self: &Arc<Self>, Told { slot, worker, exchange, receipt }: Told) {
        // Whatever else it brings is not needed.
        self.routes().remove(&exchange);
        self.change(|state, now| state.aggregator.handle_receipt(now, slot, worker, exchange, receipt));
    }

    /// Changes the machine, and lets the lanes run.
    fn with<T>(self: &Arc<Self>, change: impl FnOnce(&mut State, Time) -> T) -> T {
        let result = self.change(change);
        self.lanes().run();
        result
    }

    /// Runs `change` on the machine, then carries out its commands. They stay under the lock: lanes and listener only queue, and the
    /// order of commands about one slot must reach its lane unchanged.
    fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut State, Time) -> T) -> T {
        let now = self.clock.now();
        let mut state = self.state.lock().expect(LOCK);
        let result = change(&mut state, now);
        while let Some(command) = state.aggregator.next_command() {
            self.carry_out(command);
        }
        let due = state.aggregator.poll_timeout();
        if state.aggregator.is_drained() {
            self.drained.notify_all();
        }
        drop(state);
        self.timer.get().expect("set in new").arm(due);
        result
    }

    fn carry_out(&self, command: Command) {
        match command {
            Command::Sum { slot, step } => {
                let accepted = match &step {
                    Step::Receive { worker, exchange, .. } => {
                        self.routes().insert(*exchange, Route { slot, worker: *worker });
                        Some(*exchange)
                    }
                    Step::Answer { header, .. } => {
                        ServerMetrics::add(&self.stats.sent_bytes, header.body.bytes);
                        None
                    }
                    Step::Begin(_) | Step::Publish { .. } | Step::Seal | Step::Drop => None,
                };
                self.lanes().submit(Job::Step { slot, step });
                // After its step, so that no byte comes before it.
                if let Some(exchange) = accepted {
                    self.send(Outgoing::Accept { exchange });
                }
            }
            Command::Reject { exchange, target, error } => {
                self.routes().remove(&exchange);
                self.send(Outgoing::Reject { exchange, target, error });
            }
            Command::Stalled { stall } => self.report(stall),
        }
    }

    fn report(&self, stall: Stall) {
        tracing::warn!(part = %stall.part, round = stall.round.0, missing = ?stall.missing, "round waits");
        let membership = self.membership.get().and_then(Weak::upgrade);
        // Not waited for: whoever holds it ends it, and waits for its thread, which may wait for this plane's state.
        if let Some(Ok(membership)) = membership.as_ref().map(|membership| membership.try_lock()) {
            membership.report_stall(stall);
        }
    }

    fn routes(&self) -> MutexGuard<'_, BTreeMap<ExchangeId, Route>> {
        self.routes.lock().expect(LOCK)
    }

    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().expect(LOCK)
    }

    fn lanes(&self) -> &SumLanes {
        self.lanes.get().expect("set in new")
    }

    fn send(&self, outgoing: Outgoing) {
        if let Some(listener) = self.listener.get() {
            (listener.outbox)(outgoing);
        }
    }
}

const LOCK: &str = "nobody panics while holding it";

#[cfg(test)]
mod tests;
