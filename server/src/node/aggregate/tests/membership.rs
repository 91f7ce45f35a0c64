//! Who may push, and what becomes of rounds when the members change.

use super::*;

#[test]
fn before_the_first_view_a_worker_is_asked_to_come_back() {
    let mut world = World::of(1);
    world.node = Node::new(config());
    world.open(0, header(0));
    assert_eq!(rejected(&world.commands()), [Code::Unavailable]);
}

#[test]
fn a_push_of_an_older_epoch_is_asked_to_come_back_if_its_rounds_go_on_and_else_fenced() {
    for (life, code) in [(1, Code::Unavailable), (2, Code::Fenced)] {
        let mut world = World::of(1);
        let mut next = view(1, 2, Phase::Running);
        next.members[0].process.incarnation = Incarnation(life);
        world.follow(next);
        world.open(0, header(0));
        assert_eq!(rejected(&world.commands()), [code]);
    }
}

#[test]
fn a_push_of_an_epoch_that_the_server_missed_is_asked_to_come_back() {
    for (term, code) in [(1, Code::Unavailable), (2, Code::Fenced)] {
        let mut world = World::of(1);
        world.node = Node::new(config());
        world.follow(View { epoch: Epoch { term, number: 2 }, ..view(1, 2, Phase::Running) });
        world.open(0, header(0));
        assert_eq!(rejected(&world.commands()), [code], "a member of term 1");
    }
}

#[test]
fn a_push_of_a_newer_epoch_is_asked_to_come_back() {
    let mut world = World::of(1);
    world.open(0, in_epoch(Epoch { term: 1, number: 2 }, header(0)));
    assert_eq!(rejected(&world.commands()), [Code::Unavailable]);
}

#[test]
fn a_node_that_is_no_member_is_refused() {
    let mut world = World::of(2);
    world.open(2, header(0));
    assert_eq!(rejected(&world.commands()), [Code::Unauthenticated]);
}

#[test]
fn an_older_view_changes_nothing() {
    let mut world = World::of(1);
    world.view(0, 0, Phase::Forming);
    world.push(0, header(0));
    assert_eq!(answered(&world.commands()).len(), 1);
}

#[test]
fn when_the_job_aborts_every_waiter_and_every_later_push_gets_the_cause() {
    let mut world = World::of(3);
    world.push(0, header(0));
    world.open(1, header(0));
    world.commands();
    let cause = Error::PeerLost { member: "server 0".into(), host: "c".into(), cause: "silent".into() };
    world.view(3, 2, Phase::Aborted(cause.clone()));
    world.open(2, header(0));
    let commands = world.commands();
    let causes = commands.iter().filter(|command| matches!(command, Command::Reject { error, .. } if *error == cause));
    assert_eq!(causes.count(), 3);
    assert!(commands.contains(&drops(0)));
    assert_eq!(world.progress().bytes_in_flight, 0);
}

#[test]
fn a_worker_that_was_given_up_hears_that_it_is_fenced_and_nothing_of_it_is_taken() {
    let mut world = World::of(3);
    world.push(0, header(0));
    // It sleeps with an exchange under way.
    let asleep = world.open(2, header(0));
    world.commands();
    let cause = Error::PeerLost { member: "worker 2".into(), host: "c".into(), cause: "silent".into() };
    world.view(3, 2, Phase::Aborted(cause.clone()));
    let told = |commands: &[Command], exchange| {
        commands.iter().find_map(|command| match command {
            Command::Reject { exchange: rejected, error, .. } if *rejected == exchange => Some(error.clone()),
            _ => None,
        })
    };
    let fenced = Some(Error::Fenced { current: Epoch { term: 1, number: 2 } });
    assert_eq!(told(&world.commands(), asleep), fenced);
    for (worker, expected) in [(2, fenced), (1, Some(cause))] {
        let awake = world.open(worker, header(0));
        let commands = world.commands();
        assert_eq!(told(&commands, awake), expected);
        assert!(!commands.iter().any(|command| matches!(command, Command::Step(_))), "{commands:?}");
    }
}

#[test]
fn after_the_end_of_the_job_nothing_is_summed() {
    let mut world = World::of(1);
    world.view(1, 2, Phase::Ended);
    world.open(0, header(0));
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition]);
}

#[test]
fn the_same_workers_go_on_in_a_new_epoch() {
    let mut world = World::of(2);
    let first = world.push(0, header(0));
    world.view(2, 2, Phase::Running);
    let second = world.push(1, in_epoch(Epoch { term: 1, number: 2 }, header(0)));
    assert_eq!(answered(&world.commands()), [first, second]);
}

#[test]
fn other_workers_begin_all_rounds_anew() {
    let mut world = World::of(2);
    world.everybody(header(0));
    world.push(0, header(1));
    world.commands();
    let mut next = view(2, 2, Phase::Running);
    next.members[1].process.incarnation = Incarnation(2);
    world.follow(next);
    assert_eq!(rejected(&world.commands()), [Code::Unavailable]);
    let epoch = Epoch { term: 1, number: 2 };
    let anew = [0, 1].map(|rank| world.push(rank, in_epoch(epoch, header(0))));
    assert_eq!(answered(&world.commands()), anew);
}
