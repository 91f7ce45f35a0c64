//! What C callers do wrong ends in a typed error with advice, and nothing else happens. In a job of one, through the C interface.

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::offset_of;
use std::ptr::{null, null_mut};
use std::sync::mpsc::{Sender, channel};

use gradlane_session::c::*;

use crate::caller::{PATIENCE, Session, Told, ended, submission, with_callback};

#[test]
fn every_pointer_may_be_null_and_is_then_refused() {
    let job = Session::start();
    let mut told = Told::new();
    // SAFETY: null is what the functions are asked about.
    unsafe {
        assert_eq!(gradlane_init(null(), 0, null_mut(), told.error()), GradlaneStatus::InvalidArgument);
        assert_eq!(gradlane_init(null(), 2, &mut 0, told.error()), GradlaneStatus::InvalidArgument);
        assert_eq!(gradlane_rank(job.0, null_mut(), told.error()), GradlaneStatus::InvalidArgument);
        assert_eq!(gradlane_submit(job.0, null(), &mut 0, told.error()), GradlaneStatus::InvalidArgument);
        assert_eq!(gradlane_submit_all(job.0, null(), 3, &mut 0, told.error()), GradlaneStatus::InvalidArgument);
        assert_eq!(gradlane_declare(job.0, null(), 1, 0, 0, told.error()), GradlaneStatus::InvalidArgument);
        assert_eq!(gradlane_undeclare(job.0, null(), 1, 0, told.error()), GradlaneStatus::InvalidArgument);
        assert_eq!(gradlane_undeclare(job.0, [null()].as_ptr(), 1, 0, told.error()), GradlaneStatus::InvalidArgument);
        assert_eq!(gradlane_barrier(job.0, null(), 0, told.error()), GradlaneStatus::InvalidArgument);
        assert_eq!(gradlane_barrier(job.0, null(), 0, null_mut()), GradlaneStatus::InvalidArgument);
        assert_eq!(gradlane_metrics(job.0, null_mut(), 100, null_mut(), told.error()), GradlaneStatus::Ok);
    }
    assert!(told.text().contains("the barrier's name is NULL"), "{}", told.text());
}

#[test]
fn a_submission_that_makes_no_sense_is_refused_by_the_field_that_is_wrong() {
    let job = Session::start();
    let mut values = [1.0_f32, 2.0];
    let good = submission(c"w", &[2], &mut values);
    let long = CString::new("n".repeat(300)).unwrap();
    let dimensions = [1_u64; 65];
    let ranks = [0_u32, 1];
    let wrong: [(GradlaneSubmission, &str); 19] = [
        (GradlaneSubmission { struct_size: 8, ..good }, "struct_size is 8"),
        (GradlaneSubmission { name: null(), ..good }, "name is NULL"),
        (GradlaneSubmission { name: c"".as_ptr(), ..good }, "name of 0 bytes"),
        (GradlaneSubmission { name: c"\xFF".as_ptr(), ..good }, "not UTF-8"),
        (GradlaneSubmission { name: long.as_ptr(), ..good }, "name of 300 bytes"),
        (GradlaneSubmission { shape: null(), ..good }, "1 dimensions at 0x0"),
        (GradlaneSubmission { shape: dimensions.as_ptr(), dimensions: 65, ..good }, "65 dimensions"),
        (GradlaneSubmission { dtype: 9, ..good }, "dtype 9"),
        (GradlaneSubmission { op: 0, ..good }, "op 0"),
        (GradlaneSubmission { bytes: 12, ..good }, "buffers of 12 and 12 bytes"),
        (GradlaneSubmission { source: null_mut(), ..good }, "a null pointer to 8 bytes"),
        (GradlaneSubmission { memory: 2, ..good }, "memory 2"),
        (GradlaneSubmission { memory: GradlaneMemory::Cuda as u32, device: 70_000, ..good }, "device 70000"),
        (GradlaneSubmission { codec: c"fp8".as_ptr(), ..good }, "there is no codec \"fp8\""),
        (
            GradlaneSubmission { op: GradlaneOp::Broadcast as u32, root: 1, ..good },
            "a broadcast from worker 1, which does not exist in a job of one worker",
        ),
        (GradlaneSubmission { member_count: 2, ..good }, "2 members at 0x0"),
        (
            GradlaneSubmission { members: ranks.as_ptr(), member_count: 2, ..good },
            "worker 1 does not exist in a job of 1 workers",
        ),
        (GradlaneSubmission { has_receiver: 1, receiver: 3, ..good }, "worker 3 does not exist in a job of 1 workers"),
        (GradlaneSubmission { has_receiver: 2, ..good }, "has_receiver is 2"),
    ];
    for (wrong, problem) in wrong {
        let mut told = Told::new();
        let mut operation = 0;
        // SAFETY: what is wrong with the structures is said in their fields; their memory lives in this function.
        let statuses = unsafe {
            [
                gradlane_submit(job.0, &wrong, &mut operation, told.error()),
                gradlane_submit_all(job.0, &wrong, 1, &mut operation, told.error()),
                gradlane_push_pull(job.0, &wrong, told.error()),
            ]
        };
        assert_eq!(statuses, [GradlaneStatus::InvalidArgument; 3], "{problem}");
        assert!(told.text().contains(problem), "{}", told.text());
        assert_eq!((operation, told.error.status), (0, GradlaneStatus::InvalidArgument as i32));
    }
    assert_eq!(values, [1.0, 2.0]);
}

