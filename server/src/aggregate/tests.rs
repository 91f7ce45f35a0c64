//! The aggregator's specification, one behaviour a test.

use gradlane_core::error::Code;
use gradlane_core::types::{DType, Epoch, Incarnation, MachineId, Member, Op, Phase, Role};
use gradlane_core::wire::{Flags, HeaderKind};

use super::*;

mod counting {
    use super::*;

    #[test]
    fn a_sum_is_published_once_every_worker_was_counted_and_all_are_answered() {
        let mut world = World::of(2);
        let first = world.push(0, header(0));
        assert_eq!(world.commands(), [start(first, 0)]);
        let second = world.push(1, header(0));
        let commands = world.commands();
        assert_eq!(commands[..2], [add(second, 0), Command::Publish { slot: slot(0), divisor: 1.0 }]);
        assert_eq!(answered(&commands), [first, second]);
    }

    #[test]
    fn the_answer_echoes_the_round_and_says_what_was_summed() {
        let mut world = World::of(1);
        world.push(0, Header { op: Op::Mean, ..header(7) });
        let Some(Command::Answer { header, .. }) = world.commands().pop() else { panic!("no answer") };
        assert_eq!((header.kind, header.epoch, header.round), (HeaderKind::Sum, EPOCH, Round(7)));
        assert_eq!((header.bytes, header.contributors, header.weight), (16, 1, 1.0));
    }

    #[test]
    fn a_body_counts_only_when_all_of_it_is_in_memory() {
        let mut world = World::of(1);
        let exchange = world.open(0, header(0));
        assert_eq!(world.commands(), [Command::Land { exchange, bytes: 16 }]);
        world.land(exchange);
        assert_eq!(answered(&world.commands()), [exchange]);
    }

    #[test]
    fn bodies_are_added_as_they_come() {
        let mut world = World::of(2);
        let late_rank = world.push(1, header(0));
        assert_eq!(world.commands(), [start(late_rank, 0)]);
    }

    #[test]
    fn a_deterministic_sum_is_added_in_the_order_of_the_ranks() {
        let mut world = World::with(3, |config| config.deterministic = true);
        let two = world.push(2, header(0));
        let one = world.push(1, header(0));
        assert_eq!(world.commands(), [], "they lie in memory until rank 0 came");
        let zero = world.push(0, header(0));
        assert_eq!(world.commands()[..3], [start(zero, 0), add(one, 0), add(two, 0)]);
    }

    #[test]
    fn a_part_without_bytes_is_counted_at_once() {
        let mut world = World::of(1);
        let exchange = world.open(0, Header { bytes: 0, ..header(0) });
        let commands = world.commands();
        assert!(matches!(commands[0], Command::Start { bytes: 0, .. }), "{commands:?}");
        assert_eq!(answered(&commands), [exchange]);
    }

    #[test]
    fn a_mean_is_divided_by_the_number_of_contributors() {
        let mut world = World::of(3);
        world.everybody(Header { op: Op::Mean, ..header(0) });
        assert!(world.commands().contains(&Command::Publish { slot: slot(0), divisor: 3.0 }));
    }

    #[test]
    fn a_weighted_mean_is_divided_by_the_sum_of_the_weights() {
        let mut world = World::of(2);
        world.push(0, weighted(0.0));
        world.push(1, weighted(2.5));
        assert!(
            world.commands().contains(&Command::Publish { slot: slot(0), divisor: 2.5 }),
            "a worker without samples"
        );
    }

    #[test]
    fn weights_that_are_all_zero_are_an_error_on_every_worker() {
        let mut world = World::of(2);
        world.push(0, weighted(0.0));
        world.push(1, weighted(0.0));
        assert_eq!(rejected(&world.commands()), [Code::InvalidArgument; 2]);
    }

