//! Which server sums which part: greedy by size and weighted.
//!
//! The parts of one declaration are placed largest first. Each goes to the server whose load, relative to its weight, would be lowest with
//! that part added. Ties go to the lowest index. BytePS hashes the key, which ignores size: with VGG-16 on 16 servers, its most loaded
//! server carries 1.66 times the mean. With this placement it carries 1.0 times the mean.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::types::{PartId, ServerId};

/// Max/mean above which one server slows all workers noticeably.
pub const HOT_SERVER_IMBALANCE: f64 = 1.25;
/// A job with fewer bytes to sum than this is limited by latency, not by the load of a server.
const HOT_SERVER_BYTES_MIN: u64 = 1 << 20;

/// The loads of all servers.
#[derive(Clone, Debug)]
pub struct Placement {
    servers: Vec<Load>,
    /// The number of equal parts with which every server can have exactly its share.
    shares: u64,
    /// The server and the bytes of every placed part.
    parts: BTreeMap<PartId, (ServerId, u64)>,
}

/// The load of one server.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Load {
    /// Its share of the work relative to the other servers. A server of weight 0 gets nothing while another server has a weight.
    pub weight: f64,
    /// Bytes of the parts on it.
    pub bytes: u64,
    /// How many parts lie on it.
    pub parts: u64,
}

impl Placement {
    /// Servers with these weights, by index, and no parts yet.
    ///
    /// # Panics
    /// If a weight is negative or not finite, or none is positive.
    pub fn new(weights: &[f64]) -> Self {
        assert!(weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0), "weights {weights:?}");
        assert!(weights.iter().any(|weight| *weight > 0.0), "no server has a positive weight: {weights:?}");
        let servers: Vec<Load> = weights.iter().map(|weight| Load { weight: *weight, bytes: 0, parts: 0 }).collect();
        Self { shares: even_shares(&servers), servers, parts: BTreeMap::new() }
    }

    /// Places new parts, given with their bytes, largest first; the answer is in the order of `parts`.
    ///
    /// # Panics
    /// If a part was placed before.
    pub fn place(&mut self, parts: &[(PartId, u64)]) -> Vec<ServerId> {
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by_key(|position| Reverse(parts[*position].1));
        let mut servers = vec![ServerId(0); parts.len()];
        for position in order {
            let (part, bytes) = parts[position];
            let server = self.least_loaded_with(bytes);
            self.load(server, part, bytes);
            servers[position] = server;
        }
        servers
    }

    /// A part has ended.
    ///
    /// # Panics
    /// If it is not placed.
    pub fn remove(&mut self, part: PartId) {
        let (server, bytes) = self.parts.remove(&part).expect("only placed parts end");
        let load = &mut self.servers[server.0 as usize];
        load.bytes -= bytes;
        load.parts -= 1;
    }

    /// The servers' loads, by index.
    pub fn loads(&self) -> &[Load] {
        &self.servers
    }

    /// The number of equal parts with which every server can have exactly its share. If that needs a very large number, the number of
    /// servers that take parts.
    pub fn shares(&self) -> u64 {
        self.shares
    }

    /// How many servers take parts.
    pub fn servers(&self) -> u64 {
        self.servers.iter().map(|server| u64::from(server.weight > 0.0)).sum()
    }

    /// The largest load of a server, divided by its fair share. 1.0 means even; 1.0 also when nothing is placed.
    pub fn imbalance(&self) -> f64 {
        self.hottest().map_or(1.0, |(_, imbalance)| imbalance)
    }

    /// The warning for the user if one server has much more than its share.
    pub fn warning(&self) -> Option<String> {
        let total: u64 = self.servers.iter().map(|server| server.bytes).sum();
        let (server, imbalance) = self.hottest().filter(|(_, imbalance)| *imbalance > HOT_SERVER_IMBALANCE)?;
        if total < HOT_SERVER_BYTES_MIN {
            return None;
        }
        let bytes = self.servers[server.0 as usize].bytes;
        let largest = self.parts.values().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        Some(format!(
            "hot server: {server} sums {} of {} ({imbalance:.2} times its share among {}); the largest part is {}; \
             smaller parts (partition_bytes) or fewer servers would even the load",
            megabytes(bytes),
            megabytes(total),
            self.servers(),
            megabytes(largest),
        ))
    }

    fn hottest(&self) -> Option<(ServerId, f64)> {
        let total: u64 = self.servers.iter().map(|server| server.bytes).sum();
        let weights: f64 = self.servers.iter().map(|server| server.weight).sum();
        let ratio = |server: &Load| server.bytes as f64 / (total as f64 * server.weight / weights);
        (0u32..)
            .zip(&self.servers)
            .filter(|(_, server)| server.weight > 0.0 && total > 0)
            .map(|(index, server)| (ServerId(index), ratio(server)))
            .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
    }

    /// This scans all servers, because there are few. A heap cannot order them, because the load that `bytes` add depends on the weight.
    fn least_loaded_with(&self, bytes: u64) -> ServerId {
        let load = |server: &Load| (server.bytes + bytes) as f64 / server.weight;
        (0u32..)
            .zip(&self.servers)
            .filter(|(_, server)| server.weight > 0.0)
            .min_by(|a, b| load(a.1).total_cmp(&load(b.1)))
            .map(|(index, _)| ServerId(index))
            .expect("some server has a positive weight")
    }

    fn load(&mut self, server: ServerId, part: PartId, bytes: u64) {
        let before = self.parts.insert(part, (server, bytes));
        assert!(before.is_none(), "part {part} was placed before");
        let load = &mut self.servers[server.0 as usize];
        load.bytes += bytes;
        load.parts += 1;
    }
}