#[test]
fn a_program_that_was_compiled_before_a_structure_grew_still_works() {
    let job = Session::start();
    let mut values = [1.0_f32, 2.0];
    let good = submission(c"w", &[2], &mut values);
    let short = offset_of!(GradlaneSubmission, members);
    // What stands behind its end belongs to somebody else.
    let older = GradlaneSubmission { struct_size: short, has_receiver: 7, member_count: 7, ..good };
    let mut told = Told::new();
    // SAFETY: the structure and its memory live in this function.
    let status = unsafe { gradlane_push_pull(job.0, &older, told.error()) };
    assert_eq!(status, GradlaneStatus::Ok, "{}", told.text());
}

#[test]
fn a_group_must_agree() {
    let job = Session::start();
    let (mut first, mut second) = ([1.0_f32], [2.0_f32]);
    let members = [submission(c"a", &[1], &mut first), submission(c"b", &[1], &mut second)];
    let refused = |members: &[GradlaneSubmission], problem: &str| {
        let mut told = Told::new();
        // SAFETY: the structures and their memory live in this function.
        let status = unsafe { gradlane_submit_all(job.0, members.as_ptr(), members.len(), &mut 0, told.error()) };
        assert_eq!(status, GradlaneStatus::InvalidArgument);
        assert!(told.text().contains(problem), "{}", told.text());
    };
    refused(&[], "a group of no tensors");
    refused(&[members[0], members[0]], "tensor a comes twice");
    let other = GradlaneSubmission { op: GradlaneOp::Max as u32, ..members[1] };
    refused(&[members[0], other], "members 0 and 1 differ in op");
}

#[test]
fn a_number_that_was_released_or_is_of_another_kind_leads_nowhere() {
    let job = Session::start();
    let mut values = [1.0_f32, 2.0];
    let operation = job.submit(&submission(c"w", &[2], &mut values));
    let mut told = Told::new();
    // SAFETY: no pointer but the description's, which lives in this function.
    unsafe {
        assert_eq!(gradlane_poll(job.0, told.error()), GradlaneStatus::InvalidArgument, "{}", told.text());
        assert_eq!(gradlane_rank(operation, &mut 0, told.error()), GradlaneStatus::InvalidArgument);
        assert_eq!(gradlane_wait(0, 0, told.error()), GradlaneStatus::InvalidArgument);
        assert_eq!(gradlane_release(operation, told.error()), GradlaneStatus::Ok);
        assert_eq!(gradlane_release(operation, told.error()), GradlaneStatus::FailedPrecondition);
        assert!(told.text().contains("was released"), "{}", told.text());
        for again in [gradlane_wait(operation, 0, null_mut()), gradlane_cancel(operation, null_mut())] {
            assert_eq!(again, GradlaneStatus::FailedPrecondition);
        }
    }
}

#[test]
fn calls_after_the_end_of_a_session_are_refused_and_its_operations_can_still_be_released() {
    let job = Session::start();
    let mut values = [1.0_f32, 2.0];
    let good = submission(c"w", &[2], &mut values);
    let operation = job.submit(&good);
    let number = job.0;
    drop(job);
    let mut told = Told::new();
    // SAFETY: the structures and their memory live in this function.
    unsafe {
        assert_eq!(gradlane_submit(number, &good, &mut 0, told.error()), GradlaneStatus::FailedPrecondition);
        assert_eq!(gradlane_shutdown(number, 0, told.error()), GradlaneStatus::FailedPrecondition);
        assert_eq!(gradlane_poll(operation, told.error()), GradlaneStatus::Ok);
        assert_eq!(gradlane_release(operation, told.error()), GradlaneStatus::Ok);
    }
}

