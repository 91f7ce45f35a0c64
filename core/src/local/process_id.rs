//! The id of this process without a system call.
#![expect(unsafe_code, reason = "a page that the kernel clears in the child of a fork is mapped by address")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// The id of this process, as [`std::process::id`]. What a fork's child inherits compares it to the id of the process that made it, for
/// each message and each handle, so it must cost less than a system call.
pub fn process_id() -> u32 {
    static KNOWN: OnceLock<Option<&AtomicU32>> = OnceLock::new();
    let Some(known) = KNOWN.get_or_init(cleared_by_a_fork) else { return std::process::id() };
    match known.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            known.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// A word that is zero here and becomes zero in each child. `None` if the system has no such memory.
fn cleared_by_a_fork() -> Option<&'static AtomicU32> {
    const BYTES: usize = size_of::<AtomicU32>();
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
    let page = unsafe {
        mmap_anonymous(std::ptr::null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).ok()?
    };
    // SAFETY: changes only what a fork does with the new mapping.
    unsafe { madvise(page, BYTES, Advice::LinuxWipeOnFork) }.ok()?;
    // SAFETY: aligned to a page, zeroed, and never unmapped.
    Some(unsafe { &*page.cast::<AtomicU32>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_id_of_this_process_and_of_a_forked_child() {
        let parent = process_id();
        assert_eq!(parent, std::process::id());
        assert!(cleared_by_a_fork().is_some(), "Linux has it since 4.14");
        // SAFETY: the child only compares numbers and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_right = process_id() == std::process::id() && process_id() != parent;
            // SAFETY: ends the child at once, without the parent's destructors.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = 0;
        // SAFETY: waits for that child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "in the child");
    }
}
