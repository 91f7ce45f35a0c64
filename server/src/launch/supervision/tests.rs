use super::*;

#[test]
fn when_all_workers_ended_in_order_the_servers_are_told_to_end() {
    let mut job = job();
    job.handle_exit(at(1), WORKER_0, Ending::Exited(0));
    assert_eq!(commands(&mut job), []);
    job.handle_exit(at(2), WORKER_1, Ending::Exited(0));
    assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGTERM)]);
    job.handle_exit(at(2), SERVER, Ending::Killed(libc::SIGTERM));
    assert_eq!(commands(&mut job), [Command::Finish(0)]);
}

#[test]
fn a_server_that_ends_in_order_before_the_workers_is_no_failure() {
    let mut job = job();
    job.handle_exit(at(1), SERVER, Ending::Exited(0));
    job.handle_exit(at(2), WORKER_0, Ending::Exited(0));
    job.handle_exit(at(3), WORKER_1, Ending::Exited(0));
    assert_eq!(commands(&mut job), [Command::Finish(0)]);
}

#[test]
fn a_server_that_fails_fails_the_job() {
    let mut job = job();
    job.handle_exit(at(1), SERVER, Ending::Exited(70));
    assert_eq!(
        commands(&mut job),
        [Command::ReportFailure { child: SERVER, ending: Ending::Exited(70), is_cause: true }]
    );
    job.handle_exit(at(2), WORKER_0, Ending::Exited(1));
    job.handle_exit(at(2), WORKER_1, Ending::Exited(1));
    assert_eq!(commands(&mut job).last(), Some(&Command::Finish(70)), "the first failure counts");
}

#[test]
fn survivors_of_a_failure_get_the_grace_then_sigterm_then_sigkill() {
    let mut job = job();
    job.handle_exit(at(10), WORKER_0, Ending::Killed(libc::SIGKILL));
    let failed = Command::ReportFailure { child: WORKER_0, ending: Ending::Killed(libc::SIGKILL), is_cause: true };
    assert_eq!(commands(&mut job), [failed]);
    assert_eq!(job.poll_timeout(), Some(at(15)));

    job.handle_timeout(at(15));
    assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGTERM)]);
    job.handle_timeout(at(16));
    assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGKILL)]);
    job.handle_exit(at(16), WORKER_1, Ending::Killed(libc::SIGKILL));
    job.handle_exit(at(16), SERVER, Ending::Killed(libc::SIGKILL));
    assert_eq!(commands(&mut job), [Command::Finish(128 + libc::SIGKILL)]);
}

#[test]
fn without_workers_the_servers_get_no_further_grace() {
    let mut job = job();
    job.handle_exit(at(1), WORKER_0, Ending::Exited(3));
    job.handle_exit(at(2), WORKER_1, Ending::Exited(0));
    assert_eq!(commands(&mut job).last(), Some(&Command::SignalAll(libc::SIGTERM)));
    job.handle_exit(at(2), SERVER, Ending::Exited(0));
    assert_eq!(commands(&mut job), [Command::Finish(3)]);
}

#[test]
fn sigterm_lets_the_workers_of_a_job_that_goes_on_leave_while_their_servers_stay() {
    let mut job = job_that_goes_on();
    job.handle_interrupt(at(1), libc::SIGTERM);
    assert_eq!(commands(&mut job), [Command::TerminateWorkers]);
    job.handle_exit(at(2), WORKER_0, Ending::Exited(0));
    assert_eq!(commands(&mut job), []);
    job.handle_exit(at(2), WORKER_1, Ending::Exited(0));
    assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGTERM)]);
    job.handle_exit(at(3), SERVER, Ending::Exited(0));
    assert_eq!(commands(&mut job), [Command::Finish(0)]);
}

#[test]
fn workers_that_do_not_leave_after_sigterm_are_terminated_and_the_code_says_so() {
    let mut job = job_that_goes_on();
    job.handle_interrupt(at(1), libc::SIGTERM);
    job.handle_exit(at(1), WORKER_0, Ending::Killed(libc::SIGTERM));
    job.handle_timeout(at(27));
    assert_eq!(commands(&mut job), [Command::TerminateWorkers, Command::SignalAll(libc::SIGTERM)]);
    job.handle_interrupt(at(27), libc::SIGTERM);
    assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGKILL)]);
    job.handle_exit(at(27), WORKER_1, Ending::Killed(libc::SIGKILL));
    job.handle_exit(at(27), SERVER, Ending::Exited(0));
    assert_eq!(commands(&mut job), [Command::Finish(128 + libc::SIGTERM)]);
    let mut twice = job_that_goes_on();
    twice.handle_interrupt(at(1), libc::SIGTERM);
    twice.handle_interrupt(at(2), libc::SIGTERM);
    assert_eq!(commands(&mut twice), [Command::TerminateWorkers, Command::SignalAll(libc::SIGTERM)]);
}

