//! How much the network interfaces of this machine can carry, as the kernel says.

use std::fs;
use std::path::Path;

/// Bytes a second in each direction, by the name of the interface; `net` is where `/sys/class/net` is. Only interfaces that are up and that have
/// hardware of their own count: the loopback has no speed, and bridges and the interfaces of containers tell one that means nothing. A virtual
/// machine is mostly told none, which the kernel writes as -1 or 4294967295.
pub(super) fn capacities(net: &Path) -> Vec<(String, u64)> {
    let mut capacities: Vec<_> = fs::read_dir(net)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|interface| interface.path().join("device").exists())
        .filter_map(|interface| {
            let read = |name: &str| fs::read_to_string(interface.path().join(name)).ok();
            let is_up = read("operstate")?.trim() == "up";
            let megabits: u64 = read("speed")?.trim().parse().ok()?;
            let is_known = is_up && megabits > 0 && megabits < u64::from(u32::MAX);
            is_known.then(|| (interface.file_name().to_string_lossy().into_owned(), megabits * BYTES_A_MEGABIT))
        })
        .collect();
    capacities.sort();
    capacities
}

const BYTES_A_MEGABIT: u64 = 1_000_000 / 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_that_are_up_and_have_hardware_tell_what_they_carry() {
        let net = tempfile::tempdir().unwrap();
        for (name, has_device, state, speed) in [
            ("eth1", true, "up", "100000\n"),
            ("eth0", true, "up", "25000\n"),
            ("eth2", true, "down", "100000\n"),
            ("eth3", true, "up", "-1\n"),
            ("eth4", true, "up", "4294967295\n"),
            ("eth5", true, "up", "fast\n"),
            ("veth0", false, "up", "10000\n"),
            ("lo", false, "unknown", ""),
        ] {
            let path = net.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("operstate"), format!("{state}\n")).unwrap();
            fs::write(path.join("speed"), speed).unwrap();
            if has_device {
                fs::create_dir(path.join("device")).unwrap();
            }
        }
        fs::create_dir(net.path().join("eth6")).unwrap();
        let known = [("eth0".to_owned(), 3_125_000_000), ("eth1".to_owned(), 12_500_000_000)];
        assert_eq!(capacities(net.path()), known);
        assert_eq!(capacities(&net.path().join("nothing")), []);
    }
}
