//! Lends sessions that were joined in Rust to op libraries of frameworks, which call the engine by addresses.
//!
//! An op library is built without the engine, and is loaded by its framework. It gets the address of the [`EngineTable`] and the integer
//! of a session, and calls the functions of the C interface.
#![expect(unsafe_code, reason = "functions that another library calls")]

use std::ptr::null_mut;
use std::sync::Arc;

use gradlane_abi::{
    ENGINE_MAGIC, ENGINE_VERSION, EngineTable, GradlaneOperation, GradlaneSession, GradlaneStatus, GradlaneSubmission,
};
use gradlane_core::{Error, Result};

use super::answer::{answer, status_of};
use super::operations::{self, gradlane_cancel, gradlane_release, gradlane_wait, submit, submit_all};
use super::read::{present, write};
use super::sessions::{lend, take_back};
use crate::session::Session;

/// The table for op libraries. It stays as it is until the process ends.
pub fn engine_table() -> &'static EngineTable {
    const TABLE: EngineTable = EngineTable {
        magic: ENGINE_MAGIC,
        version: ENGINE_VERSION,
        struct_size: size_of::<EngineTable>() as u32,
        begin,
        wait: gradlane_wait,
        cancel: gradlane_cancel,
        release: gradlane_release,
    };
    &TABLE
}

/// The error of an operation that an op library has submitted; `None` if it has not failed, has not ended, or was released.
pub fn failure(operation: GradlaneOperation) -> Option<Error> {
    operations::failure(operation)
}

/// A session with an integer, which is valid until this is dropped.
#[derive(Debug)]
pub struct LentSession(GradlaneSession);

impl LentSession {
    /// Lends a session.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if the process has 2^32 sessions.
    pub fn new(session: Arc<Session>) -> Result<Self> {
        lend(session).map(Self)
    }

    /// The session's integer.
    pub fn key(&self) -> GradlaneSession {
        self.0
    }
}

impl Drop for LentSession {
    fn drop(&mut self) {
        take_back(self.0);
    }
}

/// [`EngineTable::begin`].
unsafe extern "C" fn begin(
    session: GradlaneSession,
    submissions: *const GradlaneSubmission,
    count: usize,
    operation: *mut GradlaneOperation,
) -> GradlaneStatus {
    let call = || {
        present(operation, "operation")?;
        let begun = match count {
            // SAFETY: promised by the caller of this function.
            1 => unsafe { submit(session, submissions) },
            // SAFETY: promised by the caller of this function.
            _ => unsafe { submit_all(session, submissions, count) },
        };
        let (key, status) = match begun {
            Ok(key) => (key, GradlaneStatus::Ok),
            Err(error) => {
                let status = status_of(&error);
                (operations::failed(error)?, status)
            }
        };
        // SAFETY: promised by the caller of this function.
        unsafe { write(operation, "operation", key) }?;
        Ok(status)
    };
    // SAFETY: null is allowed for the description of an error.
    unsafe { answer(null_mut(), call) }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use gradlane_abi::{Attachment, Door, GradlaneDtype, GradlaneOp};
    use gradlane_core::config::Config;

    use super::*;

    #[test]
    fn an_op_library_reduces_over_a_lent_session_until_it_is_taken_back() {
        static DOOR: Door = Door::new();
        let session = Arc::new(Session::alone(&Config::default()).unwrap());
        let lent = LentSession::new(Arc::clone(&session)).unwrap();
        let (source, mut sum) = ([1.5_f32, 2.5], [0.0_f32; 2]);
        // SAFETY: the table stays.
        assert_eq!(unsafe { DOOR.attach(engine_table(), lent.key()) }, Attachment::Attached);
        let given = submission(&source, &mut sum);
        // SAFETY: the memory lives in this function, which waits for the end of the operation.
        unsafe { DOOR.begin(&[given]) }.unwrap().wait().unwrap();
        assert_eq!(sum, source);

        drop(lent);
        // SAFETY: as above.
        let mut refused = unsafe { DOOR.begin(&[given]) }.unwrap();
        let told = refused.wait().unwrap_err();
        assert_eq!(told.status, GradlaneStatus::FailedPrecondition, "{told:?}");
        assert_eq!(failure(DOOR.failures()[0]).unwrap().to_string(), told.text);
        assert_eq!(Arc::strong_count(&session), 1, "nothing holds the session any more");
    }

    #[test]
    fn wrong_arguments_are_an_operation_that_has_failed() {
        static DOOR: Door = Door::new();
        let lent = LentSession::new(Arc::new(Session::alone(&Config::default()).unwrap())).unwrap();
        // SAFETY: the table stays.
        unsafe { DOOR.attach(engine_table(), lent.key()) };
        let (source, mut sum) = ([1.0_f32; 2], [0.0_f32; 2]);
        let wrong = GradlaneSubmission { dtype: 99, ..submission(&source, &mut sum) };
        // SAFETY: the memory lives in this function; the operation has ended at once.
        let told = unsafe { DOOR.begin(&[wrong, wrong]) }.unwrap().wait().unwrap_err();
        assert_eq!(told.canonical_code(), 3);
        assert!(told.text.contains("dtype 99"), "{told:?}");
        assert_eq!(failure(DOOR.failures()[0]).unwrap().to_string(), told.text);
    }

    fn submission(source: &[f32; 2], destination: &mut [f32; 2]) -> GradlaneSubmission {
        GradlaneSubmission {
            name: c"w".as_ptr(),
            shape: [2_u64].as_ptr(),
            dimensions: 1,
            source: source.as_ptr().cast_mut().cast::<c_void>(),
            destination: destination.as_mut_ptr().cast::<c_void>(),
            bytes: 8,
            dtype: GradlaneDtype::Float32 as u32,
            op: GradlaneOp::Sum as u32,
            ..GradlaneSubmission::empty()
        }
    }
}
