//! `gradlane status`: the members of a running job, as its coordinator sees them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use gradlane_core::Result;
use gradlane_core::config::Config;
use gradlane_core::runtime;
use gradlane_core::types::{MachineId, Phase, Role};
use gradlane_core::wire::frame::{Health, Status};

use crate::launch::entering::Found;

/// Asks the coordinator of the job that `config` names.
///
/// # Errors
/// Why the coordinator cannot be found or does not answer. Fails within seconds, because a user waits.
pub(super) fn ask(config: &Config) -> Result<Status> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let patience = config.join_timeout.min(PATIENCE);
    let (join, credentials) = Found::by_settings(config, Duration::ZERO)?.enrol(config, Role::Observer, patience)?;
    runtime::status(&join.address, &credentials, patience)
}

/// One line for the job, then one line a member. Those on the same numbered machine can share memory; a server *by shared memory* is reached
/// that way from its machine.
pub(super) fn text(status: &Status) -> String {
    let view = &status.view;
    let mut text = format!("job {}, {}: {}\n", view.job, view.epoch, phase(&view.phase));
    if let Phase::Aborted(cause) = &view.phase {
        let _ = writeln!(text, "cause: {cause}");
    }
    let machines = machines(status);
    for (member, status) in view.members.iter().zip(&status.members) {
        let _ = write!(text, "{:<12} {:<8} {}", member.name(), health(status.health), member.place());
        if !member.process.address.is_empty() {
            let _ = write!(text, " at {}", member.process.address);
        }
        if let Some(machine) = machines.get(&member.process.machine) {
            let near = if member.process.socket_path.is_empty() { "" } else { " by shared memory" };
            let _ = write!(text, " on machine {machine}{near}");
        }
        let _ = write!(text, ", heard of {:.1} s ago", status.silent.as_secs_f64());
        if let Some((_, round)) = status.progress.last {
            let _ = write!(text, ", last in {round}");
        }
        let (pending, bytes) = (status.progress.pending, status.progress.bytes_in_flight);
        let _ = write!(text, ", {pending} pending, {bytes} bytes in flight");
        if status.placed_parts > 0 {
            let _ = write!(text, ", sums {} bytes in {} parts", status.placed_bytes, status.placed_parts);
        }
        text.push('\n');
    }
    if status.imbalance_milli > 1000 {
        let _ = writeln!(text, "the most loaded server has {:.2} times its share", imbalance(status));
    }
    text
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

/// The same as JSON for programs. Ages are in milliseconds.
pub(super) fn json(status: &Status) -> String {
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
                "address": member.process.address,
                "node": member.node.to_string(),
                "incarnation": format!("{:032x}", member.process.incarnation.0),
                "machine": machines.get(&member.process.machine),
                "shared_memory": !member.process.socket_path.is_empty(),
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
        Phase::Aborted(cause) => Some(cause.to_string()),
        Phase::Forming | Phase::Running | Phase::Ended => None,
    };
    serde_json::json!({
        "job": view.job,
        "epoch": { "term": view.epoch.term, "number": view.epoch.number },
        "phase": phase(&view.phase),
        "cause": cause,
        "workers": view.workers().count(),
        "servers": view.servers().count(),
        "imbalance": imbalance(status),
        "members": members,
    })
    .to_string()
}

fn phase(phase: &Phase) -> &'static str {
    match phase {
        Phase::Forming => "forming",
        Phase::Running => "running",
        Phase::Ended => "ended",
        Phase::Aborted(_) => "aborted",
    }
}

fn health(health: Health) -> &'static str {
    match health {
        Health::Alive => "alive",
        Health::Suspect => "suspect",
        Health::Dead => "dead",
        Health::Left => "left",
    }
}

#[cfg(test)]
mod tests {
    use gradlane_core::Error;
    use gradlane_core::types::{Epoch, Incarnation, Member, NodeId, Process, Round, TensorKey, View};
    use gradlane_core::wire::frame::{MemberStatus, Progress};

    use super::*;

    #[test]
    fn each_member_has_a_line() {
        let text = text(&status(Phase::Running));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "job night, epoch 1.3: running");
        assert_eq!(
            lines[1],
            "worker 0     alive    n1 (pid 70), heard of 0.2 s ago, last in round 7, 2 pending, 64 bytes in flight"
        );
        assert!(
            lines[2].starts_with("server 0     alive    n1 (pid 80) at 10.0.0.1:9 on machine 0 by shared memory, ")
                && lines[2].ends_with(", sums 4096 bytes in 2 parts"),
            "{text}"
        );
        assert_eq!(lines[3..], ["the most loaded server has 1.50 times its share"]);
    }

    #[test]
    fn an_aborted_job_says_why() {
        assert!(text(&status(Phase::Aborted(Error::Cancelled))).contains("cause: cancelled by the caller"));
    }

    #[test]
    fn programs_read_the_same_as_json() {
        let read: serde_json::Value = serde_json::from_str(&json(&status(Phase::Running))).unwrap();
        assert_eq!(read["phase"], "running");
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

    fn status(phase: Phase) -> Status {
        let member = |role, pid, address: &str, machine, socket_path: &str| Member {
            process: Process {
                host: "n1".to_owned(),
                pid,
                address: address.to_owned(),
                machine,
                socket_path: socket_path.to_owned(),
                ..Process::new(role, Incarnation(1))
            },
            node: NodeId([0; 32]),
            index: 0,
            first_round: Round(0),
        };
        let members = vec![
            member(Role::Worker, 70, "", MachineId::UNKNOWN, ""),
            member(Role::Server, 80, "10.0.0.1:9", MachineId(0xabc), "/run/socket"),
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
            view: View { job: "night".to_owned(), epoch: Epoch { term: 1, number: 3 }, phase, members },
            members: vec![health, loaded],
            imbalance_milli: 1500,
        }
    }
}