/// The weights of the servers, in their order, from the machines of workers and servers. `None` is an unknown machine.
///
/// With these weights, all network interfaces carry the same number of bytes, and no other split finishes earlier (Jiang et al., "A Unified
/// Architecture for Accelerating Distributed DNN Training", OSDI 2020, section 4.1). Let n machines have workers, and k machines have
/// servers only. Then each of the k weighs 2(n−1), and a server on a worker's machine weighs n−k. With k ≥ n, servers on workers' machines
/// sum nothing. Servers of one machine split its weight. If any machine is unknown, all servers weigh the same.
pub fn weights_for<M: Ord>(workers: &[Option<M>], servers: &[Option<M>]) -> Vec<f64> {
    let known = |machines: &[Option<M>]| machines.iter().all(Option::is_some);
    if !known(workers) || !known(servers) {
        return vec![1.0; servers.len()];
    }
    let training: BTreeSet<&M> = workers.iter().flatten().collect();
    let mut serving: BTreeMap<&M, u32> = BTreeMap::new();
    for machine in servers.iter().flatten() {
        *serving.entry(machine).or_default() += 1;
    }
    let extras = serving.keys().filter(|machine| !training.contains(*machine)).count();
    let (n, k) = (training.len() as f64, extras as f64);
    // If all serving machines are of one kind, they weigh the same. One of the formulas would give weight zero to all of them.
    let one_kind = extras == 0 || extras == serving.len();
    let weight_of = |machine: &M| match training.contains(machine) {
        _ if one_kind => 1.0,
        true => (n - k).max(0.0),
        false => (2.0 * (n - 1.0)).max(1.0),
    };
    servers.iter().flatten().map(|machine| weight_of(machine) / f64::from(serving[machine])).collect()
}

