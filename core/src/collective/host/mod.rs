//! The collective of the processes of one machine. They map a common segment. Through it they agree on one order, and in it they sum
//! tensors in host memory without further copies.
//!
//! ```text
//!  run ─► requests ► Driver (one seat) ── announcements ──► leader's Order ── orders ──► every Driver: the same part at a time
//!                      ▲        │
//!  a waiting thread, or the rank's own thread  host memory: chunks: stage, reduce, take (reduction)
//!                               └───────────── memory of devices: handed in this order to a DeviceCollective (devices)
//! ```
//! Only the thread in the [`seat`] does the work. A thread that waits for an operation may take the seat ([`Progress::poll`]). Otherwise the
//! rank's own thread takes it, which sleeps while there is nothing to do. A second thread sleeps on the sockets to the other ranks, because
//! the end of a socket means the end of its process.

mod board;
mod bootstrap;
mod devices;
mod driver;
mod fold;
#[cfg(any(test, feature = "testing"))]
pub(super) mod fuzzing;
mod layout;
mod look;
mod loss;
mod options;
mod pending;
mod presence;
mod record;
mod reduction;
mod rendezvous;
mod seat;
mod watch;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::thread::sched_getcpu;

pub use self::options::{Begun, Hears, HostOptions};

use self::board::Board;
use self::bootstrap::BoardBootstrap;
use self::devices::Devices;
use self::driver::{Driver, Request};
use self::layout::Word;
use self::presence::Presence;
use self::reduction::Scratch;
use self::seat::Seat;
use self::watch::Watch;
use super::{Collective, Moved, Operation, Team};
use crate::collective::agreement::{Agreement, Party};
use crate::collective::order::{Claim, Order, Slot};
use crate::error::{Error, Result};
use crate::local::progress::Spin;
use crate::local::{OwnThread, Progress};
use crate::types::{Declined, Done, Incarnation, Time, Unmet};

/// This process's side of a collective. Its ranks agree in host memory. The tensors lie in host memory or in memory of devices. Dropping it
/// makes this rank leave the others.
pub struct HostCollective {
    core: Arc<Core>,
    threads: Mutex<Vec<OwnThread>>,
}

struct Core {
    board: Arc<Board>,
    clock: Arc<dyn Fn() -> Time + Send + Sync>,
    seat: Seat<Driver, Request>,
    /// Whether there are more ranks than cores.
    is_cramped: bool,
    /// How long the rank's own thread sleeps if another thread has the seat: half as long as any operation has time that begins meanwhile.
    nap_busy: Duration,
    /// How long it sleeps at most.
    nap_idle: Duration,
    moved: Moved,
    devices: Devices,
    watch: Watch,
    /// The lives of the ranks, by position.
    lives: Vec<Incarnation>,
}

/// How long an idle thread looks for work before it sleeps, because waking takes longer than most answers.
const SPIN: Duration = Duration::from_micros(50);
/// The same if there are more ranks than cores.
const SPIN_CRAMPED: Duration = Duration::from_micros(3);
/// Steps between two readings of the clock.
const STEPS_PER_LOOK: u32 = 16;
/// How long a rank that leaves waits at most until its operations have ended.
const LEAVING: Duration = Duration::from_secs(1);
/// How much later its threads may end. A thread that is stuck stays behind, with a warning.
const ENDING: Duration = Duration::from_secs(2);

