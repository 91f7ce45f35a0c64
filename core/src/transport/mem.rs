//! Exchanges within one process: servers and workers of a test as threads, without sockets or certificates.
//!
//! A [`MemNetwork`] is one thread that owns all links and exchanges. Transports and listeners only send it messages. So every callback runs on
//! that thread without a lock, and may call back into the network. Bytes are copied once in each direction, between the caller's memory and the
//! server's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Sender, unbounded};

use super::exchange::{Arrival, ServerExchange, WorkerExchange, link_gone, reject_of, unknown_exchange};
use super::{Answer, Inbox, Incoming, LinkLost, Listener, Outgoing, Peer, Pull, Push, Torn, Transport};
use crate::error::{Error, Result};
use crate::local::Progress;
use crate::mem::{Copies, Frozen, Loan, Region, Returned};
use crate::types::{Address, Done, ExchangeId, LinkId, NodeId, Scheme};
use crate::wire::{Reply, Response};

/// One network. Its transports reach only its own listeners. It ends when its last handle, transport and listener are dropped.
#[derive(Clone, Debug)]
pub struct MemNetwork {
    calls: Sender<Call>,
    transports: Arc<AtomicU64>,
    copies: Copies,
}

impl MemNetwork {
    /// An empty network.
    ///
    /// # Errors
    /// [`Error::Io`] if no thread can be started.
    pub fn new() -> Result<Self> {
        let (calls, inbox) = unbounded();
        let copies = Copies::default();
        let mut switch = Switch { copies: copies.clone(), ..Switch::default() };
        std::thread::Builder::new()
            .name("gl-mem".to_owned())
            .spawn(move || inbox.iter().for_each(|call| switch.handle(call)))
            .map_err(|error| Error::Io { what: "starting a thread".to_owned(), cause: error.to_string() })?;
        Ok(Self { calls, transports: Arc::new(AtomicU64::new(0)), copies })
    }

    /// Counts the bytes that the network copies: every body once.
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Listens at `mem://name` under the identity `node`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the name is taken.
    pub fn listen(&self, name: &str, node: NodeId, inbox: Inbox) -> Result<Listener> {
        let (reply, taken) = mpsc::channel();
        self.call(Call::Listen { name: name.to_owned(), node, inbox, reply });
        taken.recv().expect("the switch answers as long as a handle exists")?;
        let (commands, stopping) = (self.clone(), self.clone());
        let (from, closed) = (name.to_owned(), name.to_owned());
        Ok(Listener {
            addresses: vec![Address::new(Scheme::Mem, name)],
            outbox: Box::new(move |outgoing| commands.call(Call::Outgoing { from: from.clone(), outgoing })),
            stop: Box::new(move |patience| {
                let (reply, done) = mpsc::channel();
                stopping.call(Call::Unlisten { name: closed.clone(), reply });
                let _ = done.recv_timeout(patience);
            }),
            // Tests alone use it.
            watch: Box::new(|_| {}),
        })
    }

    /// A worker's side, known to servers as `node`.
    pub fn transport(&self, node: NodeId) -> MemTransport {
        MemTransport { network: self.clone(), id: self.transports.fetch_add(1, Ordering::Relaxed), node }
    }

    fn call(&self, call: Call) {
        // The network's thread runs until all senders are gone, and this is one of them.
        self.calls.send(call).expect("the switch lives as long as a handle exists");
    }
}

/// A worker's side of a [`MemNetwork`].
#[derive(Debug)]
pub struct MemTransport {
    network: MemNetwork,
    id: u64,
    node: NodeId,
}

impl Progress for MemTransport {}

impl Transport for MemTransport {
    fn connect(&self, peer: Peer, _patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        self.network.call(Call::Connect { transport: self.id, node: self.node, peer, lost, done });
    }

    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>) {
        let bytes: usize = push.body.iter().map(Region::len).sum();
        assert_eq!(bytes as u64, push.header.body_bytes(), "a push announces the bytes it carries");
        self.network.call(Call::Push { link, key: (self.id, exchange), push, done });
    }

    fn pull(&self, link: LinkId, exchange: ExchangeId, into: Vec<Region>, done: Done<Answer, Torn>) {
        self.network.call(Call::Pull { link, key: (self.id, exchange), pull: Pull { into, done } });
    }

    fn abandon(&self, link: LinkId, exchange: ExchangeId) {
        self.network.call(Call::Abandon { link, key: (self.id, exchange) });
    }

    fn disconnect(&self, link: LinkId) {
        self.network.call(Call::Disconnect { link });
    }

    fn shutdown(&self, patience: Duration) {
        let (reply, done) = mpsc::channel();
        self.network.call(Call::Shutdown { transport: self.id, reply });
        let _ = done.recv_timeout(patience);
    }
}

