//! Checkpoints of the parameters of a job.
#![expect(unsafe_code, reason = "functions that C calls")]
#![expect(clippy::missing_safety_doc, reason = "one contract for all functions, in the documentation of the folder")]

use std::ffi::c_char;
use std::time::Duration;

use gradlane_abi::{GradlaneCheckpoint, GradlaneError, GradlaneSession, GradlaneStatus};
use gradlane_core::types::{CheckpointAsk, Checkpointed, LoadAsk, Missing, SaveAsk};
use gradlane_core::{Error, Result};

use super::answer::answer;
use super::read::{limit, text, write};
use super::sessions::member;

/// Saves all parameters of the job, with all that their rules keep, and waits until the checkpoint is whole, at most `timeout_ms`; 0 takes an
/// hour. One worker calls it, for all. Training goes on meanwhile.
///
/// `path` is the directory of the checkpoints of this training, below the setting `checkpoint_dir` of coordinator and servers; `keep` is how
/// many checkpoints stay there, 0 for all; `notes` is text that belongs to the checkpoint, or NULL. `checkpoint` receives what was
/// written, or may be NULL.
///
/// Whatever fails, the checkpoint before stays the latest: with `GRADLANE_STATUS_FAILED_PRECONDITION` if another worker saves or loads, a
/// parameter has no value or the directory is of another training, `GRADLANE_STATUS_INVALID_ARGUMENT` for a path that leads out of
/// `checkpoint_dir`, `GRADLANE_STATUS_UNAVAILABLE` for a full disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_save_checkpoint(
    session: GradlaneSession,
    path: *const c_char,
    keep: u32,
    notes: *const c_char,
    timeout_ms: u64,
    checkpoint: *mut GradlaneCheckpoint,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        // SAFETY: promised by the caller of this function.
        let path = unsafe { text(path, "the path") }?;
        // SAFETY: promised by the caller of this function.
        let notes = if notes.is_null() { String::new() } else { unsafe { text(notes, "the notes") }? };
        let keep = Some(keep).filter(|keep| *keep > 0);
        let (tables_apart, wait) = (false, limit(timeout_ms).unwrap_or(USUAL));
        let ask = CheckpointAsk::Save(SaveAsk { path, keep, notes, tables_apart, wait });
        // SAFETY: promised by the caller of this function.
        unsafe { done(session, ask, checkpoint) }
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Loads all parameters of the job, and waits until the servers have done it, at most `timeout_ms`; 0 takes an hour. One worker calls it, for
/// all, after the parameters were made. Nothing is changed unless all servers have read and checked all of the checkpoint. Afterwards each
/// worker reads the values.
///
/// `path` is the directory of the checkpoints; `number` is that of one of them, 0 for the latest; `missing`, a `GradlaneMissing`, says what
/// becomes of parameters that the checkpoint lacks; with `ignore_extra` 1 it may have others; with `values_only` 1 rules begin anew.
/// `checkpoint` receives what was read, or may be NULL.
///
/// Fails with `GRADLANE_STATUS_NOT_FOUND` if there is no such checkpoint or a tensor is missing, `GRADLANE_STATUS_DATA_LOSS` if a file is not
/// what it was, and as `gradlane_save_checkpoint`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_load_checkpoint(
    session: GradlaneSession,
    path: *const c_char,
    number: u64,
    missing: u32,
    ignore_extra: u32,
    values_only: u32,
    timeout_ms: u64,
    checkpoint: *mut GradlaneCheckpoint,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        let how = u8::try_from(missing).ok().and_then(Missing::from_code);
        let missing = how.ok_or_else(|| Error::InvalidArgument {
            what: format!("missing {missing}"),
            hint: "give a GradlaneMissing".to_owned(),
        })?;
        let ask = CheckpointAsk::Load(LoadAsk {
            // SAFETY: promised by the caller of this function.
            path: unsafe { text(path, "the path") }?,
            checkpoint: Some(number).filter(|number| *number > 0),
            missing,
            ignore_extra: ignore_extra != 0,
            with_state: values_only == 0,
            if_any: false,
            wait: limit(timeout_ms).unwrap_or(USUAL),
        });
        // SAFETY: promised by the caller of this function.
        unsafe { done(session, ask, checkpoint) }
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// How long a save or a load may take, unless the caller says otherwise.
const USUAL: Duration = Duration::from_secs(3600);

/// Saves or loads, and says so.
///
/// # Safety
/// `checkpoint` is null, or a place to write to.
unsafe fn done(
    session: GradlaneSession,
    ask: CheckpointAsk,
    checkpoint: *mut GradlaneCheckpoint,
) -> Result<GradlaneStatus> {
    let Checkpointed { checkpoint: number, tensors, bytes, files, .. } =
        member(session)?.job.session().checkpoint(ask)?;
    if !checkpoint.is_null() {
        // SAFETY: promised by the caller of this function.
        unsafe { write(checkpoint, "checkpoint", GradlaneCheckpoint { number, tensors, bytes, files }) }?;
    }
    Ok(GradlaneStatus::Ok)
}
