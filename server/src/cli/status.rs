//! `gradlane status`: the members of running jobs, as their coordinators see them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use gradlane_core::config::{Config, Origin};
use gradlane_core::runtime::{self, Clock};
use gradlane_core::types::{MachineId, Phase, Process, Reach, Role, printable};
use gradlane_core::wire::frame::{Hold, Status};
use gradlane_core::{Error, Result};

use super::screen;
use super::silence::Silence;
use crate::exit;
use crate::launch::entering::Found;
use crate::launch::running::{self, Running};
use crate::look::words::{bytes, health, phase};

/// A job that was asked.
pub(super) struct Answer {
    /// The process of this host that leads it, if it was found by that.
    leader: Option<Running>,
    /// Or why there is none though the leader runs.
    pub(super) status: Result<Status>,
}

impl Answer {
    /// The name of the job; empty if it is not known.
    pub(super) fn name(&self) -> &str {
        let leader = self.leader.as_ref().map(|leader| &*leader.job);
        self.status.as_ref().ok().map(|status| &*status.view.job).or(leader).unwrap_or_default()
    }

    /// An answer of a job that was not found by its process.
    #[cfg(test)]
    pub(super) fn of_nobody(status: Result<Status>) -> Self {
        Self { leader: None, status }
    }
}

/// Asks the coordinator of the job that `config` names. If it names none, asks all jobs that processes of this user lead on this host.
///
/// # Errors
/// Why no coordinator can be found, or why the one that is named does not answer. Fails within seconds, because a user waits.
pub(super) fn ask(config: &Config) -> Result<Vec<Answer>> {
    if names_a_coordinator(config) {
        return ask_at(config, Found::by_settings(config, Duration::ZERO)?).map(|answer| vec![answer]);
    }
    let here = led_here(config);
    if here.is_empty() {
        // A coordinator on another host may have published its join string in a home directory that the hosts share.
        let found = Found::by_settings(config, Duration::ZERO).map_err(|error| nothing_runs(config, error))?;
        return ask_at(config, found).map(|answer| vec![answer]);
    }
    let mut answers = Vec::new();
    for running in here {
        let status = ask_at(config, Found::from(running.join.clone())).and_then(|answer| answer.status);
        // It may have ended meanwhile.
        if status.is_ok() || led_here(config).contains(&running) {
            answers.push(Answer { leader: Some(running), status });
        }
    }
    if answers.is_empty() { Err(nothing_runs_here(config)) } else { Ok(answers) }
}

/// Whether the settings say where a coordinator is.
pub(super) fn names_a_coordinator(config: &Config) -> bool {
    ["join", "join_file", "coordinator_host"].into_iter().any(|name| *config.origin(name) != Origin::Default)
}

/// The jobs that processes of this user lead on this host; if the settings name a job, those of this name.
pub(super) fn led_here(config: &Config) -> Vec<Running> {
    let mut here = config.state_dir.as_deref().map(running::jobs).unwrap_or_default();
    if *config.origin("job") != Origin::Default {
        here.retain(|running| running.job == config.job);
    }
    here
}

/// The exit code for these answers: success if a coordinator has answered.
pub(super) fn exit_code(answers: &[Answer]) -> i32 {
    match answers.iter().find_map(|answer| answer.status.as_ref().err()) {
        Some(error) if answers.iter().all(|answer| answer.status.is_err()) => exit::code(error),
        Some(_) | None => exit::SUCCESS,
    }
}

/// Shows the jobs every `every`, until none runs any more. A terminal shows the newest state alone. If nobody answers, it stays there, and
/// standard error says so.
///
/// # Errors
/// As [`ask`] at the first time, and later as [`Silence::after`].
pub(super) fn watch(config: &Config, every: Duration, show: impl Fn(&[Answer]) -> Result<i32>) -> Result<i32> {
    let clock = Clock::start();
    let mut answers = ask(config)?;
    let mut silence = Silence::default();
    loop {
        let is_terminal = screen::columns().is_some();
        if is_terminal {
            screen::clear();
        }
        // Who reads a pipe gets each state once.
        if is_terminal || silence.notice().is_none() {
            show(&answers)?;
        }
        silence.notice().iter().for_each(exit::complain);
        crossbeam_channel::after(every).recv().expect("a timer fires");
        let asked = clock.now();
        match ask(config) {
            Ok(newer) => (answers, silence) = (newer, Silence::default()),
            Err(error) if has_ended(&answers) || nobody_leads(config) => {
                tracing::info!(%error, "no job is left to watch");
                return Ok(exit::SUCCESS);
            }
            Err(error) => silence.after(asked, clock.now(), error)?,
        }
    }
}

