//! How a side waits: for bells, connections, its socket, and calls of its own process.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};

use super::link::Link;
use super::seats::Seats;
use crate::error::{Error, Result};
use crate::local::progress::Spin;
use crate::types::LinkId;

/// Waits for many things at once, without polling.
pub(super) struct Poller {
    pub(super) seats: Seats,
    began: Instant,
    epoll: OwnedFd,
    /// Rung by other threads of this process.
    wake: OwnedFd,
    asleep: AtomicBool,
    /// Asleep until something happens, not just for a moment.
    deep: AtomicBool,
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Happening {
    /// A process wants to connect.
    Socket,
    /// The peer of a link is gone, or says why it goes.
    End(LinkId),
}

impl Poller {
    pub(super) fn new() -> Result<Self> {
        let made = || {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // Edges are enough: whoever rings wants a look, and nobody needs to read how often it was.
            epoll::add(&epoll, &wake, EventData::new_u64(BELL), EventFlags::IN | EventFlags::ET)?;
            let (asleep, deep) = (AtomicBool::new(false), AtomicBool::new(false));
            Ok(Self { seats: Seats::new(), began: now(), epoll, wake, asleep, deep })
        };
        made().map_err(|error| io("making an event queue", error))
    }

    /// Also waits for connections at the socket of a listener.
    pub(super) fn watch_socket(&self, socket: BorrowedFd<'_>) -> Result<()> {
        let added = epoll::add(&self.epoll, socket, EventData::new_u64(SOCKET), EventFlags::IN);
        added.map_err(|error| io("watching a socket", error))
    }

    /// Also waits for a link.
    pub(super) fn watch(&self, link: &Link) -> Result<()> {
        let (bell, ends) = link.fds();
        let add = |fd, token, flags| epoll::add(&self.epoll, fd, EventData::new_u64(token), flags);
        let added = add(bell, BELL, EventFlags::IN | EventFlags::ET).and_then(|()| {
            ends.into_iter().try_for_each(|end| add(end, link.id.0, EventFlags::IN | EventFlags::RDHUP))
        });
        added.map_err(|error| io("watching a link", error))
    }

    /// No longer waits for a link. It is not enough to close it: a fork's child may keep its descriptors open.
    pub(super) fn forget(&self, link: &Link) {
        let (bell, ends) = link.fds();
        for fd in ends.into_iter().chain([bell]) {
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    /// Has the thread look again, if it sleeps.
    pub(super) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            self.ring();
        }
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Makes a thread that helps ask again whether it has enough.
    pub(super) fn wake_helper(&self) {
        if self.seats.has_helper() {
            self.wake();
        }
    }

    /// Has the thread look again within a moment.
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

    /// To be called before [`wait`](Self::wait), and before the last look at what there may be to do; afterwards with `false`.
    pub(super) fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Sleeps until something happens, or for `timeout`.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Vec<Happening> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut events = Vec::with_capacity(64);
        // Fails only by a signal, after which everything is looked at as well.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
        let happening = |event: &Event| match event.data.u64() {
            BELL => None,
            SOCKET => Some(Happening::Socket),
            link => Some(Happening::End(LinkId(link))),
        };
        events.iter().filter_map(happening).collect()
    }
}

const BELL: u64 = u64::MAX;
const SOCKET: u64 = u64::MAX - 1;

fn io(what: &str, error: rustix::io::Errno) -> Error {
    Error::Io { what: what.to_owned(), cause: error.to_string() }
}

/// What one thread at a time does and other threads ask for.
pub(super) trait Side {
    fn poller(&self) -> &Poller;
    /// The links there are.
    fn links(&self) -> Vec<Arc<Link>>;
    /// Does what there is to do with these links; whether there was anything.
    fn turn(&self, links: &[Arc<Link>]) -> bool;
    /// Whether there is anything to do at once beside what links have to say.
    fn has_work(&self) -> bool;
    /// Whether there is anything to do that can wait a moment.
    fn has_leisurely_work(&self) -> bool;
    /// Something happened outside of the rings.
    fn happened(&self, happening: Happening);
    /// Whether the thread is to end.
    fn is_over(&self) -> bool;
}

/// Runs a side until it is over, stepping aside for whoever [helps](help).
pub(super) fn run(side: &impl Side) {
    let poller = side.poller();
    let mut pace = Pace::default();
    while !side.is_over() {
        if poller.seats.has_helper() {
            // What woke this thread, such as room for what is to be sent, may show nowhere else, and was meant for the helper.
            poller.ring();
            poller.seats.step_aside();
        }
        work(side, &mut pace, &|| poller.seats.has_helper(), None);
    }
}

/// Does the work of a side's thread on the calling thread, which waits for something that this work brings about: a sum then arrives
/// where it is waited for, and no thread has to wake another. Until `enough`, at most until `patience` ends; returns at once if somebody
/// else helps.
pub(super) fn help(side: &impl Side, enough: &dyn Fn() -> bool, patience: Duration) {
    let poller = side.poller();
    let until = Some(now() + patience.min(PATIENCE_MAX));
    let Some(_helper) = poller.seats.help() else { return };
    let mut pace = Pace::default();
    while !work(side, &mut pace, enough, until) {}
}

/// How busy it was: what decides how a thread waits.
struct Pace {
    turns: u32,
    /// Something was done since the last sleep.
    light: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self { turns: 0, light: true }
    }
}

/// Works until there is nothing to do, and then sleeps once. Whether it is over: by `enough`, `until`, or the end of the side.
///
/// Who sleeps does not sit: then another thread may work, and the peers' bell wakes either of them.
fn work(side: &impl Side, pace: &mut Pace, enough: &dyn Fn() -> bool, until: Option<Instant>) -> bool {
    let poller = side.poller();
    let mut seat = poller.seats.sit_down();
    if pace.light {
        seat.worked();
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
            // What came since is for whoever sleeps.
            if side.has_work() || links.iter().any(|link| link.has_news()) {
                poller.wake();
            }
            return true;
        }
        pace.turns = pace.turns.wrapping_add(1);
        if busy {
            pace.light = true;
            seat.worked();
            if pace.turns.is_multiple_of(TURNS_A_LOOK) {
                // Peers that went, and newcomers, while there was always something to do.
                poller.wait(Some(Duration::ZERO)).into_iter().for_each(|happening| side.happened(happening));
            }
            links = side.links();
        } else if !(pace.light && looks_for_more(side, &mut seat, &links, enough)) {
            break;
        }
    }
    links.iter().for_each(|link| link.set_asleep(true));
    poller.set_deep(!pace.light);
    poller.set_asleep(true);
    let news = side.has_work() || enough() || links.iter().any(|link| link.has_news());
    let left = until.map(|until| until.saturating_duration_since(now()));
    let patience = match (news || (!pace.light && side.has_leisurely_work()), pace.light) {
        (true, _) => Some(Duration::ZERO),
        (false, true) => Some(left.map_or(MOMENT, |left| left.min(MOMENT))),
        (false, false) => left,
    };
    drop(seat);
    let happened = poller.wait(patience);
    pace.light = false;
    if !happened.is_empty() {
        let _seat = poller.seats.sit_down();
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

/// Longer than anybody waits, and still a time.
const PATIENCE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// What can wait a moment waits so long at most. Only the first sleep after something was done is so short: nothing polls.
const MOMENT: Duration = Duration::from_millis(1);
/// How many busy turns go by without a look at connections.
const TURNS_A_LOOK: u32 = 64;
/// How long a thread that did something looks for more before it sleeps.
const SPIN: Duration = Duration::from_micros(40);
const LOOKS_A_YIELD: u32 = 32;
