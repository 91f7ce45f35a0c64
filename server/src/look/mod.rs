//! What two readings of a job say together: rates, and who is late. [`words`] tells people.

mod links;
pub(crate) mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use gradlane_core::metrics::{Instance, Value};
use gradlane_core::types::{Cause, LinkLimit, Member, Role, printable};
use gradlane_core::wire::frame::{Health, MemberStatus, Status};

use self::links::Links;

/// A job at one time.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    /// When, by the clock of this process.
    pub(crate) at: Duration,
    /// The members, as the coordinator sees them.
    pub(crate) status: Status,
    /// The metrics of the members that answered.
    pub(crate) told: BTreeMap<(Role, u32), Instance>,
}

/// What the screen shows.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Look {
    pub(crate) job: String,
    pub(crate) state: String,
    /// The workers that are there, and all of them.
    pub(crate) workers: (usize, usize),
    /// The same of servers.
    pub(crate) servers: (usize, usize),
    /// The members that are there and did not answer, such as `worker 5`.
    pub(crate) missing: Vec<String>,
    /// The round of the worker that is ahead.
    pub(crate) step: Option<u64>,
    /// How long a step took.
    pub(crate) step_time: Option<Duration>,
    /// The share of the time in which workers waited for handles, on average.
    pub(crate) exposed: Option<f64>,
    pub(crate) verdict: Verdict,
    pub(crate) ranks: Vec<RankLine>,
    pub(crate) hosts: Vec<ServerLine>,
}

/// Who holds the job up.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Verdict {
    /// There is only one reading.
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
        /// For how long only it was missing, in a round on average.
        late: Duration,
    },
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("wait for the next second"),
            Self::NoSums => f.write_str("no sum ended on a server"),
            Self::Nobody => f.write_str("nobody is late"),
            Self::Late { rank, cause, late } => {
                write!(f, "rank {rank} late ({}) {} a round", cause.name(), words::millis(*late))
            }
        }
    }
}

/// A worker.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct RankLine {
    pub(crate) rank: u32,
    pub(crate) host: String,
    pub(crate) health: Health,
    pub(crate) step: Option<u64>,
    /// For how long only it was missing, in a round on average.
    pub(crate) late: Option<Duration>,
    /// Mostly why, if it was.
    pub(crate) cause: Option<Cause>,
    /// The share of the time in which its threads waited for handles.
    pub(crate) blocked: Option<f64>,
    /// Bytes a second.
    pub(crate) push: Option<f64>,
    pub(crate) pull: Option<f64>,
    /// What held the worst of its links for most of the time.
    pub(crate) limit: Option<LinkLimit>,
    /// The longest round trip to a server.
    pub(crate) rtt: Option<Duration>,
    /// The highest share of packets to a server that was lost.
    pub(crate) loss: Option<f64>,
    /// Operations that have not ended.
    pub(crate) open: Option<u64>,
}

/// A server.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ServerLine {
    pub(crate) index: u32,
    pub(crate) host: String,
    pub(crate) health: Health,
    /// Bytes a second.
    pub(crate) input: Option<f64>,
    pub(crate) output: Option<f64>,
    /// The share of the time in which a lane works, on average.
    pub(crate) lanes: Option<f64>,
    pub(crate) sum_bytes: u64,
    pub(crate) placed_bytes: u64,
    /// Exchanges that are open.
    pub(crate) pending: u32,
    /// The worker that ended most rounds.
    pub(crate) last: Option<u32>,
}

