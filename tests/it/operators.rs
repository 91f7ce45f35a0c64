//! Orders of operators to a job in one process: what no command line can send, and what many of them come to.

use std::time::Duration;

use gradlane_core::error::Error;
use gradlane_core::runtime::Operator;
use gradlane_core::types::{Control, ControlAnswer, ControlCommand, Recipient, Role, ServerId, WorkerId};

use gradlane_tests::cluster::{Cluster, PATIENCE};
use gradlane_tests::over::Over;

#[test]
fn an_unknown_command_is_a_typed_error_and_the_job_and_the_connection_go_on() {
    let cluster = Cluster::start(Over::Quic, 2, 2);
    let mut operator = operator(&cluster);
    for recipient in [Recipient::Coordinator, Recipient::Worker(WorkerId(0)), Recipient::Server(ServerId(1))] {
        for fields in [Vec::new(), vec![0xff; 8_000]] {
            let outcome = operator.order(order(recipient, ControlCommand::Unknown { code: 200, fields }));
            let Err(Error::InvalidArgument { what, .. }) = outcome else { panic!("{outcome:?}") };
            assert_eq!(what, "command 200 is unknown to the coordinator");
        }
    }
    let stats = operator.order(order(Recipient::Server(ServerId(1)), ControlCommand::Stats)).unwrap();
    let ControlAnswer::Stats(stats) = stats else { panic!("{stats:?}") };
    assert_eq!((stats.scope.as_str(), stats.label.as_str()), ("server", "1"));
}

#[test]
fn a_hundred_orders_at_once_are_answered_or_refused() {
    let cluster = Cluster::start(Over::Shm, 2, 2);
    let mut operator = operator(&cluster);
    let recipients = [Recipient::Worker(WorkerId(1)), Recipient::Server(ServerId(0)), Recipient::Coordinator];
    let orders = (0..100).map(|number| order(recipients[number % 3], ControlCommand::Stats)).collect();
    let outcomes = operator.orders(orders).unwrap();
    let answered = outcomes.iter().filter(|outcome| matches!(outcome, Ok(ControlAnswer::Stats(_)))).count();
    let refused = outcomes.iter().filter(|outcome| matches!(outcome, Err(Error::Exhausted { .. }))).count();
    assert_eq!(answered + refused, 100, "{outcomes:?}");
    assert!(answered > 0);
    assert!(operator.order(order(recipients[0], ControlCommand::Stats)).is_ok(), "there is room again");
}

#[test]
fn the_log_of_a_program_that_has_one_of_its_own_is_left_alone() {
    let cluster = Cluster::start(Over::Quic, 1, 1);
    let outcome = operator(&cluster)
        .order(order(Recipient::Worker(WorkerId(0)), ControlCommand::Log { filter: "debug".to_owned() }));
    assert!(matches!(outcome, Err(Error::FailedPrecondition { .. })), "{outcome:?}");
}

fn operator(cluster: &Cluster) -> Operator {
    let coordinator = cluster.embedded.coordinator();
    let credentials = coordinator.credentials(Role::Admin).unwrap();
    Operator::connect(&coordinator.join_string().address, &credentials, PATIENCE).unwrap()
}

fn order(recipient: Recipient, command: ControlCommand) -> Control {
    Control { recipient, wait: Duration::from_secs(30), command }
}
