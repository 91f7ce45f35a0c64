//! Sums that are kept for others, and what becomes of them when the job goes on without a server.

use super::*;
use crate::pipeline::server_of;
use crate::types::{Epoch, Holdings, SumId};
use crate::wire::{Restore, Target};

#[test]
fn a_sum_is_kept_until_the_next_one_of_its_part_or_for_a_step_timeout() {
    let mut job = Outliving::new();
    let w = spec("w");
    let first = job.whole_round(&w);
    assert_eq!(job.kept(), [Command::Keep { task: first, part: part(&w) }]);
    job.pass(STEP / 2);
    let second = job.whole_round(&w);
    assert_eq!(job.kept(), [Command::Keep { task: second, part: part(&w) }], "in place of the first one");
    job.pass(STEP - SECOND);
    assert_eq!(job.kept(), []);
    job.pass(SECOND);
    assert_eq!(job.kept(), [Command::DropKept(part(&w))], "nobody waits for it any more");
    job.pass(STEP * 2);
    assert_eq!(job.kept(), []);
    job.view(&[1, 2], true);
    assert_eq!(job.reports(), [job.holdings(&[], &[], &[])]);
}

#[test]
fn of_a_sum_that_goes_to_another_worker_only_the_existence_is_kept() {
    let mut job = Outliving::new();
    let theirs = received_by(1, "theirs");
    job.whole_round(&theirs);
    assert_eq!(job.kept(), [Command::DropKept(part(&theirs))], "there are no bytes");
    job.view(&[1, 2], true);
    assert_eq!(job.reports(), [job.holdings(&[], &[(&theirs, 0)], &[])]);
}

#[test]
fn no_sum_is_dropped_while_a_recovery_may_need_it() {
    let mut job = Outliving::new();
    job.whole_round(&spec("w"));
    job.kept();
    job.view(&[1, 2], true);
    job.pass(STEP * 2);
    assert_eq!(job.kept(), []);
    job.view(&[1, 2], false);
    job.pass(Duration::ZERO);
    assert_eq!(job.kept(), [Command::DropKept(part(&spec("w")))]);
}

#[test]
fn a_worker_says_what_it_has_once_no_exchange_with_a_lost_server_is_open() {
    let mut job = Outliving::new();
    let [whole, open, queued, far] = ["whole", "open", "queued", "far"].map(spec);
    let theirs = received_by(1, "theirs");
    job.whole_round(&whole);
    job.whole_round(&whole);
    job.whole_round(&theirs);
    job.submit_at(1, &far);
    let (there, link, _) = job.push().unwrap();
    assert_eq!(link, LinkId(11));
    job.submit(&open);
    let (task, link, _) = job.push().unwrap();
    assert_eq!(link, LinkId(10));
    job.submit(&queued);
    job.view(&[1, 2], true);
    assert!(job.seen.contains(&Command::Disconnect(LinkId(10))), "{:?}", job.seen);
    assert_eq!((job.reports(), job.push()), (vec![], None), "what is open may still bring a sum");
    job.torn(task);
    assert_eq!(job.reports(), [job.holdings(&[(&whole, 1)], &[(&theirs, 0)], &[(&open, 0), (&queued, 0)])]);
    job.pass(STEP / 2);
    assert_eq!((job.reports(), job.push()), (vec![], None), "it has told, and its tasks wait");
    job.summed(there);
    assert_eq!(job.reports(), [], "nothing of a lost server");
    job.view(&[1, 2], true);
    assert_eq!(job.reports().len(), 1, "each view is answered");
}

#[test]
fn a_sum_that_comes_after_the_loss_is_told_as_one_that_is_here() {
    let mut job = Outliving::new();
    let w = spec("w");
    job.submit(&w);
    let (task, _, _) = job.push().unwrap();
    job.view(&[1, 2], true);
    job.summed(task);
    assert_eq!(job.reports(), [job.holdings(&[(&w, 0)], &[], &[])]);
}

