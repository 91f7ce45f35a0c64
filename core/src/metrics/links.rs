//! What a worker's transport counts of its links, for the metrics of the worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::cells::{ByLimit, ByServer, NowByServer};
use super::table::WorkerMetrics;
use crate::types::{LinkLimit, ServerId, whole_ns};

/// Counts what goes over the links of a worker to one server, one link after the other. Threads of a transport write it, and readers of the
/// metrics take no lock.
#[derive(Debug)]
pub struct LinkMeter {
    server: usize,
    sent_bytes: ByServer,
    received_bytes: ByServer,
    sent_packets: ByServer,
    lost_packets: ByServer,
    congestion_events: ByServer,
    rtt_nanoseconds: NowByServer,
    cwnd_bytes: NowByServer,
    mtu_bytes: NowByServer,
    limited_nanoseconds: ByLimit,
    starved: Arc<AtomicU64>,
}

/// What one connection over a network has counted since it began, and how it is now.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LinkReading {
    /// Bytes of its datagrams.
    pub sent_bytes: u64,
    /// The same of those that came.
    pub received_bytes: u64,
    /// Packets that were sent.
    pub sent_packets: u64,
    /// Packets among them that are taken for lost.
    pub lost_packets: u64,
    /// How often the congestion window was made smaller.
    pub congestion_events: u64,
    /// The round trip, smoothed.
    pub rtt: Duration,
    /// The congestion window.
    pub cwnd_bytes: u64,
    /// The largest datagram that the path takes.
    pub mtu_bytes: u64,
    /// For how long sending was held, by [`LinkLimit`].
    pub limited_nanoseconds: [u64; LinkLimit::ALL.len()],
}

impl WorkerMetrics {
    /// Counts a link to `server`, which has just come up.
    pub fn link(&self, server: ServerId) -> LinkMeter {
        let server = server.0 as usize;
        self.link_connects.add(server, 1);
        LinkMeter {
            server,
            sent_bytes: self.link_sent_bytes.clone(),
            received_bytes: self.link_received_bytes.clone(),
            sent_packets: self.link_sent_packets.clone(),
            lost_packets: self.link_lost_packets.clone(),
            congestion_events: self.link_congestion_events.clone(),
            rtt_nanoseconds: self.link_rtt_nanoseconds.clone(),
            cwnd_bytes: self.link_cwnd_bytes.clone(),
            mtu_bytes: self.link_mtu_bytes.clone(),
            limited_nanoseconds: self.link_limited_nanoseconds.clone(),
            starved: Arc::clone(&self.starved),
        }
    }
}

impl LinkMeter {
    /// Bytes went over a link of which nothing else is known.
    pub fn moved(&self, sent_bytes: u64, received_bytes: u64) {
        self.sent_bytes.add(self.server, sent_bytes);
        self.received_bytes.add(self.server, received_bytes);
    }

    /// Counts what has changed on a connection since it read `before`.
    pub fn read(&self, before: &LinkReading, now: &LinkReading) {
        for (counter, before, now) in [
            (&self.sent_bytes, before.sent_bytes, now.sent_bytes),
            (&self.received_bytes, before.received_bytes, now.received_bytes),
            (&self.sent_packets, before.sent_packets, now.sent_packets),
            (&self.lost_packets, before.lost_packets, now.lost_packets),
            (&self.congestion_events, before.congestion_events, now.congestion_events),
        ] {
            counter.add(self.server, now.saturating_sub(before));
        }
        self.rtt_nanoseconds.set(self.server, Some(whole_ns(now.rtt)));
        self.cwnd_bytes.set(self.server, Some(now.cwnd_bytes));
        self.mtu_bytes.set(self.server, Some(now.mtu_bytes));
        for by in LinkLimit::ALL {
            let times = [now, before].map(|reading| reading.limited_nanoseconds[by as usize]);
            self.limited_nanoseconds.add(self.server, by, times[0].saturating_sub(times[1]));
        }
    }

    /// The link is over.
    pub fn ended(&self) {
        for gauge in [&self.rtt_nanoseconds, &self.cwnd_bytes, &self.mtu_bytes] {
            gauge.set(self.server, None);
        }
    }

    /// Whether parts of the worker wait because the credit is used up.
    pub fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Value;

    #[test]
    fn connections_of_a_server_are_counted_together_and_how_it_is_only_of_one_that_is_up() {
        let metrics = WorkerMetrics::default();
        let first = metrics.link(ServerId(1));
        let reading = LinkReading {
            sent_bytes: 40,
            lost_packets: 3,
            rtt: Duration::from_micros(210),
            limited_nanoseconds: [0, 0, 7, 0, 0],
            ..LinkReading::default()
        };
        first.read(&LinkReading::default(), &reading);
        first.read(&reading, &LinkReading { sent_bytes: 50, ..reading });
        let of = |name: &str| match metrics.instance(0).value(name) {
            Some(Value::Family(numbers)) => numbers.clone(),
            other => panic!("{other:?}"),
        };
        let server = |number| vec![(vec!["1".to_owned()], number)];
        assert_eq!((of("link_sent_bytes"), of("link_lost_packets")), (server(50), server(3)));
        assert_eq!(of("link_rtt_nanoseconds"), server(210_000));
        assert!(of("link_limited_nanoseconds").contains(&(vec!["1".to_owned(), "cwnd".to_owned()], 7)));
        first.ended();
        metrics.link(ServerId(1)).read(&LinkReading::default(), &reading);
        first.ended();
        assert_eq!((of("link_sent_bytes"), of("link_connects")), (server(90), server(2)));
        assert_eq!(of("link_rtt_nanoseconds"), []);
    }

    #[test]
    fn only_bytes_are_shown_of_a_link_of_which_nothing_else_is_known() {
        let metrics = WorkerMetrics::default();
        metrics.link(ServerId(0)).moved(3, 4);
        let is_shown =
            |name: &&str| metrics.instance(0).value(name).is_some_and(|value| *value != Value::Family(vec![]));
        let links = metrics.snapshot().into_iter().map(|(name, _)| name).filter(|name| name.starts_with("link_"));
        let shown: Vec<&str> = links.filter(is_shown).collect();
        assert_eq!(shown, ["link_connects", "link_sent_bytes", "link_received_bytes"]);
    }
}
