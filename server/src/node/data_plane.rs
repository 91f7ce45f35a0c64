//! Drives a [`Node`] with a listener, lanes, a timer and the membership: events in, commands out. Decides nothing.
//!
//! Two locks. The node's lock is taken for every event but the bytes of bodies. The table of routes has a lock of its own, because bytes come
//! more often than anything else and must not wait for the node.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use gradlane_core::cluster::MemberEvent;
use gradlane_core::error::{Error, Result, ranks};
use gradlane_core::local::failpoint::{Failpoint, reach};
use gradlane_core::mem::{Copies, Pool};
use gradlane_core::metrics::ServerMetrics;
use gradlane_core::reduce::Kernels;
use gradlane_core::runtime::{Clock, Reporter, Timer};
use gradlane_core::transport::{Listener, Outgoing};
use gradlane_core::types::{ControlAnswer, ExchangeId, TensorKey, Time};
use gradlane_core::wire::Response;
use gradlane_core::wire::frame::{Progress, Stall, Waiting};

use crate::handle::Handle;
use crate::node::accumulator::SumResources;
use crate::node::archive::{Archivist, Done};
use crate::node::command::{Command, Route, Shortage, Step, Work};
use crate::node::config::NodeConfig;
use crate::node::lanes::{Job, Outlets, SumLanes, inline_bytes_max};
use crate::node::life::ServerState;
use crate::node::machine::Node;
use crate::node::probe::Probe;
use crate::node::recorder::Flight;
use crate::node::trace::Trace;

/// The data side of one server.
pub(crate) struct DataPlane {
    clock: Clock,
    pool: Pool,
    pub(crate) stats: Arc<ServerMetrics>,
    /// What the exporter shows.
    pub(crate) probe: Arc<Probe>,
    /// The timeline of this server.
    pub(crate) trace: Trace,
    /// The flight recorder of this server.
    pub(crate) flight: Arc<Flight>,
    node: Mutex<Node>,
    /// How often the node's lock was taken.
    #[cfg(feature = "testing")]
    takings: std::sync::atomic::AtomicU64,
    /// Where the bytes of each body go. Filled and emptied by the node's commands.
    routes: Mutex<BTreeMap<ExchangeId, Route>>,
    /// Notified when the server ends, and while it drains when nothing is open any more.
    ended: Condvar,
    lanes: OnceLock<SumLanes>,
    archivist: OnceLock<Archivist>,
    listener: OnceLock<Listener>,
    timer: OnceLock<Timer>,
    /// Where stalls are reported.
    reporter: OnceLock<Reporter>,
    /// Why this server can do no more, if a thread of it panicked or ended.
    broken: OnceLock<Error>,
}

