//! How one side of a link wakes the other.
//!
//! A wakeup is a pair of connected sockets. A side keeps the [`Wakeup`], on which its thread sleeps, and gives the [`Waker`] to the peer. The
//! peer wakes the thread by sending a byte.
//!
//! Waking must not block, because the thread that does it serves other links too. Whether a call blocks is a flag of the open file. Every
//! holder of a copy of the descriptor may clear the flag at any time, also between a look at it and the call. An event counter or a pipe has
//! only that flag. A socket also takes `MSG_DONTWAIT` with each call, which no other process can change.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt};

use crate::error::{Error, Result};

/// The end on which a thread of this side sleeps.
#[derive(Debug)]
pub(super) struct Wakeup(OwnedFd);

/// The end with which the peer is woken.
#[derive(Debug)]
pub(super) struct Waker(OwnedFd);

/// Makes both ends.
///
/// # Errors
/// [`Error::Io`] if the system has no descriptors left.
pub(super) fn pair() -> Result<(Wakeup, Waker)> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
    let io = |error: Errno| Error::Io { what: "making a wakeup".to_owned(), cause: error.to_string() };
    let (wakeup, waker) = pair.map_err(io)?;
    Ok((Wakeup(wakeup), Waker(waker)))
}

impl Wakeup {
    /// Readable from the first [`Waker::wake`] until [`clear`](Self::clear).
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Forgets the wakeups so far, so that there is room for later ones.
    pub(super) fn clear(&self) {
        // One read, so that a peer that wakes without a pause does not keep this thread here. It only makes this thread look at its link.
        let _ = recv(&self.0, &mut [0; 512], RecvFlags::DONTWAIT);
    }
}

impl Waker {
    /// The descriptor that a peer showed as its waker. `None` if it is another kind of file, because waking must change nothing else.
    pub(super) fn shown(fd: OwnedFd) -> Option<Self> {
        let is_waker = sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(&fd) == Ok(SocketType::STREAM);
        if is_waker { Some(Self(fd)) } else { None }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Wakes the peer's thread. Never blocks.
    pub(super) fn wake(&self) {
        // Fails when the peer is gone. Fails also when hundreds of earlier wakeups were not cleared, and then those wake the peer.
        let _ = send(&self.0, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;
    use crate::local::socket::wait_any;

    #[test]
    fn a_wakeup_lasts_until_it_is_cleared() {
        let (wakeup, waker) = pair().unwrap();
        let is_woken = || wait_any(&[wakeup.fd()], Duration::ZERO).unwrap() == [true];
        assert!(!is_woken());
        waker.wake();
        waker.wake();
        assert!(is_woken());
        wakeup.clear();
        assert!(!is_woken());
    }

    #[test]
    fn a_full_wakeup_that_blocks_does_not_block_the_waking_thread() {
        let (wakeup, waker) = pair().unwrap();
        while send(&waker.0, &[0], SendFlags::DONTWAIT).is_ok() {}
        fcntl_setfl(&waker.0, OFlags::empty()).unwrap();
        waker.wake();
        wakeup.clear();
        waker.wake();
        assert_eq!(wait_any(&[wakeup.fd()], Duration::ZERO).unwrap(), [true]);
    }

    #[test]
    fn a_descriptor_of_another_kind_is_no_waker() {
        let file = tempfile::tempfile().unwrap();
        let counter = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let datagrams = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        for fd in [file.into(), counter, datagrams.0] {
            assert!(Waker::shown(fd).is_none());
        }
    }
}
