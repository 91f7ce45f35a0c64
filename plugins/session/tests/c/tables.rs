//! Uses of tables in a job of one, which keeps them itself.

use std::ptr::{null, null_mut};
use std::sync::mpsc::channel;

use gradlane_session::c::*;

use crate::caller::{Session, Told, ended, submission, with_callback};

type Begin = unsafe extern "C" fn(
    GradlaneSession,
    *const GradlaneTableUse,
    *mut GradlaneOperation,
    *mut GradlaneError,
) -> GradlaneStatus;

const IDS: [u64; 3] = [7, 1 << 40, 7];

#[test]
fn rows_are_pulled_pushed_to_looked_at_and_counted() {
    let job = Session::start();
    let mut rows = [9.0_f32; 6];
    job.use_table(gradlane_table_look, &table(&mut rows));
    assert_eq!((rows, job.counted(gradlane_table_stats).rows), ([0.0; 6], 0), "a look makes no rows");
    job.use_table(gradlane_table_pull, &table(&mut rows));
    assert_eq!(job.counted(gradlane_table_stats).rows, 2);
    let mut gradients = [1.0, 2.0, 10.0, 20.0, 3.0, 4.0];
    let pushed = job.use_table(gradlane_table_push, &table(&mut gradients));
    assert_eq!(gradients, [1.0, 2.0, 10.0, 20.0, 3.0, 4.0], "they are only read");
    assert!(pushed > 0, "a version");
    job.use_table(gradlane_table_pull, &table(&mut rows));
    // By a rate of 0.5, and those of id 7 together.
    assert_eq!(rows, [-2.0, -3.0, -5.0, -10.0, -2.0, -3.0]);
    job.use_table(gradlane_table_clear, &table(&mut rows));
    assert_eq!(job.counted(gradlane_table_stats).rows, 0);
}

#[test]
fn a_shrink_removes_rows_by_their_scores_and_tells_how_many() {
    let job = Session::start();
    let mut gradients = [1.0; 6];
    job.use_table(gradlane_table_push, &table(&mut gradients));
    let once = GradlaneTableUse { count: 1, bytes: 8, ..table(&mut gradients) };
    job.use_table(gradlane_table_push, &once);
    let counts = job.counted(shrink);
    assert_eq!((counts.scanned, counts.evicted, counts.rows), (2, 1, 1), "that of id 7 has a score of 1");
    let (mut told, mut operation) = (Told::new(), 0);
    // SAFETY: the variables live in this function.
    let status =
        unsafe { gradlane_table_shrink(job.0, &table(&mut gradients), 1.5, 0.0, 0, 0, &mut operation, told.error()) };
    assert_eq!(status, GradlaneStatus::InvalidArgument);
    assert!(told.text().contains("decay of 1.5"), "{}", told.text());
}

#[test]
fn a_use_that_makes_no_sense_is_refused_by_the_field_that_is_wrong() {
    let job = Session::start();
    let mut rows = [1.0_f32; 6];
    let good = table(&mut rows);
    let wrong = [
        (GradlaneTableUse { struct_size: 8, ..good }, "struct_size is 8"),
        (GradlaneTableUse { name: null(), ..good }, "name is NULL"),
        (GradlaneTableUse { name: c"".as_ptr(), ..good }, "name of 0 bytes"),
        (GradlaneTableUse { table: null(), ..good }, "the table is NULL"),
        (GradlaneTableUse { table: c"sgd:lr=1".as_ptr(), ..good }, "dim"),
        (GradlaneTableUse { ids: null(), ..good }, "3 ids at 0x0"),
        (GradlaneTableUse { rows: null_mut(), ..good }, "rows is 0x0"),
        (GradlaneTableUse { bytes: 20, ..good }, "rows of 20 bytes for 3 ids"),
        (GradlaneTableUse { count: (1 << 20) + 1, ..good }, "1048577 ids at once"),
        (GradlaneTableUse { reserved: 1, ..good }, "reserved is 1"),
    ];
    for (wrong, problem) in wrong {
        for begin in [gradlane_table_pull as Begin, gradlane_table_look, gradlane_table_push] {
            let (mut told, mut operation) = (Told::new(), 0);
            // SAFETY: what is wrong with the structures is said in their fields; their memory lives in this function.
            let status = unsafe { begin(job.0, &wrong, &mut operation, told.error()) };
            assert_eq!((status, operation), (GradlaneStatus::InvalidArgument, 0), "{problem}");
            assert!(told.text().contains(problem), "{problem}: {}", told.text());
        }
    }
    let mut told = Told::new();
    // SAFETY: null is what the function is asked about.
    let status = unsafe { gradlane_table_pull(job.0, null(), &mut 0, told.error()) };
    assert_eq!(status, GradlaneStatus::InvalidArgument);
    rows[4] = f32::NAN;
    // SAFETY: the variables live in this function.
    let status = unsafe { gradlane_table_push(job.0, &table(&mut rows), &mut 0, told.error()) };
    assert_eq!(status, GradlaneStatus::InvalidArgument, "{}", told.text());
    assert_eq!(job.counted(gradlane_table_stats).rows, 0);
}