impl HostCollective {
    /// Meets the other ranks of this machine. `failed` returns the error of the job if it failed meanwhile.
    ///
    /// # Errors
    /// [`Error::NotFormed`] with the ranks that did not come, [`Error::Unavailable`] if the first rank cannot be reached,
    /// [`Error::Exhausted`] if there is not enough memory to share, the error of `failed`, or the error of the transport for devices.
    ///
    /// # Panics
    /// If there are no ranks or more than [`Order::RANKS_MAX`], or this one is not of its own group.
    pub fn join(mut options: HostOptions, failed: &dyn Fn() -> Option<Error>) -> Result<Self> {
        assert!((1..=Order::RANKS_MAX as usize).contains(&options.ranks.len()) && options.me < options.ranks.len());
        let meeting = rendezvous::meet(&options, failed)?;
        // All ranks are here. If nobody else keeps the socket, its file is removed here.
        options.listener = None;
        let board = Arc::new(meeting.board);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let is_cramped = cores < options.ranks.len();
        let HostOptions {
            ranks,
            me,
            group,
            join_timeout,
            step_timeout,
            stall_warn,
            hears,
            oldest_every,
            goes_on,
            on_lost,
            nan_check,
            ..
        } = options;
        let lives = ranks.iter().map(|rank| rank.incarnation).collect();
        let HostOptions { copies, traffic, devices, doubt, clock, .. } = options;
        let scratch = Scratch::new(board.layout.slice, copies);
        let place = group.iter().position(|rank| *rank == me).expect("it is of its own group");
        let moved = Moved::default();
        let team = || Team {
            me: place,
            ranks: group.len(),
            bootstrap: Arc::new(BoardBootstrap::new(Arc::clone(&board), group[0])),
            join_timeout,
            step_timeout,
            doubt: doubt.clone(),
            traffic: traffic.clone(),
            moved: moved.clone(),
            clock: Arc::clone(&clock),
        };
        let queue = match devices {
            Ok(make) => Ok(make(team())?),
            Err(error) => Err(error),
        };
        let devices = Devices::new(queue, group.clone());
        let agreement =
            Agreement::new(Party { ranks, me, group, step_timeout, stall_warn, oldest_every, goes_on, defect: None });
        let nap_busy = agreement.soonest() / 2;
        let driver =
            Driver::new(Arc::clone(&board), agreement, (step_timeout, moved.clone()), scratch, devices.clone(), hears);
        board.set_nan_check(nan_check);
        board.appear(Presence::Idle);
        let core = Arc::new(Core {
            board,
            clock,
            seat: Seat::new(driver),
            is_cramped,
            nap_busy,
            nap_idle: step_timeout.min(NAP_MAX),
            moved,
            devices,
            watch: Watch::new(meeting.peers, goes_on)?,
            lives,
        });
        let own = Arc::clone(&core);
        let watcher = Arc::clone(&core);
        let threads = vec![
            OwnThread::start("gl-collective", move || own.serve())?,
            OwnThread::start("gl-neighbours", move || {
                watcher.watch.run(&watcher.board, |rank| watcher.request(Request::Left(rank)), on_lost);
            })?,
        ];
        Ok(Self { core, threads: Mutex::new(threads) })
    }
}

impl Progress for HostCollective {
    fn poll(&self, enough: &dyn Fn() -> bool, patience: Duration) {
        let until = self.core.now() + patience;
        if let Some(driver) = self.core.sit_down() {
            self.core.drive(driver, &|_| enough(), Some(until));
        }
    }

    fn announce(&self) {
        self.core.seat.announce();
    }

    fn poll_announced(&self, enough: &dyn Fn() -> bool, patience: Duration) {
        let until = self.core.now() + patience;
        if let Some(driver) = self.core.seated(self.core.seat.sit_down_announced()) {
            self.core.drive(driver, &|_| enough(), Some(until));
        }
    }

    fn wake(&self) {
        self.core.board.knock(self.core.board.me, false);
    }
}

impl Collective for HostCollective {
    fn moved(&self) -> Time {
        self.core.moved.last()
    }

    fn run(&self, operation: Operation, done: Done<f64, Unmet>) {
        // Checked on the caller's thread, because the first check may load libraries, and the driving thread must not wait for that.
        let request = match self.core.devices.check(&operation) {
            Ok(device_index) => {
                Request::Run(Operation { claim: Claim { device_index, ..operation.claim }, ..operation }, done)
            }
            Err(error) => Request::Refuse(operation.declined(), error, done),
        };
        self.core.request(request);
    }

    fn abandon(&self, slot: Slot) {
        self.core.request(Request::Abandon(slot));
    }

    fn decline(&self, declined: Declined) {
        self.core.request(Request::Decline(declined));
    }

    fn abort(&self, cause: Error) {
        self.core.request(Request::Abort(cause));
    }