#[test]
fn an_interrupt_terminates_at_once_and_kills_one_second_later() {
    let mut job = job();
    job.handle_interrupt(at(1), libc::SIGINT);
    assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGTERM)]);
    job.handle_exit(at(1), WORKER_0, Ending::Killed(libc::SIGTERM));
    job.handle_timeout(at(2));
    assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGKILL)]);
    job.handle_exit(at(2), WORKER_1, Ending::Killed(libc::SIGKILL));
    job.handle_exit(at(2), SERVER, Ending::Exited(0));
    assert_eq!(commands(&mut job), [Command::Finish(128 + libc::SIGINT)]);
}

#[test]
fn a_second_interrupt_kills() {
    let mut job = job();
    job.handle_interrupt(at(1), libc::SIGINT);
    job.handle_interrupt(at(1), libc::SIGINT);
    assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGTERM), Command::SignalAll(libc::SIGKILL)]);
}

#[test]
fn a_child_explains_the_failure_of_its_job_even_if_it_is_heard_of_later() {
    let mut job = job();
    job.handle_job_failure(at(1), 1, None);
    assert_eq!(commands(&mut job), [Command::ReportJobFailure]);
    job.handle_exit(at(1), WORKER_1, Ending::Exited(7));
    job.handle_exit(at(2), WORKER_0, Ending::Exited(1));
    job.handle_exit(at(2), SERVER, Ending::Exited(1));
    assert_eq!(commands(&mut job).last(), Some(&Command::Finish(7)));
}

#[test]
fn the_child_that_failed_the_job_gives_the_code_also_if_others_end_before_it() {
    let mut job = job();
    job.handle_exit(at(1), WORKER_0, Ending::Exited(3));
    job.handle_job_failure(at(1), 1, Some(WORKER_1));
    job.handle_exit(at(2), WORKER_1, Ending::Exited(7));
    job.handle_exit(at(2), SERVER, Ending::Exited(1));
    assert_eq!(commands(&mut job).last(), Some(&Command::Finish(7)));
}

#[test]
fn a_job_that_fails_while_its_processes_end_in_order_still_fails() {
    let mut job = job();
    job.handle_job_failure(at(1), 75, None);
    for child in [WORKER_0, WORKER_1, SERVER] {
        job.handle_exit(at(2), child, Ending::Exited(0));
    }
    assert_eq!(commands(&mut job).last(), Some(&Command::Finish(75)));
}

#[test]
fn that_a_job_fails_after_its_child_is_no_news() {
    let mut job = job();
    job.handle_exit(at(1), WORKER_1, Ending::Exited(7));
    job.handle_job_failure(at(1), 1, None);
    let failed = Command::ReportFailure { child: WORKER_1, ending: Ending::Exited(7), is_cause: true };
    assert_eq!(commands(&mut job), [failed]);
}

#[test]
fn the_cause_is_told_also_if_a_child_that_ends_because_of_it_is_heard_of_before() {
    let mut job = job();
    job.handle_exit(at(1), WORKER_0, Ending::Exited(1));
    job.handle_job_failure(at(1), 1, Some(WORKER_1));
    job.handle_exit(at(1), WORKER_1, Ending::Exited(7));
    let failure = |child, code| Command::ReportFailure { child, ending: Ending::Exited(code), is_cause: true };
    let told = [failure(WORKER_0, 1), Command::ReportJobFailure, failure(WORKER_1, 7)];
    assert_eq!(commands(&mut job)[..3], told);
}

#[test]
fn a_job_that_goes_on_without_a_worker_succeeds_once_the_others_have() {
    let mut job = job_that_goes_on();
    job.handle_exit(at(1), WORKER_0, KILLED);
    assert_eq!(commands(&mut job), [failed(WORKER_0)], "the coordinator and the user hear of it");
    assert_eq!(job.poll_timeout(), None, "nobody is told to end");
    job.handle_exit(at(60), WORKER_1, Ending::Exited(0));
    assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGTERM)]);
    job.handle_exit(at(60), SERVER, Ending::Exited(0));
    assert_eq!(commands(&mut job), [Command::Finish(0)]);
}