#[test]
fn a_structure_of_a_later_version_is_taken_as_long_as_it_says_nothing_new() {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Later {
        known: GradlaneSubmission,
        new: u64,
    }
    let job = Session::start();
    let (mut a, mut b) = ([1.0_f32], [2.0_f32]);
    let later = |known: GradlaneSubmission, new| Later {
        known: GradlaneSubmission { struct_size: size_of::<Later>(), ..known },
        new,
    };
    for (new, expected) in [(0, GradlaneStatus::Ok), (1, GradlaneStatus::InvalidArgument)] {
        let group = [later(submission(c"a", &[1], &mut a), 0), later(submission(c"b", &[1], &mut b), new)];
        let mut operation = 0;
        // SAFETY: the structures, as long as they say, and their memory live in this function.
        let status = unsafe { gradlane_submit_all(job.0, group.as_ptr().cast(), 2, &mut operation, null_mut()) };
        assert_eq!(status, expected);
    }
}

#[test]
fn tensors_without_elements_are_done_at_once_and_nothing_else_is_asked_of_them() {
    let (sender, receiver) = channel();
    let job = Session::start();
    let mut operation = 0;
    let empty = GradlaneSubmission { source: null_mut(), bytes: 0, ..submission(c"e", &[0, 7], &mut []) };
    // SAFETY: the structure lives in this function; the sender lives until the callback has run.
    unsafe {
        let told = with_callback(empty, &sender);
        assert_eq!(gradlane_submit(job.0, &told, &mut operation, null_mut()), GradlaneStatus::Ok);
        assert_eq!(gradlane_poll(operation, null_mut()), GradlaneStatus::Ok);
        assert_eq!(gradlane_push_pull(job.0, &empty, null_mut()), GradlaneStatus::Ok);
    }
    assert_eq!(ended(&receiver), operation);
}

#[test]
fn a_callback_may_use_the_operation_but_not_end_its_session() {
    unsafe extern "C" fn end(user: *mut c_void, operation: GradlaneOperation) {
        // SAFETY: the test gives this, which outlives the session.
        let (session, answers) = unsafe { &*user.cast::<(GradlaneSession, Sender<GradlaneStatus>)>() };
        // SAFETY: no pointers.
        let statuses = unsafe {
            [
                gradlane_poll(operation, null_mut()),
                gradlane_shutdown(*session, 0, null_mut()),
                gradlane_release(operation, null_mut()),
            ]
        };
        statuses.into_iter().for_each(|status| answers.send(status).unwrap());
    }
    let (sender, answers) = channel::<GradlaneStatus>();
    // Declared before the session, so that it outlives the thread that runs callbacks.
    let mut shared = (0, sender);
    let job = Session::start();
    shared.0 = job.0;
    let mut values = [1.0_f32, 2.0];
    let user = (&raw const shared).cast_mut().cast();
    job.submit(&GradlaneSubmission { callback: Some(end), user, ..submission(c"w", &[2], &mut values) });
    let answers: Vec<_> = (0..3).map(|_| answers.recv_timeout(PATIENCE).unwrap()).collect();
    assert_eq!(answers, [GradlaneStatus::Ok, GradlaneStatus::FailedPrecondition, GradlaneStatus::Ok]);
}

#[test]
fn an_operation_that_was_released_still_tells_its_end_by_the_callback() {
    let (sender, receiver) = channel();
    let job = Session::start();
    let mut values = [1.0_f32, 2.0];
    // SAFETY: the sender lives until the callback has run.
    let operation = job.submit(&unsafe { with_callback(submission(c"w", &[2], &mut values), &sender) });
    // SAFETY: no pointers.
    assert_eq!(unsafe { gradlane_release(operation, null_mut()) }, GradlaneStatus::Ok);
    assert_eq!(ended(&receiver), operation);
}

#[test]
fn an_unknown_setting_is_refused_by_name() {
    let mut told = Told::new();
    let setting = GradlaneSetting { name: c"step_timout".as_ptr(), value: c"1s".as_ptr() };
    let mut session = 0;
    // SAFETY: the texts and structures live in this function.
    let status = unsafe { gradlane_init(&setting, 1, &mut session, told.error()) };
    assert_eq!((status, session), (GradlaneStatus::InvalidArgument, 0));
    assert!(told.text().contains("step_timout"), "{}", told.text());
}

#[test]
fn metrics_are_cut_where_the_memory_ends_and_say_how_long_they_are() {
    let job = Session::start();
    let mut whole = 0;
    let mut buffer: Vec<c_char> = vec![1; 65_536];
    // SAFETY: the buffer lives in this function and is that long.
    unsafe {
        assert_eq!(
            gradlane_metrics(job.0, buffer.as_mut_ptr(), buffer.len(), &mut whole, null_mut()),
            GradlaneStatus::Ok
        );
        let text = CStr::from_ptr(buffer.as_ptr()).to_str().unwrap();
        assert_eq!(text.len(), whole);
        assert!(text.contains("submissions"), "{text}");
        assert_eq!(gradlane_metrics(job.0, buffer.as_mut_ptr(), 5, &mut whole, null_mut()), GradlaneStatus::Ok);
        assert_eq!(CStr::from_ptr(buffer.as_ptr()).to_bytes().len(), 4);
    }
}
