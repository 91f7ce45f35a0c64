//! Orders of operators: who may give them, who gets them, and what they are answered.

use gradlane_core::types::{ClockKey, Control, ControlAnswer, ControlCommand, Mode, Recipient, Rule, ServerId, Tick};

use super::*;

const OPERATOR: u64 = 50;
const DONE: gradlane_core::Result<ControlAnswer> = Ok(ControlAnswer::Done);

#[test]
fn an_order_goes_to_one_member_and_its_answer_to_the_operator() {
    let mut job = with_operator(2);
    job.frame(OPERATOR, order(7, Recipient::Worker(WorkerId(1)), log()));
    let [Frame::Command { number, command }] = &job.received(1)[..] else { panic!("a command") };
    assert_eq!(*command, log());
    let ordered = Event::Ordered { to: Recipient::Worker(WorkerId(1)), order: "log" };
    assert!(job.events.contains(&ordered), "{:?}", job.events);
    assert_eq!((job.received(0), job.received(SERVER), job.received(OPERATOR)), (vec![], vec![], vec![]));
    job.frame(1, Frame::Commanded { number: *number, outcome: DONE });
    assert_eq!(job.received(OPERATOR), [Frame::Controlled { request: 7, outcome: DONE }]);
    job.frame(1, Frame::Commanded { number: *number, outcome: DONE });
    assert_eq!(job.received(OPERATOR), []);
}

#[test]
fn only_an_admin_gives_orders() {
    for role in [Role::Worker, Role::Server, Role::Observer] {
        let mut job = with_operator(1);
        job.connect_as(60, 60, role);
        job.frame(60, order(1, Recipient::Server(ServerId(0)), log()));
        let error = answer(&mut job, 60).unwrap_err();
        assert!(matches!(error, Error::Auth { .. }) && error.to_string().contains("needs an admin token"), "{error}");
        assert_eq!(job.received(SERVER), []);
        // A member may as little.
        job.frame(0, order(1, Recipient::Server(ServerId(0)), log()));
        assert!(matches!(answer(&mut job, 0), Err(Error::Auth { .. })));
    }
}

#[test]
fn an_admin_is_no_member() {
    let mut job = with_operator(1);
    job.frame(OPERATOR, Frame::Join(worker(3)));
    assert!(matches!(job.refusal(OPERATOR), Error::Auth { .. }));
}

#[test]
fn what_makes_no_sense_is_refused_and_the_connection_stays() {
    let mut job = with_operator(2);
    let (worker, server) = (Recipient::Worker(WorkerId(0)), Recipient::Server(ServerId(0)));
    let unknown = |code| ControlCommand::Unknown { code, fields: vec![1, 2, 3] };
    for (recipient, command, says) in [
        (server, unknown(200), "command 200 is unknown to the coordinator"),
        (
            Recipient::Server(ServerId(5)),
            log(),
            "server-5 is not there; the job has coordinator, worker-0, worker-1, server-0",
        ),
        (worker, ControlCommand::Drain, "drain is no order for worker-0"),
        (Recipient::Coordinator, ControlCommand::Drain, "drain is no order for coordinator"),
        (server, save(), "save is no order for server-0"),
        (server, dump(), "dump is no order for server-0"),
        (Recipient::Coordinator, ControlCommand::StopTimeline, "timeline is no order for coordinator"),
        (server, set("w", 0.5, None), "set is no order for server-0"),
        (Recipient::Coordinator, set("w", 0.5, None), "the parameter w is not there; no parameter of this job"),
        (Recipient::Coordinator, set("w", f64::NAN, None), "a learning rate of NaN"),
        (Recipient::Coordinator, set("w", -0.5, None), "a learning rate of -0.5"),
        (Recipient::Coordinator, set("w", f64::INFINITY, None), "a learning rate of inf"),
        (Recipient::Coordinator, save(), "no parameter of this job lives on servers"),
        (Recipient::Coordinator, ControlCommand::Save { path: String::new(), keep: None }, "0 bytes"),
        (Recipient::Coordinator, ControlCommand::Save { path: "p".to_owned(), keep: Some(0) }, "keeping 0 checkpoints"),
    ] {
        job.frame(OPERATOR, order(1, recipient, command.clone()));
        let error = answer(&mut job, OPERATOR).unwrap_err().to_string();
        assert!(error.contains(says), "{command:?}: {error}");
    }
    job.frame(OPERATOR, order(2, worker, ControlCommand::Stats));
    assert_eq!(job.received(0).len(), 1, "the job and the connection go on");
}