#[test]
fn another_description_of_a_table_and_a_full_one_are_refused() {
    let job = Session::start();
    let mut rows = [0.0_f32; 6];
    job.use_table(gradlane_table_pull, &table(&mut rows));
    let other = GradlaneTableUse { table: c"sgd:lr=0.25;dim=2".as_ptr(), ..table(&mut rows) };
    let (mut told, mut operation) = (Told::new(), 0);
    // SAFETY: the variables live in this function.
    let status = unsafe { gradlane_table_pull(job.0, &other, &mut operation, told.error()) };
    assert_eq!(status, GradlaneStatus::InvalidArgument);
    assert!(told.text().contains("lr=0.25"), "{}", told.text());
    let small =
        GradlaneTableUse { name: c"small".as_ptr(), table: c"sgd:lr=1;dim=2,rows=1".as_ptr(), ..table(&mut rows) };
    let full = job.begin_table(gradlane_table_pull, &small);
    // SAFETY: the description lives in this function.
    let status = unsafe { gradlane_wait(full, 0, told.error()) };
    assert_eq!(status, GradlaneStatus::FailedPrecondition, "{}", told.text());
}

#[test]
fn rows_have_landed_when_the_callback_runs_and_when_a_wait_for_the_first_returns() {
    let (sender, receiver) = channel();
    let job = Session::start();
    let mut gradients = [-2.0_f32; 6];
    job.use_table(gradlane_table_push, &table(&mut gradients));
    let mut rows = [0.0_f32; 6];
    // SAFETY: the sender lives until the callback has run.
    let told = unsafe { with_callback(GradlaneSubmission::empty(), &sender) };
    let (callback, user) = (told.callback, told.user);
    let begun = job.begin_table(gradlane_table_pull, &GradlaneTableUse { callback, user, ..table(&mut rows) });
    assert_eq!(ended(&receiver), begun);
    assert_eq!(rows, [2.0, 2.0, 1.0, 1.0, 2.0, 2.0]);
    rows = [0.0; 6];
    let mut values = [1.0_f32, 2.0];
    let operations =
        [job.begin_table(gradlane_table_look, &table(&mut rows)), job.submit(&submission(c"s", &[2], &mut values))];
    let mut index = 7;
    // SAFETY: the array and the variables live in this function.
    let found = unsafe { gradlane_wait_any(operations.as_ptr(), 2, GRADLANE_FOREVER, &mut index, null_mut()) };
    assert_eq!((found, index, rows), (GradlaneStatus::Ok, 0, [2.0, 2.0, 1.0, 1.0, 2.0, 2.0]));
}

#[test]
fn nothing_is_written_after_the_session_was_shut_down() {
    let job = Session::start();
    let mut rows = [9.0_f32; 6];
    let [kept, landed] = [(); 2].map(|()| job.begin_table(gradlane_table_look, &table(&mut rows)));
    // SAFETY: no pointers.
    assert_eq!(unsafe { gradlane_poll(landed, null_mut()) }, GradlaneStatus::Ok);
    rows = [9.0; 6];
    drop(job);
    let mut told = Told::new();
    // SAFETY: the description lives in this function.
    unsafe {
        assert_eq!(gradlane_wait(kept, 0, told.error()), GradlaneStatus::FailedPrecondition);
        assert!(told.text().contains("before the rows were written"), "{}", told.text());
        assert_eq!(gradlane_wait(landed, 0, told.error()), GradlaneStatus::Ok);
    }
    assert_eq!(rows, [9.0; 6]);
}

