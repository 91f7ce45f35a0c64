//! The least time in which machines with equal links can sum what they hold.
//!
//! Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous GPU/CPU Clusters" (OSDI 2020),
//! section 4.1: with n worker machines, k extra machines, M bytes and links of B bytes a second in each direction,
//! t = 2n(n−1)M / ((n²+kn−2k)B) for 0 ≤ k ≤ n. A ring of the workers alone takes 2(n−1)M/(nB).

/// Who takes part: `workers` machines, each also a place for a server if there are fewer `extras` than workers.
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
            // One worker and its server: what there is to sum goes there and back, if there is a link between them.
            return if self.extras == 0 { 0.0 } else { 1.0 };
        }
        2.0 * n * (n - 1.0) / (n * n + k * n - 2.0 * k)
    }

    /// The same for a ring of the workers.
    pub(crate) fn ring_load(self) -> f64 {
        let n = f64::from(self.workers);
        2.0 * (n - 1.0) / n
    }

    /// Whether servers also run beside the workers: only then do all links carry the same when there are fewer extra machines.
    pub(crate) fn is_colocated(self) -> bool {
        self.extras < self.workers
    }

    pub(crate) fn machines(self) -> u8 {
        self.workers + self.extras
    }

    pub(crate) fn servers(self) -> u8 {
        self.extras + if self.is_colocated() { self.workers } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!((cluster.load() - cluster.ring_load()).abs() < 1e-12);
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
}
