//! A report from what the coordinator knows at the end of a job.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::metrics::{Histogram, Instance, Value};
use gradlane_core::types::{Cause, Member as Process, Phase, Role, Round, TensorKey, Time, printable, whole_ns};
use gradlane_core::wire::frame::{MemberStatus, Status};

use super::times::Times;
use super::{End, FORM, LOSSES_MAX, Member, Rank, Report, SCHEMA, Server, Setup, utc};
use crate::look::{Look, RankLine, Reading, words};

/// What the coordinator knows of a job that has ended.
pub(crate) struct Known<'a> {
    /// The job as it ended.
    pub(crate) status: &'a Status,
    /// What each member told last, and when.
    pub(crate) told: &'a BTreeMap<(Role, u32), Told>,
    /// The members that were given up, and why.
    pub(crate) losses: &'a [String],
    /// The processes that failed after they had left the job in order.
    pub(crate) failures: &'a [String],
    /// When the job formed. `None` if it never did.
    pub(crate) formed: Option<Time>,
    /// When the coordinator began to wait for the members.
    pub(crate) began: Time,
    /// The end.
    pub(crate) now: Time,
    /// When the clock of these times began, in nanoseconds since 1970.
    pub(crate) origin_unix_ns: u64,
    /// Whether another coordinator led the job before.
    pub(crate) is_resumed: bool,
    /// Of the process of the coordinator.
    pub(crate) setup: &'a Setup,
    /// What each member runs and its settings, as far as it told them.
    pub(crate) setups: &'a BTreeMap<(Role, u32), Setup>,
}

/// What a member told.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    /// At first.
    pub(crate) first: Arc<Instance>,
    pub(crate) last: Arc<Instance>,
    /// When it told the last.
    pub(crate) at: Time,
}

impl Report {
    /// The report of a job.
    pub(crate) fn of(known: &Known<'_>) -> Self {
        let Known { status, told, losses, formed, began, now, is_resumed, .. } = *known;
        let view = &status.view;
        let since = formed.unwrap_or(began);
        let duration = now.since(since);
        let (look, mut late) = (look(known, duration), late(told));
        let began_unix_ns = known.origin_unix_ns.saturating_add(since.0);
        let of_role = |role| told.iter().filter(move |((of, _), _)| *of == role).map(|(_, told)| &*told.last);
        let members: Vec<Member> = view.members.iter().zip(&status.members).map(|it| member(it, known)).collect();
        let silent = members.iter().filter(|member| member.told_before_end_ns.is_none());
        Self {
            form: FORM.to_owned(),
            schema: SCHEMA,
            job: printable(&view.job),
            formation: view.formed_before + u32::from(formed.is_some() || is_resumed),
            epoch: view.epoch.to_string(),
            began: utc::utc(began_unix_ns),
            began_unix_ns,
            duration_ns: whole_ns(duration),
            whole: !is_resumed || formed.is_some(),
            end: end(&view.phase, known.failures),
            verdict: look.verdict.to_string(),
            steps: steps(told),
            exposed: look.time_use.map(|time_use| time_use.exposed),
            data: look.time_use.and_then(|time_use| time_use.data),
            push_pull: Times::of(of_role(Role::Worker).filter_map(|of| of.histogram("push_pull_duration_nanoseconds"))),
            round: Times::of(of_role(Role::Server).filter_map(|of| of.histogram("round_duration_nanoseconds"))),
            ranks: look.ranks.iter().map(|line| rank(line, told, &mut late)).collect(),
            servers: look.hosts.iter().map(|line| server((line.index, &line.host), line.lanes, known)).collect(),
            losses: losses.iter().take(LOSSES_MAX).map(|loss| printable(loss)).collect(),
            silent: silent.map(|member| format!("{} {}", member.role, member.index)).collect(),
            setup: known.setup.clone(),
            members,
        }
    }
}

/// The whole job as one look: from nothing to what the members told last.
fn look(known: &Known<'_>, duration: Duration) -> Look {
    let at_round = |round: u64| {
        let mut status = known.status.clone();
        status.members.iter_mut().for_each(|member| member.progress.last = Some((TensorKey(0), Round(round))));
        status
    };
    let since = known.formed.unwrap_or(known.began);
    let instances = |told: fn(&Told) -> Arc<Instance>| known.told.iter().map(move |(of, it)| (*of, told(it)));
    let before = Reading {
        at: Duration::ZERO,
        status: at_round(0),
        told: instances(|told| Arc::new(beginning(told))).collect(),
        told_at: BTreeMap::new(),
    };
    let now = Reading {
        at: duration,
        status: at_round(steps(known.told)),
        told: instances(|told| Arc::clone(&told.last)).collect(),
        told_at: known.told.iter().map(|(of, told)| (*of, told.at.since(since))).collect(),
    };
    Look::of(Some(&before), &now)
}

