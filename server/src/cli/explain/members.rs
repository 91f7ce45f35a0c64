//! The members of one job of which there are dumps.

use std::collections::{BTreeMap, BTreeSet};

use gradlane_core::types::{Epoch, TensorKey};

use super::coordinator::Coordinator;
use super::dump::{Dump, Of};
use super::head::{Head, PartOfRound};
use super::server::Server;
use super::words::{all, begin, listed, plain};
use super::worker::Worker;

/// The dumps of one run of a job.
pub(super) struct Members<'a> {
    /// The newest epoch that a dump names. The members are those of this epoch.
    epoch: Option<Epoch>,
    pub(super) workers: BTreeMap<u32, Told<'a, Worker>>,
    pub(super) servers: BTreeMap<u32, Told<'a, Server>>,
    pub(super) coordinator: Option<Told<'a, Coordinator>>,
    /// The ranks of all workers, as far as the dumps say.
    ranks: BTreeSet<u32>,
    /// The indexes of all servers, as far as the dumps say.
    indexes: BTreeSet<u32>,
    /// What the workers and servers with a dump are called that were members in an older epoch only.
    former: Vec<String>,
    /// The names of tensors, which workers know and servers do not.
    names: BTreeMap<u64, &'a str>,
}

/// What a member tells.
pub(super) struct Told<'a, T> {
    pub(super) head: &'a Head,
    pub(super) of: &'a T,
}

impl<T> Clone for Told<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Told<'_, T> {}

impl<'a> Members<'a> {
    /// Those of these dumps.
    pub(super) fn of(dumps: &[&'a Dump]) -> Self {
        let (workers, servers, names) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let epoch = dumps.iter().filter_map(|dump| dump.head.epoch).max();
        let heads = || dumps.iter().map(|dump| &dump.head).filter(|head| head.epoch == epoch);
        let ranks = heads().flat_map(|head| &head.workers).copied().collect();
        let indexes = heads().flat_map(|head| &head.servers).copied().collect();
        let former = Vec::new();
        let mut members = Self { epoch, workers, servers, coordinator: None, ranks, indexes, former, names };
        for Dump { head, of } in dumps.iter().copied() {
            match (of, head.index) {
                (Of::Worker(of), Some(rank)) if may_have(&members.ranks, rank) => {
                    members.workers.insert(rank, Told { head, of });
                }
                (Of::Server(of), Some(index)) if may_have(&members.indexes, index) => {
                    members.servers.insert(index, Told { head, of });
                }
                (Of::Worker(_), Some(rank)) => members.former.push(all("worker", &[rank])),
                (Of::Server(_), Some(index)) => members.former.push(all("server", &[index])),
                (Of::Coordinator(of), _) => members.coordinator = Some(Told { head, of }),
                (Of::Worker(_) | Of::Server(_), None) => {}
            }
            if let Of::Worker(worker) = of {
                members.names.extend(worker.tensors.iter().map(|name| (TensorKey::of(name).0, name.as_str())));
            }
        }
        members
    }

    /// Whether the job has servers, as far as the dumps say.
    pub(super) fn has_servers(&self) -> bool {
        !self.indexes.is_empty()
    }

    /// How many there are, such as `3 of 3 workers, 1 of 2 servers and the coordinator`.
    pub(super) fn counted(&self) -> String {
        let counted =
            |there: usize, absent: Vec<u32>, role: &str| format!("{there} of {} {role}", there + absent.len());
        let mut words = vec![counted(self.workers.len(), self.absent(), "workers")];
        if self.has_servers() || !self.servers.is_empty() {
            words.push(counted(self.servers.len(), self.absent_servers(), "servers"));
        }
        words.extend(self.coordinator.map(|_| "the coordinator".to_owned()));
        listed(&words)
    }

    /// The workers without a dump.
    pub(super) fn absent(&self) -> Vec<u32> {
        absent(&self.workers, &self.ranks)
    }

    /// The servers without a dump.
    pub(super) fn absent_servers(&self) -> Vec<u32> {
        absent(&self.servers, &self.indexes)
    }

    /// That there are dumps of former members, if there are some.
    pub(super) fn former(&self) -> Option<String> {
        let epoch = self.epoch.filter(|_| !self.former.is_empty())?;
        let were = if self.former.len() == 1 { "was" } else { "were" };
        Some(format!("{} {were} lost or left before {epoch}.", begin(&listed(&self.former))))
    }

    /// A part of a tensor in a round, in words.
    pub(super) fn called(&self, PartOfRound { key, part, round }: PartOfRound) -> String {
        format!("{} round {round}", self.part(key, part))
    }

    /// A part of a tensor, in words.
    pub(super) fn part(&self, key: u64, part: u64) -> String {
        let name = self.names.get(&key).map_or_else(|| TensorKey(key).to_string(), |name| plain(name));
        format!("part {part} of `{name}`")
    }
}

fn absent<T>(there: &BTreeMap<u32, T>, all: &BTreeSet<u32>) -> Vec<u32> {
    all.iter().copied().filter(|index| !there.contains_key(index)).collect()
}

/// Whether a job with these members may have this one. Where no dump names the members, it may have any.
fn may_have(members: &BTreeSet<u32>, index: u32) -> bool {
    members.is_empty() || members.contains(&index)
}
