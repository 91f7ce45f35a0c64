use super::*;
use crate::random::Random;

const MICRO: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;
const HOUR: i64 = 3_600 * 1_000_000_000;
/// When the coordinator's clock began.
const BEGAN: u64 = 1_800_000_000 * SECOND;

#[test]
fn before_the_first_exchange_nothing_is_known() {
    assert_eq!(Offsets::default().at(at(5)), None);
    assert_eq!(Offsets::default().began_unix_ns(), 0);
}

#[test]
fn one_exchange_gives_the_middle_and_half_of_its_delay() {
    let mut offsets = Offsets::default();
    // There in 30 µs, 5 µs at the coordinator, whose clock is 1 ms ahead, and back in 10 µs.
    offsets.add(BEGAN, exchange(100, 1_130, 1_135, 145));
    let Offset { ns, error } = offsets.at(at(145)).unwrap();
    assert_eq!(ns, 1_010_000, "((1130 - 100) + (1135 - 145)) / 2");
    let delay = 40_000;
    assert!((delay / 2..delay / 2 + 100).contains(&error.as_nanos()), "{error:?}: half of the delay, and some drift");
    assert_eq!(offsets.began_unix_ns(), BEGAN);
}

#[test]
fn what_is_known_grows_old() {
    let mut offsets = Offsets::default();
    offsets.add(BEGAN, exchange(100, 1_130, 1_135, 145));
    let error = |now| offsets.at(now).unwrap().error.as_nanos() as f64;
    let (first, later) = (error(at(145)), error(Time(145 * MICRO + SECOND)));
    let grown = (later - first) / 1e9;
    assert!((RATE_MAX..RATE_MAX + 2.0 * WANDER).contains(&grown), "{grown} of the time that has passed");
}

#[test]
fn a_slow_exchange_takes_nothing_away_from_a_quick_one() {
    let mut quick = Offsets::default();
    quick.add(BEGAN, exchange(100, 1_110, 1_110, 120));
    let mut both = quick.clone();
    both.add(BEGAN, exchange(200, 81_200, 81_200, 100_200));
    let error = |offsets: &Offsets| offsets.at(at(100_200)).unwrap().error;
    assert!(error(&both) <= error(&quick));
}

#[test]
fn another_coordinators_clock_is_another_clock() {
    let mut offsets = Offsets::default();
    offsets.add(BEGAN, exchange(100, 1_110, 1_110, 120));
    offsets.add(BEGAN + 7, exchange(200, 900_210, 900_210, 220));
    assert_eq!(offsets.at(at(220)).unwrap().ns, 900_000_000);
    assert_eq!(offsets.began_unix_ns(), BEGAN + 7);
}

#[test]
fn times_that_cannot_be_are_left_out() {
    let mut offsets = Offsets::default();
    offsets.add(BEGAN, exchange(100, 1_110, 1_110, 120));
    let known = offsets.clone();
    // The coordinator had it for longer than the answer took.
    offsets.add(BEGAN, exchange(200, 1_200, 1_300, 220));
    // Answers to what was sent before.
    offsets.add(BEGAN, exchange(90, 1_100, 1_100, 120));
    offsets.add(BEGAN, Exchange { sent: at(200), received: Time(u64::MAX), answered: Time(u64::MAX), heard: at(220) });
    assert_eq!(offsets, known);
    for (sent, heard) in [(0, 0), (0, u64::MAX), (u64::MAX, u64::MAX)] {
        let far = |time| Exchange { sent: Time(sent), received: Time(time), answered: Time(time), heard: Time(heard) };
        for time in [0, u64::MAX / 2, u64::MAX] {
            let mut offsets = known.clone();
            offsets.add(BEGAN, far(time));
            offsets.at(Time(heard));
        }
    }
}

#[test]
fn a_steady_drift_is_followed_beyond_the_exchanges() {
    for drift in [-100.0, 0.0, 30.0, 100.0] {
        let mut world = World::new(7, HOUR, drift);
        let offsets = world.exchanges(64, 20 * MICRO..21 * MICRO, 20 * MICRO..21 * MICRO);
        let after = world.now + 10 * SECOND;
        let Offset { ns, error } = offsets.at(Time(after)).unwrap();
        let wrong = (ns - world.ahead(after)).unsigned_abs();
        assert!(u128::from(wrong) <= error.as_nanos());
        // The rate of 15 s is known to 40 µs, and the wander to as much; without a rate it were 12 ms.
        assert!(error < Duration::from_micros(150), "{error:?} at {drift} ppm");
    }
}

