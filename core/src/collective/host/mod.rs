//! The collective of the processes of one machine: a segment that all of them map, through which they agree on one order, and in which
//! tensors in host memory are summed without a copy beyond it.
//!
//! ```text
//!  run ─► wishes ─► Driver (one seat) ── announcements ──► leader's Order ── orders ──► every Driver: the same part at a time
//!                      ▲        │
//!  whoever waits, or the rank's own thread     host memory: chunks: stage, reduce, take (road)
//!                               └───────────── memory of devices: handed in this order to a DeviceRoad (devices)
//! ```
//! Whoever waits for an operation may take the seat and do the work ([`Collective::help`]); else a thread of the rank does, which sleeps
//! while there is nothing to do. A second thread sleeps on the sockets to the other ranks: their end is the end of the process.

mod board;
mod bulletin;
mod devices;
mod driver;
mod layout;
mod options;
mod pending;
mod record;
mod rendezvous;
mod road;
mod watch;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::sched_getcpu;

pub use self::options::HostOptions;

use self::board::{Board, Presence};
use self::bulletin::BoardBulletin;
use self::devices::Devices;
use self::driver::{Driver, Request};
use self::layout::Word;
use self::road::Scratch;
use self::watch::Watch;
use super::{Collective, Operation, Team};
use crate::collective::agreement::{Agreement, Party};
use crate::collective::order::{Claim, Order, Slot};
use crate::error::{Error, Result};
use crate::types::{Done, Time};

/// This process's side of a collective whose ranks meet in host memory; what they reduce lies there, or in memory of devices. Dropping it
/// leaves the other ranks.
pub struct HostCollective {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Core {
    board: Arc<Board>,
    clock: Arc<dyn Fn() -> Time + Send + Sync>,
    /// Who holds it does the work.
    seat: Mutex<Driver>,
    requests: Mutex<VecDeque<Request>>,
    /// Whether there are any, to be looked at without the lock.
    requested: AtomicBool,
    /// Threads that are about to help.
    attending: AtomicU32,
    /// Until when the rank's own thread sleeps if nobody wakes it.
    naps_until: AtomicU64,
    /// Whether there are more ranks than cores.
    is_cramped: bool,
    step_timeout: Duration,
    devices: Devices,
    watch: Watch,
    /// When it leaves the others, finished or not; far away until it wants to.
    leaves: AtomicU64,
}

/// How long a thread that has nothing to do looks for work before it sleeps. Waking takes longer than most answers.
const SPIN: Duration = Duration::from_micros(50);
/// The same where there are more ranks than cores.
const SPIN_CRAMPED: Duration = Duration::from_micros(3);
/// Steps between two looks at the clock.
const STEPS_PER_LOOK: u32 = 16;
/// How long the other ranks may take to hear what a rank that leaves has withdrawn.
const LEAVING: Duration = Duration::from_secs(1);

impl HostCollective {
    /// Meets the other ranks of this machine. `failed` says why the job failed meanwhile, if it did.
    ///
    /// # Errors
    /// [`Error::NotFormed`] naming the ranks that did not come, [`Error::Unavailable`] if the first cannot be reached,
    /// [`Error::Exhausted`] if there is not enough memory to share, what `failed` says, or why there is no road for devices where there
    /// should be one.
    ///
    /// # Panics
    /// If there are fewer than two ranks or more than [`Order::RANKS_MAX`], or this one is not of its own group.
    pub fn join(mut options: HostOptions, failed: &dyn Fn() -> Option<Error>) -> Result<Self> {
        assert!((2..=Order::RANKS_MAX as usize).contains(&options.ranks.len()) && options.me < options.ranks.len());
        let meeting = rendezvous::meet(&options, failed)?;
        // Everybody is here: nobody needs the way in any more, and nothing with a name is left behind.
        options.door = None;
        let board = Arc::new(meeting.board);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let is_cramped = cores < options.ranks.len();
        let HostOptions { ranks, me, group, join_timeout, step_timeout, oldest_every, copies, devices, clock, .. } =
            options;
        let scratch = Scratch::new(board.layout.slice, copies);
        let place = group.iter().position(|rank| *rank == me).expect("it is of its own group");
        let team = || Team {
            me: place,
            ranks: group.len(),
            bulletin: Arc::new(BoardBulletin::new(Arc::clone(&board), group[0])),
            join_timeout,
            step_timeout,
            clock: Arc::clone(&clock),
        };
        let road = match devices {
            Ok(make) => Ok(make(team())?),
            Err(error) => Err(error),
        };
        let devices = Devices::new(road, group.clone());
        let agreement = Agreement::new(Party { ranks, me, group, step_timeout, oldest_every, defect: None });
        let driver = Driver::new(Arc::clone(&board), agreement, step_timeout, scratch, devices.clone());
        board.appear(Presence::Idle);
        let core = Arc::new(Core {
            board,
            clock,
            seat: Mutex::new(driver),
            requests: Mutex::default(),
            requested: AtomicBool::new(false),
            attending: AtomicU32::new(0),
            naps_until: AtomicU64::new(0),
            is_cramped,
            step_timeout,
            devices,
            watch: Watch::new(meeting.peers)?,
            leaves: AtomicU64::new(u64::MAX),
        });
        let own = Arc::clone(&core);
        let watcher = Arc::clone(&core);
        let threads = vec![
            spawn("gl-collective", move || own.serve())?,
            spawn("gl-neighbours", move || {
                watcher.watch.run(&watcher.board, |rank| watcher.request(Request::Left(rank)));
            })?,
        ];
        Ok(Self { core, threads: Mutex::new(threads) })
    }
}

impl Collective for HostCollective {
    fn run(&self, operation: Operation, done: Done<f64>) {
        // On the caller's thread: the first one may load libraries, and whoever drives has other things to do.
        let request = match self.core.devices.check(&operation) {
            Ok(lane) => Request::Run(Operation { claim: Claim { lane, ..operation.claim }, ..operation }, done),
            Err(error) => Request::Refuse(operation.slot(), error, done),
        };
        self.core.request(request);
    }

