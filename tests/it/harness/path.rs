//! What a bad path does to datagrams.

use std::time::Duration;

use gradlane_core::types::Time;
use gradlane_tests::network::{CLEAR, CUT, Conditions, Loss, OVERTAKEN, Path, Rate};

#[test]
fn a_clear_path_passes_everything_at_once_and_in_order() {
    assert_eq!(arrivals(CLEAR, 100), (0..100).map(|number| (0, vec![number; 100])).collect::<Vec<_>>());
}

#[test]
fn as_many_are_lost_as_the_conditions_say() {
    assert_eq!(arrivals(CUT, 200), []);
    let lost = |loss| 200 - arrivals(Conditions { loss, ..CLEAR }, 200).len();
    assert!((20..=60).contains(&lost(Loss::Each(0.2))));
    // Bad for ten datagrams on average, good for ten: half of them.
    let bursts = Loss::Bursts { begin: 0.1, end: 0.1 };
    assert!((50..=150).contains(&lost(bursts)));
    let left = arrivals(Conditions { loss: bursts, ..CLEAR }, 200);
    let gaps = left.windows(2).filter(|pair| pair[1].1[0] - pair[0].1[0] > 1).count();
    assert!(gaps < 40, "{gaps} gaps: they are lost one after the other");
}

#[test]
fn a_share_is_doubled_damaged_or_overtaken() {
    assert_eq!(arrivals(Conditions { doubled: 1.0, ..CLEAR }, 3).len(), 6);
    let damaged = arrivals(Conditions { damaged: 1.0, ..CLEAR }, 1);
    assert_eq!(damaged[0].1.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1, "a single bit");
    let order = arrivals(Conditions { overtaken: 0.2, ..CLEAR }, 100);
    let late = order.iter().filter(|(at, _)| *at == OVERTAKEN.as_millis()).count();
    assert!((5..=40).contains(&late) && order[99].0 > order[0].0, "{late} late");
}

#[test]
fn jitter_changes_no_order() {
    let slow = Conditions { delay: Duration::from_millis(20), jitter: Duration::from_millis(20), ..CLEAR };
    let arrived = arrivals(slow, 50);
    assert!(arrived.iter().all(|(at, _)| (20..=40).contains(at)));
    assert!(arrived.is_sorted_by_key(|(_, bytes)| bytes[0]));
}

#[test]
fn what_the_rate_does_not_pass_waits_and_what_waits_too_long_is_lost() {
    // 100 bytes are 800 bits: one each millisecond.
    let rate = Some(Rate { bits: 800_000, datagrams: u64::MAX, queue: Duration::from_millis(9) });
    let arrived = arrivals(Conditions { rate, ..CLEAR }, 50);
    assert_eq!(arrived.iter().map(|(at, _)| *at).collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>());
    let rate = Some(Rate { bits: u64::MAX, datagrams: 500, queue: Duration::from_millis(3) });
    let arrived = arrivals(Conditions { rate, ..CLEAR }, 50);
    assert_eq!(arrived.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [2, 4]);
}

#[test]
fn datagrams_that_are_too_long_are_lost() {
    assert_eq!(arrivals(Conditions { bytes_max: 99, ..CLEAR }, 5), []);
    assert_eq!(arrivals(Conditions { bytes_max: 100, ..CLEAR }, 5).len(), 5);
}

/// Offers so many datagrams of 100 bytes at the beginning; returns when each arrived, in milliseconds, and what.
fn arrivals(conditions: Conditions, count: u8) -> Vec<(u128, Vec<u8>)> {
    let mut path = Path::new(1);
    path.set(conditions);
    (0..count).for_each(|number| path.offer(Time::ZERO, &[number; 100], ()));
    let mut arrived = Vec::new();
    while let Some(at) = path.poll_timeout() {
        let (bytes, ()) = path.arrived(at).expect("it is due");
        arrived.push((at.since(Time::ZERO).as_millis(), bytes));
    }
    arrived
}
