//! What tests stand on where there is no GPU: the driver that runs on the host, and PCI trees laid out as files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use fakecuda::Control;

use super::Driver;

/// So many devices it has; tests that disturb one take one of their own.
pub(crate) const DEVICES: u16 = 8;

/// The driver that runs on the host.
pub(crate) fn driver() -> (Control, Arc<Driver>) {
    let library = fakecuda::library();
    let control = Control::open(&library);
    // Counts for whoever is first of this process.
    control.set("DEVICES", &DEVICES.to_string());
    (control, Driver::load(Some(&library)).unwrap())
}

/// Puts a PCI device into the machine below `root`, by its path below `/sys/devices` and its NUMA node as the kernel writes it.
pub(crate) fn lay_out(root: &Path, path: &str, numa_node: &str) {
    let folder = root.join("sys/devices").join(path);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("numa_node"), format!("{numa_node}\n")).unwrap();
    let links = root.join("sys/bus/pci/devices");
    fs::create_dir_all(&links).unwrap();
    symlink(Path::new("../../../devices").join(path), links.join(folder.file_name().unwrap())).unwrap();
}
