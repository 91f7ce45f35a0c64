//! Sums that workers bring, because the server that had them was lost.

use gradlane_core::wire::Restore;

use super::*;

#[test]
fn a_sum_that_a_worker_brings_goes_to_those_that_miss_it_as_it_came() {
    let all = [0, 1, 2].map(WorkerId).into_iter().collect::<WorkerSet>();
    let some = [0, 2].map(WorkerId).into_iter().collect::<WorkerSet>();
    let (only, topk_whole) = (Contributors::Only(some.clone()), topk(16, true));
    for (body, own, contributors, said) in [
        (Body::plain(16), Body::plain(16), all, Contributors::Due),
        (half(), half(), some.clone(), only.clone()),
        (topk(6, false), topk_whole, some.clone(), only.clone()),
        (topk_whole, topk(6, false), some, only),
    ] {
        let mut world = World::without_a_server(3);
        let brought = world.bring(0, Restore { body, contributors, ..restore(7) });
        let commands = world.commands();
        let begun = steps(&commands).find_map(|step| if let Step::Begin(spec) = step { Some(spec) } else { None });
        let begun = begun.expect("its bytes have a place");
        assert_eq!((begun.bytes, begun.codec, &begun.senders), (body.bytes, CodecSpec::PLAIN, &vec![WorkerId(0)]));
        assert_eq!((received(&commands), answers(&commands)), (vec![brought], vec![]));
        world.whole(brought);
        let commands = world.commands();
        assert_eq!((answers(&commands), seals(&commands)), (vec![(brought, empty(7))], 1));
        for rank in [1, 2] {
            let contribution = Contribution::First { body: own, checksum: None };
            let asked = world.open(rank, Contribute { op: Op::Mean, contribution, ..header(7) });
            let expected = Sum { body, divisor: 3.0, contributors: said.clone(), ..sum(7) };
            assert_eq!(answers(&world.commands()), [(asked, expected)], "worker {rank}");
        }
    }
}

#[test]
fn who_asks_before_the_sum_is_here_is_asked_to_come_back() {
    let mut world = World::without_a_server(2);
    let brought = world.bring(0, restore(7));
    world.commands();
    world.open(1, mean(7));
    assert_eq!(rejected(&world.commands()), [Code::Unavailable]);
    world.whole(brought);
    world.commands();
    let again = world.open(1, mean(7));
    assert_eq!(answered(&world.commands()), [again]);
}

#[test]
fn a_sum_that_is_brought_again_is_acknowledged_and_not_received() {
    let mut world = World::without_a_server(3);
    let first = world.bring(0, restore(7));
    world.whole(first);
    world.commands();
    for rank in [0, 1] {
        let again = world.bring(rank, restore(7));
        let commands = world.commands();
        assert_eq!((received(&commands), answers(&commands)), (vec![], vec![(again, empty(7))]), "worker {rank}");
        world.node.handle_answered(again);
    }
    assert_eq!((world.progress().bytes_in_flight, world.progress().pending), (8, 1));
}

#[test]
fn a_sum_that_broke_off_or_was_damaged_is_forgotten_and_can_be_brought_again() {
    for round in [0, 7] {
        for (what, receipt) in [("torn", None), ("damaged", Some(Receipt::Damaged)), ("lost", Some(Receipt::Lost))] {
            let mut world = World::without_a_server(2);
            let first = world.bring(0, restore(round));
            world.commands();
            match receipt {
                None => world.torn(first),
                Some(receipt) => world.receipt(first, receipt),
            }
            let commands = world.commands();
            assert!(commands.contains(&drops(round)) && answered(&commands).is_empty(), "{what}: {commands:?}");
            let told = if receipt.is_some() { vec![Code::Unavailable] } else { vec![] };
            assert_eq!((rejected(&commands), world.progress().bytes_in_flight), (told, 0), "{what}");
            let again = world.bring(0, restore(round));
            let commands = world.commands();
            assert_eq!((received(&commands), rejected(&commands)), (vec![again], vec![]), "{what}, round {round}");
            world.whole(again);
            let asked = world.open(1, mean(round));
            assert_eq!(answered(&world.commands()), [again, asked], "{what}, round {round}");
        }
    }
}

