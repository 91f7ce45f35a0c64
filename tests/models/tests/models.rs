//! Runs every model in its short form: some hundred orders each. `make test-models ITERATIONS=100000` runs more.
//!
//! A planted form has a known defect, and its model must find it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gradlane_models::{collective, engine, explore, runtime, transport};

/// Makes a test of each model.
macro_rules! models {
    ($($name:ident: $model:path;)+) => { $(
        #[test]
        fn $name() {
            explore(orders(), $model);
        }
    )+ };
}

/// Makes a test of each planted defect: the model must fail.
macro_rules! planted {
    ($($name:ident: $model:path;)+) => { $(
        #[test]
        fn $name() {
            let found = catch_unwind(AssertUnwindSafe(|| explore(ORDERS_TO_FIND, $model)));
            assert!(found.is_err(), "the model does not find the defect");
        }
    )+ };
}

models! {
    one_thread_at_a_time_helps_and_the_own_thread_goes_on: transport::shm::work_lock;
    a_reader_sleeps_through_no_message_and_a_writer_through_no_room: transport::shm::ring;
    every_caller_hears_of_its_sum: transport::shm::poller;
    a_stage_takes_all_tasks: engine::bell;
    inline_execution_leaves_no_task: engine::inline;
    every_waiter_of_a_handle_hears_its_outcome: engine::handle;
    settling_ends_with_the_last_operation: engine::followed;
    producers_share_the_room: engine::room;
    a_milestone_is_heard_by_all: engine::milestones;
    no_event_of_the_recorder_is_torn: runtime::recording::ring;
    an_open_operation_is_found_whole: runtime::recording::open;
    a_rank_sleeps_through_no_record: collective::host::presence;
    every_request_at_a_taken_seat_is_handled: collective::host::requests_at_a_taken_seat;
    work_for_an_announced_thread_is_done: collective::host::work_for_an_announced_thread;
}

planted! {
    a_refused_helper_that_leaves_is_found: transport::shm::work_lock_whose_refused_helper_leaves;
    a_helper_that_nobody_wakes_is_found: transport::shm::poller_that_wakes_no_helper;
    a_bell_that_forgets_is_found: engine::bell_that_forgets;
    inline_execution_that_looks_once_is_found: engine::inline_that_looks_once;
    an_outcome_that_is_told_without_the_lock_is_found: engine::handle_that_tells_without_the_lock;
    a_reader_of_events_that_looks_once_is_found: runtime::recording::ring_whose_reader_looks_once;
    writers_of_events_that_do_not_ask_are_found: runtime::recording::ring_whose_writers_do_not_ask;
    a_reader_that_does_not_look_again_is_found: transport::shm::ring_without_a_second_look;
    a_rank_that_does_not_look_again_is_found: collective::host::presence_without_a_second_look;
    a_thread_that_leaves_a_seat_and_does_not_look_again_is_found: collective::host::requests_of_whom_nobody_looks_again;
}

const ORDERS: usize = 300;
const ORDERS_TO_FIND: usize = 5_000;

#[expect(clippy::disallowed_methods, reason = "it is the test that is told, not Gradlane")]
fn orders() -> usize {
    std::env::var("MODEL_ITERATIONS").map_or(ORDERS, |text| text.parse().expect("a number"))
}
