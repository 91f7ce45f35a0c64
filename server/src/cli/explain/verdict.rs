//! Who held a job up, in sentences: a pure function of the dumps.
//!
//! A sum waits for the workers that have not submitted its round. So the verdict is about the round that waits longest: which workers have
//! submitted it, and which have not. Here times are compared within a dump only, because the clocks of two hosts may differ.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::types::Epoch;

use super::dump::{Dump, Found, Of};
use super::head::{Failure, Head};
use super::members::{Members, Told};
use super::run::{Life, Run};
use super::servers;
use super::uses;
use super::words::{all, begin, listed, named, plain};
use super::worker::{Last, Round, State, Worker};
use crate::look::words::seconds;
use crate::report::Report;

/// Who held the jobs up whose dumps were found. Reports tell what servers have seen of the same jobs.
pub(super) fn explain(found: &[Found], reports: &[Report]) -> String {
    let mut jobs: BTreeMap<&str, Vec<&Dump>> = BTreeMap::new();
    for dump in found.iter().filter_map(|found| found.content.as_ref().ok()) {
        jobs.entry(&dump.head.job).or_default().push(dump);
    }
    let mut texts: Vec<String> = jobs.into_iter().map(|(job, dumps)| of_job(job, &dumps, reports)).collect();
    let unread: Vec<String> = found
        .iter()
        .filter_map(|Found { file, content }| Some(format!("  {}: {}", plain(file), plain(content.as_ref().err()?))))
        .collect();
    if !unread.is_empty() {
        texts.push(format!("Not read:\n{}\n", unread.join("\n")));
    }
    texts.join("\n")
}

fn of_job(job: &str, dumps: &[&Dump], reports: &[Report]) -> String {
    let lives: Vec<Life> = dumps.iter().map(|dump| dump.head.life()).collect();
    let run = Run::newest(&lives);
    let (dumps, older): (Vec<&Dump>, Vec<&Dump>) = dumps.iter().partition(|dump| run.has(&dump.head.life()));
    let members = Members::of(&dumps);
    let absent = members.absent();
    let epochs: BTreeSet<Epoch> = dumps.iter().filter_map(|dump| dump.head.epoch).collect();
    let epochs: String = epochs.into_iter().map(|epoch| format!(", {epoch}")).collect();
    let mut lines = vec![format!("Job {}{epochs}: dumps of {}.", plain(job), members.counted())];
    if !absent.is_empty() {
        lines.push(format!("There is no dump of {}.", named(&absent)));
    }
    let absent_servers = members.absent_servers();
    if !absent_servers.is_empty() {
        lines.push(format!("There is no dump of {}.", all("server", &absent_servers)));
    }
    if members.has_servers() && members.coordinator.is_none() {
        lines.push("There is no dump of the coordinator.".to_owned());
    }
    let nameless = dumps.iter().filter(|dump| dump.head.index.is_none() && !matches!(dump.of, Of::Coordinator(_)));
    let nameless = nameless.map(|dump| match dump.of {
        Of::Server(_) => format!("The server {} has no index: it had not joined the job.", place(&dump.head)),
        Of::Worker(_) | Of::Coordinator(_) => {
            format!("The process {} has no rank: it had not joined the job.", place(&dump.head))
        }
    });
    lines.extend(nameless);
    lines.extend(members.former());
    lines.extend(left_out(&older));
    lines.push(String::new());
    lines.extend(verdict(&members, &absent));
    lines.extend(servers::waits(&members));
    lines.extend(servers::never_came(&members));
    lines.extend(uses::waits(&members));
    // Of one run, the one with the most to tell is the latest.
    let reports = reports.iter().filter(|report| report.job == job && run.has(&Life::of_report(report)));
    let report = reports.max_by_key(|report| (report.began_unix_ns, report.duration_ns));
    lines.extend(report.map(|report| {
        let lasted = seconds(Duration::from_nanos(report.duration_ns));
        format!("By the metrics of all members in its {lasted} until its report: {}.", plain(&report.verdict))
    }));
    lines.push(String::new());
    lines.push("What each of them says:".to_owned());
    lines.extend(dumps.iter().map(|dump| said(dump)));
    lines.join("\n") + "\n"
}

