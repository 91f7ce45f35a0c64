//! The side of an op library: holds the table and the session that Python gave, and calls the functions safely.
#![expect(unsafe_code, reason = "calls functions of another library by their addresses")]

use std::ffi::c_char;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::status::{GradlaneError, GradlaneStatus};
use crate::table::{ENGINE_MAGIC, ENGINE_VERSION, EngineTable};
use crate::types::{GRADLANE_FOREVER, GradlaneOperation, GradlaneSession, GradlaneSubmission};

/// How many failed operations are kept, so that Python can ask for their typed errors. A power of two, as their count wraps around.
const FAILURES_MAX: usize = 16;

/// The way of an op library to the session of its process. Each library has one, as a static, because a framework calls an op without any
/// context of ours.
#[derive(Debug)]
pub struct Door {
    table: AtomicPtr<EngineTable>,
    session: AtomicU64,
    /// The last failed operations, 0 for none. Without a lock, because a thread could hold it during a fork.
    failed: [AtomicU64; FAILURES_MAX],
    /// How many operations have failed.
    failures: AtomicUsize,
}

/// The answer to a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Attachment {
    /// Calls go to the session from now on.
    Attached = 0,
    /// There is no table at that address.
    NoTable = 1,
    /// The table is of another version than [`ENGINE_VERSION`].
    OtherVersion = 2,
}

/// Why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The class of failure.
    pub status: GradlaneStatus,
    /// The engine's description.
    pub text: String,
}

impl Failure {
    /// A failure of this class.
    pub fn new(status: GradlaneStatus, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// Of a call before the process has joined a job.
    fn outside() -> Self {
        Self::new(GradlaneStatus::FailedPrecondition, "this process takes part in no job; call gradlane.init() first")
    }

    /// The number of this failure among the canonical status codes, which TensorFlow and XLA share with gRPC.
    pub fn canonical_code(&self) -> i32 {
        match self.status {
            GradlaneStatus::Ok => 0,
            GradlaneStatus::Cancelled => 1,
            GradlaneStatus::InvalidArgument => 3,
            GradlaneStatus::DeadlineExceeded | GradlaneStatus::Unresponsive => 4,
            GradlaneStatus::NotFound => 5,
            GradlaneStatus::AlreadyExists => 6,
            GradlaneStatus::ResourceExhausted => 8,
            GradlaneStatus::FailedPrecondition => 9,
            GradlaneStatus::Aborted | GradlaneStatus::Fenced => 10,
            GradlaneStatus::Pending | GradlaneStatus::Internal => 13,
            GradlaneStatus::Unavailable => 14,
            GradlaneStatus::DataLoss => 15,
            GradlaneStatus::Unauthenticated => 16,
        }
    }
}

impl Door {
    /// A door that leads nowhere yet.
    #[expect(clippy::new_without_default, reason = "only statics are made of it")]
    pub const fn new() -> Self {
        Self {
            table: AtomicPtr::new(null_mut()),
            session: AtomicU64::new(0),
            failed: [const { AtomicU64::new(0) }; FAILURES_MAX],
            failures: AtomicUsize::new(0),
        }
    }

    /// Sends all further calls to this session; 0 for none. Operations that were begun before are not affected.
    ///
    /// # Safety
    /// `table` is null, or leads to 16 bytes that can be read. If these have the magic and the version, they begin a table that stays as
    /// it is until the process ends.
    pub unsafe fn attach(&self, table: *const EngineTable, session: GradlaneSession) -> Attachment {
        if table.is_null() || !table.is_aligned() {
            return Attachment::NoTable;
        }
        // SAFETY: the caller of this function promises that so much can be read.
        let (magic, version) = unsafe { ((*table).magic, (*table).version) };
        if magic != ENGINE_MAGIC {
            return Attachment::NoTable;
        }
        // SAFETY: tables of all versions have their size in the third field.
        if version != ENGINE_VERSION || unsafe { (*table).struct_size } as usize != size_of::<EngineTable>() {
            return Attachment::OtherVersion;
        }
        self.table.store(table.cast_mut(), Ordering::Release);
        self.session.store(session, Ordering::Release);
        Attachment::Attached
    }

    /// Submits one tensor, or several as a group that is submitted as a whole in every round. Errors are those of the operation.
    ///
    /// # Errors
    /// If the process takes part in no job, or the engine cannot even say what is wrong.
    ///
    /// # Safety
    /// The pointers in the structures are as their documentation says, the memory until the operation has ended.
    pub unsafe fn begin(&'static self, submissions: &[GradlaneSubmission]) -> Result<Operation, Failure> {
        let session = self.session.load(Ordering::Acquire);
        let Some(table) = self.table().filter(|_| session != 0) else { return Err(Failure::outside()) };
        let mut key = 0;
        // SAFETY: the table's function has the contract of this function.
        let status = unsafe { (table.begin)(session, submissions.as_ptr(), submissions.len(), &raw mut key) };
        if key == 0 {
            return Err(Failure::new(status, "the engine refused an operation without saying why"));
        }
        Ok(Operation { door: self, table, key, is_kept: false })
    }

    /// The last operations that failed, newest first. The table's owner can say how each of them failed.
    pub fn failures(&self) -> Vec<GradlaneOperation> {
        let count = self.failures.load(Ordering::Acquire);
        let back = |places| self.failed[count.wrapping_sub(places) % FAILURES_MAX].load(Ordering::Acquire);
        (1..=FAILURES_MAX).map(back).filter(|key| *key != 0).collect()
    }

