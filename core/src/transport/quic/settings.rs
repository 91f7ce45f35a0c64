//! The parameters of QUIC connections, and the reasons for their values.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};
use quinn::{AckFrequencyConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;

use super::delay::DelayConfig;
use crate::config::Config;
pub use crate::config::Congestion;
use crate::wire::header::HEADER_BYTES;

/// The parameters that can be chosen. The defaults suit a private network of a data centre.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Bytes that a peer may have sent on one link and that were not read yet. This bounds the memory of a link. A server changes it for each
    /// link by [`Outgoing::Grant`](crate::transport::Outgoing::Grant).
    pub bytes_in_flight_max: u32,
    /// Exchanges that a peer may have open on one link.
    pub exchanges_in_flight_max: u32,
    /// A link on which nothing arrived for this long is lost.
    pub idle_timeout: Duration,
    /// How often an idle link sends a packet. Less than half of `idle_timeout`.
    pub keep_alive: Duration,
    /// The longest handshake. After this a listener drops it, and a worker begins another one.
    pub handshake_timeout: Duration,
    /// Bytes that the socket should buffer in each direction. The kernel may grant less; see `net.core.rmem_max`.
    pub socket_buffer_bytes: usize,
    /// The largest UDP payload. Found by probing if absent.
    pub datagram_bytes_max: Option<u16>,
    /// The congestion control of senders.
    pub congestion: Congestion,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bytes_in_flight_max: 256 << 20,
            // If workers submit in different orders, all parts of a job may be open at once, each waiting for another worker. A stream that is
            // not in use costs 50 bytes.
            exchanges_in_flight_max: 1 << 14,
            idle_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(2),
            handshake_timeout: Duration::from_secs(3),
            socket_buffer_bytes: 16 << 20,
            datagram_bytes_max: None,
            congestion: Congestion::Cubic,
        }
    }
}

impl Settings {
    /// The settings of a process.
    pub fn from_config(config: &Config) -> Self {
        let idle_timeout = config.bounds().silent;
        Self {
            idle_timeout,
            keep_alive: idle_timeout / 5,
            socket_buffer_bytes: usize::try_from(config.socket_buffer_bytes).unwrap_or(usize::MAX),
            datagram_bytes_max: config.datagram_bytes_max.map(|bytes| u16::try_from(bytes).unwrap_or(u16::MAX)),
            congestion: config.congestion,
            ..Self::default()
        }
    }

    /// For the listener of a server. It grants each member of its job a share of its memory. Other peers get enough for a first exchange.
    #[must_use]
    pub fn for_server(self) -> Self {
        Self { bytes_in_flight_max: UNGRANTED_BYTES, ..self }
    }

    /// For connections that carry frames. The largest frame declares all tensors of a job.
    pub(super) fn for_control(self) -> Self {
        Self { bytes_in_flight_max: 2 * STREAM_WINDOW_BYTES, ..self }
    }

