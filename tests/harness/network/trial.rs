//! A job on a bad network: it trains, and every sum and every call is looked at.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, after, bounded};
use gradlane_core::config::Config;
use gradlane_core::engine::Engine;
use gradlane_core::runtime::Clock;
use gradlane_core::types::{JoinString, Op, Role, Time};
use gradlane_core::{Error, Result};
use gradlane_server::coordinator::CoordinatorConfig;
use gradlane_server::coordinator::driver::CoordinatorNode;
use gradlane_server::{Server, ServerOptions};

use super::cases::{Between, Case, Due, Phase};
use super::path::{CLEAR, CUT};
use super::relay::Relay;
use crate::cluster::{Tensor, config, worker};
use crate::digits;
use crate::over::Over;

/// When the network is bad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// While a job that has formed trains.
    Steady,
    /// While the epoch changes: while the job forms and takes its first steps, and again while its workers leave in order. As long as
    /// the loss of a member ends a job, it lives through no other change.
    EpochChange,
}

/// What became of a job.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Steps that every worker has finished.
    pub steps: usize,
    /// Sums that were wrong, and how.
    pub wrong: Vec<String>,
    /// Calls that did not end in time.
    pub hangs: usize,
    /// Errors of calls, each with the time that it took: since the call, or since the network was bad if that was later.
    pub errors: Vec<(Error, Duration)>,
    /// From the time when the network was good again to the end of the first step that every worker began after that.
    pub recovery: Option<Duration>,
    /// Datagrams that did not arrive in time, in order, once and whole.
    pub harmed: u64,
}

/// Runs a job of two workers and one server on the network of `case`. The seed decides which datagrams are lost.
///
/// # Panics
/// If coordinator and server cannot be started.
pub fn run(case: &Case, moment: Moment, seed: u64) -> Outcome {
    let job = Job::start(case, moment, seed);
    let watch = Watch::default();
    let (warm, warmed) = bounded(1);
    let ends = std::thread::scope(|scope| {
        let (job, watch) = (&job, &watch);
        let workers = [(0, Some(warm)), (1, None)].map(|(rank, warm)| scope.spawn(move || job.work(rank, warm, watch)));
        scope.spawn(move || {
            // It is never warm if a worker could not join.
            match moment {
                Moment::Steady if warmed.recv().is_err() => {}
                Moment::Steady => job.be_bad(watch, None),
                Moment::EpochChange => job.be_bad(watch, Some(&warmed)),
            }
        });
        workers.map(|worker| worker.join().expect("no panic"))
    });
    let mut outcome = watch.judge(&ends);
    if case.due == Due::Sums {
        outcome.errors.extend(job.leave(ends, moment));
    }
    outcome.harmed = job.relays.iter().map(|(_, relay)| relay.harmed()).sum();
    outcome
}

impl Outcome {
    /// What is wrong with it, if anything.
    pub fn fault(&self, case: &Case) -> Option<String> {
        let unexpected = self.errors.iter().find(|(error, after)| match case.due {
            Due::Sums => true,
            Due::Errors(codes) => !codes.contains(&error.code()) || *after > CALL_ENDS,
        });
        let restarts = case.phases.iter().all(|phase| matches!(phase, Phase::Restart));
        if let Some(wrong) = self.wrong.first() {
            Some(format!("wrong: {wrong}"))
        } else if self.hangs > 0 {
            Some(format!("{} calls did not end within {CALL_ENDS:?}", self.hangs))
        } else if let Some((error, after)) = unexpected {
            Some(format!("after {after:?}: {error}"))
        } else if self.harmed == 0 && !restarts {
            Some("the network did no harm".to_owned())
        } else {
            match (case.due, self.recovery) {
                (Due::Errors(_), _) if self.errors.len() == 2 => None,
                (Due::Errors(_), _) => Some(format!("{} of 2 ranks got an error", self.errors.len())),
                (Due::Sums, Some(recovery)) if recovery <= RECOVERY_MAX => None,
                (Due::Sums, recovery) => Some(format!("steps came again after {recovery:?}")),
            }
        }
    }
}

/// A job whose members reach each other through relays.
struct Job<'a> {
    // In the order in which they end.
    _server: Server,
    coordinator: CoordinatorNode,
    relays: Vec<(Between, Relay)>,
    config: Config,
    case: &'a Case,
    clock: Clock,
}

/// What the threads of a trial tell each other.
struct Watch {
    bad_at: AtomicU64,
    good_at: AtomicU64,
    /// The step after which all workers stop.
    last: AtomicU64,
}