impl DataPlane {
    /// A data plane without a listener: see [`DataPlane::attach`].
    ///
    /// Checkpoints are below `checkpoint_dir`. A `handle` does what the users of keys ask.
    pub(crate) fn new(
        config: NodeConfig,
        sum_threads: NonZeroUsize,
        pool: Pool,
        clock: Clock,
        flight: Arc<Flight>,
        checkpoint_dir: Option<PathBuf>,
        handle: Option<&Arc<dyn Handle>>,
    ) -> Result<Arc<Self>> {
        let kernels = Kernels::detect();
        let stats = Arc::new(ServerMetrics::default());
        ServerMetrics::set(&stats.sum_limit_bytes, config.memory_bytes_max);
        let copies = Copies::counted_in(&stats.copied_bytes);
        let resources = SumResources { kernels, pool: pool.clone(), copies, defect: config.defect };
        let hears_waits = flight.is_on();
        let plane = Arc::new(Self {
            clock,
            pool: pool.clone(),
            probe: Arc::new(Probe::new(&stats, &flight)),
            stats,
            trace: Trace::default(),
            flight,
            node: Mutex::new(Node::new(config)),
            #[cfg(feature = "testing")]
            takings: std::sync::atomic::AtomicU64::new(0),
            routes: Mutex::new(BTreeMap::new()),
            ended: Condvar::new(),
            lanes: OnceLock::new(),
            archivist: OnceLock::new(),
            listener: OnceLock::new(),
            timer: OnceLock::new(),
            reporter: OnceLock::new(),
            broken: OnceLock::new(),
        });
        let (sender, listener, freezer) = (Arc::downgrade(&plane), Arc::downgrade(&plane), Arc::downgrade(&plane));
        let outlets = Outlets {
            send: Box::new(move |outgoing| {
                if let Some(plane) = sender.upgrade() {
                    if let Outgoing::Answer { exchange, header } = &outgoing {
                        ServerMetrics::add(&plane.stats.sent_bytes, header.body_bytes());
                        reach(Failpoint::Answers);
                        // That of a sum or of a residual is a step of its own.
                        if !matches!(header, Response::Sum(_)) && plane.trace.is_on() {
                            plane.trace.answered(plane.clock.now(), *exchange);
                        }
                    }
                    if let Outgoing::Reject { exchange, .. } = &outgoing {
                        plane.show_refusal(*exchange);
                    }
                    let is_last = matches!(outgoing, Outgoing::End { .. });
                    plane.send(outgoing);
                    if is_last {
                        reach(Failpoint::Answered);
                    }
                }
            }),
            tell: Box::new(move |told, behind| {
                if let Some(plane) = listener.upgrade() {
                    plane.guard(|| plane.hear(told, behind));
                }
            }),
            archive: Box::new(move |order, part, frozen| {
                if let Some(plane) = freezer.upgrade() {
                    plane.archivist().take(order, part, frozen);
                }
            }),
            hears_waits,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let lanes = SumLanes::new(sum_threads, inline_bytes_max(cores), &resources, handle, &plane.stats, outlets)?;
        let timed = Arc::downgrade(&plane);
        let timer = Timer::start("gl-aggregate", clock, move |_| {
            // The next deadline is armed by `with` itself.
            if let Some(plane) = timed.upgrade() {
                plane.guard(|| plane.with(Node::handle_timeout));
            }
            None
        })?;
        let archived = Arc::downgrade(&plane);
        let archivist = Archivist::start(checkpoint_dir, pool, move |done| {
            if let Some(plane) = archived.upgrade() {
                plane.guard(|| plane.handle_done(done));
            }
        })?;
        let is_new = plane.archivist.set(archivist).is_ok();
        assert!(is_new && plane.lanes.set(lanes).is_ok() && plane.timer.set(timer).is_ok(), "set once, here");
        Ok(plane)
    }

    /// The function that a listener calls with what happens.
    pub(crate) fn inbox(self: &Arc<Self>) -> gradlane_core::transport::Inbox {
        let plane = Arc::downgrade(self);
        Box::new(move |incoming| {
            if let Some(plane) = plane.upgrade() {
                plane.guard(|| plane.handle(incoming));
            }
        })
    }

    /// Connects the outgoing side. Nothing was received before: peers learn the address from the view.
    pub(crate) fn attach(self: &Arc<Self>, listener: Listener, reporter: Reporter) {
        let plane = Arc::downgrade(self);
        (listener.watch)(Arc::new(move |cause| {
            if let Some(plane) = plane.upgrade() {
                plane.break_down(cause);
            }
        }));
        let fresh = self.listener.set(listener).is_ok() && self.reporter.set(reporter).is_ok();
        assert!(fresh, "attached once");
    }

    /// Follows the membership.
    pub(crate) fn handle_member(self: &Arc<Self>, event: MemberEvent) {
        self.guard(|| {
            let ranks = self.with(|node, _| {
                node.handle_member(event);
                node.view().and_then(|view| view.workers().map(|worker| worker.index as usize + 1).max())
            });
            self.probe.show_ranks(ranks.unwrap_or_default());
        });
    }

    /// As [`Node::handle_rate`].
    pub(crate) fn handle_rate(self: &Arc<Self>, key: TensorKey, step: Option<u64>, rate: f64) -> Result<()> {
        self.with(|node, _| node.handle_rate(key, step, rate))
    }

    /// Tells the coordinator what a command of an operator has come to.
    pub(crate) fn report_commanded(&self, number: u64, outcome: Result<ControlAnswer>) {
        if let Some(reporter) = self.reporter.get() {
            reporter.report_commanded(number, outcome);
        }
    }

    /// Does work of this server. A panic leaves it in a state that nobody knows, so it ends the server and its membership.
    fn guard(self: &Arc<Self>, work: impl FnOnce()) {
        if self.broken.get().is_some() {
            return;
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            self.break_down(Error::of_panic("the server stopped because it", &*panic));
        }
    }

    /// This server can do no more. The job hears of it from the coordinator, and who waits for the end of the server hears the cause.
    fn break_down(self: &Arc<Self>, cause: Error) {
        if self.broken.set(cause.clone()).is_err() {
            return;
        }
        tracing::error!(%cause, "the server stopped");
        self.probe.broke_down();
        self.flight.ended(&cause);
        // Taken and released, so that a thread which found the server alive already waits.
        drop(self.node());
        self.ended.notify_all();
        if let Some(reporter) = self.reporter.get() {
            reporter.break_down(cause);
        }
    }

    /// As [`Node::forms_again`].
    pub(crate) fn forms_again(&self) -> bool {
        self.node().forms_again()
    }

    /// Where the server stands in its life.
    pub(crate) fn state(&self) -> ServerState {
        self.node().state().clone()
    }

    /// How often the node's lock was taken.
    #[cfg(feature = "testing")]
    pub(crate) fn takings(&self) -> u64 {
        self.takings.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// What the coordinator is told with each heartbeat. Sets the gauges of the metrics that need the lock, which nobody asks more often.
    pub(crate) fn progress(&self) -> Progress {
        let node = self.node();
        let progress = node.progress();
        ServerMetrics::set(&self.stats.sum_bytes, progress.bytes_in_flight);
        ServerMetrics::set(&self.stats.waiting_rounds, node.waiting_rounds() as u64);
        progress
    }

    /// Which rounds wait. The coordinator is told once a second.
    pub(crate) fn waits(&self) -> Vec<Waiting> {
        self.node().waits(self.clock.now())
    }

    /// Bytes of memory for sums: in use, and taken from the system.
    pub(crate) fn memory_bytes(&self) -> (u64, u64) {
        (self.pool.bytes_in_use() as u64, self.pool.bytes_held() as u64)
    }

    /// Refuses rounds that nobody had begun, and waits for the open ones, at most `patience` or until the server ends. Returns whether
    /// nothing was left open.
    pub(crate) fn drain(self: &Arc<Self>, patience: Duration) -> bool {
        let had_ended = self.with(|node, _| {
            node.handle_drain();
            node.state().has_ended()
        });
        let waits = |node: &mut Node| self.lives(node) && !node.is_drained();
        let (node, _) =
            self.ended.wait_timeout_while(self.node(), patience, waits).unwrap_or_else(PoisonError::into_inner);
        had_ended || node.is_drained()
    }

    /// Waits for the end of the server, at most `patience`; `None` if it did not come. No `patience` waits as long as it lasts.
    pub(crate) fn wait(&self, patience: Option<Duration>) -> Option<Result<()>> {
        let lives = |node: &mut Node| self.lives(node);
        let node = match patience {
            None => self.ended.wait_while(self.node(), lives).unwrap_or_else(PoisonError::into_inner),
            Some(patience) => {
                let waited = self.ended.wait_timeout_while(self.node(), patience, lives);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        self.broken.get().map_or_else(|| node.state().outcome(), |cause| Some(Err(cause.clone())))
    }

    fn lives(&self, node: &Node) -> bool {
        self.broken.get().is_none() && !node.state().has_ended()
    }

    /// The server ends, if it has not. Its listener still answers.
    pub(crate) fn end(self: &Arc<Self>) {
        self.guard(|| self.with(|node, _| node.handle_stop()));
    }

    /// Completes the timeline, if one is being recorded.
    pub(crate) fn stop_timeline(&self) {
        if self.trace.is_on() {
            self.trace.stop(self.clock.now());
        }
    }

    /// Stops listening. The lanes end with the last reference to this plane.
    pub(crate) fn stop(&self, patience: Duration) {
        self.stop_timeline();
        if let Some(listener) = self.listener.get() {
            (listener.stop)(patience);
        }
        self.flight.settle(DUMPING);
    }

    /// The archivist has read a part, or has done all that it was to do.
    fn handle_done(self: &Arc<Self>, done: Done) {
        match done {
            Done::Read { part, order, frozen } => self.lanes().submit(Job::Read { part, order, frozen }),
            Done::Archived(archived) => self.with(|node, _| node.handle_archived(archived)),
        }
    }

    /// Changes the node, and lets the lanes run.
    fn with<T>(self: &Arc<Self>, change: impl FnOnce(&mut Node, Time) -> T) -> T {
        let result = self.change(change);
        self.lanes().run();
        result
    }

    /// Runs `change` on the node, then carries out its commands. They stay under the lock: lanes and listener only queue, and the order of
    /// commands about one slot must reach its lane unchanged.
    fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut Node, Time) -> T) -> T {
        let now = self.clock.now();
        let mut node = self.node();
        let had_ended = node.state().has_ended();
        let result = change(&mut node, now);
        while let Some(command) = node.next_command() {
            self.flight.recorder.commanded(now, &command);
            self.carry_out(command);
        }
        let due = node.poll_timeout();
        self.probe.follow(node.state());
        if node.is_drained() || node.state().has_ended() != had_ended {
            self.ended.notify_all();
        }
        drop(node);
        self.timer.get().expect("set in new").arm(due);
        result
    }

    fn carry_out(&self, command: Command) {
        match command {
            Command::Step(work) => self.carry_out_step(work),
            Command::Accept { exchange } => self.send(Outgoing::Accept { exchange }),
            Command::Unroute { exchange } => drop(self.routes().remove(&exchange)),
            Command::Reject { exchange, about, error } => {
                self.show_refusal(exchange);
                self.send(Outgoing::Reject { exchange, about, error });
            }
            Command::Grant { link, unread_bytes_max } => self.send(Outgoing::Grant { link, unread_bytes_max }),
            Command::Disconnect { link, reason } => {
                if let Error::Timeout { .. } = reason {
                    tracing::warn!(link = link.0, %reason, "closing a link");
                }
                self.send(Outgoing::Disconnect { link, reason });
            }
            Command::Short { shortage: Shortage { wanted, booked, bytes_max } } => tracing::warn!(
                wanted_bytes = wanted,
                booked_bytes = booked,
                bytes_max,
                "tensors wait for memory of this server: raise server_bytes_max, add servers, or lower the workers' credit_bytes"
            ),
            Command::Archive(archive) => self.archivist().begin(archive),
            Command::Obeyed { order, outcome } => {
                if let Some(reporter) = self.reporter.get() {
                    reporter.report_obeyed(order, outcome);
                }
            }
            Command::Timed { took, last, is_step } => self.probe.count_round(took, last.as_ref(), is_step),
            Command::Stalled { stall } => self.report(stall),
            Command::Measured { squares } => {
                if let Some(reporter) = self.reporter.get() {
                    reporter.report_squares(squares);
                }
            }
        }
    }

    /// Shows on the timeline that an exchange is refused.
    fn show_refusal(&self, exchange: ExchangeId) {
        if self.trace.is_on() {
            self.trace.failed(self.clock.now(), exchange, "refused");
        }
    }

    fn carry_out_step(&self, work: Work) {
        if let Work::Sum { step: Step::Publish { .. }, .. } = work {
            reach(Failpoint::Publishes);
        }
        if let Work::Sum { slot, step } = &work
            && self.trace.is_on()
        {
            self.trace.step(self.clock.now(), *slot, step);
        }
        let received = work.receives();
        if let Some((exchange, route)) = received {
            self.routes().insert(exchange, route);
        }
        self.lanes().submit(Job::Step(work));
        // After its step, so that no byte comes before it.
        if let Some((exchange, _)) = received {
            self.send(Outgoing::Accept { exchange });
        }
    }

    fn report(&self, stall: Stall) {
        // The coordinator knows the tensor's name and what the missing workers do, so the warning is its own.
        tracing::debug!(part = %stall.part, round = stall.round.0, missing = ranks(&stall.missing), "round waits");
        if let Some(reporter) = self.reporter.get() {
            reporter.report_stall(stall);
        }
    }

    fn routes(&self) -> MutexGuard<'_, BTreeMap<ExchangeId, Route>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node. After a panic only what it says of itself is read.
    fn node(&self) -> MutexGuard<'_, Node> {
        #[cfg(feature = "testing")]
        self.takings.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lanes(&self) -> &SumLanes {
        self.lanes.get().expect("set in new")
    }

    fn archivist(&self) -> &Archivist {
        self.archivist.get().expect("set in new")
    }

    fn send(&self, outgoing: Outgoing) {
        if let Some(listener) = self.listener.get() {
            (listener.outbox)(outgoing);
        }
    }
}

/// A dump of a failure takes some tenths of a second. One that a disk holds up is left behind.
const DUMPING: Duration = Duration::from_secs(2);

mod incoming;
#[cfg(test)]
mod tests;