    /// For a connection with a peer at `remote`, which may open `streams` exchanges at once.
    pub(super) fn transport(&self, remote: IpAddr, streams: u32) -> Arc<TransportConfig> {
        let limit = self.datagram_bytes_max.unwrap_or(DATAGRAM_BYTES_MAX);
        let mut mtu_discovery = MtuDiscoveryConfig::default();
        // Found by probing: a datagram that is too large for the path is just a lost probe.
        mtu_discovery.upper_bound(path_limit(remote).min(limit));

        let congestion: Arc<dyn ControllerFactory + Send + Sync> = match self.congestion {
            // On loopback a delay comes from a busy thread, not from a queue of the network.
            Congestion::Delay if !remote.is_loopback() => Arc::new(DelayConfig::new(INITIAL_WINDOW_BYTES / 16)),
            Congestion::Delay | Congestion::Cubic => {
                let mut cubic = CubicConfig::default();
                cubic.initial_window(INITIAL_WINDOW_BYTES);
                Arc::new(cubic)
            }
            Congestion::Bbr => {
                let mut bbr = BbrConfig::default();
                bbr.initial_window(INITIAL_WINDOW_BYTES);
                Arc::new(bbr)
            }
            Congestion::NewReno => {
                let mut newreno = NewRenoConfig::default();
                newreno.initial_window(INITIAL_WINDOW_BYTES);
                Arc::new(newreno)
            }
        };

        let mut ack_frequency = AckFrequencyConfig::default();
        ack_frequency.ack_eliciting_threshold(VarInt::from_u32(ACK_EVERY)).max_ack_delay(Some(ACK_DELAY_MAX));

        let idle_timeout = IdleTimeout::try_from(self.idle_timeout.min(Duration::from_secs(3600)));
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(streams))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .datagram_receive_buffer_size(None)
            .max_idle_timeout(Some(idle_timeout.expect("an hour fits")))
            .keep_alive_interval(Some(self.keep_alive))
            .initial_rtt(INITIAL_RTT)
            .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
            .receive_window(VarInt::from_u32(self.bytes_in_flight_max))
            .send_window(SEND_WINDOW_BYTES)
            // Parts finish one after the other instead of all late together: each stream has a priority of its own, which only "fair"
            // sending looks at before every packet.
            .send_fairness(true)
            .mtu_discovery_config(Some(mtu_discovery))
            .ack_frequency_config(Some(ack_frequency))
            .congestion_controller_factory(congestion);
        if remote.is_loopback() {
            // Loopback takes the largest datagrams, and probing for their size would take a dozen round trips. If somebody made loopback narrower,
            // lost bytes are sent again in datagrams of `min_mtu`, and probing begins there.
            transport.initial_mtu(path_limit(remote).min(limit));
        }
        Arc::new(transport)
    }

    /// For an endpoint. Holds for all its peers.
    pub(super) fn endpoint(&self) -> EndpointConfig {
        let mut endpoint = EndpointConfig::default();
        endpoint.max_udp_payload_size(DATAGRAM_BYTES_MAX).expect("a UDP datagram can be this long");
        endpoint
    }

    /// For an endpoint that may be started again at its address with the same key. It tells the peers of the former endpoint by stateless resets
    /// that their connections are gone. quinn-proto sends such a reset only for a connection id that it recognises as its own, so the ids are
    /// made with a key too. Connection ids may reveal that key. It is derived from `reset_key` in a way that does not reveal `reset_key`.
    pub(super) fn endpoint_with(&self, reset_key: &[u8]) -> EndpointConfig {
        let key = hmac::Key::new(hmac::HMAC_SHA256, reset_key);
        let of_ids = hmac::sign(&key, b"connection ids");
        let of_ids = u64::from_le_bytes(*of_ids.as_ref().first_chunk().expect("SHA-256 has 32 bytes"));
        let mut endpoint = self.endpoint();
        endpoint.reset_key(Arc::new(key));
        endpoint.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(of_ids)));
        endpoint
    }
}

/// The largest UDP payload that is worth a try with a peer at `remote`.
fn path_limit(remote: IpAddr) -> u16 {
    if remote.is_loopback() { LOOPBACK_BYTES } else { JUMBO_BYTES }
}

/// Bytes that a peer may send to a server that has not granted it a share. The server keeps at most 64 links of such peers.
const UNGRANTED_BYTES: u32 = 256 << 10;
/// A UDP datagram over IPv4 holds no more. The smallest datagram (`min_mtu`) stays at QUIC's 1,200: quinn-proto asserts that a handshake
/// packet padded to it is shorter than 2^14.
pub(super) const DATAGRAM_BYTES_MAX: u16 = 65_507;
/// UDP payload of a packet of 65,536 bytes, the most that the interface of loopback takes, over IPv6. Over IPv4 there would be room for 19
/// more.
const LOOPBACK_BYTES: u16 = 65_488;
/// UDP payload of a 9,000-byte Ethernet frame over IPv6. Above it no network between hosts is worth the probes.
const JUMBO_BYTES: u16 = 8_952;
/// A part of the usual 4 MiB with its header is sent without waiting for its receiver. Not larger: quinn-proto closes a connection when a
/// stream has more than 1,024 gaps, and a window of 4 MiB in packets of 1,200 bytes stays below that even at 20 % loss.
const STREAM_WINDOW_BYTES: u32 = (4 << 20) + (64 << 10) + HEADER_BYTES as u32;
/// Bytes that may be written and not acknowledged. A network of 100 Gbit/s with a round trip of 1 ms holds so many, and the receiving socket
/// buffers so many by default.
pub(super) const SEND_WINDOW_BYTES: u64 = 16 << 20;
/// The congestion window of a new connection: one part. With the default of 14,720 bytes a part of 4 MiB needs eight round trips.
const INITIAL_WINDOW_BYTES: u64 = 4 << 20;
/// The round trip that is assumed before one was measured. A first packet without an answer is sent again 0.15, 0.45 and 1.05 s after the
/// first. With the default of 333 ms, which suits the Internet, that is after 1 s and 3 s, so a path that works again in between is not
/// noticed. If a round trip takes longer, a handshake needs some more packets.
const INITIAL_RTT: Duration = Duration::from_millis(50);
/// Packets for each acknowledgement. Fewer acknowledgements cost less on both sides, and losses are still noticed at once.
const ACK_EVERY: u32 = 10;
/// The longest delay of an acknowledgement.
const ACK_DELAY_MAX: Duration = Duration::from_millis(5);
