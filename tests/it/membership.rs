//! Which processes are members, and what all members hear when one is lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use gradlane_core::cluster::{MemberConfig, MemberEvent};
use gradlane_core::identity::Credentials;
use gradlane_core::runtime::{Clock, Membership, MembershipOptions, process, status};
use gradlane_core::types::{Incarnation, JoinString, Phase, Role};
use gradlane_core::wire::frame::{Health, Progress};
use gradlane_core::{Code, Error};
use gradlane_server::coordinator::CoordinatorConfig;
use gradlane_server::coordinator::driver::CoordinatorNode;
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::{PATIENCE, config, worker as join_as};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::patience::{elapsed, eventually};
use gradlane_tests::processes::Process;

use crate::actors::{ACTOR, Job, announced, coordinator_at, repetitions, server, worker};

matrix! {
    [over_shm, over_quic]:
        everybody_hears_the_original_cause_when_a_worker_is_killed_in_a_round,
        everybody_hears_at_once_of_a_death_that_somebody_saw,
        everybody_hears_of_a_server_that_is_killed_and_the_other_servers_end,
        a_job_whose_coordinator_is_killed_goes_on_for_a_while_and_then_says_whom_it_lost,
        who_comes_back_from_the_dead_changes_no_sum,
        the_survivors_of_a_killed_worker_get_their_sum_if_the_job_goes_on,
        a_job_goes_on_though_its_coordinator_is_killed_and_started_again;
    [over_shm]:
        everybody_hears_soon_of_a_death_that_a_server_of_the_machine_saw,
        a_job_goes_on_soon_without_a_worker_whose_death_a_server_of_the_machine_saw;
    [locally, over_shm, over_quic]:
        the_others_go_on_without_a_worker_that_left_in_order;
}

#[test]
fn who_never_comes_is_named_to_everybody_who_did() {
    let settings = [("form_timeout", "2s")];
    let embedded = embed(3, &settings);
    let join = embedded.join_string();
    let mut workers = [0, 1].map(|rank| worker(Over::Quic, &["train", "1"], join, Some(rank), 3, &settings));
    for worker in &mut workers {
        let ended = worker.end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.complaints.contains("did not form within 2.0 s: missing worker 2"), "{ended:?}");
    }
    let outcome = embedded.coordinator().wait(Some(PATIENCE));
    assert!(matches!(&outcome, Err(Error::NotFormed { missing, .. }) if missing == &["worker 2"]), "{outcome:?}");
}

#[test]
fn a_rank_is_given_once_and_who_wants_it_too_hears_who_has_it() {
    let embedded = embed(2, &[]);
    let join = embedded.join_string();
    let mut first = worker(Over::Quic, &["puppet"], join, Some(0), 2, &[]);
    let seated = || embedded.status().unwrap().view.workers().next().cloned();
    assert_eq!(eventually("it has a seat", seated).process.pid, first.pid());
    let Err(Error::DuplicateRank { member, holder }) = join_as(&config(Over::Quic, &[]), join, Some(0), 2) else {
        panic!("a rank was given twice")
    };
    assert_eq!(member, "worker 0");
    assert!(holder.ends_with(&format!("(pid {})", first.pid())), "{holder}");
    let _other = join_as(&config(Over::Quic, &[]), join, Some(1), 2).expect("rank 1 is free");
    assert_eq!(first.line(), "joined 0", "who held the rank was not disturbed");
}

#[test]
fn ranks_that_nobody_asks_for_are_given_without_gaps() {
    let settings = [];
    let embedded = embed(3, &settings);
    let join = embedded.join_string();
    let mut workers = [None, Some(1), None].map(|rank| worker(Over::Quic, &["puppet"], join, rank, 3, &settings));
    let mut told = workers.each_mut().map(|worker| worker.line());
    assert_eq!(told[1], "joined 1");
    told.sort();
    assert_eq!(told, ["joined 0", "joined 1", "joined 2"]);
}

#[test]
fn a_rank_outside_of_the_job_and_a_job_of_another_size_are_refused() {
    let embedded = embed(2, &[]);
    let join = embedded.join_string();
    let beyond = join_as(&config(Over::Quic, &[]), join, Some(2), 2).err();
    assert!(matches!(&beyond, Some(Error::InvalidArgument { what, .. }) if what.contains("worker 2")), "{beyond:?}");
    let other = join_as(&config(Over::Quic, &[]), join, Some(0), 3).err();
    assert!(
        matches!(&other, Some(Error::Incompatible { ours, theirs, .. }) if (&**ours, &**theirs) == ("3", "2")),
        "{other:?}"
    );
}