    #[test]
    fn bytes_that_changed_on_their_way_do_not_count() {
        let mut world = World::of(1);
        let exchange = world.open(0, header(0));
        world.commands();
        world.aggregator.handle_landed(world.now, exchange, false);
        let commands = world.commands();
        assert_eq!(commands[0], Command::Discard { exchange });
        assert_eq!(rejected(&commands), [Code::DataLoss]);
        let again = world.push(0, header(0));
        assert_eq!(answered(&world.commands()), [again], "a repeat does");
    }
}

mod repeating {
    use super::*;

    #[test]
    fn a_body_that_broke_off_never_happened() {
        let mut world = World::of(1);
        let torn = world.open(0, header(0));
        world.aggregator.handle_torn(world.now, torn);
        world.commands();
        let again = world.open(0, header(0));
        assert_eq!(world.commands(), [Command::Land { exchange: again, bytes: 16 }]);
    }

    #[test]
    fn a_body_that_had_landed_counts_though_its_link_is_gone() {
        let mut world = World::of(2);
        let gone = world.push(0, header(0));
        world.aggregator.handle_torn(world.now, gone);
        let other = world.push(1, header(0));
        assert_eq!(answered(&world.commands()), [other]);
    }

    #[test]
    fn a_repeat_of_a_counted_push_only_waits() {
        let mut world = World::of(2);
        let first = world.push(0, header(0));
        world.aggregator.handle_torn(world.now, first);
        world.commands();
        let again = world.open(0, header(0));
        assert_eq!(world.commands(), [], "no body is wanted");
        let other = world.push(1, header(0));
        assert_eq!(answered(&world.commands()), [again, other]);
    }

    #[test]
    fn the_later_of_two_waiting_exchanges_is_answered() {
        let mut world = World::of(2);
        world.push(0, header(0));
        world.commands();
        let again = world.open(0, pull_only(0));
        assert_eq!(rejected(&world.commands()), [Code::Unavailable], "the older has ended");
        let other = world.push(1, header(0));
        assert_eq!(answered(&world.commands()), [again, other]);
    }

    #[test]
    fn of_two_uploads_of_one_worker_the_later_counts() {
        let mut world = World::of(2);
        let older = world.open(0, header(0));
        let newer = world.open(0, header(0));
        assert_eq!(rejected(&world.commands()), [Code::Unavailable]);
        world.land(older);
        assert_eq!(world.commands(), [Command::Discard { exchange: older }], "it came after all");
        world.land(newer);
        assert_eq!(world.commands(), [start(newer, 0)]);
    }

    #[test]
    fn a_published_sum_is_sent_again_to_whoever_asks_again() {
        let mut world = World::of(2);
        world.everybody(header(0));
        world.commands();
        let pull = world.open(0, pull_only(0));
        let push = world.open(1, header(0));
        assert_eq!(answered(&world.commands()), [pull, push]);
    }

    #[test]
    fn who_has_not_contributed_cannot_ask_for_the_sum_alone() {
        let mut world = World::of(2);
        world.open(0, pull_only(0));
        assert_eq!(rejected(&world.commands()), [Code::Aborted], "of a round that nobody began");
        world.push(1, header(0));
        world.commands();
        world.open(0, pull_only(0));
        assert_eq!(rejected(&world.commands()), [Code::Aborted], "of an open round");
    }

    #[test]
    fn nothing_is_remembered_of_exchanges_that_ended() {
        let mut world = World::of(2);
        for round in 0..10 {
            for exchange in world.everybody(header(round)) {
                world.aggregator.handle_answered(world.now, exchange);
            }
        }
        assert_eq!(world.aggregator.exchanges.len(), 0);
        assert_eq!(world.aggregator.booked, 16, "the last sum stays");
    }
}

mod membership {
    use super::*;

    #[test]
    fn before_the_first_view_a_worker_is_asked_to_come_back() {
        let mut world = World::of(1);
        world.aggregator = Aggregator::new(config());
        world.open(0, header(0));
        assert_eq!(rejected(&world.commands()), [Code::Unavailable]);
    }

    #[test]
    fn a_push_of_an_older_epoch_is_fenced() {
        let mut world = World::of(1);
        world.view(1, 2, Phase::Running);
        world.open(0, header(0));
        assert_eq!(rejected(&world.commands()), [Code::Fenced]);
    }

