//! Who held a job up, in sentences: a pure function of the dumps.
//!
//! A sum waits for the workers that have not submitted its round. So the verdict is about the round that waits longest: which workers have
//! submitted it, and which have not. Times are compared within a dump only, because the clocks of two hosts may differ.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::types::{WorkerSet, printable};

use crate::look::words::seconds;
use crate::report::Report;

use super::dump::{Dump, Failure, Found, Last, Round, State};

/// Who held the jobs up whose dumps were found. Reports tell what servers have seen of the same jobs.
pub(super) fn explain(found: &[Found], reports: &[Report]) -> String {
    let mut jobs: BTreeMap<&str, Vec<&Dump>> = BTreeMap::new();
    for dump in found.iter().filter_map(|found| found.content.as_ref().ok()) {
        jobs.entry(&dump.job).or_default().push(dump);
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
    let mut workers: BTreeMap<u32, &Dump> = BTreeMap::new();
    for dump in dumps {
        if let Some(rank) = dump.rank {
            workers.insert(rank, dump);
        }
    }
    let size = dumps.iter().filter_map(|dump| dump.workers).max().unwrap_or(0);
    // A job has no more.
    let ranks = 0..size.min(WorkerSet::WORKERS_MAX as u32);
    let absent: Vec<u32> = ranks.filter(|rank| !workers.contains_key(rank)).collect();
    let epochs: BTreeSet<&str> = dumps.iter().filter_map(|dump| dump.epoch.as_deref()).collect();
    let epochs: Vec<String> = epochs.into_iter().map(plain).collect();
    let mut lines = vec![format!(
        "Job {}{}: dumps of {} of {} workers.",
        plain(job),
        if epochs.is_empty() { String::new() } else { format!(", {}", epochs.join(", ")) },
        workers.len(),
        (size as usize).max(workers.len()),
    )];
    if !absent.is_empty() {
        lines.push(format!("There is no dump of {}.", named(&absent)));
    }
    let nameless = dumps.iter().filter(|dump| dump.rank.is_none());
    lines.extend(nameless.map(|dump| format!("The process {} has no rank: it had not joined the job.", place(dump))));
    lines.push(String::new());
    lines.extend(verdict(&workers, &absent));
    // The one with the most to tell is the latest of the job.
    let report = reports.iter().filter(|report| report.job == job).max_by_key(|report| report.duration_ns);
    lines.extend(report.map(|report| {
        let lasted = seconds(Duration::from_nanos(report.duration_ns));
        format!("By the metrics of all members in its {lasted} until its report: {}.", plain(&report.verdict))
    }));
    lines.push(String::new());
    lines.push("What each of them says:".to_owned());
    lines.extend(dumps.iter().map(|dump| said(dump)));
    lines.join("\n") + "\n"
}

/// Who held the job up.
fn verdict(workers: &BTreeMap<u32, &Dump>, absent: &[u32]) -> Vec<String> {
    let Some((round, waits)) = longest(workers) else {
        return vec!["No sum waits in these dumps.".to_owned()];
    };
    let came: Vec<u32> = workers.iter().filter(|(_, dump)| dump.has_come_to(round)).map(|(rank, _)| *rank).collect();
    let told: BTreeSet<u32> = workers
        .values()
        .filter_map(|dump| dump.notices.get(round))
        .flat_map(|notice| &notice.missing)
        .copied()
        .collect();
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
        let details = workers.values().filter_map(|dump| dump.notices.get(round)).map(|notice| notice.detail.trim());
        lines.extend(
            details.filter(|detail| !detail.is_empty()).take(1).map(|detail| format!("They said: {}", plain(detail))),
        );
    }
    lines
}

/// The round for which a worker waits, or has waited in vain, since the longest time.
fn longest<'a>(workers: &BTreeMap<u32, &'a Dump>) -> Option<(&'a Round, &'a State)> {
    let waiting =
        workers.values().flat_map(|dump| dump.rounds.iter().map(move |(round, submitted)| (*dump, round, submitted)));
    let waiting = waiting.filter(|(_, _, submitted)| submitted.state != State::Ended);
    // What is open waits until now; what failed in vain comes behind it, because its worker may have gone on.
    let longest = waiting.max_by_key(|(dump, round, submitted)| {
        (matches!(submitted.state, State::Open { .. }), dump.ago(submitted.at_ns), std::cmp::Reverse((*round).clone()))
    });
    longest.map(|(_, round, submitted)| (round, &submitted.state))
}

/// The workers with a dump that did not submit a round. If the servers have said who was missing, only those. A worker that has never
/// submitted the tensor may not take part in it, so the others come first.
fn missing(workers: &BTreeMap<u32, &Dump>, round: &Round, came: &[u32], told: &BTreeSet<u32>) -> Vec<u32> {
    let others = workers.keys().copied().filter(|rank| !came.contains(rank));
    let others: Vec<u32> = others.filter(|rank| told.is_empty() || told.contains(rank)).collect();
    let know: Vec<u32> = others.iter().copied().filter(|rank| workers[rank].knows(&round.tensor)).collect();
    if know.is_empty() || !told.is_empty() { others } else { know }
}

/// What a worker did last that did not submit a round.
fn last_seen(rank: u32, dump: &Dump) -> String {
    let last = match &dump.last {
        Some(Last { tensor, round, at_ns, .. }) => format!(
            "The last submission of worker {rank} was `{}`{}, {} before its dump.",
            plain(tensor),
            round.map(|round| format!(" round {round}")).unwrap_or_default(),
            seconds(dump.ago(*at_ns))
        ),
        None if dump.is_cut => format!("The events of worker {rank} have no submission any more."),
        None => format!("Worker {rank} has submitted nothing."),
    };
    let stacks = dump.stacks.as_ref().map(|at| format!(" By its Python stacks it was in {}.", plain(at)));
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
        State::Late | State::Ended => "It was not done in time.".to_owned(),
    }
}

/// The end of a worker, and its first error.
fn said(dump: &Dump) -> String {
    let who = dump.rank.map_or_else(|| "a process".to_owned(), |rank| format!("worker {rank}"));
    let first = dump.errors.iter().min_by_key(|failure| failure.at_ns);
    let mut words =
        vec![format!("  {who} ({}, Gradlane {}): {}", place(dump), plain(&dump.version), plain(&dump.reason))];
    let told = |word: &str, Failure { at_ns, error, .. }: &Failure| {
        format!("    {word}, {} before its dump: {}", seconds(dump.ago(*at_ns)), plain(error))
    };
    words.extend(first.map(|failure| told("first error", failure)));
    words.extend(dump.end.as_ref().map(|failure| told("its end", failure)));
    words.join("\n")
}

fn place(dump: &Dump) -> String {
    format!("{} pid {}", plain(&dump.host), dump.pid)
}

/// Workers by rank, such as `workers 0, 1 and 3`.
fn named(ranks: &[u32]) -> String {
    let numbers: Vec<String> = ranks.iter().map(u32::to_string).collect();
    match numbers.as_slice() {
        [] => "no worker".to_owned(),
        [only] => format!("worker {only}"),
        [first @ .., last] => format!("workers {} and {last}", first.join(", ")),
    }
}

/// The same at the begin of a sentence.
fn begin(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Foreign text on one line, without what a terminal would obey, and not too long.
fn plain(text: &str) -> String {
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => printable(&text[..end]) + "…",
        None => printable(text),
    }
}

/// Characters of a foreign text.
const CHARS_MAX: usize = 400;