#[test]
fn a_process_that_reconnects_keeps_its_rank_and_a_stranger_gets_none() {
    let config = config(Over::Quic, &[]);
    let embedded = embed(2, &[]);
    let join = embedded.join_string();
    // A stranger that has a certificate from before the job formed.
    let [credentials, stranger] =
        [(); 2].map(|()| Arc::new(Credentials::enroll(join, Role::Worker, PATIENCE).unwrap()));
    let member = process::member(Role::Worker, &config);
    let life = || live(join, &credentials, member.clone());
    let joined = |event| match event {
        MemberEvent::Joined { index, .. } => index,
        other => panic!("{other:?}"),
    };
    let (mut first, _, events) = life();
    let mut other = worker(Over::Quic, &["puppet"], join, Some(0), 2, &[]);
    assert_eq!(joined(events.recv_timeout(PATIENCE).unwrap()), 1);
    assert_eq!(other.line(), "joined 0");

    first.stop();
    let (_again, _, events) = life();
    assert_eq!(joined(events.recv_timeout(PATIENCE).unwrap()), 1);
    let wish = MemberConfig { requested: Some(1), ..process::member(Role::Worker, &config) };
    let (_stranger, _, events) = live(join, &stranger, wish);
    let told = events.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(told, MemberEvent::Failed(Error::DuplicateRank { .. })), "{told:?}");
}

#[test]
fn a_silent_worker_is_suspect_and_one_that_speaks_again_in_time_is_not_lost() {
    let settings = [("heartbeat_interval", "50ms"), ("suspect_timeout", "1s"), ("dead_timeout", "60s")];
    let mut job = Job::start(Over::Quic, 2, 1, &settings);
    job.all_do("sum weight 0");
    job.puppets[1].signal("STOP");
    let status = job.once(1, Health::Suspect);
    assert!(status.members[1].silent >= Duration::from_secs(1));
    assert_eq!(status.view.phase, Phase::Running);
    job.puppets[1].signal("CONT");
    let epoch = status.view.epoch;
    assert_eq!(job.once(1, Health::Alive).view.epoch, epoch, "nothing happened");
    job.all_do("sum weight 1");
    job.all_do("shutdown 60000");
}

#[test]
fn a_worker_that_stays_silent_is_lost_and_the_status_says_who_and_where() {
    let mut job = Job::start(Over::Quic, 2, 1, SWIFT);
    job.puppets[0].order("sum weight 0");
    let pid = job.puppets[1].pid();
    let clock = Clock::start();
    job.puppets[1].signal("STOP");
    let silent = job.once(1, Health::Suspect).members[1].silent;
    assert!(silent < DEAD_TIMEOUT, "suspect before dead");
    let answer = job.puppets[0].line();
    report("a stopped worker was given up", elapsed(clock));
    assert!(answer.starts_with("failed Aborted lost worker 1 on "), "{answer}");
    assert!(answer.contains(&format!("(pid {pid}): silent for ")), "{answer}");

    let status = job.embedded.status().unwrap();
    assert_eq!(status.members[1].health, Health::Dead);
    assert_eq!(status.view.members[1].process.pid, pid);
    assert!(matches!(status.view.phase, Phase::Aborted(Error::PeerLost { member, .. }) if member == "worker 1"));
}

#[test]
fn the_status_matches_the_truth_before_and_after_a_kill() {
    let mut job = Job::start(Over::Quic, 3, 2, SWIFT);
    let join = job.embedded.join_string().clone();
    // Somebody who is no member may look.
    let visitor = Credentials::enroll(&join, Role::Observer, PATIENCE).unwrap();
    let look = || status(&join.address, &visitor, PATIENCE).unwrap();
    let before = look();
    assert_eq!(before.view.phase, Phase::Running);
    let members: Vec<_> = before.view.members.iter().map(|member| (member.name(), member.process.pid)).collect();
    let here = std::process::id();
    let pids: Vec<u32> = job.puppets.iter().map(|puppet| puppet.pid()).chain([here, here]).collect();
    let names = ["worker 0", "worker 1", "worker 2", "server 0", "server 1"].map(str::to_owned);
    assert_eq!(members, names.into_iter().zip(pids).collect::<Vec<_>>());
    assert!(before.members.iter().all(|member| matches!(member.health, Health::Alive | Health::Suspect)));

    job.puppets[2].signal("KILL");
    job.once(2, Health::Dead);
    let after = look();
    let Phase::Aborted(Error::PeerLost { member, .. }) = &after.view.phase else { panic!("{after:?}") };
    assert_eq!(member, "worker 2");
    assert!(after.view.epoch > before.view.epoch);
    let dead: Vec<_> = after.members.iter().map(|member| member.health == Health::Dead).collect();
    assert_eq!(dead, [false, false, true, false, false]);
    job.puppets.truncate(2);
}