/// The number of equal parts with which every server can have exactly its share. This is the number of servers if they weigh the same. If
/// only more than `FINEST` parts would do, it is the number of servers with a weight.
fn even_shares(servers: &[Load]) -> u64 {
    const FINEST: u64 = 4096;
    let total: f64 = servers.iter().map(|server| server.weight).sum();
    let whole = |share: f64| (share - share.round()).abs() < 1e-6;
    let taking = servers.iter().filter(|server| server.weight > 0.0).count() as u64;
    let even = |parts: &u64| servers.iter().all(|server| whole(*parts as f64 * server.weight / total));
    (taking..=FINEST).find(even).unwrap_or(taking)
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TensorKey;

    #[test]
    fn the_largest_part_goes_first_to_the_least_loaded_server() {
        let mut placement = Placement::new(&[1.0, 1.0]);
        assert_eq!(placement.place(&[(part(0), 10), (part(1), 30), (part(2), 20)]), [server(1), server(0), server(1)]);
        assert_eq!(placement.imbalance(), 1.0);
    }

    #[test]
    fn ties_go_to_the_lowest_index() {
        let mut placement = Placement::new(&[1.0, 1.0, 1.0]);
        assert_eq!(placement.place(&[(part(0), 5), (part(1), 5), (part(2), 5)]), [server(0), server(1), server(2)]);
    }

    #[test]
    fn a_server_gets_its_weight() {
        let mut placement = Placement::new(&[1.0, 3.0, 0.0]);
        placement.place(&parts(0..400, 10));
        assert_eq!(placement.loads().iter().map(|load| load.bytes).collect::<Vec<_>>(), [1000, 3000, 0]);
        assert_eq!(placement.imbalance(), 1.0);
    }

    #[test]
    fn later_declarations_fill_up_what_earlier_ones_left() {
        let mut placement = Placement::new(&[1.0, 1.0]);
        placement.place(&[(part(0), 100)]);
        assert_eq!(placement.place(&[(part(1), 40), (part(2), 50)]), [server(1), server(1)]);
    }

    #[test]
    fn a_hot_server_is_named_with_its_numbers() {
        let mut placement = Placement::new(&[1.0, 1.0]);
        assert_eq!(placement.warning(), None, "nothing placed");
        placement.place(&[(part(0), 3_000_000), (part(1), 1_000_000)]);
        let warning = placement.warning().unwrap();
        assert!(
            warning.starts_with(
                "hot server: server 0 sums 3.0 MB of 4.0 MB (1.50 times its share among 2); the largest part is 3.0 MB"
            ),
            "{warning}"
        );
    }

    #[test]
    fn the_optimal_split_loads_every_network_interface_alike() {
        for n in 2..=64u32 {
            for k in 0..=n {
                let (workers, servers) = machines(n, k);
                let weights = weights_for(&workers, &servers);
                let total: f64 = weights.iter().sum();
                // For a model of size 1, a worker's machine sends the data that others sum and the sums that it made. An extra machine only
                // sums.
                let (machines, extras) = (f64::from(n), f64::from(k));
                let optimal =
                    2.0 * machines * (machines - 1.0) / (machines * machines + extras * machines - 2.0 * extras);
                for (index, weight) in weights.iter().enumerate() {
                    let share = weight / total;
                    let sends = if index < n as usize { 1.0 + (machines - 2.0) * share } else { machines * share };
                    assert!((sends - optimal).abs() < 1e-12, "n={n} k={k}, server {index}: {sends} and not {optimal}");
                }
            }
        }
    }

    #[test]
    fn the_split_is_defined_at_its_ends() {
        let weights = |n, k| {
            let (workers, servers) = machines(n, k);
            weights_for(&workers, &servers)
        };
        assert_eq!(weights(4, 0), [1.0; 4], "as an all-reduce");
        assert_eq!(weights(4, 2), [2.0, 2.0, 2.0, 2.0, 6.0, 6.0]);
        assert_eq!(weights(2, 2), [0.0, 0.0, 2.0, 2.0], "enough extra machines");
        assert_eq!(weights(1, 3), [0.0, 1.0, 1.0, 1.0], "more than enough");
        assert_eq!(weights(1, 0), [1.0]);
        assert_eq!(weights_for(&some(&[1, 2]), &some(&[8, 9])), [1.0, 1.0], "none beside workers");
        assert_eq!(weights_for(&some(&[1, 1]), &some(&[1, 1, 1])), [1.0 / 3.0; 3], "all on one machine");
    }

    #[test]
    fn machines_are_counted_and_not_processes() {
        let workers = some(&[1, 1, 2, 2, 3, 4]);
        assert_eq!(
            weights_for(&workers, &some(&[1, 1, 2, 3, 4, 8, 8, 9])),
            [1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 6.0],
            "servers of one machine split its weight"
        );
    }

    #[test]
    fn servers_weigh_the_same_while_a_machine_is_unknown() {
        assert_eq!(weights_for(&[Some(1), None], &some(&[1, 2, 9])), [1.0; 3]);
        assert_eq!(weights_for(&some(&[1, 2]), &[Some(1), None]), [1.0; 2]);
    }

    #[test]
    fn the_shares_are_the_coarsest_equal_cut() {
        let shares = |weights: &[f64]| Placement::new(weights).shares();
        assert_eq!(shares(&[1.0; 7]), 7);
        assert_eq!(shares(&[2.0, 2.0, 2.0, 2.0, 6.0, 6.0]), 10);
        assert_eq!(shares(&[0.0, 0.0, 1.0, 1.0]), 2);
        assert_eq!(shares(&[1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 1.0]), 6);
        assert_eq!(shares(&[1.0, std::f64::consts::PI]), 2, "no cut fits");
    }

    /// A worker and a server on each of `n` machines, a server on each of `k` further ones.
    fn machines(n: u32, k: u32) -> (Vec<Option<u32>>, Vec<Option<u32>>) {
        ((0..n).map(Some).collect(), (0..n + k).map(Some).collect())
    }

    fn some(machines: &[u32]) -> Vec<Option<u32>> {
        machines.iter().copied().map(Some).collect()
    }

    fn parts(indices: std::ops::Range<u32>, bytes: u64) -> Vec<(PartId, u64)> {
        indices.map(|index| (part(index), bytes)).collect()
    }

    fn part(index: u32) -> PartId {
        PartId { key: TensorKey(0), index }
    }

    fn server(index: u32) -> ServerId {
        ServerId(index)
    }
}
