//! Congestion control by delay: the bytes on their way fill the path and a short queue, not the whole queue of the network.
//!
//! A sender that reacts only to loss fills the queue of the narrowest link until it overflows. A queue of 2 MB before a link of 1 Gbit/s takes
//! 16 ms, and urgent bytes wait behind it. If several workers send to one server, the bytes that overflow are sent again. [`Window`] keeps the
//! standing queue near [`QUEUE_TARGET`] instead (after Swift; Kumar et al., SIGCOMM 2020). The shortest round trip of a round measures the path
//! and the queue that never drained in it. The shortest is used, because a busy host makes some round trips longer and none shorter.
//!
//! Loss counts too: the window is never larger than CUBIC's. So it is as fair to TCP as CUBIC is. Beside senders that fill queues it gets less
//! than its share.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::RttEstimator;

/// Makes a controller for each path.
#[derive(Clone, Debug)]
pub(super) struct DelayConfig {
    loss: Arc<CubicConfig>,
}

impl DelayConfig {
    /// With windows that begin with `bytes`.
    pub(super) fn new(bytes: u64) -> Self {
        let mut loss = CubicConfig::default();
        loss.initial_window(bytes);
        Self { loss: Arc::new(loss) }
    }
}

impl ControllerFactory for DelayConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let loss = Arc::clone(&self.loss).build(now, current_mtu);
        let window = Window::new(loss.window(), u64::from(current_mtu), now);
        Box::new(Delay { loss, window })
    }
}

/// The smaller of two windows.
struct Delay {
    loss: Box<dyn Controller>,
    window: Window,
}