    #[test]
    fn a_push_of_a_newer_epoch_is_asked_to_come_back() {
        let mut world = World::of(1);
        world.open(0, Header { epoch: Epoch { term: 1, number: 2 }, ..header(0) });
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
        let cause = Error::PeerLost { member: "worker 2".into(), host: "c".into(), cause: "silent".into() };
        world.view(3, 2, Phase::Aborted(cause.clone()));
        world.open(2, header(0));
        let commands = world.commands();
        let causes =
            commands.iter().filter(|command| matches!(command, Command::Reject { error, .. } if *error == cause));
        assert_eq!(causes.count(), 3);
        assert!(commands.contains(&Command::Drop { slot: slot(0) }));
        assert_eq!(world.aggregator.booked, 0);
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
        let second = world.push(1, Header { epoch: Epoch { term: 1, number: 2 }, ..header(0) });
        assert_eq!(answered(&world.commands()), [first, second]);
    }

    #[test]
    fn other_workers_begin_all_rounds_anew() {
        let mut world = World::of(2);
        world.push(0, header(5));
        world.commands();
        world.view(1, 2, Phase::Running);
        assert_eq!(rejected(&world.commands()), [Code::Unavailable]);
        let anew = world.push(0, Header { epoch: Epoch { term: 1, number: 2 }, ..header(0) });
        assert_eq!(answered(&world.commands()), [anew]);
    }
}

mod window {
    use super::*;

    #[test]
    fn a_sum_is_kept_while_a_slow_worker_may_ask_for_it() {
        let mut world = World::of(2);
        let answers = world.everybody(header(0));
        world.aggregator.handle_torn(world.now, answers[1]);
        world.push(0, header(1));
        world.commands();
        let slow = world.open(1, pull_only(0));
        let commands = world.commands();
        assert_eq!(answered(&commands), [slow]);
        assert!(matches!(commands[0], Command::Answer { slot: of, .. } if of == slot(0)), "and not of round 1");
    }