    fn part(&self, why: Error, stay: &[Incarnation], patience: Duration) {
        let lives = self.core.lives.iter().enumerate();
        let gone = lives.filter(|(_, life)| !stay.contains(life)).map(|(position, _)| position).collect();
        self.leave(Request::Part(why, gone), patience);
    }

    fn shutdown(&self) {
        self.leave(Request::Close, LEAVING);
    }
}

impl HostCollective {
    /// Leaves the other ranks once the open operations have ended, at most after `patience`. Of several calls, the earliest time counts.
    fn leave(&self, request: Request, patience: Duration) {
        let core = &self.core;
        core.seat.leave_at(core.now() + patience);
        // The rank's own thread ends the open operations, even if another thread drives now. Then it tells the other ranks that this rank
        // leaves.
        core.request(request);
        core.board.ring(core.board.me, Word::Bell);
        core.board.ring(core.board.me, Word::Idle);
        // Taken out of the lock first, so that a second call does not wait for the end of the first.
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        if threads.is_empty() {
            return;
        }
        for thread in threads {
            thread.join(patience + ENDING);
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

    /// Hands a request to the driving thread. If no thread drives, this one handles the request, and wakes the rank's own thread only if
    /// there is work.
    fn request(&self, request: Request) {
        match self.seated(self.seat.request(request)) {
            // Handles the requests and does no other work, because the submitting thread must not be delayed.
            Some(mut driver) => {
                self.take_requests(&mut driver);
                self.stand_up(driver);
            }
            None => self.board.knock(self.board.me, false),
        }
    }

    fn sit_down(&self) -> Option<MutexGuard<'_, Driver>> {
        self.seated(self.seat.sit_down())
    }

    /// Tells the other ranks that this thread drives, if it has got the seat.
    fn seated<'a>(&self, driver: Option<MutexGuard<'a, Driver>>) -> Option<MutexGuard<'a, Driver>> {
        driver.inspect(|_| {
            self.board.appear(Presence::Awake);
            self.board.settle_on(sched_getcpu());
        })
    }

    /// Leaves the seat, and wakes a thread if there is work left. A thread must leave the seat only here, because a request that found the
    /// seat taken relies on being handled here.
    fn stand_up<'a>(&'a self, mut driver: MutexGuard<'a, Driver>) {
        loop {
            let now = self.now();
            if driver.poll_timeout(now).is_some_and(|due| due <= now) {
                // Another thread would have to wake up for it.
                driver.handle_timeout(now);
            }
            let (announced, naps_until) = (self.seat.is_announced(), self.seat.naps_until());
            // A thread that is about to poll sees to the deadlines itself, until it leaves the seat.
            let wakes_late = !announced && driver.poll_timeout(now).is_some_and(|due| due < naps_until);
            self.board.appear(match (announced, driver.is_awaited()) {
                (true, _) => Presence::Awake,
                (false, true) => Presence::Awaited,
                (false, false) => Presence::Idle,
            });
            // Look once more: until the line above, other ranks believed that this rank was awake and did not ring.
            let abandoned = !announced && driver.has_work();
            if abandoned && driver.listen(now) {
                // In most cases the others only announced that they are ready. That is no reason to wake a thread. But there may be more
                // now.
                self.board.appear(Presence::Awake);
                continue;
            }
            if abandoned || wakes_late {
                self.board.appear(Presence::Awake);
            }
            let is_wanted = self.seat.rise(driver);
            if abandoned || wakes_late {
                // Only after the seat is free, because on a shared core the woken thread runs at once and would find the seat taken.
                self.board.ring(self.board.me, Word::Idle);
            }
            if !is_wanted {
                return;
            }
            match self.sit_down() {
                Some(again) => driver = again,
                None => return,
            }
            self.take_requests(&mut driver);
        }
    }

    /// Handles the requests; returns whether there were any.
    fn take_requests(&self, driver: &mut Driver) -> bool {
        self.seat.take_requests(|request| driver.handle(self.now(), request))
    }

    /// Works until `enough` returns true, until all is over, or until the time `until`. If `until` is `None`, works until there is nothing
    /// to do. Whoever waits for a result must not sleep here when all is over, because others will wake it elsewhere.
    fn drive<'a>(&'a self, mut driver: MutexGuard<'a, Driver>, enough: &dyn Fn(&Driver) -> bool, until: Option<Time>) {
        let mut now = self.now();
        let (mut spin, mut budget) = (Spin::new(), Duration::ZERO);
        let (mut steps, mut is_idle) = (0_u32, false);
        spin.worked();
        while !enough(&driver) && !driver.is_over() {
            let moved = self.take_requests(&mut driver) | driver.step(now);
            steps = steps.wrapping_add(1);
            if moved {
                spin.worked();
                is_idle = false;
                // Work that never ends must not keep a thread that wants to wait no longer.
                if steps.is_multiple_of(STEPS_PER_LOOK) {
                    now = self.now();
                    if until.is_some_and(|until| until <= now) {
                        break;
                    }
                }
                continue;
            }
            std::hint::spin_loop();
            if !is_idle || steps.is_multiple_of(STEPS_PER_LOOK) {
                now = self.now();
                budget = self.spin_budget();
                is_idle = true;
            }
            if spin.goes_on(now.since(Time::ZERO), budget) {
                continue;
            }
            driver.handle_timeout(now);
            let leaves = self.seat.leaves();
            if until.is_some_and(|until| until <= now) || leaves <= now || (until.is_none() && !driver.is_running()) {
                break;
            }
            let shown = self.board.bell(Word::Bell);
            self.board.appear(Presence::Asleep);
            if !(self.take_requests(&mut driver) | driver.step(now)) && !enough(&driver) {
                let wake = [driver.poll_timeout(now), until, Some(leaves)].into_iter().flatten().min();
                self.board.sleep(Word::Bell, shown, wake.map_or(NAP_MAX, |wake| wake.since(now).min(NAP_MAX)));
            }
            self.board.appear(Presence::Awake);
            now = self.now();
            spin.worked();
            is_idle = false;
        }
        self.stand_up(driver);
    }

    /// How long to look for work before sleeping.
    fn spin_budget(&self) -> Duration {
        let is_shared = self.board.settle_on(sched_getcpu());
        match (self.is_cramped, is_shared) {
            // The rank for which this one waits may need this core, because there are too few cores.
            (true, _) => {
                std::thread::yield_now();
                SPIN_CRAMPED
            }
            // The other rank has the core alone until it wakes this one. This one then runs on a free core. If both stayed awake, the
            // system would leave them on the same core.
            (false, true) => Duration::ZERO,
            (false, false) => SPIN,
        }
    }

    /// The rank's own thread.
    fn serve(&self) {
        while self.seat.stays() {
            let shown = self.board.bell(Word::Idle);
            if let Some(driver) = self.sit_down() {
                self.drive(driver, &|_| false, None);
            }
            // From here on a thread that leaves the seat with an earlier deadline wakes this thread. While threads of the caller do the
            // work, no deadline is earlier: that would wake this thread in each operation.
            let now = self.now();
            let mut nap = self.nap_busy;
            self.seat.nap_until(now + nap);
            if let Some(mut driver) = self.seated(self.seat.sit_down_or_be_noticed()) {
                nap = driver.poll_timeout(now).map_or(self.nap_idle, |due| due.since(now).min(self.nap_idle));
                self.seat.nap_until(now + nap);
                self.stand_up(driver);
            }
            if self.seat.stays() {
                self.board.sleep(Word::Idle, shown, nap);
            }
            self.seat.nap_until(Time::ZERO);
        }
        // Another driving thread stops when it is time to leave, so this lock is free soon.
        let mut driver = self.seat.lock();
        self.board.appear(Presence::Awake);
        if driver.is_busy() {
            self.drive(driver, &|driver| !driver.is_busy(), Some(self.seat.leaves()));
            driver = self.seat.lock();
        }
        self.watch.leave(!driver.is_busy());
        driver.end(self.now());
    }
}

/// The longest sleep. A thread that wakes from it finds nothing to do and sleeps again.
const NAP_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests;