impl Controller for Delay {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.loss.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.loss.on_ack(now, sent, bytes, app_limited, rtt);
        self.window.heard(now.saturating_duration_since(sent), bytes, !app_limited);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.loss.on_end_acks(now, in_flight, app_limited, largest);
        self.window.turn(now, self.loss.window());
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent_congestion: bool, lost_bytes: u64) {
        self.loss.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.loss.on_mtu_update(new_mtu);
        self.window.datagram_bytes = u64::from(new_mtu);
    }

    fn window(&self) -> u64 {
        self.loss.window().min(self.window.bytes())
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.loss.metrics();
        metrics.congestion_window = self.window();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { loss: self.loss.clone_box(), window: self.window.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.loss.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// The bytes that may be on their way, by the measured round trips. A machine: times are arguments.
///
/// `Starting ──the queue stands──► Steady`; a start doubles the window each round.
#[derive(Clone, Debug)]
struct Window {
    bytes: u64,
    datagram_bytes: u64,
    is_starting: bool,
    /// The shortest round trip so far, which measures the path without a queue.
    path: Option<Duration>,
    /// The shortest of this round.
    shortest: Option<Duration>,
    /// Bytes that arrived in this round while there was more to send.
    arrived: u64,
    /// When the round ends.
    until: Instant,
}

impl Window {
    fn new(bytes: u64, datagram_bytes: u64, now: Instant) -> Self {
        Self { bytes, datagram_bytes, is_starting: true, path: None, shortest: None, arrived: 0, until: now }
    }

    fn bytes(&self) -> u64 {
        self.bytes.max(DATAGRAMS_MIN * self.datagram_bytes)
    }

    /// A datagram has arrived after `trip`; `limited` if there was more to send than the window let through.
    fn heard(&mut self, trip: Duration, bytes: u64, limited: bool) {
        self.shortest = Some(self.shortest.map_or(trip, |shortest| shortest.min(trip)));
        if limited {
            self.arrived += bytes;
        }
    }

    /// All datagrams of one acknowledgement were given to `arrived`. No window needs to be larger than `bytes_max`.
    fn turn(&mut self, now: Instant, bytes_max: u64) {
        let Some(shortest) = self.shortest.filter(|_| now >= self.until) else { return };
        let path = self.path.map_or(shortest, |path| path.min(shortest));
        self.path = Some(path);
        self.adjust(shortest - path);
        self.bytes = self.bytes().min(bytes_max);
        self.until = now + shortest.max(ROUND_MIN);
        (self.shortest, self.arrived) = (None, 0);
    }

    fn adjust(&mut self, queue: Duration) {
        if queue > QUEUE_TARGET {
            self.is_starting = false;
            let excess = (queue - QUEUE_TARGET).as_secs_f64() / queue.as_secs_f64();
            let kept = (1.0 - DECREASE * excess).max(DECREASE_MAX);
            self.bytes = (self.bytes() as f64 * kept) as u64;
        } else if self.arrived > 0 {
            // A larger window helps only a sender that the window limits.
            self.bytes += match (self.is_starting, queue > QUEUE_TARGET / 2) {
                (true, false) => self.arrived.min(self.bytes),
                (false, false) => self.bytes / 8,
                (_, true) => self.datagram_bytes,
            };
        }
    }
}

/// The time that bytes may wait in the network's queue. An urgent part takes a few milliseconds, so this is little. At 1 Gbit/s it is 188 KB,
/// so a short pause of a busy host does not empty the link.
const QUEUE_TARGET: Duration = Duration::from_micros(1500);
/// Several acknowledgements of a slow link fall into each round.
const ROUND_MIN: Duration = Duration::from_millis(4);
/// With fewer on their way, acknowledgements, which come for ten datagrams at once, would be waited for.
const DATAGRAMS_MIN: u64 = 32;
/// How much of the excess is taken back at once, and how much of the window is kept at least.
const DECREASE: f64 = 0.8;
const DECREASE_MAX: f64 = 0.5;

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u64 = 1472;
    const RATE: f64 = 125e6;
    const PATH: Duration = Duration::from_micros(300);

    /// Flows through one link: each has its window on the way, and what does not fit the path stands in the queue.
    struct Link {
        now: Instant,
        flows: Vec<Window>,
    }

    impl Link {
        #[expect(clippy::disallowed_methods, reason = "an instant is made in no other way; which one does not matter")]
        fn with(windows: &[u64]) -> Self {
            let now = Instant::now();
            let flow = |bytes: &u64| {
                let mut flow = Window::new(*bytes, MTU, now);
                flow.path = Some(PATH);
                flow
            };
            Self { now, flows: windows.iter().map(flow).collect() }
        }

        fn queue(&self) -> Duration {
            let bytes: u64 = self.flows.iter().map(Window::bytes).sum();
            Duration::from_secs_f64(bytes as f64 / RATE).saturating_sub(PATH)
        }

        fn run(&mut self, rounds: usize) {
            for _ in 0..rounds {
                let trip = PATH + self.queue();
                self.now += trip.max(ROUND_MIN);
                for flow in &mut self.flows {
                    flow.heard(trip, flow.bytes(), true);
                    flow.turn(self.now, u64::MAX);
                }
            }
        }
    }

    #[test]
    fn a_lone_sender_fills_the_link_and_no_more_than_the_queue_it_may() {
        for begins in [64 << 10, 256 << 10, 4 << 20] {
            let mut link = Link::with(&[begins]);
            link.run(100);
            let queue = link.queue();
            assert!(queue > QUEUE_TARGET / 4 && queue < QUEUE_TARGET * 3 / 2, "from {begins} bytes: {queue:?}");
        }
    }

    #[test]
    fn a_queue_of_many_senders_drains_within_a_few_rounds() {
        let mut link = Link::with(&[1 << 20; 4]);
        assert!(link.queue() > Duration::from_millis(30));
        link.run(12);
        assert!(link.queue() < QUEUE_TARGET * 3 / 2, "{:?}", link.queue());
    }

    #[test]
    fn a_window_never_waits_for_acknowledgements_that_come_in_tens() {
        let mut link = Link::with(&[1 << 20; 64]);
        link.run(100);
        assert!(link.flows.iter().all(|flow| flow.bytes() == DATAGRAMS_MIN * MTU));
    }

    #[test]
    fn who_has_nothing_more_to_send_keeps_its_window() {
        let mut link = Link::with(&[100_000]);
        for _ in 0..50 {
            link.now += ROUND_MIN;
            let now = link.now;
            link.flows[0].heard(PATH, 5000, false);
            link.flows[0].turn(now, u64::MAX);
        }
        assert_eq!(link.flows[0].bytes(), 100_000);
    }

    #[test]
    fn one_short_round_trip_says_that_the_others_were_not_the_queue() {
        let mut link = Link::with(&[100_000]);
        link.now += ROUND_MIN;
        let now = link.now;
        link.flows[0].heard(Duration::from_millis(40), 5000, false);
        link.flows[0].heard(PATH, 5000, false);
        link.flows[0].turn(now, u64::MAX);
        assert_eq!(link.flows[0].bytes(), 100_000);
    }

    #[test]
    fn loss_bounds_the_window() {
        let mut link = Link::with(&[1 << 20]);
        let now = link.now + ROUND_MIN;
        link.flows[0].heard(PATH, 1 << 20, true);
        link.flows[0].turn(now, 200_000);
        assert_eq!(link.flows[0].bytes(), 200_000);
    }
}