    #[test]
    fn a_sum_goes_when_all_reached_the_next_round() {
        let mut world = World::of(2);
        world.everybody(header(0));
        world.push(0, header(1));
        assert!(!world.commands().contains(&Command::Drop { slot: slot(0) }));
        world.push(1, header(1));
        assert!(world.commands().contains(&Command::Drop { slot: slot(0) }));
        world.open(0, pull_only(0));
        assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition], "over");
    }

    #[test]
    fn a_worker_cannot_push_a_round_without_having_the_sum_before() {
        let mut world = World::of(2);
        world.everybody(header(0));
        world.push(0, header(1));
        world.commands();
        world.open(0, header(2));
        assert_eq!(rejected(&world.commands()), [Code::Unavailable], "it may have given up waiting for round 1");
        world.open(0, header(u64::MAX));
        assert_eq!(rejected(&world.commands()), [Code::Aborted], "a protocol error");
    }

    #[test]
    fn a_round_that_a_worker_gave_up_fails_at_once_for_those_who_wait() {
        let mut world = World::of(2);
        world.everybody(header(0));
        world.push(0, header(1));
        world.commands();
        world.open(1, header(2));
        let commands = world.commands();
        assert!(errors(&commands).any(
            |error| matches!(error, Error::Stalled { round: Round(1), missing, .. } if *missing == [WorkerId(1)])
        ));
        assert_eq!(world.aggregator.poll_timeout(), None, "nobody waits for it");
    }

    #[test]
    fn a_worker_that_gave_up_rounds_before_anybody_came_to_them_is_waited_for_in_none() {
        let mut world = World::of(2);
        world.everybody(header(0));
        world.commands();
        world.open(1, header(3));
        assert_eq!(rejected(&world.commands()), [Code::Unavailable], "the other is not there yet");
        for round in [1, 2] {
            world.open(0, header(round));
            assert_eq!(rejected(&world.commands()), [Code::DeadlineExceeded], "worker 1 gave it up");
        }
        let answers = world.everybody(header(3));
        assert_eq!(answered(&world.commands()), answers);
    }

    #[test]
    fn who_goes_far_ahead_lets_the_sums_of_all_rounds_before_go() {
        let mut world = World::of(2);
        world.everybody(header(0));
        world.everybody(header(1));
        world.push(0, header(2));
        world.commands();
        world.open(1, header(4));
        let commands = world.commands();
        assert!(commands.contains(&Command::Drop { slot: slot(1) }), "all came to round 2 or gave it up");
        assert_eq!(rejected(&commands), [Code::DeadlineExceeded, Code::Unavailable]);
    }

    #[test]
    fn when_all_gave_a_round_up_the_next_can_be_summed() {
        let mut world = World::of(2);
        world.everybody(header(0));
        let given_up = world.open(0, header(1));
        world.aggregator.handle_torn(world.now, given_up);
        world.open(0, header(2));
        world.open(1, header(2));
        world.commands();
        let answers = world.everybody(header(2));
        assert_eq!(answered(&world.commands()), answers);
    }

    #[test]
    fn a_worker_that_never_comes_holds_the_others_up_for_one_step_timeout() {
        let mut world = World::of(2);
        world.everybody(header(0));
        let given_up = world.push(0, header(1));
        world.pass(Duration::from_secs(60));
        world.aggregator.handle_torn(world.now, given_up);
        world.commands();
        world.open(0, header(2));
        assert_eq!(rejected(&world.commands()), [Code::Unavailable], "worker 1 may ask for the sum of round 0");
        world.pass(Duration::from_secs(60));
        let exchange = world.open(0, header(2));
        assert!(world.commands().contains(&Command::Land { exchange, bytes: 16 }));
    }

    #[test]
    fn the_last_round_of_all_has_no_successor() {
        let mut world = World::of(1);
        let last = world.push(0, header(u64::MAX));
        assert_eq!(answered(&world.commands()), [last]);
        world.open(0, header(0));
        assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition]);
    }

    #[test]
    fn a_round_that_one_worker_skipped_ends_when_all_went_on() {
        let mut world = World::of(2);
        let given_up = world.push(0, header(0));
        world.aggregator.handle_torn(world.now, given_up);
        let skipper = world.push(1, header(1));
        let other = world.push(0, header(1));
        let commands = world.commands();
        assert!(commands.contains(&Command::Drop { slot: slot(0) }));
        assert_eq!(answered(&commands), [other, skipper], "by rank");
        assert_eq!(world.aggregator.poll_timeout(), None);
    }

    #[test]
    fn parts_are_independent() {
        let mut world = World::of(1);
        world.push(0, header(0));
        let other = PartId { index: 1, ..slot(0).part };
        let exchange = world.push(0, Header { part: other, ..header(9) });
        assert!(answered(&world.commands()).contains(&exchange));
    }
}

mod broadcast {
    use super::*;

    #[test]
    fn receivers_send_no_body_and_wait_for_the_root() {
        let mut world = World::of(3);
        let one = world.open(1, receiver(0));
        assert_eq!(world.commands(), []);
        let root = world.push(0, broadcast(0));
        let commands = world.commands();
        assert!(commands.contains(&Command::Publish { slot: slot(0), divisor: 1.0 }));
        assert_eq!(answered(&commands), [root, one], "rank 2 need not have come");
        let late = world.open(2, receiver(0));
        assert_eq!(answered(&world.commands()), [late]);
    }

    #[test]
    fn a_body_of_a_receiver_and_a_root_without_one_break_the_protocol() {
        let mut world = World::of(2);
        world.open(1, broadcast(0));
        world.open(0, receiver(0));
        assert_eq!(rejected(&world.commands()), [Code::Aborted; 2]);
    }

