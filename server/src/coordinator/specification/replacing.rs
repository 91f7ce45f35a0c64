//! An elastic job that outlives servers takes in a server in the place of a lost one: behind a step it forms again.

use gradlane_core::types::{Holdings, StepReport};

use super::outliving::{kill_server, outliving_as, outliving_config};
use super::reforming::ANEW;
use super::stepping::at_change;
use super::*;

/// The link of the server that comes, and the number behind it.
const NEW: u64 = SERVER + 7;

#[test]
fn a_server_that_comes_for_a_lost_one_waits_until_all_stand_and_the_job_forms_again_with_as_many_as_before() {
    let mut job = elastic();
    lose_and_step(&mut job);
    job.join(NEW, server(7));
    job.waits(NEW);
    form_again(&mut job);
    assert_eq!(job.coordinator.view().phase, Phase::Running);
    let view = job.coordinator.view();
    let hosts: Vec<&str> = view.servers().map(|member| member.process.host.as_str()).collect();
    assert_eq!((hosts, view.formed_servers), (vec!["s0", "s7"], 2), "that which was there comes first");
    assert_eq!(job.received(NEW), [Frame::View(view)]);
}

#[test]
fn one_that_comes_before_the_loss_is_known_waits_for_it() {
    let mut job = elastic();
    job.join(NEW, server(7));
    begin_steps(&mut job);
    assert_eq!(job.received(0), [], "there are as many as the job may have");
    kill_server(&mut job, 1);
    assert!(job.received(0).contains(&Frame::Boundary { change: 1, limit: None, hold: None }));
}

#[test]
fn a_job_forms_again_without_the_server_that_came_if_that_is_gone_meanwhile() {
    let mut gone = elastic();
    lose_and_step(&mut gone);
    gone.join(NEW, server(7));
    dissolve(&mut gone);
    gone.disconnect(NEW);
    gone.coordinator.form_again(TERM + 1, gone.now);
    [SERVER, 0, 1].into_iter().for_each(|link| gone.come_again(link));
    assert_eq!((gone.coordinator.view().phase, gone.coordinator.view().servers().count()), (Phase::Running, 1));
}

#[test]
fn a_server_that_is_lost_while_the_job_forms_again_is_not_waited_for() {
    let begin = || {
        let mut job = elastic();
        job.join(9, worker(9));
        begin_steps(&mut job);
        dissolve(&mut job);
        job.coordinator.form_again(TERM + 1, job.now);
        [SERVER, 0, 1].into_iter().for_each(|link| job.come_again(link));
        assert_eq!(job.coordinator.view().phase, Phase::Forming, "another server was there");
        job
    };
    let servers = |job: &Job| job.coordinator.view().servers().count();
    let mut late = begin();
    late.beat_until(11, &[ANEW, ANEW + 1, ANEW + SERVER, 9]);
    assert_eq!((late.coordinator.view().phase, servers(&late)), (Phase::Running, 1));
    let mut known = begin();
    kill_server(&mut known, 1);
    assert_eq!((known.coordinator.view().phase, servers(&known)), (Phase::Running, 1));
}

#[test]
fn a_job_does_not_form_again_without_any_server() {
    let mut job = elastic();
    lose_and_step(&mut job);
    job.join(NEW, server(7));
    dissolve(&mut job);
    job.disconnect(NEW);
    job.coordinator.form_again(TERM + 1, job.now);
    (0..2).for_each(|link| job.come_again(link));
    kill_server(&mut job, 0);
    job.beat_until(11, &[ANEW, ANEW + 1]);
    let Phase::Aborted(Error::NotFormed { missing, .. }) = job.coordinator.view().phase else { panic!("it ended") };
    assert_eq!(missing, ["a server"]);
}

#[test]
fn what_forms_again_is_the_same_after_a_restart_of_the_coordinator() {
    let mut job = elastic();
    lose_and_step(&mut job);
    job.join(NEW, server(7));
    job.drain();
    let (coordinator, now) = Coordinator::recover(config(), job.journal.clone()).unwrap();
    assert_eq!(coordinator.lasting(), job.coordinator.lasting());
    let mut resumed = Job { coordinator, now, ..job_of(config()) };
    (0..2).for_each(|link| resumed.join(link, worker(link as u32)));
    resumed.join(SERVER, server(0));
    resumed.join(NEW, server(7));
    form_again(&mut resumed);
    resumed.drain();
    let records = resumed.journal.clone();
    let (again, _) = Coordinator::recover(config(), records).unwrap();
    assert_eq!((again.view().phase, again.view().servers().count()), (Phase::Running, 2));
}

#[test]
fn servers_are_refused_where_they_cannot_be_taken_in() {
    let mut many = elastic();
    (0..2).for_each(|number| many.join(NEW + number, server(7 + number as u32)));
    many.join(NEW + 2, server(9));
    assert!(many.refusal(NEW + 2).to_string().contains("2 servers, and as many wait"));
    let mut parameters = outliving_as(CoordinatorConfig { servers: 1, ..config() }, 2);
    let tensor = TensorSpec::parameter("p", DType::F32, vec![4]);
    parameters.frame(0, Frame::Declare { request: 1, tensors: vec![tensor], fuse: false });
    parameters.join(NEW, server(7));
    assert!(parameters.refusal(NEW).to_string().contains("keeps parameters"));
    for refused in [
        CoordinatorConfig { workers_max: None, ..config() },
        CoordinatorConfig { policy: Policy::CONTINUE, ..config() },
    ] {
        let mut job = outliving_as(refused, 2);
        job.join(NEW, server(7));
        assert!(job.refusal(NEW).to_string().contains("is complete"));
    }
}

fn config() -> CoordinatorConfig {
    CoordinatorConfig { workers_max: Some(4), ..outliving_config(2) }
}

/// An elastic job of two workers and two servers.
fn elastic() -> Job {
    outliving_as(config(), 2)
}

/// Server 1 is lost, and nothing is to be recovered. All workers have begun a step and heard of the loss.
fn lose_and_step(job: &mut Job) {
    kill_server(job, 1);
    let number = job.coordinator.view().epoch.number;
    let nothing = Frame::Holdings(Holdings { epoch: job.coordinator.view().epoch, ..Holdings::default() });
    (0..2).for_each(|link| job.frame(link, nothing.clone()));
    assert_eq!(job.coordinator.view().epoch.number, number + 1, "it was recovered");
    begin_steps(job);
}

fn begin_steps(job: &mut Job) {
    (0..2).for_each(|link| job.say(link, StepReport { begun: 1, ..at_change(0) }));
}

/// All workers stand, and the former formation is over.
fn dissolve(job: &mut Job) {
    job.pass_boundary(1, &[0, 1], &[]);
    let servers = job.coordinator.view().servers().count() as u64;
    (0..servers).for_each(|number| job.frame(SERVER + number, Frame::Leave));
    assert!(job.is_finished());
}

fn form_again(job: &mut Job) {
    dissolve(job);
    job.journal.clear();
    job.coordinator.form_again(TERM + 1, job.now);
    [SERVER, 0, 1].into_iter().for_each(|link| job.come_again(link));
}
