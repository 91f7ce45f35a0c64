//! Bodies whose length varies, as devices make them. Only the device knows the length of such a body when its copy to the host is submitted.
//! So it is copied with as many bytes as it can have, and its length lies behind them.

use crate::codec::Coding;
use crate::types::{Round, Span};

/// Where a body lies whose length varies, and where its length.
///
/// ```text
///  ┌───────────────────┬─────┬────────┐
///  │ body, the longest │ pad │ length │
///  └───────────────────┴─────┴────────┘
/// ```
/// The length is a little-endian number of 8 bytes, at a multiple of 8. If the codec refuses the elements, all its bits are 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Varying {
    /// Bytes of the longest body.
    longest: u64,
}

impl Varying {
    /// For the body of `len` elements in this round; `None` if it has an exact length.
    pub fn of(coding: &Coding, round: Round, len: u64) -> Option<Self> {
        let longest = || coding.codec().encoded_bytes_max(len, round);
        coding.codec.varies().then(|| Self { longest: longest() })
    }

    /// Bytes of all of it.
    pub fn room(self) -> u64 {
        self.length().end()
    }

    /// Where the body lies, from its first byte on.
    pub fn longest(self) -> Span {
        Span { offset: 0, bytes: self.longest }
    }

    /// Where its length lies.
    pub fn length(self) -> Span {
        Span { offset: self.longest.next_multiple_of(LENGTH_BYTES), bytes: LENGTH_BYTES }
    }

    /// Notes the length of a body in its `room`; `None` if the codec refused the elements.
    ///
    /// # Panics
    /// If the room is too short.
    pub fn tell(self, room: &mut [u8], length: Option<u64>) {
        let Span { offset, .. } = self.length();
        *room[offset as usize..].first_chunk_mut().expect("the room of a body") =
            length.unwrap_or(REFUSED).to_le_bytes();
    }

    /// The length of the body in this `room`; `None` if the codec refused the elements.
    ///
    /// # Panics
    /// If the room is too short.
    pub fn told(self, room: &[u8]) -> Option<u64> {
        let Span { offset, .. } = self.length();
        let length = u64::from_le_bytes(*room[offset as usize..].first_chunk().expect("the room of a body"));
        Some(length).filter(|length| *length <= self.longest)
    }
}

const LENGTH_BYTES: u64 = 8;
const REFUSED: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{CodecSpec, DType};

    #[test]
    fn a_length_lies_behind_the_longest_body_of_the_round() {
        let varying = |codec: &str, round| {
            let coding = Coding { dtype: DType::F32, codec: codec.parse().unwrap(), divisor: 1.0 };
            Varying::of(&coding, Round(round), 1000)
        };
        assert_eq!(varying("int8", 0), None);
        // The number of entries has 5 bytes at most, each of 10 entries has 5, and 7 of the gaps may have one more.
        let ten = varying("topk", 0).unwrap();
        assert_eq!((ten.longest().bytes, ten.length(), ten.room()), (62, Span { offset: 64, bytes: 8 }, 72));
        assert_eq!(varying("topk:warmup=5", 0).unwrap().longest().bytes, 5 + 250 * 5 + 7, "a quarter of them at first");
        assert_eq!(varying("topk:count=1000", 0).unwrap().room(), 4008, "not longer than the elements");
        assert_eq!(varying(&CodecSpec::LOSSLESS.to_string(), 0).unwrap().room(), 4008);
        let mut room = [0; 72];
        for length in [Some(0), Some(62), None] {
            ten.tell(&mut room, length);
            assert_eq!(ten.told(&room), length);
        }
    }
}
