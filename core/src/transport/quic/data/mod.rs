//! The data path of QUIC: one thread, one socket, and quinn-proto driven by a loop of our own, without an async runtime.
//!
//! A batch of datagrams is received into memory, and the chunks of a stream are slices of this memory. quinn-proto, the exchanges and the socket
//! work on one thread, without a lock, a channel or a wake-up between them. The tasks of quinn's async layer cost a fifth to a half more
//! processor time for each byte (`bench/DECISIONS.md`), so only control connections and enrolment use them.
//!
//! [`driver`] is the loop. Below it are the socket ([`wire`]), the memory for datagrams ([`arena`]), the queue of commands ([`commands`]), and
//! the choice of the connection that sends next ([`turns`]). A worker's links are measured while they are driven ([`metered`]). The loop tells the events of connections to a role: that of a [`worker`] with its
//! [`link`]s and [`exchange`]s, or that of a [`server`] with the exchanges that it has [`served`].
//!
//! **Order.** Every stream has a rank of its own: first by the urgency of its exchange, then by age. So urgent bytes overtake others at the
//! next packet. Equally urgent exchanges finish one after the other, instead of all late together. quinn-proto orders only the bytes that it
//! was given, and those have used up credit of the peer. So it is given no more than one window ([`Settings`]), and the other bytes wait here in
//! the same order. Bytes that are more urgent than that window are given at once in addition. Until they have left, their connection goes
//! before the others ([`urgency`]).

use super::admission::AdmissionControl;
use super::calls::Call;
use super::commands::{self, Commands};
use super::settings::Settings;
use super::socket;
use super::tls::Admission;
use crate::error::{Error, Result};
use crate::identity::Credentials;
use crate::local::{OwnThread, ThreadEnd};
use crate::transport::{Inbox, Listener};
use crate::types::{Address, Scheme};
use driver::Net;
use server::{Command, Server};
use wire::Wire;
use worker::Worker;

mod arena;
mod dialing;
mod driver;
mod exchange;
mod limits;
mod link;
mod metered;
mod served;
mod server;
mod turns;
mod urgency;
mod wire;
mod worker;

#[cfg(test)]
mod tests;

/// Starts a driver that connects from any free port with `credentials`.
pub(super) fn connect(credentials: &Credentials, settings: &Settings) -> Result<Driven> {
    connect_on(open(socket::bind_any(settings.socket_buffer_bytes)?)?, credentials, settings)
}

/// A driver under way.
pub(super) struct Driven {
    pub(super) calls: Commands<Call>,
    pub(super) thread: OwnThread,
    pub(super) thread_end: ThreadEnd,
}

fn connect_on(wire: Wire, credentials: &Credentials, settings: &Settings) -> Result<Driven> {
    let (calls, inbox) = commands::channel().map_err(|error| no_queue(&error))?;
    let net = Net::new(wire, settings.endpoint(), None);
    let worker = Worker::new(credentials, settings.clone(), calls.downgrade())?;
    let thread_end = ThreadEnd::default();
    let run = move || driver::run(net, worker, inbox);
    let thread = OwnThread::start_watched("gl-quic", thread_end.clone(), run)?;
    Ok(Driven { calls, thread, thread_end })
}

/// Listens at `address`, `ip:port`; port 0 takes any free one. Peers must show a certificate of the same job.
///
/// # Errors
/// [`Error::InvalidArgument`] if `address` is not one, [`Error::Io`] if it is taken, [`Error::Auth`] if the credentials are unusable.
pub fn bind(address: &str, credentials: &Credentials, settings: &Settings, inbox: Inbox) -> Result<Listener> {
    let wire = open(socket::bind(socket::parse(address)?, settings.socket_buffer_bytes)?)?;
    listen_on(wire, credentials, settings, inbox)
}

fn listen_on(wire: Wire, credentials: &Credentials, settings: &Settings, inbox: Inbox) -> Result<Listener> {
    let address = wire.local_addr().map_err(|error| no_socket(&error))?.to_string();
    let (admission_control, config) = AdmissionControl::new(credentials, settings, Admission::Members)?;
    let (commands, orders) = commands::channel().map_err(|error| no_queue(&error))?;
    let net = Net::new(wire, settings.endpoint(), Some(config));
    let server = Server::new(admission_control, settings.exchanges_in_flight_max, inbox);
    let thread_end = ThreadEnd::default();
    let run = move || driver::run(net, server, orders);
    let thread = OwnThread::start_watched("gl-listen", thread_end.clone(), run)?;
    // Dropping the listener drops its outbox, and with the last sender the thread ends.
    let stop = commands.clone();
    Ok(Listener {
        addresses: vec![Address::new(Scheme::Quic, address)],
        outbox: Box::new(move |outgoing| drop(commands.send(Command::Outgoing(outgoing)))),
        stop: Box::new(move |patience| {
            if thread.is_ours() {
                drop(stop.send(Command::Stop(patience)));
                thread.join(patience);
            }
        }),
        watch: Box::new(move |ended| thread_end.watch(ended)),
    })
}

fn open(socket: std::net::UdpSocket) -> Result<Wire> {
    socket2::SockRef::from(&socket).set_send_buffer_size(SEND_BUFFER_BYTES).map_err(|error| no_socket(&error))?;
    Wire::new(socket).map_err(|error| no_socket(&error))
}

fn no_socket(error: &std::io::Error) -> Error {
    Error::Io { what: "preparing a UDP socket".to_owned(), cause: error.to_string() }
}

fn no_queue(error: &std::io::Error) -> Error {
    Error::Io { what: "opening an event descriptor".to_owned(), cause: error.to_string() }
}

/// Bytes that may wait in the kernel to be sent. More urgent datagrams cannot overtake those that wait there. And the kernel drops datagrams
/// if the queue of a slow interface is full, while a full buffer of the socket makes the driver wait. A few batches keep the wire busy. TCP
/// uses no more ("TCP small queues").
const SEND_BUFFER_BYTES: usize = 128 << 10;
