//! What a round costs, and what happens when there is too little.

use super::*;

#[test]
fn what_does_not_fit_is_refused_before_it_is_received_and_fits_later() {
    let mut world = World::with(1, |config| config.memory_bytes_max = 48);
    let large = Contribute { dtype: DType::BF16, ..header(0) };
    let second = in_part(1, header(0));
    let first = world.open(0, large);
    assert_eq!(world.progress().bytes_in_flight, 32, "half-size floats are added in full-size ones");
    world.open(0, sized(20, second.clone()));
    assert_eq!(rejected(&world.commands()), [Code::ResourceExhausted]);
    world.whole(first);
    world.commands();
    let exchange = world.open(0, sized(20, second));
    assert_eq!(received(&world.commands()), [exchange], "the sum is half as large");
}

#[test]
fn a_begun_round_can_take_every_contribution() {
    let mut world = World::with(2, |config| config.memory_bytes_max = 16);
    let answers = world.everybody(header(0));
    assert_eq!(answered(&world.commands()), answers);
}

#[test]
fn memory_that_never_becomes_free_is_an_error_that_is_not_repeated() {
    let mut world = World::with(2, |config| config.memory_bytes_max = 32);
    world.open(0, in_part(1, header(0)));
    world.commands();
    for (seconds, code) in [(0, Code::ResourceExhausted), (119, Code::ResourceExhausted), (1, Code::FailedPrecondition)]
    {
        world.now = world.now + Duration::from_secs(seconds);
        world.open(0, sized(20, header(0)));
        assert_eq!(rejected(&world.commands()), [code]);
    }
}

#[test]
fn a_sum_that_can_never_fit_is_refused_at_once_with_the_figures() {
    let mut world = World::with(2, |config| config.memory_bytes_max = 32);
    world.open(0, sized(36, header(0)));
    let commands = world.commands();
    assert_eq!(rejected(&commands), [Code::FailedPrecondition]);
    let told = errors(&commands).next().unwrap().to_string();
    assert!(told.contains("needs 36 B") && told.contains("32 B") && told.contains("server_bytes_max"), "{told}");
}

#[test]
fn a_sum_that_everybody_has_soon_makes_room_for_a_new_one() {
    let mut world = World::with(2, |config| config.memory_bytes_max = 32);
    let [first, second] = world.everybody(header(0))[..] else { panic!("two workers") };
    world.node.handle_answered(first);
    world.commands();
    let large = sized(24, in_part(1, header(0)));
    world.open(0, large.clone());
    assert_eq!(rejected(&world.commands()), [Code::ResourceExhausted], "one worker still reads it");
    world.node.handle_answered(second);
    world.open(0, large.clone());
    assert_eq!(rejected(&world.commands()), [Code::ResourceExhausted], "a worker may still ask again");
    world.now = world.now + Duration::from_millis(200);
    let exchange = world.open(0, large);
    let commands = world.commands();
    assert!(commands.contains(&drops(0)) && received(&commands) == [exchange], "{commands:?}");
    world.open(0, header(0));
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition], "too late");
}

#[test]
fn a_sum_stays_for_a_worker_that_lost_its_connection_after_it_was_sent_although_memory_is_short() {
    let mut world = World::with(2, |config| config.memory_bytes_max = 32);
    for exchange in world.everybody(header(0)) {
        world.node.handle_answered(exchange);
    }
    world.commands();
    world.node.handle_link_down(LinkId(1));
    let large = sized(24, in_part(1, header(0)));
    let short = |world: &mut World, seconds: u64| {
        world.now = world.now + Duration::from_secs(seconds);
        world.open(0, large.clone());
        assert_eq!(rejected(&world.commands()), [Code::ResourceExhausted]);
    };
    // It takes its time to connect, and then it waits for its own pause.
    short(&mut world, 0);
    short(&mut world, 20);
    world.node.handle_link_up(LinkId(9), node(1));
    short(&mut world, 0);
    short(&mut world, 2);
    let again = ExchangeId(99);
    world.node.handle_opened(world.now, LinkId(9), again, &Request::Contribute(header(0)));
    assert_eq!(answered(&world.commands()), [again]);
    world.node.handle_answered(again);
    // Once it has had the time to ask, its sums make room as others do.
    short(&mut world, 1);
    world.now = world.now + Duration::from_secs(1);
    let exchange = world.open(0, large.clone());
    assert_eq!(received(&world.commands()), [exchange]);
}

