//! The order of the streams of one connection, and the class of the bytes that it sends next. Machines without time.
//!
//! Which connection sends next is decided by [turns](super::turns).

use crate::wire::URGENCY_MAX;

/// The rank of the `nth` stream of a link. A more urgent stream goes first. Of two equally urgent streams the older one goes first. Ages are
/// compared within 2^24 streams. A stream that is older than that only waits longer.
pub(super) fn precedence(urgency: u8, nth: u32) -> i32 {
    (i32::from(urgency) + 1) * AGES as i32 - (nth % AGES) as i32
}

/// The class of urgency of a rank, which is above zero.
fn urgency_of(precedence: i32) -> u8 {
    u8::try_from((precedence - 1) / AGES as i32).expect("made of one")
}

/// How many exchanges of each class a link has under way.
#[derive(Default, Debug)]
pub(super) struct Classes([u32; CLASSES]);

impl Classes {
    pub(super) fn enter(&mut self, precedence: i32) {
        self.0[usize::from(urgency_of(precedence))] += 1;
    }

    pub(super) fn leave(&mut self, precedence: i32) {
        self.0[usize::from(urgency_of(precedence))] -= 1;
    }

    /// Whether none is.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|exchanges| *exchanges == 0)
    }

    /// Whether an exchange of this rank is of the most urgent class under way, and some others are less urgent.
    pub(super) fn is_ahead(&self, precedence: i32) -> bool {
        let (below, above) = self.0.split_at(usize::from(urgency_of(precedence)));
        let is_any = |classes: &[u32]| classes.iter().any(|exchanges| *exchanges > 0);
        is_any(below) && !is_any(&above[1..])
    }
}

/// Bytes of each class that quinn-proto was given and has not sent. quinn-proto sends the most urgent bytes first, so the number of sent
/// bytes is enough to know what is left.
#[derive(Default, Debug)]
pub(super) struct Handed([u64; CLASSES]);

impl Handed {
    /// quinn-proto was given `bytes` of an exchange of that rank.
    pub(super) fn took(&mut self, precedence: i32, bytes: u64) {
        self.0[usize::from(urgency_of(precedence))] += bytes + bytes / OVERHEAD;
    }

    /// quinn-proto has sent datagrams of `bytes` bytes.
    pub(super) fn sent(&mut self, mut bytes: u64) {
        for left in self.0.iter_mut().rev() {
            let gone = bytes.min(*left);
            *left -= gone;
            bytes -= gone;
        }
    }

    /// The most urgent class that has bytes to send; class 0 if none has. Only classes that are `under_way` count, because nothing is sent
    /// of exchanges that were given up. `next` is the rank of the exchange that writes next, if there is room.
    pub(super) fn most_urgent(&self, next: Option<i32>, under_way: &Classes) -> u8 {
        let next = next.map(urgency_of);
        let sends = |class: &u8| {
            let place = usize::from(*class);
            under_way.0[place] > 0 && (self.0[place] > 0 || next == Some(*class))
        };
        (0..=URGENCY_MAX).rev().find(sends).unwrap_or_default()
    }
}

const AGES: u32 = 1 << 24;
const CLASSES: usize = URGENCY_MAX as usize + 1;
/// One byte in this many belongs to headers and acknowledgements instead of streams.
const OVERHEAD: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_go_by_urgency_and_then_by_age() {
        assert!(precedence(1, 9) > precedence(0, 1));
        assert!(precedence(3, 1) > precedence(3, 2));
        assert!(precedence(7, u32::MAX) > precedence(6, 0));
        assert!(precedence(0, u32::MAX) > 0);
    }

    #[test]
    fn ahead_are_the_most_urgent_if_there_are_others() {
        let mut classes = Classes::default();
        classes.enter(BULK);
        assert!(!classes.is_ahead(BULK), "alone it is as urgent as the rest");
        classes.enter(MIDDLE);
        assert!(classes.is_ahead(MIDDLE) && !classes.is_ahead(BULK));
        classes.enter(URGENT);
        assert!(classes.is_ahead(URGENT) && !classes.is_ahead(MIDDLE));
        classes.leave(URGENT);
        classes.leave(BULK);
        assert!(!classes.is_ahead(MIDDLE));
    }

    #[test]
    fn a_connection_is_as_urgent_as_what_it_sends_next() {
        let (mut handed, mut classes) = (Handed::default(), Classes::default());
        classes.enter(BULK);
        handed.took(BULK, 1 << 20);
        classes.enter(URGENT);
        assert_eq!(handed.most_urgent(Some(BULK), &classes), 0);
        assert_eq!(handed.most_urgent(Some(URGENT), &classes), 7, "it comes next");
        handed.took(URGENT, 16_000);
        assert_eq!(handed.most_urgent(None, &classes), 7);
        handed.sent(16_999);
        assert_eq!(handed.most_urgent(None, &classes), 7);
        handed.sent(1);
        assert_eq!(handed.most_urgent(Some(BULK), &classes), 0, "not acknowledged, but on its way");
    }

    #[test]
    fn what_was_given_up_is_not_waited_for() {
        let (mut handed, mut classes) = (Handed::default(), Classes::default());
        classes.enter(URGENT);
        handed.took(URGENT, 1 << 20);
        classes.leave(URGENT);
        assert_eq!(handed.most_urgent(None, &classes), 0);
    }

    const BULK: i32 = 1 << 24;
    const MIDDLE: i32 = 4 << 24;
    const URGENT: i32 = 8 << 24;
}
