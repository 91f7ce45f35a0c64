//! The descriptors for which a side of shared memory waits, in one epoll.
//!
//! They are the wakeups of its links, the connections of its links, the processes that had links, the listening socket, and an event that
//! other threads of the process trigger. One event wakes one of the threads that sleep here.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};

use super::link::Link;
use crate::error::{Error, Result};
use crate::local::PeerProcess;
use crate::types::LinkId;

/// An event queue of the system.
pub(super) struct Events {
    epoll: OwnedFd,
    /// Other threads of this process trigger it.
    wake: OwnedFd,
}

/// One event of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Happening {
    /// A process wants to connect.
    Socket,
    /// The peer of a link is gone, or says why it goes.
    End(LinkId),
    /// The peer of a link woke this side.
    Wakeup(LinkId),
    /// The process at the other end of a former link has ended.
    Ended(LinkId),
}

impl Events {
    pub(super) fn new() -> Result<Self> {
        let made = || {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // Edge-triggered, so that no thread has to read the counter: one event stands for any number of calls of `wake`.
            epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN | EventFlags::ET)?;
            Ok(Self { epoll, wake })
        };
        made().map_err(|error| io("making an event queue", error))
    }

    /// Also waits for connections at the socket of a listener.
    pub(super) fn watch_socket(&self, socket: BorrowedFd<'_>) -> Result<()> {
        // Told once for each process that connects. Otherwise a process that cannot be accepted, because no descriptor is left, would wake
        // the thread again and again.
        let added = epoll::add(&self.epoll, socket, EventData::new_u64(SOCKET), EventFlags::IN | EventFlags::ET);
        added.map_err(|error| io("watching a socket", error))
    }

    /// Also waits for a link.
    pub(super) fn watch(&self, link: &Link) -> Result<()> {
        let (wakeup, ends) = link.fds();
        let add = |fd, token, flags| epoll::add(&self.epoll, fd, EventData::new_u64(token), flags);
        // Edge-triggered, because a wakeup whose other end is closed stays readable.
        let added = add(wakeup, WAKEUP | link.id.0, EventFlags::IN | EventFlags::ET).and_then(|()| {
            ends.into_iter().try_for_each(|end| add(end, link.id.0, EventFlags::IN | EventFlags::RDHUP))
        });
        added.map_err(|error| io("watching a link", error))
    }

    /// Stops waiting for a link. Closing the link would not be enough, because a child process may hold its descriptors open.
    pub(super) fn forget(&self, link: &Link) {
        let (wakeup, ends) = link.fds();
        for fd in ends.into_iter().chain([wakeup]) {
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    /// Waits for the end of the process that had the link `id`, which was [forgotten](Self::forget).
    pub(super) fn watch_process(&self, id: LinkId, process: &PeerProcess) {
        // Where there is no room for it, the process is missed when it has been silent for too long.
        let _ = epoll::add(&self.epoll, &process.life, EventData::new_u64(ENDED | id.0), EventFlags::IN);
    }

    /// Stops waiting for the end of a process.
    pub(super) fn forget_process(&self, process: &PeerProcess) {
        let _ = epoll::delete(&self.epoll, &process.life);
    }

    /// Wakes one thread that sleeps here, or the next one that wants to.
    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Sleeps until a descriptor is ready, at most for `timeout`.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Vec<Happening> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut events = Vec::with_capacity(64);
        // It fails only because of a signal. Then the caller checks everything as well.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
        let happening = |event: &Event| match event.data.u64() {
            WAKE => None,
            SOCKET => Some(Happening::Socket),
            token if token & ENDED != 0 => Some(Happening::Ended(LinkId(token & !ENDED))),
            token if token & WAKEUP != 0 => Some(Happening::Wakeup(LinkId(token & !WAKEUP))),
            link => Some(Happening::End(LinkId(link))),
        };
        events.iter().filter_map(happening).collect()
    }
}

const WAKE: u64 = u64::MAX;
const SOCKET: u64 = u64::MAX - 1;
/// Marks the wakeup of a link. Links are counted from 1, so no number of a link has this bit.
const WAKEUP: u64 = 1 << 63;
/// Marks the process at the other end of a link.
const ENDED: u64 = 1 << 62;

fn io(what: &str, error: rustix::io::Errno) -> Error {
    Error::Io { what: what.to_owned(), cause: error.to_string() }
}
