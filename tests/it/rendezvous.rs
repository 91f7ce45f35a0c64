//! Join strings that processes find in files.

use std::net::UdpSocket;
use std::time::Duration;

use gradlane_core::types::{JoinString, Role};
use gradlane_server::coordinator::CoordinatorConfig;
use gradlane_server::coordinator::driver::CoordinatorNode;
use gradlane_server::launch::entering::{Found, Place};
use gradlane_server::launch::rendezvous::publish;
use gradlane_tests::cluster::{PATIENCE, config};
use gradlane_tests::over::Over;

#[test]
fn a_file_that_a_killed_coordinator_of_another_host_left_keeps_nobody_from_the_next_one() {
    let home = tempfile::tempdir().unwrap();
    let place = Place::Published { state_dir: home.path().to_owned(), job: "night".to_owned() };
    // Nobody answers there, and nobody else takes the port.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let stale = JoinString { address, ca_hash: [1; 32], secret: [2; 16] };
    let left = publish(home.path(), "night", &stale).unwrap();
    std::fs::write(left.path(), format!("{stale}\n1 1 pid:[1] another-host\n")).unwrap();
    let found = Found::at(place, Duration::ZERO).unwrap();
    assert_eq!(found.join, stale, "of another host nothing is known");

    let config = config(Over::Quic, &[]);
    let coordinator = CoordinatorNode::start(CoordinatorConfig::from_config(&config, 1, 1), &config, None).unwrap();
    let _published = publish(home.path(), "night", coordinator.join_string()).unwrap();
    let (join, credentials) = found.enrol(&config, Role::Worker, PATIENCE).unwrap();
    assert_eq!(&join, coordinator.join_string());
    assert_eq!(credentials.identity().role, Role::Worker);
}
