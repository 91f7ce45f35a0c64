//! What two readings of a job say together: rates, and who is late. [`words`] tells people.
//!
//! | file | does |
//! |---|---|
//! | `links` | what holds the links of a worker |
//! | `nics` | how much of its network interfaces a machine uses |
//! | `reading` | a job at one time |
//! | `since` | what changed between two readings |
//! | `time_use` | on what workers spend their time |
//! | `verdict` | who holds the job up, and why |
//! | `words` | tells people |
//! | `history` | keeps the last minutes |
//! | `page` | shows a job in a browser |

pub(crate) mod history;
pub(crate) mod page;
pub(crate) mod words;

mod links;
mod nics;
mod reading;
mod since;
#[cfg(test)]
pub(crate) mod tests;
mod time_use;
mod verdict;

use std::time::Duration;

use gradlane_core::types::{Cause, LinkLimit, Member, Role, printable};
use gradlane_core::wire::frame::{Health, MemberStatus, Waits};

use self::links::Links;
use self::nics::{FULL, Nics};
pub(crate) use self::reading::{Reading, highest_step};
pub(crate) use self::since::average;
use self::since::{NANOSECONDS, Since};
pub(crate) use self::time_use::TimeUse;
pub(crate) use self::verdict::Verdict;
use self::verdict::{Lateness, verdict_of};

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
    /// On what workers spent their time.
    pub(crate) time_use: Option<TimeUse>,
    pub(crate) verdict: Verdict,
    pub(crate) ranks: Vec<RankLine>,
    pub(crate) hosts: Vec<ServerLine>,
    /// The tensors that wait.
    pub(crate) waits: Waits,
}

/// A worker.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct RankLine {
    pub(crate) rank: u32,
    pub(crate) host: String,
    pub(crate) health: Health,
    pub(crate) step: Option<u64>,
    /// For how long a sum waited for it alone, in a step on average.
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
    /// The share of the capacity of its machine's network interfaces that is used, in the direction in which it is higher.
    pub(crate) nic: Option<f64>,
    /// The longest round trip to a server.
    pub(crate) rtt: Option<Duration>,
    /// The highest share of packets to a server that was lost.
    pub(crate) loss: Option<f64>,
    /// Operations that have not ended.
    pub(crate) open: Option<u64>,
}

impl RankLine {
    /// What holds its worst link, in a word: `nic` and its share once the interfaces of its machine are full, because that is behind all else.
    pub(crate) fn limit_word(&self) -> Option<String> {
        let full = self.nic.filter(|share| *share >= FULL).map(|share| format!("nic {}", words::percent(share)));
        full.or_else(|| self.limit.map(|limit| limit.name().to_owned()))
    }
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
        let since = before.filter(|before| before.at < now.at).map(|before| Since { before, now });
        let lateness = since.as_ref().map(Lateness::between);
        let nics = since.as_ref().map(Nics::between).unwrap_or_default();
        let members = || view.members.iter().zip(&now.status.members);
        let of_role = |role: Role| members().filter(move |(member, _)| member.process.role == role);
        let count = |role| (of_role(role).filter(|(_, status)| is_there(status)).count(), of_role(role).count());
        let step = now.step();
        let steps = since.as_ref().and_then(|since| step?.checked_sub(since.before.step()?)).filter(|steps| *steps > 0);
        let step_time = since.as_ref().and_then(|since| Some((now.at - since.before.at).div_f64(steps? as f64)));
        let ranks: Vec<RankLine> = of_role(Role::Worker)
            .map(|(member, status)| rank_line(member, status, now, since.as_ref(), lateness.as_ref(), &nics))
            .collect();
        let time_use = since.as_ref().and_then(TimeUse::between);
        let exposed = time_use.map(|time_use| time_use.exposed);
        let verdict = since.as_ref().zip(lateness.as_ref());
        let verdict = verdict
            .map_or(Verdict::Unknown, |(since, lateness)| verdict_of(since, lateness, &nics, step_time, exposed));
        let missing = members().filter(|(member, status)| is_there(status) && !now.told.contains_key(&key(member)));
        Self {
            job: printable(&view.job),
            state: format!("{} {}", view.epoch, words::phase(&view.phase)),
            workers: count(Role::Worker),
            servers: count(Role::Server),
            missing: missing.map(|(member, _)| member.name()).collect(),
            step,
            step_time,
            time_use,
            verdict,
            ranks,
            hosts: of_role(Role::Server)
                .map(|(member, status)| server_line(member, status, now, since.as_ref()))
                .collect(),
            waits: (*now.status.waits).clone(),
        }
    }
}

fn rank_line(
    member: &Member,
    status: &MemberStatus,
    now: &Reading,
    since: Option<&Since<'_>>,
    lateness: Option<&Lateness>,
    nics: &Nics<'_>,
) -> RankLine {
    let rate = |name| since.and_then(|since| since.rate(key(member), name));
    let late = lateness.and_then(|lateness| lateness.of(member.index));
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
        nic: nics.of(member),
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
