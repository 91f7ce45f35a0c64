//! The codes of elements: bits in words of 32, the first one in the highest place, and whole numbers in Elias' delta code.

use crate::codec::interface::{Malformed, Refusal};

const WORD_BYTES: usize = 4;
const WORD_BITS: u32 = 32;
/// Bytes behind the words: the number of bits, and the scale.
const TAIL_BYTES: usize = 2 * WORD_BYTES;

/// Writes a body.
pub(super) struct Writer<'a> {
    body: &'a mut [u8],
    /// Bytes of whole words.
    used: usize,
    /// The last bits, of which `waiting` are in no word yet.
    last: u64,
    /// Fewer than a word has.
    waiting: u32,
}

impl<'a> Writer<'a> {
    /// Writes to the beginning of `body`, and fewer bytes than `most`.
    pub(super) fn new(body: &'a mut [u8], most: usize) -> Self {
        let room = body.len().min(most.saturating_sub(1));
        Self { body: &mut body[..room], used: 0, last: 0, waiting: 0 }
    }

    /// Writes the codes of an element: its distance and its level, which are at least 1, and its sign.
    pub(super) fn element(&mut self, distance: u32, is_negative: bool, level: u32) -> Result<(), Refusal> {
        let ((distance, distance_bits), (level, level_bits)) = (delta(distance), delta(level));
        let code = u64::from(is_negative) << level_bits | level;
        let (bits, code_bits) = (distance_bits + 1 + level_bits, 1 + level_bits);
        if bits <= WORD_BITS {
            // Nearly always.
            return self.bits(distance << code_bits | code, bits);
        }
        if distance_bits > WORD_BITS {
            self.bits(distance >> WORD_BITS, distance_bits - WORD_BITS)?;
        }
        self.bits(distance & u64::from(u32::MAX), distance_bits.min(WORD_BITS))?;
        self.bits(code, code_bits)
    }

    /// Writes the last `count` bits of `bits`, at most a word; the others are 0.
    fn bits(&mut self, bits: u64, count: u32) -> Result<(), Refusal> {
        self.last = self.last << count | bits;
        self.waiting += count;
        if self.waiting >= WORD_BITS {
            self.waiting -= WORD_BITS;
            self.word((self.last >> self.waiting) as u32)?;
        }
        Ok(())
    }

    fn word(&mut self, word: u32) -> Result<(), Refusal> {
        let place = self.body.get_mut(self.used..self.used + WORD_BYTES).ok_or(Refusal::NotShorter)?;
        place.copy_from_slice(&word.to_le_bytes());
        self.used += WORD_BYTES;
        Ok(())
    }

    /// Ends the body. Returns how many bytes it has.
    pub(super) fn finish(mut self, scale: f32) -> Result<usize, Refusal> {
        let bits = u32::try_from(self.used * 8).expect("a part has fewer bits") + self.waiting;
        if self.waiting > 0 {
            self.word((self.last << (WORD_BITS - self.waiting)) as u32)?;
        }
        self.word(bits)?;
        self.word(scale.to_bits())?;
        Ok(self.used)
    }
}

/// The most bytes of a body of `len` elements with levels up to this one. The code of a distance is not longer than as many distances of 1
/// with a level each, so there are most bits if each element has the largest level.
pub(super) fn bytes_max(len: u64, levels: u32) -> u64 {
    let bits = len * u64::from(delta(1).1 + 1 + delta(levels).1);
    bits.div_ceil(u64::from(WORD_BITS)) * WORD_BYTES as u64 + TAIL_BYTES as u64
}

/// The code of a number, and how many bits it has, of which the first ones are 0.
fn delta(number: u32) -> (u64, u32) {
    let len = WORD_BITS - number.leading_zeros();
    // The length, then the number without its highest bit.
    let code = u64::from(len) << (len - 1) | u64::from(number & !(1 << (len - 1)));
    (code, 2 * len.ilog2() + len)
}

