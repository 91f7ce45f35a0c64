//! The memory of the residuals of error feedback. The machine decides when each begins and ends.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::codec::feedback::{Residual, Start};
use crate::codec::{Codec, Refusal, Tools};
use crate::types::{Momentum, PartId};

/// The residuals of this worker, by part.
#[derive(Debug)]
pub(super) struct Residuals {
    parts: BTreeMap<PartId, SharedResidual>,
    /// Bytes of all of them.
    bytes: Arc<AtomicU64>,
}

/// The residual of a part. A step that encodes keeps it alive, also if the part ends meanwhile.
#[derive(Clone, Debug)]
pub(super) struct SharedResidual(Arc<Mutex<Counted>>);

/// A residual whose memory is counted as long as it exists.
#[derive(Debug)]
struct Counted {
    residual: Residual,
    counted: u64,
    bytes: Arc<AtomicU64>,
}

impl Residuals {
    /// None. `bytes` counts their memory.
    pub(super) fn counted_in(bytes: Arc<AtomicU64>) -> Self {
        Self { parts: BTreeMap::new(), bytes }
    }

    /// The residual of a part, which may be new. Its memory is taken when the part is encoded.
    pub(super) fn of(&mut self, part: PartId) -> SharedResidual {
        let new = || {
            let counted = Counted { residual: Residual::default(), counted: 0, bytes: Arc::clone(&self.bytes) };
            SharedResidual(Arc::new(Mutex::new(counted)))
        };
        self.parts.entry(part).or_insert_with(new).clone()
    }

    /// The part has no residual any more.
    pub(super) fn drop_of(&mut self, part: PartId) {
        self.parts.remove(&part);
    }
}

impl SharedResidual {
    /// Encodes a whole part with its residual and its momentum, as [`Residual::encode`].
    ///
    /// # Errors
    /// As [`Residual::encode`].
    pub(super) fn encode(
        &self,
        (start, momentum): (Start, Option<Momentum>),
        codec: &dyn Codec,
        tools: Tools<'_>,
        divisor: f64,
        elements: &[u8],
        body: &mut [u8],
    ) -> Result<usize, Refusal> {
        let mut counted = self.lock();
        counted.residual.start(start, elements.len() / 4, momentum);
        counted.count();
        counted.residual.encode(codec, tools, divisor, 0, elements, body)
    }
}

impl SharedResidual {
    /// What is there of the part's bytes from `offset` on, if the part has so many: residual and velocity. Zeros, if it is not `kept`.
    pub(super) fn read(&self, kept: bool, offset: usize, [residual, velocity]: [&mut [u8]; 2]) {
        let counted = self.lock();
        if kept {
            counted.residual.read(offset, residual, velocity);
        }
    }

    /// Puts back what was there of a part of `bytes` bytes. What is not `kept` of it becomes zero.
    pub(super) fn write(
        &self,
        kept: bool,
        (bytes, momentum): (usize, Option<Momentum>),
        offset: usize,
        [residual, velocity]: [&[u8]; 2],
    ) {
        let mut counted = self.lock();
        let start = if kept { Start::Kept } else { Start::Zero };
        counted.residual.start(start, bytes / 4, momentum);
        counted.count();
        counted.residual.write(offset, residual, velocity);
    }

    /// Keeps also what was there before each body, from the next one on.
    pub(super) fn hold(&self) {
        self.lock().residual.hold();
    }

    /// Takes back what the latest body has changed in `range` of the part's bytes.
    pub(super) fn take_back(&self, range: Range<usize>) {
        self.lock().residual.take_back(range);
    }

    /// Nobody waits for the lock, because a part is encoded once a round, and its residual is read and written between rounds.
    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
    fn count(&mut self) {
        let bytes = self.residual.bytes() as u64;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(std::mem::replace(&mut self.counted, bytes), Ordering::Relaxed);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.counted, Ordering::Relaxed);
    }
}