#[test]
fn a_job_that_goes_on_until_no_worker_is_left_fails_as_the_first_one_did() {
    let mut job = job_that_goes_on();
    job.handle_exit(at(1), WORKER_0, KILLED);
    job.handle_exit(at(2), WORKER_1, Ending::Exited(7));
    job.handle_exit(at(2), SERVER, Ending::Exited(0));
    assert_eq!(commands(&mut job).last(), Some(&Command::Finish(128 + libc::SIGKILL)));
}

#[test]
fn a_job_that_the_coordinator_gives_up_after_a_worker_fails_as_that_one_did() {
    let mut job = job_that_goes_on();
    job.handle_exit(at(1), WORKER_1, KILLED);
    job.handle_job_failure(at(1), 1, Some(WORKER_1));
    assert_eq!(commands(&mut job), [failed(WORKER_1)], "the user has heard of it");
    job.handle_exit(at(2), WORKER_0, Ending::Exited(1));
    job.handle_exit(at(2), SERVER, Ending::Exited(1));
    assert_eq!(commands(&mut job).last(), Some(&Command::Finish(128 + libc::SIGKILL)));
}

#[test]
fn a_server_that_fails_fails_also_a_job_that_goes_on_without_workers() {
    let mut job = job_that_goes_on();
    job.handle_exit(at(1), SERVER, Ending::Exited(70));
    assert_eq!(job.poll_timeout(), Some(at(6)), "the others get their grace");
}

#[test]
fn a_worker_that_fails_while_the_job_runs_is_started_again_at_once() {
    let mut job = elastic_job(10);
    job.handle_exit(at(1), WORKER_0, KILLED);
    assert_eq!(commands(&mut job), [restarts(WORKER_0, 0), Command::Restart { child: WORKER_0 }]);
    assert_eq!(job.poll_timeout(), None);
    job.handle_exit(at(60), WORKER_1, Ending::Exited(0));
    assert_eq!(commands(&mut job), [], "the replacement works on");
    job.handle_exit(at(60), WORKER_0, Ending::Exited(0));
    assert_eq!(commands(&mut job), [Command::SignalAll(libc::SIGTERM)]);
    job.handle_exit(at(60), SERVER, Ending::Exited(0));
    assert_eq!(commands(&mut job), [Command::Finish(0)]);
}

#[test]
fn a_worker_that_fails_again_and_again_waits_longer_each_time() {
    let mut job = elastic_job(10);
    let mut now = 100;
    for pause in [0, 1, 2, 4, 8, 16, 30, 30] {
        job.handle_exit(at(now), WORKER_0, KILLED);
        assert_eq!(commands(&mut job)[0], restarts(WORKER_0, pause));
        if pause > 0 {
            assert_eq!(job.poll_timeout(), Some(at(now + pause)));
            job.handle_timeout(at(now + pause - 1));
            assert_eq!(commands(&mut job), [], "too early");
            job.handle_timeout(at(now + pause));
            assert_eq!(commands(&mut job), [Command::Restart { child: WORKER_0 }]);
        }
        now += pause;
    }
    job.handle_exit(at(now), WORKER_1, KILLED);
    assert_eq!(commands(&mut job)[0], restarts(WORKER_1, 0), "another worker has a pause of its own");
}

#[test]
fn a_job_without_a_worker_that_runs_waits_for_the_one_that_is_to_be_started_again() {
    let mut job = elastic_job(10);
    job.handle_exit(at(1), WORKER_0, KILLED);
    job.handle_exit(at(1), WORKER_0, KILLED);
    job.handle_exit(at(1), SERVER, Ending::Exited(0));
    commands(&mut job);
    job.handle_exit(at(1), WORKER_1, KILLED);
    job.handle_exit(at(1), WORKER_1, KILLED);
    assert_eq!(commands(&mut job).last(), Some(&restarts(WORKER_1, 1)));
    job.handle_timeout(at(2));
    let again = [WORKER_0, WORKER_1].map(|child| Command::Restart { child });
    assert_eq!(commands(&mut job), again);
}