    fn abandon(&self, slot: Slot) {
        self.core.request(Request::Abandon(slot));
    }

    fn help(&self, enough: &dyn Fn() -> bool, patience: Duration, attended: bool) {
        let until = self.core.now() + patience;
        let mut seat = self.core.sit_down();
        if attended {
            self.core.attending.fetch_sub(1, Ordering::SeqCst);
            // Whoever sits there may be about to leave the work to this thread.
            seat = seat.or_else(|| self.core.sit_down_or_be_noticed());
        }
        if let Some(driver) = seat {
            self.core.drive(driver, &|_| enough(), Some(until));
        }
    }

    fn attend(&self) {
        self.core.attending.fetch_add(1, Ordering::SeqCst);
    }

    fn nudge(&self) {
        self.core.board.knock(self.core.board.me, false);
    }

    fn abort(&self, cause: Error) {
        self.core.request(Request::Abort(cause));
    }

    fn shutdown(&self) {
        let core = &self.core;
        let leaves = core.now() + LEAVING;
        if core.leaves.compare_exchange(u64::MAX, leaves.0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        // The rank's own thread ends what can be ended, whoever else may be at it; then the other one says goodbye.
        core.request(Request::Close);
        core.board.ring(core.board.me, Word::Bell);
        core.board.ring(core.board.me, Word::Idle);
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // Whoever is told of an outcome may drop the engine.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
        core.devices.shutdown();
    }
}

impl Drop for HostCollective {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl fmt::Debug for HostCollective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCollective").field("board", &self.core.board).finish_non_exhaustive()
    }
}

impl Core {
    fn now(&self) -> Time {
        (self.clock)()
    }

    /// Hands a wish to whoever drives; if nobody does, announces it from here, and wakes the rank's own thread only for work.
    fn request(&self, request: Request) {
        self.requests.lock().expect(LOCK).push_back(request);
        self.requested.store(true, Ordering::SeqCst);
        match self.sit_down() {
            // Just what was wished: whoever submits has other things to do.
            Some(mut driver) => {
                self.grant(&mut driver);
                self.stand_up(driver);
            }
            None => self.board.knock(self.board.me, false),
        }
    }

