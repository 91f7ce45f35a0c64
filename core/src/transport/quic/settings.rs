//! The numbers of a QUIC connection, and why they are what they are.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::congestion::CubicConfig;
use quinn::{AckFrequencyConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

use crate::config::Config;
use crate::wire::header::HEADER_BYTES;

/// What can be chosen about connections. The defaults suit a private network of a data centre.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Bytes that a peer may have sent on one link and that were not read yet. Bounds what a link can cost in memory.
    pub bytes_in_flight_max: u32,
    /// Exchanges that a peer may have open on one link.
    pub exchanges_in_flight_max: u32,
    /// A link on which nothing was heard for this long is lost.
    pub idle_timeout: Duration,
    /// How often an idle link says that it lives. Less than half of `idle_timeout`.
    pub keep_alive: Duration,
    /// A handshake takes at most this long; then it is dropped by a listener and begun again by a worker.
    pub handshake_timeout: Duration,
    /// What the socket should buffer in each direction. The kernel may grant less; see `net.core.rmem_max`.
    pub socket_buffer_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bytes_in_flight_max: 256 << 20,
            // Every part of a job that workers submit in different orders may be open at once, each waiting for another worker. What a
            // stream costs that is not in use is 50 bytes.
            exchanges_in_flight_max: 1 << 14,
            idle_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(2),
            handshake_timeout: Duration::from_secs(3),
            socket_buffer_bytes: 16 << 20,
        }
    }
}

impl Settings {
    /// The settings of a process.
    pub fn from_config(config: &Config) -> Self {
        let socket_buffer_bytes = usize::try_from(config.socket_buffer_bytes).unwrap_or(usize::MAX);
        Self { socket_buffer_bytes, ..Self::default() }
    }

    /// For a connection with a peer at `remote`, which may open `streams` exchanges at once.
    pub(super) fn transport(&self, remote: IpAddr, streams: u32) -> Arc<TransportConfig> {
        let mut mtu_discovery = MtuDiscoveryConfig::default();
        // Found by probing, never assumed: a datagram that is too large for the path is just a lost probe.
        mtu_discovery.upper_bound(if remote.is_loopback() { DATAGRAM_BYTES_MAX } else { JUMBO_BYTES });

        let mut congestion = CubicConfig::default();
        congestion.initial_window(INITIAL_WINDOW_BYTES);

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
            .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
            .receive_window(VarInt::from_u32(self.bytes_in_flight_max))
            // What is sent is the caller's memory, not a copy: the PUSH credit bounds it, not this.
            .send_window(u64::from(self.bytes_in_flight_max))
            // Parts finish one after the other instead of all late together.
            .send_fairness(false)
            .mtu_discovery_config(Some(mtu_discovery))
            .ack_frequency_config(Some(ack_frequency))
            .congestion_controller_factory(Arc::new(congestion));
        Arc::new(transport)
    }

    pub(super) fn endpoint(&self) -> EndpointConfig {
        let mut endpoint = EndpointConfig::default();
        endpoint.max_udp_payload_size(DATAGRAM_BYTES_MAX).expect("a UDP datagram can be this long");
        endpoint
    }
}

/// A UDP datagram over IPv4 holds no more. The smallest datagram (`min_mtu`) stays at QUIC's 1,200: quinn-proto asserts that a handshake
/// packet padded to it is shorter than 2^14.
pub(super) const DATAGRAM_BYTES_MAX: u16 = 65_507;
/// UDP payload of a 9,000-byte Ethernet frame over IPv6. Above it no network between hosts is worth the probes.
const JUMBO_BYTES: u16 = 8_952;
/// A part of the usual 4 MiB with its header is sent without waiting for its receiver. Not larger: quinn-proto closes a connection when a
/// stream has more than 1,024 gaps, and a window of 4 MiB in packets of 1,200 bytes stays below that even at 20 % loss.
const STREAM_WINDOW_BYTES: u32 = (4 << 20) + (64 << 10) + HEADER_BYTES as u32;
/// A private network takes one part at once; with the default of 14,720 bytes a 4 MiB part needs eight round trips.
const INITIAL_WINDOW_BYTES: u64 = 4 << 20;
/// An acknowledgement for this many packets: fewer of them cost less on both sides, and losses are still seen at once.
const ACK_EVERY: u32 = 10;
/// But never later than this.
const ACK_DELAY_MAX: Duration = Duration::from_millis(5);