impl Drop for MemTransport {
    fn drop(&mut self) {
        let (reply, _) = mpsc::channel();
        self.network.call(Call::Shutdown { transport: self.id, reply });
    }
}

/// An exchange as its worker names it: transport and id.
type Key = (u64, ExchangeId);

#[expect(clippy::large_enum_variant, reason = "most calls are pushes, whose header has the rule of a parameter")]
enum Call {
    Listen { name: String, node: NodeId, inbox: Inbox, reply: mpsc::Sender<Result<()>> },
    Unlisten { name: String, reply: mpsc::Sender<()> },
    Outgoing { from: String, outgoing: Outgoing },
    Connect { transport: u64, node: NodeId, peer: Peer, lost: LinkLost, done: Done<LinkId> },
    Push { link: LinkId, key: Key, push: Push, done: Done<()> },
    Pull { link: LinkId, key: Key, pull: Pull },
    Abandon { link: LinkId, key: Key },
    Disconnect { link: LinkId },
    Shutdown { transport: u64, reply: mpsc::Sender<()> },
}

/// Everything that is connected, owned by the network's thread.
#[derive(Default)]
struct Switch {
    listeners: BTreeMap<String, Door>,
    links: BTreeMap<LinkId, Link>,
    /// The exchanges by the ids that the server knows.
    exchanges: BTreeMap<ExchangeId, Exchange>,
    by_key: BTreeMap<Key, ExchangeId>,
    names_given: u64,
    copies: Copies,
}

struct Door {
    node: NodeId,
    inbox: Inbox,
}

struct Link {
    transport: u64,
    /// The name of the listener.
    listener: String,
    /// The server, for messages.
    server: String,
    lost: LinkLost,
}

struct Exchange {
    key: Key,
    link: LinkId,
    server: String,
    state: WorkerExchange,
    arrival: Arrival,
    /// The body, until it was delivered or is not wanted any more.
    body: Vec<Bytes>,
    returned: mpsc::Receiver<Returned>,
    /// The server's side, as long as the server knows the exchange.
    server_side: Option<ServerExchange>,
    /// The blocks of the sum that the server has sent, until the sum lands.
    sum: Option<Answering>,
}

/// A sum that a server sends. It lands when it is complete.
struct Answering {
    header: Response,
    blocks: Vec<Frozen>,
    /// Present once all blocks were given.
    checksum: Option<u32>,
}

impl Exchange {
    /// The server needs no more of the body.
    fn take_back(&mut self) {
        self.body.clear();
        if self.state.is_lent() {
            self.state.returned(self.returned.recv().expect("the body was dropped above"));
        }
        if let Some(done) = self.state.handed_over() {
            done.ok(());
        }
    }

    /// Lands a complete sum that is awaited.
    fn land(&mut self) {
        let is_complete = |sum: &mut Answering| sum.checksum.is_some();
        let Some(sum) = self.sum.take_if(|sum| self.state.is_pulled() && is_complete(sum)) else { return };
        let (arrival, server) = (&mut self.arrival, self.server.as_str());
        *arrival = Arrival::announced(sum.header);
        let landed = self.state.place(arrival, server).and_then(|_| {
            sum.blocks.iter().try_for_each(|block| arrival.take(block, server))?;
            arrival.finish(sum.checksum, server)
        });
        self.state.end(landed);
    }
}

impl Switch {
    fn handle(&mut self, call: Call) {
        match call {
            Call::Listen { name, node, inbox, reply } => {
                let _ = reply.send(self.listen(name, node, inbox));
            }
            Call::Unlisten { name, reply } => {
                let gone = Error::Unavailable { what: format!("mem://{name}"), cause: "the server stopped".to_owned() };
                self.close_links(|link| link.listener == name, &gone);
                self.listeners.remove(&name);
                let _ = reply.send(());
            }
            Call::Outgoing { from, outgoing } => self.outgoing(&from, outgoing),
            Call::Connect { transport, node, peer, lost, done } => {
                done.report(self.connect(transport, node, peer, lost))
            }
            Call::Push { link, key, push, done } => self.push(link, key, push, done),
            Call::Pull { link, key, pull } => match self.find(link, key) {
                Some(id) => {
                    let exchange = self.exchanges.get_mut(&id).expect("both maps name the same exchanges");
                    exchange.state.pull(pull);
                    self.settle(id);
                }
                None => pull.done.err(unknown_exchange()),
            },
            Call::Abandon { link, key } => {
                if let Some(id) = self.find(link, key) {
                    self.fail(id, &Error::Cancelled);
                    // Its answer may be complete.
                    if let Some(exchange) = self.exchanges.get_mut(&id) {
                        exchange.state.end(Err(Error::Cancelled));
                        self.settle(id);
                    }
                }
            }
            Call::Disconnect { link } => self.close_links_by_id(link, &Error::Cancelled),
            Call::Shutdown { transport, reply } => {
                self.close_links(|link| link.transport == transport, &Error::Cancelled);
                // An exchange that was not pulled by now will not be pulled.
                self.by_key.retain(|key, _| key.0 != transport);
                self.exchanges.retain(|_, exchange| exchange.key.0 != transport);
                let _ = reply.send(());
            }
        }
    }

