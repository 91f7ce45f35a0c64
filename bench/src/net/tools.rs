//! What this host must have for namespaces and shaped links, said clearly where it is missing.

use std::path::Path;
use std::process::Command;

/// Checks for root, for the commands that are always needed, and for `more` of them.
///
/// # Errors
/// What is missing, and how to get it.
pub(crate) fn check(more: &[&str]) -> Result<(), String> {
    if !is_root() {
        return Err(
            "network namespaces and shaped links need root: run it with sudo, or in a privileged container".to_owned()
        );
    }
    for (tool, package) in TOOLS {
        let wanted = !OPTIONAL.contains(&tool) || more.contains(&tool);
        if wanted && !is_on_path(tool) {
            return Err(format!("{tool} is not installed: it is in the package {package}"));
        }
    }
    Ok(())
}

/// The owner of what a process sees as itself in `/proc` is its effective user.
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|itself| itself.uid() == 0)
}

fn is_on_path(tool: &str) -> bool {
    let found = Command::new("sh").args(["-c", "command -v \"$0\" >/dev/null", tool]).status();
    found.is_ok_and(|status| status.success())
        || ["/sbin", "/usr/sbin"].iter().any(|folder| Path::new(folder).join(tool).exists())
}

const TOOLS: [(&str, &str); 6] = [
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("nft", "nftables"),
];
const OPTIONAL: [&str; 1] = ["nft"];
