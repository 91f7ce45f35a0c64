//! Who wrote a file, as a line of it, so that other processes of the host can tell whether the writer still runs.

use std::fmt;
use std::fs;

use gradlane_core::runtime::process;

/// The process that wrote a file, so that another process of its host can tell whether it still runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct WriterProcess {
    pub(super) pid: u32,
    /// The start time of the process in the kernel's ticks since boot, because process ids are reused. 0 if unknown.
    pub(super) start: u64,
    /// The namespace of the process id; empty if unknown.
    pub(super) namespace: String,
    pub(super) host: String,
}

impl WriterProcess {
    pub(super) fn this() -> Self {
        let pid = std::process::id();
        Self { pid, start: start_of(pid).unwrap_or(0), namespace: namespace(), host: process::host() }
    }

    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let writer = Self {
            pid: words.next()?.parse().ok()?,
            start: words.next()?.parse().ok()?,
            namespace: words.next()?.to_owned(),
            host: words.next()?.to_owned(),
        };
        words.next().is_none().then_some(writer)
    }

    /// Whether it is known to run on this host, and is another process than this one.
    pub(super) fn lives_beside_this(&self) -> bool {
        self.is_seen_from_here() && self.pid != std::process::id() && start_of(self.pid) == Some(self.start)
    }

    /// Whether it is known to have ended. Nothing is known about processes of other hosts.
    pub(super) fn is_gone(&self) -> bool {
        self.is_seen_from_here() && start_of(self.pid) != Some(self.start)
    }

    /// Whether this process can tell if it runs: it is of this host and of the same process namespace.
    pub(super) fn is_seen_from_here(&self) -> bool {
        self.start != 0 && self.host == process::host() && self.namespace == namespace()
    }
}

impl fmt::Display for WriterProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.pid, self.start, self.namespace, self.host)
    }
}

/// Field 22 of `/proc/<pid>/stat` (proc(5)); the name before it may hold spaces and parentheses. `None` for a process that has ended, also
/// if nobody has waited for its end yet, as in a container whose first process does not.
pub(super) fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    if fields.starts_with(['Z', 'X']) {
        return None;
    }
    fields.split(' ').nth(22 - 3)?.parse().ok()
}

fn namespace() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::os;

    #[test]
    fn a_process_that_has_ended_has_no_start_although_nobody_has_waited_for_it() {
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("cat starts");
        assert!(start_of(child.id()).is_some());
        drop(child.stdin.take());
        os::wait_unreaped(child.id()).expect("it is our child");
        assert_eq!(start_of(child.id()), None);
        child.wait().expect("it has ended");
    }
}