#[test]
fn a_worker_that_brings_a_sum_anew_takes_the_place_of_what_brought_it_before() {
    let mut world = World::without_a_server(2);
    let first = world.bring(0, restore(7));
    let second = world.bring(1, restore(7));
    assert_eq!(world.progress().bytes_in_flight, 8, "the first one is gone");
    world.commands();
    world.torn(first);
    world.receipt(first, Receipt::Whole);
    assert_eq!(world.commands(), [], "a late report");
    world.whole(second);
    assert_eq!(answered(&world.commands()), [second]);
}

#[test]
fn a_sum_of_which_no_byte_travels_is_here_at_once() {
    let mut world = World::without_a_server(2);
    let brought = world.bring(0, Restore { part_bytes: 0, body: Body::plain(0), ..restore(7) });
    assert_eq!(answers(&world.commands()), [(brought, empty(7))]);
}

#[test]
fn what_no_worker_brings_that_keeps_to_the_rules_is_refused() {
    let with = |body| Restore { body, ..restore(7) };
    let broadcast = Op::Broadcast { root: WorkerId(0) };
    let stranger = Participants::of([WorkerId(1)].into_iter().collect());
    for (field, header) in [
        ("body length", with(Body::plain(12))),
        ("body length", with(Body { bytes: 16, ..half() })),
        ("encoding", Restore { op: broadcast, ..restore(7) }),
        ("participants", Restore { participants: stranger, ..restore(7) }),
    ] {
        let mut world = World::without_a_server(2);
        world.bring(0, header);
        let commands = world.commands();
        assert_eq!(faults(&commands), [field]);
        assert_eq!((steps(&commands).count(), world.progress().bytes_in_flight), (0, 0));
    }
    let mut world = World::of(2);
    world.bring(0, restore(7));
    assert_eq!(faults(&world.commands()), ["kind"], "no server was lost");
}

#[test]
fn a_sum_of_a_round_that_is_over_or_that_goes_on_here_is_refused() {
    for (what, rounds, workers) in [("over", 7..9, 2), ("open", 7..8, 1)] {
        let mut world = World::without_a_server(2);
        for round in rounds {
            for rank in 0..workers {
                world.push(rank, header(round));
            }
        }
        world.commands();
        world.bring(1, restore(7));
        let commands = world.commands();
        let said = errors(&commands).map(Error::to_string).collect::<Vec<_>>();
        assert!(matches!(&said[..], [said] if said.contains("round 7 is over")), "{what}: {said:?}");
        assert_eq!(steps(&commands).count(), 0, "{what}");
    }
}

#[test]
fn the_memory_of_a_sum_is_booked_when_its_bytes_are_announced_and_given_back_when_all_have_gone_on() {
    let mut world = World::without_a_server(2);
    let brought = world.bring(0, restore(7));
    assert_eq!(world.progress().bytes_in_flight, 8);
    world.whole(brought);
    let late = world.open(1, mean(7));
    assert_eq!(world.progress().bytes_in_flight, 8);
    [brought, late].into_iter().for_each(|exchange| world.node.handle_answered(exchange));
    world.commands();
    let next = [0, 1].map(|rank| world.push(rank, mean(8)));
    let commands = world.commands();
    assert!(commands.contains(&drops(7)), "{commands:?}");
    assert_eq!((answered(&commands), world.progress().bytes_in_flight), (next.to_vec(), 8));
}

#[test]
fn a_sum_for_which_nobody_comes_is_freed_after_a_step_timeout() {
    let mut world = World::without_a_server(2);
    let brought = world.bring(0, restore(7));
    world.whole(brought);
    world.node.handle_answered(brought);
    for _ in 0..3 {
        assert_eq!(world.progress().bytes_in_flight, 8);
        world.pass(Duration::from_secs(30));
    }
    assert_eq!(world.progress().bytes_in_flight, 0);
}

