//! How the devices of this process are connected, from the operating system and the driver.

use std::path::Path;

use super::codes::name;
use super::driver::Driver;
use super::pci::PciAddress;
use crate::error::Result;
use crate::mem::Ordinal;
use crate::pipeline::{Attachment, PcieGroups};

/// The NUMA node of `device` in the machine below `root`, which is `/` except in tests. `None` if it is unknown or the machine has no
/// nodes. Makes no context.
pub(crate) fn numa_node(driver: &Driver, root: &Path, device: Ordinal) -> Option<u32> {
    let address: PciAddress = driver.facts(device).ok()?.pci_bus_id.parse().ok()?;
    address.numa_node(root)
}

/// The PCIe groups of the devices of `driver`, in the machine below `root`, which is `/` except in tests. Makes no context.
///
/// # Errors
/// [`Error::Device`](crate::Error::Device) if the driver does not answer.
pub(crate) fn groups(driver: &Driver, root: &Path) -> Result<PcieGroups> {
    let ordinals: Vec<Ordinal> = driver.ordinals().collect();
    let attachment = |device: &Ordinal| -> Result<Attachment> {
        let address = driver.facts(*device)?.pci_bus_id.parse::<PciAddress>();
        let hidden = |name| Attachment { name, path: Vec::new(), numa_node: None, peers: Vec::new() };
        let mut attachment =
            address.map_or_else(|_| hidden(name(*device)), |address| address.attachment(root, name(*device)));
        for (index, peer) in ordinals.iter().enumerate() {
            if peer != device && driver.reaches(*device, *peer)? {
                attachment.peers.push(index);
            }
        }
        Ok(attachment)
    };
    Ok(PcieGroups::of(&ordinals.iter().map(attachment).collect::<Result<Vec<_>>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::fake;

    #[test]
    fn a_device_is_near_the_node_that_the_kernel_shows() {
        let (_, driver) = fake::driver();
        let (empty, machine) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (ordinal, node) in driver.ordinals().zip(["1", "0", "-1", ""]) {
            let address = driver.facts(ordinal).unwrap().pci_bus_id;
            fake::lay_out(machine.path(), &format!("pci0000:a0/0000:a0:00.0/{address}"), node);
        }
        let nodes = |root: &Path| driver.ordinals().map(|device| numa_node(&driver, root, device)).collect::<Vec<_>>();
        assert_eq!(nodes(machine.path())[..5], [Some(1), Some(0), None, None, None]);
        assert_eq!(nodes(empty.path()), vec![None; usize::from(fake::DEVICES)]);
        assert_eq!(numa_node(&driver, machine.path(), Ordinal(fake::DEVICES)), None, "no such device");
    }

    #[test]
    fn groups_come_from_the_peers_that_the_driver_tells_of_and_from_the_switches_that_the_kernel_shows() {
        let (control, driver) = fake::driver();
        let (empty, machine) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for ordinal in driver.ordinals() {
            let address = driver.facts(ordinal).unwrap().pci_bus_id;
            let switch = if ordinal.0 < 5 { "0000:a0:00.0/0000:a1:00.0" } else { "0000:b0:00.0/0000:b1:00.0" };
            fake::lay_out(machine.path(), &format!("pci0000:a0/{switch}/{address}"), "-1");
        }
        let members = |root: &Path, peers: &str| {
            control.set("PEERS", peers);
            groups(&driver, root).unwrap().members().map(<[usize]>::to_vec).collect::<Vec<_>>()
        };
        let all: Vec<usize> = (0..usize::from(fake::DEVICES)).collect();
        assert_eq!(members(empty.path(), "4"), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(members(machine.path(), "1"), [&all[..5], &all[5..]], "no peers");
        assert_eq!(members(machine.path(), "3"), [&all[..]], "3 to 5 are peers");
        assert_eq!(members(empty.path(), "0"), [&all[..]], "all are");
    }
}
