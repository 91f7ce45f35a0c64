//! Who is let in, and what somebody on the wire sees.

use std::sync::Arc;

use gradlane_core::Error;
use gradlane_core::config::Config;
use gradlane_core::engine::{Engine, EngineOptions};
use gradlane_core::identity::{Authority, Credentials};
use gradlane_core::mem::Copies;
use gradlane_core::runtime::process;
use gradlane_core::transport::quic::{QuicTransport, Settings, vandal};
use gradlane_core::types::{JoinString, Op, Role};
use gradlane_server::coordinator::CoordinatorConfig;
use gradlane_server::coordinator::driver::CoordinatorNode;
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor, all, config, worker};
use gradlane_tests::network::Relay;
use gradlane_tests::over::Over;
use gradlane_tests::patience::eventually;
use gradlane_tests::rounds;

use crate::certificates::is_over;

#[test]
fn a_join_string_that_is_wrong_in_any_part_is_refused() {
    let cluster = Cluster::start(Over::Quic, 1, 1);
    let good = cluster.embedded.join_string();
    let refused = |join: &JoinString| {
        worker(&config(Over::Quic, &[("join_timeout", "1s")]), join, None, 1).err().expect("refused")
    };

    let mut secret = good.clone();
    secret.secret[0] ^= 1;
    let error = refused(&secret);
    assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains("secret")), "{error}");

    let mut authority = good.clone();
    authority.ca_hash[0] ^= 1;
    let error = refused(&authority);
    assert!(matches!(&error, Error::Auth { hint, .. } if hint.contains("join string")), "{error}");

    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = refused(&JoinString { address: nobody.to_string(), ..good.clone() });
    assert!(matches!(error, Error::Unavailable { .. } | Error::Timeout { .. }), "{error}");
    assert!(error.to_string().contains(&nobody.to_string()), "{error}");

    let text = good.to_string();
    let (front, secret) = text.rsplit_once('.').unwrap();
    for (wrong, names) in [
        (text.replacen("gradlane1", "gradlane2", 1), "gradlane2"),
        (text.replacen("gradlane1.", "", 1), "gradlane1"),
        (front.to_owned(), ""),
        (format!("{front}.{}", &secret[1..]), "secret"),
        (format!("{front}.{}1", &secret[1..]), "secret"),
        (text.replacen(&good.address, "127.0.0.1", 1), "port"),
    ] {
        let error = wrong.parse::<JoinString>().unwrap_err();
        assert!(error.to_string().contains(names), "{error}");
        assert!(!error.to_string().contains(secret), "a secret is never told: {error}");
    }
    rounds::begin(&cluster.workers[0], "weight", 0, 1000).and_then(rounds::Reduction::check).unwrap();
}

#[test]
fn a_member_of_another_job_is_refused_by_coordinator_and_servers() {
    let (here, there) = (Cluster::start(Over::Quic, 1, 1), Cluster::start(Over::Quic, 1, 1));
    let stranger = Arc::new(there.embedded.coordinator().credentials(Role::Worker).unwrap());
    let error = join(&here.embedded.join_string().address, &stranger).err().expect("refused");
    assert!(matches!(&error, Error::Auth { hint, .. } if hint.contains("another job")), "{error}");
}

#[test]
fn a_job_that_has_formed_admits_no_newcomer_and_says_so() {
    let cluster = Cluster::start(Over::Quic, 1, 1);
    let join = cluster.embedded.join_string();
    for role in [Role::Worker, Role::Server] {
        let error = Credentials::enroll(join, role, PATIENCE).expect_err("nobody is waited for");
        assert!(matches!(&error, Error::FailedPrecondition { what, .. } if what.contains("is complete")), "{error}");
    }
    let mut guess = join.clone();
    guess.secret[0] ^= 1;
    let error = Credentials::enroll(&guess, Role::Worker, PATIENCE).expect_err("it does not know the secret");
    assert!(matches!(error, Error::Auth { .. }), "a stranger is not told how far the job is: {error}");
    rounds::begin(&cluster.workers[0], "weight", 0, 1000).and_then(rounds::Reduction::check).unwrap();
}

#[test]
fn an_expired_certificate_is_refused_with_both_times() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("job");
    let config = config(Over::Quic, &[("resume", "true")]);
    let machine = CoordinatorConfig::from_config(&config, 1, 1);
    let authority = Authority::resume(&directory, &machine.job).unwrap().with_lifetime(std::time::Duration::ZERO);
    let coordinator = CoordinatorNode::start(machine, &config, Some(&directory)).unwrap();
    let credentials = Arc::new(authority.credentials(Role::Worker).unwrap());
    // A member would renew it, so nobody joins with it before.
    eventually("it expires", || is_over(credentials.validity()).then_some(()));
    let error = join(&coordinator.join_string().address, &credentials).err().expect("refused");
    let Error::CertExpired { holder, times, hint } = &error else { panic!("{error}") };
    assert_eq!(holder, "this process");
    assert!(times.contains("expired: verification time") && times.contains("not valid after"), "{times}");
    assert!(hint.contains("clocks"), "{hint}");
}

