//! The specification of tables, one behaviour a test: the node and the memory together.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use gradlane_core::cluster::MemberEvent;
use gradlane_core::error::{Code, Error};
use gradlane_core::mem::{Copies, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{ExchangeId, LinkId, PartId, Phase, Round, RowAction, Shards, TableSpec, TensorKey, Time};
use gradlane_core::wire::scan::{Begin, Front, Next};
use gradlane_core::wire::{Request, Response, Rows, Target, checksum};

use crate::node::accumulator::SumResources;
use crate::node::aggregate::tests::{EPOCH, config, node, view};
use crate::node::command::{Command, Route, Served};
use crate::node::config::NodeConfig;
use crate::node::event::{Event, Waits};
use crate::node::machine::Node;
use crate::node::parameter::tests as parameters;
use crate::node::store::Store;

const SPEC: &str = "sgd:lr=1;dim=2,init=uniform,scale=1,seed=3";

#[test]
fn a_row_that_was_pulled_is_changed_by_each_push_and_read_by_every_worker() {
    let mut world = World::of(2);
    let first = world.pull(0, 0, &[5, 6]);
    assert_eq!(world.pull(1, 0, &[6, 5, 6]), [&first[2..], &first[..2], &first[2..]].concat());
    assert_eq!(world.push(1, 1, &[5], &[1.0, 2.0]), Ok(Vec::new()));
    assert_eq!(world.pull(0, 1, &[5]), [first[0] - 1.0, first[1] - 2.0]);
}

#[test]
fn a_push_that_comes_again_is_not_done_again_and_an_older_one_is_refused() {
    let mut world = World::of(1);
    let before = world.pull(0, 0, &[5]);
    for _ in 0..3 {
        assert_eq!(world.push(0, 1, &[5], &[1.0, 1.0]), Ok(Vec::new()));
    }
    assert_eq!(world.pull(0, 2, &[5]), [before[0] - 1.0, before[1] - 1.0]);
    let error = world.push(0, 1, &[5], &[1.0, 1.0]).unwrap_err();
    assert!(error.to_string().contains("use 2 of this worker came before"), "{error}");
}

#[test]
fn a_repeat_finds_its_change_done_although_nobody_heard_the_first_answer() {
    let mut world = World::of(1);
    let before = world.pull(0, 0, &[5]);
    let (header, body) = push_of(&[5], &[1.0, 1.0], 1);
    let lost = world.open(0, header);
    world.bring(lost, &body);
    world.tear(lost);
    let half = world.open(0, header);
    world.bring(half, &body[..9]);
    world.tear(half);
    assert_eq!(world.push(0, 1, &[5], &[1.0, 1.0]), Ok(Vec::new()));
    assert_eq!(world.pull(0, 2, &[5]), [before[0] - 1.0, before[1] - 1.0]);
}

#[test]
fn what_breaks_off_changes_nothing_and_gives_its_memory_back() {
    let mut world = World::of(1);
    let before = world.pull(0, 0, &[5]);
    let booked = world.booked();
    assert!(booked > 0);
    let (header, body) = push_of(&[5, 6], &[1.0; 4], 1);
    let torn = world.open(0, header);
    assert!(world.booked() > booked);
    world.bring(torn, &body[..body.len() - 1]);
    world.tear(torn);
    assert_eq!((world.booked(), world.pull(0, 1, &[5])), (booked, before));
    let newer = world.open(0, push_of(&[5], &[1.0; 2], 2).0);
    let newest = world.open(0, push_of(&[5], &[1.0; 2], 3).0);
    assert!(matches!(world.outcome(newer), Some(Err(Error::Unavailable { .. }))), "the same worker began a later one");
    world.tear(newest);
    assert_eq!(world.booked(), booked);
}

#[test]
fn an_answer_that_is_on_its_way_outlives_the_next_use_of_its_worker() {
    let mut world = World::of(1);
    let (header, body) = (world.header(RowAction::Pull, &[5], 0), bytes_of(&[5]));
    let first = world.open(0, header);
    world.bring(first, &body);
    let next = world.open(0, world.header(RowAction::Pull, &[6], 1));
    assert!(world.outcome(first).is_some_and(|outcome| outcome.is_ok()));
    world.bring(next, &bytes_of(&[6]));
    assert!(world.outcome(next).is_some_and(|outcome| outcome.is_ok()));
}

#[test]
fn bad_bodies_are_refused_with_what_is_wrong_and_change_nothing() {
    let mut world = World::of(1);
    let before = world.pull(0, 0, &[5]);
    let twice = world.push(0, 1, &[5, 5], &[1.0; 4]).unwrap_err();
    let odd = world.push(0, 2, &[5], &[1.0, f32::INFINITY]).unwrap_err();
    let damaged = {
        let (header, body) = push_of(&[5], &[1.0; 2], 3);
        let exchange = world.open(0, Rows { checksum: Some(1), ..header });
        world.bring(exchange, &body);
        world.outcome(exchange).unwrap().unwrap_err()
    };
    let rising = {
        let header = world.header(RowAction::Shrink, &[], 4);
        let exchange = world.open(0, header);
        world.bring(
            exchange,
            &[2.0f64.to_le_bytes(), 0.0f64.to_le_bytes(), 0u64.to_le_bytes(), 0u64.to_le_bytes()].concat(),
        );
        world.outcome(exchange).unwrap().unwrap_err()
    };
    assert!(twice.to_string().contains("5 comes twice") && odd.to_string().contains("not finite"), "{twice} {odd}");
    assert!(
        matches!(damaged, Error::Checksum { .. }) && rising.to_string().contains("decay of 2"),
        "{damaged} {rising}"
    );
    assert_eq!(world.pull(0, 5, &[5]), before);
}

#[test]
fn a_checksum_that_is_asked_for_comes_with_the_answer() {
    let mut world = World::of(1);
    let body = bytes_of(&[5, 6, 7]);
    let header = Rows { checksum: Some(checksum(0, &body)), ..world.header(RowAction::Look, &[5, 6, 7], 0) };
    let exchange = world.open(0, header);
    world.bring(exchange, &body);
    let (answer, crc) = world.taken(exchange);
    assert_eq!((answer.len(), crc), (24, checksum(0, &answer)));
}

#[test]
fn a_table_that_was_declared_otherwise_is_refused_and_so_are_other_kinds() {
    let mut world = World::of(2);
    world.pull(0, 0, &[5]);
    let other: TableSpec = "sgd:lr=2;dim=2".parse().unwrap();
    let exchange = world.open(1, Rows { spec: other, ..world.header(RowAction::Look, &[5], 0) });
    let Some(Err(Error::Mismatch { field, first, second, .. })) = world.outcome(exchange) else { panic!() };
    assert_eq!((&*field, first.worker.0, second.worker.0), ("table", 0, 1));
    let use_of_parameter = Request::Use(gradlane_core::wire::Use {
        target: world.header(RowAction::Look, &[], 0).target,
        ..parameters::to_do(gradlane_core::types::Access::Pull, 0)
    });
    let exchange = world.open_any(1, use_of_parameter);
    let error = world.outcome(exchange).unwrap().unwrap_err().to_string();
    assert!(error.contains("is a parameter") && error.contains("one of a table"), "{error}");
}

#[test]
fn counts_are_those_of_the_rows_and_a_shrink_that_comes_again_tells_the_first() {
    let mut world = World::of(1);
    world.pull(0, 0, &[1, 2, 3]);
    world.push(0, 1, &[1, 2], &[1.0; 4]).unwrap();
    for _ in 0..2 {
        let header = world.header(RowAction::Shrink, &[], 2);
        let exchange = world.open(0, header);
        world.bring(
            exchange,
            &[1.0f64.to_le_bytes(), 0.5f64.to_le_bytes(), 9u64.to_le_bytes(), 0u64.to_le_bytes()].concat(),
        );
        assert_eq!(world.counts(exchange)[..3], [3, 1, 2]);
    }
    let stats = world.open(0, world.header(RowAction::Stats, &[], 3));
    assert_eq!(world.counts(stats)[..4], [0, 1, 2, 0]);
    let clear = world.open(0, world.header(RowAction::Clear, &[], 4));
    assert_eq!(world.outcome(clear), Some(Ok(Vec::new())));
    let stats = world.open(0, world.header(RowAction::Stats, &[], 5));
    assert_eq!(world.counts(stats)[..5], [0, 3, 0, 0, 0]);
    assert_eq!(world.booked(), 0);
}

#[test]
fn memory_that_there_is_not_is_asked_for_again_later() {
    let mut world = World::with(1, |config| config.memory_bytes_max = 300 << 10);
    let ids: Vec<u64> = (0..1000).collect();
    let first = world.open(0, world.header(RowAction::Pull, &ids, 0));
    world.bring(first, &bytes_of(&ids));
    assert!(world.outcome(first).is_some_and(|outcome| outcome.is_ok()));
    let refused = loop {
        let round = world.exchanges;
        let more: Vec<u64> = (1000 * round..1000 * round + 1000).collect();
        let exchange = world.open(0, world.header(RowAction::Pull, &more, round));
        world.bring(exchange, &bytes_of(&more));
        if let Some(Err(error)) = world.outcome(exchange) {
            break error;
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(world.booked() <= 300 << 10);
    let look = world.open(0, world.header(RowAction::Look, &[1], 100));
    world.bring(look, &bytes_of(&[1]));
    assert!(world.outcome(look).is_some_and(|outcome| outcome.is_ok()), "what is there can be read");
}

#[test]
fn a_server_that_drains_takes_no_new_use_and_answers_repeats() {
    let mut world = World::of(1);
    world.push(0, 0, &[5], &[1.0; 2]).unwrap();
    world.node.handle_drain();
    assert_eq!(world.push(0, 0, &[5], &[1.0; 2]), Ok(Vec::new()));
    let error = world.push(0, 1, &[5], &[1.0; 2]).unwrap_err();
    assert!(error.to_string().contains("draining"), "{error}");
    assert!(world.node.is_drained());
}

#[test]
fn where_workers_wait_a_row_makes_one_step_by_the_mean_of_all() {
    for (merge, due) in [("", [-2.0, -3.0]), (",merge=sum", [-4.0, -6.0])] {
        let mut world = World::of(2);
        let spec = format!("sgd:lr=1;dim=2,mode=sync{merge}");
        let first = world.begin(0, &spec, push_of(&[5, 6], &[1.0, 2.0, 8.0, 8.0], 0));
        assert_eq!(world.outcome(first), None);
        // The first is heard of twice, as after a connection that broke.
        world.tear(first);
        let again = world.begin(0, &spec, push_of(&[5, 6], &[1.0, 2.0, 8.0, 8.0], 0));
        let second = world.begin(1, &spec, push_of(&[5], &[3.0, 4.0], 0));
        assert_eq!(
            [again, second].map(|exchange| world.outcome(exchange)),
            [Some(Ok(Vec::new())), Some(Ok(Vec::new()))]
        );
        let repeated = world.begin(1, &spec, push_of(&[5], &[3.0, 4.0], 0));
        assert_eq!(world.outcome(repeated), Some(Ok(Vec::new())), "it was done");
        let look = world.begin(1, &spec, (header(RowAction::Look, &[5], 1), bytes_of(&[5])));
        assert_eq!(floats_of(&world.outcome(look).unwrap().unwrap()), due);
    }
}

#[test]
fn rows_of_half_precision_step_once_by_what_was_added_in_f32() {
    let mut world = World::of(2);
    // The first number alone is between two of bf16, and a row that stepped by it would not come to 1.
    let spec = "sgd:lr=1;dim=2,dtype=bf16,mode=sync,merge=sum";
    let first = world.begin(0, spec, push_of(&[5], &[257.0, -257.0], 0));
    let second = world.begin(1, spec, push_of(&[5], &[-258.0, 258.0], 0));
    assert_eq!([first, second].map(|push| world.outcome(push)), [Some(Ok(Vec::new())), Some(Ok(Vec::new()))]);
    let look = world.begin(1, spec, (header(RowAction::Look, &[5], 1), bytes_of(&[5])));
    assert_eq!(floats_of(&world.outcome(look).unwrap().unwrap()), [1.0, -1.0]);
}

#[test]
fn memory_of_rows_of_half_precision_is_booked_as_they_take_it() {
    let booked = ["f32", "bf16"].map(|dtype| {
        let mut world = World::of(1);
        let spec = format!("sgd;dim=2048,dtype={dtype}");
        let pull = world.begin(0, &spec, (header(RowAction::Pull, &[5], 0), bytes_of(&[5])));
        assert!(world.outcome(pull).unwrap().is_ok());
        world.booked()
    });
    // There is a chunk of 16 rows.
    assert_eq!(booked[0] - booked[1], 16 * 2 * 2048, "{booked:?}");
}

#[test]
fn a_push_that_is_wrong_is_refused_alone_and_the_others_go_on_waiting() {
    let mut world = World::of(2);
    let spec = "sgd:lr=1;dim=2,mode=sync";
    let first = world.begin(0, spec, push_of(&[5], &[1.0, 2.0], 0));
    let wrong = world.begin(1, spec, push_of(&[5, 5], &[1.0; 4], 0));
    assert!(world.outcome(wrong).unwrap().unwrap_err().to_string().contains("comes twice"));
    assert_eq!(world.outcome(first), None);
    let (header, body) = push_of(&[], &[], 1);
    let right = world.begin(1, spec, (Rows { step: 0, ..header }, body));
    assert_eq!([first, right].map(|exchange| world.outcome(exchange)), [Some(Ok(Vec::new())), Some(Ok(Vec::new()))]);
}

#[test]
fn workers_of_different_steps_are_refused_and_nothing_is_changed() {
    let mut world = World::of(2);
    let spec = "sgd:lr=1;dim=2,mode=sync";
    let first = world.begin(0, spec, push_of(&[5], &[1.0, 2.0], 0));
    let second = world.begin(1, spec, push_of(&[5], &[1.0, 2.0], 1));
    for exchange in [first, second] {
        let error = world.outcome(exchange).unwrap().unwrap_err().to_string();
        assert!(error.contains("worker 1 pushes for step 1, and worker 0 for step 0"), "{error}");
    }
    let look = world.begin(0, spec, (header(RowAction::Look, &[5], 2), bytes_of(&[5])));
    assert_eq!(floats_of(&world.outcome(look).unwrap().unwrap()), [0.0, 0.0]);
}

#[test]
fn who_is_waited_for_too_long_is_named() {
    for (spec, pulls) in [("sgd:lr=1;dim=2,mode=sync", false), ("sgd:lr=1;dim=2,mode=ssp", true)] {
        let mut world = World::of(3);
        for rank in if pulls { 0..2 } else { 1..2 } {
            world.begin(rank, spec, push_of(&[5], &[1.0, 2.0], 0));
        }
        let waits = match pulls {
            true => world.begin(0, spec, (header(RowAction::Pull, &[5], 1), bytes_of(&[5]))),
            false => world.begin(0, spec, push_of(&[5], &[1.0, 2.0], 0)),
        };
        assert_eq!(world.missing(waits), [2], "{spec}");
        assert_eq!(world.node.poll_timeout(), None);
    }
}

#[test]
fn pushes_that_wait_say_for_which_workers_all_of_them_wait() {
    let spec = "sgd:lr=1;dim=2,mode=sync";
    let push = |world: &mut World, rank| world.begin(rank, spec, push_of(&[5], &[1.0, 2.0], 0));
    let mut world = World::with(100, |config| config.memory_bytes_max = 1 << 30);
    for rank in 0..99 {
        let exchange = push(&mut world, rank);
        let first: Vec<u32> = (rank + 1..100).take(64).collect();
        assert_eq!(world.waits, [(Some(exchange), first, 99 - rank)], "one event a use");
        world.waits.clear();
    }
    push(&mut world, 99);
    assert_eq!(world.waits, [(None, Vec::new(), 0)]);
}

#[test]
fn pulls_that_wait_say_for_which_workers_all_of_them_wait() {
    let spec = "sgd:lr=1;dim=2,mode=ssp";
    let push = |world: &mut World, rank, round| world.begin(rank, spec, push_of(&[5], &[1.0, 2.0], round));
    let pull = |world: &mut World, rank, round| {
        world.begin(rank, spec, (header(RowAction::Pull, &[5], round), bytes_of(&[5])))
    };
    let mut world = World::of(4);
    for (rank, round) in [(0, 0), (1, 0), (1, 1)] {
        push(&mut world, rank, round);
    }
    let [ahead, behind] = [(1, 2), (0, 1)].map(|(rank, round)| pull(&mut world, rank, round));
    let expected = [(Some(ahead), vec![0, 2, 3], 3), (Some(behind), vec![2, 3], 2)];
    assert_eq!(world.waits, expected, "what the second one waits for the first one waits for too");
    world.waits.clear();
    world.begin(2, spec, (header(RowAction::Look, &[5], 0), bytes_of(&[5])));
    assert_eq!(world.waits, [], "nothing has changed");
    for rank in [2, 3] {
        push(&mut world, rank, 1);
    }
    assert!(world.outcome(behind).is_some());
    assert_eq!(world.waits, [(None, vec![3], 1), (None, vec![0, 2, 3], 3)]);
}

#[test]
fn the_workers_for_which_uses_wait_are_said_again_when_a_use_ends_or_a_worker_is_lost() {
    let spec = "sgd:lr=1;dim=2,mode=sync";
    let push = |world: &mut World, rank| world.begin(rank, spec, push_of(&[5], &[1.0, 2.0], 0));
    let mut world = World::of(4);
    let [first, second] = [0, 1].map(|rank| push(&mut world, rank));
    world.waits.clear();
    world.tear(first);
    assert_eq!(world.waits, [(None, vec![0, 2, 3], 3)]);
    let mut left = view(4, 2, Phase::Running);
    left.members.retain(|member| member.index != 0);
    world.node.handle_member(MemberEvent::View(left));
    world.settle();
    assert_eq!(world.waits[1..], [(None, vec![2, 3], 2)]);
    assert_eq!(world.missing(second), [2, 3]);
    assert_eq!(world.waits[2..], [(None, vec![], 0)], "it was given up");

    let mut world = World::of(2);
    push(&mut world, 0);
    world.node.handle_member(MemberEvent::Ended { keys: vec![part().key], below: 1 });
    world.settle();
    assert_eq!(world.waits.last(), Some(&(None, vec![], 0)), "the table ended");
}

#[test]
fn a_push_that_comes_again_makes_nobody_wait_for_more_workers() {
    let mut world = World::of(3);
    let spec = "sgd:lr=1;dim=2,mode=ssp";
    for rank in [0, 0, 1] {
        world.begin(rank, spec, push_of(&[5], &[1.0, 2.0], 0));
    }
    let waits = world.begin(0, spec, (header(RowAction::Pull, &[5], 1), bytes_of(&[5])));
    assert_eq!(world.missing(waits), [2]);
}

#[test]
fn workers_keep_their_ranks_when_others_are_lost() {
    let spec = "sgd:lr=1;dim=2,mode=sync";
    let lose = |world: &mut World, lost: u32| {
        let mut left = view(4, 2, Phase::Running);
        left.members.retain(|member| member.index != lost);
        world.node.handle_member(MemberEvent::View(left));
        world.settle();
    };
    let mut world = World::of(4);
    let waits = world.begin(0, spec, push_of(&[5], &[1.0, 2.0], 0));
    lose(&mut world, 1);
    assert_eq!(world.missing(waits), [2, 3]);

    let mut world = World::of(4);
    let pushes = [1, 2, 3].map(|rank| world.begin(rank, spec, push_of(&[5], &[1.0, 2.0], u64::from(rank / 3))));
    lose(&mut world, 0);
    for exchange in pushes {
        let error = world.outcome(exchange).unwrap().unwrap_err().to_string();
        assert!(error.contains("worker 3 pushes for step 1, and worker 1 for step 0"), "{error}");
    }
}

#[test]
fn who_is_lost_is_waited_for_no_more() {
    let mut world = World::of(3);
    let spec = "sgd:lr=1;dim=2,mode=sync";
    let first = world.begin(0, spec, push_of(&[5], &[1.0, 2.0], 0));
    let second = world.begin(1, spec, push_of(&[5], &[3.0, 4.0], 0));
    world.node.handle_member(MemberEvent::View(view(2, 2, Phase::Running)));
    world.settle();
    assert_eq!([first, second].map(|exchange| world.outcome(exchange)), [Some(Ok(Vec::new())), Some(Ok(Vec::new()))]);
}

#[test]
fn a_server_that_drains_completes_the_round_that_others_began() {
    let mut world = World::of(2);
    let spec = "sgd:lr=1;dim=2,mode=sync";
    let first = world.begin(0, spec, push_of(&[5], &[1.0, 2.0], 0));
    world.node.handle_drain();
    let second = world.begin(1, spec, push_of(&[5], &[3.0, 4.0], 0));
    assert_eq!([first, second].map(|exchange| world.outcome(exchange)), [Some(Ok(Vec::new())), Some(Ok(Vec::new()))]);
    let next = world.begin(0, spec, push_of(&[5], &[1.0, 2.0], 1));
    assert!(world.outcome(next).unwrap().unwrap_err().to_string().contains("draining"));
    assert!(world.node.is_drained());
}

#[test]
fn nobody_pulls_who_is_too_far_ahead_of_the_slowest() {
    let mut world = World::of(2);
    let spec = "sgd:lr=1;dim=2,mode=ssp,ahead=1";
    let pull = |world: &mut World, rank, round| {
        world.begin(rank, spec, (header(RowAction::Pull, &[5], round), bytes_of(&[5])))
    };
    for round in 0..2 {
        let push = world.begin(0, spec, push_of(&[5], &[1.0, 1.0], 2 * round));
        assert_eq!(world.outcome(push), Some(Ok(Vec::new())));
        let pulled = pull(&mut world, 0, 2 * round + 1);
        let is_early = round == 1;
        assert_eq!(world.outcome(pulled).is_none(), is_early);
        if is_early {
            let slow = world.begin(1, spec, push_of(&[5], &[2.0, 2.0], 0));
            assert_eq!(world.outcome(slow), Some(Ok(Vec::new())));
            assert_eq!(floats_of(&world.outcome(pulled).unwrap().unwrap()), [-4.0, -4.0]);
        }
    }
    let slow = pull(&mut world, 1, 1);
    assert!(world.outcome(slow).is_some(), "the slowest waits for nobody");
}

#[test]
fn rows_travel_in_the_form_of_the_table() {
    let mut world = World::of(1);
    let spec = "sgd:lr=1;dim=2,codec=int8";
    // A scale of 1, and two whole numbers of it, as of an independent script.
    let gradient = [1.0f32.to_le_bytes().as_slice(), &[127, 0xf6]].concat();
    let body = [bytes_of(&[5]), gradient].concat();
    let push = world.begin(0, spec, (header(RowAction::Push, &[5], 0), body));
    assert_eq!(world.outcome(push), Some(Ok(Vec::new())));
    let look = world.begin(0, spec, (header(RowAction::Look, &[5], 1), bytes_of(&[5])));
    let row = world.outcome(look).unwrap().unwrap();
    assert_eq!(row, [1.0f32.to_le_bytes().as_slice(), &[0x81, 10]].concat());
    let odd = [bytes_of(&[5]), f32::NAN.to_le_bytes().to_vec(), vec![1, 1]].concat();
    let push = world.begin(0, spec, (header(RowAction::Push, &[5], 2), odd));
    assert!(world.outcome(push).unwrap().unwrap_err().to_string().contains("not finite"));
}

#[test]
fn nothing_is_left_of_a_name_that_ended() {
    let mut world = World::of(1);
    world.pull(0, 0, &[1, 2, 3]);
    let open = world.open(0, push_of(&[5], &[1.0; 2], 1).0);
    world.node.handle_member(MemberEvent::Ended { keys: vec![part().key], below: 1 });
    world.settle();
    assert!(world.outcome(open).is_some_and(|outcome| outcome.is_err()));
    assert_eq!((world.booked(), world.store.rows().len()), (0, 0));
}

#[test]
fn a_scan_that_has_more_pages_is_booked_and_given_back_at_its_end_or_when_its_worker_leaves() {
    let mut world = World::of(2);
    let ids: Vec<u64> = (0..200).collect();
    world.pull(0, 0, &ids);
    let booked = world.booked();
    let front = world.scanned(1, 0, RowAction::Changed, 400, &begin(None)).unwrap();
    assert!(front.next > 0 && world.booked() >= booked + 200 * 16, "a copy of all rows may be needed");
    world.push(0, 1, &ids, &[1.0; 400]).unwrap();
    let next = |cursor| Next { life: 3, version: front.version, cursor }.encode();
    let second = world.scanned(1, 1, RowAction::Page, 400, &next(front.next)).unwrap();
    assert_eq!((second.version, second.life), (front.version, 3));
    world.scanned(1, 2, RowAction::Page, 400, &next(RowAction::END)).unwrap();
    assert_eq!(world.booked(), booked);
    world.scanned(1, 3, RowAction::Changed, 400, &begin(None)).unwrap();
    assert!(world.booked() > booked);
    world.node.handle_member(MemberEvent::View(view(1, 2, Phase::Running)));
    world.settle();
    assert_eq!(world.booked(), booked, "nobody reads on");
}

#[test]
fn a_scan_for_which_there_is_no_memory_is_refused_and_so_is_one_of_another_life() {
    let mut world = World::with(1, |config| config.memory_bytes_max = 800 << 10);
    let ids: Vec<u64> = (0..10_000).collect();
    ids.chunks(1000).zip(0..).for_each(|(ids, round)| drop(world.pull(0, round, ids)));
    let booked = world.booked();
    let refused = world.scanned(0, 9, RowAction::Changed, 400, &begin(None)).unwrap_err();
    assert_eq!((refused.code(), world.booked()), (Code::ResourceExhausted, booked));
    let mut world = World::of(1);
    world.push(0, 0, &[5], &[1.0; 2]).unwrap();
    let refused = world.scanned(0, 1, RowAction::Changed, 400, &begin(Some((9, 0)))).unwrap_err();
    assert!(matches!(&refused, Error::FullResyncNeeded { .. }), "{refused}");
}

#[test]
fn a_restore_that_comes_again_is_not_done_again() {
    let mut world = World::of(1);
    let header = world.header(RowAction::Restore, &[5], 1);
    let body =
        [&bytes_of(&[5])[..], &7u32.to_le_bytes(), &2f32.to_le_bytes(), &3f32.to_le_bytes(), &4f32.to_le_bytes()];
    for _ in 0..2 {
        let exchange = world.open(0, header);
        world.bring(exchange, &body.concat());
        assert_eq!(world.outcome(exchange), Some(Ok(Vec::new())));
        let version = world.scanned(0, 1, RowAction::Changed, 400, &begin(None)).unwrap().version;
        assert_eq!(version, 1);
    }
    assert_eq!(world.pull(0, 2, &[5]), [3.0, 4.0]);
}

struct World {
    node: Node,
    store: Store,
    exchanges: u64,
    routes: BTreeMap<ExchangeId, Route>,
    served: VecDeque<Served>,
    answers: BTreeMap<ExchangeId, (Vec<u8>, Option<u32>)>,
    rejected: BTreeMap<ExchangeId, Error>,
    /// For which workers the store said that uses wait: the use that began to wait, the known ranks, and how many workers.
    waits: Vec<(Option<ExchangeId>, Vec<u32>, u32)>,
    /// The number of the latest of them.
    change: u64,
}

impl World {
    fn of(workers: u32) -> Self {
        Self::with(workers, |_| {})
    }

    fn with(workers: u32, change: impl FnOnce(&mut NodeConfig)) -> Self {
        let mut config = NodeConfig { block_bytes_max: 8, block_bytes_min: 8, ..config() };
        change(&mut config);
        let resources =
            SumResources { kernels: Kernels::portable(), pool: Pool::new(), copies: Copies::default(), defect: None };
        let mut world = Self {
            node: Node::new(config),
            store: Store::new(resources).saying_waits(true),
            exchanges: 0,
            routes: BTreeMap::new(),
            served: VecDeque::new(),
            answers: BTreeMap::new(),
            rejected: BTreeMap::new(),
            waits: Vec::new(),
            change: 0,
        };
        world.node.handle_member(MemberEvent::View(view(workers, 1, Phase::Running)));
        (0..workers).for_each(|rank| world.node.handle_link_up(LinkId(rank.into()), node(rank)));
        world.settle();
        world
    }

    fn header(&self, action: RowAction, ids: &[u64], round: u64) -> Rows {
        header(action, ids, round)
    }

    fn open(&mut self, rank: u32, header: Rows) -> ExchangeId {
        self.open_any(rank, Request::Rows(header))
    }

    /// Opens an exchange of a table, and brings all of its body.
    fn begin(&mut self, rank: u32, spec: &str, (header, body): (Rows, Vec<u8>)) -> ExchangeId {
        let exchange = self.open(rank, Rows { spec: spec.parse().unwrap(), ..header });
        self.bring(exchange, &body);
        exchange
    }

    fn open_any(&mut self, rank: u32, header: Request) -> ExchangeId {
        self.exchanges += 1;
        let exchange = ExchangeId(self.exchanges);
        let now = Time::ZERO + Duration::from_secs(1);
        self.node.handle_opened(now, LinkId(rank.into()), exchange, &header);
        self.settle();
        exchange
    }

    fn bring(&mut self, exchange: ExchangeId, bytes: &[u8]) {
        let Some(route) = self.routes.get(&exchange).copied() else { return };
        let mut events = Vec::new();
        self.store.receive(route, exchange, &[bytes], &mut |event| events.push(event));
        self.hear(events);
        self.settle();
    }

    fn tear(&mut self, exchange: ExchangeId) {
        self.answers.remove(&exchange);
        self.node.handle_torn(exchange);
        self.settle();
    }

    /// The end of an exchange, which reaches its worker; `None` if it has none.
    fn outcome(&mut self, exchange: ExchangeId) -> Option<Result<Vec<u8>, Error>> {
        match self.rejected.get(&exchange) {
            Some(error) => Some(Err(error.clone())),
            None if self.answers.contains_key(&exchange) => Some(Ok(self.taken(exchange).0)),
            None => None,
        }
    }

    /// Lets an exchange wait for too long. Returns the ranks of the workers that are missing, as its error has them.
    fn missing(&mut self, waits: ExchangeId) -> Vec<u32> {
        assert_eq!(self.outcome(waits), None);
        let due = self.node.poll_timeout().expect("somebody waits");
        self.node.handle_timeout(due);
        self.settle();
        let Some(Err(Error::Stalled { missing, .. })) = self.outcome(waits) else { panic!("{waits:?}") };
        missing.into_iter().map(|worker| worker.0).collect()
    }

    fn taken(&mut self, exchange: ExchangeId) -> (Vec<u8>, u32) {
        let (body, crc) = self.answers.remove(&exchange).expect("it was answered");
        self.node.handle_answered(exchange);
        self.settle();
        (body, crc.expect("an answer is given whole"))
    }

    fn counts(&mut self, exchange: ExchangeId) -> Vec<u64> {
        let body = self.outcome(exchange).unwrap().unwrap();
        body.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
    }

    /// The front of the page that comes.
    fn scanned(&mut self, rank: u32, round: u64, action: RowAction, most: u64, body: &[u8]) -> Result<Front, Error> {
        let exchange = self.open(rank, Rows { ids: most, ..header(action, &[], round) });
        self.bring(exchange, body);
        let page = self.outcome(exchange).expect("a scan has an answer")?;
        Ok(Front::decode(&page, &SPEC.parse().unwrap(), false).unwrap().0)
    }

    fn pull(&mut self, rank: u32, round: u64, ids: &[u64]) -> Vec<f32> {
        let exchange = self.open(rank, header(RowAction::Pull, ids, round));
        self.bring(exchange, &bytes_of(ids));
        floats_of(&self.outcome(exchange).unwrap().unwrap())
    }

    fn push(&mut self, rank: u32, round: u64, ids: &[u64], gradients: &[f32]) -> Result<Vec<u8>, Error> {
        let (header, body) = push_of(ids, gradients, round);
        let exchange = self.open(rank, header);
        self.bring(exchange, &body);
        self.outcome(exchange).expect("the push has an end")
    }

    fn booked(&self) -> u64 {
        self.node.progress().bytes_in_flight
    }

    fn settle(&mut self) {
        loop {
            while let Some(command) = self.node.next_command() {
                self.carry_out(command);
            }
            let Some(served) = self.served.pop_front() else { return };
            self.node.handle_served(&served);
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Step(work) => {
                if let Some((exchange, route)) = work.receives() {
                    self.routes.insert(exchange, route);
                }
                let mut events = Vec::new();
                self.store.step(work, &mut |event| events.push(event));
                self.hear(events);
            }
            Command::Unroute { exchange } => assert!(self.routes.remove(&exchange).is_some(), "a route ends once"),
            Command::Reject { exchange, error, .. } => {
                self.answers.remove(&exchange);
                assert!(self.rejected.insert(exchange, error).is_none(), "an exchange ends once");
            }
            Command::Grant { .. } | Command::Short { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn hear(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Served(served) => self.served.push_back(served),
                Event::Waits(Waits { held, missing, change, .. }) => {
                    assert!(std::mem::replace(&mut self.change, change) < change);
                    self.waits.push((held, missing.ranks().collect(), missing.count));
                }
                Event::Send(Outgoing::Answer { exchange, header: Response::Rows(_) }) => {
                    assert!(self.answers.insert(exchange, (Vec::new(), None)).is_none(), "answered once");
                }
                Event::Send(Outgoing::Block { exchange, block }) => {
                    self.answers.get_mut(&exchange).expect("it was begun").0.extend_from_slice(&block);
                }
                Event::Send(Outgoing::End { exchange, checksum }) => {
                    self.answers.get_mut(&exchange).expect("it was begun").1 = Some(checksum);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn header(action: RowAction, ids: &[u64], round: u64) -> Rows {
    Rows {
        target: Target { epoch: EPOCH, part: part(), round: Round(round) },
        action,
        urgency: 0,
        spec: SPEC.parse().unwrap(),
        shards: Shards::ALL,
        step: round,
        ids: ids.len() as u64,
        checksum: None,
    }
}

fn push_of(ids: &[u64], gradients: &[f32], round: u64) -> (Rows, Vec<u8>) {
    let gradients: Vec<u8> = gradients.iter().flat_map(|number| number.to_le_bytes()).collect();
    (header(RowAction::Push, ids, round), [bytes_of(ids), gradients].concat())
}

fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn bytes_of(ids: &[u64]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

fn begin(since: Option<(u64, u64)>) -> [u8; 32] {
    Begin { life: 3, since, with_state: false }.encode()
}

fn part() -> PartId {
    PartId { key: TensorKey(7), index: 0 }
}
