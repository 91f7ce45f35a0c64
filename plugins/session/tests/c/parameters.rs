//! Uses of parameters in a job of one, which keeps them itself.

use std::ffi::CStr;
use std::ptr::{null, null_mut};
use std::sync::mpsc::channel;

use gradlane_session::c::*;

use crate::caller::{Session, Told, ended, submission, with_callback};

#[test]
fn a_parameter_is_given_a_value_changed_and_read_and_each_use_tells_the_version() {
    let job = Session::start();
    let (mut value, mut change, mut out) = ([1.0_f32, 2.0], [10.0_f32, 20.0], [0.0_f32; 2]);
    assert_eq!(job.used(&parameter(GradlaneAccess::Init, &mut value)), 1);
    assert_eq!(job.used(&parameter(GradlaneAccess::PushAdd, &mut change)), 2);
    assert_eq!(job.used(&parameter(GradlaneAccess::Pull, &mut out)), 2);
    assert_eq!(out, [11.0, 22.0]);
    let into = out.as_mut_ptr().cast();
    assert_eq!(job.used(&GradlaneParameterUse { into, ..parameter(GradlaneAccess::PushPullAdd, &mut change) }), 3);
    assert_eq!((change, out), ([10.0, 20.0], [21.0, 42.0]));
    assert_eq!(job.used(&parameter(GradlaneAccess::PushAssign, &mut value)), 4);
    assert_eq!(job.used(&parameter(GradlaneAccess::PushPullAssign, &mut change)), 5);
    assert_eq!(change, [10.0, 20.0]);
}

#[test]
fn an_average_is_read_by_a_use_of_its_own() {
    let job = Session::start();
    let (mut value, mut gradient, mut out) = ([8.0_f32, 4.0], [8.0_f32, 4.0], [0.0_f32; 2]);
    let by = |access, values: &mut [f32; 2]| GradlaneParameterUse {
        rule: c"sgd:lr=0.5,ema=0.5,window=1".as_ptr(),
        ..parameter(access, values)
    };
    assert_eq!(job.used(&by(GradlaneAccess::Init, &mut value)), 1);
    assert_eq!(job.used(&by(GradlaneAccess::PushStep, &mut gradient)), 2);
    for (access, expected) in [(GradlaneAccess::PullEma, [6.0, 3.0]), (GradlaneAccess::PullWindow, [4.0, 2.0])] {
        assert_eq!((job.used(&by(access, &mut out)), out), (2, expected));
    }
}

#[test]
fn a_checkpoint_is_saved_and_loaded_with_what_the_rule_keeps() {
    let job = Session::start();
    // Tests run in the folder of the package, below which checkpoints are.
    let directory = tempfile::tempdir_in(".").unwrap();
    let place = std::ffi::CString::new(directory.path().file_name().unwrap().to_str().unwrap()).unwrap();
    let (mut value, mut gradient, mut out) = ([8.0_f32, 4.0], [1.0_f32, 1.0], [0.0_f32; 2]);
    let by = |access, values: &mut [f32; 2]| GradlaneParameterUse {
        rule: c"sgd:lr=1,momentum=0.5".as_ptr(),
        ..parameter(access, values)
    };
    job.used(&by(GradlaneAccess::Init, &mut value));
    job.used(&by(GradlaneAccess::PushStep, &mut gradient));
    let (mut told, mut saved) = (Told::new(), GradlaneCheckpoint { number: 0, tensors: 0, bytes: 0, files: 0 });
    // SAFETY: the variables live in this function.
    let status =
        unsafe { gradlane_save_checkpoint(job.0, place.as_ptr(), 2, c"epoch 1".as_ptr(), 0, &mut saved, told.error()) };
    assert_eq!((status, saved.number, saved.bytes, saved.files), (GradlaneStatus::Ok, 1, 8, 4), "{}", told.text());
    job.used(&by(GradlaneAccess::PushStep, &mut gradient));
    let load = |number, missing, told: &mut Told| {
        // SAFETY: the variables live in this function.
        unsafe { gradlane_load_checkpoint(job.0, place.as_ptr(), number, missing, 0, 0, 0, null_mut(), told.error()) }
    };
    assert_eq!(load(0, GradlaneMissing::Refuse as u32, &mut told), GradlaneStatus::Ok, "{}", told.text());
    job.used(&by(GradlaneAccess::Pull, &mut out));
    assert_eq!(out, [7.0, 3.0]);
    job.used(&by(GradlaneAccess::PushStep, &mut gradient));
    job.used(&by(GradlaneAccess::Pull, &mut out));
    assert_eq!(out, [5.5, 1.5], "with the momentum of the first step");
    assert_eq!(load(7, GradlaneMissing::Refuse as u32, &mut told), GradlaneStatus::NotFound);
    assert_eq!(load(0, 9, &mut told), GradlaneStatus::InvalidArgument);
    assert!(told.text().contains("missing 9"), "{}", told.text());
}

