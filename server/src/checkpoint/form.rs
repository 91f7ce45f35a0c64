//! What is equal in writing and reading: the form of files, and where pieces lie in a part.

use std::fs::File;
use std::os::unix::fs::FileExt;

use gradlane_core::types::{DType, PartLayout, Piece};
use safetensors::tensor::Dtype;

/// The pieces of a part, and where each begins in it, in bytes.
pub(super) fn places(layout: &PartLayout) -> impl Iterator<Item = (Piece, u64)> + '_ {
    layout.pieces.iter().scan(0, |at, piece| {
        let begins = *at;
        *at += piece.span.bytes;
        Some((*piece, begins))
    })
}

/// How files in the form of safetensors call an element type.
pub(super) const fn form(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I8 => Dtype::I8,
        DType::U8 => Dtype::U8,
    }
}

/// The header of a file in the form of safetensors, and the length that precedes it.
///
/// # Errors
/// Those of the system; [`InvalidData`](std::io::ErrorKind::InvalidData) if there cannot be such a header.
pub(super) fn header_of(file: &File) -> std::io::Result<Vec<u8>> {
    let mut len = [0; 8];
    file.read_exact_at(&mut len, 0)?;
    let bytes = u64::from_le_bytes(len);
    if bytes > HEADER_BYTES_MAX || bytes + 8 > file.metadata()?.len() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, format!("a header of {bytes} bytes")));
    }
    let mut header = vec![0; place(bytes + 8)];
    file.read_exact_at(&mut header, 0)?;
    Ok(header)
}

/// The most bytes of a header in the form of safetensors, as other readers of it have it.
const HEADER_BYTES_MAX: u64 = 100 << 20;

/// A number of bytes or elements of a part, which lies in memory.
pub(super) fn place(number: u64) -> usize {
    usize::try_from(number).expect("it lies in memory")
}