#[test]
fn a_sum_for_which_there_is_no_memory_is_refused_and_fits_later() {
    let mut world = World::without_a_server(2);
    world.node = Node::new(NodeConfig { memory_bytes_max: 20, ..config() });
    world.follow(lost_a_server(2));
    let other = world.open(0, in_part(1, header(0)));
    world.commands();
    world.bring(0, restore(7));
    let commands = world.commands();
    assert_eq!((rejected(&commands), received(&commands)), (vec![Code::ResourceExhausted], vec![]));
    world.torn(other);
    (0..3).for_each(|_| world.pass(Duration::from_secs(30)));
    world.commands();
    let brought = world.bring(0, restore(7));
    assert_eq!(received(&world.commands()), [brought]);
}

#[test]
fn a_part_may_begin_in_any_round_only_if_a_server_was_lost() {
    for round in [7, 1 << 20] {
        let mut world = World::without_a_server(2);
        let exchanges = world.everybody(header(round));
        assert_eq!(answered(&world.commands()), exchanges, "round {round}");
        let next = world.everybody(header(round + 1));
        assert_eq!(answered(&world.commands()), next, "round {round} and on");
    }
    let mut world = World::of(2);
    world.open(0, header(7));
    assert_eq!(rejected(&world.commands()), [Code::Unavailable], "somebody may still come to round 0");
    world.open(0, header(1 << 20));
    assert_eq!(faults(&world.commands()), ["round"]);
}

impl World {
    /// The job has lost a server; this one is left.
    fn without_a_server(workers: u32) -> Self {
        let mut world = Self { node: Node::new(config()), now: Time::ZERO, exchanges: BTreeMap::new() };
        world.follow(lost_a_server(workers));
        world
    }

    /// A worker brings a sum; its header arrives.
    fn bring(&mut self, rank: u32, header: Restore) -> ExchangeId {
        let exchange = ExchangeId(self.exchanges.len() as u64 + 1);
        let id = SlotId { part: header.target.part, round: header.target.round };
        self.exchanges.insert(exchange, (id, WorkerId(rank)));
        self.request(rank, exchange, Request::Restore(header));
        exchange
    }
}

fn lost_a_server(workers: u32) -> View {
    View { formed_servers: 1, ..view(workers, 1, Phase::Running) }
}

/// The mean that workers 0 and 2 made of [`header`], in half as many bytes.
fn restore(round: u64) -> Restore {
    Restore {
        target: target(round),
        dtype: DType::F32,
        op: Op::Mean,
        participants: Participants::ALL,
        part_bytes: 16,
        body: half(),
        checksum: None,
        divisor: 3.0,
        contributors: [0, 2].map(WorkerId).into_iter().collect(),
    }
}

/// What a worker pushes that contributes to it.
fn mean(round: u64) -> Contribute {
    halved(CodecSpec::F16, Contribute { op: Op::Mean, ..header(round) })
}

/// What tells a worker that the sum which it brought is here.
fn empty(round: u64) -> Sum {
    Sum { part_bytes: 0, body: Body::plain(0), ..sum(round) }
}

fn half() -> Body {
    Body { bytes: 8, codec: CodecSpec::F16, refused: false }
}

fn topk(bytes: u64, refused: bool) -> Body {
    Body { bytes, codec: CodecSpec::of(Encoding::TopK), refused }
}

fn answers(commands: &[Command]) -> Vec<(ExchangeId, Sum)> {
    let answer = |step: &Step| match step {
        Step::Answer { exchange, header, .. } => Some((*exchange, header.clone())),
        _ => None,
    };
    steps(commands).filter_map(answer).collect()
}

/// The fields that are wrong, of each exchange that breaks the protocol.
fn faults(commands: &[Command]) -> Vec<String> {
    let field = |error: &Error| match error {
        Error::Protocol { field, .. } => field.clone(),
        other => panic!("{other:?}"),
    };
    errors(commands).map(field).collect()
}