#[test]
fn a_shortage_is_reported_with_its_figures_once_an_interval() {
    let mut world = World::with(2, |config| config.memory_bytes_max = 32);
    world.open(0, in_part(1, header(0)));
    world.commands();
    let mut reports = Vec::new();
    for _ in 0..11 {
        world.open(0, sized(20, header(0)));
        let shortages = world.commands().into_iter().filter_map(|command| match command {
            Command::Short { shortage } => Some(shortage),
            _ => None,
        });
        reports.extend(shortages);
        world.now = world.now + Duration::from_secs(1);
    }
    assert_eq!(reports, [Shortage { wanted: 20, booked: 16, bytes_max: 32 }; 2]);
}

#[test]
fn a_round_that_made_room_in_vain_can_be_followed_by_another() {
    let mut world = World::with(2, |config| config.memory_bytes_max = 48);
    world.everybody(header(0));
    world.open(0, header(3));
    world.pass(Duration::from_secs(60));
    world.open(0, sized(64, header(3)));
    world.commands();
    let exchange = world.open(0, header(3));
    assert_eq!(received(&world.commands()), [exchange]);
}

#[test]
fn a_sum_that_nobody_reads_any_more_is_freed_after_a_step_timeout() {
    let mut world = World::of(2);
    let [first, second] = world.everybody(header(0))[..] else { panic!("two workers") };
    world.node.handle_answered(first);
    world.pass(Duration::from_secs(30));
    assert_eq!(world.progress().bytes_in_flight, 16, "one worker still reads it");
    world.node.handle_answered(second);
    world.commands();
    for (freed, booked) in [(vec![], 16), (vec![], 16), (vec![drops(0)], 0)] {
        world.pass(Duration::from_secs(30));
        assert_eq!((world.commands(), world.progress().bytes_in_flight), (freed, booked));
    }
    assert_eq!(world.node.poll_timeout(), None, "there is nothing to look at any more");
    world.open(0, header(0));
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition], "too late");
    let next = world.everybody(header(1));
    assert_eq!(answered(&world.commands()), next, "the name can be used again");
}

#[test]
fn a_round_whose_only_contribution_broke_off_ends_after_a_step_timeout() {
    let mut world = World::of(2);
    let lost = world.open(1, header(0));
    world.torn(lost);
    world.commands();
    for (freed, booked) in [(vec![], 16), (vec![], 16), (vec![drops(0)], 0)] {
        world.pass(Duration::from_secs(30));
        assert_eq!((world.commands(), world.progress().bytes_in_flight), (freed, booked));
    }
    world.open(0, header(0));
    let commands = world.commands();
    let named = |error: &Error| matches!(error, Error::Stalled { missing, .. } if *missing == [WorkerId(1)]);
    assert!(errors(&commands).all(named) && rejected(&commands).len() == 1, "{commands:?}");
    let next = world.everybody(header(1));
    assert_eq!(answered(&world.commands()), next, "the name can be used again");
}

