//! The largest elements of a part, and nothing of the others: a few bytes for each element that is sent.
//!
//! A contribution has the `k` millionths of a part's elements that have the largest magnitudes, at least one; of equal magnitudes those with
//! the lower index. With `count` it has so many of each part, whatever its length. Zeros are never sent. The others of its elements count as zero. The sum of several workers has more entries than one
//! contribution. Its answer has all of them, so that nothing is lost a second time.
//!
//! ```text
//!  ┌───────┬─────────────────────┬─────────┐
//!  │ count │ gaps, one an entry  │ values  │
//!  └───────┴─────────────────────┴─────────┘
//! ```
//! Count and gaps have seven bits a byte, the low ones first (LEB128), and no more bytes than they need. A gap is the number of elements
//! between an entry and the one before it, or the beginning of the part. Values are f32 in little-endian order.
//!
//! # Warm-up
//! With `warmup=R`, more is sent at first: a quarter of the elements in the rounds before R, a 16th in the R rounds after these, and so on,
//! until that is less than `k` or `count`. So what is left out grows from 75 to 93.75, 98.4, 99.6 and 99.9 %, as in Deep Gradient
//! Compression (Lin and others). How much is sent follows from the round alone, so a repeat has the same body.
//!
//! A part is one unit. It travels plain if it has a NaN or an infinity, or if its wire form would not be shorter.

use super::interface::{BodyBytes, Codec, Malformed, Refusal, Unit};
use super::tools::{F32_BYTES, SIGN, Seed, Tools, divided, dividing, scatter, scatter_add, share_of};
use crate::reduce::Kernels;
use crate::types::{CodecSpec, DType, Op, Round};

/// The largest elements of parts of f32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopK {
    spec: CodecSpec,
    given: Given,
    /// Rounds after which a quarter of what was sent is sent; 0 if it is what is given from the first round on.
    warmup: u64,
}

/// How many elements of a part are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Given {
    /// So many of a million.
    Millionths(u64),
    /// So many, whatever the length of the part.
    Count(u64),
}

/// The millionths that are sent in the first rounds of a warm-up.
const WARM: u64 = 250_000;
/// An f32 without its sign. Magnitudes are ordered as these bits are.
const MAGNITUDE: u32 = !SIGN;
/// Bytes of the longest number of 32 bits.
const NUMBER_BYTES_MAX: u64 = 5;
/// The magnitude of an infinity. Those of NaNs are above it.
const INFINITE: u32 = f32::INFINITY.to_bits();

impl TopK {
    /// The codec `spec`, whose parameters are the millionths of the elements, or if it is not 0 their number, and the rounds of a step of the
    /// warm-up.
    ///
    /// # Panics
    /// Unless `elements` is f32.
    pub fn new(spec: CodecSpec, elements: DType) -> Self {
        assert_eq!(elements, DType::F32, "topk is for float32");
        let [millionths, count, warmup] = *spec.parameters() else { unreachable!("its row has three parameters") };
        let given = if count > 0 { Given::Count(count.into()) } else { Given::Millionths(millionths.into()) };
        Self { spec, given, warmup: warmup.into() }
    }

    /// The most entries of a body that is shorter than its `len` elements: an entry has five bytes at least.
    pub(crate) const fn entries_max(len: u64) -> u64 {
        len * DType::F32.bytes() / (1 + DType::F32.bytes())
    }

    /// How many elements of a part of `len` are sent in a round, unless more of them are zero.
    pub(crate) fn count(self, len: usize, round: Round) -> usize {
        let given = match self.given {
            Given::Millionths(millionths) => share_of(len as u64, millionths),
            Given::Count(count) => count.min(len as u64),
        };
        // None without a warm-up, and none where the shift would be longer than the number.
        let warm = round
            .0
            .checked_div(self.warmup)
            .and_then(|step| WARM.checked_shr(u32::try_from(step.saturating_mul(2)).ok()?));
        let warm = share_of(len as u64, warm.unwrap_or(0));
        usize::try_from(given.max(warm)).expect("at most all of them")
    }
}

impl Codec for TopK {
    fn spec(&self) -> CodecSpec {
        self.spec
    }

    fn body_bytes(&self, len: u64) -> BodyBytes {
        BodyBytes::AtMost(len * DType::F32.bytes())
    }

    fn encoded_bytes_max(&self, len: u64, round: Round) -> u64 {
        let count = self.count(usize::try_from(len).expect("within a part"), round) as u64;
        // All gaps together are shorter than the part. So at most one of 128 elements begins a gap of two bytes, and so on.
        let longer_gaps = [7, 14, 21].map(|bits| count.min(len >> bits)).iter().sum::<u64>();
        (NUMBER_BYTES_MAX + count * (1 + DType::F32.bytes()) + longer_gaps).min(self.body_bytes(len).max())
    }

