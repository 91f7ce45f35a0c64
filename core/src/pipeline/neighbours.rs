//! Which devices of a machine are near each other, so that bytes go from one to another without passing the host's processor.
//!
//! Devices are neighbours if they reach each other's memory (over NVLink, or as peers on PCIe if the driver allows it) or if they are below
//! the same PCIe switch. A *PCIe group* holds all devices that are connected by such steps. Data between two groups passes host memory.
//! There may be any number of groups, and their sizes may differ.

use std::collections::BTreeSet;
use std::fmt;

/// How a device is connected to its machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attachment {
    /// What it is called in messages, such as `cuda:1`.
    pub name: String,
    /// The PCI devices from the root complex down to this one, both among them: `pci0000:3a`, `0000:3a:00.0`, ... Empty if not known.
    pub path: Vec<String>,
    /// The NUMA node of its root complex, if the machine reports one.
    pub numa_node: Option<u32>,
    /// The devices whose memory it can reach, as positions in the list that contains this device.
    pub peers: Vec<usize>,
}

impl Attachment {
    /// The switch ports above the device. The root port is not included: a processor connects two devices that share only the root port.
    fn switch_ports(&self) -> &[String] {
        let [_root_complex, _root_port, below @ ..] = self.path.as_slice() else { return &[] };
        below.split_last().map_or(&[], |(_device, ports)| ports)
    }

    /// Whether nothing is known about its connection to other devices. Hypervisors show devices without the bridges above them.
    fn is_hidden(&self) -> bool {
        self.path.len() <= 2 && self.peers.is_empty()
    }
}

/// The devices of a machine by PCIe group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PcieGroups {
    groups: Vec<Group>,
    /// The reasons why the devices of some group are neighbours.
    joined_by: BTreeSet<Joint>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Group {
    /// Positions in the list of devices, ascending.
    members: Vec<usize>,
    names: Vec<String>,
    numa_nodes: BTreeSet<u32>,
}

/// Why two devices are in one group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Joint {
    Peers,
    Switch,
    /// Neither device shows its bridges, so nothing says that they are far apart.
    NotTold,
}

impl PcieGroups {
    /// The groups of `devices`, ordered by their first members.
    ///
    /// Peers that do not exist are ignored: a process may see fewer devices than its driver reports.
    pub fn of(devices: &[Attachment]) -> Self {
        // Every device starts in a group of its own, named after its first member. Each joint merges two groups.
        let mut group_of: Vec<usize> = (0..devices.len()).collect();
        let mut joined_by = BTreeSet::new();
        for (later, device) in devices.iter().enumerate() {
            for (earlier, other) in devices[..later].iter().enumerate() {
                if let Some(joint) = joint((earlier, other), (later, device)) {
                    joined_by.insert(joint);
                    let (into, from) = order(group_of[earlier], group_of[later]);
                    group_of.iter_mut().filter(|group| **group == from).for_each(|group| *group = into);
                }
            }
        }
        let firsts: BTreeSet<usize> = group_of.iter().copied().collect();
        let group = |first: usize| {
            let members: Vec<usize> = (0..devices.len()).filter(|device| group_of[*device] == first).collect();
            let names = members.iter().map(|device| devices[*device].name.clone()).collect();
            let numa_nodes = members.iter().filter_map(|device| devices[*device].numa_node).collect();
            Group { members, names, numa_nodes }
        };
        Self { groups: firsts.into_iter().map(group).collect(), joined_by }
    }

    /// The number of groups.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether there are no devices.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The number of devices in each group. `None` unless there are several groups, all have the same size, and each holds consecutive
    /// devices.
    pub fn switch_size(&self) -> Option<usize> {
        let size = self.groups.first().filter(|_| self.groups.len() > 1)?.members.len();
        let in_order = self.groups.iter().flat_map(|group| &group.members).copied().eq(0..size * self.groups.len());
        (in_order && self.groups.iter().all(|group| group.members.len() == size)).then_some(size)
    }

    /// The devices of each group, as positions in the list given to [`of`](Self::of).
    pub fn members(&self) -> impl Iterator<Item = &[usize]> {
        self.groups.iter().map(|group| group.members.as_slice())
    }
}

fn joint((first, one): (usize, &Attachment), (second, other): (usize, &Attachment)) -> Option<Joint> {
    let shares_a_port = || one.switch_ports().iter().any(|port| other.switch_ports().contains(port));
    if one.peers.contains(&second) || other.peers.contains(&first) {
        Some(Joint::Peers)
    } else if shares_a_port() {
        Some(Joint::Switch)
    } else if one.is_hidden() && other.is_hidden() {
        Some(Joint::NotTold)
    } else {
        None
    }
}

fn order(a: usize, b: usize) -> (usize, usize) {
    if a <= b { (a, b) } else { (b, a) }
}

