//! What is measured of a link while its thread drives it: the counts of quinn-proto, and what holds the sending.

use std::sync::Arc;
use std::time::Instant;

use quinn_proto::Connection;

use super::driver::TurnEnd;
use super::limits::{Left, Limits};
use crate::metrics::{LinkMeter, LinkReading};

/// The measurements of one link.
#[derive(Debug)]
pub(super) struct Metered {
    pub(super) meter: Arc<LinkMeter>,
    pub(super) limits: Limits,
    flow: Flow,
    /// What was counted last.
    told: LinkReading,
}

/// What a link has not sent, or the server has not acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rest {
    /// Nothing.
    Nothing,
    /// What quinn-proto was given and the server has not acknowledged.
    Unacknowledged,
    /// Bytes that quinn-proto did not take.
    Kept {
        /// Among them are those of exchanges that have no stream, because the server allows no more.
        lacks_streams: bool,
    },
}

impl Metered {
    /// Counts in `meter`. The connection has nothing to send at `now`.
    pub(super) fn new(meter: Arc<LinkMeter>, now: Instant) -> Self {
        Self { meter, limits: Limits::new(now), flow: Flow::default(), told: LinkReading::default() }
    }

    /// The connection had a turn to send, which began at `now`.
    pub(super) fn had_turn(&mut self, connection: &Connection, now: Instant, end: TurnEnd, rest: Rest) {
        let left = match rest {
            Rest::Nothing => Left::Nothing,
            Rest::Unacknowledged => Left::Unacknowledged,
            Rest::Kept { lacks_streams: true } => Left::Flow,
            Rest::Kept { lacks_streams: false } if self.flow.blocks(connection) => Left::Flow,
            Rest::Kept { lacks_streams: false } => Left::Window,
        };
        self.limits.had_turn(now, end, left, self.meter.is_starved());
    }

    /// Counts what has changed since the last time.
    pub(super) fn sample(&mut self, connection: &Connection, now: Instant) {
        let stats = connection.stats();
        let read = LinkReading {
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
            sent_packets: stats.path.sent_packets,
            lost_packets: stats.path.lost_packets,
            congestion_events: stats.path.congestion_events,
            rtt: stats.path.rtt,
            cwnd_bytes: stats.path.cwnd,
            mtu_bytes: stats.path.current_mtu.into(),
            limited_nanoseconds: self.limits.nanoseconds_until(now),
        };
        self.meter.read(&self.told, &read);
        self.told = read;
    }
}

/// Whether the server's flow control holds a connection. quinn-proto says so to the server, once for each limit that it reaches, and counts that;
/// the server answers with a new limit.
#[derive(Default, Debug)]
struct Flow {
    reached: u64,
    raised: u64,
    is_blocked: bool,
}

impl Flow {
    /// Whether it does now. Call it after a turn of the connection.
    fn blocks(&mut self, connection: &Connection) -> bool {
        let stats = connection.stats();
        let reached = stats.frame_tx.data_blocked + stats.frame_tx.stream_data_blocked;
        let raised = stats.frame_rx.max_data + stats.frame_rx.max_stream_data;
        self.note(reached, raised)
    }

    fn note(&mut self, reached: u64, raised: u64) -> bool {
        if reached > self.reached {
            self.is_blocked = true;
        } else if raised > self.raised {
            self.is_blocked = false;
        }
        (self.reached, self.raised) = (reached, raised);
        self.is_blocked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_control_holds_from_a_limit_that_is_reached_to_the_next_one() {
        let mut flow = Flow::default();
        for (reached, raised, is_blocked) in
            [(0, 3, false), (1, 3, true), (1, 3, true), (1, 4, false), (1, 5, false), (3, 6, true)]
        {
            assert_eq!(flow.note(reached, raised), is_blocked, "{reached} reached, {raised} raised");
        }
    }
}