fn everybody_hears_the_original_cause_when_a_worker_is_killed_in_a_round(over: Over) {
    // What takes long is the silence, and jobs can be silent beside each other.
    std::thread::scope(|scope| {
        for _ in 0..JOBS_AT_ONCE {
            scope.spawn(|| (0..repetitions(JOBS_AT_ONCE).div_ceil(JOBS_AT_ONCE)).for_each(|_| kill_one_of_three(over)));
        }
    });
}

fn kill_one_of_three(over: Over) {
    let mut job = Job::start(over, 3, 2, SWIFT);
    job.all_do("sum weight 0");
    for rank in [0, 1] {
        job.puppets[rank].order("sum weight 1");
    }
    let pid = job.puppets[2].pid();
    let clock = Clock::start();
    job.puppets[2].signal("KILL");
    for rank in [0, 1] {
        let answer = job.puppets[rank].line();
        assert!(answer.starts_with("failed Aborted lost worker 2 on "), "{answer}");
        // Over shared memory the system tells the servers.
        let causes = if over == Over::Shm {
            ["0", "1"].map(|server| format!("its process ended, which server {server} saw"))
        } else {
            ["silent for"; 2].map(str::to_owned)
        };
        assert!(causes.iter().any(|cause| answer.contains(&format!("(pid {pid}): {cause}"))), "{answer}");
    }
    let took = elapsed(clock);
    report("a killed worker was given up", took);
    assert!(took < DEAD_TIMEOUT + SLACK, "{took:?}");
    // Whatever is asked later has the same cause.
    job.puppets[0].order("sum weight 2");
    assert!(job.puppets[0].line().starts_with("failed Aborted lost worker 2 on "));
}

fn the_survivors_of_a_killed_worker_get_their_sum_if_the_job_goes_on(over: Over) {
    (0..repetitions(3)).for_each(|repetition| go_on_without_one(over, repetition % 3));
}

/// Kills one of three workers: before it contributes, while it does, or before the job has summed anything. Sums go to the places of their
/// contributions.
fn go_on_without_one(over: Over, when: u32) {
    // So patient that silence cannot be what is heard of.
    let mut job = Job::start(over, 3, 2, &[("on_worker_loss", "continue"), ("dead_timeout", "1h")]);
    let sum = |job: &mut Job, ranks: &[usize], round: u32| {
        ranks.iter().for_each(|rank| job.puppets[*rank].order(&format!("large weight {round}")));
    };
    let heard = |job: &mut Job, rank: usize| {
        let said = job.puppets[rank].line();
        assert!(said.starts_with("sum of ["), "{over}, {when}: {said}");
        assert_eq!(job.puppets[rank].line(), "ok");
        said
    };
    if when != 2 {
        sum(&mut job, &[0, 1, 2], 0);
        (0..3).for_each(|rank| assert_eq!(heard(&mut job, rank), "sum of [0, 1, 2]"));
    }
    sum(&mut job, if when == 1 { &[0, 1, 2] } else { &[0, 1] }, 1);
    let pid = job.puppets[2].pid();
    job.puppets[2].signal("KILL");
    job.embedded.coordinator().report_death(pid, "worker 2 was killed by signal 9".to_owned());
    let first = heard(&mut job, 0);
    assert_eq!(heard(&mut job, 1), first, "both have the same sum");
    let may_be_in = if when == 1 { first == "sum of [0, 1, 2]" } else { false };
    assert!(may_be_in || first == "sum of [0, 1]", "{first}");
    for round in 2..5 {
        sum(&mut job, &[0, 1], round);
        (0..2).for_each(|rank| assert_eq!(heard(&mut job, rank), "sum of [0, 1]"));
    }
}

