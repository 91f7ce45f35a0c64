//! The setting `on_server_loss=restore`: at the loss of a server all fails that is under way, and the job forms again.

use gradlane_core::config::OnServerLoss;
use gradlane_core::types::{CheckpointAsk, LoadAsk, Missing, SaveAsk};

use super::outliving::{kill_server, outliving_as};
use super::reforming::ANEW;
use super::*;

/// The link of the server that comes, and the number behind it.
const NEW: u64 = SERVER + 7;

#[test]
fn all_hear_which_server_was_lost_and_the_job_forms_again_with_the_members_that_are_left() {
    let mut job = restoring();
    job.frame(0, barrier(3));
    kill_server(&mut job, 0);
    let cause = state_lost(0);
    assert_eq!(job.coordinator.view().phase, Phase::Restores(cause.clone()));
    for link in [0, 1, SERVER + 1] {
        let told = job.received(link);
        assert!(
            matches!(told.last(), Some(Frame::View(view)) if view.phase == Phase::Restores(cause.clone())),
            "{told:?}"
        );
        let failed = |frame: &Frame| *frame == Frame::BarrierDone { request: 3, outcome: Err(cause.clone()) };
        assert_eq!(told.iter().any(failed), link == 0, "{told:?}");
    }
    assert!(matches!(job.closed(SERVER), Error::Fenced { .. }));
    // Members may be faster than the end of the former formation.
    job.come_again(0);
    break_up(&mut job, &[SERVER + 1]);
    job.come_again(SERVER + 1);
    assert_eq!(job.coordinator.view().phase, Phase::Forming, "one is expected");
    job.come_again(1);
    let view = job.coordinator.view();
    assert_eq!((view.phase.clone(), view.epoch.term, view.formed_before), (Phase::Running, TERM + 1, 1));
    assert_eq!((view.workers().count(), view.servers().count(), view.formed_servers), (2, 1, 1));
}

#[test]
fn a_server_that_comes_meanwhile_takes_the_place_of_the_lost_one() {
    let mut job = restoring();
    kill_server(&mut job, 0);
    job.join(NEW, server(7));
    break_up(&mut job, &[SERVER + 1]);
    [SERVER + 1, 0, 1].into_iter().for_each(|link| job.come_again(link));
    assert_eq!(hosts(&job), ["s1", "s7"]);
}

#[test]
fn one_that_comes_before_the_loss_is_known_waits_for_it() {
    let mut job = restoring();
    job.join(NEW, server(7));
    job.waits(NEW);
    kill_server(&mut job, 0);
    break_up(&mut job, &[SERVER + 1]);
    [SERVER + 1, 0, 1].into_iter().for_each(|link| job.come_again(link));
    assert_eq!(hosts(&job), ["s1", "s7"]);
}

#[test]
fn one_that_waits_and_breaks_the_protocol_waits_no_more() {
    let mut job = restoring();
    job.join(NEW, server(7));
    job.frame(NEW, barrier(1));
    assert!(matches!(job.closed(NEW), Error::Protocol { .. }));
    kill_server(&mut job, 0);
    break_up(&mut job, &[SERVER + 1]);
    [SERVER + 1, 0, 1].into_iter().for_each(|link| job.come_again(link));
    assert_eq!((hosts(&job), job.received(NEW)), (vec!["s1".to_owned()], Vec::new()));
}

#[test]
fn a_job_waits_for_a_server_that_is_started_again_but_not_for_ever() {
    let begin = || {
        let mut job = restoring();
        job.coordinator.expect_replacement(10, "s0");
        kill_server(&mut job, 0);
        break_up(&mut job, &[SERVER + 1]);
        [SERVER + 1, 0, 1].into_iter().for_each(|link| job.come_again(link));
        assert_eq!(job.coordinator.view().phase, Phase::Forming);
        job
    };
    let mut comes = begin();
    comes.join(NEW, server(7));
    assert_eq!(hosts(&comes), ["s1", "s7"]);
    let mut late = begin();
    late.beat_until(11, &[ANEW, ANEW + 1, ANEW + SERVER + 1]);
    assert_eq!(hosts(&late), ["s1"]);
    late.join(NEW, server(7));
    late.waits(NEW);
}