#[test]
fn a_worker_that_takes_no_sums_is_given_up_after_a_step_timeout_and_they_are_freed() {
    let mut world = World::of(2);
    let [first, second] = world.everybody(header(0))[..] else { panic!("two workers") };
    world.node.handle_answered(first);
    world.commands();
    for _ in 0..2 {
        world.pass(Duration::from_secs(30));
        assert_eq!((world.commands(), world.progress().bytes_in_flight), (vec![], 16));
    }
    world.pass(Duration::from_secs(30));
    let what = "worker 1 to read its sums".to_owned();
    let reason = Error::Timeout { what, waited: Duration::from_secs(60) };
    assert_eq!(world.commands(), [Command::Disconnect { link: LinkId(1), reason }, drops(0)]);
    assert_eq!(world.progress(), Progress { last: world.progress().last, ..Progress::default() }, "all is free");
    world.torn(second);
    world.open(1, header(0));
    let commands = world.commands();
    let named = errors(&commands).any(|error| error.to_string().contains("round 0: worker 1 did not take the sum"));
    assert!(named, "who comes back learns why: {commands:?}");
    assert_eq!(world.node.poll_timeout(), None, "there is nothing to look at any more");
}

#[test]
fn a_worker_that_takes_its_sums_slowly_one_after_the_other_is_waited_for() {
    let mut world = World::of(1);
    let exchanges: Vec<ExchangeId> = (0..8).map(|part| world.push(0, in_part(part, header(0)))).collect();
    world.commands();
    for exchange in exchanges {
        world.pass(Duration::from_secs(59));
        assert!(!world.commands().iter().any(|command| matches!(command, Command::Disconnect { .. })));
        world.node.handle_answered(exchange);
    }
}

#[test]
fn a_sum_that_one_worker_does_not_take_stays_for_one_that_reads() {
    let mut world = World::of(2);
    let [first, _second] = world.everybody(header(0))[..] else { panic!("two workers") };
    let others: Vec<ExchangeId> = (1..5).map(|part| world.everybody(in_part(part, header(0)))[0]).collect();
    world.commands();
    for other in others {
        world.pass(Duration::from_secs(30));
        world.node.handle_answered(other);
        assert!(!world.commands().contains(&drops(0)), "worker 0 reads, and has not come to it");
    }
    world.node.handle_answered(first);
    for _ in 0..3 {
        world.pass(Duration::from_secs(30));
    }
    assert_eq!(world.progress().bytes_in_flight, 0);
}

#[test]
fn an_answer_of_two_rounds_before_is_of_no_use_to_its_worker_and_ends() {
    let mut world = World::of(1);
    let unread: Vec<ExchangeId> = (0..2).map(|round| world.push(0, header(round))).collect();
    assert_eq!(rejected(&world.commands()), [], "the acknowledgement of one answer may be on its way");
    world.push(0, header(2));
    let cut = |command: &Command| matches!(command, Command::Reject { exchange, .. } if *exchange == unread[0]);
    assert!(world.commands().iter().any(cut));
    assert_eq!(world.progress().pending, 2);
}

#[test]
fn who_asks_again_in_time_finds_the_sum() {
    let mut world = World::of(1);
    let lost = world.push(0, header(0));
    world.torn(lost);
    for _ in 0..2 {
        world.pass(Duration::from_secs(60));
        world.commands();
        let again = world.open(0, header(0));
        assert_eq!(answered(&world.commands()), [again]);
        world.node.handle_answered(again);
    }
}

#[test]
fn two_rounds_of_a_part_are_all_that_is_ever_kept() {
    let mut world = World::of(3);
    for round in 0..10 {
        world.everybody(header(round));
        assert!(world.progress().bytes_in_flight <= 2 * 16);
    }
}

#[test]
fn in_rank_order_every_rank_but_the_first_has_room_of_its_own() {
    let mut world = World::with(3, |config| (config.deterministic, config.memory_bytes_max) = (true, 63));
    world.open(1, sized(24, in_part(1, header(0))));
    assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition], "two times 24 beside the sum");
    let late = world.push(2, header(0));
    world.open(2, in_part(1, header(0)));
    assert_eq!(rejected(&world.commands()), [Code::ResourceExhausted]);
    let [zero, one] = [0, 1].map(|rank| world.push(rank, header(0)));
    assert_eq!(answered(&world.commands()), [late, zero, one]);
}
