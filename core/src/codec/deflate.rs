//! DEFLATE streams (RFC 1951), each of a short input on its own, by `miniz_oxide`.

use std::fmt;

use miniz_oxide::DataFormat;
use miniz_oxide::deflate::core::{CompressionStrategy, CompressorOxide, TDEFLFlush, TDEFLStatus, compress};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};

/// Makes streams.
pub(super) struct Deflater(Box<CompressorOxide>);

/// Reads streams.
#[derive(Default)]
pub(super) struct Inflater(Box<DecompressorOxide>);

impl Deflater {
    /// Writes the stream of `plain` to the beginning of `stream`. Returns how many bytes it has; `None` if there is no room for it.
    pub(super) fn deflate(&mut self, plain: &[u8], stream: &mut [u8]) -> Option<usize> {
        self.0.reset();
        let (status, _, bytes) = compress(&mut self.0, plain, stream, TDEFLFlush::Finish);
        if status == TDEFLStatus::Done { Some(bytes) } else { None }
    }
}

impl Default for Deflater {
    fn default() -> Self {
        // The fastest level: the next one takes twice the time, and saves nothing of exponents and a fifth of sparse planes.
        Self(Box::new(CompressorOxide::with_params(DataFormat::Raw, 1, CompressionStrategy::Default, 15)))
    }
}

impl fmt::Debug for Deflater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deflater")
    }
}

impl Inflater {
    /// Whether `stream` is a stream, ends with its last byte, and brings as many bytes as `plain` has, which are there then. Otherwise `plain`
    /// has any content. No memory is taken for what a stream brings.
    pub(super) fn inflate(&mut self, stream: &[u8], plain: &mut [u8]) -> bool {
        self.0.init();
        let flags = inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let (status, read, written) = decompress(&mut self.0, stream, plain, 0, flags);
        status == TINFLStatus::Done && read == stream.len() && written == plain.len()
    }
}