/// Reads a body.
pub(super) struct Reader<'a> {
    words: &'a [[u8; WORD_BYTES]],
    bits: usize,
    /// Bits that were read.
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader of the words of a body, and its scale.
    ///
    /// # Errors
    /// [`Malformed`] if there are other words than its number of bits needs, or a bit behind these.
    pub(super) fn new(body: &'a [u8]) -> Result<(Self, f32), Malformed> {
        let (words, torn) = body.as_chunks::<WORD_BYTES>();
        let (Some((words, &[bits, scale])), true) = (words.split_last_chunk::<2>(), torn.is_empty()) else {
            return Err(malformed(format!("has {} bytes, which are not {TAIL_BYTES} and whole words", body.len())));
        };
        let bits = u32::from_le_bytes(bits);
        if words.len() != bits.div_ceil(WORD_BITS) as usize {
            return Err(malformed(format!("has {} words for {bits} bits", words.len())));
        }
        let beyond = if bits.is_multiple_of(WORD_BITS) { 0 } else { u32::MAX >> (bits % WORD_BITS) };
        if words.last().is_some_and(|word| u32::from_le_bytes(*word) & beyond != 0) {
            return Err(malformed(format!("has a bit behind the last of {bits}")));
        }
        Ok((Self { words, bits: bits as usize, at: 0 }, f32::from_le_bytes(scale)))
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.bits
    }

    /// Reads the codes of an element: its distance, whether it is below zero, and its level.
    pub(super) fn element(&mut self) -> Result<(u32, bool, u32), Malformed> {
        let next = self.next();
        // Nearly always all three are short: with numbers below 128 they have 23 bits at most.
        if let Some((distance, bits)) = short(next)
            && let sign = next << bits
            && let Some((level, level_bits)) = short(sign << 1)
        {
            self.skip(bits + 1 + level_bits)?;
            return Ok((distance, sign >> 63 == 1, level));
        }
        Ok((self.number()?, self.bit()?, self.number()?))
    }

    /// Reads a number in Elias' delta code.
    fn number(&mut self) -> Result<u32, Malformed> {
        let next = self.next();
        let zeros = next.leading_zeros();
        // 32 has 6 bits.
        let len = if zeros < 6 { (next >> (63 - 2 * zeros)) as u32 } else { u32::MAX };
        if len > WORD_BITS {
            return Err(malformed("has a number of more than 32 bits, or ends within one".to_owned()));
        }
        self.skip(2 * zeros + 1)?;
        // Two shifts, because a number of one bit has none left.
        let rest = self.next() >> 1 >> (WORD_BITS * 2 - len);
        self.skip(len - 1)?;
        Ok(1 << (len - 1) | rest as u32)
    }

    fn bit(&mut self) -> Result<bool, Malformed> {
        let bit = self.next() >> 63 == 1;
        self.skip(1)?;
        Ok(bit)
    }

    /// The next bits from the highest place on, at least 33 of them; those behind the last word are 0.
    fn next(&self) -> u64 {
        let word = |at: usize| self.words.get(at).map_or(0, |word| u64::from(u32::from_le_bytes(*word)));
        let at = self.at / WORD_BITS as usize;
        (word(at) << WORD_BITS | word(at + 1)) << (self.at % WORD_BITS as usize)
    }

    fn skip(&mut self, bits: u32) -> Result<(), Malformed> {
        self.at += bits as usize;
        if self.at <= self.bits { Ok(()) } else { Err(malformed("ends within a code".to_owned())) }
    }
}

/// The number whose code `next` begins with, and the bits of the code, if it is below 128.
fn short(next: u64) -> Option<(u32, u32)> {
    let zeros = next.leading_zeros();
    if zeros > 2 {
        return None;
    }
    let len = (next >> (63 - 2 * zeros)) as u32;
    let bits = 2 * zeros + len;
    Some((1 << (len - 1) | (next << (2 * zeros + 1) >> 1 >> (64 - len)) as u32, bits))
}

fn malformed(problem: String) -> Malformed {
    Malformed { problem }
}
