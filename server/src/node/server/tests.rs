//! A server in its job.

use std::sync::mpsc::channel;

use gradlane_core::engine::{Engine, EngineOptions};

use super::*;
use crate::coordinator::CoordinatorConfig;
use crate::coordinator::driver::CoordinatorNode;

#[test]
fn a_server_whose_listener_ends_takes_its_place_out_of_the_job_with_the_cause() {
    let config = Config { bind: "127.0.0.1:0".to_owned(), ..Config::default() };
    let coordinator = CoordinatorNode::start(CoordinatorConfig::from_config(&config, 1, 1), &config, None).unwrap();
    let address = coordinator.join_string().address.clone();
    let credentials = |role| Arc::new(coordinator.credentials(role).unwrap());
    let network = MemNetwork::new().unwrap();
    let (sender, watching) = channel();
    let options = ServerOptions {
        config: config.clone(),
        coordinator: address.clone(),
        credentials: credentials(Role::Server),
        index: None,
    };
    let server = Server::start_at(options, None, Pool::new(), |ServerOptions { credentials, .. }, plane| {
        let listener = network.listen("server", credentials.node(), plane.inbox())?;
        Ok(Listener { watch: Box::new(move |ended| drop(sender.send(ended))), ..listener })
    })
    .unwrap();
    let of_worker = credentials(Role::Worker);
    let worker = Engine::start(EngineOptions {
        member: MemberConfig { requested: Some(0), workers: 1, ..process::member(Role::Worker, &config) },
        config,
        coordinator: address,
        transport: Arc::new(network.transport(of_worker.node())),
        credentials: of_worker,
        copies: Copies::default(),
        device: None,
    });
    let cause = Error::Io { what: "receiving from the UDP socket".to_owned(), cause: "planted".to_owned() };
    (watching.recv().unwrap())(cause.clone());
    assert_eq!(server.join(Some(SOON)), Err(cause.clone()));
    let ended = coordinator.wait(Some(SOON)).unwrap_err();
    let Error::PeerLost { member, cause: told, .. } = &ended else { panic!("{ended}") };
    assert_eq!((member.as_str(), told), ("server 0", &cause.to_string()));
    drop(worker);
}

/// Far above what it takes.
const SOON: Duration = Duration::from_secs(60);