#[test]
fn a_job_that_has_not_formed_or_is_over_takes_no_orders() {
    let mut job = job(2);
    job.connect_as(OPERATOR, 50, Role::Admin);
    job.frame(OPERATOR, order(1, Recipient::Coordinator, ControlCommand::Stats));
    assert!(answer(&mut job, OPERATOR).unwrap_err().to_string().contains("has not formed"));
    let mut job = with_operator(1);
    job.frame(OPERATOR, order(1, Recipient::Worker(WorkerId(0)), log()));
    job.coordinator.stop(job.now, Error::Cancelled);
    assert_eq!(answer(&mut job, OPERATOR), Err(Error::Cancelled), "what was under way ends");
    job.frame(OPERATOR, order(2, Recipient::Worker(WorkerId(0)), log()));
    assert_eq!(answer(&mut job, OPERATOR), Err(Error::Cancelled));
}

#[test]
fn the_coordinator_obeys_by_its_driver() {
    let mut job = with_operator(1);
    job.frame(OPERATOR, order(1, Recipient::Coordinator, ControlCommand::Stats));
    job.drain();
    let (number, command) = job.ordered.pop().expect("an order");
    assert_eq!(command, ControlCommand::Stats);
    job.coordinator.handle_obeyed_here(number, DONE);
    assert_eq!(answer(&mut job, OPERATOR), DONE);
}

#[test]
fn every_member_and_the_coordinator_are_told_to_dump_their_recorders() {
    let mut job = with_operator(1);
    let dumps = || ControlCommand::DumpRecorder { directory: "d".to_owned() };
    for (link, recipient) in [(0, Recipient::Worker(WorkerId(0))), (SERVER, Recipient::Server(ServerId(0)))] {
        job.frame(OPERATOR, order(link, recipient, dumps()));
        let told = job.received(link);
        assert!(
            told.iter().any(|frame| matches!(frame, Frame::Command { command, .. } if *command == dumps())),
            "{told:?}"
        );
    }
    job.frame(OPERATOR, order(900, Recipient::Coordinator, dumps()));
    job.drain();
    assert_eq!(job.ordered.pop().map(|(_, command)| command), Some(dumps()));
}

#[test]
fn a_member_that_does_not_answer_is_named() {
    let mut job = with_operator(2);
    job.frame(OPERATOR, order(1, Recipient::Worker(WorkerId(1)), log()));
    job.beat_until(3, &[0, 1, SERVER]);
    let late = Error::Timeout { what: "log: no answer from worker-1".to_owned(), waited: 3 * SECOND };
    assert_eq!(answer(&mut job, OPERATOR), Err(late));
}

#[test]
fn a_member_that_is_lost_is_named() {
    let mut job = with_operator(2);
    job.frame(OPERATOR, order(1, Recipient::Worker(WorkerId(1)), log()));
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    assert_eq!(answer(&mut job, OPERATOR), Err(lost(1, "killed")));
}

#[test]
fn an_operator_whose_connection_was_closed_hears_nothing_more() {
    let mut job = with_operator(2);
    job.frame(OPERATOR, order(1, Recipient::Worker(WorkerId(1)), log()));
    // Only members tell that.
    job.frame(OPERATOR, Frame::Leave);
    assert!(matches!(job.closed(OPERATOR), Error::Protocol { .. }));
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    assert_eq!(job.received(OPERATOR), []);
}

#[test]
fn a_member_that_was_away_hears_of_it_when_it_is_back() {
    let mut job = with_operator(1);
    job.disconnect(SERVER);
    job.frame(OPERATOR, order(1, Recipient::Server(ServerId(0)), log()));
    job.join_as(70, SERVER as u8, server(0));
    let frames = job.received(70);
    let Some(Frame::Command { number, .. }) = frames.iter().find(|frame| matches!(frame, Frame::Command { .. })) else {
        panic!("{frames:?}")
    };
    job.frame(70, Frame::Commanded { number: *number, outcome: DONE });
    assert_eq!(answer(&mut job, OPERATOR), DONE);
}

#[test]
fn a_checkpoint_is_saved_for_an_operator_as_for_a_worker() {
    let mut job = with_parameter(None);
    job.frame(OPERATOR, order(1, Recipient::Coordinator, save()));
    job.drain();
    let Some(Disk { number, task: DiskTask::Begin { .. } }) = job.disks.pop() else { panic!("a directory") };
    job.coordinator.handle_disk(number, Err(Error::Cancelled));
    assert_eq!(answer(&mut job, OPERATOR), Err(Error::Cancelled));
}