#[test]
fn a_worker_brings_the_sums_that_it_is_asked_for_to_their_next_servers_and_says_when_all_are_there() {
    let mut job = Outliving::new();
    let moved = [1, 2].map(moving_to);
    for spec in &moved {
        job.whole_round(spec);
        job.whole_round(spec);
    }
    job.view(&[1, 2], true);
    let (epoch, sums) = (job.epoch(), moved.iter().map(|spec| sum(spec, 1)).collect::<Vec<_>>());
    job.seen.clear();
    job.restore(epoch, &sums);
    let loads = |command: &Command| match command {
        Command::Carry { load, .. } => Some(load.clone()),
        _ => None,
    };
    let expected = [0, 1].map(|index| Load::Kept { part: part(&moved[index]), bytes: 16 });
    assert_eq!(job.seen.iter().filter_map(loads).collect::<Vec<_>>(), expected);
    let mut tasks = Vec::new();
    while let Some((task, link, header)) = job.push() {
        let index = usize::from(link == LinkId(12));
        let expected = Restore {
            target: Target { epoch, part: part(&moved[index]), round: Round(1) },
            dtype: DType::F32,
            op: Op::Sum,
            participants: Participants::ALL,
            part_bytes: 16,
            body: Body::plain(16),
            checksum: None,
            divisor: 2.0,
            contributors: [0, 1].map(WorkerId).into_iter().collect(),
        };
        assert_eq!((link, header), (LinkId(11 + index as u64), Request::Restore(expected)));
        tasks.push(task);
    }
    let [first, second] = tasks[..] else { panic!("two sums: {tasks:?}") };
    job.acknowledged(first);
    job.restore(epoch, &sums);
    assert_eq!((job.restored(), job.push()), (vec![], None), "one is missing, and on its way");
    let error = Error::Unavailable { what: "the sum".to_owned(), cause: "a worker has to bring it".to_owned() };
    job.world.worker.handle_pulled(job.world.now, second, Exchanged::Rejected(error));
    job.pass(SECOND);
    let (again, _, _) = job.push().expect("a refusal that passes is tried again");
    assert_eq!((again, job.restored()), (second, vec![]));
    job.acknowledged(second);
    assert_eq!(job.restored(), [epoch]);
    job.restore(epoch, &sums);
    assert_eq!((job.restored(), job.push()), (vec![epoch], None), "the answer may have been lost");
    assert!(job.world.worker.is_idle());
}

#[test]
fn a_request_that_does_not_fit_gets_no_answer() {
    let w = spec("w");
    for (what, recovers, number, asked) in [
        ("of an earlier view", true, 1, vec![sum(&w, 0)]),
        ("of a later view", true, 3, vec![sum(&w, 0)]),
        ("of another round", true, 2, vec![sum(&w, 1)]),
        ("of a part that is not kept", true, 2, vec![sum(&w, 0), sum(&spec("other"), 0)]),
        ("of a view that recovers nothing", false, 2, vec![sum(&w, 0)]),
    ] {
        let mut job = Outliving::new();
        job.whole_round(&w);
        job.view(&[1, 2], recovers);
        job.seen.clear();
        job.restore(Epoch { number, ..job.epoch() }, &asked);
        assert_eq!((std::mem::take(&mut job.seen), job.push()), (vec![], None), "{what}");
    }
}

#[test]
fn a_sum_of_which_only_the_existence_is_known_is_not_brought() {
    let mut job = Outliving::new();
    let theirs = received_by(1, "theirs");
    job.whole_round(&theirs);
    job.view(&[1, 2], true);
    job.seen.clear();
    job.restore(job.epoch(), &[sum(&theirs, 0)]);
    assert_eq!((std::mem::take(&mut job.seen), job.push()), (vec![], None));
}

#[test]
fn what_was_to_be_brought_in_a_former_view_is_not_brought_any_more() {
    let mut job = Outliving::new();
    let w = spec("w");
    job.whole_round(&w);
    job.view(&[1, 2], true);
    job.restore(job.epoch(), &[sum(&w, 0)]);
    job.view(&[1, 2], true);
    assert_eq!(job.push(), None);
    job.restore(job.epoch(), &[sum(&w, 0)]);
    let (task, _, header) = job.push().unwrap();
    assert!(matches!(&header, Request::Restore(header) if header.target.epoch == job.epoch()), "{header:?}");
    job.acknowledged(task);
    assert_eq!(job.restored(), [job.epoch()]);
}

