//! The UDP socket of a driver. It receives and sends batches of datagrams, and keeps only the batch that the kernel had no room for.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use bytes::BytesMut;
use quinn::udp::{self, RecvMeta, UdpSocketState};
use quinn_proto::{EcnCodepoint, Transmit};

use super::arena::{Arena, Cut, SLOT_BYTES};
use crate::transport::quic::settings::DATAGRAM_BYTES_MAX;

/// A socket with segmentation offload in both directions, as far as the system has it.
#[derive(Debug)]
pub(super) struct Wire {
    socket: UdpSocket,
    state: UdpSocketState,
    is_v6: bool,
    arena: Arena,
    slots: Vec<BytesMut>,
    /// The batch that the kernel had no room for. It is sent before anything else.
    unsent: Option<(Transmit, Vec<u8>)>,
    #[cfg(test)]
    pub(super) trial: Trial,
}

/// Datagrams of one sender.
pub(super) struct Batch {
    pub(super) from: SocketAddr,
    pub(super) to: Option<std::net::IpAddr>,
    pub(super) ecn: Option<EcnCodepoint>,
    /// One after the other, each `stride` long but the last.
    pub(super) datagrams: BytesMut,
    pub(super) stride: usize,
}

impl Wire {
    /// # Errors
    /// If the socket cannot be prepared.
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        let is_v6 = socket.local_addr()?.is_ipv6();
        let mut arena = Arena::new();
        let slots = (0..RECEIVE_BATCH).map(|_| arena.slot()).collect();
        Ok(Self {
            socket,
            state,
            is_v6,
            arena,
            slots,
            unsent: None,
            #[cfg(test)]
            trial: Trial::default(),
        })
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Whether the network may cut datagrams into pieces, which makes probing for their size pointless.
    pub(super) fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// `remote` as this socket's family writes it.
    pub(super) fn own_family(&self, remote: SocketAddr) -> SocketAddr {
        match remote {
            SocketAddr::V4(v4) if self.is_v6 => SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into(),
            other => other,
        }
    }

    /// Receives at most [`RECEIVE_BATCH`] messages. Returns whether there were any.
    ///
    /// # Errors
    /// If the socket has failed for good.
    pub(super) fn receive(&mut self, into: &mut Vec<Batch>) -> io::Result<bool> {
        #[cfg(test)]
        if self.trial.has_failed.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(io::Error::other("planted"));
        }
        let mut meta = [RecvMeta::default(); RECEIVE_BATCH];
        let received = {
            let mut slots = self.slots.iter_mut();
            let mut buffers: [IoSliceMut<'_>; RECEIVE_BATCH] =
                std::array::from_fn(|_| IoSliceMut::new(slots.next().expect("as many slots as buffers")));
            self.state.recv((&self.socket).into(), &mut buffers, &mut meta)
        };
        let received = match received {
            Ok(received) => received,
            Err(error) => return if is_passing(&error) { Ok(false) } else { Err(error) },
        };
        for (slot, meta) in self.slots.iter_mut().zip(&meta).take(received) {
            let len = meta.len.min(SLOT_BYTES);
            let (ecn, stride) = (meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)), meta.stride.max(1));
            let batch = |datagrams| Batch { from: meta.addr, to: meta.dst_ip, ecn, datagrams, stride };
            match self.arena.cut(slot, len) {
                Cut::Joint(datagrams) => into.push(batch(datagrams)),
                Cut::Apart => into.extend(slot[..len].chunks(stride).map(|datagram| batch(datagram.into()))),
            }
        }
        #[cfg(test)]
        self.trial.look_at(into);
        Ok(received > 0)
    }

    /// How many datagrams of `bytes` go into one call that sends at most `batch_bytes`, but at least one datagram.
    pub(super) fn segments(&self, bytes: u16, batch_bytes: usize) -> usize {
        // Segmentation offload takes no more than an IP packet holds.
        let batch_bytes = batch_bytes.min(DATAGRAM_BYTES_MAX.into());
        (batch_bytes / usize::from(bytes).max(1)).clamp(1, self.state.max_gso_segments())
    }

    /// Sends a batch, or keeps it if the kernel has no room. Returns whether the socket takes more.
    ///
    /// Other errors, such as an unreachable network or a datagram too large for the path, are treated as packet loss.
    pub(super) fn send(&mut self, transmit: Transmit, contents: &mut Vec<u8>) -> bool {
        if try_send(&self.state, &self.socket, &transmit, contents) {
            return true;
        }
        self.unsent = Some((transmit, std::mem::take(contents)));
        false
    }

    /// Sends a reply to a process that has no connection. If the kernel has no room the reply is dropped, because the process asks again.
    pub(super) fn respond(&self, transmit: &Transmit, contents: &[u8]) {
        if self.unsent.is_none() {
            let _ = try_send(&self.state, &self.socket, transmit, contents);
        }
    }

    /// Sends the batch that was kept. Returns whether the socket takes more.
    pub(super) fn flush(&mut self) -> bool {
        let Some((transmit, contents)) = &self.unsent else { return true };
        if !try_send(&self.state, &self.socket, transmit, contents) {
            return false;
        }
        self.unsent = None;
        true
    }

    /// Whether something waits for the kernel to have room.
    pub(super) fn is_full(&self) -> bool {
        self.unsent.is_some()
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn try_send(state: &UdpSocketState, socket: &UdpSocket, transmit: &Transmit, contents: &[u8]) -> bool {
    let transmit = udp::Transmit {
        destination: transmit.destination,
        ecn: transmit.ecn.and_then(|ecn| udp::EcnCodepoint::from_bits(ecn as u8)),
        contents: &contents[..transmit.size],
        segment_size: transmit.segment_size,
        src_ip: transmit.src_ip,
    };
    match state.send(socket.into(), &transmit) {
        Ok(()) => true,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// Whether the socket is still good after this error. Either it is empty, or the error reports an ICMP message, which anyone can forge.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::WouldBlock
            | Kind::Interrupted
            | Kind::ConnectionReset
            | Kind::ConnectionRefused
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::OutOfMemory
    )
}

/// Messages received by one system call.
const RECEIVE_BATCH: usize = 16;

/// How a test damages the stream of datagrams that arrive, and what it measures.
#[cfg(test)]
#[derive(Debug, Default)]
pub(super) struct Trial {
    /// Of 100 datagrams so many are lost: at random, the same ones at every run.
    pub(super) loss_percent: std::sync::Arc<std::sync::atomic::AtomicU64>,
    /// Whether the socket has failed for good.
    pub(super) has_failed: std::sync::Arc<std::sync::atomic::AtomicBool>,
    /// Bytes of the largest.
    pub(super) largest: std::sync::Arc<std::sync::atomic::AtomicUsize>,
    /// Bytes of the largest batch that one call sent.
    pub(super) largest_batch: std::sync::Arc<std::sync::atomic::AtomicUsize>,
    random: u64,
}

#[cfg(test)]
impl Trial {
    fn look_at(&mut self, batches: &mut Vec<Batch>) {
        for Batch { from, to, ecn, mut datagrams, stride } in std::mem::take(batches) {
            self.largest_batch.fetch_max(datagrams.len(), std::sync::atomic::Ordering::Relaxed);
            while !datagrams.is_empty() {
                let datagram = datagrams.split_to(stride.min(datagrams.len()));
                self.largest.fetch_max(datagram.len(), std::sync::atomic::Ordering::Relaxed);
                if self.random() % 100 >= self.loss_percent.load(std::sync::atomic::Ordering::Relaxed) {
                    batches.push(Batch { from, to, ecn, datagrams: datagram, stride });
                }
            }
        }
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014).
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