#[test]
fn a_rate_changes_on_all_servers_from_a_step_that_is_not_closed() {
    let mut job = with_parameter(Some("c"));
    for worker in [0, 1] {
        job.frame(worker, tick(1, 1));
    }
    [0, 1, SERVER].into_iter().for_each(|link| drop(job.received(link)));
    job.frame(OPERATOR, order(1, Recipient::Coordinator, set("p", 0.5, Some(1))));
    let error = answer(&mut job, OPERATOR).unwrap_err();
    assert!(matches!(error, Error::FailedPrecondition { .. }), "{error}");
    assert_eq!(error.to_string(), "step 1 of the parameter p is closed; the first step whose rate can change is 2");
    for (request, asked, due) in [(2, None, 2), (3, Some(2), 2), (4, Some(40), 40)] {
        job.frame(OPERATOR, order(request, Recipient::Coordinator, set("p", 0.5, asked)));
        let [Frame::Command { number, command }] = &job.received(SERVER)[..] else { panic!("a command") };
        assert_eq!(*command, set("p", 0.5, Some(due)));
        let outcome = Ok(ControlAnswer::RateSet { step: Some(due) });
        job.frame(SERVER, Frame::Commanded { number: *number, outcome: outcome.clone() });
        assert_eq!(answer(&mut job, OPERATOR), outcome);
    }
}

#[test]
fn without_a_clock_there_are_no_steps() {
    let mut job = with_parameter(None);
    job.frame(OPERATOR, order(1, Recipient::Coordinator, set("p", 0.5, Some(7))));
    assert!(answer(&mut job, OPERATOR).unwrap_err().to_string().contains("has no clock"));
    job.frame(OPERATOR, order(2, Recipient::Coordinator, set("p", 0.5, None)));
    let [Frame::Command { command, .. }] = &job.received(SERVER)[..] else { panic!("a command") };
    assert_eq!(*command, set("p", 0.5, None));
    job.frame(OPERATOR, order(3, Recipient::Coordinator, set("plain", 0.5, None)));
    assert!(answer(&mut job, OPERATOR).unwrap_err().to_string().contains("has no rule"));
}

/// A job that runs, with an operator.
fn with_operator(workers: u32) -> Job {
    let mut job = formed(workers);
    job.connect_as(OPERATOR, 50, Role::Admin);
    job
}

/// The same of two workers, with the parameter `p`, which has a rule, and `plain`, which has none.
fn with_parameter(clock: Option<&str>) -> Job {
    let mut job = with_operator(2);
    let rule: Rule = "sgd:lr=1".parse().unwrap();
    let parameter = TensorSpec::parameter("p", DType::F32, vec![4]).with_rule(rule);
    let parameter = match clock {
        Some(clock) => parameter.with_mode(mode(clock)),
        None => parameter,
    };
    let plain = TensorSpec::parameter("plain", DType::F32, vec![4]);
    job.frame(0, Frame::Declare { request: 1, tensors: vec![parameter, plain], fuse: false });
    [0, 1, SERVER].into_iter().for_each(|link| drop(job.received(link)));
    job
}

fn mode(clock: &str) -> Mode {
    Mode { clock: Some(ClockKey::of(clock)), .."sync".parse().expect("a mode") }
}

fn tick(request: u64, round: u64) -> Frame {
    let tick =
        Tick { clock: "c".to_owned(), mode: mode("c"), round, samples: 1, leaves: false, wait: Some(9 * SECOND) };
    Frame::Tick { request, tick }
}

fn order(request: u64, recipient: Recipient, command: ControlCommand) -> Frame {
    Frame::Control { request, control: Control { recipient, wait: 3 * SECOND, command } }
}

fn log() -> ControlCommand {
    ControlCommand::Log { filter: "debug".to_owned() }
}

fn save() -> ControlCommand {
    ControlCommand::Save { path: "p".to_owned(), keep: None }
}

fn dump() -> ControlCommand {
    ControlCommand::Dump { tensor: "w".to_owned(), round: 7, directory: "d".to_owned(), wait: SECOND }
}

fn set(tensor: &str, rate: f64, step: Option<u64>) -> ControlCommand {
    ControlCommand::SetRate { tensor: tensor.to_owned(), rate, step }
}

/// The answer to the last order.
fn answer(job: &mut Job, link: u64) -> gradlane_core::Result<ControlAnswer> {
    let is_answer = |frame| if let Frame::Controlled { outcome, .. } = frame { Some(outcome) } else { None };
    job.received(link).into_iter().rev().find_map(is_answer).expect("an answer")
}
