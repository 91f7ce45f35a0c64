//! How a transport looks for NaN and infinities in a body that it copies.

use crate::error::Error;
use crate::mem::{Region, borrow};
use crate::reduce::Kernels;
use crate::types::{DType, Finding};

/// What to look for in the elements of a body.
#[derive(Debug)]
pub struct Look {
    /// The type of the elements. Each region of the body has whole elements.
    pub dtype: DType,
    /// Raised before the exchange ends, if there is a NaN or an infinity in what was sent, or was to be sent.
    pub finding: Finding,
    /// Ends the exchange then, before the last byte of the body is sent. If there is none, the body is sent all the same.
    pub refusal: Option<Error>,
    /// The loops that look.
    pub kernels: Kernels,
}

impl Look {
    /// Looks at whole elements. Returns whether they may be sent.
    pub(super) fn passes(&self, elements: &[u8]) -> bool {
        if self.kernels.all_finite(self.dtype, elements) {
            return true;
        }
        self.finding.raise();
        self.refusal.is_none()
    }

    /// As [`passes`](Self::passes), for a body before its exchange begins.
    pub(super) fn passes_all(&self, body: &[Region]) -> bool {
        borrow::all(body, |elements| self.passes(elements))
    }
}
