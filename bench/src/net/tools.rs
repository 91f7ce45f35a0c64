//! Checks that this host has all that namespaces and links of limited rate need, and says what is missing.

use std::path::PathBuf;
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

/// The owner of `/proc/self` is the effective user.
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|itself| itself.uid() == 0)
}

/// A command that also finds tools outside the path of an ordinary user.
pub(crate) fn command(tool: &str) -> Command {
    let mut command = Command::new(tool);
    command.env("PATH", std::env::join_paths(folders()).unwrap_or_default());
    command
}

fn is_on_path(tool: &str) -> bool {
    folders().any(|folder| folder.join(tool).is_file())
}

/// The folders of commands: those on the path, and those that the path of an ordinary user often lacks.
#[expect(clippy::disallowed_methods, reason = "PATH belongs to the environment; it is not a setting of ours")]
fn folders() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let named: Vec<PathBuf> = std::env::split_paths(&path).collect();
    named.into_iter().chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
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
