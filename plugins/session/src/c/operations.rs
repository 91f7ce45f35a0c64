//! Submissions, and their operations.
#![expect(unsafe_code, reason = "functions that C calls")]
#![expect(clippy::missing_safety_doc, reason = "one contract for all functions, in the documentation of the folder")]

use std::ffi::c_void;
use std::ptr::null;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::engine::{Member as BatchMember, Memory, Submission};
use gradlane_core::types::TensorSpec;
use gradlane_core::{Error, Result};

use super::answer::answer;
use super::callbacks::Callback;
use super::landing::Landing;
use super::read::{device, present, reduction, structures, tensor, write};
use super::sessions::{Member, member};
use super::table::Table;
use crate::batch::Batch;
use crate::memory::Lender;
use crate::operation::Operation;
use crate::reduction::Reduction;
use gradlane_abi::{
    GRADLANE_FOREVER, GradlaneCallback, GradlaneOperation, GradlaneSession, GradlaneSubmission, GradlaneTensor,
};
use gradlane_abi::{GradlaneError, GradlaneStatus};

/// The operations of this process; see `SESSIONS`.
static OPERATIONS: Table<Begun> = Table::new(0x4F, "operation");

/// What the number of an operation leads to.
#[derive(Clone)]
pub(super) struct Begun {
    pub(super) operation: Operation,
    /// The answer, of a use of a table.
    pub(super) rows: Option<Arc<Landing>>,
}

impl Begun {
    /// Brings rows to the caller's memory, if the operation has ended well. The caller must not learn of the end before.
    pub(super) fn land(&self) -> Result<()> {
        self.ended_rows().map_or(Ok(()), Landing::land)
    }

    /// The answer of a use of a table that has ended well.
    pub(super) fn ended_rows(&self) -> Option<&Landing> {
        self.rows.as_deref().filter(|_| self.operation.handle().outcome() == Some(Ok(())))
    }
}

impl From<Operation> for Begun {
    fn from(operation: Operation) -> Self {
        Self { operation, rows: None }
    }
}

