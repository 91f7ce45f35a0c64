//! Who holds a job up, and why: from what servers saw of workers, what the leader of a machine saw of the workers there, and what the workers say
//! of themselves.
//!
//! Servers and leaders say which worker was missing alone, and what its contributions waited for. That names the worker and the place. Where a
//! server had to wait for a worker which itself waited for another one of its machine, the other one is late. What the metrics of a worker show
//! more of than those of the other workers may tell the cause behind it ([`Sign`]).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use gradlane_core::types::{Cause, Machines, Role, WorkerId};

use super::nics::{FULL, Nics};
use super::since::{NANOSECONDS, Since, average};
use super::words;

/// Who holds the job up.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Verdict {
    /// There is only one reading, or no server answered in both.
    Unknown,
    /// No sum of several workers ended between the readings.
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
    /// All workers wait for the network of a server.
    FullServer {
        /// Which.
        server: u32,
        /// What its machine uses of what its network interfaces can carry.
        share: f64,
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
    /// The network interfaces of its machine are full: this share of what they can carry.
    Nic(f64),
    /// Those of the machine of a server are.
    FullServer(u32, f64),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("wait for the next second"),
            Self::NoSums => f.write_str("no sum of several workers ended"),
            Self::Nobody => f.write_str("nobody is late"),
            Self::Late { rank, cause, late, sign } => {
                write!(f, "rank {rank} late ({}) {} a step", cause.name(), words::millis(*late))?;
                sign.map_or(Ok(()), |sign| write!(f, ": {sign}"))
            }
            Self::Behind { server, late } => {
                write!(f, "server {server} is behind with its additions, {} a step", words::millis(*late))
            }
            Self::FullServer { server, share } => full_server(f, *server, *share),
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
            Self::Nic(share) => {
                let share = words::percent(*share);
                write!(f, "its link is full, {share} of what the network interfaces of its machine carry")
            }
            Self::FullServer(server, share) => full_server(f, *server, *share),
        }
    }
}

fn full_server(f: &mut fmt::Formatter<'_>, server: u32, share: f64) -> fmt::Result {
    let share = words::percent(share);
    write!(f, "the link of server {server} is full, {share} of what the network interfaces of its machine carry")
}

/// For how long sums waited for ranks alone, and for servers that were behind.
#[derive(Default)]
pub(super) struct Lateness {
    late: BTreeMap<u32, Late>,
    behind: BTreeMap<u32, u64>,
    /// Steps in this time, by the server or the leader of a machine that has seen most.
    steps: u64,
    /// Rounds of parts that had their sum, on all servers and machines.
    rounds: u64,
}

/// For how long a rank was missing alone.
#[derive(Clone, Copy, Default)]
struct Late {
    /// Nanoseconds by cause.
    by_cause: [u64; Cause::ALL.len()],
    /// In how many seconds.
    seconds: f64,
}

impl Late {
    fn nanoseconds(&self) -> u64 {
        self.by_cause.iter().sum()
    }
}

impl Lateness {
    /// What servers and leaders counted between two readings.
    pub(super) fn between(since: &Since<'_>) -> Self {
        let mut lateness = Self::default();
        for server in since.members(Role::Server) {
            lateness.steps = lateness.steps.max(since.growth_of(server, "steps"));
            lateness.rounds += since.count(server, "round_duration_nanoseconds").unwrap_or_default();
            for (rank, late) in lateness.read(since, server, "late_nanoseconds") {
                lateness.add(rank, late);
            }
        }
        let machines = Machines::of(&since.now.status.view);
        for leader in since.members(Role::Worker) {
            lateness.steps = lateness.steps.max(since.growth_of(leader, "machine_steps"));
            lateness.rounds += since.growth(leader, "machine_last").iter().map(|(_, rounds)| rounds).sum::<u64>();
            let here = lateness.read(since, leader, "machine_late_nanoseconds");
            lateness.explain(machines.team(WorkerId(leader.1)).unwrap_or_default(), &here);
            for (rank, late) in here {
                lateness.add(rank, late);
            }
        }
        lateness
    }

    /// What a member counted of each rank. What it says of its own additions is that member's.
    fn read(&mut self, since: &Since<'_>, member: (Role, u32), name: &str) -> BTreeMap<u32, Late> {
        let mut ranks: BTreeMap<u32, Late> = BTreeMap::new();
        for (labels, nanoseconds) in since.growth(member, name) {
            let [rank, cause] = labels else { continue };
            // Of many workers only the worst are told apart.
            match (rank.parse(), Cause::ALL.into_iter().find(|known| known.name() == cause)) {
                (_, Some(Cause::Sum)) if member.0 == Role::Server => {
                    *self.behind.entry(member.1).or_default() += nanoseconds
                }
                (Ok(rank), Some(cause)) => {
                    let late = ranks.entry(rank).or_default();
                    late.by_cause[cause as usize] += nanoseconds;
                    late.seconds = since.seconds(member).unwrap_or_default();
                }
                (Err(_), Some(_)) | (_, None) => {}
            }
        }
        ranks
    }