impl fmt::Display for PcieGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: usize = self.groups.iter().map(|group| group.members.len()).sum();
        match (devices, self.groups.as_slice()) {
            (0, _) => return f.write_str("no devices"),
            (1, _) => f.write_str("1 device")?,
            (_, [_]) if self.joined_by.contains(&Joint::NotTold) => {
                write!(f, "{devices} devices whose PCIe switches the machine does not show")?;
            }
            (_, [_]) if self.joined_by.contains(&Joint::Peers) => {
                write!(f, "{devices} devices that reach each other's memory")?;
            }
            (_, [_]) => write!(f, "{devices} devices behind one PCIe switch")?,
            (_, groups) => write!(
                f,
                "{devices} devices in {} PCIe groups, between which bytes pass the host's memory",
                groups.len()
            )?,
        }
        for (index, Group { names, numa_nodes, .. }) in self.groups.iter().enumerate() {
            f.write_str(if index == 0 { ": " } else { "; " })?;
            f.write_str(&names.join(" "))?;
            if !numa_nodes.is_empty() {
                let nodes: Vec<String> = numa_nodes.iter().map(u32::to_string).collect();
                write!(f, " (NUMA node {})", nodes.join(", "))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_below_one_switch_are_a_group_however_many_ports_lie_between() {
        let devices = [
            device("a0 rp0 up0 dn0 gpu0", None, &[]),
            device("a0 rp0 up0 dn1 gpu1", None, &[]),
            device("a0 rp0 up0 dn2 up1 dn3 gpu2", None, &[]),
        ];
        assert_eq!(members(&devices), [vec![0, 1, 2]]);
        assert_eq!(PcieGroups::of(&devices).to_string(), "3 devices behind one PCIe switch: gpu0 gpu1 gpu2");
    }

    #[test]
    fn a_root_complex_and_a_root_port_join_nobody() {
        let devices = [
            device("a0 rp0 gpu0", Some(0), &[]),
            device("a0 rp1 gpu1", Some(0), &[]),
            device("b0 rp0 gpu2", None, &[]),
        ];
        assert_eq!(members(&devices), [[0], [1], [2]]);
    }

    #[test]
    fn groups_may_be_many_and_of_unequal_sizes_and_mixed_in_order() {
        let devices = [
            device("a0 rp0 up0 dn0 gpu0", Some(0), &[]),
            device("b0 rp1 up1 dn1 gpu1", Some(1), &[]),
            device("a0 rp0 up0 dn2 gpu2", Some(0), &[]),
            device("c0 rp2 gpu3", Some(1), &[]),
            device("a0 rp0 up0 dn3 gpu4", Some(0), &[]),
        ];
        assert_eq!(members(&devices), [vec![0, 2, 4], vec![1], vec![3]]);
        assert_eq!(PcieGroups::of(&devices).switch_size(), None, "no one number says that");
        assert_eq!(
            PcieGroups::of(&devices).to_string(),
            "5 devices in 3 PCIe groups, between which bytes pass the host's memory: gpu0 gpu2 gpu4 (NUMA node 0); gpu1 (NUMA node 1); \
             gpu3 (NUMA node 1)"
        );
    }

    #[test]
    fn devices_that_reach_each_other_are_a_group_wherever_they_hang() {
        let devices = [
            device("a0 rp0 gpu0", Some(0), &[1, 2]),
            device("b0 rp1 gpu1", Some(0), &[]),
            device("c0 rp2 gpu2", Some(1), &[]),
        ];
        assert_eq!(members(&devices), [[0, 1, 2]]);
        let words = "3 devices that reach each other's memory: gpu0 gpu1 gpu2 (NUMA node 0, 1)";
        assert_eq!(PcieGroups::of(&devices).to_string(), words);
    }

    #[test]
    fn what_joins_one_of_two_groups_to_the_other_makes_them_one() {
        let pairs = |bridge: &[usize]| {
            [
                device("a0 rp0 up0 dn0 gpu0", None, &[]),
                device("a0 rp0 up0 dn1 gpu1", None, bridge),
                device("b0 rp1 up1 dn2 gpu2", None, &[]),
                device("b0 rp1 up1 dn3 gpu3", None, &[]),
            ]
        };
        assert_eq!(members(&pairs(&[])), [[0, 1], [2, 3]]);
        assert_eq!(PcieGroups::of(&pairs(&[])).switch_size(), Some(2));
        assert_eq!(members(&pairs(&[3])), [[0, 1, 2, 3]]);
        assert_eq!(PcieGroups::of(&pairs(&[3])).switch_size(), None, "there is nothing to set");
    }

    #[test]
    fn devices_that_show_no_bridges_are_not_taken_apart() {
        let devices = [device("a0 gpu0", None, &[]), device("b0 gpu1", None, &[]), device("gpu2", None, &[])];
        assert_eq!(members(&devices), [[0, 1, 2]]);
        let words = "3 devices whose PCIe switches the machine does not show: gpu0 gpu1 gpu2";
        assert_eq!(PcieGroups::of(&devices).to_string(), words);
    }

    #[test]
    fn devices_that_show_no_bridges_are_taken_apart_by_the_peers_that_they_have() {
        let devices = [
            device("a0 gpu0", None, &[1]),
            device("a0 gpu1", None, &[0]),
            device("a0 gpu2", None, &[3]),
            device("a0 gpu3", None, &[2]),
        ];
        assert_eq!(members(&devices), [[0, 1], [2, 3]]);
    }

    #[test]
    fn a_peer_that_is_not_there_joins_nobody() {
        assert_eq!(members(&[device("a0 rp0 gpu0", None, &[7]), device("a0 rp1 gpu1", None, &[])]), [[0], [1]]);
    }

    #[test]
    fn no_device_and_one_device_are_said_so() {
        assert!(PcieGroups::of(&[]).is_empty());
        assert_eq!(PcieGroups::of(&[]).to_string(), "no devices");
        assert_eq!(PcieGroups::of(&[device("a0 rp0 gpu0", Some(1), &[])]).to_string(), "1 device: gpu0 (NUMA node 1)");
    }

    fn members(devices: &[Attachment]) -> Vec<Vec<usize>> {
        PcieGroups::of(devices).members().map(<[usize]>::to_vec).collect()
    }

    /// A device named as the last word of its path.
    fn device(path: &str, numa_node: Option<u32>, peers: &[usize]) -> Attachment {
        let path: Vec<String> = path.split(' ').map(str::to_owned).collect();
        Attachment { name: path.last().expect("a word").clone(), path, numa_node, peers: peers.to_vec() }
    }
}
