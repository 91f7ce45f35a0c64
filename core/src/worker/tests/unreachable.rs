//! Calls that wait for a server that does not answer.

use super::*;

#[test]
fn a_call_that_waits_for_a_server_that_never_answers_fails_after_the_step_timeout_with_the_cause() {
    let mut job = Unreached::new(Duration::ZERO);
    let first = job.submit();
    job.pass(SECOND);
    let second = job.submit();
    job.pass(STEP - SECOND * 2);
    assert_eq!(job.failed(), []);
    job.pass(SECOND);
    assert_eq!(job.failed(), [(first, unreachable(STEP))]);
    job.pass(SECOND);
    assert_eq!(job.failed(), [(second, unreachable(STEP + SECOND))]);
    job.pass(STEP);
    let third = job.submit();
    job.pass(STEP - SECOND);
    assert_eq!(job.failed(), [], "each call has the whole step timeout");
    job.pass(SECOND);
    assert_eq!(job.failed(), [(third, unreachable(STEP * 3 + SECOND))]);
}

#[test]
fn a_call_whose_server_is_reached_in_time_waits_for_the_other_workers_as_long_as_the_server_does() {
    let mut job = Unreached::new(Duration::ZERO);
    let id = job.submit();
    job.pass(STEP - SECOND * 3);
    job.is_reachable = true;
    job.pass(SECOND * 2);
    let task = job.push();
    job.pass(STEP);
    job.world.worker.handle_pulled(
        job.world.now,
        task,
        Exchanged::Sum { body: Body::plain(0), divisor: 1.0, contributors: Contributors::Due },
    );
    assert!(job.world.commands().contains(&resolved(id, Ok(()))));
}

#[test]
fn a_server_that_is_lost_has_the_step_timeout_from_its_loss() {
    let mut job = Unreached::new(Duration::ZERO);
    job.is_reachable = true;
    job.pass(STEP * 3);
    let id = job.submit();
    let task = job.push();
    job.is_reachable = false;
    let lost = Error::Unavailable { what: "server 0".to_owned(), cause: "it stopped answering".to_owned() };
    let torn = Exchanged::Torn { error: lost.clone(), landed: 0 };
    job.world.worker.handle_pulled(job.world.now, task, torn);
    job.world.worker.handle_link_lost(job.world.now, ServerId(0), job.attempt, lost);
    job.pass(STEP - SECOND);
    assert_eq!(job.failed(), []);
    job.pass(SECOND);
    assert_eq!(job.failed(), [(id, unreachable(STEP))]);
}

#[test]
fn a_call_does_not_wait_for_ever_for_a_server_that_is_connected_and_answers_nothing() {
    let mut world = World::joined();
    let first = world.submit("w");
    let Some(Command::Declare { request, tensors, .. }) = world.commands().pop() else { panic!("unknown") };
    world.declared(request, &tensors);
    let task = world.worker.take(world.now, Stage::Push).unwrap().task.id;
    world.worker.end_push(world.now, task);
    world.commands();
    for (wait, ends) in [(STEP * 2 - SECOND, false), (SECOND, true)] {
        world.now = world.now + wait;
        world.worker.handle_timeout(world.now);
        let commands = world.commands();
        assert_eq!(commands.iter().any(|command| matches!(command, Command::Abandon(_))), ends, "{commands:?}");
    }
    world.worker.handle_pulled(world.now, task, Exchanged::Torn { error: Error::Cancelled, landed: 0 });
    assert_eq!(world.commands().iter().find_map(failed_with("it has answered nothing")), Some(first));
}

#[test]
fn the_other_ranks_of_the_machine_hear_which_rank_does_not_reach_the_server() {
    let error = unreachable(STEP);
    assert!(error.concerns_one_worker());
    let told = error.of_one_who_gave_up(WorkerId(3), "w".to_owned(), Round(7)).to_string();
    assert!(told.contains("worker 3") && told.contains("server 0") && told.contains("nothing answers"), "{told}");
}

