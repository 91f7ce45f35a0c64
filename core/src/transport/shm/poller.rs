//! What the thread of one side sleeps on: bells, connections, the door, and calls of its own process.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};

use super::link::Link;
use crate::error::{Error, Result};
use crate::types::LinkId;

/// Waits for many things at once, without polling.
pub(super) struct Poller {
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
    /// Somebody is at the door.
    Door,
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
            Ok(Self { epoll, wake, asleep: AtomicBool::new(false), deep: AtomicBool::new(false) })
        };
        made().map_err(|error| io("making an event queue", error))
    }

    /// Also waits for the connections at a door.
    pub(super) fn watch_door(&self, door: BorrowedFd<'_>) -> Result<()> {
        let added = epoll::add(&self.epoll, door, EventData::new_u64(DOOR), EventFlags::IN);
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
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
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
            DOOR => Some(Happening::Door),
            link => Some(Happening::End(LinkId(link))),
        };
        events.iter().filter_map(happening).collect()
    }
}

const BELL: u64 = u64::MAX;
const DOOR: u64 = u64::MAX - 1;

fn io(what: &str, error: rustix::io::Errno) -> Error {
    Error::Io { what: what.to_owned(), cause: error.to_string() }
}

/// Something that one thread does and other threads ask for.
pub(super) trait Side {
    fn poller(&self) -> &Poller;
    /// The links there are.
    fn links(&self) -> Vec<std::sync::Arc<Link>>;
    /// Does what there is to do with these links; whether there was anything.
    fn turn(&self, links: &[std::sync::Arc<Link>]) -> bool;
    /// Whether there is anything to do at once beside what links have to say.
    fn has_work(&self) -> bool;
    /// Whether there is anything to do that can wait a moment.
    fn has_leisurely_work(&self) -> bool;
    /// Something happened outside of the rings.
    fn happened(&self, happening: Happening);
    /// Whether the thread is to end.
    fn is_over(&self) -> bool;
}

/// Runs a side until it is over.
pub(super) fn run(side: &impl Side) {
    let poller = side.poller();
    let (mut turns, mut light) = (0u32, true);
    while !side.is_over() {
        let links = side.links();
        let busy = side.turn(&links);
        turns = turns.wrapping_add(1);
        if busy && !turns.is_multiple_of(TURNS_A_LOOK) {
            light = true;
            continue;
        }
        if busy {
            // Peers that went, and newcomers, while there was always something to do.
            poller.wait(Some(Duration::ZERO)).into_iter().for_each(|happening| side.happened(happening));
            continue;
        }
        links.iter().for_each(|link| link.set_asleep(true));
        poller.set_deep(!light);
        poller.set_asleep(true);
        let news = side.has_work() || links.iter().any(|link| link.has_news());
        let patience = match (news || (!light && side.has_leisurely_work()), light) {
            (true, _) => Some(Duration::ZERO),
            (false, true) => Some(MOMENT),
            (false, false) => None,
        };
        let happened = poller.wait(patience);
        poller.set_asleep(false);
        poller.set_deep(false);
        links.iter().for_each(|link| link.set_asleep(false));
        light = false;
        happened.into_iter().for_each(|happening| side.happened(happening));
    }
}

/// What can wait a moment waits so long at most. Only the first sleep after something was done is so short: nothing polls.
const MOMENT: Duration = Duration::from_millis(1);
/// How many busy turns go by without a look at connections.
const TURNS_A_LOOK: u32 = 64;
