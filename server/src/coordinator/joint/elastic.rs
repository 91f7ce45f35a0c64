//! The same with an elastic job: workers count steps, newcomers come, and the job forms again with them, whatever the network and the
//! coordinator do.

use gradlane_core::cluster::{Begin, Steps};
use gradlane_core::config::OnServerLoss;
use gradlane_core::types::{Passage, Phase, StepReport};

use super::*;

/// Steps of a whole training.
const STEPS: u64 = 40;
const NEWCOMERS: usize = 2;

/// The training of a worker.
#[derive(Default)]
pub(super) struct Training {
    steps: Steps,
    /// Steps that it has done. A newcomer gets those of the others.
    done: u64,
    /// Whether it is a member now.
    is_member: bool,
    /// Whether it waits at a boundary.
    waits: bool,
    /// Its rank and how often the job had formed, in each formation.
    formations: Vec<(u32, u32)>,
    /// What it was told where the job formed again.
    passages: Vec<Passage>,
    asks_to_leave_at: Option<u64>,
}

#[test]
fn newcomers_are_taken_in_and_nobody_loses_a_step_whatever_the_network_and_the_coordinator_do() {
    let (mut formed_again, mut killed, mut left) = (0, 0, 0);
    for seed in 0..2 * SEEDS {
        let mut world = World::new(seed, Policy::CONTINUE);
        world.become_elastic();
        for _ in 0..world.random(3) {
            let at = Time::ZERO + Duration::from_millis(world.random(10_000));
            let away = Duration::from_millis(world.random(2_000));
            world.schedule(at, Happening::CoordinatorDies { away });
            killed += 1;
        }
        let leaver = world.random(8) as usize;
        if leaver < WORKERS {
            let at = 1 + world.random(STEPS - 2);
            world.nodes[leaver].training.as_mut().expect("all train").asks_to_leave_at = Some(at);
        }
        world.run();
        assert_eq!(world.finished, Some(Ok(())), "seed {seed}");
        let mut formations = BTreeMap::new();
        for (number, node) in world.nodes.iter().enumerate() {
            let Some(training) = &node.training else {
                assert_eq!(node.end, Some(Ok(())), "seed {seed}: {}", node.name());
                continue;
            };
            let has_left = training.asks_to_leave_at.is_some() && training.done < STEPS;
            left += u64::from(has_left);
            // The job may have ended before it was taken in.
            let came_late = number >= WORKERS + SERVERS && training.formations.is_empty();
            let in_order = node.end == Some(Ok(()));
            assert!(in_order || came_late, "seed {seed}: {}: {:?}", node.name(), node.end);
            assert!(
                training.done == STEPS || has_left || came_late,
                "seed {seed}: {} did {}",
                node.name(),
                training.done
            );
            for (rank, formed_before) in &training.formations {
                let ranks: &mut BTreeSet<u32> = formations.entry(*formed_before).or_default();
                assert!(ranks.insert(*rank), "seed {seed}: rank {rank} twice");
            }
            formed_again += training.passages.len();
        }
        for (formed_before, ranks) in formations {
            let expected: BTreeSet<u32> = (0..ranks.len() as u32).collect();
            assert_eq!(ranks, expected, "seed {seed}: ranks have no gaps in formation {formed_before}");
        }
    }
    assert!(formed_again as u64 > 2 * SEEDS && killed > SEEDS && left > SEEDS / 4, "{formed_again} {killed} {left}");
}