    #[test]
    fn a_root_that_does_not_exist_is_an_error_on_every_worker() {
        let mut world = World::of(2);
        for rank in 0..2 {
            world.open(rank, Header { op: Op::Broadcast { root: WorkerId(9) }, ..receiver(0) });
        }
        assert_eq!(rejected(&world.commands()), [Code::InvalidArgument; 2]);
    }

    #[test]
    fn a_root_two_rounds_ahead_of_a_receiver_is_asked_to_come_back() {
        let mut world = World::of(2);
        world.push(0, broadcast(0));
        world.push(0, broadcast(1));
        world.commands();
        world.open(0, broadcast(2));
        assert_eq!(rejected(&world.commands()), [Code::Unavailable]);
        world.open(1, receiver(0));
        world.open(1, receiver(1));
        world.commands();
        let exchange = world.open(0, broadcast(2));
        assert_eq!(world.commands(), [Command::Land { exchange, bytes: 16 }]);
    }
}

mod failing {
    use super::*;

    #[test]
    fn a_disagreement_is_the_same_error_on_every_worker_also_on_those_who_come_later() {
        for (field, other) in [
            ("dtype", Header { dtype: DType::I32, ..header(0) }),
            ("length", Header { bytes: 20, ..header(0) }),
            ("op", Header { op: Op::Max, ..header(0) }),
        ] {
            let mut world = World::of(3);
            world.push(0, header(0));
            world.open(1, other);
            world.open(2, header(0));
            let commands = world.commands();
            let errors: Vec<String> = errors(&commands).map(Error::to_string).collect();
            assert_eq!(errors.len(), 3, "{commands:?}");
            assert!(errors.iter().all(|error| *error == errors[0]));
            assert!(errors[0].contains(field) && errors[0].contains("worker 0") && errors[0].contains("worker 1"));
            assert!(commands.contains(&Command::Drop { slot: slot(0) }));
        }
    }

    #[test]
    fn two_roots_are_a_disagreement() {
        let mut world = World::of(2);
        world.push(0, broadcast(0));
        world.open(1, Header { op: Op::Broadcast { root: WorkerId(1) }, ..header(0) });
        let commands = world.commands();
        assert_eq!(rejected(&commands), [Code::InvalidArgument]);
    }

    #[test]
    fn a_length_may_change_from_round_to_round() {
        let mut world = World::of(2);
        world.everybody(header(0));
        world.commands();
        let answers = world.everybody(Header { bytes: 400, ..header(1) });
        assert_eq!(answered(&world.commands()), answers);
    }

    #[test]
    fn after_a_failed_round_the_next_one_can_be_summed() {
        let mut world = World::of(2);
        world.push(0, header(0));
        world.open(1, Header { bytes: 20, ..header(0) });
        world.commands();
        let answers = world.everybody(header(1));
        assert_eq!(answered(&world.commands()), answers);
    }

    #[test]
    fn a_round_that_waits_too_long_fails_and_names_the_missing() {
        let mut world = World::of(3);
        world.push(0, header(0));
        world.push(2, header(0));
        world.commands();
        world.pass(Duration::from_secs(60));
        world.open(1, header(0));
        let commands = world.commands();
        assert_eq!(rejected(&commands), [Code::DeadlineExceeded; 3], "also the one that came too late");
        for error in errors(&commands) {
            assert!(matches!(error, Error::Stalled { missing, .. } if *missing == [WorkerId(1)]), "{error}");
        }
        assert_eq!(world.aggregator.poll_timeout(), None);
    }

    #[test]
    fn a_waiting_round_is_reported_at_each_interval() {
        let mut world = World::of(2);
        world.push(0, header(0));
        world.commands();
        assert_eq!(world.aggregator.poll_timeout(), Some(Time::ZERO + Duration::from_secs(10)));
        for seconds in [10, 20] {
            world.pass(Duration::from_secs(10));
            let stall = Stall {
                part: slot(0).part,
                round: Round(0),
                missing: vec![WorkerId(1)],
                waited: Duration::from_secs(seconds),
            };
            assert_eq!(world.commands(), [Command::Stalled { stall }]);
        }
    }