    fn unit(&self, len: u64) -> Unit {
        Unit { len, bytes: len * DType::F32.bytes() }
    }

    fn encode(&self, tools: Tools<'_>, divisor: f64, elements: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        let Tools { kernels, seed, workspace } = tools;
        let (floats, _) = divided(kernels, dividing(divisor), divisor, elements, &mut workspace.bytes).as_chunks();
        select(floats, self.count(floats.len(), seed.round()), seed, &mut workspace.words)?;
        write(floats, &workspace.words, body)
    }

    fn check(&self, body: &[u8], len: u64) -> Result<(), Malformed> {
        Entries::read(body, usize::try_from(len).expect("within a part")).map(drop)
    }

    fn decode(&self, _kernels: Kernels, body: &[u8], elements: &mut [u8]) -> Result<(), Malformed> {
        let entries = Entries::read(body, elements.len() / F32_BYTES)?;
        scatter(entries, elements);
        Ok(())
    }

    fn start(&self, kernels: Kernels, op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        sum.fill(0);
        self.add(kernels, op, weight, body, sum)
    }

    fn add(&self, _kernels: Kernels, _op: Op, weight: f64, body: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        let entries = Entries::read(body, sum.len() / F32_BYTES)?;
        scatter_add(entries, weight, sum);
        Ok(())
    }

    fn finish(&self, tools: Tools<'_>, op: Op, divisor: f64, sum: &[u8], body: &mut [u8]) -> Result<usize, Refusal> {
        let Tools { kernels, workspace, .. } = tools;
        let (floats, _) = divided(kernels, op, divisor, sum, &mut workspace.bytes).as_chunks();
        all(floats, &mut workspace.words)?;
        write(floats, &workspace.words, body)
    }
}

/// The magnitude of an element, as bits that are ordered as magnitudes are.
fn magnitude(float: [u8; F32_BYTES]) -> u32 {
    u32::from_le_bytes(float) & MAGNITUDE
}

/// An element among others: the larger its magnitude, the smaller the word, and of equal ones the word of the lower index is smaller.
fn ranked(index: usize, magnitude: u32) -> u64 {
    u64::from(MAGNITUDE - magnitude) << 32 | index as u64
}

/// Leaves in `places` the indices of the `count` elements with the largest magnitudes, and of no zero, in rising order.
fn select(floats: &[[u8; F32_BYTES]], count: usize, seed: Seed, places: &mut Vec<u64>) -> Result<(), Refusal> {
    // Nearly always the elements from a guessed magnitude on are a little more than `count`. Otherwise all of them are looked at.
    let guessed = guess(floats, count, seed, places);
    candidates(floats, guessed, places)?;
    if places.len() < count && guessed > 1 {
        candidates(floats, 1, places)?;
    }
    if places.len() > count {
        places.select_nth_unstable(count);
        places.truncate(count);
    }
    for place in places.iter_mut() {
        *place &= u64::from(u32::MAX);
    }
    places.sort_unstable();
    Ok(())
}

/// Elements that are drawn to guess a magnitude.
const SAMPLE: usize = 4096;
/// Standard deviations by which the guess is lower than what the sample says.
const CAUTION: f64 = 4.0;

/// A magnitude that a little more than `count` elements are likely to reach; at least 1.
fn guess(floats: &[[u8; F32_BYTES]], count: usize, seed: Seed, sample: &mut Vec<u64>) -> u32 {
    if floats.len() <= 4 * SAMPLE {
        return 1;
    }
    sample.clear();
    // Drawn, because a step of equal length could meet the same column of a matrix again and again.
    let drawn = (0..SAMPLE as u64).map(|draw| {
        let index = (u128::from(seed.draw(draw)) * floats.len() as u128) >> 64;
        u64::from(magnitude(floats[usize::try_from(index).expect("below the length")]))
    });
    sample.extend(drawn);
    let due = count as f64 / floats.len() as f64 * SAMPLE as f64;
    let from_top = (due + CAUTION * due.sqrt() + CAUTION).ceil() as usize;
    if from_top >= SAMPLE {
        return 1;
    }
    let (_, guessed, _) = sample.select_nth_unstable_by(from_top, |one, other| other.cmp(one));
    u32::try_from(*guessed).expect("31 bits").max(1)
}

/// Leaves in `words` the elements with at least this magnitude, ranked.
///
/// # Errors
/// [`Refusal::NotFinite`] if any element is a NaN or an infinity.
fn candidates(floats: &[[u8; F32_BYTES]], least: u32, words: &mut Vec<u64>) -> Result<(), Refusal> {
    words.clear();
    for (index, float) in floats.iter().enumerate() {
        let magnitude = magnitude(*float);
        if magnitude >= least {
            if magnitude >= INFINITE {
                return Err(Refusal::NotFinite);
            }
            words.push(ranked(index, magnitude));
        }
    }
    Ok(())
}