impl Look {
    /// What `now` says, and what changed since `before`.
    pub(crate) fn of(before: Option<&Reading>, now: &Reading) -> Self {
        let view = &now.status.view;
        let since =
            before.map(|before| Since { before, now, seconds: (now.at.saturating_sub(before.at)).as_secs_f64() });
        let since = since.filter(|since| since.seconds > 0.0);
        let lateness = since.as_ref().map(Since::lateness);
        let members = || view.members.iter().zip(&now.status.members);
        let of_role = |role: Role| members().filter(move |(member, _)| member.process.role == role);
        let count = |role| (of_role(role).filter(|(_, status)| is_there(status)).count(), of_role(role).count());
        let step = highest_step(now);
        let steps =
            since.as_ref().and_then(|since| step?.checked_sub(highest_step(since.before)?)).filter(|steps| *steps > 0);
        let step_time = since.as_ref().and_then(|since| Some(Duration::from_secs_f64(since.seconds / steps? as f64)));
        let ranks: Vec<RankLine> = of_role(Role::Worker)
            .map(|(member, status)| rank_line(member, status, now, since.as_ref(), lateness.as_ref()))
            .collect();
        let blocked: Vec<f64> = ranks.iter().filter_map(|line| line.blocked).collect();
        let missing = members().filter(|(member, status)| is_there(status) && !now.told.contains_key(&key(member)));
        Self {
            job: printable(&view.job),
            state: format!("{} {}", view.epoch, words::phase(&view.phase)),
            workers: count(Role::Worker),
            servers: count(Role::Server),
            missing: missing.map(|(member, _)| member.name()).collect(),
            step,
            step_time,
            exposed: (!blocked.is_empty()).then(|| blocked.iter().sum::<f64>() / blocked.len() as f64),
            verdict: lateness.as_ref().map_or(Verdict::Unknown, |lateness| lateness.verdict(step_time)),
            ranks,
            hosts: of_role(Role::Server)
                .map(|(member, status)| server_line(member, status, now, since.as_ref()))
                .collect(),
        }
    }
}

fn rank_line(
    member: &Member,
    status: &MemberStatus,
    now: &Reading,
    since: Option<&Since<'_>>,
    lateness: Option<&Lateness>,
) -> RankLine {
    let rate = |name| since.and_then(|since| since.rate(key(member), name));
    let late = lateness.filter(|lateness| lateness.rounds > 0).map(|lateness| lateness.of(member.index));
    let Links { limit, rtt, loss } = since.map(|since| since.links(key(member))).unwrap_or_default();
    RankLine {
        rank: member.index,
        host: printable(&member.process.host),
        health: status.health,
        step: status.progress.last.map(|(_, round)| round.0),
        late: late.map(|(late, _)| late),
        cause: late.and_then(|(_, cause)| cause),
        blocked: rate("caller_blocked_nanoseconds").map(|rate| rate / NANOSECONDS),
        push: rate("push_bytes"),
        pull: rate("pull_bytes"),
        limit,
        rtt,
        loss,
        open: now.told.get(&key(member)).and_then(|told| told.number("handles_live")),
    }
}

fn server_line(member: &Member, status: &MemberStatus, now: &Reading, since: Option<&Since<'_>>) -> ServerLine {
    let rate = |name| since.and_then(|since| since.rate(key(member), name));
    ServerLine {
        index: member.index,
        host: printable(&member.process.host),
        health: status.health,
        input: rate("received_bytes"),
        output: rate("sent_bytes"),
        lanes: since.and_then(|since| since.busy_lanes(key(member))),
        sum_bytes: status.progress.bytes_in_flight,
        placed_bytes: status.placed_bytes,
        pending: status.progress.pending,
        last: since
            .and_then(|since| since.most_often_last(key(member)))
            .filter(|_| now.told.contains_key(&key(member))),
    }
}

fn key(member: &Member) -> (Role, u32) {
    (member.process.role, member.index)
}

fn is_there(status: &MemberStatus) -> bool {
    matches!(status.health, Health::Alive | Health::Suspect)
}

fn highest_step(reading: &Reading) -> Option<u64> {
    let members = reading.status.view.members.iter().zip(&reading.status.members);
    let workers = members.filter(|(member, _)| member.process.role == Role::Worker);
    workers.filter_map(|(_, status)| status.progress.last.map(|(_, round)| round.0)).max()
}

/// Two readings, and the time between them.
struct Since<'a> {
    before: &'a Reading,
    now: &'a Reading,
    seconds: f64,
}