#[test]
fn when_the_restarts_are_used_up_the_job_goes_on_without_the_worker() {
    let mut job = elastic_job(1);
    job.handle_exit(at(1), WORKER_0, KILLED);
    assert_eq!(commands(&mut job).len(), 2);
    job.handle_exit(at(2), WORKER_0, KILLED);
    assert_eq!(commands(&mut job), [failed(WORKER_0)]);
    job.handle_exit(at(3), WORKER_1, Ending::Exited(0));
    job.handle_exit(at(3), SERVER, Ending::Exited(0));
    assert_eq!(commands(&mut job).last(), Some(&Command::Finish(0)));

    let mut lost = elastic_job(1);
    lost.handle_exit(at(1), WORKER_1, Ending::Exited(7));
    lost.handle_exit(at(2), WORKER_1, KILLED);
    lost.handle_exit(at(3), WORKER_0, KILLED);
    lost.handle_exit(at(3), SERVER, Ending::Exited(0));
    assert_eq!(commands(&mut lost).last(), Some(&Command::Finish(128 + libc::SIGKILL)));
}

/// What happens before a worker fails, and whether it is started again then.
#[test]
fn no_worker_is_started_again_when_the_job_comes_to_its_end_or_has_not_formed() {
    type Before = fn(&mut Supervision);
    let cases: [(&str, Before, bool); 6] = [
        ("nothing", |_| (), true),
        ("the job has not formed, or is over", |job| job.set_job_runs(false), false),
        ("SIGTERM", |job| job.handle_interrupt(at(1), libc::SIGTERM), false),
        ("an interrupt", |job| job.handle_interrupt(at(1), libc::SIGINT), false),
        ("a worker ended in order", |job| job.handle_exit(at(1), WORKER_1, Ending::Exited(0)), false),
        ("the coordinator gave the job up", |job| job.handle_job_failure(at(1), 1, None), false),
    ];
    for (what, before, is_restarted) in cases {
        let mut job = elastic_job(10);
        before(&mut job);
        job.handle_exit(at(2), WORKER_0, KILLED);
        let found = commands(&mut job);
        assert_eq!(found.contains(&Command::Restart { child: WORKER_0 }), is_restarted, "{what}: {found:?}");

        // The same for one that waits to be started again.
        let mut job = elastic_job(10);
        job.handle_exit(at(0), WORKER_0, KILLED);
        job.handle_exit(at(1), WORKER_0, KILLED);
        before(&mut job);
        if !matches!(what, "nothing" | "the job has not formed, or is over") {
            commands(&mut job);
            job.handle_timeout(at(2));
            let found = commands(&mut job);
            assert!(!found.contains(&Command::Restart { child: WORKER_0 }), "{what}: {found:?}");
        }
    }
}

#[test]
fn a_job_that_is_over_when_its_last_worker_fails_ends() {
    let mut job = elastic_job(10);
    job.handle_exit(at(0), WORKER_0, KILLED);
    job.handle_exit(at(1), WORKER_0, KILLED);
    commands(&mut job);
    job.set_job_runs(false);
    job.handle_exit(at(1), WORKER_1, Ending::Exited(7));
    let told = Command::ReportFailure { child: WORKER_1, ending: Ending::Exited(7), is_cause: true };
    assert_eq!(commands(&mut job), [told, Command::SignalAll(libc::SIGTERM)]);
}

#[test]
fn a_worker_that_cannot_be_started_again_now_is_tried_later_while_restarts_are_left() {
    let mut job = elastic_job(2);
    job.handle_exit(at(1), WORKER_0, KILLED);
    commands(&mut job);
    job.handle_unstarted(at(1), WORKER_0);
    assert_eq!((commands(&mut job), job.poll_timeout()), (vec![], Some(at(2))));
    job.handle_timeout(at(2));
    assert_eq!(commands(&mut job), [Command::Restart { child: WORKER_0 }]);
    job.handle_unstarted(at(2), WORKER_0);
    assert_eq!((commands(&mut job), job.poll_timeout()), (vec![], None));
    job.handle_exit(at(3), WORKER_1, Ending::Exited(0));
    job.handle_exit(at(3), SERVER, Ending::Exited(0));
    assert_eq!(commands(&mut job).last(), Some(&Command::Finish(0)));
}

#[test]
fn after_a_restart_the_coordinators_name_for_a_worker_is_not_taken_for_that_of_a_child() {
    let mut job = elastic_job(10);
    job.handle_exit(at(1), WORKER_1, KILLED);
    commands(&mut job);
    job.handle_job_failure(at(60), 75, Some(WORKER_1));
    assert_eq!(commands(&mut job), [Command::ReportJobFailure], "it may be about another worker");
}

