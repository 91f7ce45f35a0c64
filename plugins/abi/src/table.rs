//! The table of functions that the native module hands to op libraries by its address.

use crate::status::{GradlaneError, GradlaneStatus};
use crate::types::{GradlaneOperation, GradlaneSession, GradlaneSubmission};

/// The first bytes of every [`EngineTable`], of any version: `gradlane` in ASCII.
pub const ENGINE_MAGIC: u64 = u64::from_ne_bytes(*b"gradlane");

/// The version of [`EngineTable`] and of the structures that its functions take. Both sides must have the same one: they come in one
/// wheel, so nothing else occurs except where files of two versions were mixed.
pub const ENGINE_VERSION: u32 = 2;

/// The functions of the engine that an op library needs. The table lives as long as the native module is loaded, which is until the
/// process ends. Sessions are integers, so that one that has ended is an error and not a stray pointer.
#[derive(Debug)]
#[repr(C)]
pub struct EngineTable {
    /// [`ENGINE_MAGIC`].
    pub magic: u64,
    /// [`ENGINE_VERSION`].
    pub version: u32,
    /// `size_of::<EngineTable>()`.
    pub struct_size: u32,
    /// Submits one tensor, or a group as one operation, as `gradlane_submit` and `gradlane_submit_all` do. If the arguments are wrong, it
    /// returns the status and nevertheless gives an operation, which has failed with that error. No callback runs then.
    pub begin: unsafe extern "C" fn(
        session: GradlaneSession,
        submissions: *const GradlaneSubmission,
        count: usize,
        operation: *mut GradlaneOperation,
    ) -> GradlaneStatus,
    /// `gradlane_wait`.
    pub wait: unsafe extern "C" fn(
        operation: GradlaneOperation,
        timeout_ms: u64,
        error: *mut GradlaneError,
    ) -> GradlaneStatus,
    /// `gradlane_cancel`.
    pub cancel: unsafe extern "C" fn(operation: GradlaneOperation, error: *mut GradlaneError) -> GradlaneStatus,
    /// `gradlane_release`.
    pub release: unsafe extern "C" fn(operation: GradlaneOperation, error: *mut GradlaneError) -> GradlaneStatus,
}