/// Leaves in `places` the indices of all elements that are not zero.
///
/// # Errors
/// As for [`candidates`]. [`Refusal::NotShorter`] as soon as there are too many.
fn all(floats: &[[u8; F32_BYTES]], places: &mut Vec<u64>) -> Result<(), Refusal> {
    places.clear();
    let most = TopK::entries_max(floats.len() as u64);
    let mut is_finite = true;
    for (index, float) in floats.iter().enumerate() {
        let magnitude = magnitude(*float);
        is_finite &= magnitude < INFINITE;
        if magnitude > 0 {
            if places.len() as u64 == most {
                return Err(Refusal::NotShorter);
            }
            places.push(index as u64);
        }
    }
    if is_finite { Ok(()) } else { Err(Refusal::NotFinite) }
}

/// Writes the entries at `places`, which rise. Returns how many bytes they have.
///
/// # Errors
/// [`Refusal::NotShorter`] if they have as many as the elements, or more.
fn write(floats: &[[u8; F32_BYTES]], places: &[u64], body: &mut [u8]) -> Result<usize, Refusal> {
    let room = (floats.len() * F32_BYTES).min(body.len());
    let mut writer = Writer { body: &mut body[..room], used: 0 };
    writer.number(places.len() as u64)?;
    let mut next = 0;
    for place in places {
        writer.number(place - next)?;
        next = place + 1;
    }
    for place in places {
        writer.bytes(&floats[usize::try_from(*place).expect("an index of the part")])?;
    }
    if writer.used < floats.len() * F32_BYTES { Ok(writer.used) } else { Err(Refusal::NotShorter) }
}

struct Writer<'a> {
    body: &'a mut [u8],
    used: usize,
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let place = self.body.get_mut(self.used..self.used + bytes.len()).ok_or(Refusal::NotShorter)?;
        place.copy_from_slice(bytes);
        self.used += bytes.len();
        Ok(())
    }

    fn number(&mut self, mut number: u64) -> Result<(), Refusal> {
        while number >= 0x80 {
            self.bytes(&[number as u8 | 0x80])?;
            number >>= 7;
        }
        self.bytes(&[number as u8])
    }
}

/// The entries of a body that was checked, in the order of their indices.
struct Entries<'a> {
    gaps: &'a [u8],
    values: std::slice::Iter<'a, [u8; F32_BYTES]>,
    next: usize,
}

impl<'a> Entries<'a> {
    /// Checks all of a body of a part of `len` elements.
    fn read(body: &'a [u8], len: usize) -> Result<Self, Malformed> {
        let mut rest = body;
        let count = number(&mut rest)?;
        if count > len as u64 {
            return Err(malformed(format!("has {count} entries of {len} elements")));
        }
        let gaps = rest;
        let mut next = 0;
        for _ in 0..count {
            // Below 2^32 plus the length of a part.
            next += number(&mut rest)? + 1;
            if next > len as u64 {
                return Err(malformed(format!("has an entry for the element {} of {len}", next - 1)));
            }
        }
        let (values, torn) = rest.as_chunks();
        if values.len() as u64 != count || !torn.is_empty() {
            return Err(malformed(format!("has {} bytes of values for {count} entries", rest.len())));
        }
        if let Some(value) = values.iter().find(|value| !(1..INFINITE).contains(&magnitude(**value))) {
            return Err(malformed(format!("has an entry with the value {}", f32::from_le_bytes(*value))));
        }
        Ok(Self { gaps, values: values.iter(), next: 0 })
    }
}

impl Iterator for Entries<'_> {
    type Item = (usize, f32);

    fn next(&mut self) -> Option<Self::Item> {
        let value = self.values.next()?;
        let gap = number(&mut self.gaps).expect("`read` checked it");
        let index = self.next + usize::try_from(gap).expect("`read` checked it");
        self.next = index + 1;
        Some((index, f32::from_le_bytes(*value)))
    }
}

/// Takes a number of at most 32 bits from the front of `bytes`.
fn number(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut number = 0;
    for place in 0..5 {
        let Some((byte, rest)) = bytes.split_first() else { return Err(malformed("ends within a number".to_owned())) };
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            let is_shortest = *byte != 0 || place == 0;
            let fits = number <= u64::from(u32::MAX);
            return if is_shortest && fits {
                Ok(number)
            } else {
                Err(malformed("has a number that nobody writes so".to_owned()))
            };
        }
    }
    Err(malformed("has a number of more than 32 bits".to_owned()))
}

fn malformed(problem: String) -> Malformed {
    Malformed { problem }
}

#[cfg(test)]
mod tests;