#[test]
fn a_clock_whose_rate_jumps_is_found_again() {
    let mut world = World::new(3, -HOUR, 0.0);
    let mut offsets = world.exchanges(64, 20 * MICRO..25 * MICRO, 20 * MICRO..25 * MICRO);
    world.change_rate(400.0);
    for _ in 0..64 {
        offsets.add(BEGAN, world.exchange(20 * MICRO..25 * MICRO, 20 * MICRO..25 * MICRO));
    }
    let Offset { ns, error } = offsets.at(Time(world.now)).unwrap();
    assert!(u128::from((ns - world.ahead(world.now)).unsigned_abs()) <= error.as_nanos());
    assert!(error < Duration::from_micros(50), "{error:?}");
}

/// The bound that holds for whatever the network does: half of the delay of any exchange, and what two clocks may drift since.
#[test]
fn the_error_is_never_larger_than_it_says_nor_than_half_of_a_delay_and_the_drift() {
    for seed in 0..300 {
        let mut random = Random::new(seed + 1);
        let offset = (random.below(2 * HOUR as u64) as i64) - HOUR;
        let drift = random.below(201) as f64 - 100.0;
        let (there, back) = (1 + random.below(5_000_000), 1 + random.below(5_000_000));
        let mut world = World::new(seed, offset, drift);
        let mut offsets = Offsets::default();
        let mut delays: Vec<(u64, f64)> = Vec::new();
        for _ in 0..100 {
            let exchange = world.exchange(1..1 + there, 1..1 + back);
            offsets.add(BEGAN, exchange);
            let delay = exchange.heard.since(exchange.sent).as_nanos() as f64;
            let delay = delay - exchange.answered.since(exchange.received).as_nanos() as f64;
            delays.push((exchange.heard.0, delay));
            let later = world.now + random.below(3 * SECOND);
            for now in [world.now, later] {
                let Offset { ns, error } = offsets.at(Time(now)).unwrap();
                let wrong = (ns - world.ahead(now)).abs() as f64;
                let says = error.as_nanos() as f64;
                assert!(wrong <= says + 2.0, "seed {seed}: wrong by {wrong}, and said {says}");
                for (heard, delay) in delays.iter().rev().take(EXCHANGES_MAX) {
                    let drifts = (RATE_MAX + WANDER) * ((now - heard) as f64 + 0.02 * SECOND as f64);
                    assert!(says <= delay / 2.0 + drifts + 4.0, "seed {seed}: {says} for a delay of {delay}");
                }
            }
        }
    }
}

/// A coordinator whose clock has another origin and another rate, and a network that delays.
struct World {
    random: Random,
    /// By this process's clock.
    now: u64,
    /// At `since`.
    offset: f64,
    since: u64,
    ppm: f64,
}

impl World {
    fn new(seed: u64, offset: i64, ppm: f64) -> Self {
        let now = 2 * HOUR as u64;
        Self { random: Random::new(seed + 1), now, offset: offset as f64, since: now, ppm }
    }

    /// How far the coordinator is ahead at `time` of this process.
    fn ahead(&self, time: u64) -> i64 {
        (self.offset + (time - self.since) as f64 * self.ppm * 1e-6).round() as i64
    }

    fn change_rate(&mut self, ppm: f64) {
        (self.offset, self.since, self.ppm) = (self.ahead(self.now) as f64, self.now, ppm);
    }

    /// A heartbeat a quarter of a second after the one before.
    fn exchange(&mut self, there: std::ops::Range<u64>, back: std::ops::Range<u64>) -> Exchange {
        let sent = self.now + SECOND / 4;
        let received = sent + self.random.between(there.start, there.end - 1);
        let answered = received + self.random.below(50 * MICRO);
        let heard = answered + self.random.between(back.start, back.end - 1);
        self.now = heard;
        let [received, answered] = [received, answered].map(|time| Time(time.saturating_add_signed(self.ahead(time))));
        Exchange { sent: Time(sent), received, answered, heard: Time(heard) }
    }

    fn exchanges(&mut self, count: usize, there: std::ops::Range<u64>, back: std::ops::Range<u64>) -> Offsets {
        let mut offsets = Offsets::default();
        (0..count).for_each(|_| offsets.add(BEGAN, self.exchange(there.clone(), back.clone())));
        offsets
    }
}

fn exchange(sent: u64, received: u64, answered: u64, heard: u64) -> Exchange {
    Exchange { sent: at(sent), received: at(received), answered: at(answered), heard: at(heard) }
}

fn at(micros: u64) -> Time {
    Time(micros * MICRO)
}
