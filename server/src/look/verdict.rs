//! Who holds a job up, and why: from what servers saw of workers, and what the workers say of themselves.
//!
//! Servers say which worker was missing alone, and what its contributions waited for. That names the worker and the place. What its other
//! metrics show more of than those of the other workers may tell the cause behind it ([`Sign`]).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use gradlane_core::types::{Cause, Role};

use super::since::{NANOSECONDS, Since, average};
use super::words;

/// Who holds the job up.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Verdict {
    /// There is only one reading, or no server answered in both.
    Unknown,
    /// No sum ended between the readings.
    NoSums,
    /// All workers come at about the same time.
    Nobody,
    /// One comes late.
    Late {
        /// Which.
        rank: u32,
        /// Mostly why.
        cause: Cause,
        /// For how long only it was missing, in a step on average.
        late: Duration,
        /// What explains that.
        sign: Option<Sign>,
    },
    /// A server is behind with its additions.
    Behind {
        /// Which.
        server: u32,
        /// For how long workers waited for it, in a step on average.
        late: Duration,
    },
    /// All workers wait for credit.
    Credit {
        /// For this share of the time.
        share: f64,
    },
}

/// What a worker that comes late has more of than the others.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Sign {
    /// The share of the time for which its training waits for its data loader.
    Data(f64),
    /// The seconds for which its threads wait for a core, in a second.
    Core(f64),
    /// The share of the packets to its servers that are lost.
    Loss(f64),
    /// Packets wait on the way to its servers: the round trip, and the median of those of other workers.
    Full(Duration, Duration),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("wait for the next second"),
            Self::NoSums => f.write_str("no sum ended on a server"),
            Self::Nobody => f.write_str("nobody is late"),
            Self::Late { rank, cause, late, sign } => {
                write!(f, "rank {rank} late ({}) {} a step", cause.name(), words::millis(*late))?;
                sign.map_or(Ok(()), |sign| write!(f, ": {sign}"))
            }
            Self::Behind { server, late } => {
                write!(f, "server {server} is behind with its additions, {} a step", words::millis(*late))
            }
            Self::Credit { share } => {
                write!(f, "workers wait for credit, {} of the time: raise credit_bytes", words::percent(*share))
            }
        }
    }
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(share) => {
                write!(f, "its training waits for its data loader, {} of the time", words::percent(*share))
            }
            Self::Core(seconds) => write!(f, "its threads wait for a core, {seconds:.1} s in a second"),
            Self::Loss(share) => write!(f, "{:.1} % of its packets are lost", share * 100.0),
            Self::Full(own, others) => {
                let [own, others] = [own, others].map(|rtt| words::micros(*rtt));
                write!(f, "its link is full, a round trip takes {own}, and that of others {others}")
            }
        }
    }
}

/// For how long rounds waited for ranks alone, and for servers that were behind.
#[derive(Default)]
pub(super) struct Lateness {
    late: BTreeMap<u32, Late>,
    behind: BTreeMap<u32, u64>,
    /// Steps in this time, by the server that has seen most.
    steps: u64,
    /// Rounds of parts that had their sum, on all servers.
    rounds: u64,
}

/// Nanoseconds by cause.
type Late = [u64; Cause::ALL.len()];

impl Lateness {
    /// What the servers counted between two readings.
    pub(super) fn between(since: &Since<'_>) -> Self {
        let mut lateness = Self::default();
        for server in since.members(Role::Server) {
            lateness.steps = lateness.steps.max(since.steps(server));
            lateness.rounds += since.count(server, "round_duration_nanoseconds").unwrap_or_default();
            let mut here: BTreeMap<u32, Late> = BTreeMap::new();
            for (labels, late) in since.growth(server, "late_nanoseconds") {
                let [rank, cause] = labels else { continue };
                // Of many workers only the worst are told apart.
                match (rank.parse(), Cause::ALL.into_iter().find(|known| known.name() == cause)) {
                    (_, Some(Cause::Sum)) => *lateness.behind.entry(server.1).or_default() += late,
                    (Ok(rank), Some(cause)) => here.entry(rank).or_default()[cause as usize] += late,
                    (Err(_), Some(_)) | (_, None) => {}
                }
            }
            lateness.add(here);
        }
        lateness
    }

    /// A server has waited for so long. Servers wait at the same time, so the one that waited longest for a rank counts.
    fn add(&mut self, here: BTreeMap<u32, Late>) {
        for (rank, late) in here {
            let longest = self.late.entry(rank).or_default();
            if late.iter().sum::<u64>() > longest.iter().sum() {
                *longest = late;
            }
        }
    }

    /// For how long a step waited for a rank, and mostly why. `None` if there was no round.
    pub(super) fn of(&self, rank: u32) -> Option<(Duration, Option<Cause>)> {
        let late = self.late.get(&rank).copied().unwrap_or_default();
        let cause = Cause::ALL.into_iter().max_by_key(|cause| late[*cause as usize]);
        let all: u64 = late.iter().sum();
        (self.rounds > 0).then(|| (self.in_a_step(all), cause.filter(|_| all > 0)))
    }

    /// So much of all that, in a step on average. There was at least one step, which may not have ended.
    fn in_a_step(&self, nanoseconds: u64) -> Duration {
        Duration::from_nanos(nanoseconds / self.steps.max(1))
    }

    /// The worker that was missing longest.
    fn latest(&self) -> Option<(Duration, u32, Cause)> {
        let of = |rank: &u32| self.of(*rank).and_then(|(late, cause)| Some((late, *rank, cause?)));
        self.late.keys().filter_map(of).max()
    }