#[test]
fn a_stall_warning_says_why_the_server_does_not_answer() {
    let mut job = Unreached::new(SECOND * 10);
    job.submit();
    job.pass(SECOND * 10);
    let warned = job.seen.drain(..).filter_map(|command| match command {
        Command::Warn(stuck) => Some(stuck.unreachable.map(without_hint)),
        _ => None,
    });
    assert_eq!(warned.collect::<Vec<_>>(), [Some(unreachable(SECOND * 10))]);
}

#[test]
fn a_call_does_not_wait_for_ever_for_its_declaration() {
    let mut world = World::joined();
    let id = world.submit("w");
    world.commands();
    assert_eq!(world.worker.poll_timeout(), Some(world.now + STEP));
    world.now = world.now + STEP;
    world.worker.handle_timeout(world.now);
    assert_eq!(world.commands().iter().find_map(failed_with("waiting for its declaration")), Some(id));
}

#[test]
fn however_short_the_step_timeout_a_server_has_the_time_of_two_attempts() {
    let bounds = Bounds::new(Duration::from_millis(1), Duration::from_millis(1));
    assert_eq!(bounds.unreached, SECOND * 6);
}

/// A worker in whose job the tensor `w` is declared, and whose only server is reachable or not.
struct Unreached {
    world: World,
    is_reachable: bool,
    /// The latest dial.
    attempt: u64,
    seen: Vec<Command>,
}

impl Unreached {
    fn new(stall_warn: Duration) -> Self {
        let world = World::with(view(), |settings| settings.stall_warn = stall_warn);
        let mut job = Self { world, is_reachable: false, attempt: 0, seen: Vec::new() };
        let request = asked(job.world.worker.declare(vec![spec("w")], false));
        job.world.answer(request, &[spec("w")]);
        job.settle();
        job
    }

    fn submit(&mut self) -> u64 {
        let id = self.world.submit("w");
        self.settle();
        id
    }

    /// The first task is pushed, and waits for its sum.
    fn push(&mut self) -> TaskId {
        let task = self.world.worker.take(self.world.now, Stage::Push).unwrap().task.id;
        self.world.worker.end_push(self.world.now, task);
        self.settle();
        task
    }

    /// Lets time pass, in which the worker dials its server as often as it likes.
    fn pass(&mut self, time: Duration) {
        let end = self.world.now + time;
        self.settle();
        while self.world.now < end {
            self.world.pass_until(end);
            self.settle();
        }
    }

    fn settle(&mut self) {
        loop {
            let commands = self.world.commands();
            if commands.is_empty() {
                return;
            }
            for command in commands {
                if let Command::Dial(Dial { server, attempt, to, .. }) = &command {
                    let cause = format!("nothing answers at {}", to.at(Scheme::Quic).unwrap());
                    let failed = Error::Unavailable { what: to.name.clone(), cause };
                    let outcome = if self.is_reachable { Ok(LinkId(7)) } else { Err(failed) };
                    self.attempt = *attempt;
                    self.world.worker.handle_dialled(self.world.now, *server, *attempt, outcome);
                }
                self.seen.push(command);
            }
        }
    }

    /// The submissions that failed since the last call.
    fn failed(&mut self) -> Vec<(u64, Error)> {
        let failed = self.seen.drain(..).filter_map(|command| match command {
            Command::Resolve { submission, outcome: Err(error), .. } => Some((submission, without_hint(error))),
            _ => None,
        });
        failed.collect()
    }
}

fn unreachable(waited: Duration) -> Error {
    let [server, cause, hint] = ["server 0 at there:1", "nothing answers at there:1", ""].map(str::to_owned);
    Error::ServerUnreachable { server, waited, cause, hint }
}

fn without_hint(error: Error) -> Error {
    let Error::ServerUnreachable { server, waited, cause, hint } = error else { return error };
    assert!(hint.contains("advertise") && hint.contains("firewall"), "{hint}");
    Error::ServerUnreachable { server, waited, cause, hint: String::new() }
}
