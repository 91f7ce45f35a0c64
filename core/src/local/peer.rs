//! Identifies the process at the other end of a connection of this machine.
//!
//! rustix cannot be asked: the process may be 0, which its type for processes excludes.
#![expect(unsafe_code, reason = "one system call, into a structure of ours")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Uid};

/// The process of a peer, as long as this value lives: its number is not given to another one that could be taken for it.
#[derive(Debug)]
pub struct PeerProcess {
    /// Its number, as this process sees it.
    pub pid: u32,
    /// Readable once it has ended, even if a child of it keeps the connection open.
    pub life: OwnedFd,
}

impl PeerProcess {
    /// Whether it has ended. It may be a zombie then.
    pub fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Waits for its end, at most so long. Returns whether it has ended.
    pub fn ends_within(&self, patience: Duration) -> bool {
        let patience = Timespec::try_from(patience).expect("a few seconds");
        poll(&mut [PollFd::new(&self.life, PollFlags::IN)], Some(&patience)) == Ok(1)
    }
}

/// The process that connected or accepted.
pub(super) struct Peer {
    /// Its effective user.
    pub(super) user: Uid,
    /// Unknown if this process cannot see it, for example because it is in another container.
    pub(super) process: Option<Pid>,
}

impl Peer {
    pub(super) fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let mut answer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
        let mut bytes = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("a few bytes");
        // SAFETY: both places are valid and exclusive for the call, and `bytes` is the length of the first one.
        let code = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut answer).cast(),
                &raw mut bytes,
            )
        };
        if code == 0 { Ok(Self::said(answer)) } else { Err(io::Error::last_os_error()) }
    }

    fn said(answer: libc::ucred) -> Self {
        Self { user: Uid::from_raw(answer.uid), process: Pid::from_raw(answer.pid) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_process_of_another_container_is_a_user_without_a_process() {
        let hidden = Peer::said(libc::ucred { pid: 0, uid: 7, gid: 7 });
        assert_eq!((hidden.user.as_raw(), hidden.process), (7, None));
    }

    #[test]
    fn a_process_that_can_be_seen_is_named() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(ours.as_fd()).unwrap();
        assert_eq!((peer.user, peer.process), (rustix::process::geteuid(), Some(rustix::process::getpid())));
    }
}
