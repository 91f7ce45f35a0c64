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
