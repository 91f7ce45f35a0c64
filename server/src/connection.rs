//! Joins the aggregator to a listener: events in, commands out. The only place of the server where the machine meets memory, threads
//! and connections.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use gradlane_core::Error;
use gradlane_core::engine::{Clock, Membership, Timer};
use gradlane_core::error::Result;
use gradlane_core::mem::{Lease, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::transport::{Incoming, Listener, Outgoing};
use gradlane_core::types::{ExchangeId, LinkId, NodeId, Phase, TensorKey, Time, View};
use gradlane_core::wire::Header;
use gradlane_core::wire::frame::{Progress, Stall};

use crate::aggregate::{Aggregator, AggregatorConfig, Command};
use crate::stats::Stats;
use crate::sum::{Job, SumLanes};

/// The data side of one server.
pub(crate) struct DataPlane {
    clock: Clock,
    pool: Pool,
    pub(crate) stats: Stats,
    state: Mutex<State>,
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
    /// What each open exchange said; needed when its body has landed.
    headers: BTreeMap<ExchangeId, Header>,
    /// Bodies under way: their memory and how much of it is filled.
    landing: BTreeMap<ExchangeId, (Lease, usize)>,
    bodies: BTreeMap<ExchangeId, Lease>,
    stopped: bool,
}

impl DataPlane {
    /// A data plane without a listener: see [`DataPlane::attach`].
    pub(crate) fn new(config: AggregatorConfig, sum_threads: NonZeroUsize, clock: Clock) -> Result<Arc<Self>> {
        let plane = Arc::new(Self {
            clock,
            pool: Pool::new(),
            stats: Stats::default(),
            state: Mutex::new(State {
                aggregator: Aggregator::new(config),
                view: None,
                links: BTreeMap::new(),
                headers: BTreeMap::new(),
                landing: BTreeMap::new(),
                bodies: BTreeMap::new(),
                stopped: false,
            }),
            drained: Condvar::new(),
            lanes: OnceLock::new(),
            listener: OnceLock::new(),
            timer: OnceLock::new(),
            membership: OnceLock::new(),
        });
        let sink = Arc::downgrade(&plane);
        let lanes = SumLanes::new(sum_threads, Kernels::detect(), &plane.pool, move |outgoing| {
            if let Some(plane) = sink.upgrade() {
                plane.send(outgoing);
            }
        })?;
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
                state.headers.insert(exchange, header);
                state.aggregator.handle_opened(now, node, exchange, &header);
            }),
            Incoming::Body { exchange, chunks } => self.fill(exchange, &chunks),
            Incoming::Torn { exchange, reason } => {
                tracing::debug!(exchange = exchange.0, %reason, "exchange torn");
                self.with(|state, now| {
                    state.headers.remove(&exchange);
                    state.landing.remove(&exchange);
                    state.aggregator.handle_torn(now, exchange);
                });
            }
            Incoming::Answered { exchange } => self.with(|state, now| {
                state.headers.remove(&exchange);
                state.aggregator.handle_answered(now, exchange);
            }),
        }
    }

    /// Takes the next bytes of a body; the transport lets no more through than were announced.
    fn fill(self: &Arc<Self>, exchange: ExchangeId, chunks: &[Bytes]) {
        let mut state = self.state.lock().expect(LOCK);
        let Some((body, filled)) = state.landing.get_mut(&exchange) else { return };
        for chunk in chunks {
            body[*filled..][..chunk.len()].copy_from_slice(chunk);
            *filled += chunk.len();
        }
        if *filled < body.len() {
            return;
        }
        let (body, _) = state.landing.remove(&exchange).expect("found above");
        drop(state);
        self.landed(exchange, body);
    }

    /// Checks a body off the transport's thread, then counts it.
    fn landed(self: &Arc<Self>, exchange: ExchangeId, body: Lease) {
        self.stats.received(body.len() as u64);
        let header = self.state.lock().expect(LOCK).headers.get(&exchange).copied();
        let Some(header) = header else { return };
        let plane = Arc::clone(self);
        let then = Box::new(move |body, intact| plane.count(exchange, body, intact));
        self.lanes().submit(Job::Verify { header, body, then });
    }

    fn count(self: &Arc<Self>, exchange: ExchangeId, body: Lease, intact: bool) {
        self.with(|state, now| {
            // Kept until the machine names it, also if its exchange is gone meanwhile: then it is discarded at once.
            state.bodies.insert(exchange, body);
            state.aggregator.handle_landed(now, exchange, intact);
        });
    }

    /// Runs `change` on the machine, then carries out its commands. They stay under the lock: lanes and listener only queue, and the
    /// order of commands about one slot must reach its lane unchanged.
    fn with<T>(self: &Arc<Self>, change: impl FnOnce(&mut State, Time) -> T) -> T {
        let now = self.clock.now();
        let mut state = self.state.lock().expect(LOCK);
        let result = change(&mut state, now);
        while let Some(command) = state.aggregator.next_command() {
            self.carry_out(&mut state, command);
        }
        let due = state.aggregator.poll_timeout();
        if state.aggregator.is_drained() {
            self.drained.notify_all();
        }
        drop(state);
        self.timer.get().expect("set in new").arm(due);
        result
    }

    fn carry_out(&self, state: &mut State, command: Command) {
        match command {
            Command::Land { exchange, bytes } => {
                let bytes = usize::try_from(bytes).expect("bounded by PART_BYTES_MAX");
                state.landing.insert(exchange, (self.pool.lease(bytes), 0));
                self.send(Outgoing::Accept { exchange });
            }
            Command::Start { slot, exchange, dtype, op, weight, .. } => {
                self.lanes().submit(Job::Start { slot, dtype, op, weight, body: self.body(state, exchange) });
            }
            Command::Add { slot, exchange, weight } => {
                self.lanes().submit(Job::Add { slot, weight, body: self.body(state, exchange) });
            }
            Command::Publish { slot, divisor } => self.lanes().submit(Job::Publish { slot, divisor }),
            Command::Answer { slot, exchange, header } => {
                self.stats.sent(header.bytes);
                self.lanes().submit(Job::Answer { slot, exchange, header });
            }
            Command::Reject { exchange, header, error } => self.send(Outgoing::Reject { exchange, header, error }),
            Command::Discard { exchange } => {
                state.bodies.remove(&exchange);
            }
            Command::Drop { slot } => self.lanes().submit(Job::Drop { slot }),
            Command::Stalled { stall } => self.report(stall),
        }
    }

    /// A landed body; one without bytes never landed.
    fn body(&self, state: &mut State, exchange: ExchangeId) -> Lease {
        state.bodies.remove(&exchange).unwrap_or_else(|| self.pool.lease(0))
    }

    fn report(&self, stall: Stall) {
        tracing::warn!(part = %stall.part, round = stall.round.0, missing = ?stall.missing, "round waits");
        let membership = self.membership.get().and_then(Weak::upgrade);
        // Not waited for: whoever holds it ends it, and waits for its thread, which may wait for this plane's state.
        if let Some(Ok(membership)) = membership.as_ref().map(|membership| membership.try_lock()) {
            membership.report_stall(stall);
        }
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