fn the_others_go_on_without_a_worker_that_left_in_order(over: Over) {
    let mut job = Job::start(over, 3, 2, &[("on_worker_loss", "continue"), ("dead_timeout", "1h")]);
    let mut round = 0;
    let mut sum = |job: &mut Job, left: &[usize], leaves: Option<usize>| {
        left.iter().for_each(|rank| job.puppets[*rank].order(&format!("beside weight {round}")));
        if let Some(leaver) = leaves {
            // It waits for the others, and not for long: they stay.
            job.puppets[leaver].order("shutdown 0");
            job.puppets[leaver].line();
        }
        for rank in left {
            assert_eq!(job.puppets[*rank].line(), format!("sum of {left:?}"), "{over}, round {round}");
            assert_eq!(job.puppets[*rank].line(), "ok");
        }
        round += 1;
    };
    sum(&mut job, &[0, 1, 2], None);
    // Also without the one that leads the others on its machine.
    for (leaver, left) in [(2, &[0, 1][..]), (0, &[1])] {
        sum(&mut job, left, Some(leaver));
        (0..2).for_each(|_| sum(&mut job, left, None));
        left.iter().for_each(|rank| job.puppets[*rank].order("barrier epoch 60000"));
        left.iter().for_each(|rank| assert_eq!(job.puppets[*rank].line(), "ok", "{over}: a barrier of {left:?}"));
    }
    job.puppets[1].order("shutdown 60000");
    assert_eq!(job.puppets[1].line(), "ok");
}

fn everybody_hears_at_once_of_a_death_that_somebody_saw(over: Over) {
    // So patient that silence cannot be what is heard of.
    let mut job = Job::start(over, 3, 1, &[("dead_timeout", "1h")]);
    for rank in [0, 1] {
        job.puppets[rank].order("sum weight 0");
    }
    let pid = job.puppets[2].pid();
    job.puppets[2].signal("KILL");
    let clock = Clock::start();
    job.embedded.coordinator().report_death(pid, "worker 2 was killed by signal 9".to_owned());
    for rank in [0, 1] {
        let answer = job.puppets[rank].line();
        assert!(answer.starts_with("failed Aborted lost worker 2 on "), "{answer}");
        assert!(answer.ends_with(": worker 2 was killed by signal 9"), "{answer}");
    }
    report("a death that was reported was heard of", elapsed(clock));
}

fn everybody_hears_soon_of_a_death_that_a_server_of_the_machine_saw(over: Over) {
    // So patient that silence cannot be what is heard of.
    let mut job = Job::start(over, 3, 1, &[("dead_timeout", "1h")]);
    // From then on the server knows its process.
    job.all_do("sum weight 0");
    for rank in [0, 1] {
        job.puppets[rank].order("sum weight 1");
    }
    job.puppets[2].signal("KILL");
    let clock = Clock::start();
    for rank in [0, 1] {
        let answer = job.puppets[rank].line();
        assert!(answer.starts_with("failed Aborted lost worker 2 on "), "{answer}");
        assert!(answer.ends_with(": its process ended, which server 0 saw"), "{answer}");
    }
    report("a death that a server saw was heard of", elapsed(clock));
}

fn a_job_goes_on_soon_without_a_worker_whose_death_a_server_of_the_machine_saw(over: Over) {
    let mut job = Job::start(over, 3, 2, &[("on_worker_loss", "continue"), ("dead_timeout", "1h")]);
    (0..3).for_each(|rank| job.puppets[rank].order("beside weight 0"));
    let sums_are_of = |job: &mut Job, ranks: &[usize]| {
        for rank in ranks {
            assert_eq!(job.puppets[*rank].line(), format!("sum of {ranks:?}"));
            assert_eq!(job.puppets[*rank].line(), "ok");
        }
    };
    sums_are_of(&mut job, &[0, 1, 2]);
    [0, 1].into_iter().for_each(|rank: usize| job.puppets[rank].order("beside weight 1"));
    job.puppets[2].signal("KILL");
    let clock = Clock::start();
    sums_are_of(&mut job, &[0, 1]);
    report("the sum of the survivors came", elapsed(clock));
}