    /// The exchange that its worker names so, if it was pushed on `link`.
    fn find(&self, link: LinkId, key: Key) -> Option<ExchangeId> {
        let id = self.by_key.get(&key).copied();
        id.filter(|id| self.exchanges.get(id).is_some_and(|exchange| exchange.link == link))
    }

    fn listen(&mut self, name: String, node: NodeId, inbox: Inbox) -> Result<()> {
        if self.listeners.contains_key(&name) {
            let hint = "stop the other listener or choose another name".to_owned();
            return Err(Error::InvalidArgument { what: format!("mem://{name} is taken"), hint });
        }
        self.listeners.insert(name, Door { node, inbox });
        Ok(())
    }

    fn connect(&mut self, transport: u64, node: NodeId, peer: Peer, lost: LinkLost) -> Result<LinkId> {
        let name = peer.at(Scheme::Mem)?.to_owned();
        let Some(listener) = self.listeners.get(&name) else {
            return Err(Error::Unavailable { what: peer.name, cause: format!("nobody listens at mem://{name}") });
        };
        if listener.node != peer.node {
            let problem = format!("{} at mem://{name} is {} instead of {}", peer.name, listener.node, peer.node);
            return Err(Error::Auth { problem, hint: "another process took its address".to_owned() });
        }
        self.names_given += 1;
        let link = LinkId(self.names_given);
        self.links.insert(link, Link { transport, listener: name.clone(), server: peer.name, lost });
        self.tell(&name, Incoming::LinkUp { link, node, address: format!("mem transport {transport}") });
        Ok(link)
    }

    fn push(&mut self, link: LinkId, key: Key, push: Push, done: Done<()>) {
        let Some(Link { listener, server, .. }) = self.links.get(&link) else {
            return push.refuse(done, link_gone());
        };
        let (sender, returned) = mpsc::channel();
        let loan = Loan::new(push.body, move |proof| {
            let _ = sender.send(proof);
        });
        self.names_given += 1;
        let id = ExchangeId(self.names_given);
        let mut exchange = Exchange {
            key,
            link,
            server: server.clone(),
            state: WorkerExchange::new(push.header.clone(), done, push.pull),
            arrival: Arrival::default(),
            body: loan.into_pieces(),
            returned,
            server_side: Some(ServerExchange::new(&push.header)),
            sum: None,
        };
        let listener = listener.clone();
        if push.header.body_bytes() == 0 {
            exchange.take_back();
        }
        self.exchanges.insert(id, exchange);
        self.by_key.insert(key, id);
        self.tell(&listener, Incoming::Opened { link, exchange: id, header: push.header });
    }

