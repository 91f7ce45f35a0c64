//! A whole job in one process: coordinator, servers and workers are threads, and exchanges pass no socket. So the time is that of the
//! engine and the sums, without a transport.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use gradlane_core::transport::mem::MemNetwork;
use gradlane_core::types::{DType, Role};
use gradlane_server::{Embedded, EmbeddedOptions, Server, ServerOptions};

use super::worker::{Means, Worker};
use crate::job::{SETTINGS, config};
use crate::team::orders::{Case, Measured, Repeat, slowest};
use crate::team::process::{Process, role};
use crate::team::rank::{LOOPBACK, Member, Obedient};
use crate::team::{Abilities, Team};

/// An argument of the process: the number of servers.
const SERVERS: &str = "servers";

/// Starts the process.
///
/// # Errors
/// The error of the process.
pub(crate) fn start(
    name: &str,
    workers: u32,
    servers: u32,
    settings: &BTreeMap<String, String>,
    patience: Duration,
) -> Result<Team, String> {
    let mut team = Team {
        name: name.to_owned(),
        ours: true,
        size: workers,
        abilities: Abilities { out_of_place: true, mean: true, dtypes: &DType::ALL },
        wire: None,
        about: String::new(),
        traffic: None,
        ranks: vec![Process::start("all workers", role("whole", &[])?)?],
        helpers: Vec::new(),
        patience,
    };
    let settings = serde_json::to_string(settings).expect("a map of texts");
    let with = BTreeMap::from([(SETTINGS.to_owned(), settings), (SERVERS.to_owned(), servers.to_string())]);
    team.join(|_| with.clone())?;
    Ok(team)
}

/// All ranks of the job, its servers and its coordinator.
pub(crate) struct Whole {
    ranks: Vec<Member<Worker>>,
    servers: Vec<Server>,
    coordinator: Embedded,
}

impl Obedient for Whole {
    fn join(_rank: u32, ranks: u32, with: &BTreeMap<String, String>) -> Result<Self, String> {
        let text = |error: gradlane_core::Error| error.to_string();
        let given = |name: &str| with.get(name).map_or("", String::as_str);
        let config = config(&serde_json::from_str(given(SETTINGS)).map_err(|cause| format!("{SETTINGS}: {cause}"))?)?;
        let servers = given(SERVERS).parse().map_err(|cause| format!("{SERVERS}: {cause}"))?;
        let network = MemNetwork::new().map_err(text)?;
        let options = EmbeddedOptions { config: config.clone(), workers: ranks, servers };
        let coordinator = Embedded::start_coordinator(&options).map_err(text)?;
        let address = coordinator.join_string().address.clone();
        let credentials = |role| coordinator.coordinator().credentials(role).map(Arc::new).map_err(text);
        let servers = (0..servers)
            .map(|index| {
                let (config, coordinator) = (config.clone(), address.clone());
                let credentials = credentials(Role::Server)?;
                Server::start_in(ServerOptions { config, coordinator, credentials, index: Some(index) }, &network)
                    .map_err(text)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let means = (0..ranks)
            .map(|rank| {
                let credentials = credentials(Role::Worker)?;
                let transport = Arc::new(network.transport(credentials.node()));
                let (coordinator, copies) = (address.clone(), network.copies().clone());
                Ok((rank, Means { coordinator, credentials, transport, copies }))
            })
            .collect::<Result<Vec<_>, String>>()?;
        let ranks = at_once(means, |(rank, means)| {
            Ok(Member::new(Worker::start(rank, ranks, config.clone(), means)?, rank, ranks, LOOPBACK))
        })?;
        Ok(Self { ranks, servers, coordinator })
    }

    fn prepare(&mut self, case: Case) -> Result<(), String> {
        at_once(&mut self.ranks, |rank| rank.prepare(case.clone())).map(drop)
    }

    fn repeat(&mut self, repeat: &Repeat) -> Result<Measured, String> {
        let orders = self.ranks.iter_mut().zip(0..);
        let ranks = at_once(orders, |(rank, index)| {
            rank.repeat(&Repeat { spoil: repeat.spoil && index == 0, ..repeat.clone() })
        })?;
        Ok(all_of(&ranks))
    }

    fn leave(self) -> Result<(), String> {
        at_once(self.ranks, Obedient::leave)?;
        let patience = Duration::from_secs(5);
        let ended = self.coordinator.stop(patience).map_err(|error| error.to_string());
        self.servers.iter().for_each(|server| server.stop(patience));
        ended
    }
}

/// Does `work` for all items at the same time, each on its own thread. Returns all results, or the first error.
fn at_once<T: Send, R: Send>(
    each: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> Result<R, String> + Sync,
) -> Result<Vec<R>, String> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = each.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank does not panic")).collect()
    })
}

/// Combines the figures of all ranks of one process. An exchange takes as long as on its slowest rank. Each rank measured the processor
/// time of the whole process, so these are not added.
fn all_of(ranks: &[Measured]) -> Measured {
    Measured {
        seconds: slowest(ranks),
        cpu_seconds: ranks.iter().map(|rank| rank.cpu_seconds).fold(0.0, f64::max),
        wrong: ranks.iter().map(|rank| rank.wrong).sum(),
        wrong_at: ranks.iter().find_map(|rank| rank.wrong_at.clone()),
        late: ranks.iter().map(|rank| rank.late).sum(),
        ..Measured::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_of_ranks_of_one_process_ends_with_its_slowest_and_their_processor_time_is_one() {
        let rank = |seconds: [f64; 2], wrong| Measured {
            seconds: seconds.to_vec(),
            cpu_seconds: 3.0,
            wrong,
            ..Measured::default()
        };
        let all = all_of(&[rank([1.0, 4.0], 1), rank([2.0, 3.0], 2)]);
        assert_eq!((all.seconds, all.cpu_seconds, all.wrong), (vec![2.0, 4.0], 3.0, 3));
    }
}
