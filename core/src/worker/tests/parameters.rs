//! Uses of parameters.

use super::*;
use crate::pipeline::{Duty, Route};
use crate::types::{Access, Effect, Update, Version};
use crate::wire::{Sent, Use};

const ADD: Update = Update::Add;

#[test]
fn each_use_says_what_the_server_is_to_do_and_the_handle_hears_the_version() {
    for (access, sent, receives) in [
        (Access::Init, Sent::Whole { checksum: None }, false),
        (Access::Push(ADD), Sent::Whole { checksum: None }, false),
        (Access::Pull, Sent::Nothing { checked: false }, true),
        (Access::PushPull(Update::Assign), Sent::Whole { checksum: None }, true),
    ] {
        let mut world = World::joined();
        let id = world.ask(access);
        world.declare_all();
        let step = world.worker.take(world.now, Stage::Push).unwrap();
        let task = step.task.id;
        let Action::Push { header: Request::Use(header), landing, .. } = step.action else { panic!("{step:?}") };
        assert_eq!((header.access, header.sent, header.part_bytes, header.target.round.0), (access, sent, 16, 0));
        world.worker.end_push(world.now, task);
        assert!(world.worker.scheduler.is_last(task));
        assert_eq!(landing, if receives { Landing::InPlace } else { Landing::Nowhere });
        world.worker.handle_pulled(world.now, task, Exchanged::Value(Effect::accepted(Version(4))));
        let end = Command::Resolve {
            submission: id,
            tensors: 1,
            submitted: world.now,
            effect: Some(Effect::accepted(Version(4))),
            outcome: Ok(()),
        };
        assert_eq!(world.commands()[..2], [Command::Release(task), end]);
    }
}

#[test]
fn uses_of_one_parameter_go_one_after_the_other_in_their_order() {
    let mut world = World::joined();
    for access in [Access::Init, Access::Push(ADD), Access::Pull] {
        world.ask(access);
        world.declare_all();
    }
    for (round, access) in [Access::Init, Access::Push(ADD), Access::Pull].into_iter().enumerate() {
        let (task, header) = world.pushed();
        assert_eq!((header.target.round.0, header.access), (round as u64, access));
        assert_eq!(world.worker.take(world.now, Stage::Push), None, "the next one waits for its answer");
        world.worker.handle_pulled(world.now, task, Exchanged::Value(Effect::accepted(Version(1))));
        world.commands();
    }
}

#[test]
fn a_repeat_keeps_its_round_and_brings_the_change_unless_the_value_has_landed_on_it() {
    for (in_place, sent) in [(false, Sent::Whole { checksum: None }), (true, Sent::Nothing { checked: false })] {
        let mut world = World::joined();
        world.ask_with(Access::PushPull(ADD), in_place);
        world.declare_all();
        let (task, first) = world.pushed();
        let torn = Exchanged::Torn { error: lost_link(), landed: 8 };
        world.worker.handle_pulled(world.now, task, torn);
        world.commands();
        world.now = world.now + SECOND;
        world.worker.handle_timeout(world.now);
        world.commands();
        let (_, again) = world.pushed();
        assert_eq!((again.target.round, again.sent), (first.target.round, sent), "in place: {in_place}");
    }
}

#[test]
fn a_use_that_nobody_wants_tells_no_server_and_the_next_one_goes() {
    let mut world = World::joined();
    let first = world.ask(Access::Push(ADD));
    world.declare_all();
    world.ask(Access::Pull);
    world.worker.cancel(world.now, first);
    assert!(world.commands().contains(&resolved(first, Err(Error::Cancelled))));
    let (_, header) = world.pushed();
    assert_eq!((header.access, header.target.round.0), (Access::Pull, 1), "and no withdrawal");
}

#[test]
fn ranks_of_one_machine_talk_to_the_server_each_by_itself_and_connect_for_the_first_parameter() {
    let mut view = on_one_machine();
    let mut server = view.members[0].clone();
    (server.process.role, server.index) = (Role::Server, 0);
    server.process.addresses = vec![Address::new(Scheme::Quic, "there:1")];
    view.members.push(server);
    let mut world = World::joined_in(view);
    assert_eq!(world.commands(), [], "sums need no server here");
    world.ask(Access::Pull);
    let commands = world.commands();
    let [Command::Dial(Dial { server, attempt, .. }), Command::Declare { request, tensors, .. }] = &commands[..] else {
        panic!("{commands:?}")
    };
    let (server, attempt, request, tensors) = (*server, *attempt, *request, tensors.clone());
    world.worker.handle_dialled(world.now, server, attempt, Ok(LinkId(7)));
    world.declared(request, &tensors);
    let (task, header) = world.pushed();
    assert_eq!(header.access, Access::Pull);
    world.worker.handle_pulled(world.now, task, Exchanged::Value(Effect::accepted(Version(1))));
    assert!(world.commands().iter().any(|command| matches!(command, Command::Resolve { outcome: Ok(()), .. })));
}

#[test]
fn on_a_device_a_value_is_staged_both_ways_and_a_push_ends_with_its_answer() {
    let pipeline = World::joined().worker.formation().unwrap().pipeline.clone();
    let stages = |receives| {
        let route = Route::device(Duty::Client { receives });
        let mut stages = vec![pipeline.first(route).unwrap()];
        while let Some(next) = pipeline.after(*stages.last().unwrap(), route) {
            stages.push(next);
        }
        stages
    };
    assert_eq!(stages(true), [Stage::CopyD2H, Stage::Push, Stage::Pull, Stage::CopyH2D]);
    assert_eq!(stages(false), [Stage::CopyD2H, Stage::Push, Stage::Pull]);
}

#[test]
fn a_job_without_servers_keeps_no_parameters() {
    let mut world = World::joined_in(on_one_machine());
    world.ask(Access::Init);
    let commands = world.commands();
    let [Command::Resolve { outcome: Err(Error::FailedPrecondition { what, .. }), .. }] = &commands[..] else {
        panic!("{commands:?}")
    };
    assert!(what.contains("tensor p") && what.contains("no server"), "{what}");
}

#[test]
fn a_name_is_of_one_kind() {
    let mut world = World::joined();
    world.submit("p");
    world.declare_all();
    let id = world.ask(Access::Pull);
    let commands = world.commands();
    let refused = |command: &Command| {
        matches!(command, Command::Resolve { submission, outcome: Err(Error::Mismatch { field, .. }), .. }
            if *submission == id && field == "kind")
    };
    assert!(commands.iter().any(refused), "{commands:?}");
}

fn lost_link() -> Error {
    Error::Unavailable { what: "server 0".to_owned(), cause: "the link broke".to_owned() }
}

impl World {
    fn ask(&mut self, access: Access) -> u64 {
        self.ask_with(access, true)
    }

    fn ask_with(&mut self, access: Access, in_place: bool) -> u64 {
        let spec = TensorSpec::parameter("p", DType::F32, vec![4]);
        let terms = Terms { demand: Demand::Access { access, clock_at: 0 }, timeout: None };
        self.worker.submit(self.now, &spec, Tensor { in_place, ..tensor(&spec, None) }, terms)
    }

    /// Takes the next push, which must be a use of a parameter, and reports its end.
    fn pushed(&mut self) -> (TaskId, Use) {
        let step = self.worker.take(self.now, Stage::Push).expect("a use to push");
        let Action::Push { header: Request::Use(header), .. } = step.action else { panic!("{step:?}") };
        self.worker.end_push(self.now, step.task.id);
        (step.task.id, header)
    }
}
