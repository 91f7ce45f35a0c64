//! Messages and descriptors between processes of one user on one machine.
//!
//! A [`PrivateSocket`] listens in a directory that only its user may enter. Both ends check that the other one runs as the same user.
//! Messages keep their bounds (`SOCK_SEQPACKET`). When a process ends, the kernel closes its connections, so the peer learns of the end
//! at once.

use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use super::peer::{Peer, PeerProcess};
use crate::error::{Error, Result};

/// The most descriptors of one message.
pub const FDS_MAX: usize = 8;

const PREFIX: &str = "gradlane-";
const SOCKET: &str = "socket";

/// A listening socket that only processes of the same user reach. Dropping it removes its directory.
#[derive(Debug)]
pub struct PrivateSocket {
    listener: OwnedFd,
    directory: PathBuf,
}

/// A connection to a process of the same user.
#[derive(Debug)]
pub struct Connection(OwnedFd);

/// A message.
#[derive(Debug)]
pub struct Received {
    /// How many bytes of the buffer it filled.
    pub bytes: usize,
    /// The descriptors that came with it, closed on exec.
    pub fds: Vec<OwnedFd>,
}

impl PrivateSocket {
    /// Listens in a new directory below `parent`, such as the directory for temporary files. Removes the directories that killed processes
    /// of this user left there.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses, such as for a path of more than 107 bytes.
    pub fn listen(parent: &Path) -> Result<Self> {
        sweep(parent);
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| io("drawing a random name", &error))?;
        let directory = parent.join(format!("{PREFIX}{:016x}", u64::from_le_bytes(random)));
        let failed = |what: &str, error: &dyn std::fmt::Display| io(&format!("{what} {}", directory.display()), error);
        fs::DirBuilder::new().mode(0o700).create(&directory).map_err(|error| failed("creating", &error))?;
        let listening = || {
            // The socket gets its name only once it accepts, so that `sweep` may remove every socket that refuses.
            let unfinished = directory.join("unfinished");
            let listener = socket()?;
            rustix::net::bind(&listener, &SocketAddrUnix::new(&unfinished)?)?;
            rustix::net::listen(&listener, 128)?;
            rustix::fs::rename(&unfinished, directory.join(SOCKET))?;
            Ok(listener)
        };
        match listening() {
            Ok(listener) => Ok(Self { listener, directory }),
            Err(error) => {
                let error: Errno = error;
                let _ = fs::remove_dir_all(&directory);
                Err(failed("listening in", &error))
            }
        }
    }

    /// Where others connect.
    pub fn path(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    /// Accepts the next connection. `None` if none came for `timeout`. Processes of other users are refused.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses, for example because it has no descriptor left. The connection then waits in the socket's queue.
    pub fn accept(&self, timeout: Duration) -> Result<Option<Connection>> {
        let failed = |error: Errno| io("accepting a connection of this machine", &error);
        let mut timeout = timeout;
        while ready(self.listener.as_fd(), PollFlags::IN, timeout).map_err(failed)? {
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(fd) => match Connection(fd).of_same_user() {
                    Ok(connection) => return Ok(Some(connection)),
                    Err(error) => tracing::debug!(%error, "refused a process of another user"),
                },
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(failed(error)),
            }
            timeout = Duration::ZERO;
        }
        Ok(None)
    }

    /// For waiting on several descriptors at once: readable when [`accept`](Self::accept) has a connection.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for PrivateSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path());
        let _ = fs::remove_dir(&self.directory);
    }
}