#[test]
fn a_server_that_is_lost_while_the_job_forms_again_is_replaced_too_or_not_waited_for() {
    for returns in [false, true] {
        let mut job = restoring();
        job.coordinator.expect_replacement(10, "s0");
        kill_server(&mut job, 0);
        break_up(&mut job, &[SERVER + 1]);
        [SERVER + 1, 0, 1].into_iter().take(2).for_each(|link| job.come_again(link));
        job.join(NEW, server(7));
        if returns {
            job.coordinator.expect_replacement(11, "s1");
        }
        kill_server(&mut job, 1);
        job.come_again(1);
        if returns {
            assert_eq!(job.coordinator.view().phase, Phase::Forming);
            job.join(NEW + 1, server(8));
            assert_eq!(hosts(&job), ["s7", "s8"]);
        } else {
            assert_eq!(hosts(&job), ["s7"]);
        }
    }
}

#[test]
fn workers_and_servers_that_are_lost_before_the_former_formation_is_over_are_not_expected() {
    let mut job = job_with(3, config());
    kill_server(&mut job, 0);
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    assert_eq!(job.coordinator.view().phase, Phase::Restores(state_lost(0)));
    [0, 2, SERVER + 1].into_iter().for_each(|link| job.frame(link, Frame::Leave));
    assert!(job.is_over());
    job.coordinator.form_again(TERM + 1, job.now);
    [SERVER + 1, 0, 2].into_iter().for_each(|link| job.come_again(link));
    assert_eq!(job.ranks(), [100, 102]);
}

#[test]
fn without_any_server_the_job_waits_for_one_and_then_ends() {
    let begin = || {
        let mut job = restoring();
        kill_server(&mut job, 0);
        kill_server(&mut job, 1);
        break_up(&mut job, &[]);
        (0..2).for_each(|link| job.come_again(link));
        job
    };
    let mut late = begin();
    late.beat_until(9, &[ANEW, ANEW + 1]);
    late.join(NEW, server(7));
    assert_eq!(hosts(&late), ["s7"]);
    let mut none = begin();
    none.beat_until(11, &[ANEW, ANEW + 1]);
    let Phase::Aborted(Error::NotFormed { missing, .. }) = none.coordinator.view().phase else { panic!("it ended") };
    assert_eq!(missing, ["a server"]);
}

#[test]
fn a_save_or_a_load_that_is_under_way_fails_with_the_cause() {
    let save =
        SaveAsk { path: "p".to_owned(), keep: None, notes: String::new(), tables_apart: false, wait: 60 * SECOND };
    let load = LoadAsk {
        path: "p".to_owned(),
        checkpoint: None,
        missing: Missing::Refuse,
        ignore_extra: false,
        with_state: true,
        if_any: false,
        wait: 60 * SECOND,
    };
    for ask in [CheckpointAsk::Save(save), CheckpointAsk::Load(load)] {
        let mut job = restoring();
        job.frame(0, Frame::Checkpoint { request: 5, ask });
        kill_server(&mut job, 1);
        let told = job.received(0);
        assert!(told.contains(&Frame::Checkpointed { request: 5, outcome: Err(state_lost(1)) }), "{told:?}");
    }
}

#[test]
fn a_member_that_missed_the_end_hears_the_cause_when_it_comes_back_and_one_that_has_left_that_it_left() {
    let mut job = restoring();
    job.disconnect(1);
    kill_server(&mut job, 0);
    [0, SERVER + 1].into_iter().for_each(|link| job.frame(link, Frame::Leave));
    job.pass(4);
    assert!(job.is_over(), "nobody is waited for longer than the grace");
    job.coordinator.form_again(TERM + 1, job.now);
    job.join_as(9, 1, worker(1));
    let told = job.received(9);
    assert!(matches!(&told[..], [Frame::View(view)] if view.phase == Phase::Restores(state_lost(0))), "{told:?}");
}

#[test]
fn a_worker_that_is_lost_costs_such_a_job_nothing_and_no_worker_is_taken_in() {
    let mut job = job_with(3, config());
    job.coordinator.handle_death(job.now, 11, "n1", "killed".to_owned());
    assert_eq!(job.ranks(), [0, 2]);
    job.join(9, worker(9));
    assert!(job.refusal(9).to_string().contains("is complete"));
    kill_server(&mut job, 0);
    job.join(19, worker(19));
    assert!(job.refusal(19).to_string().contains("is complete"));
}

#[test]
fn silence_and_a_server_that_is_asked_to_stop_are_losses_too() {
    let mut silent = restoring();
    silent.beat_until(6, &[0, 1, SERVER]);
    assert!(
        matches!(silent.coordinator.view().phase, Phase::Restores(Error::StateLost { member, .. }) if member == "server 1")
    );
    let mut asked = restoring();
    asked.frame(SERVER, Frame::Fail { cause: "it was asked to stop".to_owned() });
    assert!(
        matches!(asked.coordinator.view().phase, Phase::Restores(Error::StateLost { member, .. }) if member == "server 0")
    );
}

