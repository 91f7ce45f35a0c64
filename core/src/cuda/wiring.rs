//! How the devices that this process sees are joined to each other: what the kernel and the driver tell together.

use std::path::Path;

use super::driver::{Driver, name};
use super::pci::PciAddress;
use crate::error::Result;
use crate::mem::Ordinal;
use crate::pipeline::{Attachment, PcieGroups};

/// The PCIe groups of the devices of `driver`, in the machine below `root`, which is `/` but in tests. Makes no context.
///
/// # Errors
/// [`Error::Device`](crate::Error::Device) if the driver does not tell.
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
