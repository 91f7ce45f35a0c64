//! The place of a device in the tree of PCI bridges, read from `/sys`. A fact that cannot be read is absent, never an error, because
//! containers hide parts of `/sys`.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::pipeline::Attachment;

/// The address of a PCI device, such as `0000:3b:00.0`: domain, bus, device and function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl PciAddress {
    /// The connection of the device `name` at this address to the machine below `root`, which is `/` except in tests. It has no peers,
    /// because the kernel knows none.
    pub(super) fn attachment(self, root: &Path, name: String) -> Attachment {
        Attachment {
            name,
            path: path(&self.link(root)).unwrap_or_default(),
            numa_node: self.numa_node(root),
            peers: Vec::new(),
        }
    }

    /// The NUMA node of the device at this address; `None` if it is unknown or the machine has no nodes.
    pub(super) fn numa_node(self, root: &Path) -> Option<u32> {
        let node = fs::read_to_string(self.link(root).join("numa_node")).ok()?;
        // -1 where there are no nodes.
        node.trim().parse().ok()
    }

    fn link(self, root: &Path) -> PathBuf {
        root.join("sys/bus/pci/devices").join(self.to_string())
    }
}

/// The PCI devices on the path to which the kernel's link points: the root complex, `pciDDDD:BB`, and every address below it.
fn path(link: &Path) -> Option<Vec<String>> {
    let real = fs::canonicalize(link).ok()?;
    let words = real.iter().filter_map(|word| word.to_str());
    let from_the_root = words.skip_while(|word| !word.starts_with("pci") || !word.contains(':'));
    Some(from_the_root.map(str::to_owned).collect())
}

impl fmt::Display for PciAddress {
    /// As the kernel writes it in `/sys`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// The text is no PCI address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoPciAddress;

impl FromStr for PciAddress {
    type Err = NoPciAddress;

