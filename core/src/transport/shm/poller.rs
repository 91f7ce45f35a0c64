//! How one side of shared memory waits for work: it spins for a moment, and then sleeps until there is an [event](Events).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::events::{Events, Happening};
use super::link::Link;
use super::seats::Seats;
use crate::error::Result;
use crate::local::progress::Spin;
use crate::local::sync::{AtomicBool, Ordering, fence};

/// How the threads of a side sleep, and how other threads wake them.
pub(super) struct Poller {
    pub(super) seats: Seats,
    pub(super) events: Events,
    began: Instant,
    asleep: AtomicBool,
    /// The side sleeps without a short timeout, so that even work that may wait has to wake it.
    deep: AtomicBool,
}

impl Poller {
    pub(super) fn new() -> Result<Self> {
        let (asleep, deep) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { seats: Seats::new(), events: Events::new()?, began: now(), asleep, deep })
    }

    /// Wakes the side if it sleeps. Until it has woken, once is enough.
    pub(super) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::SeqCst) {
            self.events.ring();
        }
    }

    /// Makes a thread that helps ask again whether it has enough.
    pub(super) fn wake_helper(&self) {
        if self.seats.has_helper() {
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
    /// Handles an event of a descriptor. A bell that was rung must be hushed.
    fn happened(&self, happening: Happening);
    /// Whether the thread is to end.
    fn is_over(&self) -> bool;
}

/// Runs a side until it is over. Lets a thread that [helps](help) go first.
pub(super) fn run(side: &impl Side) {
    let poller = side.poller();
    let mut pace = Pace::default();
    while !side.is_over() {
        if poller.seats.has_helper() {
            // The event that woke this thread, such as room in a segment, may show nowhere else. So it is passed on to the helper.
            poller.events.ring();
            poller.seats.step_aside();
        }
        work(side, &mut pace, &|| poller.seats.has_helper(), None);
    }
}

/// Does the work of a side on the calling thread, until `enough` returns true or `patience` ends. Returns at once if another thread helps
/// already. A thread that waits for a sum calls this: the sum then arrives on that very thread, and no thread has to wake another.
pub(super) fn help(side: &impl Side, enough: &dyn Fn() -> bool, patience: Duration) {
    let poller = side.poller();
    let until = Some(now() + patience.min(PATIENCE_MAX));
    let Some(_helper) = poller.seats.help() else { return };
    let mut pace = Pace::default();
    while !work(side, &mut pace, enough, until) {}
}

/// How busy a thread was, which decides how it waits.
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
/// A thread gives its seat up before it sleeps, so that another thread may work. A peer's bell wakes one of those that sleep.
fn work(side: &impl Side, pace: &mut Pace, enough: &dyn Fn() -> bool, until: Option<Instant>) -> bool {
    let poller = side.poller();
    let left = || until.map(|until| until.saturating_duration_since(now()));
    let Some(mut seat) = poller.seats.sit_down(left()) else { return true };
    if pace.light {
        seat.spin().worked();
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
            drop(seat);
            // Work that came since the last turn is for the thread that sleeps.
            if side.has_work() || links.iter().any(|link| link.has_news()) {
                poller.wake();
            }
            return true;
        }
        pace.turns = pace.turns.wrapping_add(1);
        if busy {
            pace.light = true;
            seat.spin().worked();
            if pace.turns.is_multiple_of(TURNS_A_LOOK) {
                // A busy thread never sleeps, so it looks here for peers that are gone and for processes that connect.
                poller.events.wait(Some(Duration::ZERO)).into_iter().for_each(|happening| side.happened(happening));
            }
            links = side.links();
        } else if !(pace.light && looks_for_more(side, seat.spin(), &links, enough)) {
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
    drop(seat);
    let happened = poller.events.wait(patience);
    pace.light = false;
    if !happened.is_empty() {
        let Some(_seat) = poller.seats.sit_down(until.map(|until| until.saturating_duration_since(now()))) else {
            // Another thread is in the middle of its work for too long. What happened must not be lost, so a later turn looks again.
            poller.events.ring();
            return true;
        };
        happened.into_iter().for_each(|happening| side.happened(happening));
    }
    false
}

/// Looks for a moment whether work comes; whether it did.
fn looks_for_more(side: &impl Side, spin: &mut Spin, links: &[Arc<Link>], enough: &dyn Fn() -> bool) -> bool {
    // The bell alone announces room for what waits to be sent.
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

/// Longer than any caller waits, and small enough to be added to a time.
const PATIENCE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long work that may wait is left. Only the first sleep after work is so short, so that an idle side does not poll.
const MOMENT: Duration = Duration::from_millis(1);
/// How many busy turns pass between two looks at the connections.
const TURNS_A_LOOK: u32 = 64;
/// How long a thread that did something looks for more before it sleeps.
const SPIN: Duration = Duration::from_micros(40);
const LOOKS_A_YIELD: u32 = 32;
