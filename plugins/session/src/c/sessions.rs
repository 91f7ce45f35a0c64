//! Functions that enter and leave a job, and query a session.
#![expect(unsafe_code, reason = "functions that C calls")]
#![expect(clippy::missing_safety_doc, reason = "one contract for all functions, in the documentation of the folder")]

use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gradlane_core::metrics::prometheus;
use gradlane_core::{Error, Result};

use super::answer::{answer, write_text};
use super::callbacks::Callbacks;
use super::landing::Gate;
use super::read::{limit, present, structures, tensor, text, texts, write};
use super::table::Table;
use super::told::Steps;
use crate::job::Job;
use crate::session::Session;
use crate::settings::Settings;
use gradlane_abi::{GRADLANE_ABI_VERSION, GradlaneSession, GradlaneSetting, GradlaneTensor};
use gradlane_abi::{GradlaneError, GradlaneStatus};

/// A session of the C interface.
pub(super) struct Member {
    pub(super) job: Job,
    pub(super) callbacks: Arc<Callbacks>,
    pub(super) steps: Steps,
    /// Before the memory of rows.
    pub(super) gate: Arc<Gate>,
}

/// The sessions of this process. A static, because in C an integer must find its session without a context.
static SESSIONS: Table<Arc<Member>> = Table::new(0x53, "session");
/// How many jobs this process has entered through this interface.
static GENERATION: AtomicU64 = AtomicU64::new(0);

impl Member {
    fn new(job: Job, gate: Arc<Gate>) -> Arc<Self> {
        Arc::new(Self { job, callbacks: Arc::default(), steps: Steps::default(), gate })
    }
}

/// Gives a session that was joined in Rust an integer, until [`take_back`].
pub(super) fn lend(session: Arc<Session>) -> Result<GradlaneSession> {
    SESSIONS.insert(Member::new(session.into(), Arc::default()))
}

/// Makes the integer of a lent session invalid. Returns when all callbacks have run.
pub(super) fn take_back(session: GradlaneSession) {
    // A forked child does not find it, and has no thread of the callbacks.
    if let Ok(member) = SESSIONS.remove(session) {
        member.callbacks.finish();
        member.gate.close();
    }
}

/// The session of an integer. Fails in a forked process, because the threads of its parent's sessions do not exist there.
pub(super) fn member(session: GradlaneSession) -> Result<Arc<Member>> {
    SESSIONS.find(session)
}

/// Joins the job of a session that forms again, and gives the next session the integer of the former one. All callbacks of that one have run
/// then. If it fails, the integer stays that of the former session, which has left the job.
pub(super) fn join_again(session: GradlaneSession, former: &Arc<Member>) -> Result<Arc<Member>> {
    if former.callbacks.is_this_thread() {
        return Err(Error::FailedPrecondition {
            what: "gradlane_begin_step was called by a callback of the session, for which it would wait".to_owned(),
            hint: "call it on a thread of the program".to_owned(),
        });
    }
    former.callbacks.finish();
    let next = Member::new(Arc::new(former.job.session().join_again()?).into(), Arc::clone(&former.gate));
    SESSIONS.replace(session, Arc::clone(&next))?;
    Ok(next)
}

/// The version of this library's interface; compare it with `GRADLANE_ABI_VERSION`.
#[unsafe(no_mangle)]
pub extern "C" fn gradlane_abi_version() -> u32 {
    GRADLANE_ABI_VERSION
}

/// The library's own version, as a text that is valid as long as the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn gradlane_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Joins the job that this process was started for, and returns once the job runs.
///
/// The job is found in the environment: `gradlane run`, `DMLC_*`, torchrun, `TF_CONFIG`, MPI, Slurm; otherwise this is a job of one. If the
/// launcher starts no servers, rank 0 embeds them. `settings` override the environment; NULL with a count of 0 for none. The setting
/// `join_timeout` bounds the call. A process may have several sessions.
///
/// `session` receives the session, which `gradlane_shutdown` ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_init(
    settings: *const GradlaneSetting,
    settings_count: usize,
    session: *mut GradlaneSession,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        present(session, "session")?;
        // SAFETY: promised by the caller of this function.
        let arguments = unsafe { arguments(settings, settings_count) }?;
        let job = Job::enter(arguments, GENERATION.load(Ordering::Relaxed))?;
        GENERATION.fetch_add(1, Ordering::Relaxed);
        let key = SESSIONS.insert(Member::new(job, Arc::default()))?;
        // SAFETY: promised by the caller of this function.
        unsafe { write(session, "session", key) }?;
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// # Safety
/// As [`gradlane_init`].
unsafe fn arguments(settings: *const GradlaneSetting, count: usize) -> Result<Settings> {
    if count > 0 && (settings.is_null() || !settings.is_aligned()) {
        return Err(Error::InvalidArgument {
            what: format!("{count} settings at {settings:p}"),
            hint: "give the address of the first one".to_owned(),
        });
    }
    let setting = |index: usize| {
        // SAFETY: the caller of this function promises so many, whose texts end with zeros.
        unsafe {
            let GradlaneSetting { name, value } = settings.add(index).read();
            Ok((text(name, "a setting's name")?, text(value, "a setting's value")?))
        }
    };
    (0..count).map(setting).collect()
}

