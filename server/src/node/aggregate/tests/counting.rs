//! When a contribution counts, and what a sum is made of.

use super::*;

#[test]
fn a_round_begins_with_its_first_push() {
    let mut world = World::of(2);
    let exchange = world.open(1, header(0));
    let begin = Step::Begin(SumSpec {
        bytes: 16,
        dtype: DType::F32,
        codec: CodecSpec::PLAIN,
        op: Op::Sum,
        senders: vec![WorkerId(0), WorkerId(1)],
        order: Order::Arrival,
        block_bytes: 0,
    });
    let upload = Upload { body: Body::plain(16), weight: 1.0, checksum: None, landed: 0 };
    assert_eq!(world.commands(), [step(begin), step(Step::Receive { worker: WorkerId(1), exchange, upload })]);
}

#[test]
fn an_encoded_part_is_added_in_f32_and_its_sum_travels_as_its_contributions_do() {
    let mut world = World::of(2);
    let coded = halved(CodecSpec::F16, header(0));
    world.push(0, coded.clone());
    assert_eq!(world.progress().bytes_in_flight, 16, "the sum grows in f32");
    world.push(1, coded);
    let commands = world.commands();
    assert!(steps(&commands).any(|step| matches!(step, Step::Begin(SumSpec { codec: CodecSpec::F16, bytes: 16, .. }))));
    let bodies: Vec<(u64, Body)> = steps(&commands)
        .filter_map(|step| match step {
            Step::Answer { header, .. } => Some((header.part_bytes, header.body)),
            _ => None,
        })
        .collect();
    assert_eq!(bodies, [(16, Body { bytes: 8, codec: CodecSpec::F16, refused: false }); 2]);
    assert_eq!(world.progress().bytes_in_flight, 8, "the sum is kept as it travels");
}

#[test]
fn contributions_that_vary_in_length_may_be_plain_and_are_all_counted_before_anything_is_answered() {
    let mut world = World::of(3);
    let first = world.open(0, sparse(Some(6), header(0)));
    world.open(1, sparse(None, header(0)));
    let third = world.open(2, sparse(Some(11), header(0)));
    assert_eq!(world.progress().bytes_in_flight, 4 * 16, "the sum, and three bodies that are as long as they can be");
    world.whole(first);
    world.whole(third);
    assert_eq!(answered(&world.commands()), []);
    world.whole(ExchangeId(first.0 + 1));
    let commands = world.commands();
    assert_eq!((answered(&commands).len(), seals(&commands)), (3, 1));
    assert_eq!(world.progress().bytes_in_flight, 16, "the sum, as long as it can be");
}

#[test]
fn a_sum_that_crosses_a_network_has_small_blocks() {
    for (machines, expected) in [([1, 1], 64), ([1, 2], 8)] {
        let mut world = World::with(2, |config| (config.block_bytes_min, config.block_bytes_max) = (8, 64));
        let mut view = view(2, 2, Phase::Running);
        view.members.iter_mut().zip(machines).for_each(|(member, machine)| member.process.machine = MachineId(machine));
        world.follow(view);
        let mut header = header(0);
        header.target.epoch.number = 2;
        world.open(0, header);
        let commands = world.commands();
        let found = steps(&commands).find_map(|step| match step {
            Step::Begin(spec) => Some(spec.block_bytes),
            _ => None,
        });
        assert_eq!(found, Some(expected), "{machines:?}");
    }
}

#[test]
fn a_sum_is_sealed_once_every_worker_was_counted_and_all_are_answered() {
    let mut world = World::of(2);
    let first = world.push(0, header(0));
    assert_eq!(seals(&world.commands()), 0);
    let second = world.open(1, header(0));
    let commands = world.commands();
    assert_eq!((answered(&commands), seals(&commands)), (vec![first, second], 0), "some of it is missing");
    world.whole(second);
    assert_eq!(world.commands(), [step(Step::Seal)]);
}

#[test]
fn the_answer_echoes_the_round_and_says_what_was_summed() {
    let mut world = World::beginning_at(7);
    world.push(0, Contribute { op: Op::Mean, ..header(7) });
    let commands = world.commands();
    let header = steps(&commands).find_map(|step| match step {
        Step::Answer { header, .. } => Some(header.clone()),
        _ => None,
    });
    let header = header.expect("an answer");
    assert_eq!((header.target.epoch, header.target.round), (EPOCH, Round(7)));
    assert_eq!((header.part_bytes, header.body), (16, Body::plain(16)));
    assert_eq!((header.contributors, header.divisor), (Contributors::Due, 1.0));
}

#[test]
fn the_checksum_that_a_header_announces_is_for_whoever_makes_the_sum() {
    let mut world = World::of(1);
    world.open(0, checked(7, header(0)));
    let commands = world.commands();
    let uploads: Vec<Option<u32>> = steps(&commands)
        .filter_map(|step| if let Step::Receive { upload, .. } = step { Some(upload.checksum) } else { None })
        .collect();
    assert_eq!(uploads, [Some(7)]);
}

#[test]
fn who_sends_a_checksum_gets_one_and_so_does_who_could_not_send_any() {
    let summed = checked(7, header(0));
    for (first, second, checked) in
        [(summed.clone(), header(0), false), (header(0), summed, true), (broadcast(0), receiver(0), true)]
    {
        let mut world = World::of(2);
        world.push(0, first);
        let exchange = world.open(1, second.clone());
        let commands = world.commands();
        let answer = steps(&commands).find_map(|step| match step {
            Step::Answer { header, exchange: to, .. } if *to == exchange => Some(header.clone()),
            _ => None,
        });
        assert_eq!(answer.map(|answer| answer.checksum), Some(checked), "{second:?}");
    }
}

#[test]
fn a_deterministic_sum_is_added_in_the_order_of_the_ranks() {
    let mut world = World::with(2, |config| config.deterministic = true);
    world.open(1, header(0));
    let commands = world.commands();
    assert!(steps(&commands).any(|step| matches!(step, Step::Begin(SumSpec { order: Order::Rank, .. }))));
}

#[test]
fn a_part_without_bytes_is_counted_at_once() {
    let mut world = World::of(2);
    let one = world.open(0, sized(0, header(0)));
    let two = world.open(1, sized(0, header(0)));
    let commands = world.commands();
    assert_eq!((received(&commands), answered(&commands), seals(&commands)), (vec![], vec![one, two], 1));
}

#[test]
fn a_mean_is_divided_by_the_number_of_contributors() {
    let mut world = World::of(3);
    world.everybody(Contribute { op: Op::Mean, ..header(0) });
    assert!(world.commands().contains(&step(Step::Publish { divisor: 3.0, residual: None })));
}

#[test]
fn a_weighted_mean_is_divided_by_the_sum_of_the_weights() {
    let mut world = World::of(2);
    world.push(0, weighted(0.0));
    world.push(1, weighted(2.5));
    assert!(
        world.commands().contains(&step(Step::Publish { divisor: 2.5, residual: None })),
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
fn bytes_that_changed_on_their_way_have_spoiled_the_sum_for_everybody() {
    let mut world = World::of(2);
    let damaged = world.open(0, header(0));
    world.open(1, header(0));
    world.receipt(damaged, Receipt::Damaged);
    let commands = world.commands();
    assert_eq!(rejected(&commands), [Code::DataLoss; 2]);
    assert!(commands.contains(&drops(0)));
    world.open(1, header(0));
    assert_eq!(rejected(&world.commands()), [Code::DataLoss], "also for who asks again");
}
