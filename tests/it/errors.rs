//! What a caller is told when nothing comes of what it asked for. Disagreements, membership, barriers and identity stand in their own
//! files.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::unbounded;
use gradlane_core::engine::{Engine, EngineOptions, Submission};
use gradlane_core::identity::Credentials;
use gradlane_core::mem::Copies;
use gradlane_core::runtime::process;
use gradlane_core::transport::quic::{QuicTransport, Settings};
use gradlane_core::types::{Done, JoinString, Op, Role, WorkerId};
use gradlane_core::{Code, Error, Result};
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor, config, worker};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::patience::eventually;
use gradlane_tests::rounds;
use gradlane_tests::tap::{Fate, Tap};

use crate::actors::Job;

matrix! {
    [over_shm, over_quic]:
        a_sum_that_somebody_withholds_fails_in_time_and_names_who;
    [locally, over_shm, over_quic]:
        a_caller_can_give_up_and_is_told_so;
}

#[test]
fn every_class_of_failure_can_happen_and_says_whether_to_try_again() {
    for (code, retryable) in [
        (Code::InvalidArgument, false),
        (Code::NotFound, false),
        (Code::AlreadyExists, false),
        (Code::FailedPrecondition, false),
        (Code::Aborted, false),
        (Code::DeadlineExceeded, false),
        (Code::Unavailable, true),
        (Code::ResourceExhausted, true),
        (Code::Cancelled, false),
        (Code::Fenced, false),
        (Code::Unauthenticated, false),
        (Code::DataLoss, false),
        (Code::Internal, false),
    ] {
        let error = provoke(code);
        assert_eq!((error.code(), error.retryable()), (code, retryable), "{error}");
    }
}

fn a_sum_that_somebody_withholds_fails_in_time_and_names_who(over: Over) {
    let cluster = Cluster::with(over, 2, 1, &[("step_timeout", "1s"), ("stall_warn", "200ms")]);
    let stalled = rounds::begin(&cluster.workers[0], "a", 0, 1000).and_then(rounds::Reduction::check);
    let Err(error @ Error::Stalled { missing, .. }) = &stalled else { panic!("{stalled:?}") };
    assert_eq!((missing.as_slice(), error.code()), (&[WorkerId(1)][..], Code::DeadlineExceeded));
}

fn a_caller_can_give_up_and_is_told_so(over: Over) {
    let cluster = Cluster::start(over, 2, 1);
    let mut tensor = Tensor::new("a", vec![1.0; 1000]);
    let handle = tensor.push_pull(&cluster.workers[0], Op::Sum).unwrap();
    let impatient = handle.wait(Some(Duration::from_millis(10)));
    assert_eq!(impatient.map_err(|error| error.code()), Err(Code::DeadlineExceeded));
    handle.cancel();
    assert_eq!(handle.wait(Some(PATIENCE)), Err(Error::Cancelled));
}

#[test]
fn after_the_shutdown_nothing_is_accepted() {
    let cluster = Cluster::start(Over::Quic, 1, 1);
    cluster.workers[0].shutdown(PATIENCE).unwrap();
    let late = rounds::begin(&cluster.workers[0], "a", 0, 10).and_then(rounds::Reduction::check);
    assert_eq!(late.map_err(|error| error.code()), Err(Code::FailedPrecondition));
    let late = cluster.workers[0].arrive("epoch", None).wait(Some(PATIENCE));
    assert_eq!(late.map_err(|error| error.code()), Err(Code::FailedPrecondition));
}

