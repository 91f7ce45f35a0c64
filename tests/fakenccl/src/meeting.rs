//! How ranks find each other, and wait for each other with a deadline.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::codes::{Failure, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, Outcome, REMOTE_ERROR};
use crate::settings::{now, variable};
use crate::shared::{Own, RANKS_MAX, Shared, Word};

/// One rank's side of the file in which they meet.
pub(crate) struct Meeting {
    pub(crate) shared: Shared,
    pub(crate) path: PathBuf,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    timeout: Duration,
    /// Whether it notices neither the end of a rank nor a failure on another one, as NCCL's kernels do within a machine.
    is_strict: bool,
    /// How often this rank came to where all meet, in operations and in calls.
    arrived: [AtomicU64; 2],
}

/// Where ranks meet: operations in streams and calls of threads do not mix.
#[derive(Clone, Copy)]
pub(crate) enum BarrierKind {
    Operations = 0,
    Calls = 1,
}

/// Nobody yet: `State` begins as a file does.
const ABSENT: u64 = 0;
const THERE: u64 = 1;
const LEFT: u64 = 2;
const GAVE_UP: u64 = 3;
/// Writes down who it is.
const COMING: u64 = 4;

/// Tries without a pause before it sleeps.
const EAGER: u32 = 50;
/// How much longer to wait for a rank that has not come yet than for one that has.
const MEETING_FACTOR: u32 = 6;

impl Meeting {
    /// Waits for all ranks.
    pub(crate) fn join(
        path: &Path,
        rank: usize,
        ranks: usize,
        device: Option<&str>,
        (timeout, is_strict): (Duration, bool),
        aborted: &AtomicBool,
    ) -> Outcome<Self> {
        if ranks == 0 || ranks > RANKS_MAX || rank >= ranks {
            return Err(Failure::argument(format!("rank {rank} of {ranks}; at most {RANKS_MAX}")));
        }
        let shared = Shared::open(path, ranks)?;
        let path_of_file = path.to_owned();
        let meeting = Self { shared, path: path_of_file, rank, ranks, timeout, is_strict, arrived: Default::default() };
        let outcome = meeting.meet(device, aborted);
        if let Err(failure) = &outcome {
            meeting.fail(failure);
            let _ = std::fs::remove_file(path);
        }
        outcome.map(|()| meeting)
    }

    fn meet(&self, device: Option<&str>, aborted: &AtomicBool) -> Outcome {
        let (shared, rank, ranks) = (&self.shared, self.rank, self.ranks);
        let ours = u32::try_from(ranks).unwrap_or(u32::MAX);
        let said = shared.word(Word::Ranks).compare_exchange(0, ours, Ordering::AcqRel, Ordering::Acquire);
        if let Err(theirs) = said
            && theirs != ours
        {
            return Err(Failure::argument(format!("rank {rank} says that there are {ranks}, another one {theirs}")));
        }
        let own = |own: Own, value: u64| shared.own(rank, own).store(value, Ordering::Release);
        let state = shared.own(rank, Own::State);
        if state.compare_exchange(ABSENT, COMING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(Failure::new(INVALID_USAGE, format!("rank {rank} came twice")));
        }
        let process = std::process::id();
        own(Own::Process, u64::from(process));
        own(Own::Began, began(process).unwrap_or(0));
        own(Own::Device, device.map_or(0, place));
        state.store(THERE, Ordering::Release);
        let joined = shared.word(Word::Joined).fetch_add(1, Ordering::AcqRel) + 1;
        shared.tell();
        if joined == ours {
            // All have it open; nobody else can come.
            let _ = std::fs::remove_file(&self.path);
        }
        let is_absent =
            |other: &usize| [ABSENT, COMING].contains(&shared.own(*other, Own::State).load(Ordering::Acquire));
        let absent = || (0..ranks).find(is_absent);
        self.wait(self.timeout * MEETING_FACTOR, &|| "the meeting".to_owned(), aborted, absent)?;
        let device_of = |other: usize| shared.own(other, Own::Device).load(Ordering::Acquire);
        match (0..ranks).find(|other| *other != rank && device_of(rank) != 0 && device_of(*other) == device_of(rank)) {
            Some(other) => {
                let device = device.unwrap_or_default();
                let text =
                    format!("Duplicate GPU detected : rank {rank} and rank {other} both on CUDA device {device}");
                Err(Failure::new(INVALID_USAGE, text))
            }
            None => Ok(()),
        }
    }