#[test]
fn counts_are_those_of_a_shrink_or_of_stats_alone() {
    let job = Session::start();
    let (mut rows, mut values) = ([0.0_f32; 6], [1.0_f32, 2.0]);
    let pull = job.begin_table(gradlane_table_pull, &table(&mut rows));
    let sum = job.submit(&submission(c"s", &[2], &mut values));
    let (mut told, mut counts) = (Told::new(), NONE);
    for operation in [pull, sum] {
        // SAFETY: the variables live in this function.
        let status = unsafe { gradlane_operation_counts(operation, &mut counts, told.error()) };
        assert_eq!(status, GradlaneStatus::FailedPrecondition);
        assert!(told.text().contains("tells no counts"), "{}", told.text());
    }
    let none = GradlaneTableUse { ids: null(), rows: null_mut(), count: 0, bytes: 0, ..table(&mut rows) };
    job.use_table(gradlane_table_pull, &none);
    job.use_table(gradlane_table_push, &none);
}

const NONE: GradlaneTableCounts =
    GradlaneTableCounts { scanned: 0, evicted: 0, rows: 0, waiting: 0, bytes: 0, dropped: 0 };

impl Session {
    fn begin_table(&self, begin: Begin, table_use: &GradlaneTableUse) -> GradlaneOperation {
        let (mut operation, mut told) = (0, Told::new());
        // SAFETY: the tests keep the memory until the operation was waited for.
        let status = unsafe { begin(self.0, table_use, &mut operation, told.error()) };
        assert_eq!(status, GradlaneStatus::Ok, "{}", told.text());
        operation
    }

    /// The version that a use tells.
    fn use_table(&self, begin: Begin, table_use: &GradlaneTableUse) -> u64 {
        let (operation, mut version, mut told) = (self.begin_table(begin, table_use), 0, Told::new());
        // SAFETY: the variable lives in this function.
        unsafe {
            assert_eq!(gradlane_wait(operation, 0, told.error()), GradlaneStatus::Ok, "{}", told.text());
            assert_eq!(gradlane_operation_version(operation, &mut version, told.error()), GradlaneStatus::Ok);
            assert_eq!(gradlane_release(operation, told.error()), GradlaneStatus::Ok);
        }
        version
    }

    /// What a use without ids has counted.
    fn counted(&self, begin: Begin) -> GradlaneTableCounts {
        let (operation, mut told) = (self.begin_table(begin, &table(&mut [0.0; 6])), Told::new());
        let mut counts = NONE;
        // SAFETY: the variable lives in this function.
        unsafe {
            assert_eq!(gradlane_wait(operation, 0, told.error()), GradlaneStatus::Ok, "{}", told.text());
            assert_eq!(gradlane_operation_counts(operation, &mut counts, told.error()), GradlaneStatus::Ok);
        }
        counts
    }
}

/// A shrink that halves scores and removes rows below three quarters.
unsafe extern "C" fn shrink(
    session: GradlaneSession,
    table_use: *const GradlaneTableUse,
    operation: *mut GradlaneOperation,
    error: *mut GradlaneError,
) -> GradlaneStatus {
    // SAFETY: promised by the caller of this function.
    unsafe { gradlane_table_shrink(session, table_use, 0.5, 0.75, u64::MAX, 0, operation, error) }
}

/// A use of the table `rows` with three ids and two numbers a row.
fn table(rows: &mut [f32; 6]) -> GradlaneTableUse {
    GradlaneTableUse {
        name: c"rows".as_ptr(),
        table: c"sgd:lr=0.5;dim=2".as_ptr(),
        ids: IDS.as_ptr(),
        count: IDS.len(),
        rows: rows.as_mut_ptr(),
        bytes: size_of_val(rows),
        ..GradlaneTableUse::empty()
    }
}