    /// A rank was missing for so long. Servers and machines wait at the same time, so the one that waited longest for a rank counts.
    fn add(&mut self, rank: u32, late: Late) {
        let longest = self.late.entry(rank).or_default();
        if late.nanoseconds() > longest.nanoseconds() {
            *longest = late;
        }
    }

    /// The ranks of a machine have waited for these ranks among them. Meanwhile they could bring no sum to a server, and it blamed them.
    fn explain(&mut self, team: &[WorkerId], here: &BTreeMap<u32, Late>) {
        for WorkerId(rank) in team {
            let others = here.iter().filter(|(other, _)| *other != rank);
            let waited: u64 = others.map(|(_, late)| late.nanoseconds()).sum();
            if let Some(late) = self.late.get_mut(rank) {
                let device = &mut late.by_cause[Cause::Device as usize];
                *device = device.saturating_sub(waited);
            }
        }
    }

    /// For how long a step waited for a rank, and mostly why. `None` if there was no round.
    pub(super) fn of(&self, rank: u32) -> Option<(Duration, Option<Cause>)> {
        let late = self.late.get(&rank).copied().unwrap_or_default();
        let cause = Cause::ALL.into_iter().max_by_key(|cause| late.by_cause[*cause as usize]);
        let all = late.nanoseconds();
        (self.rounds > 0).then(|| (self.in_a_step(all), cause.filter(|_| all > 0)))
    }

    /// For how many seconds in a second only this rank was missing.
    fn share(&self, rank: u32) -> f64 {
        let late = self.late.get(&rank).filter(|late| late.seconds > 0.0);
        late.map_or(0.0, |late| late.nanoseconds() as f64 / NANOSECONDS / late.seconds)
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

/// Who held the job up between two readings, by the lateness between them and by what machines used of their network interfaces. A step took
/// `step_time`, and workers waited for handles for `exposed` of the time.
pub(super) fn verdict_of(
    since: &Since<'_>,
    lateness: &Lateness,
    nics: &Nics<'_>,
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
            Verdict::Late { rank, cause, late, sign: sign(since, lateness, nics, (rank, cause)) }
        }
        (_, Some((late, server))) => Verdict::Behind { server, late },
        (_, None) if exposed.is_some_and(|exposed| exposed >= MUCH) => what_all_wait_for(since, nics),
        (_, None) => Verdict::Nobody,
    }
}

/// Why all workers wait alike.
fn what_all_wait_for(since: &Since<'_>, nics: &Nics<'_>) -> Verdict {
    if let Some((server, share)) = fullest_server(since, nics) {
        return Verdict::FullServer { server, share };
    }
    match waits_for_credit(since) {
        Some(share) if share >= MUCH => Verdict::Credit { share },
        Some(_) | None => Verdict::Nobody,
    }
}

/// What explains that a worker was late for this cause.
fn sign(since: &Since<'_>, lateness: &Lateness, nics: &Nics<'_>, (rank, cause): (u32, Cause)) -> Option<Sign> {
    if cause == Cause::Transfer {
        let nic = nic(since, nics, (Role::Worker, rank)).map(Sign::Nic);
        let loss = || since.links((Role::Worker, rank)).loss.filter(|loss| *loss >= LOSS).map(Sign::Loss);
        let server = || fullest_server(since, nics).map(|(server, share)| Sign::FullServer(server, share));
        // A full link loses packets too. A full server slows all workers alike, so it explains least why one of them is last.
        if let Some(sign) = nic.or_else(|| full(since, rank)).or_else(loss).or_else(server) {
            return Some(sign);
        }
    }
    let late = lateness.share(rank);
    let more = |name| more_than_others(since, rank, name).filter(|more| *more >= late * MUCH);
    let data = more("data_wait_nanoseconds").filter(|_| cause == Cause::Submit);
    let core = more("run_delay_nanoseconds");
    match (data, core) {
        (Some(data), core) if core.is_none_or(|core| core < data) => Some(Sign::Data(data)),
        (_, core) => core.map(Sign::Core),
    }
}

/// How full the network interfaces of the machine of this member are, if they are.
fn nic(since: &Since<'_>, nics: &Nics<'_>, of: (Role, u32)) -> Option<f64> {
    let mut members = since.now.status.view.members.iter();
    let member = members.find(|member| (member.process.role, member.index) == of)?;
    nics.of(member).filter(|share| *share >= FULL)
}

/// The server whose network interfaces are fullest, if they are full.
fn fullest_server(since: &Since<'_>, nics: &Nics<'_>) -> Option<(u32, f64)> {
    let of = |server: (Role, u32)| Some((server.1, nic(since, nics, server)?));
    since.members(Role::Server).filter_map(of).max_by(|(_, one), (_, other)| one.total_cmp(other))
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