/// One way in which a failure of each class comes to a caller.
fn provoke(code: Code) -> Error {
    match code {
        Code::InvalidArgument => {
            let cluster = Cluster::start(Over::Quic, 1, 1);
            let op = Op::Broadcast { root: WorkerId(7) };
            Tensor::new("a", vec![1.0; 10]).reduce(&cluster.workers[0], op).expect_err("nobody has this rank")
        }
        Code::NotFound => {
            let empty = tempfile::tempdir().unwrap();
            gradlane_server::checkpoint::open(empty.path(), None).expect_err("nothing was saved there")
        }
        Code::AlreadyExists => {
            let config = config(Over::Quic, &[]);
            let embedded = Embedded::start(EmbeddedOptions { config: config.clone(), workers: 2, servers: 1 }).unwrap();
            let join = embedded.join_string();
            std::thread::scope(|scope| {
                let first = scope.spawn(|| worker(&config, join, Some(1), 2));
                eventually("it has the rank", || embedded.status().unwrap().view.workers().next().map(drop));
                let second = worker(&config, join, Some(1), 2).err().expect("the rank is taken");
                let _other = worker(&config, join, Some(0), 2).expect("there is a second seat");
                first.join().unwrap().expect("it was there first");
                second
            })
        }
        Code::FailedPrecondition => {
            let cluster = Cluster::start(Over::Quic, 1, 1);
            cluster.workers[0].shutdown(PATIENCE).unwrap();
            reduce(&cluster.workers[0]).expect_err("it has left")
        }
        Code::Aborted => {
            let job = Job::start(Over::Quic, 1, 1, &[]);
            job.embedded.coordinator().report_death(job.puppets[0].pid(), "it was killed".to_owned());
            job.embedded.coordinator().wait(Some(PATIENCE)).expect_err("the job lost a worker")
        }
        Code::DeadlineExceeded => {
            let cluster = Cluster::start(Over::Quic, 1, 1);
            cluster.embedded.servers()[0].join(Some(Duration::ZERO)).expect_err("the job runs")
        }
        Code::Unavailable => {
            let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
            let config = config(Over::Quic, &[("bind", &taken.local_addr().unwrap().to_string())]);
            let second = Embedded::start(EmbeddedOptions { config, workers: 1, servers: 1 });
            second.err().expect("the port is taken")
        }
        Code::ResourceExhausted => exceed_the_submission_limit(),
        Code::Cancelled => {
            let cluster = Cluster::start(Over::Quic, 2, 1);
            let mut tensor = Tensor::new("a", vec![1.0; 10]);
            let handle = tensor.push_pull(&cluster.workers[0], Op::Sum).unwrap();
            handle.cancel();
            handle.wait(Some(PATIENCE)).expect_err("it was given up")
        }
        Code::Fenced => replace_a_process(),
        Code::Unauthenticated => {
            let cluster = Cluster::start(Over::Quic, 1, 1);
            let mut join = cluster.embedded.join_string().clone();
            join.secret[0] ^= 1;
            Credentials::enroll(&join, Role::Worker, PATIENCE).expect_err("it does not know the secret")
        }
        Code::DataLoss => damage_a_body(),
        Code::Internal => {
            let (tell, told) = unbounded();
            drop(Done::<()>::new(move |outcome| tell.send(outcome).expect("the test waits for it")));
            told.recv().unwrap().expect_err("the operation was forgotten")
        }
    }
}

/// More than may wait, while another worker withholds its part.
fn exceed_the_submission_limit() -> Error {
    let cluster = Cluster::with(Over::Quic, 2, 1, &[("submit_bytes_max", "1 MiB"), ("credit_bytes", "1 MiB")]);
    let [mut first, mut second] = ["a", "b"].map(|name| Tensor::new(name, vec![1_f32; 200_000]));
    let handle = first.push_pull(&cluster.workers[0], Op::Sum).unwrap();
    let submission = Submission { timeout: Some(Duration::from_millis(10)), ..second.submission(Op::Sum) };
    let error = cluster.workers[0].push_pull(submission, |_| {}).expect_err("there is no room");
    handle.cancel();
    assert_eq!(handle.wait(Some(PATIENCE)), Err(Error::Cancelled));
    error
}

/// The same process joins a second time; the first life is told.
fn replace_a_process() -> Error {
    let embedded =
        Embedded::start(EmbeddedOptions { config: config(Over::Quic, &[]), workers: 2, servers: 1 }).unwrap();
    let join = embedded.join_string();
    let credentials = Arc::new(Credentials::enroll(join, Role::Worker, PATIENCE).unwrap());
    let seated = || embedded.status().unwrap().view.workers().next().map(|member| member.process.incarnation);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| live(join, &credentials));
        eventually("the first life has a seat", seated);
        let second = scope.spawn(|| live(join, &credentials));
        let fenced = first.join().unwrap().err().expect("it was replaced");
        let _other = worker(&config(Over::Quic, &[]), join, Some(1), 2).expect("there is a second seat");
        second.join().unwrap().expect("it took the first one's place");
        fenced
    })
}

fn live(join: &JoinString, credentials: &Arc<Credentials>) -> Result<Engine> {
    let config = config(Over::Quic, &[]);
    let transport = Arc::new(QuicTransport::new(credentials, &Settings::from_config(&config))?);
    let member = process::member(Role::Worker, &config);
    let (coordinator, credentials) = (join.address.clone(), Arc::clone(credentials));
    let copies = Copies::default();
    Engine::start(EngineOptions { config, member, coordinator, credentials, transport, copies, device: None })
}

/// The sum cannot be had any more, because a body is added as it arrives.
fn damage_a_body() -> Error {
    reduce(&one_that_damages_bodies(Over::Quic).workers[0]).expect_err("the server noticed")
}

/// A job of one worker whose first push arrives damaged.
pub(crate) fn one_that_damages_bodies(over: Over) -> Cluster {
    let damage = |push| if push == 1 { Fate::Damage } else { Fate::Stay };
    Cluster::tapped(over, 1, 1, &[], |transport| Arc::new(Tap::new(transport, damage)))
}

fn reduce(engine: &Engine) -> Result<()> {
    rounds::begin(engine, "a", 0, 1000).and_then(rounds::Reduction::check)
}