    #[test]
    fn only_the_oldest_waiting_rounds_are_reported() {
        let mut world = World::of(2);
        for index in 0..10 {
            world.push(0, Header { part: PartId { index, ..slot(0).part }, ..header(0) });
        }
        world.commands();
        world.pass(Duration::from_secs(10));
        assert_eq!(world.commands().len(), STALLS_PER_REPORT);
    }

    #[test]
    fn a_round_with_a_sum_waits_for_nobody() {
        let mut world = World::of(2);
        world.everybody(header(0));
        assert_eq!(world.aggregator.poll_timeout(), None);
    }

    #[test]
    fn a_forgotten_tensor_fails_for_those_who_wait_and_those_who_come_later() {
        let mut world = World::of(2);
        world.push(0, header(0));
        world.commands();
        let error = Error::Cancelled;
        world.aggregator.handle_forget(world.now, slot(0).part.key, error);
        world.open(1, header(0));
        let commands = world.commands();
        assert_eq!(rejected(&commands), [Code::Cancelled; 2]);
        assert!(commands.contains(&Command::Drop { slot: slot(0) }));
        assert_eq!(world.aggregator.booked, 0);
    }
}

mod memory {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_before_it_lands_and_fits_later() {
        // A round in progress needs an accumulator and a body; a finished one its sum.
        let mut world = World::with(1, |config| config.memory_bytes_max = 48);
        let second = Header { part: PartId { index: 1, ..slot(0).part }, ..header(0) };
        let first = world.open(0, header(0));
        world.open(0, second);
        assert_eq!(rejected(&world.commands()), [Code::ResourceExhausted]);
        world.land(first);
        world.commands();
        let exchange = world.open(0, second);
        assert_eq!(world.commands(), [Command::Land { exchange, bytes: 16 }]);
    }

    #[test]
    fn memory_that_never_becomes_free_is_an_error_that_is_not_repeated() {
        let mut world = World::with(2, |config| config.memory_bytes_max = 48);
        let other = Header { part: PartId { index: 1, ..slot(0).part }, ..header(0) };
        world.everybody(header(0));
        world.pass(Duration::from_secs(1));
        world.everybody(header(1));
        world.commands();
        for (seconds, code) in
            [(0, Code::ResourceExhausted), (59, Code::ResourceExhausted), (1, Code::FailedPrecondition)]
        {
            world.pass(Duration::from_secs(seconds));
            world.open(0, Header { bytes: 32, ..other });
            assert_eq!(rejected(&world.commands()), [code]);
        }
    }

    #[test]
    fn a_round_that_made_room_in_vain_can_be_followed_by_another() {
        let mut world = World::with(2, |config| config.memory_bytes_max = 64);
        world.everybody(header(0));
        world.open(0, header(3));
        world.pass(Duration::from_secs(60));
        world.open(0, Header { bytes: 64, ..header(3) });
        world.commands();
        let exchange = world.open(0, header(3));
        assert!(world.commands().contains(&Command::Land { exchange, bytes: 16 }));
    }

    #[test]
    fn half_size_floats_need_an_accumulator_of_twice_the_size() {
        let mut world = World::of(1);
        world.open(0, Header { dtype: DType::BF16, ..header(0) });
        assert_eq!(world.aggregator.progress().bytes_in_flight, 16 + 32);
    }

    #[test]
    fn a_begun_round_can_always_land_one_body() {
        let mut world = World::with(2, |config| config.memory_bytes_max = 32);
        let first = world.open(0, header(0));
        world.open(1, header(0));
        assert_eq!(rejected(&world.commands()), [Code::ResourceExhausted], "two at a time do not fit");
        world.land(first);
        world.commands();
        let answers = world.push(1, header(0));
        assert_eq!(answered(&world.commands()), [first, answers]);
    }

