//! Uses of parameters, and the wait for the first of several operations.
#![expect(unsafe_code, reason = "functions that C calls")]
#![expect(clippy::missing_safety_doc, reason = "one contract for all functions, in the documentation of the folder")]

use std::ffi::c_char;
use std::ptr::null;
use std::time::Duration;

use gradlane_core::engine::ParameterUse;
use gradlane_core::types::{ClockKey, Effect, Mode, Priority, Rule, TensorKind, TensorSpec, Tick, Ticked};
use gradlane_core::{Error, Result};

use super::answer::answer;
use super::operations::{find, find_begun, submit_with};
use super::read::{device, limit, numbers, present, structures, tensor, text, write};
use super::sessions::{Member, member};
use crate::operation::wait_any;
use crate::reduction::access_of;
use gradlane_abi::{
    GRADLANE_FOREVER, GradlaneAccess, GradlaneEffect, GradlaneError, GradlaneOperation, GradlaneParameterUse,
    GradlaneSession, GradlaneStatus, GradlaneTensor, GradlaneTicked,
};

/// Uses a parameter, and returns at once. A parameter is a tensor that servers keep. Each worker changes it and reads it by itself, and
/// waits for no other worker. A change is made once, also if a connection breaks. Uses of one parameter by this worker come one after the
/// other, in the order of these calls.
///
/// `operation` receives the operation, as that of `gradlane_submit`. The memory belongs to the library until the operation has ended. It
/// ends with `GRADLANE_STATUS_FAILED_PRECONDITION` if the parameter has no value yet, or the job has no server. A job of one worker without
/// servers keeps its parameters itself, in host memory.
///
/// If the arguments are wrong, this call fails and no callback runs. All later errors are errors of the operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_access(
    session: GradlaneSession,
    parameter_use: *const GradlaneParameterUse,
    operation: *mut GradlaneOperation,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        present(operation, "operation")?;
        let member = member(session)?;
        // SAFETY: promised by the caller of this function.
        let given = unsafe { structures(parameter_use, 1) }?[0];
        let begun = submit_with(&member, (given.callback, given.user), |member, ended| {
            // SAFETY: promised by the caller of this function.
            let asked = unsafe { asked(member, &given) }?;
            member.job.session().access(asked, None, ended).map(|operation| Some(operation.into()))
        })?;
        // SAFETY: promised by the caller of this function.
        unsafe { write(operation, "operation", begun) }?;
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Writes the version of the parameter that the operation has made or read to `version`. It is 1 after the first value, and one more after
/// each change; of a parameter in several parts it is the lowest of their versions.
///
/// Of a use of a table it is the lowest version of the parts that were used.
///
/// Fails with `GRADLANE_STATUS_FAILED_PRECONDITION` if the operation has not ended well, or is a reduction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_operation_version(
    operation: GradlaneOperation,
    version: *mut u64,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        let found = effect_of(operation)?;
        // SAFETY: promised by the caller of this function.
        unsafe { write(version, "version", found.version.0) }?;
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Writes what the use of a parameter has come to.
///
/// Fails with `GRADLANE_STATUS_FAILED_PRECONDITION` if the operation has not ended well, or is a reduction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_operation_effect(
    operation: GradlaneOperation,
    effect: *mut GradlaneEffect,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        let Effect { version, fate, lag } = effect_of(operation)?;
        let told = GradlaneEffect { version: version.0, fate: u32::from(fate.code()), lag };
        // SAFETY: promised by the caller of this function.
        unsafe { write(effect, "effect", told) }?;
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

fn effect_of(operation: GradlaneOperation) -> Result<Effect> {
    find(operation)?.effect().ok_or_else(|| Error::FailedPrecondition {
        what: format!("operation {operation:#x} tells no version"),
        hint: "ask for that of a use of a parameter, after it has ended well".to_owned(),
    })
}

