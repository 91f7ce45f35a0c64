//! The specification of checkpoints on a server, one behaviour a test.

use gradlane_core::cluster::MemberEvent;
use gradlane_core::error::{Code, Error};
use gradlane_core::types::{
    Access, ClockKey, ClockStep, Closing, DType, Half, Mode, Order, PartId, PartLayout, Piece, Plan, ServerId, Span,
    Task, TensorKind, TensorSpec, Update, Version, WorkerId, Written,
};

use super::tests::{INIT, World, floats, rule, to_do};
use crate::checkpoint::FrozenPart;
use crate::node::command::{Archived, Errand};

const STEP: Access = Access::Push(Update::Step);
const ADD: Access = Access::Push(Update::Add);
const BYTES: u64 = 16;

#[test]
fn a_part_is_frozen_as_it_is_and_its_memory_is_booked_until_it_is_written() {
    let mut world = World::of(1);
    world.call(0, INIT, 0, [1.0; 4]);
    let part = to_do(INIT, 0).target.part;
    world.order(1, save(part));
    assert_eq!(world.booked(), 2 * BYTES);
    world.call(0, ADD, 1, [2.0; 4]);
    let frozen = &world.frozen[&(1, part)];
    let bytes: Vec<u8> = frozen.blocks.iter().flat_map(|block| block.to_vec()).collect();
    assert_eq!(bytes, floats([1.0; 4]), "not what came later");
    let [archive] = &world.archives[..] else { panic!("{:?}", world.archives) };
    assert_eq!(archive.errand, Errand::Save { checkpoint: 7, versions: vec![Version(1)] });
    assert_eq!(world.obeyed, []);
    world.archived(1, Ok((written(), Vec::new())));
    assert_eq!((world.booked(), &world.obeyed[..]), (BYTES, &[(1, Ok(written()))][..]));
    world.order(1, save(part));
    assert_eq!((world.obeyed.len(), world.archives.len()), (2, 1), "said again, and not done again");
}

#[test]
fn what_cannot_be_saved_is_named() {
    let mut world = World::of(1);
    let part = to_do(INIT, 0).target.part;
    world.order(1, save(part));
    assert!(world.refusal().to_string().starts_with("parameter w has no value"));
    world.call(0, INIT, 0, [1.0; 4]);
    world.order(2, save(part));
    world.order(3, save(part));
    assert!(world.refusal().to_string().starts_with("a server still does order 2"));
    let mut small = World::with(1, |config| config.memory_bytes_max = 2 * BYTES - 1);
    small.call(0, INIT, 0, [1.0; 4]);
    small.order(1, save(part));
    assert_eq!(small.refusal().code(), Code::ResourceExhausted);
    assert_eq!(small.booked(), BYTES, "the value is not disturbed");
}

#[test]
fn what_was_read_takes_the_place_of_the_value_when_the_coordinator_says_so() {
    let mut world = World::of(1);
    world.call(0, INIT, 0, [1.0; 4]);
    let part = to_do(INIT, 0).target.part;
    world.order(1, read(part));
    assert_eq!(world.booked(), 2 * BYTES);
    world.read(1, part, 5.0);
    assert_eq!(world.pull(0, 1), (1, vec![1.0; 4]), "not yet");
    world.order(1, apply());
    assert_eq!(world.pull(0, 2), (9, vec![5.0; 4]), "as it was saved");
    assert_eq!(world.booked(), BYTES);
    let told = world.obeyed.len();
    world.order(1, apply());
    assert_eq!(world.obeyed.len(), told + 1, "said again, and not done again");
    assert_eq!(world.pull(0, 3), (9, vec![5.0; 4]));
    world.order(2, Task::Read { directory: "d".to_owned(), with_state: true, plan: plan(part) });
    world.read(2, part, 6.0);
    world.order(2, apply());
    assert_eq!(world.pull(0, 4), (10, vec![6.0; 4]), "versions never go back");
}

#[test]
fn a_part_without_a_value_gets_that_of_the_checkpoint_with_its_version() {
    let mut world = World::of(1);
    let part = to_do(INIT, 0).target.part;
    world.order(1, read(part));
    world.read(1, part, 5.0);
    world.order(1, apply());
    assert_eq!(world.pull(0, 0), (9, vec![5.0; 4]));
    world.call(0, INIT, 1, [1.0; 4]);
    assert_eq!(world.pull(0, 2), (9, vec![5.0; 4]), "an init changes no value");
    assert_eq!(world.booked(), BYTES);
}

#[test]
fn what_was_read_and_is_not_wanted_goes() {
    for cancelled_early in [true, false] {
        let mut world = World::of(1);
        let part = to_do(INIT, 0).target.part;
        world.order(1, read(part));
        if cancelled_early {
            world.order(1, Task::Cancel);
            assert_eq!(world.booked(), BYTES, "it is under way");
        }
        world.read(1, part, 5.0);
        world.order(1, Task::Cancel);
        world.order(1, apply());
        assert_eq!((world.booked(), world.store.values().len()), (0, 0));
    }
}

