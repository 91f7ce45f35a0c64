//! Whole bodies, for tests.

use super::{Codec, Refusal, Seed, Tools, Workspace};
use crate::reduce::Kernels;
use crate::types::{Op, PartId, Round, TensorKey};

/// The seed of these functions.
pub const SEED: fn() -> Seed = || Seed::of(PartId { key: TensorKey(5), index: 6 }, Round(7));

/// The body of these `len` elements.
///
/// # Errors
/// As for [`Codec::encode`].
pub fn encoded(
    codec: &dyn Codec,
    kernels: Kernels,
    divisor: f64,
    elements: &[u8],
    len: u64,
) -> Result<Vec<u8>, Refusal> {
    filled(codec, len, |body, workspace| {
        codec.encode(Tools { kernels, seed: SEED(), workspace }, divisor, elements, body)
    })
}

/// The body of this sum.
///
/// # Errors
/// As for [`Codec::finish`].
pub fn finished(codec: &dyn Codec, kernels: Kernels, op: Op, divisor: f64, sum: &[u8]) -> Result<Vec<u8>, Refusal> {
    filled(codec, sum.len() as u64 / codec.sum_type().bytes(), |body, workspace| {
        codec.finish(Tools { kernels, seed: SEED(), workspace }, op, divisor, sum, body)
    })
}

/// Places of two small elements beside large ones, and whether their sum is added to these, as the order of `onebit` is.
pub const ORDERS: [([usize; 2], bool); 10] = [
    // Of a block at one place of the words: that of the large ones, and another.
    ([64, 96], false),
    ([1, 33], true),
    // At two places that meet before the first one, and at two that do not.
    ([1, 17], true),
    ([1, 2], false),
    ([8, 16], false),
    // Of another block. Then of blocks whose sums are added first, and of two that do not meet before the first one.
    ([2048, 2048 + 5], true),
    ([2048, 33 * 2048], true),
    ([2048, 17 * 2048], true),
    ([32 * 2048, 33], false),
    ([8 * 2048, 16 * 2048], false),
];

/// 2^17 elements whose mean is in the middle of two f32, but for two small elements at these places. Each of them alone is lost beside the
/// large ones in f64, and their sum is not.
pub fn at_a_tie(places: [usize; 2]) -> Vec<f32> {
    let mut elements = vec![0.0; 1 << 17];
    (elements[0], elements[32]) = (2.0_f32.powi(100), 2.0_f32.powi(100 - 24));
    places.iter().for_each(|at| elements[*at] = -2.0_f32.powi(100 - 53));
    elements
}

/// Places of four small elements, and whether their squares are added to each other before they come to those of large ones, as the order of
/// `dithering` is.
pub const ORDERS_OF_SQUARES: [([usize; 4], bool); 8] = [
    // Of a block: of the lane of the large ones, and of another.
    ([128, 160, 192, 224], false),
    ([1, 33, 65, 97], true),
    // Of lanes that meet before the first one, and of some that do not.
    ([1, 17, 9, 25], true),
    ([1, 2, 4, 8], false),
    // Of one other block, also if its sum is added right behind that of the large ones; then of blocks as for lanes.
    ([2048, 2080, 2112, 2144], true),
    ([32 * 2048, 32 * 2048 + 32, 32 * 2048 + 64, 32 * 2048 + 96], true),
    ([2048, 17 * 2048, 9 * 2048, 25 * 2048], true),
    ([2048, 2 * 2048, 4 * 2048, 8 * 2048], false),
];

/// Elements the root of whose squares is in the middle of 1 and the next f32, but for small elements at these places. The square of each of
/// them alone is lost beside the large ones in f64, and their sum is not.
pub fn at_a_tie_of_squares(places: [usize; 4]) -> Vec<f32> {
    let mut elements = vec![0.0; 33 * 2048];
    // 1 + 2^-23 + 2^-48 is the square of 1 + 2^-24.
    for (at, exponent) in [(0, 0), (32, -12), (64, -12), (96, -24)] {
        elements[at] = 2.0_f32.powi(exponent);
    }
    places.iter().for_each(|at| elements[*at] = -1.4 * 2.0_f32.powi(-27));
    elements
}

fn filled(
    codec: &dyn Codec,
    len: u64,
    fill: impl FnOnce(&mut [u8], &mut Workspace) -> Result<usize, Refusal>,
) -> Result<Vec<u8>, Refusal> {
    let due = codec.body_bytes(len);
    let mut body = vec![0xee; usize::try_from(due.max()).expect("small")];
    let used = fill(&mut body, &mut Workspace::default())?;
    body.truncate(used);
    assert_eq!(due.check(body.len() as u64), Ok(()), "a body of {}", codec.spec());
    Ok(body)
}