/// That these dumps are not explained, if there are some.
fn left_out(older: &[&Dump]) -> Option<String> {
    let (dumps, are) = match older.len() {
        0 => return None,
        1 => ("dump", "is"),
        _ => ("dumps", "are"),
    };
    let whose: Vec<String> = older.iter().map(|dump| who(dump)).collect();
    Some(format!("The {dumps} of {} {are} of a former run of the job, and {are} left out.", listed(&whose)))
}

/// Who held the job up.
fn verdict(members: &Members<'_>, absent: &[u32]) -> Vec<String> {
    let workers = &members.workers;
    // A sum that failed is over, and does not hide a use that waits.
    let is_over = |state: &State| !matches!(state, State::Open { .. });
    let longest = longest(workers).filter(|(_, state)| !is_over(state) || uses::missing(members).is_none());
    let Some((round, waits)) = longest else {
        let missing = servers::longest(members).map(|missing| named(&missing));
        return vec![match missing.or_else(|| uses::missing(members)) {
            Some(missing) => format!("{} held the job up, as far as servers say.", begin(&missing)),
            None if uses::any(members) => "No sum waits in these dumps, but uses of what servers keep do.".to_owned(),
            None => "No sum waits in these dumps.".to_owned(),
        }];
    };
    let came: Vec<u32> = workers.iter().filter(|(_, told)| told.of.has_come_to(round)).map(|(rank, _)| *rank).collect();
    let notices = workers.values().filter_map(|told| told.of.notices.get(round)).flat_map(|notice| &notice.missing);
    // Of a worker that has submitted it, a server may have nothing yet.
    let missed = servers::missed(members, round).filter(|rank| !came.contains(rank));
    let told: BTreeSet<u32> = notices.copied().chain(missed).collect();
    let missing = missing(workers, round, &came, &told);
    let sum = format!("`{}` round {}", plain(&round.tensor), round.round);
    let mut lines = Vec::new();
    if missing.is_empty() {
        let late: Vec<u32> = told.iter().copied().filter(|rank| came.contains(rank)).collect();
        let unseen: Vec<u32> = absent.iter().copied().filter(|rank| told.is_empty() || told.contains(rank)).collect();
        if !late.is_empty() {
            lines.push(format!("{} held the job up, and came late to {sum}.", begin(&named(&late))));
        } else if unseen.is_empty() {
            lines.push(format!("{} submitted {sum}, and no other worker is missing.", begin(&named(&came))));
            lines.push(where_it_waits(waits));
        } else {
            lines.push(format!("{} held the job up, as far as the dumps say.", begin(&named(&unseen))));
            lines.push(format!("{} submitted {sum}. There is no dump of {}.", begin(&named(&came)), named(&unseen)));
        }
    } else {
        lines.push(format!("{} held the job up.", begin(&named(&missing))));
        lines.push(format!("{} submitted {sum}, and {} did not.", begin(&named(&came)), named(&missing)));
        lines.extend(missing.iter().map(|rank| last_seen(*rank, workers[rank])));
    }
    if !told.is_empty() {
        let told: Vec<u32> = told.into_iter().collect();
        lines.push(format!("The servers missed {} in this round.", named(&told)));
        let details = workers.values().filter_map(|told| told.of.notices.get(round)).map(|notice| notice.detail.trim());
        lines.extend(
            details.filter(|detail| !detail.is_empty()).take(1).map(|detail| format!("They said: {}", plain(detail))),
        );
    }
    lines
}

/// The round for which a worker waits, or has waited in vain, since the longest time.
fn longest<'a>(workers: &BTreeMap<u32, Told<'a, Worker>>) -> Option<(&'a Round, &'a State)> {
    let waiting = workers
        .values()
        .flat_map(|told| told.of.rounds.iter().map(move |(round, submitted)| (told.head, round, submitted)));
    let waiting = waiting.filter(|(_, _, submitted)| submitted.state != State::Ended);
    // What is open waits until now; what failed in vain comes behind it, because its worker may have gone on.
    let longest = waiting.max_by_key(|(head, round, submitted)| {
        (matches!(submitted.state, State::Open { .. }), head.ago(submitted.at_ns), std::cmp::Reverse((*round).clone()))
    });
    longest.map(|(_, round, submitted)| (round, &submitted.state))
}