    fn table(&self) -> Option<&'static EngineTable> {
        // SAFETY: `attach` stored null or the address of a table that stays until the process ends.
        unsafe { self.table.load(Ordering::Acquire).as_ref() }
    }

    /// Keeps a failed operation, and returns the one that is too many now.
    fn keep(&self, key: GradlaneOperation) -> Option<GradlaneOperation> {
        let place = self.failures.fetch_add(1, Ordering::AcqRel) % FAILURES_MAX;
        let before = self.failed[place].swap(key, Ordering::AcqRel);
        (before != 0).then_some(before)
    }
}

/// A submitted operation. Dropping it does not end the operation.
#[derive(Debug)]
pub struct Operation {
    door: &'static Door,
    table: &'static EngineTable,
    key: GradlaneOperation,
    /// Whether the door keeps the number because the operation has failed.
    is_kept: bool,
}

impl Operation {
    /// Waits until the operation has ended, which the job's step timeout bounds. The memory is free then, unless the status of the failure is
    /// [`GradlaneStatus::Unresponsive`]: then it stays in use, and the caller must not free it.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn wait(&mut self) -> Result<(), Failure> {
        let mut text = vec![0_u8; 1024];
        loop {
            let mut error = GradlaneError {
                struct_size: size_of::<GradlaneError>(),
                text: text.as_mut_ptr().cast::<c_char>(),
                text_capacity: text.len(),
                text_bytes: 0,
                status: 0,
                retryable: 0,
            };
            // SAFETY: the structure and its text live during the call, and nothing else uses them.
            let status = unsafe { (self.table.wait)(self.key, GRADLANE_FOREVER, &raw mut error) };
            if status == GradlaneStatus::Ok {
                return Ok(());
            }
            if error.text_bytes >= text.len() {
                text.resize(error.text_bytes + 1, 0);
                continue;
            }
            text.truncate(error.text_bytes);
            if !self.is_kept {
                self.is_kept = true;
                let surplus = self.door.keep(self.key);
                surplus.into_iter().for_each(|key| self.release(key));
            }
            return Err(Failure::new(status, String::from_utf8_lossy(&text)));
        }
    }

    /// Cancels the operation on this worker; see `gradlane_cancel`. [`wait`](Self::wait) then soon returns.
    pub fn cancel(&self) {
        // SAFETY: null is allowed for the description of an error. None is expected, because the number is not released yet.
        unsafe { (self.table.cancel)(self.key, null_mut()) };
    }

    /// Whether the operation has ended, with success or an error.
    pub fn has_ended(&self) -> bool {
        // SAFETY: null is allowed for the description of an error.
        unsafe { (self.table.wait)(self.key, 0, null_mut()) != GradlaneStatus::Pending }
    }

    fn release(&self, key: GradlaneOperation) {
        // SAFETY: null is allowed for the description of an error. None is expected, because the number is released once.
        unsafe { (self.table.release)(key, null_mut()) };
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !self.is_kept {
            self.release(self.key);
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_before_any_session_fails_in_words() {
        static DOOR: Door = Door::new();
        // SAFETY: no memory is given.
        let failure = unsafe { DOOR.begin(&[]) }.expect_err("there is no session");
        assert_eq!(failure.canonical_code(), 9);
        assert!(failure.text.contains("gradlane.init()"), "{failure:?}");
    }

    #[test]
    fn what_is_no_table_of_this_version_is_refused() {
        static DOOR: Door = Door::new();
        let good = table();
        // SAFETY: null, or tables that live in this function; the last one is not used after it.
        unsafe {
            assert_eq!(DOOR.attach(std::ptr::null(), 1), Attachment::NoTable);
            assert_eq!(DOOR.attach(&raw const *Box::new(EngineTable { magic: 7, ..table() }), 1), Attachment::NoTable);
            let older = EngineTable { version: ENGINE_VERSION - 1, ..table() };
            assert_eq!(DOOR.attach(&raw const older, 1), Attachment::OtherVersion);
            let longer = EngineTable { struct_size: 1 + good.struct_size, ..table() };
            assert_eq!(DOOR.attach(&raw const longer, 1), Attachment::OtherVersion);
            assert!(DOOR.table().is_none());
            assert_eq!(DOOR.attach(&raw const good, 0), Attachment::Attached);
        }
        // SAFETY: no memory is given.
        assert!(unsafe { DOOR.begin(&[]) }.is_err(), "there is a table, but no session");
    }

    #[test]
    fn the_last_failures_are_kept_and_no_more() {
        static DOOR: Door = Door::new();
        let surplus: Vec<_> = (1..=18).filter_map(|key| DOOR.keep(key)).collect();
        assert_eq!((surplus, DOOR.failures().len(), DOOR.failures()[0]), (vec![1, 2], FAILURES_MAX, 18));
    }

    fn table() -> EngineTable {
        unsafe extern "C" fn begin(
            _: GradlaneSession,
            _: *const GradlaneSubmission,
            _: usize,
            _: *mut GradlaneOperation,
        ) -> GradlaneStatus {
            GradlaneStatus::Ok
        }
        unsafe extern "C" fn wait(_: GradlaneOperation, _: u64, _: *mut GradlaneError) -> GradlaneStatus {
            GradlaneStatus::Ok
        }
        unsafe extern "C" fn end(_: GradlaneOperation, _: *mut GradlaneError) -> GradlaneStatus {
            GradlaneStatus::Ok
        }
        let struct_size = u32::try_from(size_of::<EngineTable>()).expect("small");
        EngineTable {
            magic: ENGINE_MAGIC,
            version: ENGINE_VERSION,
            struct_size,
            begin,
            wait,
            cancel: end,
            release: end,
        }
    }
}
