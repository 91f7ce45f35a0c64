//! The loop of one side of shared memory. It does the work that there is, spins for a moment, and then sleeps until an [event](Events).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::events::{Events, Happening};
use super::link::Link;
use super::work_lock::WorkLock;
use crate::error::Result;
use crate::local::progress::Spin;
use crate::local::sync::{AtomicBool, Ordering, fence};

/// How the threads of a side sleep, and how other threads wake them.
pub(super) struct Poller {
    pub(super) work: WorkLock,
    pub(super) events: Events,
    began: Instant,
    asleep: AtomicBool,
    /// The side sleeps without a short timeout, so work that may wait has to wake it too.
    deep: AtomicBool,
}

impl Poller {
    pub(super) fn new() -> Result<Self> {
        let (asleep, deep) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { work: WorkLock::new(), events: Events::new()?, began: now(), asleep, deep })
    }

    /// Wakes the side if it sleeps. Further calls do nothing until it has woken.
    pub(super) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::SeqCst) {
            self.events.wake();
        }
    }

    /// Wakes a thread that [helps](help), so that it checks again whether it has enough.
    pub(super) fn wake_helper(&self) {
        if self.work.has_helper() {
            self.wake();
        }
    }

    /// Wakes the side if it sleeps for long. Otherwise it wakes by itself within [`MOMENT`].
    pub(super) fn wake_soon(&self) {
        fence(Ordering::SeqCst);
        if self.deep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    fn set_deep(&self, deep: bool) {
        self.deep.store(deep, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Call it with `true` before the last check for work that precedes [`Events::wait`], and with `false` after the wait.
    fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// A worker's or a server's side of shared memory. One thread at a time does its work: its own thread, or a thread that [helps](help).
pub(super) trait Side {
    fn poller(&self) -> &Poller;
    /// All links.
    fn links(&self) -> Vec<Arc<Link>>;
    /// Does all work that these links have. Returns whether there was any.
    fn turn(&self, links: &[Arc<Link>]) -> bool;
    /// Whether there is work, beside messages on links, that must not wait.
    fn has_work(&self) -> bool;
    /// Whether there is work that may wait for [`MOMENT`].
    fn has_leisurely_work(&self) -> bool;
    /// Handles an event of a descriptor. Clears the wakeup of a link whose peer woke this side.
    fn happened(&self, happening: Happening);
    /// Whether the thread is to end.
    fn is_over(&self) -> bool;
}

/// Runs a side until it is over. Waits while another thread [helps](help).
pub(super) fn run(side: &impl Side) {
    let poller = side.poller();
    let mut pace = Pace::default();
    while !side.is_over() {
        if poller.work.has_helper() {
            // The event that woke this thread may have no other sign, such as room in a segment. So it is passed on to the helper.
            poller.events.wake();
            poller.work.wait_for_helper();
        }
        work(side, &mut pace, &|| poller.work.has_helper(), None);
    }
}

/// Does the work of a side on the calling thread, until `enough` returns true or `patience` ends. Returns at once if another thread helps.
///
/// A thread that waits for a sum calls this. The sum then arrives on this thread, and no other thread has to wake it.
pub(super) fn help(side: &impl Side, enough: &dyn Fn() -> bool, patience: Duration) {
    let poller = side.poller();
    let until = Some(now() + patience.min(PATIENCE_MAX));
    let Some(_helper) = poller.work.help() else { return };
    let mut pace = Pace::default();
    while !work(side, &mut pace, enough, until) {}
}

/// How busy a thread was. This decides how it waits.
struct Pace {
    turns: u32,
    /// There was work since the last sleep, so the next sleep is a short one.
    light: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self { turns: 0, light: true }
    }
}

/// Works until there is nothing to do, and then sleeps once. Returns true if `enough` is true, `until` has passed, or the side is over.
///
/// A thread releases the work lock before it sleeps, so that another thread may work. A peer wakes one of the threads that sleep.
fn work(side: &impl Side, pace: &mut Pace, enough: &dyn Fn() -> bool, until: Option<Instant>) -> bool {
    let poller = side.poller();
    let left = || until.map(|until| until.saturating_duration_since(now()));
    let Some(mut guard) = poller.work.lock(left()) else { return true };
    if pace.light {
        guard.spin().worked();
    }
    poller.set_asleep(false);
    poller.set_deep(false);
    let mut links = side.links();
    links.iter().for_each(|link| link.set_asleep(false));
    loop {
        let busy = side.turn(&links);
        if enough() || side.is_over() || until.is_some_and(|until| until <= now()) {
            links.iter().for_each(|link| link.set_asleep(true));
            poller.set_asleep(true);
            drop(guard);
            // Work that came since the last turn is left for a thread that sleeps.
            if side.has_work() || links.iter().any(|link| link.has_news()) {
                poller.wake();
            }
            return true;
        }
        pace.turns = pace.turns.wrapping_add(1);
        if busy {
            pace.light = true;
            guard.spin().worked();
            if pace.turns.is_multiple_of(TURNS_A_LOOK) {
                // A busy thread does not sleep. So it looks here for peers that are gone and for processes that connect.
                poller.events.wait(Some(Duration::ZERO)).into_iter().for_each(|happening| side.happened(happening));
            }
            links = side.links();
        } else if !(pace.light && looks_for_more(side, guard.spin(), &links, enough)) {
            break;
        }
    }
    links.iter().for_each(|link| link.set_asleep(true));
    poller.set_deep(!pace.light);
    poller.set_asleep(true);
    let news = side.has_work() || enough() || links.iter().any(|link| link.has_news());
    let left = left();
    let patience = match (news || (!pace.light && side.has_leisurely_work()), pace.light) {
        (true, _) => Some(Duration::ZERO),
        (false, true) => Some(left.map_or(MOMENT, |left| left.min(MOMENT))),
        (false, false) => left,
    };
    drop(guard);
    let happened = poller.events.wait(patience);
    pace.light = false;
    if !happened.is_empty() {
        let Some(_guard) = poller.work.lock(until.map(|until| until.saturating_duration_since(now()))) else {
            // Another thread has worked for the whole patience. The events must not be lost, so a later turn looks again.
            poller.events.wake();
            return true;
        };
        happened.into_iter().for_each(|happening| side.happened(happening));
    }
    false
}

/// Spins for a moment, and returns whether work came.
fn looks_for_more(side: &impl Side, spin: &mut Spin, links: &[Arc<Link>], enough: &dyn Fn() -> bool) -> bool {
    // Room for bytes that wait is announced by a wakeup only, so the thread has to sleep for it.
    if links.iter().any(|link| link.outbound().has_work()) {
        return false;
    }
    let news = || links.iter().any(|link| link.has_news()) || side.has_work() || enough();
    while spin.goes_on(now() - side.poller().began, SPIN) {
        for _ in 0..LOOKS_A_YIELD {
            if news() {
                spin.worked();
                return true;
            }
            std::hint::spin_loop();
        }
        spin.yield_core();
    }
    false
}

#[expect(clippy::disallowed_methods, reason = "this is a driver, and the engine's clock is on a floor above")]
fn now() -> Instant {
    Instant::now()
}

/// Longer than any caller waits, and short enough to be added to a time.
const PATIENCE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long work that may wait is delayed. Only the first sleep after work is so short, so an idle side does not poll.
const MOMENT: Duration = Duration::from_millis(1);
/// Busy turns between two looks at the connections.
const TURNS_A_LOOK: u32 = 64;
/// How long a thread that did some work looks for more before it sleeps.
const SPIN: Duration = Duration::from_micros(40);
const LOOKS_A_YIELD: u32 = 32;