#[test]
fn when_the_recovery_is_over_tasks_go_to_the_servers_that_they_have_now() {
    let mut job = Outliving::new();
    let [open, queued, later] = [moving_to(1), moving_to(2), spec("later")];
    job.submit(&open);
    let (task, _, _) = job.push().unwrap();
    job.submit(&queued);
    job.view(&[1, 2], true);
    job.torn(task);
    job.submit(&later);
    assert_eq!(job.push(), None);
    job.view(&[1, 2], false);
    let mut links = Vec::new();
    while let Some((task, link, header)) = job.push() {
        let Request::Contribute(header) = header else { panic!("{header:?}") };
        assert_eq!(header.target.epoch, job.epoch());
        assert!(matches!(header.contribution, Contribution::First { .. }), "it is kept whole: {header:?}");
        links.push((header.target.part, link));
        job.summed(task);
        job.land(task);
    }
    links.sort_unstable();
    let mut expected = [&open, &queued, &later].map(|spec| (part(spec), next_link(spec)));
    expected.sort_unstable();
    assert_eq!(links, expected);
    assert_eq!((next_link(&open), next_link(&queued)), (LinkId(11), LinkId(12)));
    job.submit(&open);
    assert_eq!(job.push().unwrap().1, LinkId(11), "so do the rounds after");
}

#[test]
fn a_sum_that_is_lost_fails_its_call_only_on_the_worker_that_was_to_get_it() {
    for (receiver, fails) in [(0, true), (1, false)] {
        let mut job = Outliving::new();
        let w = received_by(receiver, "w");
        let id = job.submit(&w);
        let (task, _, _) = job.push().unwrap();
        job.view(&[1, 2], true);
        job.torn(task);
        let epoch = job.epoch();
        job.world.worker.handle_restore(job.world.now, epoch, Vec::new(), &[sum(&w, 1)]);
        job.settle();
        assert_eq!(job.seen.iter().filter_map(failed_with("")).count(), 0, "it waits for another round");
        job.world.worker.handle_restore(job.world.now, epoch, Vec::new(), &[sum(&w, 0)]);
        job.settle();
        let failed: Vec<u64> =
            job.seen.iter().filter_map(failed_with("tensor w: round 0 was lost with its server")).collect();
        assert_eq!(failed, if fails { vec![id] } else { vec![] }, "{:?}", job.seen);
        assert_eq!(job.restored(), [], "there was nothing to bring");
    }
}

#[test]
fn a_worker_that_first_hears_of_the_job_while_it_recovers_has_nothing_and_waits() {
    let mut job = Outliving::hearing(view_of(&[1, 2], 5, true));
    assert_eq!(job.reports(), [job.holdings(&[], &[], &[])]);
    let (home, far) = (moving_to(2), spec("far"));
    job.submit(&home);
    job.submit_at(1, &far);
    assert_eq!(job.push().map(|(_, link, _)| link), Some(LinkId(11)), "that server is not lost");
    assert_eq!(job.push(), None);
    job.pass(STEP / 2);
    assert_eq!((job.push(), job.reports()), (None, vec![]));
    job.view(&[1, 2], false);
    assert_eq!(job.push().map(|(_, link, _)| link), Some(LinkId(12)));
}

/// Worker 0 of two workers and three servers, in a job that goes on without servers. Link 10 leads to server 0, link 11 to server 1.
struct Outliving {
    world: World,
    seen: Vec<Command>,
}

impl Outliving {
    fn new() -> Self {
        Self::hearing(view_of(&[0, 1, 2], 1, false))
    }

    /// This is the first view that it hears of.
    fn hearing(view: View) -> Self {
        let world = World::with(view, |settings| (settings.keeps, settings.keeps_sums) = (true, true));
        let mut job = Self { world, seen: Vec::new() };
        job.settle();
        job
    }