impl Connection {
    /// Connects to the [`PrivateSocket`] at `path`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no process listens there or accepts the connection for `timeout`, [`Error::Auth`] if it is another user's.
    pub fn connect(path: &Path, timeout: Duration) -> Result<Self> {
        let connected = || {
            let fd = socket()?;
            // Without a timeout this would block while the listener's queue is full.
            sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(timeout))?;
            rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
            Ok(fd)
        };
        let fd = connected().map_err(|error: Errno| Error::Unavailable {
            what: path.display().to_string(),
            cause: error.to_string(),
        })?;
        Self(fd).of_same_user()
    }

    /// Two ends of one connection within this process.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses.
    pub fn pair() -> Result<(Self, Self)> {
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (one, other) = pair.map_err(|error| io("creating a pair of sockets", &error))?;
        Ok((Self(one), Self(other)))
    }

    /// Sends one message with up to [`FDS_MAX`] descriptors.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the peer is gone, [`Error::Timeout`] if it does not read for `timeout`.
    ///
    /// # Panics
    /// If `bytes` is empty, which would look like the end of the connection, or there are too many descriptors.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], timeout: Duration) -> Result<()> {
        assert!(!bytes.is_empty() && fds.len() <= FDS_MAX, "a message of {} bytes, {} fds", bytes.len(), fds.len());
        let failed = |error: Errno| io("sending to a process of this machine", &error);
        let late = || {
            let what = "a process of this machine to read a message".to_owned();
            Error::Timeout { what, waited: timeout }
        };
        if !ready(self.0.as_fd(), PollFlags::OUT, timeout).map_err(failed)? {
            return Err(late());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "there is space for FDS_MAX");
        }
        match rustix::net::sendmsg(
            &self.0,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        ) {
            Ok(_whole) => Ok(()),
            Err(Errno::AGAIN) => Err(late()),
            Err(error @ (Errno::PIPE | Errno::CONNRESET)) => Err(gone(&error)),
            Err(error) => Err(failed(error)),
        }
    }

    /// The next message; `None` when the peer is gone.
    ///
    /// # Errors
    /// [`Error::Timeout`] if none came for `timeout`, [`Error::Protocol`] if it is longer than `buffer`.
    pub fn recv(&self, buffer: &mut [u8], timeout: Duration) -> Result<Option<Received>> {
        let failed = |error: Errno| io("receiving from a process of this machine", &error);
        if !ready(self.0.as_fd(), PollFlags::IN, timeout).map_err(failed)? {
            return Err(Error::Timeout { what: "a message of a process of this machine".to_owned(), waited: timeout });
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(buffer)];
        let mut receive = || rustix::net::recvmsg(&self.0, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC);
        // A peer that left messages unread resets the connection. The system reports that once, before the peer's own last messages.
        let received = match receive() {
            Err(Errno::CONNRESET) => receive(),
            received => received,
        };
        let message = match received {
            Ok(message) => message,
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        // Taken out even if an error follows, because a descriptor that stays in the buffer would stay open.
        let fds: Vec<OwnedFd> = control.drain().flat_map(descriptors).collect();
        if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(Error::Protocol {
                peer: "a process of this machine".to_owned(),
                field: "message".to_owned(),
                problem: "is longer than any that is expected".to_owned(),
            });
        }
        Ok(if message.bytes > 0 { Some(Received { bytes: message.bytes, fds }) } else { None })
    }

    /// Ends both directions. The peer sees the end of the connection, and so does a thread that waits on this end.
    pub fn close(&self) {
        // Fails only if the peer closed first.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }

    /// The peer's process. `None` if the system does not tell, for example when the peer is in another container.
    pub fn peer_process(&self) -> Option<PeerProcess> {
        let process = Peer::of(self.fd()).ok()?.process?;
        let life = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).ok()?;
        Some(PeerProcess { pid: process.as_raw_pid().cast_unsigned(), life })
    }

    /// For waiting on several descriptors at once: readable when [`recv`](Self::recv) has a message or the end of the connection.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn of_same_user(self) -> Result<Self> {
        let peer = Peer::of(self.fd()).map_err(|error| io("asking who a peer is", &error))?;
        let ours = rustix::process::geteuid();
        if peer.user == ours {
            return Ok(self);
        }
        Err(Error::Auth {
            problem: format!("a process of this machine runs as user {}, this one as {ours}", peer.user),
            hint: "start all processes of a job as one user".to_owned(),
        })
    }
}

/// Waits until one of `fds` is readable or has ended. Returns one flag for each, all false after `timeout`.
///
/// # Errors
/// [`Error::Io`] if the system refuses.
pub fn wait_any(fds: &[BorrowedFd<'_>], timeout: Duration) -> Result<Vec<bool>> {
    let mut waits: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match poll(&mut waits, Some(&timespec(timeout))) {
        Ok(_) | Err(Errno::INTR) => Ok(waits.iter().map(|wait| !wait.revents().is_empty()).collect()),
        Err(error) => Err(io("waiting for processes of this machine", &error)),
    }
}

/// A duration as the system counts it.
pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

fn socket() -> std::result::Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

fn ready(fd: BorrowedFd<'_>, what: PollFlags, timeout: Duration) -> std::result::Result<bool, Errno> {
    match poll(&mut [PollFd::from_borrowed_fd(fd, what)], Some(&timespec(timeout))) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    }
}

fn descriptors(message: RecvAncillaryMessage<'_>) -> Vec<OwnedFd> {
    match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    }
}