/// What one worker met.
#[derive(Default)]
struct End {
    engine: Option<Engine>,
    /// From when to when each step lasted.
    steps: Vec<(Time, Time)>,
    wrong: Vec<String>,
    hangs: usize,
    error: Option<(Error, Time, Time)>,
}

impl<'a> Job<'a> {
    fn start(case: &'a Case, moment: Moment, seed: u64) -> Self {
        let clock = Clock::start();
        let config = config(Over::Quic, &[&SETTINGS[..], &[("partition_bytes", case.part)]].concat());
        let coordinator = CoordinatorNode::start(CoordinatorConfig::from_config(&config, 2, 1), &config, None);
        let coordinator = coordinator.expect("loopback has a free port");
        let listens: SocketAddr = coordinator.join_string().address.parse().expect("an address");
        let to_coordinator =
            [Between::FirstWorkerAndCoordinator, Between::SecondWorkerAndCoordinator, Between::ServerAndCoordinator];
        let front = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut relays: Vec<(Between, Relay)> = (seed << 8..)
            .zip(to_coordinator)
            .map(|(seed, between)| (between, Relay::start(front, listens, seed)))
            .collect();
        let first = case.phases.first().filter(|_| moment == Moment::EpochChange);
        relays.iter().for_each(|relay| first.into_iter().for_each(|phase| case.set(relay, phase)));
        let server = Server::start(ServerOptions {
            config: Config { advertise: Some(Relay::HOST.to_owned()), ..config.clone() },
            coordinator: relays[2].1.address(),
            credentials: Arc::new(coordinator.credentials(Role::Server).expect("the authority certifies it")),
            index: None,
        });
        let server = server.expect("loopback has a free port");
        let announced: SocketAddr = server.address().parse().expect("an address");
        let listens = SocketAddr::from(([127, 0, 0, 1], announced.port()));
        relays.push((Between::WorkersAndServer, Relay::start(announced, listens, seed << 8 | 0xFF)));
        Self { _server: server, coordinator, relays, config, case, clock }
    }

    /// Joins, and takes steps until the network has been good again for one, or an error comes. Tells `warm` of the first steps.
    fn work(&self, rank: u32, warm: Option<Sender<()>>, watch: &Watch) -> End {
        let mut end = End::default();
        let began = self.clock.now();
        let join =
            JoinString { address: self.relays[rank as usize].1.address(), ..self.coordinator.join_string().clone() };
        let engine = match worker(&self.config, &join, Some(rank), 2) {
            Ok(engine) => engine,
            Err(error) => return End { error: Some((error, began, self.clock.now())), ..end },
        };
        for step in 0.. {
            if rank == 0 && watch.is_good_again() && watch.last.load(Ordering::SeqCst) == u64::MAX {
                // Told before this worker contributes to the step, so that nobody ends it without knowing.
                watch.last.store(step + 1, Ordering::SeqCst);
            }
            let began = self.clock.now();
            match self.step(&engine, step) {
                Ok(Some(Ok(()))) => end.steps.push((began, self.clock.now())),
                Ok(Some(Err(wrong))) => end.wrong.push(wrong),
                Ok(None) => end.hangs += 1,
                Err(error) => end.error = Some((error, began, self.clock.now())),
            }
            if step == WARM_UP {
                // Not everybody waits for it.
                let _ = warm.as_ref().map(|warm| warm.send(()));
            }
            if end.steps.len() as u64 != step + 1 || step == watch.last.load(Ordering::SeqCst) {
                break;
            }
        }
        end.engine = Some(engine);
        end
    }

    /// Reduces a small and a larger tensor. `None` is a call that did not end, the inner error a wrong sum.
    fn step(&self, engine: &Engine, step: u64) -> Result<Option<std::result::Result<(), String>>> {
        let of = |(name, len)| Tensor::new(name, digits::contribution(engine.rank().0, name, step, len));
        let mut tensors = [("bias", 10), ("weight", self.case.elements)].map(of);
        let handles = tensors.each_mut().map(|tensor| tensor.push_pull(engine, Op::Sum));
        let mut outcome = Ok(());
        for handle in handles.iter().flatten() {
            let waited = handle.wait(Some(CALL_ENDS));
            if handle.outcome().is_none() {
                // The engine may still write to them.
                std::mem::forget(tensors);
                return Ok(None);
            }
            outcome = outcome.and(waited);
        }
        outcome?;
        handles.into_iter().collect::<Result<Vec<_>>>()?;
        let check = |tensor: &Tensor| digits::check(&tensor.data, 2, &tensor.spec.name, step);
        Ok(Some(tensors.iter().try_for_each(check)))
    }

