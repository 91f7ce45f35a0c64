//! Groups operations on device memory that are ready at the same time. The library needs fewer launches for a group, and reduces to
//! different owners side by side, so that the links of all ranks work at once.
//!
//! The leader forms a group of the ready operations and waits for no others. It does not divide a *block*, the parts of a tensor that one
//! reduce-scatter or all-gather carries out for all ranks: rather the block begins the next group. It writes the whole group before a rank
//! sees it, and every rank checks the group that it reads, because a group that differs between ranks would hang the library.

use super::order::{Claim, Decision, Order, Slot};
use crate::types::{DeviceKind, PartId};

/// The most operations of a group: one for each owner on a machine of eight devices, and so few that operations that become ready a moment
/// later do not wait long.
pub const OPERATIONS_MAX: usize = 8;
/// The most bytes of a group: as many parts of 4 MiB. All operations of a group end together. So a longer group would delay the push of its
/// first part by more than it saves in launches.
pub const BYTES_MAX: u64 = 32 << 20;

/// How many more groups and bytes fit into the queues of the devices.
#[derive(Clone, Copy, Debug)]
pub struct QueueSpace {
    groups: usize,
    bytes: u64,
}

impl QueueSpace {
    /// The most groups in the queue of a device: a running one and one behind it, so that the queue is not empty while the leader orders the
    /// next. What becomes ready meanwhile goes together, and an urgent operation waits for no more, because nothing overtakes in the queue.
    const GROUPS_MAX: usize = 2;
    /// The most bytes. A longer operation runs alone.
    const BYTES_MAX: u64 = 2 * BYTES_MAX;

    /// The space that is left beside `groups` groups of `bytes` bytes in the queues of `devices` devices.
    pub fn beside(groups: usize, bytes: u64, devices: usize) -> Self {
        Self {
            groups: (Self::GROUPS_MAX * devices.max(1)).saturating_sub(groups),
            bytes: Self::BYTES_MAX.saturating_sub(bytes),
        }
    }

    /// Whether nothing more should be ordered for now.
    pub const fn is_none(self) -> bool {
        self.groups == 0 || self.bytes == 0
    }
}

/// A group while it is formed or checked.
struct Group {
    parts: Vec<PartId>,
    bytes: u64,
    /// Each device has a queue of its own.
    device_index: u8,
}

impl Group {
    /// The group that begins with a decision; `None` if nothing can go with it.
    fn of(decision: &Decision) -> Option<Self> {
        let Decision::Run { slot: (part, _), claim, .. } = decision else { return None };
        may_join(claim).then(|| Self { parts: vec![*part], bytes: claim.bytes, device_index: claim.device_index })
    }

    /// Whether so many further operations of so many bytes each fit. More than ever fit are no reason to begin another group.
    fn has_place(&self, operations: usize, bytes: u64) -> bool {
        let all = bytes.saturating_mul(operations as u64);
        let ever = operations <= OPERATIONS_MAX && all <= BYTES_MAX;
        !ever || self.fits(operations, all)
    }

    /// Whether so many further operations of so many bytes in all fit.
    fn fits(&self, operations: usize, bytes: u64) -> bool {
        self.parts.len() + operations <= OPERATIONS_MAX && self.bytes.saturating_add(bytes) <= BYTES_MAX
    }

    /// Adds an operation to the group if possible. Refuses a second one on a part, because it may need the result of the first.
    fn take(&mut self, (part, _): Slot, claim: &Claim) -> bool {
        let joins = self.fits(1, claim.bytes)
            && may_join(claim)
            && claim.device_index == self.device_index
            && !self.parts.contains(&part);
        if joins {
            self.parts.push(part);
            self.bytes += claim.bytes;
        }
        joins
    }
}

/// What the leader knows of blocks.
pub struct Blocks<Starts> {
    /// The operations of a block: one for each rank.
    pub operations: usize,
    /// Whether an operation is the first of a block.
    pub starts: Starts,
}

/// The next decisions: the first one, and others that are ready and may join its group, in at most `orders` orders. Does not wait for more.
///
/// # Panics
/// If there is no decision.
pub fn next(
    order: &mut Order,
    orders: u64,
    room: &QueueSpace,
    Blocks { operations, starts }: &Blocks<impl Fn(Slot) -> bool>,
) -> Vec<Decision> {
    let mut decisions = vec![order.next_decision().expect("it was asked whether it has one")];
    let Some(mut group) = Group::of(&decisions[0]) else { return decisions };
    let first = matches!(&decisions[0], Decision::Run { slot, .. } if starts(*slot));
    // Up to here the group is of one block, which goes as a whole.
    let mut whole = if first { *operations } else { 1 };
    while (decisions.len() as u64) < orders
        && let Some((slot, claim)) = order.upcoming()
    {
        if decisions.len() >= whole {
            if group.bytes >= room.bytes || (starts(slot) && !group.has_place(*operations, claim.bytes)) {
                break;
            }
            whole = decisions.len() + if starts(slot) { *operations } else { 1 };
        }
        if !group.take(slot, claim) {
            break;
        }
        decisions.push(order.next_decision().expect("it is upcoming"));
    }
    decisions
}

/// Whether these decisions may form a group; a single decision may be of any kind.
pub fn is_sound(decisions: &[Decision]) -> bool {
    let [first, rest @ ..] = decisions else { return false };
    let mut group = Group::of(first);
    rest.iter().all(|decision| match (decision, &mut group) {
        (Decision::Run { slot, claim, .. }, Some(group)) => group.take(*slot, claim),
        _ => false,
    })
}

