//! The life of certificates in a job that runs.

use std::sync::{Arc, Mutex, mpsc};
use std::time::SystemTime;

use gradlane_core::identity::{Credentials, Validity};
use gradlane_core::runtime::status;
use gradlane_core::transport::router::Router;
use gradlane_core::transport::{Peer, Transport};
use gradlane_core::types::{Done, Role};
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::{PATIENCE, config, worker_over};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::patience::eventually;
use gradlane_tests::rounds;

matrix! {
    [over_shm, over_quic]:
        a_job_outlives_the_certificates_that_it_began_with;
}

fn a_job_outlives_the_certificates_that_it_began_with(over: Over) {
    let config = config(over, &[("certificate_lifetime", "4s")]);
    let embedded = Embedded::start(EmbeddedOptions { config: config.clone(), workers: 1, servers: 1 }).unwrap();
    let kept: Mutex<Option<Credentials>> = Mutex::default();
    let engine = worker_over(&config, embedded.join_string(), None, 1, |credentials, copies| {
        *kept.lock().unwrap() = Some(credentials.clone());
        Ok(Arc::new(Router::new(&config, credentials, copies)?))
    })
    .unwrap();
    let credentials = kept.into_inner().unwrap().unwrap();
    rounds::begin(&engine, "weight", 0, 1000).and_then(rounds::Reduction::check).unwrap();
    // Those of coordinator and server were made before.
    let first = credentials.validity();
    eventually("all first certificates have expired", || is_over(first).then_some(()));
    assert!(!is_over(credentials.validity()), "it has another one");
    rounds::begin(&engine, "weight", 1, 1000).and_then(rounds::Reduction::check).expect("the links live on");

    // Handshakes with the coordinator and with the server.
    let state =
        status(&embedded.join_string().address, &credentials, PATIENCE).expect("enrolment is closed, and still");
    let server = state.view.members.iter().find(|member| member.process.role == Role::Server).expect("a member");
    let peer = Peer { addresses: server.process.addresses.clone(), node: server.node, name: server.name() };
    let router = Router::new(&config, &credentials, &Default::default()).unwrap();
    let (sender, outcome) = mpsc::channel();
    let done = Done::new(move |outcome| drop(sender.send(outcome)));
    router.connect(peer, PATIENCE, Box::new(|_, _| {}), done);
    outcome.recv_timeout(PATIENCE).expect("an end").expect("both certificates are good");
    router.shutdown(PATIENCE);
    engine.shutdown(PATIENCE).unwrap();
}

pub(crate) fn is_over(validity: Validity) -> bool {
    #[expect(clippy::disallowed_methods, reason = "certificates are dated by the calendar")]
    let now = SystemTime::now();
    // A certificate is good to the end of its last second.
    now > validity.to + std::time::Duration::from_secs(1)
}
