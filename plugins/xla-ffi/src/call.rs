//! The call itself: one group of the engine for all arrays.
#![expect(unsafe_code, reason = "lends XLA's buffers to the engine")]

use std::ffi::{CString, NulError};

use gradlane_abi::{
    Attributes, Door, Failure, GradlaneDtype, GradlaneOp, GradlaneStatus, GradlaneSubmission, Reduction, lines,
};

use crate::frame::{Buffer, Frame};

/// The element types that can be reduced, by XLA's numbers (`XLA_FFI_DataType`).
const TYPES: [(i32, GradlaneDtype); 8] = [
    (11, GradlaneDtype::Float32),
    (12, GradlaneDtype::Float64),
    (10, GradlaneDtype::Float16),
    (16, GradlaneDtype::Bfloat16),
    (4, GradlaneDtype::Int32),
    (5, GradlaneDtype::Int64),
    (2, GradlaneDtype::Int8),
    (6, GradlaneDtype::Uint8),
];

/// XLA's other types whose bits can be broadcast, as elements of the same size: bool, 16, 32 and 64 bits unsigned, 16 bits signed, and
/// pairs of 32 bits.
const BITS: [(i32, GradlaneDtype); 6] = [
    (1, GradlaneDtype::Uint8),
    (7, GradlaneDtype::Float16),
    (8, GradlaneDtype::Int32),
    (9, GradlaneDtype::Int64),
    (3, GradlaneDtype::Float16),
    (15, GradlaneDtype::Int64),
];

/// Reduces the arguments into the results. In a weighted mean the last argument is the weight, a scalar of 32 bits.
///
/// Beside them travels an array without meaning, whose length stands for the structure of the tree. If the trees of two workers differ, that
/// is an error on every worker at once. Otherwise each would wait until the step timeout for arrays that the others do not have.
///
/// # Safety
/// The buffers are valid until this function returns.
pub(crate) unsafe fn push_pull(frame: &Frame<'_>, door: &'static Door) -> Result<(), Failure> {
    let reduction = Reduction::read(Attributes {
        op: frame.text("op")?,
        root: frame.number("root")?,
        priority: frame.number("priority")?,
        codec: frame.text("codec")?,
        timeout_ms: frame.number("timeout_ms")?,
    })?;
    let (sources, weight) = match (reduction.op, frame.arguments.split_last()) {
        // SAFETY: promised by the caller of this function.
        (GradlaneOp::WeightedMean, Some((weight, sources))) => (sources, unsafe { scalar(weight) }?),
        _ => (&frame.arguments[..], 1.0),
    };
    let names = lines(frame.text("names")?).map_err(zero_byte)?;
    let structure_name = CString::new(frame.text("structure_name")?).map_err(zero_byte)?;
    let counts = [names.len(), frame.results.len(), reduction.codecs.len()];
    if counts[..2] != [sources.len(); 2] || ![1, sources.len()].contains(&counts[2]) {
        let [names, results, codecs] = counts;
        let text = format!("{names} names, {results} results and {codecs} codecs for {} arrays", sources.len());
        return Err(invalid(text));
    }
    let structure_len = frame.number("structure_len")?;
    let structure_len =
        u64::try_from(structure_len).map_err(|_| invalid(format!("structure_len={structure_len} is out of range")))?;

    let mut submissions = Vec::with_capacity(sources.len());
    for (index, ((name, source), result)) in names.iter().zip(sources).zip(&frame.results).enumerate() {
        let dtype = dtype(reduction.op, source.dtype)
            .ok_or_else(|| invalid(format!("{name:?}: an array of XLA's type {}", source.dtype)))?;
        let elements: u64 = source.shape().iter().product();
        let bytes = usize::try_from(elements).ok().and_then(|elements| elements.checked_mul(dtype.bytes()));
        submissions.push(GradlaneSubmission {
            name: name.as_ptr(),
            shape: source.shape().as_ptr(),
            dimensions: source.shape().len(),
            source: source.data,
            destination: result.data,
            bytes: bytes.ok_or_else(|| invalid(format!("{name:?}: larger than the address space")))?,
            dtype: dtype as u32,
            ..reduction.submission(index, weight)
        });
    }
    let mut structure = vec![0_u8; usize::try_from(structure_len).unwrap_or_default()];
    let agreement = GradlaneSubmission {
        name: structure_name.as_ptr(),
        shape: &raw const structure_len,
        dimensions: 1,
        source: structure.as_mut_ptr().cast(),
        bytes: structure.len(),
        timeout_ms: reduction.timeout_ms,
        dtype: GradlaneDtype::Uint8 as u32,
        op: GradlaneOp::Max as u32,
        priority: reduction.priority.saturating_add(1),
        ..GradlaneSubmission::empty()
    };

    // SAFETY: XLA's buffers are valid until this function returns, and so is the array of the structure. It returns after the end of both
    // operations. XLA writes to no argument, and neither reads nor writes a result meanwhile.
    let (mut agreement, arrays) = unsafe { (door.begin(&[agreement])?, door.begin(&submissions)) };
    let agreed = kept(agreement.wait());
    let mut arrays = arrays?;
    if agreed.is_err() {
        // The others have the same error, and cancel, too.
        arrays.cancel();
    }
    let reduced = kept(arrays.wait());
    agreed.and(reduced)
}

/// The outcome of an operation. Ends the process if the engine is stuck: XLA uses its buffers again as soon as the call returns, and the
/// engine may still write to them. Nothing can take them from XLA, and a wait without end would be no better.
fn kept(outcome: Result<(), Failure>) -> Result<(), Failure> {
    if let Err(failure) = &outcome
        && failure.status == GradlaneStatus::Unresponsive
    {
        eprintln!(
            "gradlane: the process ends, because XLA would use memory that the engine may still write: {}",
            failure.text
        );
        std::process::abort();
    }
    outcome
}

/// # Safety
/// The buffer is valid.
unsafe fn scalar(of: &Buffer) -> Result<f64, Failure> {
    if TYPES[0].0 != of.dtype || !of.shape().is_empty() {
        return Err(invalid("the weight is no scalar of 32 bits".to_owned()));
    }
    // SAFETY: it holds one such number.
    Ok(f64::from(unsafe { of.data.cast::<f32>().read_unaligned() }))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn zero_byte(error: NulError) -> Failure {
    invalid(format!("a name: {error}"))
}

/// The engine's type for the elements of an array.
fn dtype(op: GradlaneOp, number: i32) -> Option<GradlaneDtype> {
    let bits = if op == GradlaneOp::Broadcast { &BITS[..] } else { &[] };
    TYPES.iter().chain(bits).find(|(known, _)| *known == number).map(|(_, dtype)| *dtype)
}

fn invalid(text: String) -> Failure {
    Failure::new(GradlaneStatus::InvalidArgument, text)
}