/// Leaves the job and ends the session, also if it returns an error: the session's number is not valid afterwards.
///
/// Pending operations fail, and their memory is free when this returns, unless `gradlane_poll` says `GRADLANE_STATUS_PENDING` or
/// `GRADLANE_STATUS_UNRESPONSIVE` for one, because the engine's threads are stuck. Their numbers stay valid until they are released. Waits at
/// most `grace_ms` for the other workers, then stops servers that this process embeds. All callbacks have run when this returns. A callback
/// of this session must not call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_shutdown(
    session: GradlaneSession,
    grace_ms: u64,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        if member(session)?.callbacks.is_this_thread() {
            return Err(Error::FailedPrecondition {
                what: "gradlane_shutdown was called by a callback of the session, for which it would wait".to_owned(),
                hint: "call it on a thread of the program".to_owned(),
            });
        }
        let member = SESSIONS.remove(session)?;
        let left = member.job.leave(Duration::from_millis(grace_ms));
        member.callbacks.finish();
        member.gate.close();
        left.map(|()| GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Writes this worker's number in the job, from 0, to `rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_rank(
    session: GradlaneSession,
    rank: *mut u32,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    // SAFETY: promised by the caller of this function.
    let call = || unsafe { write(rank, "rank", member(session)?.job.session().rank()) };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, || call().map(|()| GradlaneStatus::Ok)) }
}

/// Writes the number of workers of the job to `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_size(
    session: GradlaneSession,
    size: *mut u32,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    // SAFETY: promised by the caller of this function.
    let call = || unsafe { write(size, "size", member(session)?.job.session().size()) };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, || call().map(|()| GradlaneStatus::Ok)) }
}

/// Writes 1 to `in_doubt` if a device may still write the memory of operations that have failed, and 0 otherwise.
///
/// After an error, ask before memory that was lent is freed or used for something else. While the answer is 1, keep it. If it is still 1 when
/// the session is shut down, never free it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_in_doubt(
    session: GradlaneSession,
    in_doubt: *mut u32,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    // SAFETY: promised by the caller of this function.
    let call = || unsafe { write(in_doubt, "in_doubt", u32::from(member(session)?.job.session().doubt().exists())) };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, || call().map(|()| GradlaneStatus::Ok)) }
}

/// Fixes dtype and shape of names ahead of their first use, in one round trip.
///
/// If `fuse` is not 0, small neighbours may share messages, and all tensors of the list must be submitted in every round. Tensors without
/// elements are left out. `timeout_ms` bounds the wait; 0 takes the job's step timeout, and a little more for the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_declare(
    session: GradlaneSession,
    tensors: *const GradlaneTensor,
    count: usize,
    fuse: i32,
    timeout_ms: u64,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        let member = member(session)?;
        // SAFETY: promised by the caller of this function.
        let given = unsafe { structures(tensors, count) }?;
        // SAFETY: promised by the caller of this function.
        let tensors = given.iter().map(|given| unsafe { tensor(given) }).collect::<Result<Vec<_>>>()?;
        let tensors: Vec<_> = tensors.into_iter().filter(|tensor| !tensor.shape.contains(&0)).collect();
        if !tensors.is_empty() {
            member.job.session().declare(tensors, fuse != 0, limit(timeout_ms))?;
        }
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Says that this worker uses these names no more. When every worker has said so, they cost nothing any more, and may be used again for
/// tensors of another dtype or shape.
///
/// Names whose tensors share messages must be given in one call. The operations on them must have ended. A call that uses one of the names
/// again waits until every worker has said that it does not. `timeout_ms` bounds the wait for what is left of ended operations, not for the
/// other workers; 0 takes the job's step timeout, and a little more for the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_undeclare(
    session: GradlaneSession,
    names: *const *const c_char,
    count: usize,
    timeout_ms: u64,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        let member = member(session)?;
        // SAFETY: promised by the caller of this function.
        let names = unsafe { texts(names, count, "a tensor's name") }?;
        if !names.is_empty() {
            member.job.session().undeclare(&names, limit(timeout_ms))?;
        }
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Waits until every worker has called the barrier `name`, at most `timeout_ms`; 0 takes the job's step timeout.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_barrier(
    session: GradlaneSession,
    name: *const c_char,
    timeout_ms: u64,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        let member = member(session)?;
        // SAFETY: promised by the caller of this function.
        let name = unsafe { text(name, "the barrier's name") }?;
        member.job.session().arrive(&name, limit(timeout_ms)).wait(None)?;
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Writes the metrics of this worker to `buffer` in Prometheus' text format, with a terminating zero.
///
/// `bytes`, unless it is NULL, receives the bytes of the whole text without the zero. The text was cut if that is not below `capacity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_metrics(
    session: GradlaneSession,
    buffer: *mut c_char,
    capacity: usize,
    bytes: *mut usize,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        let lines = prometheus(&[member(session)?.job.session().metrics()]);
        // SAFETY: promised by the caller of this function.
        let whole = unsafe { write_text(&lines, buffer, capacity) };
        if !bytes.is_null() {
            // SAFETY: promised by the caller of this function.
            unsafe { write(bytes, "bytes", whole) }?;
        }
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}