    /// Makes the network as bad as the case wants it, and good again unless the case says otherwise. The last phase lasts until the job
    /// is `warm`, if that is waited for and anything passes, but at most [`WARM_MAX`] longer.
    fn be_bad(&self, watch: &Watch, warm: Option<&Receiver<()>>) {
        watch.bad_at.store(self.clock.now().0, Ordering::SeqCst);
        for phase in self.case.phases {
            self.relays.iter().for_each(|relay| self.case.set(relay, phase));
            if let Phase::Hold(lasts, ..) = phase {
                after(*lasts).recv().expect("a timer fires");
            }
        }
        if let (Some(warm), Some(Phase::Hold(_, there, back))) = (warm, self.case.phases.last())
            && ![there, back].contains(&&CUT)
        {
            let _ = warm.recv_timeout(WARM_MAX);
        }
        if self.case.due == Due::Sums {
            self.relays.iter().for_each(|(_, relay)| relay.set(CLEAR, CLEAR));
            watch.good_at.store(self.clock.now().0, Ordering::SeqCst);
        }
    }

    /// The workers leave, on a bad network if an epoch is to change on one. Returns what they and the job say.
    fn leave(&self, ends: [End; 2], moment: Moment) -> Vec<(Error, Duration)> {
        let began = self.clock.now();
        let took = |error| (error, self.clock.now().since(began));
        std::thread::scope(|scope| {
            if moment == Moment::EpochChange {
                scope.spawn(|| self.be_bad(&Watch::default(), None));
            }
            let engines = ends.into_iter().filter_map(|end| end.engine);
            let leaving: Vec<_> = engines.map(|engine| scope.spawn(move || engine.shutdown(LEAVING_ENDS))).collect();
            let left = leaving.into_iter().map(|worker| worker.join().expect("no panic"));
            let ended = std::iter::once_with(|| self.coordinator.wait(Some(LEAVING_ENDS)));
            left.chain(ended).filter_map(Result::err).map(took).collect()
        })
    }
}

impl Case {
    fn set(&self, (between, relay): &(Between, Relay), phase: &Phase) {
        match phase {
            _ if !self.paths.contains(between) => {}
            Phase::Hold(_, there, back) => relay.set(*there, *back),
            Phase::Restart => relay.restart(),
        }
    }
}

impl Watch {
    fn is_good_again(&self) -> bool {
        self.good_at.load(Ordering::SeqCst) != u64::MAX
    }

    fn judge(&self, ends: &[End; 2]) -> Outcome {
        let at = |time: &AtomicU64| Time(time.load(Ordering::SeqCst));
        let (bad_at, good_at) = (at(&self.bad_at), at(&self.good_at));
        let both = ends[0].steps.iter().zip(&ends[1].steps);
        let recovered = both.clone().find(|(first, second)| first.0.min(second.0) >= good_at);
        Outcome {
            steps: both.count(),
            wrong: ends.iter().flat_map(|end| end.wrong.clone()).collect(),
            hangs: ends.iter().map(|end| end.hangs).sum(),
            errors: ends
                .iter()
                .flat_map(|end| &end.error)
                .map(|(error, began, ended)| (error.clone(), ended.since((*began).max(bad_at))))
                .collect(),
            recovery: recovered.map(|(first, second)| first.1.max(second.1).since(good_at)),
            harmed: 0,
        }
    }
}

impl Default for Watch {
    fn default() -> Self {
        let never = || AtomicU64::new(u64::MAX);
        Self { bad_at: never(), good_at: never(), last: never() }
    }
}

/// The defaults for silence, and a short step. Packets are those of an Ethernet.
const SETTINGS: [(&str, &str); 6] = [
    ("datagram_bytes_max", "1452"),
    ("suspect_timeout", "2 s"),
    ("dead_timeout", "5 s"),
    ("step_timeout", "15 s"),
    ("stall_warn", "2 s"),
    ("log", "error"),
];
/// The promise of reliability.md, 3.1: the step timeout and twice the dead timeout. And what a busy machine takes to run a thread.
pub const CALL_ENDS: Duration = Duration::from_secs(15 + 2 * 5 + 2);
const LEAVING_ENDS: Duration = Duration::from_secs(20);
/// Aimed at are 3 s; more is what a busy machine may take.
pub const RECOVERY_MAX: Duration = Duration::from_secs(20);
/// Steps before the network turns bad.
const WARM_UP: u64 = 3;
/// How long a bad network waits for them, if the job begins on it.
const WARM_MAX: Duration = Duration::from_secs(5);
