//! The residuals of parts that no sum has now: what answers have left, and what workers have given.

use std::collections::BTreeMap;

use gradlane_core::codec::feedback::{Residual, Start};
use gradlane_core::mem::{Frozen, Pool};
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{ExchangeId, PartId};
use gradlane_core::wire::{Response, Sum, checksum};

use crate::node::command::{Feedback, Receipt, Route};
use crate::node::event::Event;

/// Of all parts. The node decides when each begins and ends.
#[derive(Default, Debug)]
pub(super) struct Residuals {
    left: BTreeMap<PartId, Residual>,
    gifts: BTreeMap<PartId, Gift>,
}

/// A residual that a worker gives, as far as it came.
#[derive(Debug)]
struct Gift {
    exchange: ExchangeId,
    bytes: Vec<u8>,
    due_bytes: usize,
    due_checksum: u32,
}

impl Residuals {
    /// Takes the residual of a part for its sum, as its answer uses it.
    pub(super) fn take(&mut self, part: PartId, Feedback { is_held, is_given, .. }: Feedback) -> Residual {
        let mut residual = self.left.remove(&part).unwrap_or_default();
        if let Some(gift) = self.gifts.remove(&part).filter(|_| is_given) {
            residual = Residual::of(gift.bytes);
        }
        if is_held {
            residual.hold();
        } else {
            residual.let_go();
        }
        residual
    }

    /// A sum gives the residual of its part back.
    pub(super) fn put_back(&mut self, part: PartId, residual: Residual) {
        self.left.insert(part, residual);
    }

    /// Frees the residual of a part.
    pub(super) fn drop_of(&mut self, part: PartId) {
        self.left.remove(&part);
    }

    /// Frees what was given for a part.
    pub(super) fn drop_gift(&mut self, part: PartId) {
        self.gifts.remove(&part);
    }

    /// Frees all of them. What comes of gifts after that is ignored.
    pub(super) fn lose_all(&mut self, say: &mut impl FnMut(Event)) {
        self.left.clear();
        for (part, Gift { exchange, .. }) in std::mem::take(&mut self.gifts) {
            say(Event::Receipt { route: Route::Gift { part }, exchange, receipt: Receipt::Lost });
        }
    }

    /// The parts that have one which answers have left.
    pub(super) fn parts(&self) -> impl Iterator<Item = PartId> {
        self.left.keys().copied()
    }

    /// `exchange` begins to bring the residual of a part, of so many bytes and with this CRC-32C.
    pub(super) fn begin_gift(
        &mut self,
        part: PartId,
        exchange: ExchangeId,
        (due_bytes, due_checksum): (usize, u32),
        say: &mut impl FnMut(Event),
    ) {
        self.gifts.insert(part, Gift { exchange, bytes: Vec::with_capacity(due_bytes), due_bytes, due_checksum });
        self.end_gift(part, say);
    }

    /// Takes the next bytes that `exchange` brought of a gift; of another one than the latest it takes none.
    pub(super) fn receive_gift(
        &mut self,
        part: PartId,
        exchange: ExchangeId,
        chunks: &[impl AsRef<[u8]>],
        say: &mut impl FnMut(Event),
    ) {
        let Some(gift) = self.gifts.get_mut(&part).filter(|gift| gift.exchange == exchange && !gift.is_whole()) else {
            return;
        };
        for chunk in chunks {
            let left = gift.due_bytes - gift.bytes.len();
            gift.bytes.extend(chunk.as_ref().iter().take(left));
        }
        self.end_gift(part, say);
    }

    /// Says what became of a gift that is whole.
    fn end_gift(&mut self, part: PartId, say: &mut impl FnMut(Event)) {
        let Some(gift) = self.gifts.get(&part).filter(|gift| gift.is_whole()) else { return };
        let (exchange, is_good) = (gift.exchange, checksum(0, &gift.bytes) == gift.due_checksum);
        let receipt = if is_good { Receipt::Whole } else { Receipt::Damaged };
        say(Event::Receipt { route: Route::Gift { part }, exchange, receipt });
    }

