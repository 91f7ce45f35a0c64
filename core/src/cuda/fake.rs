//! Support for tests without a GPU: the fake driver, which runs on the host, and PCI trees as files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use fakecuda::Control;

use super::Driver;

/// The number of its devices. A test that disturbs a device takes one of its own.
pub(crate) const DEVICES: u16 = 8;

/// Loads the fake driver.
pub(crate) fn driver() -> (Control, Arc<Driver>) {
    let library = fakecuda::library();
    let control = Control::open(&library);
    // Takes effect only in the first call of this process.
    control.set("DEVICES", &DEVICES.to_string());
    (control, Driver::load(Some(&library)).unwrap())
}

/// Adds a PCI device to the machine below `root`: its path below `/sys/devices`, and its NUMA node in the kernel's format.
pub(crate) fn lay_out(root: &Path, path: &str, numa_node: &str) {
    let folder = root.join("sys/devices").join(path);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("numa_node"), format!("{numa_node}\n")).unwrap();
    let links = root.join("sys/bus/pci/devices");
    fs::create_dir_all(&links).unwrap();
    symlink(Path::new("../../../devices").join(path), links.join(folder.file_name().unwrap())).unwrap();
}
