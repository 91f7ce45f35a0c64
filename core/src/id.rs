//! Identities of members, tensors, parts and rounds.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

/// A worker's rank, assigned by the coordinator when the job forms and kept as long as the worker is a member. Dense from 0 in the view
/// that formed the job; a worker that is lost leaves its number unused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkerId(pub u32);

/// A server's index in the view: dense from 0, assigned by the coordinator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServerId(pub u32);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {}", self.0)
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {}", self.0)
    }
}

/// A tensor, by the hash of its name: the same on every worker, whatever the order in which it is declared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TensorKey(pub u64);

impl TensorKey {
    /// The key of `name`. Two names with one key are refused at declaration, where both are known.
    pub fn of(name: &str) -> Self {
        Self(xxh3_64(name.as_bytes()))
    }
}

impl fmt::Display for TensorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// One part of a tensor, the unit that is scheduled, sent and summed.
///
/// A part that several small tensors share carries the key of the first of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PartId {
    /// The tensor, or the first of the tensors that share the part.
    pub key: TensorKey,
    /// Counts the parts of a tensor; from 0, or higher if other tensors of the job have ended.
    pub index: u32,
}

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.key, self.index)
    }
}

/// How many sums of a part were begun before this one, on every worker alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Round(pub u64);

impl Round {
    /// The round after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "round {}", self.0)
    }
}

/// A membership, ordered first by `term` (a start of the coordinator), then by `number` (a change of membership).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch {
    /// Grows with every start of the coordinator.
    pub term: u32,
    /// Grows with every change of membership within a term; 0 while the job forms.
    pub number: u32,
}

impl Epoch {
    /// The epoch that is displayed as `text`. `None` if the text is no epoch.
    pub fn of_text(text: &str) -> Option<Self> {
        let (term, number) = text.strip_prefix("epoch ")?.split_once('.')?;
        Some(Self { term: term.parse().ok()?, number: number.parse().ok()? })
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}.{}", self.term, self.number)
    }
}

/// A machine as its processes see it: equal for those that can share memory, being of one boot and one user, with the same networks and
/// files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MachineId(pub u64);

impl MachineId {
    /// A process that could not find out where it runs; it shares memory with no other process.
    pub const UNKNOWN: Self = Self(0);

    /// Whether processes of these two can share memory.
    pub fn is_shared_with(self, other: Self) -> bool {
        self != Self::UNKNOWN && self == other
    }
}

/// One life of a process: 128 random bits drawn at its start. A restarted process is another incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Incarnation(pub u128);

/// A node's identity: the SHA-256 of its public key (SPKI), known from the connection and never from a frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub [u8; 32]);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

/// A connection to one peer. Never reused within a transport.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u64);

/// One exchange: a push and its sum. On the worker's side chosen by the caller and unique within the transport; on the server's side
/// chosen by the listener and unique within it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExchangeId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_of_a_later_term_is_newer_whatever_its_number() {
        assert!(Epoch { term: 2, number: 0 } > Epoch { term: 1, number: 9 });
    }

    #[test]
    fn an_epoch_is_read_from_its_text() {
        let epoch = Epoch { term: 7, number: u32::MAX };
        assert_eq!(Epoch::of_text(&epoch.to_string()), Some(epoch));
        for text in ["", "epoch", "epoch 1", "epoch 1.", "epoch 1.2.3", "epoch 1.4294967296", "1.2"] {
            assert_eq!(Epoch::of_text(text), None, "{text:?}");
        }
    }

    #[test]
    fn unknown_machines_are_not_the_same_machine() {
        assert!(MachineId(3).is_shared_with(MachineId(3)));
        assert!(!MachineId(3).is_shared_with(MachineId(4)));
        assert!(!MachineId::UNKNOWN.is_shared_with(MachineId::UNKNOWN));
    }

    #[test]
    fn the_key_of_a_name_never_changes() {
        // A golden value: workers of different builds must agree on it.
        assert_eq!(TensorKey::of("layer1.0.conv1.weight"), TensorKey(xxh3_64(b"layer1.0.conv1.weight")));
        assert_ne!(TensorKey::of("a"), TensorKey::of("b"));
    }
}