    #[test]
    fn in_rank_order_a_late_rank_cannot_take_the_room_of_an_early_one() {
        let mut world = World::with(2, |config| (config.deterministic, config.memory_bytes_max) = (true, 48));
        let late = world.push(1, header(0));
        world.open(1, Header { part: PartId { index: 1, ..slot(0).part }, ..header(0) });
        assert_eq!(rejected(&world.commands()), [Code::ResourceExhausted]);
        let early = world.push(0, header(0));
        assert_eq!(answered(&world.commands()), [early, late]);
    }
}

/// An aggregator with its workers and a clock.
mod draining {
    use super::*;

    #[test]
    fn a_round_that_was_begun_is_completed_and_one_that_was_not_is_refused() {
        let mut world = World::of(2);
        let first = world.push(0, header(0));
        world.aggregator.handle_drain(world.now, refusal());
        let second = world.push(1, header(0));
        assert_eq!(answered(&world.commands()), [first, second]);
        world.open(0, header(1));
        assert_eq!(errors(&world.commands()).collect::<Vec<_>>(), [&refusal()]);
    }

    #[test]
    fn it_is_over_when_every_answer_has_arrived() {
        let mut world = World::of(2);
        let first = world.push(0, header(0));
        assert!(!world.aggregator.is_drained(), "nobody asked for it");
        world.aggregator.handle_drain(world.now, refusal());
        assert!(!world.aggregator.is_drained(), "a contribution is missing");
        let second = world.push(1, header(0));
        world.aggregator.handle_answered(world.now, first);
        assert!(!world.aggregator.is_drained(), "one has no answer yet");
        world.aggregator.handle_answered(world.now, second);
        assert!(world.aggregator.is_drained());
    }

    #[test]
    fn an_idle_server_is_drained_at_once() {
        let mut world = World::of(2);
        for exchange in world.everybody(header(0)) {
            world.aggregator.handle_answered(world.now, exchange);
        }
        world.aggregator.handle_drain(world.now, refusal());
        assert!(world.aggregator.is_drained());
    }

    #[test]
    fn a_broadcast_waits_for_those_who_have_not_asked_for_it() {
        let mut world = World::of(2);
        let root = world.push(0, broadcast(0));
        world.aggregator.handle_answered(world.now, root);
        world.aggregator.handle_drain(world.now, refusal());
        assert!(!world.aggregator.is_drained());
        let other = world.open(1, receiver(0));
        assert_eq!(answered(&world.commands()), [root, other]);
        world.aggregator.handle_answered(world.now, other);
        assert!(world.aggregator.is_drained());
    }

    #[test]
    fn who_would_have_to_come_back_later_is_refused_too() {
        let mut world = World::of(2);
        for round in [0, 1] {
            world.push(0, broadcast(round));
        }
        world.commands();
        world.open(0, broadcast(2));
        assert_eq!(rejected(&world.commands()), [Code::Unavailable], "worker 1 is behind");
        world.aggregator.handle_drain(world.now, refusal());
        world.open(0, broadcast(2));
        assert_eq!(rejected(&world.commands()), [Code::FailedPrecondition]);
    }

    fn refusal() -> Error {
        Error::FailedPrecondition { what: "server 0 is draining".to_owned(), hint: String::new() }
    }
}

struct World {
    aggregator: Aggregator,
    now: Time,
    exchanges: u64,
}

impl World {
    fn of(workers: u32) -> Self {
        Self::with(workers, |_| {})
    }

    fn with(workers: u32, change: impl FnOnce(&mut AggregatorConfig)) -> Self {
        let mut config = config();
        change(&mut config);
        let mut world = Self { aggregator: Aggregator::new(config), now: Time::ZERO, exchanges: 0 };
        world.view(workers, 1, Phase::Running);
        world
    }

    fn view(&mut self, workers: u32, number: u32, phase: Phase) {
        self.aggregator.handle_view(self.now, &view(workers, number, phase));
    }

    /// A header arrives.
    fn open(&mut self, rank: u32, header: Header) -> ExchangeId {
        self.exchanges += 1;
        let exchange = ExchangeId(self.exchanges);
        self.aggregator.handle_opened(self.now, node(rank), exchange, &header);
        exchange
    }