#[test]
fn somebody_on_the_wire_sees_nothing_of_a_tensor_or_of_the_secret() {
    let Relayed { config, embedded, relays } = Relayed::start();
    let join = embedded.join_string();
    let marker = [0x4b32_1d0a_u32, 0x4a77_0ff1, 0x4913_3779].map(f32::from_bits);
    let data: Vec<f32> = marker.iter().copied().cycle().take(200_000).collect();
    let bytes: Vec<u8> = marker.iter().flat_map(|word| word.to_le_bytes()).collect();
    let zeros = vec![0.0; data.len()];
    std::thread::scope(|scope| {
        for (rank, data) in [&data, &zeros].into_iter().enumerate() {
            let config = &config;
            scope.spawn(move || {
                let engine = worker(config, join, u32::try_from(rank).ok(), 2).unwrap();
                let mut tensor = Tensor::new("marked", data.clone());
                tensor.push_pull(&engine, Op::Sum).unwrap().wait(Some(PATIENCE)).unwrap();
                assert!(tensor.data.iter().zip(marker.iter().cycle()).all(|(got, due)| got == due));
                engine.shutdown(PATIENCE).unwrap();
            });
        }
    });

    let [control, bulk] = &relays;
    // There and back, for both workers.
    let passed: usize = bulk.recorded().iter().map(Vec::len).sum();
    assert!(passed > 4 * data.len() * size_of::<f32>(), "all of it went by the relay");
    assert!(!control.recorded().is_empty());
    for relay in &relays {
        // Wherever a datagram began: twenty-three bytes of the tensor hold it whole.
        assert!(!relay.saw(&bytes), "the marker is on the wire");
        for secret in [&join.secret[..], b"marked"] {
            assert!(!relay.saw(secret));
        }
    }
    // That it would have seen it.
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&bytes, embedded.servers()[0].address()).unwrap();
    eventually("the relay sees what is not encrypted", || bulk.saw(&bytes).then_some(()));
}

#[test]
fn what_passed_once_counts_for_nothing_when_it_comes_again() {
    let Relayed { config, embedded, relays } = Relayed::start();
    let join = embedded.join_string();
    let workers: Vec<Engine> = std::thread::scope(|scope| {
        let joining: Vec<_> = [0, 1]
            .map(|rank| {
                scope.spawn({
                    let config = &config;
                    move || worker(config, join, Some(rank), 2)
                })
            })
            .into();
        joining.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    });
    let reduce = |round| {
        for outcome in all(&workers, |engine| rounds::begin(engine, "weight", round, 20_000)?.check()) {
            outcome.unwrap();
        }
    };
    reduce(0);
    let counted = embedded.servers()[0].stats().received_bytes();
    let targets = [&join.address, embedded.servers()[0].address()];
    for (relay, target) in relays.iter().zip(targets) {
        let stranger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for datagram in relay.recorded() {
            stranger.send_to(&datagram, target).unwrap();
        }
    }
    reduce(1);
    assert_eq!(embedded.servers()[0].stats().received_bytes(), 2 * counted, "two rounds, and nothing else");
}

#[test]
fn nothing_is_accepted_before_the_handshake_is_over() {
    let cluster = Cluster::start(Over::Quic, 1, 1);
    let member = cluster.embedded.coordinator().credentials(Role::Worker).unwrap();
    for port in [&*cluster.embedded.join_string().address, cluster.embedded.servers()[0].address()] {
        assert_eq!(vandal::sends_early(port, &member, PATIENCE), Ok(false), "early data can be sent again by a thief");
    }
}

#[test]
fn a_connection_that_moves_to_another_address_goes_on_there() {
    let cluster = Cluster::start(Over::Quic, 1, 1);
    let member = cluster.embedded.coordinator().credentials(Role::Worker).unwrap();
    for port in [&*cluster.embedded.join_string().address, cluster.embedded.servers()[0].address()] {
        for moves in [false, true] {
            let heard = vandal::is_heard_after(moves, port, &member, PATIENCE);
            assert_eq!(heard, Ok(()), "what is written is refused, moves: {moves}");
        }
    }
}

/// A job of two workers and a server whose announced addresses are those of relays.
struct Relayed {
    config: Config,
    embedded: Embedded,
    /// To the coordinator and to the server.
    relays: [Relay; 2],
}

impl Relayed {
    fn start() -> Self {
        let settings = [("advertise", Relay::HOST), ("form_timeout", "60s"), ("join_timeout", "60s")];
        let config = config(Over::Quic, &settings);
        let embedded = Embedded::start(EmbeddedOptions { config: config.clone(), workers: 2, servers: 1 }).unwrap();
        let relays = [&embedded.join_string().address, embedded.servers()[0].address()]
            .map(|announced| Relay::before(announced).recording());
        Self { config, embedded, relays }
    }
}

fn join(coordinator: &str, credentials: &Arc<Credentials>) -> gradlane_core::Result<Engine> {
    let config = config(Over::Quic, &[("join_timeout", "1s")]);
    let transport = QuicTransport::new(credentials, &Settings::default())?;
    Engine::start(EngineOptions {
        member: process::member(Role::Worker, &config),
        config,
        coordinator: coordinator.to_owned(),
        credentials: Arc::clone(credentials),
        transport: Arc::new(transport),
        copies: Copies::default(),
        device: None,
    })
}
