//! Encodes announcements and orders as words of shared memory. The decoders check every word, because a peer may be compromised.

use std::time::Duration;

use super::layout::{ANNOUNCEMENT_WORDS, ORDER_WORDS};
use crate::collective::agreement::Announcement;
use crate::collective::order::{Claim, Decision, Failure, Slot};
use crate::types::{
    DType, Declined, DeviceKind, Goal, Op, PartId, Priority, Ready, Round, TensorKey, Time, Wait, Waited, whole_ns,
};
use crate::wire::limits::ROUND_MAX;

impl Announcement {
    pub(super) fn words(self) -> [u64; ANNOUNCEMENT_WORDS] {
        match self {
            Self::Ready(slot, claim) => {
                let [key, index, round] = slot_words(slot);
                let priority = u64::from(claim.priority.0.cast_unsigned());
                let Waited { device, queue, credit } = claim.ready.waited;
                let waited = u32::from_le_bytes([device.code(), queue.code(), credit.code(), 0]);
                [
                    1 | kind_words(&claim),
                    key,
                    index | u64::from(short(claim.ready.since)) << 32,
                    round,
                    claim.bytes,
                    claim.weight.to_bits(),
                    priority | u64::from(waited) << 32,
                    claim.members,
                ]
            }
            Self::Withdrawn(Declined { slot, members }) => {
                let [key, index, round] = slot_words(slot);
                [2, key, index, round, 0, 0, 0, members]
            }
            Self::Overdue(slot, waited) => {
                let [key, index, round] = slot_words(slot);
                [3, key, index, round, whole_ns(waited), 0, 0, 0]
            }
        }
    }

    /// Decodes an announcement that is read `now`; `None` if it is invalid.
    pub(super) fn of(now: Time, words: [u64; ANNOUNCEMENT_WORDS]) -> Option<Self> {
        let [kind, key, index, round, bytes, weight, priority, members] = words;
        if kind & 0xff == 1 {
            let slot = slot_of(key, u64::from(low(index)), round)?;
            let [device, queue, credit, 0] = high(priority).to_le_bytes() else { return None };
            let [device, queue, credit] = [device, queue, credit].map(Wait::from_code);
            let ready = Ready { since: whole(now, high(index)), waited: Waited { device, queue, credit } };
            let claim = claim_of(kind, bytes, f64::from_bits(weight), low(priority), members)?;
            return Some(Self::Ready(slot, Claim { ready, ..claim }));
        }
        let slot = slot_of(key, index, round)?;
        Some(match kind & 0xff {
            2 => Self::Withdrawn(Declined { slot, members }),
            3 => Self::Overdue(slot, Duration::from_nanos(bytes)),
            _ => return None,
        })
    }
}

/// A time in the half of a word, which counts microseconds and begins again after 71 minutes.
const fn short(time: Time) -> u32 {
    low(time.0 / 1_000)
}

/// The time of a [`short`] one, which is at most 36 minutes away from `now`.
fn whole(now: Time, time: u32) -> Time {
    let later = time.wrapping_sub(short(now)).cast_signed();
    let micros = (now.0 / 1_000).saturating_add_signed(later.into());
    Time(micros.saturating_mul(1_000))
}

