//! What a communicator is made with, checked field by field.

use std::ffi::{c_char, c_int, c_uint};
use std::mem::offset_of;

use crate::codes::{Failure, Outcome};

/// `ncclConfig_t` of NCCL 2.30; its size says how much of it there is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub(crate) size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cluster_size: c_int,
    ctas_min: c_int,
    ctas_max: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    collnet: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
    channels_per_peer: c_int,
    nvlink_centric: c_int,
    graph_usage: c_int,
    rma_contexts: c_int,
    p2p_peers_max: c_int,
    graph_ordering: c_int,
}

const MAGIC: c_uint = 0xcafe_beef;
/// `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: c_int = c_int::MIN;
/// The first version that has the fields up to `blocking`; a smaller number is none of a header.
const VERSION_MIN: c_uint = 21_400;

impl Config {
    /// What is not given.
    pub(crate) const NOTHING: Self = Self {
        size: size_of::<Self>(),
        magic: MAGIC,
        version: VERSION_MIN,
        blocking: UNDEFINED,
        cluster_size: UNDEFINED,
        ctas_min: UNDEFINED,
        ctas_max: UNDEFINED,
        net_name: std::ptr::null(),
        split_share: UNDEFINED,
        traffic_class: UNDEFINED,
        comm_name: std::ptr::null(),
        collnet: UNDEFINED,
        cta_policy: UNDEFINED,
        shrink_share: UNDEFINED,
        nvls_ctas: UNDEFINED,
        channels_per_peer: UNDEFINED,
        nvlink_centric: UNDEFINED,
        graph_usage: UNDEFINED,
        rma_contexts: UNDEFINED,
        p2p_peers_max: UNDEFINED,
        graph_ordering: UNDEFINED,
    };

    /// How many bytes of it a library of this version knows: what a caller has beyond them is not looked at.
    pub(crate) const fn bytes_of(version: c_int) -> usize {
        if version < 21_700 {
            offset_of!(Self, cluster_size)
        } else if version < 21_800 {
            offset_of!(Self, split_share)
        } else if version < 22_700 {
            offset_of!(Self, traffic_class)
        } else if version < 22_800 {
            offset_of!(Self, channels_per_peer)
        } else if version < 22_900 {
            offset_of!(Self, graph_usage)
        } else if version < 23_000 {
            offset_of!(Self, p2p_peers_max)
        } else {
            size_of::<Self>()
        }
    }

    /// Whether calls block, which is `otherwise` if the configuration does not say.
    pub(crate) fn blocks(&self, otherwise: bool) -> Outcome<bool> {
        self.check()?;
        Ok(if self.blocking == UNDEFINED { otherwise } else { self.blocking == 1 })
    }

    /// Whether every field has a value that NCCL takes.
    fn check(&self) -> Outcome {
        let header = size_of::<usize>() + 3 * size_of::<c_int>();
        if self.magic != MAGIC || self.size < header || self.version < VERSION_MIN {
            return Err(Failure::argument("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER"));
        }
        let fields = [
            ("blocking", self.blocking, 0..=1),
            ("cgaClusterSize", self.cluster_size, 0..=8),
            ("minCTAs", self.ctas_min, 1..=c_int::MAX),
            ("maxCTAs", self.ctas_max, 1..=c_int::MAX),
            ("splitShare", self.split_share, 0..=1),
            ("trafficClass", self.traffic_class, 0..=c_int::MAX),
            ("collnetEnable", self.collnet, 0..=1),
            ("CTAPolicy", self.cta_policy, 0..=2),
            ("shrinkShare", self.shrink_share, 0..=1),
            ("nvlsCTAs", self.nvls_ctas, 1..=c_int::MAX),
            ("nChannelsPerNetPeer", self.channels_per_peer, 1..=32),
            ("nvlinkCentricSched", self.nvlink_centric, 0..=1),
            ("graphUsageMode", self.graph_usage, 0..=2),
            ("numRmaCtx", self.rma_contexts, 1..=c_int::MAX),
            ("maxP2pPeers", self.p2p_peers_max, 1..=c_int::MAX),
            ("graphStreamOrdering", self.graph_ordering, 0..=1),
        ];
        if let Some((name, value, _)) =
            fields.into_iter().find(|(_, value, range)| *value != UNDEFINED && !range.contains(value))
        {
            return Err(Failure::argument(format!("Invalid config {name} attribute value {value}")));
        }
        if self.ctas_max != UNDEFINED && self.ctas_min > self.ctas_max {
            let text = format!("Invalid config min/max channels attribute value {}/{}", self.ctas_min, self.ctas_max);
            return Err(Failure::argument(text));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_knows_as_much_as_its_header_had() {
        let versions = [21_400, 21_703, 21_800, 22_605, 22_703, 22_809, 22_907, 23_007];
        assert_eq!(versions.map(Config::bytes_of), [20, 40, 44, 44, 72, 80, 88, 96]);
    }

    #[test]
    fn every_field_is_checked() {
        let refused = |change: fn(&mut Config)| {
            let mut config = Config::NOTHING;
            change(&mut config);
            config.blocks(true).err().map(|failure| failure.text)
        };
        assert_eq!(refused(|_| ()), None);
        assert_eq!(refused(|config| config.blocking = 0), None);
        assert_eq!(refused(|config| config.size = 20), None, "an older header ends here");
        let changes: [fn(&mut Config); 20] = [
            |config| config.magic = 0,
            |config| config.size = 16,
            |config| config.version = 0,
            |config| config.blocking = 2,
            |config| config.cluster_size = 9,
            |config| config.ctas_min = 0,
            |config| config.ctas_max = 0,
            |config| (config.ctas_min, config.ctas_max) = (4, 2),
            |config| config.split_share = 2,
            |config| config.traffic_class = -1,
            |config| config.collnet = 2,
            |config| config.cta_policy = 3,
            |config| config.shrink_share = -1,
            |config| config.nvls_ctas = 0,
            |config| config.channels_per_peer = 0,
            |config| config.nvlink_centric = 2,
            |config| config.graph_usage = 3,
            |config| config.rma_contexts = 0,
            |config| config.p2p_peers_max = 0,
            |config| config.graph_ordering = 2,
        ];
        for (at, change) in changes.into_iter().enumerate() {
            assert!(refused(change).is_some(), "change {at}");
        }
    }
}
