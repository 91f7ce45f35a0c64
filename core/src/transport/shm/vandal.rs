//! A worker that breaks the rules: a link on which tests send anything.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::net::{SendFlags, send};

use super::layout::{LAYOUT, RING_MESSAGES, SEGMENT_BYTES, Words};
use super::link::Parts;
use super::{greeting, link};
use crate::error::Result;
use crate::identity::Credentials;
use crate::mem::Copies;
use crate::wire::reject;

/// A link to a server, whose other side is the test. Dropping it ends it.
pub struct Vandal(Parts);

impl Vandal {
    /// Greets the server at this socket as the rules say.
    ///
    /// # Errors
    /// Why there is no link.
    pub fn greet(socket_path: &str, credentials: &Credentials) -> Result<Self> {
        let parts =
            greeting::connect(Path::new(socket_path), VICTIM, credentials, &Copies::default(), |_identity| Ok(()))?;
        Ok(Self(parts))
    }

    /// Writes the message with this number. Words that are not given are zero.
    ///
    /// # Panics
    /// If there are more than a message has.
    pub fn say(&self, number: u64, words: &[u64]) {
        let mut message = Words::default();
        assert!(words.len() <= message.len(), "{} words", words.len());
        message.iter_mut().zip(words).for_each(|(word, value)| *word = *value);
        self.0.memory.write(number, &message);
        self.0.memory.wake_reader();
    }

    /// Writes this message again and again, as fast as the server reads, as long as `goes_on` says so of how often. There were `number`
    /// messages before.
    ///
    /// # Errors
    /// If the server says that it read messages that were not written.
    pub fn flood(&self, number: u64, words: &[u64], goes_on: impl Fn(u64) -> bool) -> Result<()> {
        let (mut sent, mut read) = (number, 0);
        while goes_on(sent - number) {
            if sent - read < RING_MESSAGES {
                self.say(sent, words);
                sent += 1;
            } else {
                read = self.0.memory.peer_has_read(read, sent, VICTIM)?;
            }
        }
        Ok(())
    }

    /// Writes any word of the own segment.
    pub fn scribble(&self, offset: usize, value: u64) {
        self.0.memory.scribble(offset, value);
        self.0.memory.wake_reader();
    }

    /// Tells the server something by the socket.
    ///
    /// # Errors
    /// If the server is gone.
    pub fn tell(&self, text: &[u8], fds: &[BorrowedFd<'_>], patience: Duration) -> Result<()> {
        self.0.connection.send(text, fds, patience)
    }

    /// Makes the own waker one that blocks the thread that uses it.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn jam_waker(&self) {
        let waker = self.0.waker.fd();
        // Fails once the buffer is full.
        while send(waker, &[0], SendFlags::DONTWAIT).is_ok() {}
        rustix::fs::fcntl_setfl(waker, OFlags::empty()).expect("it is ours");
    }

    /// Makes the own waker block the thread that uses it, and then not any more.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn toggle_waker(&self) {
        for flags in [OFlags::empty(), OFlags::NONBLOCK] {
            rustix::fs::fcntl_setfl(self.0.waker.fd(), flags).expect("it is ours");
        }
    }

    /// Why the server ended the link.
    ///
    /// # Errors
    /// If it did not, within `patience`.
    pub fn end_reason(&self, patience: Duration) -> Result<crate::Error> {
        let mut told = vec![0; 64 << 10];
        let received = self.0.connection.recv(&mut told, patience)?;
        match &told[..received.map_or(0, |received| received.bytes)] {
            [link::REASON, reason @ ..] => reject::from_body(reason, VICTIM),
            other => Err(crate::Error::Protocol {
                peer: VICTIM.to_owned(),
                field: "reason".to_owned(),
                problem: format!("is missing: the link ended with {other:?}"),
            }),
        }
    }
}

/// Says `text` and shows `fds` where a greeting is due.
///
/// # Errors
/// Why the server refused.
pub fn greet_with(socket_path: &str, credentials: &Credentials, text: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    greeting::misbehave(Path::new(socket_path), credentials, text, fds)
}

/// The text of a greeting.
pub fn greeting_text() -> Vec<u8> {
    [greeting::PRESENT].into_iter().chain(LAYOUT.to_le_bytes()).collect()
}

/// A waker as it comes with a greeting.
///
/// # Panics
/// If the system gives none.
pub fn waker() -> OwnedFd {
    let (_wakeup, waker) = super::wakeup::pair().expect("a descriptor");
    waker.fd().try_clone_to_owned().expect("a descriptor")
}

/// Bytes of the segment that comes with a greeting.
pub const GREETED_BYTES: u64 = SEGMENT_BYTES as u64;

const VICTIM: &str = "the victim";
