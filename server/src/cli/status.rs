//! `gradlane status`: the members of running jobs, as their coordinators see them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use gradlane_core::config::{Config, Origin};
use gradlane_core::runtime;
use gradlane_core::types::{MachineId, Phase, Process, Reach, Role, printable};
use gradlane_core::wire::frame::{Hold, Status};
use gradlane_core::{Error, Result};

use super::screen;
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

/// Shows the jobs every `every`, until none runs any more. A terminal shows the newest state alone.
///
/// # Errors
/// As [`ask`], at the first time.
pub(super) fn watch(config: &Config, every: Duration, show: impl Fn(&[Answer]) -> Result<i32>) -> Result<i32> {
    let mut answers = ask(config)?;
    loop {
        if screen::columns().is_some() {
            screen::clear();
        }
        show(&answers)?;
        crossbeam_channel::after(every).recv().expect("a timer fires");
        answers = match ask(config) {
            Ok(answers) => answers,
            Err(error) => {
                tracing::info!(%error, "no job is left to watch");
                return Ok(exit::SUCCESS);
            }
        };
    }
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
            return format!("job {job}: does not answer: {error}\nled by process {pid}: {command}\n");
        }
    };
    let view = &status.view;
    let mut text = format!(
        "job {}: {}, {}, {}, {}\n",
        view.job,
        phase(&view.phase),
        counted(view.workers().count(), "worker"),
        counted(view.servers().count(), "server"),
        view.epoch
    );
    if let Some(Running { pid, command, .. }) = leader {
        let _ = writeln!(text, "led by process {pid}: {command}");
    }
    if let Phase::Aborted(cause) | Phase::Restores(cause) = &view.phase {
        let _ = writeln!(text, "cause: {cause}");
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
            network_address(&member.process).map_or_else(|| "-".to_owned(), printable),
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
mod tests {
    use gradlane_core::Error;
    use gradlane_core::types::{
        Address, Epoch, Incarnation, JoinString, Member, NodeId, Round, Scheme, TensorKey, View,
    };
    use gradlane_core::wire::frame::Health;
    use gradlane_core::wire::frame::{MemberStatus, Names, Progress};

    use super::*;

    #[test]
    fn each_member_has_a_line() {
        let text = text(&[answer(Phase::Running)], None);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "job night: running, 1 worker, 1 server, epoch 1.3");
        assert_eq!(lines[1], "led by process 60: gradlane run -n 1 -s 1 -- python train.py");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(words(lines[2]), "member health heard round pending in flight sums process address machine");
        assert_eq!(words(lines[3]), "worker 0 alive 0.2 s ago 7 2 64 B - n1 (pid 70) - -");
        assert_eq!(words(lines[4]), "server 0 alive 0.2 s ago 7 2 64 B 4 KiB in 2 parts n1 (pid 80) 10.0.0.1:9 0, shm");
        assert_eq!(lines[5..], ["the most loaded server has 1.50 times its share"]);
    }

    #[test]
    fn a_job_that_does_not_answer_is_shown_beside_the_others() {
        let busy = Error::Timeout { what: "the coordinator".to_owned(), waited: Duration::from_secs(5) };
        let answers = [answer(Phase::Running), Answer { status: Err(busy), ..answer(Phase::Running) }];
        let shown = text(&answers, None);
        assert!(shown.contains("job night: does not answer: ") && shown.contains("job night: running"), "{shown}");
        let lines: Vec<serde_json::Value> =
            json(&answers).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!((&lines[1]["job"], &lines[1]["leader_pid"]), (&"night".into(), &60.into()));
        assert!(lines[1]["error"].as_str().is_some_and(|error| error.contains("coordinator")));
        assert_eq!((exit_code(&answers), exit_code(&answers[1..]) == exit::SUCCESS), (exit::SUCCESS, false));
    }

    #[test]
    fn the_table_fits_the_terminal() {
        let text = text(&[answer(Phase::Running), answer(Phase::Running)], Some(80));
        let table = text.lines().filter(|line| !line.starts_with("led by"));
        assert!(table.clone().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("job night")).count(), 2, "{text}");
    }

    #[test]
    fn an_aborted_job_says_why() {
        assert!(text(&[answer(Phase::Aborted(Error::Cancelled))], None).contains("cause: cancelled by the caller"));
    }

    #[test]
    fn a_job_that_holds_says_for_whom_and_for_how_long() {
        let held = |lost: &[&str]| {
            let lost = Names::first(lost.iter().map(|lost| (*lost).to_owned()), lost.len());
            let hold = Hold { there: 2, needed: 3, lost, patience: Duration::from_millis(593_400) };
            [Answer { leader: None, status: Ok(Status { hold: Some(hold), ..status(Phase::Running) }) }]
        };
        let lost = held(&["worker 1 on n1 (pid 7): killed"]);
        let line = "holds: 2 of 3 workers are there, waits 593 s more";
        let lines = text(&lost, None);
        assert!(lines.contains(&format!("\n{line}; lost: worker 1 on n1 (pid 7): killed\n")), "{lines}");
        assert!(text(&held(&[]), None).contains(&format!("\n{line}\n")));
        let read: serde_json::Value = serde_json::from_str(&json(&lost)).unwrap();
        assert_eq!((&read["hold"]["there"], &read["hold"]["needed"]), (&2.into(), &3.into()));
        assert_eq!(
            (&read["hold"]["patience_ms"], &read["hold"]["lost"][0]),
            (&593_400.into(), &"worker 1 on n1 (pid 7): killed".into())
        );
    }

    #[test]
    fn sizes_are_short() {
        for (size, shown) in
            [(0, "0"), (64, "64 B"), (4096, "4 KiB"), (4 << 20 | 1 << 18, "4.2 MiB"), (1536, "1.5 KiB")]
        {
            assert_eq!(bytes(size), shown);
        }
    }

    #[test]
    fn programs_read_the_same_as_json() {
        let text = json(&[answer(Phase::Running), answer(Phase::Running)]);
        assert_eq!(text.lines().count(), 2, "a line a job");
        let read: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!((&read["phase"], &read["leader_pid"]), (&"running".into(), &60.into()));
        assert_eq!((&read["workers"], &read["servers"]), (&1.into(), &1.into()));
        assert_eq!(read["members"][0]["health"], "alive");
        assert_eq!(read["members"][0]["silent_ms"], 200);
        assert_eq!(read["members"][1]["address"], "10.0.0.1:9");
        assert_eq!((&read["imbalance"], &read["members"][1]["placed_parts"]), (&1.5.into(), &2.into()));
        assert_eq!(
            (&read["members"][0]["machine"], &read["members"][1]["machine"]),
            (&serde_json::Value::Null, &0.into())
        );
        assert_eq!(read["members"][1]["shared_memory"], true);
    }

    fn answer(phase: Phase) -> Answer {
        let leader = Running {
            job: "night".to_owned(),
            join: JoinString { address: "127.0.0.1:9000".to_owned(), ca_hash: [1; 32], secret: [2; 16] },
            operators: JoinString { address: "127.0.0.1:9000".to_owned(), ca_hash: [1; 32], secret: [3; 16] },
            pid: 60,
            command: "gradlane run -n 1 -s 1 -- python train.py".to_owned(),
        };
        Answer { leader: Some(leader), status: Ok(status(phase)) }
    }

    fn status(phase: Phase) -> Status {
        let member = |role, pid, addresses: &[(Scheme, &str)], machine| Member {
            process: Process {
                host: "n1".to_owned(),
                pid,
                addresses: addresses.iter().map(|(scheme, at)| Address::new(*scheme, *at)).collect(),
                machine,
                ..Process::new(role, Incarnation(1))
            },
            node: NodeId([0; 32]),
            index: 0,
            first_round: Round(0),
        };
        let members = vec![
            member(Role::Worker, 70, &[], MachineId::UNKNOWN),
            member(Role::Server, 80, &[(Scheme::Shm, "/run/socket"), (Scheme::Quic, "10.0.0.1:9")], MachineId(0xabc)),
        ];
        let progress = Progress { last: Some((TensorKey(1), Round(7))), pending: 2, bytes_in_flight: 64 };
        let health = MemberStatus {
            health: Health::Alive,
            silent: Duration::from_millis(200),
            progress,
            placed_bytes: 0,
            placed_parts: 0,
        };
        let loaded = MemberStatus { placed_bytes: 4096, placed_parts: 2, ..health.clone() };
        Status {
            view: View::plain("night", Epoch { term: 1, number: 3 }, phase, members),
            members: vec![health, loaded],
            imbalance_milli: 1500,
            hold: None,
            waits: Box::default(),
        }
    }
}
