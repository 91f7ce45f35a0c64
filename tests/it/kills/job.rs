//! The processes of one trial: starts them, watches them until all have ended, and starts a coordinator in the place of one that was killed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gradlane_core::runtime::Clock;
use gradlane_core::types::{JoinString, Time};
use gradlane_tests::cluster::{PATIENCE, SMALL_PARTS};
use gradlane_tests::over::Over;
use gradlane_tests::patience::elapsed;
use gradlane_tests::processes::{Ended, Process, environment};

use super::cases::{Case, Parts, Who};
use super::trial::Action;
use crate::actors::{ACTOR, coordinator_at, server, worker};

/// Silence counts as loss as late as it does by default, because several jobs run at once, and a process that waits for a core is silent.
const SETTINGS: &[(&str, &str)] = &[
    ("on_worker_loss", "continue"),
    ("on_server_loss", "continue"),
    ("heartbeat_interval", "50ms"),
    ("suspect_timeout", "2s"),
    ("dead_timeout", "5s"),
    ("control_lost_timeout", "20s"),
];
/// The workers of every job.
pub(super) const WORKERS: u32 = 3;
/// The worker that leaves, and the step in which it says so.
const LEAVER: u32 = 2;
const LEAVES_IN: u64 = 3;
/// A server is asked to stop after this step.
const ASKED_AFTER: u64 = 3;
/// How long a process stands still that goes on afterwards: long enough to be suspect, and not to be lost.
const PAUSE: Duration = Duration::from_millis(2200);

/// One process.
pub(super) struct Member {
    pub(super) who: Who,
    pub(super) index: u32,
    process: Process,
    /// What it is told of its place, if it is to end there, and how.
    pub(super) armed: Option<(String, Action)>,
    /// What it has printed.
    pub(super) lines: Vec<String>,
    /// How it ended.
    pub(super) ended: Option<Ended>,
    /// Since when it stands still.
    still: Option<Time>,
    is_woken: bool,
}

/// The processes of a trial.
pub(super) struct Job {
    pub(super) members: Vec<Member>,
    /// Those that were started, in their order.
    pub(super) coordinators: Vec<Member>,
    case: Case,
    join: JoinString,
    home: tempfile::TempDir,
    /// What the coordinator is told that is started next.
    next: Option<(String, Action)>,
    is_asked: bool,
    clock: Clock,
}

/// The places at which processes end: who, the how manieth of them, what it is told, and how it ends there.
pub(super) type Armed = (Who, u32, String, Action);

/// Starts a process with these settings.
type Starting<'a> = dyn Fn(&[(&str, &str)]) -> Process + 'a;