/// Waits until one of `count` operations has ended, well or not, at most `timeout_ms`. `GRADLANE_FOREVER` waits until then, which the job's
/// step timeout bounds. Reductions and uses of parameters and of tables may be mixed.
///
/// `index` receives the position of the first one in the array that has ended; `gradlane_wait` tells how. Returns
/// `GRADLANE_STATUS_PENDING` if none has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_wait_any(
    operations: *const GradlaneOperation,
    count: usize,
    timeout_ms: u64,
    index: *mut usize,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        present(index, "index")?;
        // SAFETY: promised by the caller of this function.
        let given = unsafe { numbers(operations, count, "operations") }?;
        if given.is_empty() {
            return Err(Error::InvalidArgument {
                what: "a wait for the first of no operations".to_owned(),
                hint: "give at least one".to_owned(),
            });
        }
        let begun = given.into_iter().map(find_begun).collect::<Result<Vec<_>>>()?;
        let groups: Vec<_> = begun.iter().map(|begun| vec![begun.operation.clone()]).collect();
        let patience = if timeout_ms == GRADLANE_FOREVER { Duration::MAX } else { Duration::from_millis(timeout_ms) };
        match wait_any(&groups, patience) {
            Some(first) => {
                begun[first].land()?;
                // SAFETY: promised by the caller of this function.
                unsafe { write(index, "index", first) }.map(|()| GradlaneStatus::Ok)
            }
            None => Ok(GradlaneStatus::Pending),
        }
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Finishes round `round` of the clock `clock`, and waits until this worker may begin its next round, at most `timeout_ms`; 0 takes the job's
/// step timeout. All changes of the round must have ended before. `mode` is the mode of the parameters that follow the clock, equal on all
/// workers. Saying a round again is the same tick, so that a wait that was too short can go on.
///
/// `samples` are those from which this worker's changes of the round were computed; schedules by samples follow their sum.
///
/// `ticked` receives where the worker stands. With `waits` 0, the call does not wait for others; a mode with rounds does not allow that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_tick(
    session: GradlaneSession,
    clock: *const c_char,
    mode: *const c_char,
    round: u64,
    samples: u64,
    waits: u32,
    timeout_ms: u64,
    ticked: *mut GradlaneTicked,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        present(ticked, "ticked")?;
        let member = member(session)?;
        // SAFETY: promised by the caller of this function.
        let (name, mode) = unsafe { (text(clock, "the clock")?, mode_of(mode, clock)?) };
        let wait = (waits != 0).then_some(Duration::ZERO);
        let tick = Tick { clock: name, mode, round, samples, leaves: false, wait };
        let Ticked { round, step, ahead, fate } = member.job.session().tick(tick, limit(timeout_ms))?;
        let told = GradlaneTicked { round, step, ahead, fate: u64::from(fate.code()) };
        // SAFETY: promised by the caller of this function.
        unsafe { write(ticked, "ticked", told) }?;
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// Tells that this worker ticks the clock `clock` no more, so that the others wait for it no more. Call it behind the last tick, where workers
/// may have different numbers of rounds. The other arguments are those of `gradlane_tick`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gradlane_leave_clock(
    session: GradlaneSession,
    clock: *const c_char,
    mode: *const c_char,
    timeout_ms: u64,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    let call = || {
        let member = member(session)?;
        // SAFETY: promised by the caller of this function.
        let (name, mode) = unsafe { (text(clock, "the clock")?, mode_of(mode, clock)?) };
        let tick = Tick { clock: name, mode, round: 0, samples: 0, leaves: true, wait: None };
        member.job.session().tick(tick, limit(timeout_ms))?;
        Ok(GradlaneStatus::Ok)
    };
    // SAFETY: promised by the caller of this function.
    unsafe { answer(error, call) }
}

/// A mode by its text and the name of its clock; each may be null.
///
/// # Safety
/// Both are null, or texts that end with a zero.
unsafe fn mode_of(mode: *const c_char, clock: *const c_char) -> Result<Mode> {
    // SAFETY: promised by the caller of this function.
    let read = |given: *const c_char, what| (!given.is_null()).then(|| unsafe { text(given, what) }).transpose();
    let mode = read(mode, "the mode")?.map_or(Ok(Mode::ASYNC), |mode| mode.parse::<Mode>())?;
    let clock = read(clock, "the clock")?.map(|name| ClockKey::of(&name));
    Mode { clock, ..mode }.check()
}

/// The engine's form of a use.
///
/// # Safety
/// The pointers of the structure are as its documentation says.
unsafe fn asked(member: &Member, given: &GradlaneParameterUse) -> Result<ParameterUse> {
    let GradlaneParameterUse { name, shape, dimensions, dtype, reserved, .. } = *given;
    let described = GradlaneTensor { struct_size: 0, name, shape, dimensions, codec: null(), dtype, reserved };
    // SAFETY: promised by the caller of this function.
    let TensorSpec { name, dtype, shape, .. } = unsafe { tensor(&described) }?;
    // SAFETY: promised by the caller of this function.
    let rule = (!given.rule.is_null()).then(|| unsafe { text(given.rule, "the rule") }).transpose()?;
    // SAFETY: promised by the caller of this function.
    let mode = unsafe { mode_of(given.mode, given.clock) }?;
    let access = GradlaneAccess::from_code(given.access).map(access_of).ok_or_else(|| Error::InvalidArgument {
        what: format!("tensor {name}: access {}", given.access),
        hint: "use a value of GradlaneAccess".to_owned(),
    })?;
    if shape.contains(&0) {
        return Err(Error::InvalidArgument {
            what: format!("tensor {name}: a parameter of shape {shape:?}, which has no elements"),
            hint: "give it at least one".to_owned(),
        });
    }
    let mut lender = member.job.session().lender(device(given.memory, given.device)?);
    let (value, into) = (given.value as usize, given.into as usize);
    let lands_elsewhere = access.sends() && access.receives() && into != 0 && into != value;
    // SAFETY: the structure's documentation asks the caller for valid memory until the operation has ended.
    let (memory, into) = unsafe {
        let memory = lender.lend(value, given.bytes, Some(given.value_stream))?;
        let into = lands_elsewhere.then(|| lender.lend(into, given.bytes, Some(given.into_stream)));
        (memory, into.transpose()?)
    };
    let (priority, timeout) = (Priority(given.priority), limit(given.timeout_ms));
    let rule = rule.map(|rule| rule.parse().map(|rule: Rule| rule.of_shape(&shape))).transpose()?;
    let kind = TensorKind::Parameter { rule, mode };
    let tensor = TensorSpec { kind, ..TensorSpec::parameter(name, dtype, shape) };
    let clock_at = given.clock_at;
    Ok(ParameterUse { tensor, access, clock_at, memory, into, priority, timeout })
}
