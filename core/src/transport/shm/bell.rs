//! The bells of a link: how one side wakes the other.
//!
//! A bell is a pair of connected sockets. A side keeps the [`Ear`], on which its thread sleeps, and gives the [`Rope`] to the peer, which
//! rings by sending a byte.
//!
//! Ringing must not block, because the thread that rings serves other links too. Whether a call blocks is a flag of the open file, and
//! whoever holds a copy of the descriptor may clear the flag at any time, also between a look at it and the call. An event counter or a pipe
//! has nothing but that flag. A socket takes `MSG_DONTWAIT` with each call, which nobody else can change.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt};

use crate::error::{Error, Result};

/// The end that a side keeps.
#[derive(Debug)]
pub(super) struct Ear(OwnedFd);

/// The end with which the peer is rung.
#[derive(Debug)]
pub(super) struct Rope(OwnedFd);

/// A bell that nobody has rung.
///
/// # Errors
/// [`Error::Io`] if the system has no descriptors left.
pub(super) fn bell() -> Result<(Ear, Rope)> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
    let io = |error: Errno| Error::Io { what: "making a bell".to_owned(), cause: error.to_string() };
    let (ear, rope) = pair.map_err(io)?;
    Ok((Ear(ear), Rope(rope)))
}

impl Ear {
    /// Readable once it was rung.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Forgets how often it was rung, so that there is room for later rings.
    pub(super) fn hush(&self) {
        // A peer that rings without a pause makes this thread look at its link, which it may do anyway, and not stay here.
        let _ = recv(&self.0, &mut [0; 512], RecvFlags::DONTWAIT);
    }
}

impl Rope {
    /// What a peer showed as its bell. `None` if it is none: ringing must change nothing else.
    pub(super) fn shown(fd: OwnedFd) -> Option<Self> {
        let is_bell = sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(&fd) == Ok(SocketType::STREAM);
        if is_bell { Some(Self(fd)) } else { None }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Rings. Never blocks.
    pub(super) fn ring(&self) {
        // Fails when the peer is gone, and when it has not heard hundreds of rings, which wake it as well.
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
    fn a_ring_is_heard_until_it_is_hushed() {
        let (ear, rope) = bell().unwrap();
        let is_rung = || wait_any(&[ear.fd()], Duration::ZERO).unwrap() == [true];
        assert!(!is_rung());
        rope.ring();
        rope.ring();
        assert!(is_rung());
        ear.hush();
        assert!(!is_rung());
    }

    #[test]
    fn a_full_bell_that_blocks_does_not_block_who_rings() {
        let (ear, rope) = bell().unwrap();
        while send(&rope.0, &[0], SendFlags::DONTWAIT).is_ok() {}
        fcntl_setfl(&rope.0, OFlags::empty()).unwrap();
        rope.ring();
        ear.hush();
        rope.ring();
        assert_eq!(wait_any(&[ear.fd()], Duration::ZERO).unwrap(), [true]);
    }

    #[test]
    fn what_is_no_bell_is_not_rung() {
        let file = tempfile::tempfile().unwrap();
        let counter = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let datagrams = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        for fd in [file.into(), counter, datagrams.0] {
            assert!(Rope::shown(fd).is_none());
        }
    }
}