impl Since<'_> {
    /// How fast a counter of a member grows. `None` if it did not answer both times, or began anew.
    fn rate(&self, member: (Role, u32), name: &str) -> Option<f64> {
        let number = |reading: &Reading| reading.told.get(&member)?.number(name);
        Some(number(self.now)?.checked_sub(number(self.before)?)? as f64 / self.seconds)
    }

    /// How much each number of a family has grown, by its labels.
    fn growth(&self, member: (Role, u32), name: &str) -> Vec<(&[String], u64)> {
        let (Some(before), Some(now)) = (self.before.told.get(&member), self.now.told.get(&member)) else {
            return Vec::new();
        };
        let before: BTreeMap<&[String], u64> = family(before, name).collect();
        family(now, name)
            .map(|(labels, now)| (labels, now.saturating_sub(before.get(labels).copied().unwrap_or_default())))
            .collect()
    }

    fn links(&self, member: (Role, u32)) -> Links {
        let [limited, sent, lost] = ["link_limited_nanoseconds", "link_sent_packets", "link_lost_packets"]
            .map(|name| self.growth(member, name));
        let rtt: Vec<_> =
            self.now.told.get(&member).into_iter().flat_map(|told| family(told, "link_rtt_nanoseconds")).collect();
        Links::of(&limited, &rtt, &sent, &lost)
    }

    fn busy_lanes(&self, member: (Role, u32)) -> Option<f64> {
        let lanes = self.growth(member, "lane_busy_nanoseconds");
        let busy: u64 = lanes.iter().map(|(_, busy)| busy).sum();
        (!lanes.is_empty()).then(|| busy as f64 / NANOSECONDS / self.seconds / lanes.len() as f64)
    }

    fn most_often_last(&self, member: (Role, u32)) -> Option<u32> {
        let last = self.growth(member, "last");
        let (labels, count) = last.into_iter().max_by_key(|(_, count)| *count)?;
        if count > 0 { labels.first()?.parse().ok() } else { None }
    }

    fn lateness(&self) -> Lateness {
        let mut lateness = Lateness::default();
        for member in self.now.told.keys().filter(|(role, _)| *role == Role::Server) {
            for (labels, late) in self.growth(*member, "late_nanoseconds") {
                let [rank, cause] = labels else { continue };
                let cause = Cause::ALL.into_iter().find(|known| known.name() == cause);
                // Of many workers only the worst are told apart.
                if let (Ok(rank), Some(cause)) = (rank.parse(), cause) {
                    lateness.late.entry(rank).or_default()[cause as usize] += late;
                }
            }
            let rounds = |reading: &Reading| match reading.told.get(member)?.value("round_duration_nanoseconds") {
                Some(Value::Histogram(rounds)) => Some(rounds.count()),
                Some(Value::Plain(_) | Value::Family(_) | Value::Histograms(_)) | None => None,
            };
            if let (Some(before), Some(now)) = (rounds(self.before), rounds(self.now)) {
                lateness.rounds += now.saturating_sub(before);
            }
        }
        lateness
    }
}

fn family<'a>(instance: &'a Instance, name: &str) -> impl Iterator<Item = (&'a [String], u64)> + use<'a> {
    let numbers = if let Some(Value::Family(numbers)) = instance.value(name) { numbers.as_slice() } else { &[] };
    numbers.iter().map(|(labels, number)| (labels.as_slice(), *number))
}

/// For how long ranks were missing alone, by cause, and in how many rounds.
#[derive(Default)]
struct Lateness {
    late: BTreeMap<u32, [u64; Cause::ALL.len()]>,
    rounds: u64,
}

impl Lateness {
    /// For how long a rank was missing in a round, and mostly why.
    fn of(&self, rank: u32) -> (Duration, Option<Cause>) {
        let late = self.late.get(&rank).copied().unwrap_or_default();
        let cause = Cause::ALL.into_iter().max_by_key(|cause| late[*cause as usize]);
        let all: u64 = late.iter().sum();
        (Duration::from_nanos(all / self.rounds.max(1)), cause.filter(|_| all > 0))
    }

    fn verdict(&self, step_time: Option<Duration>) -> Verdict {
        if self.rounds == 0 {
            return Verdict::NoSums;
        }
        let worst = self.late.keys().map(|rank| (self.of(*rank), *rank)).max_by_key(|((late, _), _)| *late);
        let counts = step_time.map_or(COUNTS, |step_time| step_time.mul_f64(COUNTS_OF_A_STEP).max(COUNTS));
        match worst {
            Some(((late, Some(cause)), rank)) if late >= counts => Verdict::Late { rank, cause, late },
            Some(_) | None => Verdict::Nobody,
        }
    }
}

const NANOSECONDS: f64 = 1e9;
/// Somebody is always last. A delay that is shorter than both costs nothing that anybody would notice.
const COUNTS: Duration = Duration::from_millis(1);
const COUNTS_OF_A_STEP: f64 = 0.1;
