//! Chooses the NUMA node of new memory.
//!
//! The kernel chooses a page's node when a thread first touches it, by that thread's policy. So a caller sets the policy while it allocates
//! and touches memory. The memory stays there, and no thread needs to be bound to a node.
#![expect(unsafe_code, reason = "memory policies have system calls only")]

use std::ffi::{c_int, c_ulong};
use std::io;

/// Does `work`, during which memory that this thread touches first comes from `node`, if that has free memory. Restores the thread's policy
/// afterwards, even if `work` panics.
///
/// Changes nothing if the node is unknown, if the kernel refuses, as in many containers, or if the thread's memory is already bound to
/// nodes, because that was set on purpose.
pub(crate) fn near<T>(node: Option<u32>, work: impl FnOnce() -> T) -> T {
    let _restored = node.and_then(|node| match Restored::preferring(node) {
        Ok(restored) => restored,
        Err(error) => {
            tracing::debug!(node, %error, "memory is not asked for from this NUMA node");
            None
        }
    });
    work()
}

/// Restores a thread's policy when it is dropped.
struct Restored(Policy);

impl Restored {
    /// Prefers `node` from now on. Changes nothing and returns `None` if the thread's memory is bound to nodes.
    fn preferring(node: u32) -> io::Result<Option<Self>> {
        let wanted = Policy::preferring(node)?;
        let before = Policy::of_this_thread()?;
        if before.mode & !FLAGS == libc::MPOL_BIND {
            return Ok(None);
        }
        wanted.adopt()?;
        Ok(Some(Self(before)))
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        if let Err(error) = self.0.adopt() {
            tracing::debug!(%error, "a thread goes on to prefer a NUMA node");
        }
    }
}

/// A thread's memory policy; see set_mempolicy(2).
#[derive(Clone, PartialEq, Eq, Debug)]
struct Policy {
    mode: c_int,
    nodes: [c_ulong; WORDS],
}

impl Policy {
    /// # Errors
    /// If the number of the node is higher than any that a kernel supports.
    fn preferring(node: u32) -> io::Result<Self> {
        let mut nodes = [0; WORDS];
        let (word, bit) = (node as usize / WORD_BITS, node as usize % WORD_BITS);
        let word = nodes.get_mut(word).ok_or(io::ErrorKind::InvalidInput)?;
        *word = 1 << bit;
        Ok(Self { mode: libc::MPOL_PREFERRED, nodes })
    }

    fn of_this_thread() -> io::Result<Self> {
        let mut policy = Self { mode: 0, nodes: [0; WORDS] };
        let nowhere: c_ulong = 0;
        // SAFETY: the call writes one number and at most `BITS` - 1 bits, for which there is room. It asks about no address.
        let code = unsafe {
            let (mode, nodes) = (&raw mut policy.mode, policy.nodes.as_mut_ptr());
            libc::syscall(libc::SYS_get_mempolicy, mode, nodes, BITS, nowhere, nowhere)
        };
        if code == 0 { Ok(policy) } else { Err(io::Error::last_os_error()) }
    }

    /// Sets it as the policy of this thread.
    fn adopt(&self) -> io::Result<()> {
        let mode = std::ffi::c_long::from(self.mode);
        // SAFETY: the call reads the bits. It changes only the nodes on which pages of this thread will lie.
        let code = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, self.nodes.as_ptr(), BITS) };
        if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// The flags of a mode.
const FLAGS: c_int = libc::MPOL_F_STATIC_NODES | libc::MPOL_F_RELATIVE_NODES | libc::MPOL_F_NUMA_BALANCING;
const WORD_BITS: usize = c_ulong::BITS as usize;
/// Words for the bits of 1024 nodes, the most that a kernel supports.
const WORDS: usize = 1024 / WORD_BITS;
/// The number of bits to pass to the kernel, which subtracts one.
const BITS: c_ulong = 1024 + 1;

/// Whether the kernel lets this process set its memory policy.
#[cfg(test)]
pub(crate) fn can_prefer() -> bool {
    let asked = Restored::preferring(0);
    if let Err(error) = &asked {
        crate::skip::skip(&format!("needs memory policies of the kernel: {error}"));
    }
    asked.is_ok_and(|asked| asked.is_some())
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn memory_is_asked_for_from_the_node_and_afterwards_from_where_it_was_before() {
        let Some(before) = spread() else { return };
        let (answer, meanwhile) = near(Some(0), || (7, Policy::of_this_thread().unwrap()));
        assert_eq!((answer, meanwhile), (7, Policy::preferring(0).unwrap()));
        assert_eq!(Policy::of_this_thread().unwrap(), before);
    }

    #[test]
    fn what_fails_or_panics_leaves_the_policy_as_it_was() {
        let Some(before) = spread() else { return };
        let failed = near(Some(0), || Err::<(), _>(Policy::of_this_thread().unwrap().mode));
        assert_eq!(failed, Err(libc::MPOL_PREFERRED));
        assert_eq!(Policy::of_this_thread().unwrap(), before);
        let panicked = catch_unwind(AssertUnwindSafe(|| near(Some(0), || panic!("no memory"))));
        assert!(panicked.is_err());
        assert_eq!(Policy::of_this_thread().unwrap(), before);
    }

    #[test]
    fn a_node_that_is_not_known_or_not_there_changes_nothing() {
        let Some(before) = spread() else { return };
        // The highest node that a kernel supports, and two that no kernel supports.
        for node in [None, Some(1023), Some(1024), Some(u32::MAX)] {
            assert_eq!(near(node, || Policy::of_this_thread().unwrap()), before, "{node:?}");
            assert_eq!(Policy::of_this_thread().unwrap(), before, "{node:?}");
        }
    }

    #[test]
    fn who_was_bound_stays_bound() {
        let Some(_) = spread() else { return };
        let bound = Policy { mode: libc::MPOL_BIND | libc::MPOL_F_STATIC_NODES, ..Policy::preferring(0).unwrap() };
        bound.adopt().unwrap();
        assert_eq!(near(Some(0), || Policy::of_this_thread().unwrap()), bound);
        assert_eq!(Policy::of_this_thread().unwrap(), bound);
    }

    /// Sets a policy that is no thread's default for the thread of this test, and returns it. `None` if the kernel refuses.
    fn spread() -> Option<Policy> {
        let policy = Policy { mode: libc::MPOL_INTERLEAVE, ..Policy::preferring(0).unwrap() };
        can_prefer().then(|| {
            policy.adopt().unwrap();
            policy
        })
    }
}