#[test]
fn workers_that_are_too_few_hold_until_others_have_come_and_all_steps_are_made() {
    let (mut replaced, mut given_up) = (0, 0);
    for seed in 0..2 * SEEDS {
        let rejoin = Some(Duration::from_secs(30));
        let policy = Policy::Continue { min_workers: WORKERS as u32, rejoin, on_server_loss: OnServerLoss::Abort };
        let mut world = World::new(seed, policy);
        world.become_elastic();
        let victims = 1 + world.random(2) as usize;
        for victim in 0..victims {
            let at = Time::ZERO + Duration::from_millis(1_000 + world.random(8_000));
            let is_seen = world.random(2) == 0;
            world.schedule(at, Happening::Crash { victim, is_seen });
        }
        if world.random(2) == 0 {
            let at = Time::ZERO + Duration::from_millis(world.random(12_000));
            let away = Duration::from_millis(world.random(2_000));
            world.schedule(at, Happening::CoordinatorDies { away });
        }
        world.run();
        let finished = world.finished.clone().unwrap_or_else(|| panic!("seed {seed}: the coordinator goes on"));
        match &finished {
            Ok(()) => {}
            // Newcomers had been taken in before, and nobody else comes.
            Err(Error::QuorumLost { there, needed, .. }) => {
                assert!(there < needed, "seed {seed}");
                given_up += 1;
            }
            // It died while the job formed.
            Err(Error::NotFormed { .. }) => continue,
            Err(error) => panic!("seed {seed}: {error}"),
        }
        for node in world.nodes.iter().filter(|node| !node.crashed) {
            let Some(training) = &node.training else { continue };
            let came_late = training.formations.is_empty();
            // The network may keep one silent for so long that it is given up.
            let is_fenced = matches!(node.end, Some(Err(Error::Fenced { .. })));
            if finished.is_ok() && !came_late && !is_fenced {
                assert_eq!((&node.end, training.done), (&Some(Ok(())), STEPS), "seed {seed}: {}", node.name());
            }
            replaced += training.passages.len();
        }
    }
    assert!(replaced as u64 > SEEDS && given_up < 2 * SEEDS, "{replaced} {given_up}");
}

impl World {
    /// Workers count steps, and newcomers are to come.
    fn become_elastic(&mut self) {
        self.config.workers_max = Some((WORKERS + NEWCOMERS) as u32);
        self.coordinator = Coordinator::new(self.config.clone(), 1, Time::ZERO);
        for number in WORKERS + SERVERS..WORKERS + SERVERS + NEWCOMERS {
            let mut node = Node::of(number, Role::Worker);
            (node.config.workers, node.crashed) = (0, true);
            self.nodes.push(node);
            let at = Time::ZERO + Duration::from_millis(self.random(12_000));
            self.schedule(at, Happening::Comes(number));
        }
        for node in &mut self.nodes {
            node.is_elastic = true;
            node.training = node.is_worker().then(Training::default);
        }
    }

    /// A process joins: a newcomer, or a member as the job forms again.
    pub(super) fn comes(&mut self, number: usize) {
        let now = self.now;
        let node = &mut self.nodes[number];
        node.crashed = false;
        node.end = None;
        node.link = None;
        node.config.workers = 0;
        node.config.process.incarnation.0 += 1000;
        node.member = Member::new(node.config.clone(), now);
    }

    /// A worker wants to begin a step, or has ended one.
    pub(super) fn trains(&mut self, number: usize) {
        let Some(training) = &mut self.nodes[number].training else { return };
        if !training.is_member {
            return;
        }
        if training.asks_to_leave_at.is_some_and(|at| at == training.done) {
            training.steps.ask_to_leave();
        }
        training.waits = false;
        let (is_over, mut goes_on) = (training.done == STEPS, false);
        let begun = if is_over { None } else { Some(training.steps.begin(true)) };
        match begun {
            None => training.steps.rest(),
            Some(Ok(Begin::Begun(_))) => (training.done, goes_on) = (training.done + 1, true),
            Some(Ok(Begin::Settle | Begin::Wait)) => training.waits = true,
            Some(Ok(Begin::Left)) => training.is_member = false,
            Some(Ok(Begin::FormsAgain(passage))) => {
                training.is_member = false;
                training.passages.push(passage);
            }
            Some(Err(error)) => panic!("{}: {error}", self.nodes[number].name()),
        }
        let training = self.nodes[number].training.as_mut().expect("as above");
        if let Some(report) = training.steps.next_report() {
            self.nodes[number].member.report_steps(report);
        }
        if is_over {
            self.nodes[number].member.leave();
        }
        if goes_on {
            let at = self.now + Duration::from_millis(50 + self.random(400));
            self.schedule(at, Happening::Trains(number));
        }
    }