    /// Parses the formats of the driver (`0000:3B:00.0`), its tools (`00000000:3B:00.0`) and the kernel.
    fn from_str(text: &str) -> Result<Self, NoPciAddress> {
        let mut words = text.split([':', '.']);
        let mut number = |limit: u32| {
            let word = words.next().ok_or(NoPciAddress)?;
            let number = u32::from_str_radix(word, 16).map_err(|_| NoPciAddress)?;
            // Excludes signs, which the parser of numbers would accept.
            if number <= limit && word.bytes().all(|letter| letter.is_ascii_hexdigit()) {
                Ok(number)
            } else {
                Err(NoPciAddress)
            }
        };
        let domain = number(u32::MAX)?;
        let [bus, device, function] = [number(0xff)?, number(0x1f)?, number(7)?].map(|number| number as u8);
        match words.next() {
            None => Ok(Self { domain, bus, device, function }),
            Some(_) => Err(NoPciAddress),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::fake;
    use crate::pipeline::PcieGroups;

    /// A GPU of a machine: its path below `/sys/devices`, and its NUMA node as the kernel writes it.
    type Gpu = (&'static str, &'static str);

    #[test]
    fn real_machines_are_told_apart() {
        let workstation: &[Gpu] = &[
            ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:08.0/0000:03:00.0", "-1"),
            ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:10.0/0000:04:00.0", "-1"),
        ];
        let two_sockets: &[Gpu] = &[
            ("pci0000:16/0000:16:02.0/0000:17:00.0/0000:18:00.0/0000:19:00.0", "0"),
            ("pci0000:16/0000:16:02.0/0000:17:00.0/0000:18:04.0/0000:1a:00.0", "0"),
            ("pci0000:30/0000:30:02.0/0000:31:00.0/0000:32:00.0/0000:33:00.0", "0"),
            ("pci0000:30/0000:30:02.0/0000:31:00.0/0000:32:04.0/0000:34:00.0", "0"),
            ("pci0000:97/0000:97:02.0/0000:98:00.0/0000:99:00.0/0000:9a:00.0", "1"),
            ("pci0000:97/0000:97:02.0/0000:98:00.0/0000:99:04.0/0000:9b:00.0", "1"),
            ("pci0000:b0/0000:b0:02.0/0000:b1:00.0/0000:b2:00.0/0000:b3:00.0", "1"),
            ("pci0000:b0/0000:b0:02.0/0000:b1:00.0/0000:b2:04.0/0000:b4:00.0", "1"),
        ];
        let own_root_ports: &[Gpu] =
            &[("pci0000:40/0000:40:01.1/0000:41:00.0", "0"), ("pci0000:80/0000:80:01.1/0000:81:00.0", "0")];
        let hypervisor: &[Gpu] = &[("pci0000:00/0000:00:04.0", "0"), ("pci0000:00/0000:00:05.0", "0")];
        let hyper_v: &[Gpu] = &[
            ("LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/0f/pci0001:00/0001:00:00.0", "0"),
            ("LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/1f/pci0002:00/0002:00:00.0", "1"),
        ];
        let table: [(&[Gpu], &[&[usize]]); 5] = [
            (workstation, &[&[0, 1]]),
            (two_sockets, &[&[0, 1], &[2, 3], &[4, 5], &[6, 7]]),
            (own_root_ports, &[&[0], &[1]]),
            (hypervisor, &[&[0, 1]]),
            (hyper_v, &[&[0, 1]]),
        ];
        for (gpus, expected) in table {
            let groups = PcieGroups::of(&attachments(gpus));
            let found: Vec<&[usize]> = groups.members().collect();
            assert_eq!(found, expected, "{groups}");
        }
    }

    #[test]
    fn devices_joined_by_nvlink_switches_are_one_group_behind_four_pcie_switches() {
        let mut gpus = attachments(&[
            ("pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:08.0/0000:07:00.0", "3"),
            ("pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:00.0/0000:47:00.0", "1"),
            ("pci0000:80/0000:80:01.1/0000:81:00.0/0000:82:14.0/0000:87:00.0", "7"),
            ("pci0000:b0/0000:b0:01.1/0000:b1:00.0/0000:b2:00.0/0000:b7:00.0", "5"),
        ]);
        assert_eq!(PcieGroups::of(&gpus).len(), 4, "as far as the kernel knows");
        for (index, gpu) in gpus.iter_mut().enumerate() {
            gpu.peers = (0..4).filter(|peer| *peer != index).collect();
        }
        assert_eq!(PcieGroups::of(&gpus).len(), 1);
    }

    #[test]
    fn a_device_is_read_with_its_path_and_its_numa_node() {
        let [gpu] = attachments(&[("pci0000:3a/0000:3a:00.0/0000:3b:00.0", "1")]).try_into().expect("one");
        assert_eq!(gpu.name, "0000:3b:00.0");
        assert_eq!(gpu.path, ["pci0000:3a", "0000:3a:00.0", "0000:3b:00.0"]);
        assert_eq!((gpu.numa_node, gpu.peers), (Some(1), Vec::new()));
    }

    #[test]
    fn a_device_that_the_machine_does_not_show_has_no_path() {
        let root = tempfile::tempdir().unwrap();
        let address: PciAddress = "0000:3b:00.0".parse().unwrap();
        let nothing = Attachment { name: "cuda:0".to_owned(), path: Vec::new(), numa_node: None, peers: Vec::new() };
        assert_eq!(address.attachment(root.path(), "cuda:0".to_owned()), nothing);
    }

    #[test]
    fn an_address_is_read_as_drivers_and_tools_write_it_and_written_as_the_kernel_does() {
        for text in ["0000:3B:00.0", "00000000:3B:00.0", "0000:3b:00.0"] {
            assert_eq!(text.parse::<PciAddress>().map(|address| address.to_string()).as_deref(), Ok("0000:3b:00.0"));
        }
        assert_eq!("10000:e1:1f.7".parse::<PciAddress>().unwrap().to_string(), "10000:e1:1f.7");
        for text in [
            "",
            "0000:3b:00",
            "0000:3b:20.0",
            "0000:3b:00.8",
            "0000:3b:00.0.0",
            "../../3b:00.0",
            "+1:3b:00.0",
            "100:100:0.0",
        ] {
            assert_eq!(text.parse::<PciAddress>(), Err(NoPciAddress), "{text}");
        }
    }

    /// What is read of GPUs when they are laid out as the kernel does.
    fn attachments(gpus: &[Gpu]) -> Vec<Attachment> {
        let root = tempfile::tempdir().unwrap();
        let attachment = |(path, node): &Gpu| {
            fake::lay_out(root.path(), path, node);
            let (_, name) = path.rsplit_once('/').unwrap();
            name.parse::<PciAddress>().unwrap().attachment(root.path(), name.to_owned())
        };
        gpus.iter().map(attachment).collect()
    }
}
