//! One trial: a case, over a transport, with an action, at the moment that a seed chooses; and what must hold of it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use gradlane_core::local::PrivateSocket;
use gradlane_tests::over::Over;
use gradlane_tests::random::Random;

use super::cases::{Case, Victim, Who};
use super::job::{Armed, Job, Member, WORKERS, is_in_all, ranks};

/// What becomes of a process at its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Kill,
    Abort,
    Exit,
    /// It stands still until the others go on without it. Then a worker goes on, and others are killed.
    Stop,
    /// It stands still, not for long.
    Pause,
}

impl Action {
    pub(super) const ALL: [Self; 5] = [Self::Kill, Self::Abort, Self::Exit, Self::Stop, Self::Pause];

    fn word(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Abort => "abort",
            Self::Exit => "exit",
            Self::Stop | Self::Pause => "stop",
        }
    }
}

pub(super) struct Trial {
    pub(super) case: &'static Case,
    pub(super) over: Over,
    pub(super) action: Action,
    pub(super) seed: u64,
}

impl Trial {
    /// Runs the job. Returns whether all victims came to their places.
    ///
    /// # Errors
    /// What is wrong, and what the processes said.
    pub(super) fn run(&self) -> Result<bool, String> {
        let mut job = Job::start(*self.case, self.over, &self.armed());
        let outcome = job.watch().and_then(|()| self.judge(&job));
        outcome.map_err(|wrong| {
            let mut told = format!("{self}: {wrong}");
            for member in job.members.iter().chain(&job.coordinators) {
                let (code, complaints) =
                    member.ended.as_ref().map_or((None, ""), |ended| (ended.code, &*ended.complaints));
                let last: Vec<&str> = complaints.lines().rev().take(6).collect();
                told += &format!("\n  {:?} {}: code {code:?}, {} lines", member.who, member.index, member.lines.len());
                last.iter().rev().for_each(|line| told += &format!("\n    {line}"));
            }
            told
        })
    }

    /// Who ends where. Several victims of a kind are processes one after the other.
    fn armed(&self) -> Vec<Armed> {
        let mut random = Random::new(self.seed);
        let last = self.case.victims.len() - 1;
        let first_worker = u32::try_from(self.seed).unwrap_or(0) % if self.case.leaves { 2 } else { WORKERS };
        let armed = self.case.victims.iter().enumerate().map(|(place, Victim { who, point, often })| {
            let before = self.case.victims[..place].iter().filter(|victim| victim.who == *who).count();
            let before = u32::try_from(before).expect("a few");
            let index = match who {
                Who::Worker => (first_worker + before) % WORKERS,
                Who::Leaver => WORKERS - 1,
                Who::Server => before,
                Who::Coordinator | Who::NextCoordinator => 0,
            };
            let nth = if self.seed == 0 { often.div_ceil(2) } else { 1 + random.below(*often) };
            let action = if place == last { self.action } else { Action::Kill };
            (*who, index, format!("{}:{nth}:{}", point.name(), action.word()), action)
        });
        armed.collect()
    }

    fn judge(&self, job: &Job) -> Result<bool, String> {
        let all = || job.members.iter().chain(&job.coordinators);
        for member in all() {
            let ended = member.ended.as_ref().expect("all have ended");
            if ended.complaints.contains("panicked") {
                return Err(format!("{:?} {} panicked", member.who, member.index));
            }
            self.check_code(member, ended.code)?;
        }
        let reached = all().filter(|member| member.armed.is_some()).all(Member::has_reached)
            && self.case.victims.len() == all().filter(|member| member.armed.is_some()).count();
        if !reached && !self.case.may_miss {
            return Err("a victim did not come to its place".to_owned());
        }
        let workers: Vec<&Member> = job.members.iter().filter(|member| member.who != Who::Server).collect();
        self.check_sums(&workers)?;
        check_traces(job)?;
        Ok(reached)
    }

