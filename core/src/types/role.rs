//! The role of a process in a job.

use std::fmt;

/// The role of a process in a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Role {
    /// Contributes gradients and receives sums.
    Worker = 1,
    /// Adds contributions.
    Server = 2,
    /// Decides membership, declarations and placement (the *scheduler* of ps-lite and BytePS).
    Coordinator = 3,
    /// Asks for the state of the job, and is no member of it.
    Observer = 4,
    /// Gives orders to a running job, and is no member of it.
    Admin = 5,
}

impl Role {
    /// Those of members, in the order of a view.
    pub const OF_MEMBERS: [Self; 2] = [Self::Worker, Self::Server];
    const ALL: [Self; 5] = [Self::Worker, Self::Server, Self::Coordinator, Self::Observer, Self::Admin];

    /// Whether a process with this role is no member, and may enrol at any time.
    pub fn is_guest(self) -> bool {
        matches!(self, Self::Observer | Self::Admin)
    }

    /// The role with this wire code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|role| *role as u8 == code)
    }

    /// The role that is displayed like this.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.to_string() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Worker => "worker",
            Self::Server => "server",
            Self::Coordinator => "coordinator",
            Self::Observer => "observer",
            Self::Admin => "admin",
        })
    }
}