#[test]
fn a_name_that_ends_while_it_is_read_is_not_made_again() {
    for read_first in [true, false] {
        let mut world = World::of(1);
        world.call(0, INIT, 0, [1.0; 4]);
        let part = to_do(INIT, 0).target.part;
        world.order(1, read(part));
        let ends = MemberEvent::Ended { keys: vec![part.key], below: part.index + 1 };
        if read_first {
            world.read(1, part, 5.0);
            world.member(ends);
        } else {
            world.member(ends);
            world.read(1, part, 5.0);
        }
        world.order(1, apply());
        assert_eq!((world.booked(), world.store.values().len()), (0, 0));
    }
}

#[test]
fn a_round_that_has_begun_is_not_read_over_and_rounds_go_on_from_the_step_that_was_saved() {
    let mut world = World::of(1);
    let mode = Mode { clock: Some(ClockKey(7)), ..Mode::ASYNC };
    let mode = Mode { pace: "sync".parse::<Mode>().unwrap().pace, ..mode };
    let by = |access, round, clock_at| gradlane_core::wire::Use {
        rule: rule("sgd:lr=1,schedule=step,every=2,gamma=0.5"),
        mode,
        clock_at,
        ..to_do(access, round)
    };
    let part = to_do(INIT, 0).target.part;
    let call = |world: &mut World, access, round, clock_at, value: f32| {
        let exchange = world.open(0, by(access, round, clock_at));
        world.bring(exchange, &floats([value; 4]));
        world.outcome(exchange)
    };
    call(&mut world, INIT, 0, 0, 10.0);
    call(&mut world, STEP, 1, 1, 1.0);
    world.order(1, read(part));
    let refused = world.refusal().to_string();
    assert!(refused.starts_with("round 1 has begun: worker 0 has brought a gradient of w"), "{refused}");
    let close = |round| {
        let half = Half::Workers { workers: [WorkerId(0)].into_iter().collect(), clips: false, samples: 0 };
        MemberEvent::Close(Closing { clock: ClockKey(7), round, half })
    };
    world.member(close(1));
    world.order(2, save(part));
    world.archived(2, Ok((written(), Vec::new())));
    let saved_at = vec![ClockStep { clock: ClockKey(7), step: 1, samples: 0 }];
    assert_eq!(world.obeyed.last(), Some(&(2, Ok(Written { rounds: saved_at, ..written() }))));
    world.order(3, read(part));
    world.read(3, part, 10.0);
    // Four steps were done when that was saved.
    world.order(3, Task::Apply { bases: vec![ClockStep { clock: ClockKey(7), step: 3, samples: 0 }] });
    call(&mut world, STEP, 2, 2, 1.0);
    world.member(close(2));
    let pull = world.open(0, by(Access::Pull, 3, 2));
    assert_eq!(world.outcome(pull).value().1, vec![10.0 - 0.25; 4], "after four steps the rate is a quarter");
}

fn plan(part: PartId) -> Plan {
    let tensor = TensorSpec::parameter("w", DType::F32, vec![4]);
    let layout = PartLayout {
        part,
        dtype: DType::F32,
        kind: TensorKind::PLAIN_PARAMETER,
        server: ServerId(0),
        pieces: vec![Piece { tensor: tensor.key(), span: Span { offset: 0, bytes: BYTES } }],
    };
    Plan { tensors: vec![tensor], parts: vec![layout] }
}

fn save(part: PartId) -> Task {
    Task::Save { directory: "d".to_owned(), checkpoint: 7, plan: plan(part) }
}

fn read(part: PartId) -> Task {
    Task::Read { directory: "d".to_owned(), with_state: true, plan: plan(part) }
}

fn apply() -> Task {
    Task::Apply { bases: Vec::new() }
}

fn written() -> Written {
    Written { bytes: BYTES, ..Written::default() }
}

impl World {
    fn order(&mut self, number: u64, task: Task) {
        self.member(MemberEvent::Order(Order { number, task }));
    }

    fn member(&mut self, event: MemberEvent) {
        self.node.handle_member(event);
        self.settle();
    }

    fn archived(&mut self, order: u64, outcome: gradlane_core::Result<(Written, Vec<(PartId, Version)>)>) {
        self.node.handle_archived(Archived { order, outcome });
        self.settle();
    }

    /// A part was read, with this value and version 9.
    fn read(&mut self, order: u64, part: PartId, value: f32) {
        let bytes = floats([value; 4]);
        let blocks = bytes.chunks(8).map(|bytes| {
            let mut block = gradlane_core::mem::Pool::new().lease(bytes.len());
            block.copy_from_slice(bytes);
            block.freeze()
        });
        let read = FrozenPart { version: Version(9), blocks: blocks.collect(), optimizer: None };
        self.store.take_read(part, order, read);
        self.archived(order, Ok((written(), vec![(part, Version(9))])));
    }

    /// The last thing that the coordinator was told, which is a refusal.
    fn refusal(&mut self) -> Error {
        self.obeyed.pop().expect("something was told").1.unwrap_err()
    }
}