    /// Reaches each server that is dialled, and notes all that is not routine.
    fn settle(&mut self) {
        loop {
            let commands = self.world.commands();
            if commands.is_empty() {
                return;
            }
            for command in commands {
                match command {
                    Command::Dial(Dial { server, attempt, .. }) => {
                        let link = LinkId(10 + u64::from(server.0));
                        self.world.worker.handle_dialled(self.world.now, server, attempt, Ok(link));
                    }
                    Command::Wake(_) | Command::Carry { load: Load::Pieces, .. } => {}
                    command => self.seen.push(command),
                }
            }
        }
    }

    /// Lets time pass.
    fn pass(&mut self, time: Duration) {
        let end = self.world.now + time;
        loop {
            self.world.pass_until(end);
            self.settle();
            if self.world.now >= end {
                return;
            }
        }
    }

    fn submit(&mut self, spec: &TensorSpec) -> u64 {
        self.submit_at(0, spec)
    }

    /// Submits the next round of a tensor that this server has as long as the job has it.
    fn submit_at(&mut self, server: u32, spec: &TensorSpec) -> u64 {
        let id = self.world.submit_spec(spec, tensor(spec, None));
        self.settle();
        if let Some(at) = self.seen.iter().position(|command| matches!(command, Command::Declare { .. })) {
            let Command::Declare { request, tensors, .. } = self.seen.remove(at) else { panic!("found above") };
            let config =
                LayoutConfig { partition_bytes: 1024, fuse_bytes: 64, part_bytes_min: 1024, pipeline_bytes_min: 1024 };
            let mut layouts = Layouter::new(config, vec![1.0], 1).declare(&tensors, false).unwrap();
            layouts.iter_mut().for_each(|layout| layout.server = ServerId(server));
            self.world.worker.handle_declared(self.world.now, request, Ok(layouts));
            self.settle();
        }
        id
    }

    /// Hands the next task over, if one may go.
    fn push(&mut self) -> Option<(TaskId, LinkId, Request)> {
        let step = self.world.worker.take(self.world.now, Stage::Push)?;
        let Action::Push { link, header, .. } = step.action else { panic!("{step:?}") };
        self.world.worker.end_push(self.world.now, step.task.id);
        self.settle();
        Some((step.task.id, link, header))
    }

    /// The sum of a task comes.
    fn summed(&mut self, task: TaskId) {
        let (body, divisor) = (Body::plain(16), 2.0);
        let sum = Exchanged::Sum { body, divisor, contributors: Contributors::Due };
        self.world.worker.handle_pulled(self.world.now, task, sum);
        self.settle();
    }

    /// A server has taken the sum that a task has brought.
    fn acknowledged(&mut self, task: TaskId) {
        let (body, divisor) = (Body::plain(0), 1.0);
        let sum = Exchanged::Sum { body, divisor, contributors: Contributors::Due };
        self.world.worker.handle_pulled(self.world.now, task, sum);
        self.settle();
    }

    /// The link of a task was closed.
    fn torn(&mut self, task: TaskId) {
        let torn = Exchanged::Torn { error: Error::Cancelled, landed: 4 };
        self.world.worker.handle_pulled(self.world.now, task, torn);
        self.settle();
    }

    /// The sum comes to its place, if it has one here.
    fn land(&mut self, task: TaskId) {
        if let Some(step) = self.world.worker.take(self.world.now, Stage::Land) {
            assert_eq!(step.task.id, task);
            self.world.worker.handle_copied(self.world.now, task, Ok(()));
        }
        self.settle();
    }

    /// A round of a tensor, from its submission to its end.
    fn whole_round(&mut self, spec: &TensorSpec) -> TaskId {
        let id = self.submit(spec);
        let (task, _, _) = self.push().expect("it may go");
        self.summed(task);
        self.land(task);
        let is_end = |command: &Command| matches!(command, Command::Resolve { submission, outcome: Ok(()), .. } if *submission == id);
        assert!(self.seen.iter().any(is_end), "{:?}", self.seen);
        task
    }