#[test]
fn a_job_that_outlives_servers_goes_on_without_one_that_failed() {
    let mut job = job_that_goes_on();
    job.outlive_servers();
    job.handle_exit(at(1), SERVER, KILLED);
    assert_eq!((commands(&mut job), job.poll_timeout()), (vec![failed(SERVER)], None));
    job.handle_exit(at(2), WORKER_0, Ending::Exited(0));
    job.handle_exit(at(3), WORKER_1, Ending::Exited(0));
    assert_eq!(commands(&mut job).last(), Some(&Command::Finish(0)));
}

#[test]
fn an_elastic_job_that_outlives_servers_gets_another_one_for_one_that_failed() {
    let mut job = job_that_goes_on();
    job.outlive_servers();
    job.allow_restarts(2);
    job.set_job_runs(true);
    job.handle_exit(at(1), SERVER, KILLED);
    let restart = Command::ReportRestart { child: SERVER, ending: KILLED, after: Duration::ZERO };
    assert_eq!(commands(&mut job), [restart, Command::Restart { child: SERVER }]);
    job.handle_exit(at(2), SERVER, KILLED);
    job.handle_exit(at(2), WORKER_0, Ending::Exited(0));
    assert_eq!(job.poll_timeout(), None, "the job comes to its end");
    job.handle_exit(at(3), WORKER_1, Ending::Exited(0));
    assert_eq!(commands(&mut job).last(), Some(&Command::Finish(0)));
}

#[test]
fn a_job_that_restores_servers_and_takes_in_no_workers_gets_other_servers_alone() {
    let mut job = job_that_goes_on();
    job.outlive_servers();
    job.restart_servers_alone();
    job.allow_restarts(2);
    job.set_job_runs(true);
    job.handle_exit(at(1), SERVER, KILLED);
    assert_eq!(commands(&mut job), [restarts(SERVER, 0), Command::Restart { child: SERVER }]);
    job.handle_exit(at(2), WORKER_0, KILLED);
    assert_eq!(commands(&mut job), [failed(WORKER_0)]);
}

#[test]
fn a_server_of_a_job_that_ends_without_it_is_not_started_again() {
    let mut job = job_that_goes_on();
    job.allow_restarts(2);
    job.set_job_runs(true);
    job.handle_exit(at(1), SERVER, KILLED);
    assert_eq!(commands(&mut job), [failed(SERVER)]);
}

#[test]
fn a_job_that_was_to_outlive_a_server_and_did_not_ends_with_its_code() {
    let mut job = job_that_goes_on();
    job.outlive_servers();
    job.handle_exit(at(1), SERVER, KILLED);
    commands(&mut job);
    job.handle_job_failure(at(1), 75, None);
    for worker in [WORKER_0, WORKER_1] {
        job.handle_exit(at(2), worker, Ending::Exited(75));
    }
    assert_eq!(commands(&mut job).last(), Some(&Command::Finish(128 + libc::SIGKILL)));
}

#[test]
fn an_ending_is_told_in_words() {
    assert_eq!(Ending::Exited(3).to_string(), "exited with code 3");
    assert_eq!(Ending::Killed(9).to_string(), "killed by signal 9 (SIGKILL)");
}

const SERVER: usize = 0;
const WORKER_0: usize = 1;
const WORKER_1: usize = 2;

const KILLED: Ending = Ending::Killed(libc::SIGKILL);

fn failed(child: usize) -> Command {
    Command::ReportFailure { child, ending: KILLED, is_cause: true }
}

fn job() -> Supervision {
    supervised(OnWorkerLoss::Abort)
}

/// A job that runs, and whose workers are started again.
fn elastic_job(restarts: u32) -> Supervision {
    let mut job = job_that_goes_on();
    job.allow_restarts(restarts);
    job.set_job_runs(true);
    job
}

fn restarts(child: usize, after: u64) -> Command {
    Command::ReportRestart { child, ending: KILLED, after: Duration::from_secs(after) }
}

fn job_that_goes_on() -> Supervision {
    supervised(OnWorkerLoss::Continue)
}

fn supervised(on_worker_loss: OnWorkerLoss) -> Supervision {
    let mut job = Supervision::new(Duration::from_secs(5), on_worker_loss, Duration::from_secs(25));
    assert_eq!([Role::Server, Role::Worker, Role::Worker].map(|role| job.add(role)), [SERVER, WORKER_0, WORKER_1]);
    job
}

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

fn commands(job: &mut Supervision) -> Vec<Command> {
    std::iter::from_fn(|| job.next_command()).collect()
}
