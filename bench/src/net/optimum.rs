//! The least time in which machines with equal links can sum their tensors.
//!
//! Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous GPU/CPU Clusters" (OSDI 2020),
//! section 4.1: with n worker machines, k extra machines, M bytes and links of B bytes a second in each direction,
//! t = 2n(n−1)M / ((n²+kn−2k)B) for 0 ≤ k ≤ n. A ring of the workers alone takes 2(n−1)M/(nB).

use std::fmt;
use std::str::FromStr;

/// The machines: `workers` and `extras`. If there are fewer extras than workers, a server also runs on every worker machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cluster {
    pub(crate) workers: u8,
    pub(crate) extras: u8,
}

impl Cluster {
    /// Bytes that each link carries in each direction at the optimum, as a multiple of the bytes summed.
    pub(crate) fn load(self) -> f64 {
        let (n, k) = (f64::from(self.workers), f64::from(self.extras.min(self.workers)));
        if self.workers < 2 {
            // One worker: its bytes go to the server and back, if there is a link between them.
            return if self.extras == 0 { 0.0 } else { 1.0 };
        }
        2.0 * n * (n - 1.0) / (n * n + k * n - 2.0 * k)
    }

    /// Whether servers also run on the worker machines. With fewer extra machines than workers, only then can all links carry the same.
    pub(crate) fn is_colocated(self) -> bool {
        self.extras < self.workers
    }

    /// The share of all sums that the extra machines compute at the optimum.
    pub(crate) fn extra_share(self) -> f64 {
        if !self.is_colocated() {
            return 1.0;
        }
        let (n, k) = (f64::from(self.workers), f64::from(self.extras));
        2.0 * k * (n - 1.0) / (n * n + k * n - 2.0 * k).max(1.0)
    }

    pub(crate) fn machines(self) -> u8 {
        self.workers + self.extras
    }

    pub(crate) fn servers(self) -> u8 {
        self.extras + if self.is_colocated() { self.workers } else { 0 }
    }
}

/// How a contender used the links in one exchange, computed from the bytes that they carried.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Use {
    /// Bytes of frames for each byte of payload that had to cross a link: headers, acknowledgements and repetitions.
    pub(crate) overhead: f64,
    /// The share of all sums that the extra machines computed.
    pub(crate) extra_share: f64,
    /// The bytes of the busiest direction of all links.
    pub(crate) busiest_bytes: f64,
}

impl Use {
    /// Computes it from the bytes of frames that each machine's link carried (sent, received), workers first, while `payload` bytes of
    /// every worker were summed.
    ///
    /// Let o be the bytes of frames per byte of payload, and e the share of the sums that the extra machines compute. For that share, n
    /// contributions and n sums cross a link; for the rest n−1 of each, because the server is beside one of the workers. So all links
    /// together carry 2oM(n−1+e) bytes, and the extra machines receive o·e·n·M of them. These are two equations for o and e.
    pub(crate) fn of(cluster: Cluster, carried: &[(f64, f64)], payload: f64) -> Self {
        let n = f64::from(cluster.workers);
        let all: f64 = carried.iter().map(|(sent, _)| sent).sum();
        let to_extras: f64 = carried[usize::from(cluster.workers)..].iter().map(|(_, received)| received).sum();
        let overhead = if cluster.workers == 1 {
            to_extras / payload
        } else {
            (all / (2.0 * payload) - to_extras / (n * payload)) / (n - 1.0)
        };
        let busiest_bytes = carried.iter().fold(0.0, |most: f64, (sent, received)| most.max(*sent).max(*received));
        Self { overhead, extra_share: to_extras / (overhead * n * payload), busiest_bytes }
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.workers, self.extras)
    }
}

impl FromStr for Cluster {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('+').and_then(|(n, k)| Some((n.trim().parse().ok()?, k.trim().parse().ok()?)));
        match numbers {
            Some((1, 0)) => Err("1+0 has no link: one worker beside its server".to_owned()),
            Some((workers @ 1..=MACHINES_MAX, extras @ 0..=MACHINES_MAX)) => Ok(Self { workers, extras }),
            _ => Err(format!(
                "{text:?} is no arrangement of machines; write workers+servers such as 4+2, up to {MACHINES_MAX}+{MACHINES_MAX}"
            )),
        }
    }
}

/// The most machines of each kind; more than one host can carry.
const MACHINES_MAX: u8 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_written_as_workers_and_extra_ones() {
        assert_eq!("4+2".parse(), Ok(Cluster { workers: 4, extras: 2 }));
        assert_eq!(Cluster { workers: 4, extras: 2 }.to_string(), "4+2");
        for wrong in ["", "4", "0+1", "1+0", "4+", "33+1", "-1+2"] {
            assert!(wrong.parse::<Cluster>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn with_an_extra_machine_a_worker_each_link_carries_everything_once() {
        for n in 2..=8 {
            assert_eq!(Cluster { workers: n, extras: n }.load(), 1.0);
        }
        assert_eq!(Cluster { workers: 2, extras: 4 }.load(), 1.0, "more machines do not help");
        assert_eq!(Cluster { workers: 1, extras: 1 }.load(), 1.0);
    }

    #[test]
    fn without_extra_machines_it_is_the_ring() {
        for n in 2..=8 {
            let cluster = Cluster { workers: n, extras: 0 };
            assert!((cluster.load() - 2.0 * f64::from(n - 1) / f64::from(n)).abs() < 1e-12);
            assert_eq!(cluster.servers(), n);
        }
    }

    #[test]
    fn the_figures_of_the_paper_come_out() {
        let near = |cluster: Cluster, load: f64| (cluster.load() - load).abs() < 5e-3;
        assert!(near(Cluster { workers: 8, extras: 4 }, 1.27));
        assert!(near(Cluster { workers: 32, extras: 8 }, 1.57));
        assert!(near(Cluster { workers: 4, extras: 2 }, 1.2));
    }

    #[test]
    fn overhead_and_share_are_found_from_what_the_links_carried() {
        // Two workers and an extra machine at the optimum, 100 bytes each and 10 % of overhead: half is summed by the extra machine, a
        // quarter beside each worker. A worker sends 75 as contributions and 25 as sums of its server, and receives as much.
        let used = Use::of(Cluster { workers: 2, extras: 1 }, &[(110.0, 110.0); 3], 100.0);
        assert!((used.overhead - 1.1).abs() < 1e-9, "{used:?}");
        assert!((used.extra_share - 0.5).abs() < 1e-9, "{used:?}");
        // The same with everything summed by the extra machine.
        let used = Use::of(Cluster { workers: 2, extras: 1 }, &[(110.0, 110.0), (110.0, 110.0), (220.0, 220.0)], 100.0);
        assert!((used.overhead - 1.1).abs() < 1e-9, "{used:?}");
        assert_eq!((used.extra_share.round(), used.busiest_bytes), (1.0, 220.0));
        // A ring of two, and a lone worker with its server.
        let ring = Use::of(Cluster { workers: 2, extras: 0 }, &[(105.0, 105.0); 2], 100.0);
        assert!((ring.overhead - 1.05).abs() < 1e-9 && ring.extra_share == 0.0, "{ring:?}");
        let lone = Use::of(Cluster { workers: 1, extras: 1 }, &[(105.0, 105.0); 2], 100.0);
        assert!((lone.overhead - 1.05).abs() < 1e-9 && (lone.extra_share - 1.0).abs() < 1e-9, "{lone:?}");
    }
}
