//! Places the processes of a contender on a fabric, and gives each the settings that its place needs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::fabric::{Fabric, Machine, Place};
use super::optimum::Cluster;
use crate::job::{Before, JobOptions};
use crate::team::Wire;
use crate::team::gloo::Venue;

/// A job of ours: the coordinator on the bridge, workers and servers on their machines.
pub(crate) fn job(
    fabric: &Fabric,
    cluster: Cluster,
    settings: &BTreeMap<String, String>,
    patience: Duration,
) -> JobOptions {
    let servers = server_machines(cluster);
    let bind = |place: Place| BTreeMap::from([("bind".to_owned(), format!("{}:0", place.address()))]);
    let before = Before {
        coordinator: fabric.words(Place::Bridge),
        servers: servers.iter().map(|machine| fabric.words(Place::Machine(*machine))).collect(),
        workers: worker_machines(cluster).map(|machine| fabric.words(Place::Machine(machine))).collect(),
        coordinator_settings: bind(Place::Bridge),
        server_settings: servers.into_iter().map(|machine| bind(Place::Machine(machine))).collect(),
    };
    JobOptions {
        name: "quic".to_owned(),
        workers: cluster.workers.into(),
        servers: cluster.servers().into(),
        settings: settings.clone(),
        join: None,
        before,
        interface: "eth0".to_owned(),
        wire: Some(Wire::OwnLink),
        patience,
    }
}

/// Gloo on the workers' machines.
pub(crate) fn gloo(fabric: &Fabric, cluster: Cluster, python: PathBuf, patience: Duration) -> Venue {
    Venue {
        python,
        before: worker_machines(cluster).map(|machine| fabric.words(Place::Machine(machine))).collect(),
        host: Machine(0).address().to_string(),
        interface: "eth0".to_owned(),
        wire: Wire::OwnLink,
        patience,
    }
}

pub(crate) fn worker_machines(cluster: Cluster) -> impl Iterator<Item = Machine> {
    (0..cluster.workers).map(Machine)
}

/// The machines that run a server, by the server's index: first the extra ones, which come after the workers'.
fn server_machines(cluster: Cluster) -> Vec<Machine> {
    let extras = (cluster.workers..cluster.machines()).map(Machine);
    let beside = worker_machines(cluster).filter(|_| cluster.is_colocated());
    extras.chain(beside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_on_the_extra_machines_and_with_too_few_of_those_beside_the_workers_too() {
        let machines = |workers, extras| {
            server_machines(Cluster { workers, extras }).into_iter().map(|Machine(index)| index).collect::<Vec<_>>()
        };
        assert_eq!(machines(2, 2), [2, 3]);
        assert_eq!(machines(2, 1), [2, 0, 1]);
        assert_eq!(machines(2, 0), [0, 1]);
    }
}
