//! A report as a page of text for people: the verdict first, then what happened, then who.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use super::alike::{self, Process, Processes};
use super::{Member, Rank, Report, Server, Setting, Setup};
use crate::look::words::{bytes, millis, percent, seconds};

impl Report {
    /// The page. With many members it has those that matter most, and counts the others.
    pub(crate) fn page(&self) -> String {
        let mut text = format!("VERDICT {}\n", self.verdict);
        let Self { job, end, began, ranks, servers, .. } = self;
        let took = span(self.duration_ns);
        let _ = write!(text, "job {job} {} after {took}; it began {began}", end.how);
        let _ = match self.formation {
            0 => writeln!(text, ", and never formed"),
            1 => writeln!(text),
            again => writeln!(text, ", when it formed for the {again}. time"),
        };
        if let Some(reason) = &end.reason {
            let _ = writeln!(text, "reason: {reason}");
        }
        // The reason names the loss that ended the job.
        let is_told = |loss: &&String| end.reason.as_ref().is_some_and(|reason| reason.contains(loss.as_str()));
        let others: Vec<&String> = self.losses.iter().filter(|loss| !is_told(loss)).collect();
        for loss in others.iter().take(LINES_MAX) {
            let _ = writeln!(text, "lost {loss}");
        }
        more(&mut text, others.len(), "more were lost");
        if !self.whole {
            text.push_str("another coordinator led the job before: times and shares are too high, counts are right\n");
        }
        let _ = writeln!(text, "{} workers and {} servers on {}", ranks.len(), servers.len(), self.hosts().join(", "));
        if !self.silent.is_empty() {
            let (told, all) = (self.members.len() - self.silent.len(), self.members.len());
            let silent = self.silent.iter().take(LINES_MAX).cloned().collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "{told} of {all} members told their metrics; not {silent}");
        }
        let step = self.step_ns().map_or(String::new(), |step| format!(", {} each", time(step)));
        let exposed = self.exposed.map_or(String::new(), |share| format!("; workers waited {} of it", percent(share)));
        let data = self.data.map_or(String::new(), |share| format!(", and {} for data", percent(share)));
        let _ = writeln!(text, "{} steps{step}{exposed}{data}", self.steps);
        for (name, what, times) in
            [("push_pull", "operations", &self.push_pull), ("round", "sums of parts", &self.round)]
        {
            if let (Some(mean), Some(p50), Some(p99)) = (times.mean_ns(), times.p50_ns, times.p99_ns) {
                let (mean, p50, p99) = (time(mean), time(p50), time(p99));
                let _ = writeln!(text, "{name}: {} {what}, mean {mean}, p50 about {p50}, p99 about {p99}", times.count);
            }
        }
        let mut worst: Vec<&Rank> = ranks.iter().collect();
        worst.sort_by_key(|rank| (Reverse(rank.late_in_step_ns), Reverse(rank.blocked_ns), rank.rank));
        for rank in worst.iter().take(LINES_MAX) {
            let _ = writeln!(text, "{}", self.line_of(rank));
        }
        more(&mut text, ranks.len(), "more workers");
        for server in servers.iter().take(LINES_MAX) {
            let _ = writeln!(text, "{}", line_of_server(server));
        }
        more(&mut text, servers.len(), "more servers");
        self.add_setups(&mut text);
        text
    }

    /// Adds what processes run and their settings: a line for each group of processes, of what they alone have in common.
    fn add_setups(&self, text: &mut String) {
        let setups = alike::setups(self);
        let all: Processes<'_> = setups.keys().copied().collect();
        let said = alike::by_processes(setups.iter().flat_map(|(of, setup)| said(setup).map(|said| (said, *of))));
        let origins = origins(&setups);
        for (some, said) in said.iter().take(SETUPS_MAX) {
            let said = said.iter().map(|(_, said)| match origins.get(said) {
                Some(origins) => format!("{said} ({})", origins.iter().copied().collect::<Vec<_>>().join(", ")),
                None => said.clone(),
            });
            let _ = writeln!(text, "{}: {}", alike::who(some, &all), said.collect::<Vec<_>>().join(", "));
        }
        if let Some(more) = said.len().checked_sub(SETUPS_MAX).filter(|more| *more > 0) {
            let _ = writeln!(text, "and {more} more groups of processes with other versions or settings");
        }
    }

    /// The hosts of the members, each once.
    pub(super) fn hosts(&self) -> Vec<&str> {
        let mut hosts: Vec<&str> = self.members.iter().map(|member| member.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    fn line_of(&self, rank: &Rank) -> String {
        let mut line = format!("rank {} on {}:", rank.rank, rank.host);
        let late: u64 = rank.late_ns.values().sum();
        if let (Some(in_step), true) = (rank.late_in_step_ns, late > 0) {
            let mut causes: Vec<_> = rank.late_ns.iter().collect();
            causes.sort_by_key(|(_, late)| Reverse(**late));
            let causes = causes.into_iter().map(|(cause, of)| format!("{cause} {}", percent(*of as f64 / late as f64)));
            let _ = write!(line, " late {} a step ({}),", time(in_step), causes.collect::<Vec<_>>().join(", "));
        }
        match (rank.blocked, rank.push_bytes, rank.pull_bytes) {
            (Some(blocked), Some(push), Some(pull)) => {
                let _ = write!(line, " waited {}, sent {}, got {}", percent(blocked), bytes(push), bytes(pull));
            }
            _ => line.push_str(" told nothing"),
        }
        let is_it = |member: &&Member| (member.role.as_str(), member.index) == ("worker", rank.rank);
        let old = self.members.iter().find(is_it).and_then(|member| member.told_before_end_ns);
        if let Some(old) = old.filter(|old| *old >= OLD_NS) {
            let _ = write!(line, "; told {} before the end", span(old));
        }
        line
    }
}

fn line_of_server(server: &Server) -> String {
    let Server { index, host, received_bytes, sent_bytes, sums, lanes_busy, .. } = server;
    let (Some(received), Some(sent)) = (received_bytes, sent_bytes) else {
        return format!("server {index} on {host}: told nothing");
    };
    let lanes = lanes_busy.map_or(String::new(), |share| format!(", lanes busy {}", percent(share)));
    format!("server {index} on {host}: {sums} sums, got {}, sent {}{lanes}", bytes(*received), bytes(*sent))
}

/// What a process runs, and behind that its settings.
fn said(setup: &Setup) -> impl Iterator<Item = (bool, String)> {
    let versions = setup.versions.iter().map(|(name, version)| (false, format!("{name} {version}")));
    versions.chain(setup.settings.iter().map(|(name, setting)| (true, with_value(name, setting))))
}

/// From where processes have their settings. A launcher passes its own arguments on as variables, which is no difference between them.
fn origins<'a>(setups: &BTreeMap<Process<'_>, &'a Setup>) -> BTreeMap<String, BTreeSet<&'a str>> {
    let mut origins: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (name, setting) in setups.values().flat_map(|setup| &setup.settings) {
        origins.entry(with_value(name, setting)).or_default().insert(&setting.origin);
    }
    origins
}

fn with_value(name: &str, setting: &Setting) -> String {
    format!("{name}={}", setting.value)
}

fn more(text: &mut String, count: usize, what: &str) {
    if let Some(more) = count.checked_sub(LINES_MAX).filter(|more| *more > 0) {
        let _ = writeln!(text, "and {more} {what}");
    }
}

/// A short time.
pub(super) fn time(nanoseconds: u64) -> String {
    millis(Duration::from_nanos(nanoseconds))
}

/// A long time.
fn span(nanoseconds: u64) -> String {
    seconds(Duration::from_nanos(nanoseconds))
}

/// Members tell their metrics each second and when they leave. What is older than this does not show the end.
const OLD_NS: u64 = 500_000_000;
/// Members of a kind that have lines of their own.
const LINES_MAX: usize = 4;
/// Lines for groups of processes that have versions or settings in common.
const SETUPS_MAX: usize = 8;