/// Whether all these jobs had ended when they answered.
fn has_ended(answers: &[Answer]) -> bool {
    answers.iter().all(|answer| answer.status.as_ref().is_ok_and(|status| is_over(&status.view.phase)))
}

/// Whether a job has ended for good.
pub(super) fn is_over(phase: &Phase) -> bool {
    match phase {
        Phase::Ended | Phase::Aborted(_) => true,
        Phase::Forming | Phase::Running | Phase::FormsAgain | Phase::Restores(_) => false,
    }
}

/// Whether no coordinator can be found any more, because the last one took its traces away or its process is gone.
fn nobody_leads(config: &Config) -> bool {
    let nobody_here = || led_here(config).is_empty();
    let nowhere = || matches!(Found::by_settings(config, Duration::ZERO), Err(Error::Unavailable { .. }));
    (names_a_coordinator(config) || nobody_here()) && nowhere()
}

fn ask_at(config: &Config, found: Found) -> Result<Answer> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let patience = config.join_timeout.min(PATIENCE);
    let (join, credentials) = found.enrol(config, Role::Observer, patience)?;
    Ok(Answer { leader: None, status: Ok(runtime::status(&join.address, &credentials, patience)?) })
}

pub(super) fn nothing_runs(config: &Config, error: Error) -> Error {
    match error {
        Error::Unavailable { .. } => nothing_runs_here(config),
        error => error,
    }
}

pub(super) fn nothing_runs_here(config: &Config) -> Error {
    let name = if *config.origin("job") == Origin::Default { String::new() } else { format!(" {}", config.job) };
    Error::Unavailable {
        what: format!("a job{name} of this user on this host"),
        cause: "none runs here; for a job that another host leads, give its join string: --join-file, GRADLANE_JOIN_FILE or \
                GRADLANE_JOIN"
            .to_owned(),
    }
}

/// For people: a heading and a table of its members for each job. The table fits `columns`, if they are given.
pub(super) fn text(answers: &[Answer], columns: Option<u16>) -> String {
    answers.iter().map(|answer| job_text(answer, columns)).collect::<Vec<_>>().join("\n")
}

fn job_text(Answer { leader, status }: &Answer, columns: Option<u16>) -> String {
    let status = match status {
        Ok(status) => status,
        Err(error) => {
            let Running { job, pid, command, .. } =
                leader.as_ref().expect("what does not answer was found by its process");
            let [job, error, command] = [job, &error.to_string(), command].map(|text| printable(text));
            return format!("job {job}: does not answer: {error}\nled by process {pid}: {command}\n");
        }
    };
    let view = &status.view;
    let mut text = format!(
        "job {}: {}, {}, {}, {}\n",
        printable(&view.job),
        phase(&view.phase),
        counted(view.workers().count(), "worker"),
        counted(view.servers().count(), "server"),
        view.epoch
    );
    if let Some(Running { pid, command, .. }) = leader {
        let _ = writeln!(text, "led by process {pid}: {}", printable(command));
    }
    if let Phase::Aborted(cause) | Phase::Restores(cause) = &view.phase {
        let _ = writeln!(text, "cause: {}", printable(&cause.to_string()));
    }
    if let Some(Hold { there, needed, lost, patience }) = &status.hold {
        let seconds = patience.as_secs_f64();
        let lost = if lost.is_empty() { String::new() } else { format!("; lost: {lost}") };
        let _ = writeln!(text, "holds: {there} of {needed} workers are there, waits {seconds:.0} s more{lost}");
    }
    if view.members.is_empty() {
        text.push_str("no member has joined yet\n");
        return text;
    }
    let machines = machines(status);
    let rows = view.members.iter().zip(&status.members).map(|(member, status)| {
        let machine = machines.get(&member.process.machine).map_or_else(|| "-".to_owned(), usize::to_string);
        let near = if member.process.socket_path().is_some() { ", shm" } else { "" };
        let sums = match status.placed_parts {
            0 => "-".to_owned(),
            parts => format!("{} in {}", bytes(status.placed_bytes), counted(parts as usize, "part")),
        };
        [
            member.name(),
            health(status.health).to_owned(),
            format!("{:.1} s ago", status.silent.as_secs_f64()),
            status.progress.last.map_or_else(|| "-".to_owned(), |(_, round)| round.0.to_string()),
            status.progress.pending.to_string(),
            bytes(status.progress.bytes_in_flight),
            sums,
            member.place(),
            network_address(&member.process).unwrap_or("-").to_owned(),
            format!("{machine}{near}"),
        ]
    });
    const HEADER: [&str; 10] =
        ["member", "health", "heard", "round", "pending", "in flight", "sums", "process", "address", "machine"];
    text.push_str(&screen::table(HEADER, rows, columns));
    if status.imbalance_milli > 1000 {
        let _ = writeln!(text, "the most loaded server has {:.2} times its share", imbalance(status));
    }
    text
}

