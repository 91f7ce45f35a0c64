//! Attacks on the ports of a job that trains: every sum is right, nobody gets in, no epoch changes, nothing panics, memory stays. How fast
//! the job is meanwhile is a figure of `make test-hostile`, because it depends on the machine.

use std::path::Path;
use std::time::Duration;

use gradlane_tests::siege::{ATTACKS, Times, Victim, endure};

use crate::actors::ACTOR;

#[test]
fn attacks_on_the_port_of_the_server_harm_no_job_over_quic() {
    all_are_endured(Victim::Server);
}

#[test]
fn attacks_on_the_port_of_the_coordinator_harm_no_job_over_quic() {
    all_are_endured(Victim::Coordinator);
}

fn all_are_endured(on: Victim) {
    let times = Times { each: Duration::from_millis(500), pause: Duration::ZERO };
    for attack in ATTACKS.iter().filter(|attack| attack.on == on) {
        let cost = endure(attack, times, Path::new(ACTOR));
        println!("{attack:?}: {cost:?}");
        assert_eq!(cost.faults(attack), [""; 0], "{}", attack.name);
    }
}
