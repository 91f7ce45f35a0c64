//! A segment of the model: words that both sides see, without any bytes.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::transport::shm::SEGMENT_BYTES;

/// The words of one side, by offset: of 64 bits, or of 32 where the protocol has such.
#[derive(Clone)]
pub struct Segment(Arc<Vec<(AtomicU64, AtomicU32)>>);

/// As the other side sees a segment.
pub struct Shown(pub Segment);

impl Default for Segment {
    /// All words are zero.
    fn default() -> Self {
        Self(Arc::new((0..SEGMENT_BYTES / 4).map(|_| (AtomicU64::new(0), AtomicU32::new(0))).collect()))
    }
}

impl Segment {
    /// The word of 64 bits at an offset.
    pub fn u64(&self, at: usize) -> &AtomicU64 {
        &self.0[at / 4].0
    }

    /// The word of 32 bits at an offset.
    pub fn u32(&self, at: usize) -> &AtomicU32 {
        &self.0[at / 4].1
    }

    /// No bytes.
    ///
    /// # Safety
    /// Always safe; as in production, where it is not.
    #[expect(unsafe_code, reason = "the signature of production")]
    pub unsafe fn slice_mut(&self, _at: usize, _bytes: usize) -> &mut [u8] {
        &mut []
    }
}

impl Shown {
    /// The word of 64 bits at an offset.
    pub fn u64(&self, at: usize) -> u64 {
        self.0.u64(at).load(Ordering::SeqCst)
    }

    /// The word of 32 bits at an offset.
    pub fn u32(&self, at: usize) -> u32 {
        self.0.u32(at).load(Ordering::SeqCst)
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        SEGMENT_BYTES
    }

    /// No bytes.
    ///
    /// # Safety
    /// Always safe; as in production, where it is not.
    #[expect(unsafe_code, reason = "the signature of production")]
    pub unsafe fn slice(&self, _at: usize, _bytes: usize) -> &[u8] {
        &[]
    }
}