    fn land(&mut self, exchange: ExchangeId) {
        self.aggregator.handle_landed(self.now, exchange, true);
    }

    /// A header and its body arrive; the `Land` in between is taken out of the commands.
    fn push(&mut self, rank: u32, header: Header) -> ExchangeId {
        let exchange = self.open(rank, header);
        assert_eq!(self.aggregator.commands.pop_back(), Some(Command::Land { exchange, bytes: header.bytes }));
        self.land(exchange);
        exchange
    }

    fn everybody(&mut self, header: Header) -> Vec<ExchangeId> {
        let workers = u32::try_from(self.aggregator.workers().len()).unwrap();
        (0..workers).map(|rank| self.push(rank, header)).collect()
    }

    fn pass(&mut self, duration: Duration) {
        self.now = self.now + duration;
        self.aggregator.handle_timeout(self.now);
    }

    fn commands(&mut self) -> Vec<Command> {
        std::iter::from_fn(|| self.aggregator.next_command()).collect()
    }
}

pub(super) const EPOCH: Epoch = Epoch { term: 1, number: 1 };

pub(super) fn config() -> AggregatorConfig {
    AggregatorConfig {
        deterministic: false,
        stall_warn: Duration::from_secs(10),
        step_timeout: Duration::from_secs(60),
        memory_bytes_max: 1 << 20,
        defect: None,
    }
}

pub(super) fn node(rank: u32) -> NodeId {
    NodeId([u8::try_from(rank).unwrap(); 32])
}

pub(super) fn view(workers: u32, number: u32, phase: Phase) -> View {
    let member = |index| Member {
        role: Role::Worker,
        index,
        node: node(index),
        incarnation: Incarnation(1),
        host: "host".to_owned(),
        pid: 1,
        address: String::new(),
        machine: MachineId::UNKNOWN,
        door: String::new(),
    };
    let members = (0..workers).map(member).collect();
    View { job: "job".to_owned(), epoch: Epoch { term: 1, number }, phase, members }
}

pub(super) fn header(round: u64) -> Header {
    Header {
        kind: HeaderKind::Push,
        flags: Flags::default(),
        epoch: EPOCH,
        part: slot(round).part,
        dtype: DType::F32,
        op: Op::Sum,
        round: Round(round),
        bytes: 16,
        weight: 1.0,
        contributors: 0,
        urgency: 0,
        checksum: 0,
    }
}

fn pull_only(round: u64) -> Header {
    Header { flags: Flags::NO_BODY.with(Flags::PULL_ONLY), ..header(round) }
}

fn broadcast(round: u64) -> Header {
    Header { op: Op::Broadcast { root: WorkerId(0) }, ..header(round) }
}

fn receiver(round: u64) -> Header {
    Header { flags: Flags::NO_BODY, ..broadcast(round) }
}

fn weighted(weight: f64) -> Header {
    Header { op: Op::WeightedMean, weight, ..header(0) }
}

fn slot(round: u64) -> SlotId {
    SlotId { part: PartId { key: TensorKey(1), index: 0 }, round: Round(round) }
}

fn start(exchange: ExchangeId, round: u64) -> Command {
    Command::Start { slot: slot(round), exchange, bytes: 16, dtype: DType::F32, op: Op::Sum, weight: 1.0 }
}

fn add(exchange: ExchangeId, round: u64) -> Command {
    Command::Add { slot: slot(round), exchange, weight: 1.0 }
}

fn answered(commands: &[Command]) -> Vec<ExchangeId> {
    let answer = |command: &Command| match command {
        Command::Answer { exchange, .. } => Some(*exchange),
        _ => None,
    };
    commands.iter().filter_map(answer).collect()
}

fn errors(commands: &[Command]) -> impl Iterator<Item = &Error> {
    commands.iter().filter_map(|command| match command {
        Command::Reject { error, .. } => Some(error),
        _ => None,
    })
}

fn rejected(commands: &[Command]) -> Vec<Code> {
    errors(commands).map(Error::code).collect()
}