    /// The former formation is over.
    pub(super) fn form_again(&mut self) {
        let term = self.coordinator.view().epoch.term + 1;
        let now = self.clock();
        let done = self.nodes.iter().filter_map(|node| node.training.as_ref()).map(|training| training.done);
        self.agreed = done.max().expect("there are workers");
        self.journal.clear();
        self.coordinator.form_again(term, now);
    }

    /// Tells a member of an elastic job what its membership says, and carries out what follows.
    pub(super) fn tell_elastic(&mut self, number: usize, event: MemberEvent) {
        let wish = self.nodes[number].hear_elastic(self.now, event, &mut self.last_end);
        match wish {
            Some(Wish::Trains) => {
                let training = self.nodes[number].training.as_mut().expect("a server does not train");
                // A newcomer gets the state of the others.
                training.done = training.done.max(self.agreed);
                self.schedule(self.now, Happening::Trains(number));
            }
            Some(Wish::Wakes) => self.schedule(self.now, Happening::Trains(number)),
            Some(Wish::Comes) => {
                let at = self.now + Duration::from_millis(self.random(500));
                self.schedule(at, Happening::Comes(number));
            }
            None => {}
        }
    }
}

impl Node {
    /// What an elastic member does. Returns when it wants to train, or to come again.
    pub(super) fn hear_elastic(&mut self, now: Time, event: MemberEvent, last_end: &mut Time) -> Option<Wish> {
        let Some(training) = &mut self.training else {
            return match event {
                MemberEvent::View(view) => {
                    self.forms_again = view.phase == Phase::FormsAgain;
                    None
                }
                MemberEvent::Left if std::mem::take(&mut self.forms_again) => Some(Wish::Comes),
                MemberEvent::Left => {
                    self.end(now, Ok(()), last_end);
                    None
                }
                MemberEvent::Failed(error) => {
                    self.end(now, Err(error), last_end);
                    None
                }
                _ => None,
            };
        };
        match event {
            MemberEvent::Joined { index, view } => {
                (training.is_member, training.steps) = (true, Steps::default());
                training.formations.push((index, view.formed_before));
                return Some(Wish::Trains);
            }
            MemberEvent::Boundary { change, limit, hold } => {
                training.steps.handle_boundary(change, limit).expect("limits are right");
                training.steps.handle_hold(change, hold.map(|hold| hold.patience));
            }
            MemberEvent::Passed { change, outcome } => training.steps.handle_passed(change, outcome),
            MemberEvent::Left => {
                // A worker that waits at the boundary hears of it there.
                let passage = match training.is_member.then(|| training.steps.begin(true)) {
                    Some(Ok(Begin::FormsAgain(passage))) => Some(passage),
                    _ => None,
                };
                training.is_member = false;
                if let Some(passage) = passage {
                    training.passages.push(passage);
                    return Some(Wish::Comes);
                }
                self.end(now, Ok(()), last_end);
                return None;
            }
            MemberEvent::Failed(error) => {
                self.end(now, Err(error), last_end);
                return None;
            }
            _ => return None,
        }
        let report: Option<StepReport> = training.steps.next_report();
        let wakes = training.waits && !training.steps.waits();
        if let Some(report) = report {
            self.member.report_steps(report);
        }
        wakes.then_some(Wish::Wakes)
    }
}

/// What an elastic member does next.
pub(super) enum Wish {
    /// It has joined, and trains.
    Trains,
    /// It has waited at a boundary, and asks again.
    Wakes,
    /// It joins as the job forms again.
    Comes,
}