fn everybody_hears_of_a_server_that_is_killed_and_the_other_servers_end(over: Over) {
    let config = config(over, SWIFT);
    let machine = CoordinatorConfig::from_config(&config, 2, 2);
    let coordinator = CoordinatorNode::start(machine, &config, None).unwrap();
    let join = coordinator.join_string();
    let mut servers = [0, 1].map(|index| server(over, join, index, SWIFT));
    let mut workers = [0, 1].map(|rank| worker(over, &["puppet"], join, Some(rank), 2, SWIFT));
    for (rank, worker) in workers.iter_mut().enumerate() {
        assert_eq!(worker.line(), format!("joined {rank}"));
        // More tensors than one server has.
        (0..4).for_each(|tensor| worker.order(&format!("sum weight{tensor} 0")));
    }
    for worker in &mut workers {
        (0..4).for_each(|_| assert_eq!(worker.line(), "ok"));
    }
    servers[1].signal("KILL");
    // A worker that shares memory with it sees its end.
    let cause = if over == Over::Shm { "its process ended, which worker " } else { "silent for " };
    let lost = format!("lost server 1 on {} (pid {}): {cause}", process::host(), servers[1].pid());
    for worker in &mut workers {
        (0..4).for_each(|tensor| worker.order(&format!("sum weight{tensor} 1")));
        let failures = [0; 4].map(|_| worker.line());
        let told = failures.iter().filter(|answer| **answer != "ok");
        assert!(told.clone().count() > 0 && told.clone().all(|answer| answer.contains(&lost)), "{failures:?}");
    }
    let ended = servers[0].end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.complaints.contains(&lost), "{ended:?}");
}

fn a_job_whose_coordinator_is_killed_goes_on_for_a_while_and_then_says_whom_it_lost(over: Over) {
    let home = tempfile::tempdir().unwrap();
    let settings = &[("control_lost_timeout", "4s")];
    let line = ["coordinator", "-n", "2", "-s", "1", "--bind", "127.0.0.1:0"];
    let mut coordinator = Process::start(Path::new(ACTOR), &line, home.path(), &[]);
    let join = announced(&mut coordinator);
    let mut server = server(over, &join, 0, settings);
    let mut workers = [0, 1].map(|rank| worker(over, &["puppet"], &join, Some(rank), 2, settings));
    for (rank, worker) in workers.iter_mut().enumerate() {
        assert_eq!(worker.line(), format!("joined {rank}"));
    }
    let mut both = |order: &str| {
        workers.iter_mut().for_each(|worker| worker.order(order));
        workers.each_mut().map(Process::line)
    };
    assert_eq!(both("sum weight 0"), ["ok", "ok"]);
    coordinator.signal("KILL");
    assert_eq!(both("sum weight 1"), ["ok", "ok"], "no sum needs it");
    let lost = format!("failed Aborted lost coordinator on {}: silent for ", join.address);
    for answer in both("barrier epoch 60000") {
        assert!(answer.starts_with(&lost), "{answer}");
    }
    assert_eq!(server.end().code, Some(1));
}

/// A coordinator that goes on with the job that it finds in this directory, where that is, and its join string.
fn resumed(home: &Path, bind: &str, workers: u32) -> (Process, JoinString) {
    let settings =
        [("resume", "true"), ("on_worker_loss", "continue"), ("suspect_timeout", "500ms"), ("dead_timeout", "1s")];
    coordinator_at(home, bind, workers, 1, &settings)
}