/// Where processes of other machines reach it.
fn network_address(process: &Process) -> Option<&str> {
    let mut addresses = process.addresses.iter();
    addresses.find(|address| address.scheme.reach() == Reach::Network).map(|address| address.at.as_str())
}

/// `1 worker`, `2 workers`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The largest load of a server over its fair share.
fn imbalance(status: &Status) -> f64 {
    status.imbalance_milli as f64 / 1000.0
}

/// The machines of the members that know theirs, numbered from 0.
fn machines(status: &Status) -> BTreeMap<MachineId, usize> {
    let mut numbers = BTreeMap::new();
    for machine in
        status.view.members.iter().map(|member| member.process.machine).filter(|id| *id != MachineId::UNKNOWN)
    {
        let next = numbers.len();
        numbers.entry(machine).or_insert(next);
    }
    numbers
}

/// The same for programs: a line of JSON for each job. Ages are in milliseconds.
pub(super) fn json(answers: &[Answer]) -> String {
    answers.iter().map(|answer| job_json(answer) + "\n").collect()
}

fn job_json(Answer { leader, status }: &Answer) -> String {
    let leader_pid = leader.as_ref().map(|leader| leader.pid);
    let status = match status {
        Ok(status) => status,
        Err(error) => {
            let job = leader.as_ref().map(|leader| &leader.job);
            let error = error.to_string();
            return serde_json::json!({ "job": job, "leader_pid": leader_pid, "error": error }).to_string();
        }
    };
    let view = &status.view;
    let machines = machines(status);
    let members: Vec<_> = view
        .members
        .iter()
        .zip(&status.members)
        .map(|(member, status)| {
            serde_json::json!({
                "role": member.process.role.to_string(),
                "index": member.index,
                "host": member.process.host,
                "pid": member.process.pid,
                "address": network_address(&member.process).unwrap_or_default(),
                "node": member.node.to_string(),
                "incarnation": format!("{:032x}", member.process.incarnation.0),
                "machine": machines.get(&member.process.machine),
                "shared_memory": member.process.socket_path().is_some(),
                "health": health(status.health),
                "silent_ms": u64::try_from(status.silent.as_millis()).unwrap_or(u64::MAX),
                "round": status.progress.last.map(|(_, round)| round.0),
                "pending": status.progress.pending,
                "bytes_in_flight": status.progress.bytes_in_flight,
                "placed_bytes": status.placed_bytes,
                "placed_parts": status.placed_parts,
            })
        })
        .collect();
    let cause = match &view.phase {
        Phase::Aborted(cause) | Phase::Restores(cause) => Some(cause.to_string()),
        Phase::Forming | Phase::Running | Phase::Ended | Phase::FormsAgain => None,
    };
    let hold = status.hold.as_ref().map(|Hold { there, needed, lost, patience }| {
        serde_json::json!({
            "there": there,
            "needed": needed,
            "lost": lost.listed,
            "patience_ms": u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
        })
    });
    serde_json::json!({
        "job": view.job,
        "leader_pid": leader_pid,
        "epoch": { "term": view.epoch.term, "number": view.epoch.number },
        "phase": phase(&view.phase),
        "cause": cause,
        "hold": hold,
        "workers": view.workers().count(),
        "servers": view.servers().count(),
        "imbalance": imbalance(status),
        "members": members,
    })
    .to_string()
}

#[cfg(test)]
mod tests;
