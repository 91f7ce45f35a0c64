//! The data path of QUIC: one thread, one socket, and quinn-proto driven by a loop of our own, without an async runtime.
//!
//! A batch of datagrams is received into memory of which the chunks of a stream are slices. It is handed to quinn-proto, to the exchanges
//! and to the socket again without a lock, a channel or a wake-up between them. The tasks of quinn's async layer cost a fifth to a
//! half more processor time a byte (`bench/DECISIONS.md`), so only control connections and enrolment use them.
//!
//! [`driver`] is the loop, with the socket ([`wire`]), its memory ([`arena`]), the queue of commands ([`commands`]) and whose turn it is to send ([`turns`]) below it. What happens on connections it tells a role: the [`worker`]'s with its [`link`]s and [`exchange`]s, or the [`server`]'s with those
//! it has [`served`].
//!
//! **Which goes first.** Every stream has a rank of its own: first by the urgency of its exchange, then by age. So what is urgent overtakes
//! at the next packet, and of what is equally urgent one exchange is finished after the other, instead of all late together. quinn-proto
//! orders only what it was given, and what it was given has used up the peer's credit: so it gets no more than a window's worth
//! ([`Settings`]), and the rest waits here, in the same order. What is more urgent than that window's worth is given at once beside it, and as
//! long as it has not left, its connection goes before the others ([`urgency`]).

use super::admission::AdmissionControl;
use super::calls::Call;
use super::commands::{self, Commands};
use super::settings::Settings;
use super::socket;
use super::tls::Admission;
use crate::error::{Error, Result};
use crate::local::{Obituary, OwnThread};
use crate::transport::identity::Credentials;
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
mod link;
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
    pub(super) obituary: Obituary,
}

fn connect_on(wire: Wire, credentials: &Credentials, settings: &Settings) -> Result<Driven> {
    let (calls, inbox) = commands::channel().map_err(|error| no_queue(&error))?;
    let net = Net::new(wire, settings.endpoint(), None);
    let worker = Worker::new(credentials, settings.clone(), calls.downgrade())?;
    let obituary = Obituary::default();
    let run = move || driver::run(net, worker, inbox);
    let thread = OwnThread::start_watched("gradlane-quic", obituary.clone(), run)?;
    Ok(Driven { calls, thread, obituary })
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
    let obituary = Obituary::default();
    let run = move || driver::run(net, server, orders);
    let thread = OwnThread::start_watched("gradlane-listen", obituary.clone(), run)?;
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
        watch: Box::new(move |ended| obituary.tell(ended)),
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

/// What may wait in the kernel for its turn on the wire. What waits there cannot be overtaken by what is more urgent, and a long queue of a
/// slow interface drops datagrams before they have left; short of it, the driver is told to wait. A few batches keep the wire busy: TCP
/// allows itself no more ("TCP small queues").
const SEND_BUFFER_BYTES: usize = 128 << 10;
