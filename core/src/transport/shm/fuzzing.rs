//! Entry points of the fuzzer to shared memory: the messages of a ring, and a server whose worker writes anything anywhere.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::layout::{MESSAGE_WORDS, Message, SEGMENT_BYTES, SENT_AT, Words, message_at};
use super::link::{Link, Parts};
use super::listener::serve;
use super::memory::Memory;
use super::server_state::ServerState;
use super::server_tables::Entry;
use super::wakeup;
use crate::error::{Error, Result};
use crate::identity::Credentials;
use crate::local::{Connection, Segment, SharedBacking, Shown};
use crate::mem::{Copies, Pool};
use crate::transport::{Incoming, Outgoing};
use crate::types::{ExchangeId, LinkId, NodeId};
use crate::wire::{Contributors, Request, Sum};

/// A message of a ring has one form.
pub fn shm_message(bytes: &[u8]) {
    let mut words = [0; MESSAGE_WORDS];
    for (word, eight) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded.iter_mut().zip(eight).for_each(|(to, from)| *to = *from);
        *word = u64::from_le_bytes(padded);
    }
    if let Ok(message) = Message::decode(&words, "worker 0") {
        assert_eq!(message.encode(), words);
    }
}

/// What happens on a link.
#[derive(Clone, Debug)]
pub enum Deed {
    /// The worker writes a word anywhere in its segment.
    Scribble {
        /// The word's place, counted in words from the beginning.
        word: u32,
        /// What it becomes.
        value: u64,
    },
    /// The worker writes its next message. Words that are not given are zero.
    Say(Vec<u64>),
    /// The worker sends something by the socket.
    Tell(Vec<u8>),
    /// The worker shows a segment of one page, and says that it has this number and length.
    Show {
        /// Its number.
        segment: u32,
        /// Its length in bytes, as the worker says.
        bytes: u64,
    },
    /// The server does the work of the link.
    Turn,
    /// The server wants something of one of the youngest exchanges, or of one that has ended.
    Command {
        /// Which exchange, counted from the youngest.
        back: u8,
        /// What.
        what: Wanted,
    },
}

/// A command of the server.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// Its body.
    Accept,
    /// To begin an answer, early or not.
    Answer(bool),
    /// To send so many bytes of the sum.
    Block(usize),
    /// To end the answer.
    End,
    /// To reject it.
    Reject,
}

/// A link, its worker's memory, and what the server heard.
struct World {
    state: ServerState,
    link: Arc<Link>,
    /// Only the worker writes it.
    segment: Segment,
    connection: Connection,
    said: u64,
    heard: Arc<Mutex<Vec<Incoming>>>,
    open: BTreeMap<ExchangeId, Open>,
    opened: u64,
    down: bool,
}

/// An exchange that has not ended.
struct Open {
    header: Request,
    came: u64,
    wanted: bool,
}

/// A link on which these things happen. Every exchange ends once, no more of a body comes than was announced and wanted, and the server
/// goes on.
///
/// # Errors
/// If the system has no memory for the segments.
///
/// # Panics
/// If a rule is broken.
pub fn shm_link(credentials: &Credentials, deeds: impl Iterator<Item = Deed>) -> Result<()> {
    let mut world = World::new(credentials)?;
    for deed in deeds {
        world.happens(deed);
        world.check();
    }
    if !world.down {
        world.link.close(None);
        world.state.down(&world.link, &Error::Cancelled);
        world.state.deliver();
        world.check();
    }
    assert!(world.open.is_empty(), "exchanges that outlive their link");
    let tables = world.state.tables();
    assert!(tables.exchanges.is_empty() && tables.links.is_empty() && tables.events.is_empty(), "something is left");
    Ok(())
}

impl World {
    fn new(credentials: &Credentials) -> Result<Self> {
        let heard: Arc<Mutex<Vec<Incoming>>> = Arc::default();
        let inbox = Arc::clone(&heard);
        let inbox = move |incoming| inbox.lock().unwrap_or_else(PoisonError::into_inner).push(incoming);
        let copies = Copies::default();
        let shared = Arc::new(SharedBacking::new());
        let state = ServerState::new(credentials, &shared, &copies, Box::new(inbox))?;
        let [own, segment] =
            [Segment::create_to_show(SEGMENT_BYTES as u64)?, Segment::create_to_show(SEGMENT_BYTES as u64)?];
        let fd = segment.fd().try_clone_to_owned().expect("a descriptor");
        let (wakeup, waker) = wakeup::pair()?;
        let memory = Memory::new(own, Shown::map(fd, SEGMENT_BYTES as u64)?, waker, copies);
        let (ours, connection) = Connection::pair()?;
        let link = LinkId(state.tables().name());
        let (_, waker) = wakeup::pair()?;
        let parts = Parts { connection: ours, wakeup, waker, process: None, memory };
        let link = Arc::new(Link::new(link, "worker 0".into(), parts));
        let entry = Entry::new(Arc::clone(&link), NodeId([1; 32]));
        state.tables().links.insert(link.id, entry);
        Ok(Self { state, link, segment, connection, said: 0, heard, open: BTreeMap::new(), opened: 1, down: false })
    }

