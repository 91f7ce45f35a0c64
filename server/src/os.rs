//! System calls that std lacks: dying with the parent, waiting for a child without reaping it, signals to a group.
//!
//! All unsafe code of this crate is here, one system call per function.
#![expect(unsafe_code, reason = "system calls that std does not wrap")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::ending::Ending;

/// The effective user of this process.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: `geteuid` has no arguments, touches no memory of ours and cannot fail.
    unsafe { libc::geteuid() }
}

/// Puts the child into a new process group, and makes it die with the *thread* that starts it. So call it on a thread that lives as long as
/// the child should.
///
/// The kernel then kills the child even if SIGKILL ends this process. This covers only the child itself. Processes that the child starts
/// are in its group, which [`signal_group`] reaches as long as this process lives.
pub(crate) fn die_with_this_thread(command: &mut Command) {
    command.process_group(0);
    #[cfg(target_os = "linux")]
    {
        let parent = std::process::id();
        let tie = move || {
            // SAFETY: `prctl(PR_SET_PDEATHSIG, signal)` takes an integer and changes only the calling process.
            if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died between the fork and the line above; nobody would send the signal then.
            // SAFETY: `getppid` has no arguments and cannot fail.
            if u32::try_from(unsafe { libc::getppid() }) != Ok(parent) {
                return Err(io::ErrorKind::NotFound.into());
            }
            Ok(())
        };
        // SAFETY: the closure runs between fork and exec, where only async-signal-safe work is allowed: it makes two system calls,
        // and its errors are built without allocating.
        unsafe { command.pre_exec(tie) };
    }
}

/// Waits until the child `pid` has ended and leaves it unreaped, so that its number and its group's stay taken until the caller
/// reaps it: signals sent meanwhile cannot reach a stranger.
pub(crate) fn wait_unreaped(pid: u32) -> io::Result<Ending> {
    loop {
        // SAFETY: `siginfo_t` is plain data for which all zeroes is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is a valid, exclusive place for the answer; the flags only ask for exits and keep the zombie.
        let outcome = unsafe { libc::waitid(libc::P_PID, pid, &raw mut info, libc::WEXITED | libc::WNOWAIT) };
        if outcome == 0 {
            // SAFETY: `waitid` succeeded for an exit, so the union holds the fields of SIGCHLD.
            let status = unsafe { info.si_status() };
            return Ok(if info.si_code == libc::CLD_EXITED { Ending::Exited(status) } else { Ending::Killed(status) });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Sends `signal` to every process of the group; a group without processes is no error.
pub(crate) fn signal_group(group: u32, signal: i32) {
    let group = libc::pid_t::try_from(group).expect("process ids fit in pid_t");
    assert!(group > 1, "kill(-1) would reach every process of the user");
    // SAFETY: `kill` takes integers only. The group is our child's own (`die_with_this_thread`), and the child is not reaped yet.
    unsafe { libc::kill(-group, signal) };
}