    /// Waits until all ranks are here.
    pub(crate) fn barrier(&self, kind: BarrierKind, what: &dyn Fn() -> String, aborted: &AtomicBool) -> Outcome {
        let own = match kind {
            BarrierKind::Operations => Own::Arrived,
            BarrierKind::Calls => Own::ArrivedCalls,
        };
        let number = self.arrived[kind as usize].fetch_add(1, Ordering::AcqRel) + 1;
        self.shared.own(self.rank, own).store(number, Ordering::Release);
        self.shared.tell();
        let absent = || (0..self.ranks).find(|rank| self.shared.own(*rank, own).load(Ordering::Acquire) < number);
        self.wait(self.timeout, what, aborted, absent)
    }

    /// Waits until nobody is `missing`: until all did what is waited for, or it is known that they will not.
    pub(crate) fn wait_for(
        &self,
        what: &dyn Fn() -> String,
        aborted: &AtomicBool,
        missing: impl Fn() -> Option<usize>,
    ) -> Outcome {
        self.wait(self.timeout, what, aborted, missing)
    }

    fn wait(
        &self,
        timeout: Duration,
        what: &dyn Fn() -> String,
        aborted: &AtomicBool,
        missing: impl Fn() -> Option<usize>,
    ) -> Outcome {
        let begin = now();
        let mut tries = 0;
        loop {
            let seen = self.shared.word(Word::News).load(Ordering::Acquire);
            let Some(other) = missing() else { return Ok(()) };
            if aborted.load(Ordering::Acquire) {
                return Err(Failure::new(INTERNAL_ERROR, format!("{} was aborted", what())));
            }
            match self.shared.word(Word::Failed).load(Ordering::Acquire) {
                0 => {}
                // Ranks that call different things are told all the same: they would mix up bytes, and no test wants that.
                code if self.is_strict && code != INVALID_USAGE => {}
                code => return Err(Failure::new(code, format!("another rank failed before or in {}", what()))),
            }
            if tries < EAGER {
                tries += 1;
                std::thread::yield_now();
                continue;
            }
            if self.is_strict {
                self.shared.listen(seen);
                continue;
            }
            if let Some(gone) = self.gone(other) {
                return Err(Failure::new(REMOTE_ERROR, format!("rank {other} {gone}, and is missing in {}", what())));
            }
            if begin.elapsed() >= timeout {
                let text = format!("rank {other} did not come to {} for {timeout:?}", what());
                return Err(Failure::new(REMOTE_ERROR, text));
            }
            self.shared.listen(seen);
        }
    }

    /// Waits until all ranks have left in order or given up, for ever if one ended otherwise: whoever frees a communicator is waited for.
    pub(crate) fn part(&self) {
        let stays = |rank: usize| ![LEFT, GAVE_UP].contains(&self.shared.own(rank, Own::State).load(Ordering::Acquire));
        loop {
            let seen = self.shared.word(Word::News).load(Ordering::Acquire);
            if !(0..self.ranks).any(stays) {
                return;
            }
            self.shared.listen(seen);
        }
    }

    /// Why a rank will not come any more.
    fn gone(&self, rank: usize) -> Option<&'static str> {
        let own = |own: Own| self.shared.own(rank, own).load(Ordering::Acquire);
        match own(Own::State) {
            LEFT => Some("left"),
            GAVE_UP => Some("gave up"),
            THERE if began(u32::try_from(own(Own::Process)).ok()?) != Some(own(Own::Began)) => Some("ended"),
            _ => None,
        }
    }

    /// Tells the others that it is over.
    pub(crate) fn fail(&self, failure: &Failure) {
        // A wrong argument of one is no fault of the others; they hear that somebody failed.
        let code = if failure.code == INVALID_ARGUMENT { REMOTE_ERROR } else { failure.code };
        let _ = self.shared.word(Word::Failed).compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
        self.shared.tell();
    }

    /// This rank goes, in order or not.
    pub(crate) fn leave(&self, in_order: bool) {
        let state = if in_order { LEFT } else { GAVE_UP };
        self.shared.own(self.rank, Own::State).store(state, Ordering::Release);
        self.shared.tell();
    }
}

/// When a process began; none if it does not run. A zombie does not.
fn began(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in brackets may hold anything; the state is field 3, the beginning field 22 (`proc_pid_stat(5)`).
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.nth(18)?.parse().ok(),
    }
}

/// A device of a machine as a number that is not 0.
fn place(device: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    variable("NCCL_HOSTID").hash(&mut hasher);
    device.hash(&mut hasher);
    hasher.finish() | 1
}