    fn outgoing(&mut self, from: &str, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Accept { exchange: id } => {
                let copies = self.copies.clone();
                let Some(exchange) = self.obey(id, |side| Ok(side.accept())) else { return };
                // Copied, so that the worker has its memory back although the server still reads the body.
                let chunks = exchange.body.drain(..).map(|piece| Bytes::from(copies.to_vec(&piece))).collect();
                exchange.take_back();
                self.tell(from, Incoming::Body { exchange: id, chunks });
            }
            Outgoing::Answer { exchange: id, header } => {
                let (reply, is_early) = (Reply::Response(header.clone()), header.is_early());
                let Some(exchange) = self.obey(id, |side| side.answer(&reply)) else { return };
                if !is_early {
                    exchange.take_back();
                }
                exchange.sum = Some(Answering { header, blocks: Vec::new(), checksum: None });
            }
            Outgoing::Block { exchange: id, block } => {
                let exchange = self.obey(id, |side| side.block(block.len()));
                if let Some(sum) = exchange.and_then(|exchange| exchange.sum.as_mut()) {
                    sum.blocks.push(block);
                }
            }
            Outgoing::End { exchange: id, checksum } => {
                let exchange = self.obey(id, ServerExchange::end);
                if let Some(sum) = exchange.and_then(|exchange| exchange.sum.as_mut()) {
                    sum.checksum = Some(checksum);
                    self.answered(from, id);
                }
            }
            Outgoing::Reject { exchange: id, about, error } => {
                let (header, _) = reject_of(about, &error);
                let Some(exchange) = self.obey(id, |side| side.answer(&Reply::Reject(header))) else { return };
                exchange.state.end(Ok(Answer::Reject(error)));
                self.answered(from, id);
            }
            // The body is received only after the server accepts it.
            Outgoing::Grant { .. } => {}
            Outgoing::Disconnect { link, reason } => self.close_links_by_id(link, &reason),
        }
    }

    /// Applies `command` to an exchange that its server knows. A command out of turn ends the exchange.
    fn obey<T>(
        &mut self,
        id: ExchangeId,
        command: impl FnOnce(&mut ServerExchange) -> Result<T>,
    ) -> Option<&mut Exchange> {
        if let Err(error) = command(self.exchanges.get_mut(&id)?.server_side.as_mut()?) {
            self.fail(id, &error);
        }
        self.exchanges.get_mut(&id).filter(|exchange| exchange.server_side.is_some())
    }

    fn answered(&mut self, from: &str, id: ExchangeId) {
        self.tell(from, Incoming::Answered { exchange: id });
        if let Some(exchange) = self.exchanges.get_mut(&id) {
            exchange.server_side = None;
            exchange.take_back();
        }
        self.settle(id);
    }

    /// Ends an exchange without an answer, for both sides. A worker that has not pulled yet is told when it pulls.
    fn fail(&mut self, id: ExchangeId, error: &Error) {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        if exchange.server_side.take().is_none() {
            return;
        }
        exchange.state.end(Err(error.clone()));
        exchange.take_back();
        let link = exchange.link;
        if let Some(listener) = self.links.get(&link).map(|link| link.listener.clone()) {
            self.tell(&listener, Incoming::Torn { exchange: id, reason: error.clone() });
        }
        self.settle(id);
    }

    /// Reports the end of an exchange that is over.
    fn settle(&mut self, id: ExchangeId) {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        exchange.land();
        if exchange.state.is_over() {
            let exchange = self.exchanges.remove(&id).expect("found above");
            self.by_key.remove(&exchange.key);
            exchange.state.report(exchange.arrival.landed());
        }
    }

    fn close_links_by_id(&mut self, id: LinkId, reason: &Error) {
        let exchanges: Vec<ExchangeId> =
            self.exchanges.iter().filter(|(_, exchange)| exchange.link == id).map(|(exchange, _)| *exchange).collect();
        exchanges.into_iter().for_each(|exchange| self.fail(exchange, reason));
        if let Some(link) = self.links.remove(&id) {
            self.tell(&link.listener, Incoming::LinkDown { link: id, reason: reason.clone() });
            (link.lost)(id, reason.clone());
        }
    }

    fn close_links(&mut self, which: impl Fn(&Link) -> bool, reason: &Error) {
        let links: Vec<LinkId> = self.links.iter().filter(|(_, link)| which(link)).map(|(id, _)| *id).collect();
        links.into_iter().for_each(|link| self.close_links_by_id(link, reason));
    }

    fn tell(&self, listener: &str, event: Incoming) {
        if let Some(listener) = self.listeners.get(listener) {
            (listener.inbox)(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::contract::{self, World, connect};

    contract::promises!(MemWorld(MemNetwork::new().unwrap()));

    struct MemWorld(MemNetwork);

    impl World for MemWorld {
        fn listen(&self, inbox: Inbox) -> (Listener, NodeId) {
            (self.0.listen("server", NodeId([7; 32]), inbox).unwrap(), NodeId([7; 32]))
        }

        fn transport(&self) -> Arc<dyn Transport> {
            Arc::new(self.0.transport(NodeId([8; 32])))
        }
    }

    #[test]
    fn a_body_that_is_staged_shows_in_the_count() {
        let network = MemNetwork::new().unwrap();
        let world = MemWorld(network.clone());
        let server = contract::Server::new(&world);
        let worker = server.connect(world.transport());
        for staged in 1..=3 {
            server.still_serves(&worker);
            assert_eq!(network.copies().bytes(), 5000 * staged);
        }
    }

    #[test]
    fn an_address_has_one_listener() {
        let network = MemNetwork::new().unwrap();
        let first = network.listen("a", NodeId([7; 32]), Box::new(|_| ())).unwrap();
        assert!(network.listen("a", NodeId([7; 32]), Box::new(|_| ())).is_err());
        (first.stop)(Duration::from_secs(1));
        assert!(network.listen("a", NodeId([7; 32]), Box::new(|_| ())).is_ok());
    }

    #[test]
    fn nobody_listens_in_another_network() {
        let (here, there) = (MemNetwork::new().unwrap(), MemNetwork::new().unwrap());
        let _server = here.listen("a", NodeId([7; 32]), Box::new(|_| ())).unwrap();
        let peer = Peer {
            addresses: vec![Address::new(Scheme::Mem, "a")],
            node: NodeId([7; 32]),
            name: "server 0".to_owned(),
        };
        let error = connect(&there.transport(NodeId([8; 32])), peer).0.soon().unwrap_err();
        assert!(error.retryable(), "{error}");
    }
}