/// Whether an operation may join a group. Operations in host memory may not, and neither may the error that an owner sends instead of a
/// part.
fn may_join(claim: &Claim) -> bool {
    claim.device == DeviceKind::Cuda && !claim.failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::order::Failure;
    use crate::types::{Round, TensorKey};

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_decision_alone_may_be_anything() {
        for decision in [run(1, claim(MIB)), run(1, claim(1 << 40)), run(1, host()), run(1, failed()), gave_up()] {
            assert!(is_sound(&[decision]));
        }
        assert!(!is_sound(&[]));
    }

    #[test]
    fn several_are_on_devices_and_none_of_them_has_failed() {
        let first = || run(1, claim(MIB));
        for other in [run(2, host()), run(2, failed()), gave_up()] {
            assert!(!is_sound(&[first(), other.clone()]), "{other:?}");
            assert!(!is_sound(&[other, first()]));
        }
        assert!(is_sound(&[first(), run(2, claim(4))]));
        assert!(!is_sound(&[first(), run(1, claim(4))]), "two on one part");
    }

    #[test]
    fn several_are_at_most_so_many_and_so_long() {
        let of = |count: u64, bytes| (0..count).map(|part| run(part, claim(bytes))).collect::<Vec<_>>();
        assert!(is_sound(&of(8, 4 * MIB)));
        assert!(!is_sound(&of(9, 4)), "too many");
        assert!(!is_sound(&of(2, 16 * MIB + 4)), "too long");
        assert!(!is_sound(&[run(1, claim(33 * MIB)), run(2, claim(0))]), "what is too long is alone");
        assert!(!is_sound(&of(2, u64::MAX - 3)));
    }

    #[test]
    fn a_group_is_of_what_is_ready_and_no_larger_than_there_is_room() {
        let mut order = Order::new(2, 0);
        for (part, rank) in (0..8).flat_map(|part| [(part, 0), (part, 1)]) {
            order.handle_ready(rank, slot(part), claim(MIB)).unwrap();
        }
        let mut next = |orders, room| {
            let decisions = next(&mut order, orders, &room, &no_blocks());
            assert!(is_sound(&decisions));
            decisions.len()
        };
        let room = |bytes| QueueSpace { groups: 1, bytes };
        assert_eq!(next(2, room(64 * MIB)), 2, "where a rank has not read its orders");
        assert_eq!(next(64, room(2 * MIB)), 2, "where much of the queue is long");
        assert_eq!(next(64, room(64 * MIB)), 4, "the rest: nothing waits for more");
    }

    #[test]
    fn a_device_has_a_running_group_and_one_behind_it() {
        assert_eq!([0, 1, 2, 3].map(|groups| QueueSpace::beside(groups, 0, 1).is_none()), [false, false, true, true]);
        assert!(!QueueSpace::beside(2, 0, 2).is_none(), "another device is free");
        assert!(QueueSpace::beside(1, 64 * MIB, 1).is_none());
    }

    #[test]
    fn a_block_is_not_divided() {
        let blocks = |operations, ready: &[u64], room: QueueSpace| {
            let mut order = Order::new(2, 0);
            for (part, rank) in ready.iter().flat_map(|part| [(*part, 0), (*part, 1)]) {
                order.handle_ready(rank, slot(part), claim(MIB)).unwrap();
            }
            let starts = |(part, _): Slot| part.key.0.is_multiple_of(operations as u64);
            let mut sizes = Vec::new();
            while order.has_decision() {
                sizes.push(next(&mut order, 64, &room, &Blocks { operations, starts }).len());
            }
            sizes
        };
        let roomy = QueueSpace { groups: 2, bytes: 64 * MIB };
        let all: Vec<u64> = (0..12).collect();
        assert_eq!(blocks(8, &all, roomy), [8, 4], "nothing waits for the rest of the second");
        assert_eq!(
            blocks(8, &[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], roomy),
            [3, 8],
            "the end of one, and a whole one"
        );
        assert_eq!(blocks(4, &all, roomy), [8, 4]);
        assert_eq!(blocks(3, &all, roomy), [6, 6]);
        let little = QueueSpace { groups: 2, bytes: 2 * MIB };
        assert_eq!(blocks(8, &[0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11], little), [8, 2, 1], "a block goes as a whole");
        assert_eq!(blocks(16, &all, roomy), [8, 4], "no group has place for such a block");
    }

    fn no_blocks() -> Blocks<impl Fn(Slot) -> bool> {
        Blocks { operations: 2, starts: |_| false }
    }

    fn run(part: u64, claim: Claim) -> Decision {
        Decision::Run { slot: slot(part), claim, failed: None, weights: vec![1.0; 2] }
    }

    fn gave_up() -> Decision {
        Decision::Fail { slot: slot(9), failure: Failure::GaveUp { rank: 0 } }
    }

    fn slot(part: u64) -> Slot {
        (PartId { key: TensorKey(part), index: 0 }, Round(0))
    }

    fn claim(bytes: u64) -> Claim {
        Claim { bytes, device: DeviceKind::Cuda, ..Claim::SUM }
    }

    fn host() -> Claim {
        Claim { device: DeviceKind::Host, ..claim(MIB) }
    }

    fn failed() -> Claim {
        Claim { failed: true, ..claim(MIB) }
    }
}