    fn happens(&mut self, deed: Deed) {
        match deed {
            Deed::Scribble { word, value } => {
                let at = word as usize % (SEGMENT_BYTES / 8) * 8;
                self.segment.u64(at).store(value, Ordering::SeqCst);
            }
            Deed::Say(words) => {
                let mut message = Words::default();
                message.iter_mut().zip(words).for_each(|(word, value)| *word = value);
                let at = message_at(self.said);
                for (index, word) in message.into_iter().enumerate() {
                    self.segment.u64(at + index * 8).store(word, Ordering::Relaxed);
                }
                self.said += 1;
                self.segment.u64(SENT_AT).store(self.said, Ordering::Release);
            }
            Deed::Tell(text) if !text.is_empty() => drop(self.connection.send(&text, &[], Duration::ZERO)),
            Deed::Tell(_) => {}
            Deed::Show { segment, bytes } => {
                let Ok(shown) = Segment::create_to_show(4096) else { return };
                let (name, bytes) = (segment.to_le_bytes(), bytes.to_le_bytes());
                let text: Vec<u8> = [super::link::SHOWN].into_iter().chain(name).chain(bytes).collect();
                let _ = self.connection.send(&text, &[shown.fd().as_fd()], Duration::ZERO);
            }
            Deed::Turn if !self.down => {
                serve(&self.state, &self.link);
                self.state.deliver();
            }
            Deed::Turn => {}
            Deed::Command { back, what } => {
                let exchange = ExchangeId(self.opened.saturating_sub(u64::from(back)));
                self.command(exchange, what);
            }
        }
    }

    fn command(&mut self, exchange: ExchangeId, what: Wanted) {
        // What has ended is ignored, so any header does for that.
        let asked = self.open.get(&exchange).map(|open| open.header.clone());
        let Some(Request::Contribute(asked)) = asked else { return };
        if matches!(what, Wanted::Accept) {
            self.open.get_mut(&exchange).expect("it was found").wanted = true;
        }
        let body = asked.body().unwrap_or(crate::wire::Body::plain(asked.part_bytes));
        self.state.send(match what {
            Wanted::Accept => Outgoing::Accept { exchange },
            Wanted::Answer(early) => {
                let (target, part_bytes) = (asked.target, asked.part_bytes);
                let contributors = Contributors::Due;
                let header =
                    Sum { target, attempt: 0, part_bytes, body, divisor: 1.0, contributors, early, checksum: false };
                Outgoing::Answer { exchange, header: header.into() }
            }
            Wanted::Block(bytes) => Outgoing::Block { exchange, block: Pool::new().lease(bytes).freeze() },
            Wanted::End => Outgoing::End { exchange, checksum: 7 },
            Wanted::Reject => Outgoing::Reject { exchange, about: asked.target.about(), error: Error::Cancelled },
        });
    }

    fn check(&mut self) {
        for incoming in std::mem::take(&mut *self.heard.lock().unwrap_or_else(PoisonError::into_inner)) {
            match incoming {
                Incoming::Opened { exchange, header, .. } => {
                    assert!(exchange.0 > self.opened && !self.down, "{exchange:?} after {}", self.opened);
                    self.opened = exchange.0;
                    let wanted = header.body_bytes() == 0;
                    self.open.insert(exchange, Open { header, came: 0, wanted });
                }
                Incoming::Body { exchange, chunks } => {
                    let open = self.open.get_mut(&exchange).expect("a body of an exchange that is open");
                    open.came += chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
                    assert!(open.wanted && open.came <= open.header.body_bytes(), "{} bytes", open.came);
                }
                Incoming::Torn { exchange, .. } | Incoming::Answered { exchange } => {
                    assert!(self.open.remove(&exchange).is_some(), "{exchange:?} ends once");
                }
                Incoming::LinkDown { .. } => {
                    assert!(self.open.is_empty() && !self.down, "after its exchanges, and once");
                    self.down = true;
                }
                Incoming::LinkUp { .. } | Incoming::ProcessEnded { .. } => panic!("it was up before, and lives"),
            }
        }
    }
}