fn a_job_goes_on_though_its_coordinator_is_killed_and_started_again(over: Over) {
    let home = tempfile::tempdir().unwrap();
    let settings = &[("on_worker_loss", "continue"), ("suspect_timeout", "500ms"), ("dead_timeout", "1s")];
    let (mut coordinator, join) = resumed(home.path(), "127.0.0.1:0", 3);
    let mut server = server(over, &join, 0, settings);
    let mut workers = [0, 1, 2].map(|rank| worker(over, &["puppet"], &join, Some(rank), 3, settings));
    for (rank, worker) in workers.iter_mut().enumerate() {
        assert_eq!(worker.line(), format!("joined {rank}"));
    }
    let told = |worker: &mut Process, order: &str| {
        worker.order(order);
        worker.line()
    };
    let all = |workers: &mut [Process], order: &str| {
        workers.iter_mut().for_each(|worker| worker.order(order));
        workers.iter_mut().map(Process::line).collect::<Vec<_>>()
    };
    assert_eq!(all(&mut workers, "sum weight 0"), ["ok"; 3]);
    for round in 1..4 {
        // Two wait at a barrier while nobody leads the job.
        workers[..2].iter_mut().for_each(|worker| worker.order("barrier epoch 60000"));
        coordinator.signal("KILL");
        coordinator.end();
        (coordinator, _) = resumed(home.path(), &join.address, 3);
        assert_eq!(told(&mut workers[2], "barrier epoch 60000"), "ok");
        assert_eq!(workers[..2].iter_mut().map(Process::line).collect::<Vec<_>>(), ["ok"; 2]);
        assert_eq!(all(&mut workers, &format!("sum weight {round}")), ["ok"; 3], "it knows the tensor");
        assert_eq!(all(&mut workers, &format!("sum fresh{round} 0")), ["ok"; 3], "another one");
    }
    // One dies while nobody leads the job: its silence shows it.
    coordinator.signal("KILL");
    coordinator.end();
    workers[2].signal("KILL");
    workers[2].end();
    let (mut coordinator, _) = resumed(home.path(), &join.address, 3);
    assert_eq!(all(&mut workers[..2], "beside large 0"), ["sum of [0, 1]"; 2]);
    assert_eq!(workers[..2].iter_mut().map(Process::line).collect::<Vec<_>>(), ["ok"; 2]);
    assert_eq!(all(&mut workers[..2], "shutdown 10000"), ["ok"; 2]);
    assert_eq!((server.end().code, coordinator.end().code), (Some(0), Some(0)));
}

/// All files below a directory.
pub(crate) fn walk(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[test]
fn the_members_of_a_job_of_which_a_coordinator_knows_nothing_end_at_once_and_a_new_job_forms_without_them() {
    let home = tempfile::tempdir().unwrap();
    // So patient that silence cannot be what ends them.
    let settings = &[("control_lost_timeout", "1h")];
    let start = |bind: &str| resumed(home.path(), bind, 2);
    let members = |join: &JoinString| {
        let server = server(Over::Quic, join, 0, settings);
        let mut workers = [0, 1].map(|rank| worker(Over::Quic, &["puppet"], join, Some(rank), 2, settings));
        for (rank, worker) in workers.iter_mut().enumerate() {
            assert_eq!(worker.line(), format!("joined {rank}"));
        }
        (server, workers)
    };
    let (mut former, join): (_, JoinString) = start("127.0.0.1:0");
    let (mut server, mut workers) = members(&join);
    former.signal("KILL");
    former.end();
    // The secrets stay, the job is lost.
    let journal = walk(home.path()).into_iter().find(|path| path.ends_with("journal")).expect("it was written");
    std::fs::remove_file(journal).unwrap();

    let (_coordinator, again) = start(&join.address);
    assert_eq!(again, join, "members dial it where the former one was");
    let clock = Clock::start();
    for worker in &mut workers {
        worker.order("barrier epoch 3600000");
        let answer = worker.line();
        assert!(answer.starts_with(&format!("failed {:?} ", Code::Fenced)), "{answer}");
        assert!(answer.contains("the job of term 1") && answer.contains("leads that of term 2"), "{answer}");
        assert!(answer.ends_with("start all processes of the job again"), "{answer}");
    }
    report("members of a former start were refused", elapsed(clock));
    let ended = server.end();
    assert!(ended.code == Some(1) && ended.complaints.contains("the job of term 1"), "{ended:?}");

    let (_server, mut workers) = members(&again);
    workers.iter_mut().for_each(|worker| worker.order("sum weight 0"));
    assert_eq!(workers.each_mut().map(Process::line), ["ok", "ok"]);
}

#[test]
fn the_members_of_a_job_whose_coordinator_was_replaced_do_not_wait_for_it() {
    let home = tempfile::tempdir().unwrap();
    let settings = &[("control_lost_timeout", "1h"), ("suspect_timeout", "500ms"), ("dead_timeout", "1s")];
    let start = |bind: &str| {
        let line = ["coordinator", "-n", "1", "-s", "1", "--bind", bind];
        let mut coordinator = Process::start(Path::new(ACTOR), &line, home.path(), &[]);
        let join = announced(&mut coordinator);
        (coordinator, join)
    };
    let (mut former, join) = start("127.0.0.1:0");
    let mut server = server(Over::Quic, &join, 0, settings);
    let mut worker = worker(Over::Quic, &["puppet"], &join, Some(0), 1, settings);
    assert_eq!(worker.line(), "joined 0");
    former.signal("KILL");
    former.end();

    let (_coordinator, other) = start(&join.address);
    assert_eq!(other.address, join.address, "members dial it where the former one was");
    let clock = Clock::start();
    worker.order("barrier epoch 3600000");
    let answer = worker.line();
    assert!(answer.starts_with("failed Aborted lost coordinator on "), "{answer}");
    assert!(answer.contains("certificate"), "{answer}");
    report("members heard that their coordinator was replaced", elapsed(clock));
    assert_eq!(server.end().code, Some(1));
}

fn who_comes_back_from_the_dead_changes_no_sum(over: Over) {
    let mut job = Job::start(over, 2, 1, SWIFT);
    job.all_do("sum weight 0");
    let both = job.embedded.servers()[0].stats().received_bytes();
    job.puppets[0].order("sum weight 1");
    let received = || job.embedded.servers()[0].stats().received_bytes();
    eventually("worker 0 has contributed", || (received() >= both + both / 2).then_some(()));
    job.puppets[1].signal("STOP");
    // It waits for the zombie when it wakes.
    job.puppets[1].order("sum weight 1");
    assert!(job.puppets[0].line().starts_with("failed Aborted lost worker 1 on "));
    // The workers and the servers are told at one time and hear at different ones. A server that has not heard yet still makes the sum, a
    // right one, of what worker 0 gave it before and of what a member gives it now; this is about one that has.
    let server = &job.embedded.servers()[0];
    let heard = server.join(Some(PATIENCE));
    assert!(matches!(&heard, Err(Error::PeerLost { member, .. }) if member == "worker 1"), "{heard:?}");
    let counted = [server.stats().received_bytes(), server.stats().sent_bytes()];

    job.puppets[1].signal("CONT");
    let answer = job.puppets[1].line();
    assert!(answer.starts_with(&format!("failed {:?} ", Code::Fenced)), "{answer}");
    let server = &job.embedded.servers()[0];
    let after = [server.stats().received_bytes(), server.stats().sent_bytes()];
    assert_eq!(after, counted, "nothing of it was added, and no sum was made of what it sent");
}

#[test]
fn a_life_that_was_replaced_is_fenced() {
    let config = config(Over::Quic, &[]);
    let embedded = embed(2, &[]);
    let join = embedded.join_string();
    let credentials = Arc::new(Credentials::enroll(join, Role::Worker, PATIENCE).unwrap());
    let life = || live(join, &credentials, process::member(Role::Worker, &config));
    let seated = |incarnation| {
        eventually("it has the seat", || {
            let view = embedded.status().unwrap().view;
            view.workers().any(|member| member.process.incarnation == incarnation).then_some(())
        });
    };
    let (_first, first_incarnation, events) = life();
    seated(first_incarnation);
    let (_second, second_incarnation, _events) = life();
    seated(second_incarnation);
    let last = events.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(last, MemberEvent::Failed(Error::Fenced { .. })), "{last:?}");
}