#[test]
fn a_use_that_makes_no_sense_is_refused_by_the_field_that_is_wrong() {
    let job = Session::start();
    let mut values = [1.0_f32, 2.0];
    let good = parameter(GradlaneAccess::Init, &mut values);
    let empty: &[u64] = &[0];
    let wrong = [
        (GradlaneParameterUse { struct_size: 8, ..good }, "struct_size is 8"),
        (GradlaneParameterUse { name: null(), ..good }, "name is NULL"),
        (GradlaneParameterUse { access: 0, ..good }, "access 0"),
        (GradlaneParameterUse { dtype: 9, ..good }, "dtype 9"),
        (GradlaneParameterUse { reserved: 1, ..good }, "reserved is 1"),
        (GradlaneParameterUse { shape: empty.as_ptr(), ..good }, "no elements"),
        (GradlaneParameterUse { bytes: 12, ..good }, "buffers of 12 and 12 bytes"),
        (GradlaneParameterUse { value: null_mut(), ..good }, "a null pointer to 8 bytes"),
        (GradlaneParameterUse { memory: 2, ..good }, "memory 2"),
        (GradlaneParameterUse { mode: c"asynk".as_ptr(), ..good }, "no mode asynk"),
        (GradlaneParameterUse { mode: c"sync".as_ptr(), ..good }, "without a clock"),
        (GradlaneParameterUse { clock_at: 1, ..good }, "the round of a clock"),
    ];
    for (wrong, problem) in wrong {
        let (mut told, mut operation) = (Told::new(), 0);
        // SAFETY: what is wrong with the structures is said in their fields; their memory lives in this function.
        let status = unsafe { gradlane_access(job.0, &wrong, &mut operation, told.error()) };
        assert_eq!((status, operation), (GradlaneStatus::InvalidArgument, 0), "{problem}");
        assert!(told.text().contains(problem), "{}", told.text());
    }
    // SAFETY: null is what the function is asked about.
    let status = unsafe { gradlane_access(job.0, null(), &mut 0, null_mut()) };
    assert_eq!(status, GradlaneStatus::InvalidArgument);
}

#[test]
fn a_gradient_of_a_round_is_applied_when_the_clock_is_ticked_and_its_fate_is_told() {
    let job = Session::start();
    let (mut value, mut gradient, mut out) = ([1.0_f32, 2.0], [1.0_f32, 4.0], [0.0_f32; 2]);
    let by_clock = |access, memory: &mut [f32; 2], clock_at| GradlaneParameterUse {
        rule: c"sgd:lr=0.5".as_ptr(),
        mode: c"sync".as_ptr(),
        clock: c"train".as_ptr(),
        clock_at,
        ..parameter(access, memory)
    };
    job.used(&by_clock(GradlaneAccess::Init, &mut value, 0));
    assert_eq!(job.effect(&by_clock(GradlaneAccess::PushStep, &mut gradient, 1)), (1, GradlaneFate::Kept as u32, 0));
    assert_eq!(job.tick(c"sync", 1), Ok((1, 1, 0)));
    job.used(&by_clock(GradlaneAccess::Pull, &mut out, 1));
    assert_eq!(out, [0.5, 0.0]);
    let late = job.effect(&by_clock(GradlaneAccess::PushStep, &mut gradient, 1));
    assert_eq!(late, (2, GradlaneFate::DroppedLate as u32, 0));
    assert!(job.tick(c"ssp:bound=1", 2).unwrap_err().contains("ssp:bound=1"));
    assert!(job.tick(c"sync", 3).unwrap_err().contains("round 3"));
    // SAFETY: the texts are constants.
    let left = unsafe { gradlane_leave_clock(job.0, c"train".as_ptr(), c"sync".as_ptr(), 0, null_mut()) };
    assert_eq!(left, GradlaneStatus::Ok);
    let stale = |memory: &mut [f32; 2]| GradlaneParameterUse {
        name: c"stale".as_ptr(),
        mode: c"async:max_staleness=0,beyond=scale".as_ptr(),
        ..parameter(GradlaneAccess::PushAdd, memory)
    };
    job.used(&GradlaneParameterUse { access: GradlaneAccess::Init as u32, ..stale(&mut value) });
    assert_eq!(job.effect(&stale(&mut gradient)), (2, GradlaneFate::Accepted as u32, 0));
    assert_eq!(job.effect(&stale(&mut gradient)), (3, GradlaneFate::Scaled as u32, 1));
    job.used(&GradlaneParameterUse { access: GradlaneAccess::Pull as u32, ..stale(&mut out) });
    assert_eq!(out, [1.0 + 1.0 + 0.5, 2.0 + 4.0 + 2.0]);
}

#[test]
fn an_operation_that_failed_or_is_a_reduction_tells_no_version() {
    let job = Session::start();
    let mut values = [1.0_f32, 2.0];
    let pull = job.begin(&parameter(GradlaneAccess::Pull, &mut values));
    let sum = job.submit(&submission(c"s", &[2], &mut values));
    let mut told = Told::new();
    // SAFETY: the variables live in this function.
    unsafe {
        assert_eq!(gradlane_wait(pull, 0, told.error()), GradlaneStatus::FailedPrecondition);
        assert!(told.text().contains("has no value"), "{}", told.text());
        for operation in [pull, sum] {
            let status = gradlane_operation_version(operation, &mut 0, told.error());
            assert_eq!(status, GradlaneStatus::FailedPrecondition);
            assert!(told.text().contains("tells no version"), "{}", told.text());
        }
    }
}