/// Submits a reduction and returns at once.
///
/// `operation` receives the operation, which the caller releases. Source and destination belong to the library until the operation has
/// ended: until `gradlane_poll` or `gradlane_wait` returns anything but `GRADLANE_STATUS_PENDING` or `GRADLANE_STATUS_UNRESPONSIVE` for it.
/// When its callback runs, it has ended too, unless `gradlane_poll` says one of these two in the callback.
/// The call waits while more bytes are unresolved than the setting `submit_bytes_max` allows.
///
/// If the arguments are wrong, this call fails and no callback runs. All later errors are errors of the operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_submit(
    session: GradlaneSession,
    submission: *const GradlaneSubmission,
    operation: *mut GradlaneOperation,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        present(operation, "operation")?;
        // SAFETY: promised by the caller of this function.
        unsafe { write(operation, "operation", submit(session, submission)?) }?;
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Submits a group of reductions as one operation, all or none.
///
/// For many small tensors this costs far less than a call for each, because they share messages. Such a group must be submitted as a whole
/// in every round. All members must lie in the same memory, and have the same `op`, `root`, `weight` and `timeout_ms`. `callback` and
/// `user` are those of the first member. The operation ends when all members have ended, with the error of the first that failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_submit_all(
    session: GradlaneSession,
    submissions: *const GradlaneSubmission,
    count: usize,
    operation: *mut GradlaneOperation,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        present(operation, "operation")?;
        // SAFETY: promised by the caller of this function.
        unsafe { write(operation, "operation", submit_all(session, submissions, count)?) }?;
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Reduces a tensor and returns when the result has landed. Faster than `gradlane_submit` and `gradlane_wait`, because the calling thread
/// does a part of the work. `callback` is not called. After `GRADLANE_STATUS_UNRESPONSIVE` never free the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_push_pull(
    session: GradlaneSession,
    submission: *const GradlaneSubmission,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        let member = member(session)?;
        // SAFETY: promised by the caller of this function.
        let given = unsafe { one(submission) }?;
        // SAFETY: promised by the caller of this function.
        if let Some(submission) = unsafe { build(&member, &given) }? {
            member.job.session().submit(submission, Some(Duration::MAX), |_| {})?.wait(None)?;
        }
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Waits until the operation has ended, at most `timeout_ms`. `GRADLANE_FOREVER` waits until its end, which the job's step timeout bounds.
///
/// Returns `GRADLANE_STATUS_PENDING` if it has not ended, else its status. May be repeated, and called by several threads. Returns
/// `GRADLANE_STATUS_UNRESPONSIVE` if the engine should have ended the operation and has not, because its threads are stuck; the memory then
/// stays in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_wait(
    operation: GradlaneOperation,
    timeout_ms: u64,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        let begun = find_begun(operation)?;
        let timeout = (timeout_ms != GRADLANE_FOREVER).then(|| Duration::from_millis(timeout_ms));
        match begun.operation.handle().wait(timeout) {
            Ok(()) => begun.land().map(|()| GradlaneStatus::Ok),
            Err(Error::StillRunning { .. }) => Ok(GradlaneStatus::Pending),
            Err(error) => Err(error),
        }
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Returns the status of the operation, or `GRADLANE_STATUS_PENDING` if it has not ended, or `GRADLANE_STATUS_UNRESPONSIVE` as `gradlane_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_poll(operation: GradlaneOperation, error: *mut GradlaneError) -> GradlaneStatus {
    let call = || {
        let begun = find_begun(operation)?;
        let handle = begun.operation.handle();
        match handle.outcome() {
            // At once, because the engine is given up.
            None if handle.is_given_up() => handle.wait(None).map(|()| GradlaneStatus::Ok),
            None => Ok(GradlaneStatus::Pending),
            Some(outcome) => outcome.and_then(|()| begun.land()).map(|()| GradlaneStatus::Ok),
        }
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Cancels the operation. It ends with `GRADLANE_STATUS_CANCELLED` once its memory is free, unless it has ended already. The other workers'
/// operations fail, because this contribution will not come: cancel on all workers, or on none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_cancel(operation: GradlaneOperation, error: *mut GradlaneError) -> GradlaneStatus {
    let call = || {
        find(operation)?.handle().cancel();
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Releases the number of the operation, which is not valid afterwards. An operation that has not ended goes on, and its memory stays in
/// use. Then only its callback or the end of the session tells when the memory is free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_release(operation: GradlaneOperation, error: *mut GradlaneError) -> GradlaneStatus {
    let call = || OPERATIONS.remove(operation).map(|_| GradlaneStatus::Ok);
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Submits one tensor.
///
/// # Safety
/// As [`gradlane_submit`].
pub(super) unsafe fn submit(
    session: GradlaneSession,
    submission: *const GradlaneSubmission,
) -> Result<GradlaneOperation> {
    let member = member(session)?;
    // SAFETY: promised by the caller of this function.
    let given = unsafe { one(submission) }?;
    submit_with(&member, (given.callback, given.user), |member, ended| {
        // SAFETY: promised by the caller of this function.
        let Some(submission) = unsafe { build(member, &given) }? else { return Ok(None) };
        let session = member.job.session();
        session.submit(submission, None, ended).map(|handle| Some(session.operation(handle).into()))
    })
}

/// Submits a group as one operation.
///
/// # Safety
/// As [`gradlane_submit_all`].
pub(super) unsafe fn submit_all(
    session: GradlaneSession,
    submissions: *const GradlaneSubmission,
    count: usize,
) -> Result<GradlaneOperation> {
    let member = member(session)?;
    // SAFETY: promised by the caller of this function.
    let given = unsafe { structures(submissions, count) }?;
    let Some(first) = given.first() else {
        return Err(Error::InvalidArgument {
            what: "a group of no tensors".to_owned(),
            hint: "do not call gradlane_submit_all for an empty group".to_owned(),
        });
    };
    submit_with(&member, (first.callback, first.user), |member, ended| {
        // SAFETY: promised by the caller of this function.
        let Some((batch, members, reduction)) = unsafe { build_all(member, &given) }? else { return Ok(None) };
        let session = member.job.session();
        let begun = session.submit_all(reduction.of_batch(&batch, members), None, ended);
        begun.map(|handle| Some(session.operation(handle).into()))
    })
}

/// Gives an operation that has failed before it began its number.
pub(super) fn failed(error: Error) -> Result<GradlaneOperation> {
    OPERATIONS.insert(Operation::ended(Err(error)).into())
}

/// The error of an operation; `None` if it has not failed, has not ended, or was released.
pub(super) fn failure(operation: GradlaneOperation) -> Option<Error> {
    find(operation).ok()?.handle().outcome()?.err()
}

/// The operation of a number. Fails in a forked process, because nothing there would end it.
pub(super) fn find(operation: GradlaneOperation) -> Result<Operation> {
    find_begun(operation).map(|begun| begun.operation)
}

/// The same, with its rows.
pub(super) fn find_begun(operation: GradlaneOperation) -> Result<Begun> {
    OPERATIONS.find(operation)
}

/// The operation on tensors without elements.
fn nothing_to_do() -> Begun {
    Operation::ended(Ok(())).into()
}

/// The function that the engine calls at the end of an operation.
pub(super) type Ended = Box<dyn FnOnce(u64) + Send>;

/// Calls `submit`, and registers `callback` for the end of the operation. `submit` returns none if there is nothing to reduce.
pub(super) fn submit_with(
    member: &Member,
    callback: (GradlaneCallback, *mut c_void),
    submit: impl FnOnce(&Member, Ended) -> Result<Option<Begun>>,
) -> Result<GradlaneOperation> {
    let callbacks = &member.callbacks;
    let (Some(function), user) = callback else {
        let begun = submit(member, Box::new(|_| {}))?;
        return OPERATIONS.insert(begun.unwrap_or_else(nothing_to_do));
    };
    callbacks.start()?;
    let begun = submit(member, Box::new(callbacks.ended()))?;
    let is_engines = begun.is_some();
    let begun = begun.unwrap_or_else(nothing_to_do);
    let watched = begun.operation.handle().clone();
    let landing = begun.clone();
    let id = watched.id();
    let given_up = Arc::new(move || watched.is_given_up());
    let operation = OPERATIONS.insert(begun)?;
    let user = User(user);
    let callback: Callback = Box::new(move || {
        let User(user) = { user };
        // It fails after the session was shut down alone, and all callbacks run before.
        let _ = landing.land();
        // SAFETY: the caller gave the function for this use, once, with this argument.
        unsafe { function(user, operation) }
    });
    if is_engines {
        callbacks.expect(id, given_up, callback);
    } else {
        callbacks.run(callback);
    }
    Ok(operation)
}

/// The caller's argument for its callback.
struct User(*mut c_void);

// SAFETY: the library does not use it. The documentation of `GradlaneCallback` says that it arrives on another thread.
unsafe impl Send for User {}

/// # Safety
/// As [`gradlane_submit`].
unsafe fn one(submission: *const GradlaneSubmission) -> Result<GradlaneSubmission> {
    // SAFETY: promised by the caller of this function.
    unsafe { structures(submission, 1) }.map(|given| given[0])
}

/// The engine's submission; `None` if the tensor has no elements.
///
/// # Safety
/// The pointers of the structure are as its documentation says.
unsafe fn build(member: &Member, given: &GradlaneSubmission) -> Result<Option<Submission>> {
    // SAFETY: promised by the caller of this function.
    let (tensor, reduction) = unsafe { declaration(member, given) }?;
    if tensor.shape.contains(&0) {
        return Ok(None);
    }
    let mut lender = member.job.session().lender(device(given.memory, given.device)?);
    // SAFETY: promised by the caller of this function.
    let memory = unsafe { lend(&mut lender, given) }?;
    Ok(Some(reduction.submission(tensor, memory)))
}

/// A batch, its memory, and how its first tensor is reduced; `None` if no tensor has elements.
///
/// # Safety
/// The pointers of the structures are as their documentation says.
unsafe fn build_all(
    member: &Member,
    given: &[GradlaneSubmission],
) -> Result<Option<(Batch, Vec<BatchMember>, Reduction)>> {
    let common = |of: &GradlaneSubmission| {
        let place = device(of.memory, of.device);
        (of.op, of.root, of.weight.to_bits(), of.timeout_ms, place)
    };
    if let Some(other) = given.iter().position(|of| common(of) != common(&given[0])) {
        return Err(Error::InvalidArgument {
            what: format!(
                "a group whose members 0 and {other} differ in op, root, weight, timeout_ms, memory or device"
            ),
            hint: "submit a separate group for each".to_owned(),
        });
    }
    let mut lender = member.job.session().lender(device(given[0].memory, given[0].device)?);
    let (mut tensors, mut members) = (Vec::with_capacity(given.len()), Vec::with_capacity(given.len()));
    let mut first = None;
    for given in given {
        // SAFETY: promised by the caller of this function.
        let (tensor, reduction) = unsafe { declaration(member, given) }?;
        if tensor.shape.contains(&0) {
            continue;
        }
        // SAFETY: promised by the caller of this function.
        let (source, destination) = unsafe { lend(&mut lender, given) }?;
        tensors.push(tensor);
        members.push(BatchMember { source, destination, priority: reduction.priority });
        first.get_or_insert(reduction);
    }
    first.map(|reduction| Ok((Batch::new(tensors)?, members, reduction))).transpose()
}

/// The declaration of the tensor of a submission, and how it is reduced.
///
/// # Safety
/// The pointers of the structure are as its documentation says.
unsafe fn declaration(member: &Member, given: &GradlaneSubmission) -> Result<(TensorSpec, Reduction)> {
    let GradlaneSubmission { name, shape, dimensions, dtype, .. } = *given;
    let described = GradlaneTensor { struct_size: 0, name, shape, dimensions, codec: null(), dtype, reserved: 0 };
    // SAFETY: promised by the caller of this function.
    let tensor = unsafe { tensor(&described) }?;
    // SAFETY: as above.
    let reduction = unsafe { reduction(given, &tensor.name) }?;
    Ok((member.job.session().declaration(tensor, &reduction)?, reduction))
}

/// # Safety
/// The pointers of the structure are as its documentation says.
unsafe fn lend(lender: &mut Lender<'_>, given: &GradlaneSubmission) -> Result<(Memory, Memory)> {
    let (source, destination) = (given.source as usize, given.destination as usize);
    // SAFETY: the structure's documentation asks the caller for valid memory until the operation has ended.
    unsafe {
        let from = lender.lend(source, given.bytes, Some(given.source_stream))?;
        let to = match destination {
            0 => lender.lend(source, given.bytes, Some(given.source_stream))?,
            destination => lender.lend(destination, given.bytes, Some(given.destination_stream))?,
        };
        Ok((from, to))
    }
}