/// One life of a process: joins, and is told what comes of it.
fn live(
    join: &JoinString,
    credentials: &Arc<Credentials>,
    member: MemberConfig,
) -> (Membership, Incarnation, Receiver<MemberEvent>) {
    let (sender, events) = unbounded();
    let (incarnation, coordinator) = (member.process.incarnation, join.address.clone());
    let options = MembershipOptions { member, coordinator, credentials: Arc::clone(credentials) };
    let tell = move |event| drop(sender.send(event));
    (Membership::start(options, Clock::start(), None, Progress::default, None, tell).unwrap(), incarnation, events)
}

fn embed(workers: u32, settings: &[(&str, &str)]) -> Embedded {
    Embedded::start(EmbeddedOptions { config: config(Over::Quic, settings), workers, servers: 1 }).expect("starts")
}

/// For the record: seconds are not asserted where a busy machine could stretch them.
fn report(what: &str, took: Duration) {
    println!("{what} after {:.2} s", took.as_secs_f64());
}

/// Settings under which silence is found out soon, and yet no busy machine is taken for a dead one.
const SWIFT: &[(&str, &str)] = &[("heartbeat_interval", "50ms"), ("suspect_timeout", "1s"), ("dead_timeout", "3s")];
const DEAD_TIMEOUT: Duration = Duration::from_secs(3);
/// One second, and as much again as a machine may take that does much else.
const SLACK: Duration = Duration::from_secs(10);
const JOBS_AT_ONCE: u32 = 3;
