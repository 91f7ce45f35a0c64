//! Steps of a job of one, through the C interface.

use std::ptr::null_mut;

use gradlane_session::c::*;

use crate::caller::{Session, Told};

#[test]
fn a_step_begins_until_the_worker_leaves() {
    let job = Session::start();
    for _ in 0..3 {
        let step = begin(&job);
        let GradlaneStep { has_left, has_changed, formed_again, size, rank, index, lowest_rank, .. } = step;
        assert_eq!((has_left, has_changed, formed_again), (0, 0, 0));
        assert_eq!((size, rank, index, lowest_rank), (1, 0, 0, 0));
    }
    // SAFETY: no pointers.
    unsafe {
        assert_eq!(gradlane_end_steps(job.0, null_mut()), GradlaneStatus::Ok);
        assert_eq!(gradlane_leave(job.0, null_mut()), GradlaneStatus::Ok);
    }
    assert_eq!(begin(&job).has_left, 1);
    let mut told = Told::new();
    // SAFETY: the structures live in this function.
    let status = unsafe { gradlane_begin_step(job.0, &mut GradlaneStep::empty(), told.error()) };
    assert_eq!(status, GradlaneStatus::FailedPrecondition, "{}", told.text());
}

#[test]
fn a_place_for_the_answer_of_a_wrong_size_is_refused_and_no_step_begins() {
    let job = Session::start();
    let mut told = Told::new();
    let mut short = GradlaneStep { struct_size: 8, size: 7, ..GradlaneStep::empty() };
    for to in [null_mut(), &raw mut short] {
        // SAFETY: null is what the function is asked about; the other structure lives in this function.
        let status = unsafe { gradlane_begin_step(job.0, to, told.error()) };
        assert_eq!(status, GradlaneStatus::InvalidArgument);
    }
    assert!(told.text().contains("a GradlaneStep whose struct_size is 8"), "{}", told.text());
    assert_eq!(short.size, 7);
}

#[test]
fn a_program_of_a_later_version_keeps_what_it_has_in_fields_that_this_version_does_not_know() {
    #[repr(C)]
    struct Later {
        step: GradlaneStep,
        more: u64,
    }
    let job = Session::start();
    let step = GradlaneStep { struct_size: size_of::<Later>(), ..GradlaneStep::empty() };
    let mut later = Later { step, more: 5 };
    let to = (&raw mut later).cast();
    // SAFETY: the structure begins with one of this version, and is as long as it says.
    let status = unsafe { gradlane_begin_step(job.0, to, null_mut()) };
    assert_eq!((status, later.step.size, later.more), (GradlaneStatus::Ok, 1, 5));
    assert_eq!(later.step.struct_size, size_of::<Later>());
}

fn begin(job: &Session) -> GradlaneStep {
    let (mut step, mut told) = (GradlaneStep::empty(), Told::new());
    // SAFETY: the structures live in this function.
    let status = unsafe { gradlane_begin_step(job.0, &mut step, told.error()) };
    assert_eq!(status, GradlaneStatus::Ok, "{}", told.text());
    step
}