    /// The next view, which has these servers.
    fn view(&mut self, servers: &[u32], recovers: bool) {
        let number = self.epoch().number + 1;
        self.world.worker.handle_view(self.world.now, view_of(servers, number, recovers));
        self.settle();
    }

    fn epoch(&self) -> Epoch {
        self.world.worker.formation().unwrap().epoch()
    }

    fn restore(&mut self, epoch: Epoch, sums: &[SumId]) {
        self.world.worker.handle_restore(self.world.now, epoch, sums.to_vec(), &[]);
        self.settle();
    }

    /// What became of kept sums since the last question.
    fn kept(&mut self) -> Vec<Command> {
        self.take(|command| match command {
            Command::Keep { .. } | Command::DropKept(_) => Some(command.clone()),
            _ => None,
        })
    }

    /// What the coordinator was told since the last question, the sums in order.
    fn reports(&mut self) -> Vec<Holdings> {
        self.take(|command| match command {
            Command::Report(holdings) => Some(sorted(holdings.clone())),
            _ => None,
        })
    }

    /// The epochs in which all was restored, since the last question.
    fn restored(&mut self) -> Vec<Epoch> {
        self.take(|command| match command {
            Command::Restored(epoch) => Some(*epoch),
            _ => None,
        })
    }

    fn take<T>(&mut self, wanted: impl Fn(&Command) -> Option<T>) -> Vec<T> {
        let taken = self.seen.iter().filter_map(&wanted).collect();
        self.seen.retain(|command| wanted(command).is_none());
        taken
    }

    /// A report in the present view.
    fn holdings(&self, has: &[Named<'_>], knows: &[Named<'_>], wants: &[Named<'_>]) -> Holdings {
        let sums = |named: &[Named<'_>]| named.iter().map(|(spec, round)| sum(spec, *round)).collect();
        sorted(Holdings { epoch: self.epoch(), has: sums(has), knows: sums(knows), wants: sums(wants) })
    }
}

/// A sum by its tensor and round.
type Named<'a> = (&'a TensorSpec, u64);

fn sorted(mut holdings: Holdings) -> Holdings {
    for sums in [&mut holdings.has, &mut holdings.knows, &mut holdings.wants] {
        sums.sort_unstable();
    }
    holdings
}

/// Two workers on machines of their own, and of three servers these.
fn view_of(servers: &[u32], number: u32, recovers: bool) -> View {
    let mut view = View::of_workers(&[(1, ""), (2, ""), (3, ""), (4, ""), (5, "")]);
    for (member, index) in view.members[2..].iter_mut().zip(0..) {
        (member.process.role, member.index) = (Role::Server, index);
        member.process.addresses = vec![Address::new(Scheme::Quic, format!("there:{index}"))];
    }
    view.members.retain(|member| member.process.role == Role::Worker || servers.contains(&member.index));
    (view.epoch.number, view.formed_servers, view.recovers) = (number, 3, recovers);
    view
}

/// A tensor whose sums go to this worker only.
fn received_by(receiver: u32, name: &str) -> TensorSpec {
    TensorSpec { participants: Participants::ALL.with_receiver(WorkerId(receiver)), ..spec(name) }
}

/// A tensor of server 0 that has this server once that one is lost.
fn moving_to(server: u32) -> TensorSpec {
    let link = LinkId(10 + u64::from(server));
    (0..).map(|number| spec(&format!("w{number}"))).find(|spec| next_link(spec) == link).unwrap()
}

/// The link to the server of a tensor of server 0 once that one is lost.
fn next_link(spec: &TensorSpec) -> LinkId {
    LinkId(10 + u64::from(server_of(part(spec), ServerId(0), [1, 2].map(ServerId).into_iter()).0))
}

fn part(spec: &TensorSpec) -> PartId {
    PartId { key: spec.key(), index: 0 }
}

fn sum(spec: &TensorSpec, round: u64) -> SumId {
    SumId { part: part(spec), round: Round(round) }
}