#[test]
fn the_end_of_a_use_is_told_by_its_callback() {
    let (sender, receiver) = channel();
    let job = Session::start();
    let mut values = [1.0_f32, 2.0];
    // SAFETY: the sender lives until the callback has run.
    let told = unsafe { with_callback(GradlaneSubmission::empty(), &sender) };
    let (callback, user) = (told.callback, told.user);
    let begun = job.begin(&GradlaneParameterUse { callback, user, ..parameter(GradlaneAccess::Init, &mut values) });
    assert_eq!(ended(&receiver), begun);
}

#[test]
fn the_first_of_several_operations_of_either_kind_is_found() {
    let job = Session::start();
    let mut values = [1.0_f32, 2.0];
    let operations =
        [job.submit(&submission(c"s", &[2], &mut values)), job.begin(&parameter(GradlaneAccess::Init, &mut values))];
    let (mut index, mut told) = (7, Told::new());
    // SAFETY: the array and the variables live in this function.
    unsafe {
        let found = gradlane_wait_any(operations.as_ptr(), 2, GRADLANE_FOREVER, &mut index, told.error());
        assert_eq!((found, index), (GradlaneStatus::Ok, 0));
        for (given, count, problem) in
            [(operations.as_ptr(), 0, "no operations"), (null(), 2, "2 operations at 0x0"), (&job.0, 1, "no operation")]
        {
            let status = gradlane_wait_any(given, count, 0, &mut index, told.error());
            assert_eq!(status, GradlaneStatus::InvalidArgument, "{problem}");
            assert!(told.text().contains(problem), "{}", told.text());
        }
    }
}

impl Session {
    fn begin(&self, asked: &GradlaneParameterUse) -> GradlaneOperation {
        let (mut operation, mut told) = (0, Told::new());
        // SAFETY: in a job of one the operation has ended when this returns, and the tests keep the memory as long.
        let status = unsafe { gradlane_access(self.0, asked, &mut operation, told.error()) };
        assert_eq!(status, GradlaneStatus::Ok, "{}", told.text());
        operation
    }

    /// The version that a use tells.
    fn used(&self, asked: &GradlaneParameterUse) -> u64 {
        let (operation, mut version, mut told) = (self.begin(asked), 0, Told::new());
        // SAFETY: the variable lives in this function.
        unsafe {
            assert_eq!(gradlane_wait(operation, 0, told.error()), GradlaneStatus::Ok, "{}", told.text());
            assert_eq!(gradlane_operation_version(operation, &mut version, told.error()), GradlaneStatus::Ok);
            assert_eq!(gradlane_release(operation, told.error()), GradlaneStatus::Ok);
        }
        version
    }

    /// The version, the fate and the lag of a use.
    fn effect(&self, parameter_use: &GradlaneParameterUse) -> (u64, u32, u32) {
        let (operation, mut told) = (self.begin(parameter_use), Told::new());
        let mut effect = GradlaneEffect { version: 0, fate: 0, lag: 0 };
        // SAFETY: the variable lives in this function.
        unsafe {
            assert_eq!(gradlane_wait(operation, 0, told.error()), GradlaneStatus::Ok, "{}", told.text());
            assert_eq!(gradlane_operation_effect(operation, &mut effect, told.error()), GradlaneStatus::Ok);
            assert_eq!(gradlane_release(operation, told.error()), GradlaneStatus::Ok);
        }
        (effect.version, effect.fate, effect.lag)
    }

    /// The round, the step and the fate of a tick of the clock `train`, or the text of its error.
    fn tick(&self, mode: &CStr, round: u64) -> Result<(u64, u64, u64), String> {
        let (mut told, mut ticked) = (Told::new(), GradlaneTicked { round: 0, step: 0, ahead: 0, fate: 9 });
        // SAFETY: the variables live in this function.
        let status = unsafe {
            gradlane_tick(self.0, c"train".as_ptr(), mode.as_ptr(), round, 1, 1, 0, &mut ticked, told.error())
        };
        match status {
            GradlaneStatus::Ok => Ok((ticked.round, ticked.step, ticked.fate)),
            _ => Err(told.text().to_owned()),
        }
    }
}

/// A use of the parameter `w` of two elements.
fn parameter(access: GradlaneAccess, values: &mut [f32; 2]) -> GradlaneParameterUse {
    const NAME: &CStr = c"w";
    const SHAPE: &[u64] = &[2];
    GradlaneParameterUse {
        name: NAME.as_ptr(),
        shape: SHAPE.as_ptr(),
        dimensions: SHAPE.len(),
        value: values.as_mut_ptr().cast(),
        bytes: size_of_val(values),
        dtype: GradlaneDtype::Float32 as u32,
        access: access as u32,
        ..GradlaneParameterUse::empty()
    }
}
