//! How much of what its network interfaces can carry a machine sends or receives.
//!
//! Workers tell what they send to each server and receive from it, so the traffic of the machines of servers is known too. What stays on a machine
//! goes through no interface.

use std::collections::BTreeMap;

use gradlane_core::types::{MachineId, Member, Role};

use super::since::Since;

/// The shares of capacities that machines use.
#[derive(Default, Debug)]
pub(super) struct Nics<'a>(BTreeMap<Machine<'a>, f64>);

/// A machine. Processes that do not know theirs are told apart by their hosts.
type Machine<'a> = (MachineId, &'a str);

/// Bytes a second.
#[derive(Clone, Copy, Default)]
struct Traffic {
    out: f64,
    into: f64,
}

impl<'a> Nics<'a> {
    /// What was used between two readings.
    pub(super) fn between(since: &Since<'a>) -> Self {
        let members = &since.now.status.view.members;
        let places: BTreeMap<(Role, u32), Machine<'a>> =
            members.iter().map(|member| ((member.process.role, member.index), machine(member))).collect();
        let mut traffic: BTreeMap<Machine<'a>, Traffic> = BTreeMap::new();
        for worker in since.members(Role::Worker) {
            let (Some(here), Some(seconds)) = (places.get(&worker), since.seconds(worker)) else { continue };
            for (name, is_sent) in [("link_sent_bytes", true), ("link_received_bytes", false)] {
                for (labels, bytes) in since.growth(worker, name) {
                    let server = labels.first().and_then(|server| server.parse().ok());
                    let there = server.and_then(|server| places.get(&(Role::Server, server)));
                    let Some(there) = there.filter(|there| *there != here) else { continue };
                    let (from, to) = if is_sent { (here, there) } else { (there, here) };
                    traffic.entry(*from).or_default().out += bytes as f64 / seconds;
                    traffic.entry(*to).or_default().into += bytes as f64 / seconds;
                }
            }
        }
        let mut capacities: BTreeMap<Machine<'a>, u64> = BTreeMap::new();
        for (member, told) in &since.now.told {
            let Some(machine) = places.get(member) else { continue };
            let capacity: u64 = told.family("nic_capacity_bytes_per_second").map(|(_, capacity)| capacity).sum();
            let known = capacities.entry(*machine).or_default();
            *known = capacity.max(*known);
        }
        let share = |(machine, Traffic { out, into }): (Machine<'a>, Traffic)| {
            let capacity = *capacities.get(&machine).filter(|capacity| **capacity > 0)?;
            Some((machine, out.max(into) / capacity as f64))
        };
        Self(traffic.into_iter().filter_map(share).collect())
    }

    /// The share that the machine of a member uses, in the direction in which it is higher. `None` if it is not known what it could use.
    pub(super) fn of(&self, member: &Member) -> Option<f64> {
        self.0.get(&machine(member)).copied()
    }
}

fn machine(member: &Member) -> Machine<'_> {
    (member.process.machine, &member.process.host)
}

/// Headers of Ethernet, IP and UDP are not counted, and take some percent.
pub(super) const FULL: f64 = 0.9;