    /// Answers a use of the residual of a part.
    pub(super) fn answer(
        &self,
        (pool, part): (&Pool, PartId),
        exchange: ExchangeId,
        header: Sum,
        shown: Option<Feedback>,
        say: &mut impl FnMut(Event),
    ) {
        let block = shown.map(|shown| self.show(pool, part, header.body.bytes, shown));
        let sent = block.as_deref().map_or(0, |block| checksum(0, block));
        say(Event::Send(Outgoing::Answer { exchange, header: Response::Sum(header) }));
        if let Some(block) = block.filter(|block| !block.is_empty()) {
            say(Event::Send(Outgoing::Block { exchange, block }));
        }
        say(Event::Send(Outgoing::End { exchange, checksum: sent }));
    }

    /// What an answer that uses the residual so would begin with, in so many bytes.
    fn show(&self, pool: &Pool, part: PartId, bytes: u64, Feedback { start, is_given, .. }: Feedback) -> Frozen {
        let mut block = pool.lease(usize::try_from(bytes).expect("of a part"));
        block.fill(0);
        match (is_given, start) {
            (true, _) => {
                if let Some(gift) = self.gifts.get(&part).filter(|gift| gift.bytes.len() == block.len()) {
                    block.copy_from_slice(&gift.bytes);
                }
            }
            (false, Start::Zero) => {}
            (false, Start::Kept | Start::Before) => {
                if let Some(residual) = self.left.get(&part) {
                    residual.show(start, &mut block);
                }
            }
        }
        block.freeze()
    }
}

impl Gift {
    fn is_whole(&self) -> bool {
        self.bytes.len() == self.due_bytes
    }
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::TensorKey;

    use super::*;

    const PART: PartId = PartId { key: TensorKey(1), index: 0 };

    #[test]
    fn a_gift_that_came_in_pieces_takes_the_place_of_what_answers_have_left() {
        let (mut residuals, bytes) = (Residuals::default(), [1_u8, 0, 0, 0, 2, 0, 0, 0]);
        residuals.put_back(PART, Residual::of(vec![9; 8]));
        let mut receipts = Vec::new();
        residuals.begin_gift(PART, ExchangeId(3), (8, checksum(0, &bytes)), &mut |event| receipts.push(event));
        for (exchange, piece) in [(3, &bytes[..3]), (2, &bytes), (3, &bytes[3..]), (3, &bytes)] {
            residuals.receive_gift(PART, ExchangeId(exchange), &[piece], &mut |event| receipts.push(event));
        }
        let [Event::Receipt { exchange: ExchangeId(3), receipt: Receipt::Whole, .. }] = receipts[..] else {
            panic!("{receipts:?}")
        };
        let given = Feedback { start: Start::Kept, is_held: false, is_given: true };
        assert_eq!(residuals.shown(given), bytes);
        assert_eq!(residuals.shown(Feedback { is_given: false, ..given }), [9; 8]);
        let taken = residuals.take(PART, given);
        assert_eq!(taken, Residual::of(bytes.to_vec()));
        assert_eq!(residuals.shown(given), [0; 8], "a sum has it");
    }

    #[test]
    fn a_gift_of_another_checksum_is_damaged() {
        let mut receipts = Vec::new();
        let mut residuals = Residuals::default();
        residuals.begin_gift(PART, ExchangeId(3), (4, 7), &mut |event| receipts.push(event));
        residuals.receive_gift(PART, ExchangeId(3), &[[1; 4]], &mut |event| receipts.push(event));
        assert!(matches!(receipts[..], [Event::Receipt { receipt: Receipt::Damaged, .. }]), "{receipts:?}");
    }

    #[test]
    fn a_gift_of_which_no_answer_has_use_goes_with_the_next_one() {
        let mut residuals = Residuals::default();
        residuals.begin_gift(PART, ExchangeId(3), (4, checksum(0, &[1; 4])), &mut drop);
        residuals.receive_gift(PART, ExchangeId(3), &[[1; 4]], &mut drop);
        let used = Feedback { start: Start::Zero, is_held: false, is_given: false };
        assert_eq!(residuals.take(PART, used), Residual::default());
        assert!(residuals.gifts.is_empty());
    }

    impl Residuals {
        /// What an answer that uses the residual so would begin with, in 8 bytes.
        fn shown(&self, used: Feedback) -> Vec<u8> {
            self.show(&Pool::new(), PART, 8, used).to_vec()
        }
    }
}