/// A member before the job: it has counted nothing yet. Exception: what its process counts began with the process, so it begins here with what
/// the member told first.
fn beginning(Told { first, last, .. }: &Told) -> Instance {
    let nothing = |value: &Value| match value {
        Value::Plain(_) => Value::Plain(0),
        Value::Family(numbers) => Value::Family(numbers.iter().map(|(labels, _)| (labels.clone(), 0)).collect()),
        Value::Histogram(_) => Value::Histogram(Histogram::default()),
        Value::Histograms(all) => {
            Value::Histograms(all.iter().map(|(labels, _)| (labels.clone(), Histogram::default())).collect())
        }
    };
    let values = last.values.iter().map(|(name, value)| {
        let of_process = first.value(name).filter(|_| OF_PROCESS.contains(name));
        (*name, of_process.cloned().unwrap_or_else(|| nothing(value)))
    });
    Instance { values: values.collect(), ..(**last).clone() }
}

/// Counters of the process, which may have run for long before its job.
const OF_PROCESS: [&str; 2] = ["process_cpu_nanoseconds", "run_delay_nanoseconds"];

fn steps(told: &BTreeMap<(Role, u32), Told>) -> u64 {
    told.values().filter_map(|told| told.last.number("rounds")).max().unwrap_or_default()
}

/// A job whose workers leave in order has ended for its coordinator, although each of them may fail then.
fn end(phase: &Phase, failures: &[String]) -> End {
    if let (Phase::Ended, false) = (phase, failures.is_empty()) {
        return End { how: "failed".to_owned(), reason: Some(printable(&failures.join("; "))) };
    }
    let (how, reason) = match phase {
        Phase::Forming | Phase::Running | Phase::Ended => ("ended", None),
        Phase::Aborted(cause) => ("failed", Some(cause)),
        Phase::FormsAgain => ("forms again", None),
        Phase::Restores(cause) => ("forms again", Some(cause)),
    };
    End { how: how.to_owned(), reason: reason.map(|cause| printable(&cause.to_string())) }
}

/// For how long ranks were missing alone, by rank and cause.
type Late = BTreeMap<String, BTreeMap<String, u64>>;

/// Adds up what the servers and the leaders of machines counted.
fn late(told: &BTreeMap<(Role, u32), Told>) -> Late {
    let mut late = Late::new();
    let families = ["late_nanoseconds", "machine_late_nanoseconds"];
    for (labels, nanoseconds) in told.values().flat_map(|of| families.into_iter().flat_map(|name| of.last.family(name)))
    {
        if let [rank, cause] = labels
            && cause != Cause::Sum.name()
            && nanoseconds > 0
        {
            *late.entry(rank.clone()).or_default().entry(printable(cause)).or_default() += nanoseconds;
        }
    }
    late
}

fn rank(line: &RankLine, told: &BTreeMap<(Role, u32), Told>, late: &mut Late) -> Rank {
    let number = |name| told.get(&(Role::Worker, line.rank))?.last.number(name);
    Rank {
        rank: line.rank,
        host: line.host.clone(),
        blocked_ns: number("caller_blocked_nanoseconds"),
        blocked: line.blocked,
        push_bytes: number("push_bytes"),
        pull_bytes: number("pull_bytes"),
        late_ns: late.remove(&line.rank.to_string()).unwrap_or_default(),
        late_in_step_ns: line.late.map(whole_ns),
        limit: line.limit_word(),
        rtt_ns: line.rtt.map(whole_ns),
        loss: line.loss,
    }
}

fn server((index, host): (u32, &str), lanes_busy: Option<f64>, known: &Known<'_>) -> Server {
    let instance = known.told.get(&(Role::Server, index)).map(|told| &*told.last);
    let sums = instance.and_then(|of| of.histogram("round_duration_nanoseconds")).map_or(0, Histogram::count);
    let members = known.status.view.members.iter().zip(&known.status.members);
    let is_it = |(member, _): &(&Process, &MemberStatus)| (member.process.role, member.index) == (Role::Server, index);
    let late = instance.into_iter().flat_map(|of| of.family("late_nanoseconds"));
    let of_sums = late.filter(|(labels, _)| labels.get(1).is_some_and(|cause| cause == Cause::Sum.name()));
    Server {
        index,
        host: host.to_owned(),
        received_bytes: instance.and_then(|of| of.number("received_bytes")),
        sent_bytes: instance.and_then(|of| of.number("sent_bytes")),
        sums,
        lanes_busy,
        behind_ns: of_sums.map(|(_, late)| late).sum(),
        placed_bytes: members.filter(is_it).map(|(_, status)| status.placed_bytes).sum(),
    }
}

fn member((member, status): (&Process, &MemberStatus), known: &Known<'_>) -> Member {
    let told = known.told.get(&(member.process.role, member.index));
    Member {
        role: member.process.role.to_string(),
        index: member.index,
        host: printable(&member.process.host),
        pid: member.process.pid,
        health: words::health(status.health).to_owned(),
        setup: known.setups.get(&(member.process.role, member.index)).cloned(),
        told_before_end_ns: told.map(|told| whole_ns(known.now.since(told.at))),
        metrics: told.map(|told| told.last.pairs().into_iter().collect()).unwrap_or_default(),
    }
}
