//! For what uses of parameters and tables wait, in sentences.
//!
//! A use is of one worker, so a server makes it wait for others only where the mode of its table or its clock says so. A server names the
//! workers that must push to a part of a table first, for all uses that wait there.

use std::collections::BTreeSet;

use gradlane_core::types::TensorKey;

use super::head::{Head, PartOfRound};
use super::members::{Members, Told};
use super::server::{Progress, Server, Use, UseSight};
use super::words::{all, begin, listed, named, plain};
use super::worker::{HandedOver, Kept, Round, Worker};
use crate::look::words::seconds;

/// Whether a use waits.
pub(super) fn any(members: &Members<'_>) -> bool {
    members.workers.values().any(|told| told.of.uses.values().any(|used| used.is_open))
        || members.servers.values().any(|told| Held::longest(told.of).is_some())
}

/// The workers for which a server lets uses wait since the longest time, in words.
pub(super) fn missing(members: &Members<'_>) -> Option<String> {
    let held = members.servers.values().filter_map(|told| Some((told.head, Held::longest(told.of)?)));
    held.max_by_key(|(head, held)| head.ago(held.began_ns)).map(|(_, held)| with_others(held.by))
}

/// For what the uses of each server and of each worker wait, and since when.
pub(super) fn waits(members: &Members<'_>) -> Vec<String> {
    let of_servers = members.servers.iter().filter_map(|(index, told)| at_server(members, *index, *told));
    let mut of_workers: Vec<_> =
        members.workers.iter().filter_map(|(rank, told)| of_worker(members, *rank, *told)).collect();
    let others = of_workers.len().saturating_sub(WORKERS_MAX);
    of_workers.truncate(WORKERS_MAX);
    if others > 0 {
        of_workers.push(format!("Further workers whose uses wait: {others}."));
    }
    of_servers.chain(of_workers).collect()
}

/// Uses of one part of a table that wait until other workers have pushed.
struct Held<'a> {
    key: u64,
    part: u64,
    /// When the first of them began.
    began_ns: u64,
    /// Whose they are.
    of: BTreeSet<u32>,
    /// One of them. All of a part wait for the same workers.
    by: &'a Use,
}

impl<'a> Held<'a> {
    /// Those that wait since the longest time at a server.
    fn longest(server: &'a Server) -> Option<Self> {
        let waits = || server.uses.iter().flatten().filter(|(_, used)| used.progress == Progress::Waits);
        let held = || waits().filter(|(_, used)| !used.missing.is_empty());
        let ((PartOfRound { key, part, .. }, _), by) = held().min_by_key(|(_, used)| used.began_ns)?;
        // The number of a use is the business of its worker.
        let others = held().filter(|((of, _), _)| (of.key, of.part) == (*key, *part));
        let of = others.map(|((_, worker), _)| *worker).collect();
        Some(Self { key: *key, part: *part, began_ns: by.began_ns, of, by })
    }
}

fn at_server(members: &Members<'_>, index: u32, Told { head, of }: Told<'_, Server>) -> Option<String> {
    let Held { key, part, began_ns, of, by } = Held::longest(of)?;
    let (since, part) = (seconds(head.ago(began_ns)), members.part(key, part));
    let (push, of) = (push(by), named(&Vec::from_iter(of)));
    Some(format!("Server {index} lets uses of {of} wait until {push} to {part}, since {since} before its dump."))
}

/// The use of a worker that was submitted first. One that failed is told only if none waits.
fn of_worker(members: &Members<'_>, rank: u32, Told { head, of }: Told<'_, Worker>) -> Option<String> {
    let (round, used) = of.uses.iter().min_by_key(|(_, used)| (!used.is_open, used.at_ns))?;
    let what = match used.of {
        Kept::Parameter => "parameter",
        Kept::Rows => "table",
        Kept::Residual => "the residual of",
    };
    let (worker, since) = (begin(&named(&[rank])), seconds(head.ago(used.at_ns)));
    let (name, number) = (plain(&round.tensor), round.round);
    let waits = if used.is_open { "waits for" } else { "has waited in vain for" };
    let sentence = format!("{worker} {waits} use {number} of {what} `{name}`, submitted {since} before its dump.");
    let handed_over =
        of.used.iter().filter(|(part, _)| is_of(part, round)).min_by_key(|(_, handed_over)| handed_over.at_ns);
    let where_it_is = match handed_over {
        Some((part, handed_over)) => at(members, (rank, head), *part, *handed_over)?,
        None if of.is_cut => "Its events do not tell where it is.".to_owned(),
        None => "No part of it waits for a server.".to_owned(),
    };
    Some(format!("{sentence} {where_it_is}"))
}

/// What became of a part that a worker has handed over.
fn at(members: &Members<'_>, (rank, head): (u32, &Head), part: PartOfRound, handed_over: HandedOver) -> Option<String> {
    let index = u32::try_from(handed_over.server).ok()?;
    let server = all("server", &[index]);
    let Some(told) = members.servers.get(&index) else {
        return Some(format!("Its part {} was handed over to {server}, of which there is no dump.", part.part));
    };
    let lacks =
        |lacks: &str| told.head.says(lacks.to_owned(), "whose dump is older".to_owned(), (head, handed_over.at_ns));
    let what = match told.of.sight_of_use(part, rank) {
        UseSight::Never => lacks("which has never seen any of it"),
        UseSight::Open(used) => match used.progress {
            Progress::Begun => lacks("which does not have all of it"),
            Progress::Waits if !used.missing.is_empty() => {
                format!("which lets it wait until {}", push(used))
            }
            Progress::Waits if used.clock_at > 0 => {
                format!("which lets it wait until round {} of its clock is closed", used.clock_at)
            }
            Progress::Waits => "which has all of it and has not answered".to_owned(),
            Progress::ToAnswer => "which has all of it and is to answer".to_owned(),
            Progress::Answered => "which has begun to answer".to_owned(),
        },
        UseSight::Ended => "which is done with it".to_owned(),
        UseSight::Unknown => "which does not say more".to_owned(),
    };
    Some(format!("Its part {} was handed over to {server}, {what}.", part.part))
}

fn is_of(part: &PartOfRound, round: &Round) -> bool {
    (part.key, part.round) == (TensorKey::of(&round.tensor).0, round.round)
}

/// That the workers push for which a use waits, such as `workers 1 and 2 push`.
fn push(used: &Use) -> String {
    let push = if used.missing.len() == 1 && used.others == 0 { "pushes" } else { "push" };
    format!("{} {push}", with_others(used))
}

/// The workers for which a use waits, such as `workers 1, 2 and 36 others`.
fn with_others(Use { missing, others, .. }: &Use) -> String {
    let ranks = missing.iter().map(u32::to_string);
    match others {
        0 => named(&Vec::from_iter(missing.iter().copied())),
        1 => format!("workers {}", listed(&Vec::from_iter(ranks.chain(["1 other".to_owned()])))),
        _ => format!("workers {}", listed(&Vec::from_iter(ranks.chain([format!("{others} others")])))),
    }
}

/// Workers whose uses are told.
const WORKERS_MAX: usize = 4;