    /// The server that was behind longest.
    fn most_behind(&self) -> Option<(Duration, u32)> {
        self.behind.iter().map(|(server, behind)| (self.in_a_step(*behind), *server)).max()
    }
}

/// Who held the job up between two readings, by the lateness between them. A step took `step_time`, and workers waited for handles for `exposed`
/// of the time.
pub(super) fn verdict_of(
    since: &Since<'_>,
    lateness: &Lateness,
    step_time: Option<Duration>,
    exposed: Option<f64>,
) -> Verdict {
    if lateness.rounds == 0 {
        let mut servers = since.members(Role::Server).peekable();
        let all_are_new = servers.peek().is_some() && servers.all(|server| since.seconds(server).is_none());
        return if all_are_new { Verdict::Unknown } else { Verdict::NoSums };
    }
    let counts = step_time.map_or(COUNTS, |step_time| step_time.mul_f64(COUNTS_OF_A_STEP).max(COUNTS));
    let late = lateness.latest().filter(|(late, ..)| *late >= counts);
    let behind = lateness.most_behind().filter(|(late, _)| *late >= counts);
    match (late, behind) {
        (Some((late, rank, cause)), behind) if behind.is_none_or(|(behind, _)| behind < late) => {
            Verdict::Late { rank, cause, late, sign: sign(since, rank, cause) }
        }
        (_, Some((late, server))) => Verdict::Behind { server, late },
        (_, None) => match waits_for_credit(since) {
            Some(share) if share >= MUCH && exposed.is_some_and(|exposed| exposed >= MUCH) => Verdict::Credit { share },
            Some(_) | None => Verdict::Nobody,
        },
    }
}

/// What explains that a worker was late for this cause.
fn sign(since: &Since<'_>, rank: u32, cause: Cause) -> Option<Sign> {
    if cause == Cause::Transfer {
        let loss = since.links((Role::Worker, rank)).loss.filter(|loss| *loss >= LOSS);
        // A full link loses packets too.
        if let Some(sign) = full(since, rank).or(loss.map(Sign::Loss)) {
            return Some(sign);
        }
    }
    let late = late_share(since, rank);
    let more = |name| more_than_others(since, rank, name).filter(|more| *more >= late * MUCH);
    let data = more("data_wait_nanoseconds").filter(|_| cause == Cause::Submit);
    let core = more("run_delay_nanoseconds");
    match (data, core) {
        (Some(data), core) if core.is_none_or(|core| core < data) => Some(Sign::Data(data)),
        (_, core) => core.map(Sign::Core),
    }
}

/// For how many seconds in a second only this worker was missing, on the server where it was missing longest.
fn late_share(since: &Since<'_>, rank: u32) -> f64 {
    let rank = rank.to_string();
    let on = |server| {
        let late = since.growth(server, "late_nanoseconds");
        let late: u64 = late.iter().filter(|(labels, _)| labels.first() == Some(&rank)).map(|(_, late)| late).sum();
        Some(late as f64 / NANOSECONDS / since.seconds(server)?)
    };
    since.members(Role::Server).filter_map(on).fold(0.0, f64::max)
}

/// Whether packets of this worker wait much longer than those of others.
fn full(since: &Since<'_>, rank: u32) -> Option<Sign> {
    let (own, others) = beside_others(since, rank, |worker| Some(since.links(worker).rtt?.as_secs_f64()))?;
    let [own, others] = [own, others].map(Duration::from_secs_f64);
    if own >= WAITS && own >= others * MANY { Some(Sign::Full(own, others)) } else { None }
}

/// By how many seconds in a second a counter of this worker grows faster than the median of the others.
fn more_than_others(since: &Since<'_>, rank: u32, name: &str) -> Option<f64> {
    let rate = |worker| since.rate(worker, name).map(|rate| rate / NANOSECONDS);
    beside_others(since, rank, rate).map(|(own, others)| own - others).filter(|more| *more > 0.0)
}

/// A number of this worker, and the median of the others; 0 if there are none.
fn beside_others(since: &Since<'_>, rank: u32, of: impl Fn((Role, u32)) -> Option<f64>) -> Option<(f64, f64)> {
    let others = since.members(Role::Worker).filter(|(_, other)| *other != rank);
    let mut others: Vec<f64> = others.filter_map(&of).collect();
    others.sort_by(f64::total_cmp);
    Some((of((Role::Worker, rank))?, others.get(others.len() / 2).copied().unwrap_or_default()))
}

/// The share of the time for which workers wait for credit on a link, on average.
fn waits_for_credit(since: &Since<'_>) -> Option<f64> {
    let of = |worker| {
        let limited = since.growth(worker, "link_limited_nanoseconds");
        let credit = limited.iter().filter(|(labels, _)| labels.get(1).is_some_and(|by| by == "credit"));
        let longest = credit.map(|(_, time)| *time).max()?;
        Some(longest as f64 / NANOSECONDS / since.seconds(worker)?)
    };
    average(since.members(Role::Worker).filter_map(of))
}

/// Somebody is always last. A delay that is shorter than both costs nothing that anybody would notice.
const COUNTS: Duration = Duration::from_millis(1);
const COUNTS_OF_A_STEP: f64 = 0.1;
/// A share of what it is to explain.
const MUCH: f64 = 0.3;
/// A path without a fault loses less, unless it is full.
const LOSS: f64 = 0.003;
/// A round trip without waits may take as long, in one building and through a busy host.
const WAITS: Duration = Duration::from_millis(10);
/// So many times as long as that of others is no accident.
const MANY: u32 = 3;