/// Removes the sockets of this user whose process was killed. A connection to such a socket is refused.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    let ours = rustix::process::geteuid().as_raw();
    for entry in entries.flatten() {
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let directory = entry.path();
        let owned = named && fs::symlink_metadata(&directory).is_ok_and(|meta| meta.is_dir() && meta.uid() == ours);
        let socket_path = directory.join(SOCKET);
        let Some(address) = owned.then(|| SocketAddrUnix::new(&socket_path).ok()).flatten() else { continue };
        let Ok(probe) = socket() else { return };
        let _ = rustix::io::ioctl_fionbio(&probe, true);
        if rustix::net::connect(&probe, &address) == Err(Errno::CONNREFUSED) {
            let _ = fs::remove_file(&socket_path);
            let _ = fs::remove_dir(&directory);
        }
    }
}

fn gone(error: &Errno) -> Error {
    Error::Unavailable { what: "a process of this machine".to_owned(), cause: error.to_string() }
}

fn io(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Io { what: what.to_owned(), cause: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::Segment;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_segment_crosses_with_a_message() {
        let parent = tempfile::tempdir().unwrap();
        let listening = PrivateSocket::listen(parent.path()).unwrap();
        let client = Connection::connect(&listening.path(), PATIENCE).unwrap();
        let server = listening.accept(PATIENCE).unwrap().unwrap();
        let segment = Segment::create(4096).unwrap();
        server.send(b"4096", &[segment.fd()], PATIENCE).unwrap();
        let mut buffer = [0; 64];
        let Received { bytes, mut fds } = client.recv(&mut buffer, PATIENCE).unwrap().unwrap();
        assert_eq!((&buffer[..bytes], fds.len()), (b"4096" as &[u8], 1));
        Segment::map(fds.remove(0), 4096).unwrap();
    }

    #[test]
    fn the_end_of_a_peer_is_seen_at_both_ends() {
        let (ours, theirs) = Connection::pair().unwrap();
        drop(theirs);
        assert_eq!(wait_any(&[ours.fd()], PATIENCE).unwrap(), [true]);
        assert!(ours.recv(&mut [0; 8], PATIENCE).unwrap().is_none());
        assert!(matches!(ours.send(b"x", &[], PATIENCE), Err(Error::Unavailable { .. })));
    }

    #[test]
    fn the_last_words_of_a_peer_arrive_though_it_left_a_message_unread() {
        let (ours, theirs) = Connection::pair().unwrap();
        ours.send(b"unread", &[], PATIENCE).unwrap();
        theirs.send(b"why", &[], PATIENCE).unwrap();
        theirs.close();
        drop(theirs);
        let mut buffer = [0; 8];
        let received = ours.recv(&mut buffer, PATIENCE).unwrap().expect("it is in the queue");
        assert_eq!(&buffer[..received.bytes], b"why");
        assert!(ours.recv(&mut buffer, PATIENCE).unwrap().is_none());
    }

    #[test]
    fn a_silent_peer_is_not_waited_for_forever() {
        let (ours, _theirs) = Connection::pair().unwrap();
        let brief = Duration::from_millis(1);
        assert!(matches!(ours.recv(&mut [0; 8], brief), Err(Error::Timeout { .. })));
        assert_eq!(wait_any(&[ours.fd()], brief).unwrap(), [false]);
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_whole() {
        let (ours, theirs) = Connection::pair().unwrap();
        theirs.send(&[1; 9], &[], PATIENCE).unwrap();
        assert!(matches!(ours.recv(&mut [0; 8], PATIENCE), Err(Error::Protocol { .. })));
    }

    #[test]
    fn nobody_else_may_enter_the_directory_and_it_goes_with_the_socket() {
        let parent = tempfile::tempdir().unwrap();
        let listening = PrivateSocket::listen(parent.path()).unwrap();
        let directory = listening.path().parent().unwrap().to_owned();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        drop(listening);
        assert!(!directory.exists());
    }

    #[test]
    fn what_a_killed_process_left_is_cleared_away_and_what_lives_stays() {
        let parent = tempfile::tempdir().unwrap();
        let alive = PrivateSocket::listen(parent.path()).unwrap();
        let killed = PrivateSocket::listen(parent.path()).unwrap();
        let left = killed.path();
        // Closes the descriptor and keeps the name, as SIGKILL does.
        let bound = parent.path().join("kept");
        fs::rename(left.parent().unwrap(), &bound).unwrap();
        drop(killed);
        fs::rename(&bound, left.parent().unwrap()).unwrap();
        assert!(left.exists());
        let _new = PrivateSocket::listen(parent.path()).unwrap();
        assert!(!left.parent().unwrap().exists(), "cleared away");
        Connection::connect(&alive.path(), PATIENCE).unwrap();
    }
}
