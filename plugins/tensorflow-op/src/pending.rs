//! Operations between `GradlaneSubmit` and `GradlaneWait`, with the memory that they use, by the number in the handle.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gradlane_abi::{Failure, GradlaneStatus, Operation};

use crate::tensor::Tensor;

/// The operations of this process. A static, because in a graph a number must find its operation.
pub(crate) static PENDING: Pending =
    Pending(Mutex::new(Table { last: 0, by_handle: BTreeMap::new(), of_name: BTreeMap::new() }));

/// How many operations of one name may have ended without being waited for. Nobody waits for the operations of a step that TensorFlow
/// cuts off, because another of its ops has failed. Their memory would else be lost.
const UNCLAIMED_MAX: usize = 4;

/// An operation and the memory that it uses. It is dropped only after the operation has ended.
pub(crate) struct Begun {
    pub(crate) operation: Operation,
    pub(crate) sum: Tensor,
    /// Held because the engine reads it.
    pub(crate) _contribution: Tensor,
}

pub(crate) struct Pending(Mutex<Table>);

struct Table {
    last: i64,
    by_handle: BTreeMap<i64, (String, Begun)>,
    of_name: BTreeMap<String, VecDeque<i64>>,
}

impl Pending {
    /// Keeps an operation of the tensor `name`, and returns its handle.
    pub(crate) fn insert(&self, name: &str, begun: Begun) -> i64 {
        let mut table = self.lock();
        table.last += 1;
        let handle = table.last;
        table.by_handle.insert(handle, (name.to_owned(), begun));
        let handles = table.of_name.entry(name.to_owned()).or_default();
        handles.push_back(handle);
        let oldest = if handles.len() > UNCLAIMED_MAX { handles.front().copied() } else { None };
        let is_over = |oldest: &i64| table.by_handle.get(oldest).is_some_and(|(_, begun)| begun.operation.has_ended());
        let abandoned = oldest.filter(is_over).and_then(|oldest| table.remove(oldest));
        drop(table);
        drop(abandoned);
        handle
    }

    /// The operation of a handle, which is not valid afterwards.
    ///
    /// # Errors
    /// If the number is no handle, or was waited for.
    pub(crate) fn take(&self, handle: i64) -> Result<Begun, Failure> {
        let mut table = self.lock();
        let given_out = 1..=table.last;
        table.remove(handle).ok_or_else(|| match given_out.contains(&handle) {
            true => Failure::new(
                GradlaneStatus::FailedPrecondition,
                format!(
                    "handle {handle} was waited for already; wait for each handle once, in the step that submits it"
                ),
            ),
            false => Failure::new(
                GradlaneStatus::InvalidArgument,
                format!("{handle} is no handle of this process; give what GradlaneSubmit has returned"),
            ),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn remove(&mut self, handle: i64) -> Option<Begun> {
        let (name, begun) = self.by_handle.remove(&handle)?;
        if let Some(handles) = self.of_name.get_mut(&name) {
            handles.retain(|other| *other != handle);
            if handles.is_empty() {
                self.of_name.remove(&name);
            }
        }
        Some(begun)
    }
}
