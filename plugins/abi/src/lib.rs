//! What two separately built libraries must agree on: the numbers and structures of the C interface, and the [`EngineTable`] by which
//! an op library of a framework reaches the sessions of the native module.
//!
//! Nothing here depends on the engine. `gradlane_session` fills the table; the tiny op libraries of TensorFlow and XLA hold a [`Door`]
//! to which Python gives the table's address and the integer of a session.

mod door;
mod status;
mod table;
mod types;

pub use door::{Attachment, Door, Failure, Operation};
pub use status::{GradlaneError, GradlaneStatus};
pub use table::{ENGINE_MAGIC, ENGINE_VERSION, EngineTable};
pub use types::{
    GRADLANE_ABI_VERSION, GRADLANE_FOREVER, GradlaneCallback, GradlaneDtype, GradlaneMemory, GradlaneOp,
    GradlaneOperation, GradlaneSession, GradlaneSetting, GradlaneSubmission, GradlaneTensor,
};

/// Exports the functions by which Python drives the [`Door`] of an op library: `gradlane_op_attach` and `gradlane_op_failures`.
#[macro_export]
macro_rules! export_door {
    ($door:ident) => {
        /// Sends all further submissions to `session`, 0 for none, through the functions at `table`. Returns an [`Attachment`].
        ///
        /// # Safety
        /// As [`Door::attach`].
        ///
        /// [`Attachment`]: gradlane_abi::Attachment
        #[unsafe(no_mangle)]
        #[expect(unsafe_code, reason = "Python gives an address")]
        pub unsafe extern "C" fn gradlane_op_attach(
            table: *const $crate::EngineTable,
            session: $crate::GradlaneSession,
        ) -> i32 {
            // SAFETY: promised by the caller of this function.
            unsafe { $door.attach(table, session) as i32 }
        }

        /// Writes the last operations that failed, newest first, at most `capacity` of them. Returns how many it wrote.
        ///
        /// # Safety
        /// `operations` has room for `capacity` numbers.
        #[unsafe(no_mangle)]
        #[expect(unsafe_code, reason = "Python gives an address")]
        pub unsafe extern "C" fn gradlane_op_failures(
            operations: *mut $crate::GradlaneOperation,
            capacity: usize,
        ) -> usize {
            let failures = $door.failures();
            let count = failures.len().min(capacity);
            // SAFETY: the caller of this function promises room for so many.
            unsafe { operations.copy_from_nonoverlapping(failures.as_ptr(), count) };
            count
        }
    };
}
