//! Contributions that are kept until their sums are whole, in jobs that go on without lost workers.

use super::*;
use crate::wire::Contribute;

#[test]
fn a_repeat_offers_what_was_kept_although_a_part_of_the_sum_has_come_and_the_sum_goes_to_its_place_once_it_is_whole() {
    let mut world = World::keeping();
    let spec = spec("w");
    let id = world.submit_declared(&spec, Tensor { in_place: true, ..tensor(&spec, None) });
    for _ in 0..2 {
        let (task, header, landing) = world.push();
        assert!(matches!(header.contribution, Contribution::First { .. }), "{header:?}");
        assert_eq!((landing, world.worker.credit_in_flight()), (Landing::Beside, 16));
        let error = Error::Unavailable { what: "the round".to_owned(), cause: "it restarts".to_owned() };
        world.worker.handle_pulled(world.now, task, Exchanged::Torn { error, landed: 4 });
        assert_eq!(world.worker.credit_in_flight(), 16, "it still has the memory for the sum");
        world.now = world.now + SECOND;
        world.worker.handle_timeout(world.now);
    }
    let (task, _, _) = world.push();
    world.summed(task, Body::plain(16));
    assert_eq!(world.worker.credit_in_flight(), 16);
    let step = world.worker.take(world.now, Stage::Land).unwrap();
    assert_eq!((step.action, step.is_last), (Action::Land, true));
    world.commands();
    world.worker.handle_copied(world.now, task, Ok(()));
    assert_eq!(world.commands(), [Command::Release(task), resolved(id, Ok(()))]);
    assert_eq!(world.worker.credit_in_flight(), 0);
}

#[test]
fn a_sum_lands_beside_its_contribution_only_if_it_would_overwrite_it() {
    let plain = spec("w");
    let coded = spec("w").with_codec(CodecSpec::F16);
    let here = tensor(&plain, None);
    let there = tensor(&plain, Some(Ordinal(0)));
    for (what, spec, tensor, stages) in [
        ("apart", &plain, Tensor { in_place: false, ..here.clone() }, "PUSH"),
        ("in place", &plain, Tensor { in_place: true, ..here.clone() }, "PUSH beside, LAND"),
        (
            "encoded by the host",
            &coded,
            Tensor { in_place: false, ..here.clone() },
            "COMPRESS, PUSH beside, DECOMPRESS",
        ),
        ("on a device", &plain, there.clone(), "COPYD2H beside, PUSH beside, COPYH2D"),
        (
            "encoded by a device",
            &coded,
            Tensor { in_copies: InCopies::EncodeAndDecode, ..there.clone() },
            "COPYD2H beside, PUSH beside, COPYH2D",
        ),
        (
            "on a device, encoded by the host",
            &coded,
            Tensor { in_copies: InCopies::Nothing, ..there.clone() },
            "COPYD2H, COMPRESS, PUSH beside, DECOMPRESS, COPYH2D",
        ),
    ] {
        let mut world = World::keeping();
        let id = world.submit_declared(spec, tensor);
        assert_eq!(world.stages(id), stages, "{what}");
    }
}

impl World {
    /// Submits a tensor, and lets the coordinator answer.
    fn submit_declared(&mut self, spec: &TensorSpec, tensor: Tensor) -> u64 {
        let id = self.submit_spec(spec, tensor);
        let Some(Command::Declare { request, tensors, .. }) = self.commands().pop() else { panic!("unknown") };
        self.declared(request, &tensors);
        id
    }

    /// Pushes what waits for it, to its end.
    fn push(&mut self) -> (TaskId, Contribute, Landing) {
        let step = self.worker.take(self.now, Stage::Push).expect("something waits");
        let Action::Push { header: Request::Contribute(header), landing, .. } = step.action else { panic!("{step:?}") };
        self.worker.end_push(self.now, step.task.id);
        (step.task.id, header, landing)
    }

    fn summed(&mut self, task: TaskId, body: Body) {
        self.worker.handle_pulled(
            self.now,
            task,
            Exchanged::Sum { body, divisor: 1.0, contributors: Contributors::Due },
        );
    }

    /// The stages that the only submission passes, and where its sum lands beside its contribution.
    fn stages(&mut self, id: u64) -> String {
        let mut passed = Vec::new();
        while !self.commands().contains(&resolved(id, Ok(()))) {
            let step = Stage::ALL.into_iter().find_map(|stage| self.worker.take(self.now, stage)).expect("it goes on");
            let task = step.task.id;
            let is_beside = match step.action {
                Action::Push { landing, .. } => {
                    self.worker.end_push(self.now, task);
                    self.summed(task, HALVED);
                    landing == Landing::Beside
                }
                Action::Encode { .. } => {
                    self.worker.handle_encoded(self.now, task, HALVED);
                    false
                }
                Action::Decode { .. } => {
                    self.worker.handle_decoded(self.now, task, Ok(()));
                    false
                }
                Action::CopyToHost { lands_beside, .. } => {
                    self.worker.handle_copied(self.now, task, Ok(()));
                    lands_beside
                }
                Action::CopyToDevice { .. } | Action::Land => {
                    self.worker.handle_copied(self.now, task, Ok(()));
                    false
                }
                Action::Meet(_) => panic!("it is alone on its machine"),
            };
            passed.push(format!("{}{}", step.stage, if is_beside { " beside" } else { "" }));
        }
        passed.join(", ")
    }
}
