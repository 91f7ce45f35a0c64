//! Pushes and pulls of keys that the [`Handle`] of the server's user does, block by block.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gradlane_core::error::{Error, panic_text};
use gradlane_core::mem::{Frozen, Lease};
use gradlane_core::types::PartId;

use crate::handle::{Failure, Handle, Request};
use crate::node::accumulator::SumResources;
use crate::node::command::KeyUse;

/// A use of a part of a key, for the handle.
pub(super) struct Handled<'a> {
    pub(super) handle: &'a dyn Handle,
    pub(super) part: PartId,
    pub(super) used: KeyUse,
}

impl Handled<'_> {
    /// The value that the handle makes of the one before and of what was pushed. It gets copies, because answers may share the blocks.
    ///
    /// # Errors
    /// Why the value of the part is lost.
    pub(super) fn push(
        &self,
        resources: &SumResources,
        before: &[Frozen],
        pushed: Vec<Lease>,
    ) -> Result<Vec<Lease>, Error> {
        assert_eq!(before.len(), pushed.len(), "all bodies of a part are cut alike");
        let mut begin = 0;
        let made = before.iter().zip(pushed).map(|(before, pushed)| {
            let request = self.request(&mut begin, before.len());
            let mut value = resources.pool.lease(before.len());
            resources.copies.copy(before, &mut value);
            let done = self.guarded(&request, "push", || self.handle.push(&request, &mut value, &pushed));
            done.map(|()| value).map_err(|what| Error::TensorState {
                tensor: self.part.key.into(),
                what: format!("{what}; the value of part {} of the key is lost", self.part.index),
                hint: "correct the handle of the server; the key begins anew once all workers have undeclared it"
                    .to_owned(),
            })
        });
        made.collect()
    }

    /// What the handle gives to a pull in place of the value; `None` for the value itself.
    ///
    /// # Errors
    /// Why it gives nothing.
    pub(super) fn pull(&self, resources: &SumResources, value: &[Frozen]) -> Result<Option<Vec<Frozen>>, Error> {
        let mut begin = 0;
        let mut is_other = false;
        let answer = value.iter().map(|block| {
            let request = self.request(&mut begin, block.len());
            let answer = self.guarded(&request, "pull", || {
                let answer = self.handle.pull(&request, block)?;
                match answer.as_ref().map(Vec::len).filter(|len| *len != block.len()) {
                    Some(len) => Err(format!("it gives {len} bytes for {}", block.len()).into()),
                    None => Ok(answer),
                }
            });
            let refused = |what| Error::TensorState {
                tensor: self.part.key.into(),
                what,
                hint: "correct the handle of the server".to_owned(),
            };
            let Some(bytes) = answer.map_err(refused)? else { return Ok(block.clone()) };
            is_other = true;
            let mut other = resources.pool.lease(bytes.len());
            resources.copies.copy(&bytes, &mut other);
            Ok(other.freeze())
        });
        let answer: Vec<Frozen> = answer.collect::<Result<_, Error>>()?;
        Ok(if is_other { Some(answer) } else { None })
    }

    /// The request about the next block, which begins at `begin` of the part.
    fn request(&self, begin: &mut u64, block_bytes: usize) -> Request {
        let KeyUse { worker, dtype, key } = self.used;
        let first = key.offset + *begin;
        *begin += block_bytes as u64;
        let elements = first / dtype.bytes()..(key.offset + *begin) / dtype.bytes();
        Request::new(worker, (key.app, key.key), dtype, elements)
    }

    /// Calls the handle. A panic in it is its failure, and must not reach the lane, which would lose all that it keeps.
    fn guarded<T>(
        &self,
        Request { worker, elements, .. }: &Request,
        access: &str,
        call: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, String> {
        let problem = match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(failure)) => format!("failed: {failure}"),
            Err(panic) => format!("panicked: {}", panic_text(&*panic).unwrap_or("no message")),
        };
        Err(format!(
            "the handle {}, in a {access} of {worker} for the elements {} to {}, {problem}",
            self.handle.name(),
            elements.start,
            elements.end.saturating_sub(1),
        ))
    }
}