    fn sit_down(&self) -> Option<MutexGuard<'_, Driver>> {
        let driver = match self.seat.try_lock() {
            Ok(driver) => driver,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(_)) => panic!("{LOCK}"),
        };
        self.board.appear(Presence::Awake);
        self.board.settle_on(sched_getcpu());
        Some(driver)
    }

    /// As [`sit_down`](Self::sit_down); if the seat is taken, whoever has it looks at everything once more after leaving it.
    fn sit_down_or_be_noticed(&self) -> Option<MutexGuard<'_, Driver>> {
        self.requested.store(true, Ordering::SeqCst);
        self.sit_down()
    }

    /// Leaves the seat, so that whoever must drive next knows. The only way to leave it: what came meanwhile found it taken and relies on
    /// being noticed here.
    fn stand_up<'a>(&'a self, mut driver: MutexGuard<'a, Driver>) {
        loop {
            let naps_until = Time(self.naps_until.load(Ordering::SeqCst));
            let wakes_late = driver.poll_timeout().is_some_and(|due| due < naps_until);
            let attended = self.attending.load(Ordering::SeqCst) > 0;
            self.board.appear(match (attended, driver.is_awaited()) {
                (true, _) => Presence::Awake,
                (false, true) => Presence::Awaited,
                (false, false) => Presence::Idle,
            });
            // Once more: what was written before that was written for whoever sat here.
            let abandoned = !attended && driver.has_work();
            if abandoned && driver.listen() {
                // That the others are ready is mostly all there was, and no reason to wake a thread. They may say more meanwhile.
                self.board.appear(Presence::Awake);
                continue;
            }
            if abandoned || wakes_late {
                self.board.appear(Presence::Awake);
            }
            drop(driver);
            if abandoned || wakes_late {
                // Only now: on a core that both share it runs at once, and would find the seat taken.
                self.board.ring(self.board.me, Word::Idle);
            }
            if !self.requested.load(Ordering::SeqCst) {
                return;
            }
            match self.sit_down() {
                Some(again) => driver = again,
                None => return,
            }
            self.grant(&mut driver);
        }
    }

    /// Takes in what was wished; whether that was something.
    fn grant(&self, driver: &mut Driver) -> bool {
        if !self.requested.swap(false, Ordering::SeqCst) {
            return false;
        }
        let now = self.now();
        loop {
            let Some(request) = self.requests.lock().expect(LOCK).pop_front() else { return true };
            driver.handle(now, request);
        }
    }

    /// Works until `enough`, until `until`, or, without it, until there is nothing to do.
    fn drive<'a>(&'a self, mut driver: MutexGuard<'a, Driver>, enough: &dyn Fn(&Driver) -> bool, until: Option<Time>) {
        let mut now = self.now();
        let (mut idle_since, mut patience) = (None, Duration::ZERO);
        let mut steps = 0_u32;
        while !enough(&driver) {
            let moved = self.grant(&mut driver) | driver.step(now);
            steps = steps.wrapping_add(1);
            if moved {
                idle_since = None;
                continue;
            }
            std::hint::spin_loop();
            if idle_since.is_none() || steps.is_multiple_of(STEPS_PER_LOOK) {
                now = self.now();
                patience = self.patience();
            }
            if now.since(*idle_since.get_or_insert(now)) < patience {
                continue;
            }
            driver.handle_timeout(now);
            let leaves = Time(self.leaves.load(Ordering::SeqCst));
            if until.is_some_and(|until| until <= now) || leaves <= now || (until.is_none() && !driver.is_running()) {
                break;
            }
            let shown = self.board.bell(Word::Bell);
            self.board.appear(Presence::Asleep);
            if !(self.grant(&mut driver) | driver.step(now)) && !enough(&driver) {
                let wake = [driver.poll_timeout(), until, Some(leaves)].into_iter().flatten().min();
                self.board.sleep(Word::Bell, shown, wake.map_or(NAP_MAX, |wake| wake.since(now).min(NAP_MAX)));
            }
            self.board.appear(Presence::Awake);
            now = self.now();
            idle_since = None;
        }
        self.stand_up(driver);
    }

    /// How long to look for work before sleeping.
    fn patience(&self) -> Duration {
        let is_shared = self.board.settle_on(sched_getcpu());
        match (self.is_cramped, is_shared) {
            // Whoever is waited for may want this core, and has no other.
            (true, _) => {
                std::thread::yield_now();
                SPIN_CRAMPED
            }
            // It has the core to itself until it wakes this rank, which then comes to one that is free. Had both stayed awake, the system
            // would have left them where they are.
            (false, true) => Duration::ZERO,
            (false, false) => SPIN,
        }
    }

    /// The rank's own thread.
    fn serve(&self) {
        let leaves = || Time(self.leaves.load(Ordering::SeqCst));
        while leaves() == Time(u64::MAX) {
            let shown = self.board.bell(Word::Idle);
            if let Some(driver) = self.sit_down() {
                self.drive(driver, &|_| false, None);
            }
            // From here on whoever stands up with an earlier deadline rings. What is submitted later is never overdue earlier: nobody rings
            // for that.
            let now = self.now();
            let mut nap = self.step_timeout.min(NAP_MAX);
            self.naps_until.store((now + nap).0, Ordering::SeqCst);
            if let Some(mut driver) = self.sit_down_or_be_noticed() {
                nap = driver.poll_timeout().map_or(nap, |due| due.since(now).min(nap));
                self.naps_until.store((now + nap).0, Ordering::SeqCst);
                self.stand_up(driver);
            }
            if leaves() == Time(u64::MAX) {
                self.board.sleep(Word::Idle, shown, nap);
            }
            self.naps_until.store(0, Ordering::SeqCst);
        }
        // Whoever else drives stops when it is time to leave, so that this lock comes.
        let mut driver = self.seat.lock().expect(LOCK);
        self.board.appear(Presence::Awake);
        if driver.is_busy() {
            self.drive(driver, &|driver| !driver.is_busy(), Some(leaves()));
            driver = self.seat.lock().expect(LOCK);
        }
        self.watch.leave(!driver.is_busy());
        driver.end();
    }
}

/// The longest sleep; whoever wakes from it finds nothing to do and sleeps again.
const NAP_MAX: Duration = Duration::from_secs(3600);

const LOCK: &str = "nobody panics while driving";

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let failed =
        |error: std::io::Error| Error::Io { what: format!("starting thread {name}"), cause: error.to_string() };
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(failed)
}

#[cfg(test)]
mod tests;