const fn low(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

const fn high(word: u64) -> u32 {
    low(word >> 32)
}

/// Encodes a decision, with the weights of the ranks last.
pub(super) fn order_words(decision: &Decision, ranks: usize) -> Vec<u64> {
    let mut words = vec![0; ORDER_WORDS];
    match decision {
        Decision::Run { slot, claim, failed, weights } => {
            words[..5].copy_from_slice(&header(1, claim, *slot));
            words[5] = failed.map_or(0, |rank| u64::from(rank) + 1);
            words[6] = claim.members;
            words.extend(weights.iter().map(|weight| weight.to_bits()));
        }
        Decision::Fail { slot, failure } => {
            let [key, index, round] = slot_words(*slot);
            words[1..4].copy_from_slice(&[key, index, round]);
            match *failure {
                Failure::Mismatch { first, ours, second, theirs } => {
                    words[..5].copy_from_slice(&header(2, &ours, *slot));
                    words[5..9].copy_from_slice(&[
                        u64::from(first),
                        u64::from(second),
                        kind_words(&theirs),
                        theirs.bytes,
                    ]);
                    words[9..11].copy_from_slice(&[ours.members, theirs.members]);
                }
                Failure::GaveUp { rank } => (words[0], words[5]) = (3, u64::from(rank)),
                Failure::WentOn { rank } => (words[0], words[5]) = (6, u64::from(rank)),
                Failure::Overdue { missing, waited } => {
                    words[0] = 4;
                    words[5..7].copy_from_slice(&[missing, whole_ns(waited)]);
                }
                Failure::Left { missing } => (words[0], words[5]) = (5, missing),
            }
        }
        Decision::Part => words[0] = 7,
    }
    words.resize(ORDER_WORDS + ranks, 0);
    words
}

/// Decodes an order; `None` if it is invalid for `ranks` ranks.
pub(super) fn order_of(words: &[u64], ranks: usize) -> Option<Decision> {
    let (fixed, weights) = words.split_at_checked(ORDER_WORDS)?;
    let slot = slot_of(fixed[1], fixed[2], fixed[3])?;
    let rank = |word: u64| u32::try_from(word).ok().filter(|rank| (*rank as usize) < ranks);
    let failure = match fixed[0] & 0xff {
        1 => {
            let weights: Vec<f64> = weights.get(..ranks)?.iter().map(|bits| f64::from_bits(*bits)).collect();
            let failed = match fixed[5].checked_sub(1) {
                Some(place) => Some(rank(place)?),
                None => None,
            };
            let claim = claim_of(fixed[0], fixed[4], 1.0, 0, fixed[6])?;
            Claim::members_among(claim.members, ranks)?;
            return Some(Decision::Run { slot, claim, failed, weights });
        }
        2 => Failure::Mismatch {
            first: rank(fixed[5])?,
            ours: claim_of(fixed[0], fixed[4], 1.0, 0, fixed[9])?,
            second: rank(fixed[6])?,
            theirs: claim_of(fixed[7], fixed[8], 1.0, 0, fixed[10])?,
        },
        3 => Failure::GaveUp { rank: rank(fixed[5])? },
        4 => Failure::Overdue { missing: fixed[5], waited: Duration::from_nanos(fixed[6]) },
        5 => Failure::Left { missing: fixed[5] },
        6 => Failure::WentOn { rank: rank(fixed[5])? },
        7 => return Some(Decision::Part),
        _ => return None,
    };
    Some(Decision::Fail { slot, failure })
}

/// Marks an order: the next one belongs to the same group.
pub(super) const fn mark_more(words: &mut [u64]) {
    words[0] |= MORE;
}

/// Removes the mark of [`mark_more`]. Returns whether it was set.
pub(super) const fn take_more(words: &mut [u64]) -> bool {
    let more = words[0] & MORE != 0;
    words[0] &= !MORE;
    more
}

/// The mark: the highest bit of the byte with the kind of the decision.
const MORE: u64 = 1 << 7;

fn header(kind: u64, claim: &Claim, slot: Slot) -> [u64; 5] {
    let [key, index, round] = slot_words(slot);
    [kind | kind_words(claim), key, index, round, claim.bytes]
}

fn kind_words(claim: &Claim) -> u64 {
    let device = match claim.device {
        DeviceKind::Host => 0,
        DeviceKind::Cuda => CUDA,
    };
    let flags = device | if claim.failed { FAILED } else { 0 } | claim.device_index << DEVICE_INDEX_SHIFT;
    let Claim { op, dtype, .. } = claim;
    u64::from(op.code()) << 8 | u64::from(*dtype as u8) << 16 | u64::from(flags) << 24 | u64::from(op.argument()) << 32
}

/// Bits of the flags byte.
const CUDA: u8 = 1;
const FAILED: u8 = 2;
/// The higher bits hold the index of the device.
const DEVICE_INDEX_SHIFT: u8 = 4;

fn claim_of(kind: u64, bytes: u64, weight: f64, priority: u32, members: u64) -> Option<Claim> {
    let [_, op, dtype, flags, a, b, c, d] = kind.to_le_bytes();
    let device = if flags & CUDA == 0 { DeviceKind::Host } else { DeviceKind::Cuda };
    let failed = flags & FAILED != 0;
    let op = Op::from_code(op, u32::from_le_bytes([a, b, c, d]))?;
    let dtype = DType::from_code(dtype)?;
    op.check(dtype).ok()?;
    let device_index = flags >> DEVICE_INDEX_SHIFT;
    let is_device_index = device_index < Claim::DEVICES_MAX && (device_index == 0 || device == DeviceKind::Cuda);
    let whole = bytes.is_multiple_of(dtype.bytes()) && is_device_index && flags & 0b1100 == 0 && members != 0;
    if !whole {
        return None;
    }
    let priority = Priority(priority.cast_signed());
    let ready = Ready::UNKNOWN;
    Some(Claim { op, dtype, bytes, device, device_index, failed, weight, priority, members, ready })
}

fn slot_words((part, round): Slot) -> [u64; 3] {
    [part.key.0, u64::from(part.index), round.0]
}

fn slot_of(key: u64, index: u64, round: u64) -> Option<Slot> {
    let place = Round(round);
    let is_possible = Goal::round(place).0 <= ROUND_MAX;
    let part = PartId { key: TensorKey(key), index: u32::try_from(index).ok()? };
    is_possible.then_some((part, place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::WorkerId;

    /// In whole microseconds, because the time in an announcement has them.
    const NOW: Time = Time(1_152_921_504_606_000_000);

    #[test]
    fn what_is_written_is_what_is_read() {
        let slot = (PartId { key: TensorKey(u64::MAX), index: 7 }, Round(9));
        let claim = Claim {
            op: Op::Broadcast { root: WorkerId(3) },
            dtype: DType::BF16,
            bytes: 6,
            device: DeviceKind::Cuda,
            device_index: 7,
            failed: true,
            weight: 0.5,
            priority: Priority(-7),
            members: 0b101,
            ready: Ready {
                since: NOW - Duration::from_millis(7),
                waited: Waited { device: Wait::MAX, queue: Wait::from_code(1), credit: Wait::from_code(2) },
            },
        };
        for announcement in [
            Announcement::Ready(slot, claim),
            Announcement::Withdrawn(Declined { slot, members: 0b101 }),
            Announcement::Overdue(slot, Duration::from_millis(3)),
        ] {
            assert_eq!(Announcement::of(NOW, announcement.words()), Some(announcement));
        }
        let neutral = Claim { weight: 1.0, priority: Priority(0), ready: Ready::UNKNOWN, ..claim };
        let other =
            Claim { op: Op::Sum, bytes: 8, device: DeviceKind::Host, device_index: 0, failed: false, ..neutral };
        let fail = |failure| Decision::Fail { slot, failure };
        for decision in [
            Decision::Run { slot, claim: neutral, failed: None, weights: vec![1.0, 0.25, 0.0] },
            Decision::Run { slot, claim: neutral, failed: Some(2), weights: vec![1.0; 3] },
            fail(Failure::Mismatch { first: 2, ours: neutral, second: 0, theirs: other }),
            fail(Failure::GaveUp { rank: 1 }),
            fail(Failure::WentOn { rank: 2 }),
            fail(Failure::Overdue { missing: 0b101, waited: Duration::from_secs(2) }),
            fail(Failure::Left { missing: 0b100 }),
            Decision::Part,
        ] {
            assert_eq!(order_of(&order_words(&decision, 3), 3), Some(decision));
        }
    }

    #[test]
    fn a_time_is_read_as_the_closest_one_to_the_time_of_reading() {
        let micros = |count: u64| Time(count * 1_000);
        let round = u64::from(u32::MAX) + 1;
        for (now, since) in [(7 * round + 5, 7 * round - 5), (7 * round - 5, 7 * round + 5), (5, 5), (round, round - 1)]
        {
            assert_eq!(whole(micros(now), short(micros(since))), micros(since), "{since} at {now}");
        }
        assert_eq!(whole(micros(5), u32::MAX), Time::ZERO, "there was none before");
    }

    #[test]
    fn that_more_of_a_group_follow_is_said_beside_the_decision() {
        let slot = (PartId { key: TensorKey(1), index: 0 }, Round(0));
        let decision = Decision::Fail { slot, failure: Failure::GaveUp { rank: 1 } };
        let mut words = order_words(&decision, 2);
        assert!(!take_more(&mut words));
        mark_more(&mut words);
        assert_eq!(order_of(&words, 2), None, "not before it was asked whether more follow");
        assert!(take_more(&mut words));
        assert_eq!(order_of(&words, 2), Some(decision));
    }

    #[test]
    fn what_means_nothing_is_not_acted_on() {
        assert_eq!(Announcement::of(NOW, [0; ANNOUNCEMENT_WORDS]), None);
        let slot = (PartId { key: TensorKey(1), index: 0 }, Round(0));
        let odd = Claim { bytes: 6, members: 1, ..Claim::SUM };
        assert_eq!(Announcement::of(NOW, Announcement::Ready(slot, odd).words()), None, "half an element");
        let weighted = Claim { op: Op::WeightedMean, dtype: DType::I8, ..odd };
        assert_eq!(Announcement::of(NOW, Announcement::Ready(slot, weighted).words()), None, "no meaning");
        let of_last = |round| {
            let declined = Declined { slot: (slot.0, Round(round)), members: 1 };
            Announcement::of(NOW, Announcement::Withdrawn(declined).words())
        };
        assert!(of_last(u64::MAX).is_none(), "a round that cannot be");
        let stranger = Decision::Fail { slot, failure: Failure::GaveUp { rank: 5 } };
        assert_eq!(order_of(&order_words(&stranger, 3), 3), None);
        let told_by_a_stranger =
            Decision::Run { slot, claim: Claim { bytes: 8, ..odd }, failed: Some(3), weights: vec![1.0; 3] };
        assert_eq!(order_of(&order_words(&told_by_a_stranger, 3), 3), None);
        let of_a_stranger = Decision::Run {
            slot,
            claim: Claim { bytes: 8, members: 0b1001, ..odd },
            failed: None,
            weights: vec![1.0; 3],
        };
        assert_eq!(order_of(&order_words(&of_a_stranger, 3), 3), None);
        assert_eq!(order_of(&[], 3), None);
    }
}