impl Job {
    pub(super) fn start(case: Case, over: Over, armed: &[Armed]) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let sockets = sockets(home.path());
        std::fs::create_dir(&sockets).expect("a new directory");
        let sockets = sockets.to_str().expect("plain").to_owned();
        let told = |who: Who, index: u32| {
            let place = armed.iter().find(|(of, nth, ..)| (*of, *nth) == (who, index));
            place.map(|(_, _, point, action)| (point.clone(), *action))
        };
        let member = |who, index, start: &Starting<'_>| {
            let armed = told(who, index);
            let place = armed.as_ref().map(|(point, _)| ("failpoint", &**point));
            let own = settings(case, [("runtime_dir", &*sockets)].into_iter().chain(place));
            Member {
                who,
                index,
                process: start(&own),
                armed,
                lines: Vec::new(),
                ended: None,
                still: None,
                is_woken: false,
            }
        };
        let join = std::cell::OnceCell::new();
        let first = member(Who::Coordinator, 0, &|settings| {
            let settings = [settings, &[("resume", "true")]].concat();
            let (process, announced) = coordinator_at(home.path(), "127.0.0.1:0", WORKERS, case.servers, &settings);
            join.set(announced).expect("it is started once");
            process
        });
        let join = join.into_inner().expect("it was announced");
        let servers =
            (0..case.servers).map(|index| member(Who::Server, index, &|settings| server(over, &join, index, settings)));
        let mut members: Vec<Member> = servers.collect();
        members.extend((0..WORKERS).map(|rank| {
            let leaves = case.leaves && rank == LEAVER;
            let numbers = [case.steps, case.elements as u64, case.servers.into(), LEAVES_IN];
            let numbers = numbers.map(|number| number.to_string());
            let words: Vec<&str> = ["steps"].into_iter().chain(numbers.iter().map(|number| &**number)).collect();
            let words = if leaves { &words[..] } else { &words[..4] };
            let who = if leaves { Who::Leaver } else { Who::Worker };
            member(who, rank, &|settings| worker(over, words, &join, Some(rank), WORKERS, settings))
        }));
        let next = told(Who::NextCoordinator, 0);
        Self { members, coordinators: vec![first], case, join, home, next, is_asked: false, clock: Clock::start() }
    }

    /// Where the processes have their sockets.
    pub(super) fn sockets(&self) -> PathBuf {
        sockets(self.home.path())
    }

    /// The directory in which coordinators keep what they know.
    pub(super) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Watches until all have ended.
    ///
    /// # Errors
    /// Who has not, after so long that it never will.
    pub(super) fn watch(&mut self) -> Result<(), String> {
        loop {
            let now = self.clock.now();
            for member in self.members.iter_mut().chain(&mut self.coordinators) {
                member.look(now);
            }
            self.ask();
            self.wake(now);
            let is_killed = |member: &Member| member.ended.as_ref().is_some_and(|ended| ended.code != Some(0));
            if self.coordinators.last().is_some_and(|last| last.armed.is_some() && is_killed(last)) {
                self.start_again();
            }
            let mut all = self.members.iter().chain(&self.coordinators);
            if all.all(|member| member.ended.is_some()) {
                return Ok(());
            }
            if elapsed(self.clock) > PATIENCE + PATIENCE {
                return Err(self.hang());
            }
            crossbeam_channel::after(Duration::from_millis(5)).recv().expect("a timer fires");
        }
    }

    /// Asks the first server to stop, once the workers train.
    fn ask(&mut self) {
        let step = format!("step {ASKED_AFTER} ");
        let trains = self.members.iter().any(|member| member.lines.iter().any(|line| line.starts_with(&step)));
        if self.case.asks && !self.is_asked && trains {
            self.is_asked = true;
            self.members[0].process.signal("TERM");
        }
    }

    /// Lets those go on that stand still, or ends them.
    fn wake(&mut self, now: Time) {
        let is_worker = |member: &&Member| matches!(member.who, Who::Worker | Who::Leaver);
        let others = || self.members.iter().filter(is_worker).filter(|member| member.still.is_none());
        let is_over = others().all(|member| member.ended.is_some());
        // From the sums that the others have had.
        let sums: Vec<String> =
            others().flat_map(|member| member.lines.iter().filter_map(|line| ranks(line))).collect();
        for member in self.members.iter_mut().chain(&mut self.coordinators) {
            let (Some(since), None, Some((_, action)), false) =
                (member.still, &member.ended, &member.armed, member.is_woken)
            else {
                continue;
            };
            let (action, is_long, own) = (*action, now.since(since) >= PAUSE, member.index.to_string());
            let is_given_up = sums.iter().any(|ranks| !is_in_all(&own, ranks));
            match (action, member.who) {
                (Action::Pause, _) if is_long => member.wake("CONT"),
                // Nobody can take its place while it stands there.
                (Action::Stop, Who::Coordinator | Who::NextCoordinator) if is_long => member.wake("KILL"),
                (Action::Stop, Who::Worker) if is_given_up => member.wake("CONT"),
                (Action::Stop, Who::Worker | Who::Leaver | Who::Server) if is_over => member.wake("KILL"),
                _ => {}
            }
        }
    }

    /// Starts a coordinator that goes on with the job.
    fn start_again(&mut self) {
        let armed = self.next.take();
        let place = armed.as_ref().map(|(point, _)| ("failpoint", &**point));
        let settings = settings(self.case, [("resume", "true")].into_iter().chain(place));
        let (workers, servers) = (WORKERS.to_string(), self.case.servers.to_string());
        let line = ["coordinator", "-n", &workers, "-s", &servers, "--bind", &self.join.address];
        let process = Process::start(Path::new(ACTOR), &line, self.home.path(), &environment(&settings));
        self.coordinators.push(Member {
            who: Who::NextCoordinator,
            index: u32::try_from(self.coordinators.len()).expect("a few"),
            process,
            armed,
            lines: Vec::new(),
            ended: None,
            still: None,
            is_woken: false,
        });
    }

    fn hang(&mut self) -> String {
        let mut told = "it hangs".to_owned();
        for member in self.members.iter_mut().chain(&mut self.coordinators) {
            if member.ended.is_none() {
                told += &format!(
                    "; {:?} {} has not ended, and said last {:?}",
                    member.who,
                    member.index,
                    member.lines.last()
                );
                member.process.signal("KILL");
                member.ended = Some(member.process.end());
            }
        }
        told
    }
}

impl Member {
    /// Whether it has come to the place at which it was to end.
    pub(super) fn has_reached(&self) -> bool {
        let (Some((place, _)), Some(ended)) = (&self.armed, &self.ended) else { return false };
        let name = place.split(':').next().expect("a name");
        ended.complaints.contains(&format!("failpoint {name} "))
    }

    fn look(&mut self, now: Time) {
        self.lines.extend(self.process.lines());
        if self.ended.is_none() && self.process.has_ended() {
            let ended = self.process.end();
            self.lines.extend(ended.output.iter().cloned());
            self.ended = Some(ended);
        }
        if self.ended.is_none() && self.armed.is_some() && self.still.is_none() && self.process.is_stopped() {
            self.still = Some(now);
        }
    }

    fn wake(&mut self, signal: &str) {
        self.is_woken = true;
        self.process.signal(signal);
    }
}

/// The ranks that a line of a worker says to be in a sum.
pub(super) fn ranks(line: &str) -> Option<String> {
    let (_, rest) = line.strip_prefix("step ")?.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// Whether a rank is in all parts of a sum, as such a line says.
pub(super) fn is_in_all(rank: &str, ranks: &str) -> bool {
    ranks.split('|').all(|part| part.split(", ").any(|other| other == rank))
}

/// The settings of all processes, and those of one.
fn settings<'a>(case: Case, own: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<(&'a str, &'a str)> {
    let parts = if case.parts == Parts::Small { &SMALL_PARTS[..] } else { &[] };
    SETTINGS.iter().chain(parts).copied().chain(own).collect()
}

fn sockets(home: &Path) -> PathBuf {
    home.join("sockets")
}
