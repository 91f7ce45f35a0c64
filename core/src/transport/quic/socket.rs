//! UDP sockets and their buffers, and the socket below an endpoint of quinn's async layer.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::{Error, Result};

/// Reads an address to listen at.
pub(super) fn parse(address: &str) -> Result<SocketAddr> {
    address.parse().map_err(|_| Error::InvalidArgument {
        what: format!("{address:?} is no address to listen at"),
        hint: "give an IP address and a port, such as 0.0.0.0:0".to_owned(),
    })
}

/// A socket bound to `address`, with buffers of `buffer_bytes` as far as the system grants them.
pub(super) fn bind(address: SocketAddr, buffer_bytes: usize) -> Result<std::net::UdpSocket> {
    open(address, buffer_bytes)
        .map_err(|error| Error::Io { what: format!("binding UDP address {address}"), cause: error.to_string() })
}

/// A socket for connecting from: any free port, both families if the system has both.
pub(super) fn bind_any(buffer_bytes: usize) -> Result<std::net::UdpSocket> {
    let (v6, v4) = (SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)), SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    bind(v6, buffer_bytes).or_else(|_| bind(v4, buffer_bytes))
}

fn open(address: SocketAddr, buffer_bytes: usize) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    // A burst that does not fit into the receive buffer is lost, and the loss halves the congestion window: with the default of
    // 208 KiB throughput collapses. Only a privileged process may exceed `net.core.rmem_max`.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, buffer_bytes).is_err() {
        socket.set_recv_buffer_size(buffer_bytes)?;
    }
    socket.set_send_buffer_size(buffer_bytes)?;
    Ok(socket.into())
}

/// A socket that sends and receives datagrams one by one (the defaults of the trait), for connections that carry little.
///
/// Segmentation offload sends at most 64 KiB a call, but quinn 0.11 batches ten datagrams whatever their size: with large ones every send
/// would fail with EMSGSIZE, and the connection would make no progress. For received batches quinn would reserve 64 times the largest
/// datagram for each buffer.
pub(super) struct PlainSocket(pub(super) Arc<dyn AsyncUdpSocket>);

impl AsyncUdpSocket for PlainSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.0).create_io_poller()
    }

    fn try_send(&self, datagram: &Transmit<'_>) -> io::Result<()> {
        self.0.try_send(datagram)
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_recv(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.0.may_fragment()
    }
}

impl fmt::Debug for PlainSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