#[test]
fn a_coordinator_that_is_started_again_goes_on_where_the_job_forms_again() {
    // Before the former formation is over.
    let mut job = restoring();
    kill_server(&mut job, 0);
    job.drain();
    let (coordinator, now) = Coordinator::recover(config(), job.journal.clone()).unwrap();
    assert_eq!(coordinator.lasting(), job.coordinator.lasting());
    let mut resumed = Job { coordinator, now, ..job_of(config()) };
    (0..2).for_each(|link| resumed.join(link, worker(link as u32)));
    resumed.join(SERVER + 1, server(1));
    assert_eq!(resumed.coordinator.view().phase, Phase::Restores(state_lost(0)));
    resumed.join(NEW, server(7));
    break_up(&mut resumed, &[SERVER + 1]);
    // While it forms.
    resumed.drain();
    let journal = resumed.journal.clone();
    let (coordinator, now) = Coordinator::recover(config(), journal).unwrap();
    let mut again = Job { coordinator, now, ..job_of(config()) };
    assert_eq!(again.coordinator.view().phase, Phase::Forming);
    [SERVER + 1, 0, 1].into_iter().for_each(|link| again.come_again(link));
    assert_eq!(hosts(&again), ["s1"]);
    // After it has formed.
    again.drain();
    let (formed, _) = Coordinator::recover(config(), again.journal.clone()).unwrap();
    assert_eq!((formed.view().phase, formed.view().formed_before), (Phase::Running, 1));
}

#[test]
fn a_job_may_lose_one_server_after_the_other() {
    let mut job = restoring();
    for turn in 0..3 {
        let View { members, .. } = job.coordinator.view();
        let first = members.iter().find(|member| member.process.role == Role::Server).unwrap().process.clone();
        job.coordinator.handle_death(job.now, first.pid, &first.host, "killed".to_owned());
        assert!(matches!(job.coordinator.view().phase, Phase::Restores(_)), "{turn}");
        job.pass(job.now.since(Time::ZERO).as_secs() + 4);
        job.drain();
        job.coordinator.form_again(TERM + 1 + turn, job.now);
        job.join(NEW + u64::from(turn), server(7 + turn));
        for member in
            members.iter().filter(|member| member.process.pid != first.pid || member.process.host != first.host)
        {
            let life = member.process.incarnation.0 + 100;
            let join = Join { process: member.process.clone(), ..worker(0) };
            let link = 1000 * u64::from(turn + 1) + u64::from(member.node.0[0]);
            job.join_as(link, member.node.0[0], in_life(life, join));
        }
        let view = job.coordinator.view();
        assert_eq!((view.phase.clone(), view.servers().count(), view.formed_before), (Phase::Running, 2, turn + 1));
    }
}

fn config() -> CoordinatorConfig {
    let policy = Policy::Continue { min_workers: 1, rejoin: None, on_server_loss: OnServerLoss::Restore };
    CoordinatorConfig { policy, servers: 2, journals: true, ..super::config(2) }
}

/// A job of two workers and two servers that keep a parameter.
fn restoring() -> Job {
    job_with(2, config())
}

fn job_with(workers: u32, config: CoordinatorConfig) -> Job {
    let mut job = outliving_as(CoordinatorConfig { workers, ..config }, workers);
    let tensors = vec![TensorSpec::parameter("w", DType::F32, vec![4])];
    job.frame(0, Frame::Declare { request: 1, tensors, fuse: false });
    job.received(0);
    job
}

/// The members that are left know the end of the former formation, and the next one begins.
fn break_up(job: &mut Job, servers: &[u64]) {
    [0, 1].iter().chain(servers).for_each(|link| job.frame(*link, Frame::Leave));
    assert!(job.is_over());
    job.journal.clear();
    job.coordinator.form_again(TERM + 1, job.now);
}

fn state_lost(server: u32) -> Error {
    Error::StateLost {
        member: format!("server {server}"),
        host: format!("s{server} (pid {})", 10 + server),
        cause: "killed".to_owned(),
    }
}

/// The hosts of the servers of a job that runs.
fn hosts(job: &Job) -> Vec<String> {
    let view = job.coordinator.view();
    assert_eq!(view.phase, Phase::Running);
    view.servers().map(|member| member.process.host.clone()).collect()
}

impl Job {
    /// Whether the former formation is over, with whatever outcome.
    fn is_over(&mut self) -> bool {
        self.drain();
        self.events.iter().any(|event| matches!(event, Event::Finished(Err(Error::StateLost { .. }))))
    }
}