/// The workers with a dump that did not submit a round. If the servers have said who was missing, only those. A worker that has never
/// submitted the tensor may not take part in it, so the others come first.
fn missing(workers: &BTreeMap<u32, Told<'_, Worker>>, round: &Round, came: &[u32], told: &BTreeSet<u32>) -> Vec<u32> {
    let others = workers.keys().copied().filter(|rank| !came.contains(rank));
    let others: Vec<u32> = others.filter(|rank| told.is_empty() || told.contains(rank)).collect();
    let know: Vec<u32> = others.iter().copied().filter(|rank| workers[rank].of.knows(&round.tensor)).collect();
    if know.is_empty() || !told.is_empty() { others } else { know }
}

/// What a worker did last that did not submit a round.
fn last_seen(rank: u32, Told { head, of }: Told<'_, Worker>) -> String {
    let last = match &of.last {
        Some(Last { tensor, round, at_ns, .. }) => format!(
            "The last submission of worker {rank} was `{}`{}, {} before its dump.",
            plain(tensor),
            round.map(|round| format!(" round {round}")).unwrap_or_default(),
            seconds(head.ago(*at_ns))
        ),
        None if of.is_cut => format!("The events of worker {rank} have no submission any more."),
        None => format!("Worker {rank} has submitted nothing."),
    };
    let stacks = of.stacks.as_ref().map(|at| format!(" By its Python stacks it was in {}.", plain(at)));
    last + &stacks.unwrap_or_default()
}

fn where_it_waits(state: &State) -> String {
    match state {
        State::Open { parts: 0, .. } => {
            "No part of it was complete: other tensors share its part and were not submitted.".to_owned()
        }
        State::Open { parts, handed_over, answered, server } if answered < parts => format!(
            "Of its {parts} parts, {handed_over} were handed over to servers and {answered} were answered; the last that moved was on server \
             {server}."
        ),
        State::Open { .. } => "All sums of it came, so the worker itself did not finish it.".to_owned(),
        State::Failed { error: Some(error) } => format!("It failed: {}", plain(error)),
        State::Failed { error: None } | State::Ended => "It failed.".to_owned(),
    }
}

/// The end of a member, its first error, and what else it has to say.
fn said(dump: &Dump) -> String {
    let Dump { head, of } = dump;
    let (version, reason) = (plain(&head.version), plain(&head.reason));
    let mut words = vec![format!("  {} ({}, Gradlane {version}): {reason}", who(dump), place(head))];
    let told = |word: &str, at_ns: u64, text: &str| {
        format!("    {word}, {} before its dump: {}", seconds(head.ago(at_ns)), plain(text))
    };
    match of {
        Of::Worker(worker) => {
            let first = worker.errors.iter().min_by_key(|failure| failure.at_ns);
            words.extend(first.map(|Failure { at_ns, error, .. }| told("first error", *at_ns, error)));
        }
        Of::Server(_) => {}
        Of::Coordinator(coordinator) => {
            let last = coordinator.troubles.len().saturating_sub(TROUBLES_MAX);
            words.extend(coordinator.troubles[last..].iter().map(|(at_ns, text)| told("trouble", *at_ns, text)));
        }
    }
    words.extend(head.end.as_ref().map(|Failure { at_ns, error, .. }| told("its end", *at_ns, error)));
    words.join("\n")
}

/// What the member is called of whom this dump is.
fn who(dump: &Dump) -> String {
    match (&dump.of, dump.head.index) {
        (Of::Worker(_), Some(rank)) => all("worker", &[rank]),
        (Of::Server(_), Some(index)) => all("server", &[index]),
        (Of::Worker(_) | Of::Server(_), None) => "a process".to_owned(),
        (Of::Coordinator(_), _) => "the coordinator".to_owned(),
    }
}

fn place(head: &Head) -> String {
    format!("{} pid {}", plain(&head.host), head.pid)
}

/// The last troubles of a coordinator that are told.
const TROUBLES_MAX: usize = 8;