    /// Those to which nothing happened ended in order, and so did those that went on.
    fn check_code(&self, member: &Member, code: Option<i32>) -> Result<(), String> {
        let right = match &member.armed {
            Some((_, action)) if member.has_reached() => match action {
                Action::Kill | Action::Abort => code.is_none(),
                Action::Exit => code == Some(86),
                // Given up, and told so.
                Action::Stop => code != Some(0),
                Action::Pause if self.case.asks => code == Some(128 + 15),
                // A busy machine may take it for dead.
                Action::Pause => code == Some(0) || code == Some(1),
            },
            _ => code == Some(0),
        };
        if right { Ok(()) } else { Err(format!("{:?} {} ended with {code:?}", member.who, member.index)) }
    }

    /// Every sum is the same for all that had it, and those that came to the end are in all of theirs.
    fn check_sums(&self, workers: &[&Member]) -> Result<(), String> {
        let mut known: BTreeMap<String, (String, u32)> = BTreeMap::new();
        let came_to_the_end = |member: &&&Member| member.ended.as_ref().is_some_and(|ended| ended.code == Some(0));
        let survivors: Vec<&&Member> = workers.iter().filter(came_to_the_end).collect();
        if survivors.is_empty() {
            return Err("nobody came to the end".to_owned());
        }
        for worker in workers {
            for line in worker.lines.iter().filter(|line| line.starts_with("step ")) {
                let (sum, content) = line.split_once(" [").ok_or_else(|| format!("{line:?}"))?;
                let entry = known.entry(sum.to_owned()).or_insert_with(|| (content.to_owned(), worker.index));
                if entry.0 != content {
                    return Err(format!(
                        "{sum}: [{} for worker {}, [{content} for worker {}",
                        entry.0, entry.1, worker.index
                    ));
                }
            }
        }
        for survivor in survivors {
            let own = survivor.index.to_string();
            let sums: Vec<String> = survivor.lines.iter().filter_map(|line| ranks(line)).collect();
            let left = survivor.lines.iter().find_map(|line| line.strip_prefix("left "));
            let steps = left.map_or(Ok(self.case.steps), str::parse::<u64>).map_err(|error| error.to_string())?;
            if sums.len() as u64 != steps * TENSORS {
                return Err(format!("worker {own} has {} sums of {steps} steps", sums.len()));
            }
            if let Some(wrong) = sums.iter().find(|ranks| !is_in_all(&own, ranks)) {
                return Err(format!("worker {own} is missing in a sum of {wrong}"));
            }
        }
        Ok(())
    }
}

/// Nothing is left of the job: no file of its coordinator, no socket, no shared memory with a name.
fn check_traces(job: &Job) -> Result<(), String> {
    // Whoever listens next removes what killed processes left.
    let next = PrivateSocket::listen(&job.sockets()).map_err(|error| error.to_string())?;
    let sockets = fs::read_dir(job.sockets()).map_err(|error| error.to_string())?.count();
    drop(next);
    if sockets != 1 {
        return Err(format!("{} directories of sockets are left", sockets - 1));
    }
    let shared = fs::read_dir("/dev/shm").map_err(|error| error.to_string())?;
    let ours = |name: &String| name.contains("gradlane") || name.starts_with("gl-");
    let names = shared.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let left: Vec<String> = names.filter(ours).collect();
    if !left.is_empty() {
        return Err(format!("left in /dev/shm: {left:?}"));
    }
    let kept = crate::membership::walk(job.home());
    let kept: Vec<_> = kept.iter().filter(|path| path.ends_with("journal") || path.ends_with("authority")).collect();
    if kept.is_empty() { Ok(()) } else { Err(format!("left of the coordinator: {kept:?}")) }
}

/// The sums of a step.
const TENSORS: u64 = 4;

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let armed: Vec<String> =
            self.armed().iter().map(|(who, index, point, _)| format!("{who:?} {index} {point}")).collect();
        write!(f, "{} {:?} seed {}, {}", self.over, self.action, self.seed, armed.join(", "))
    }
}
