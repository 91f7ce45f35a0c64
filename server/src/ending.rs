//! How a child process ended.

use std::fmt;

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It returned this code.
    Exited(i32),
    /// This signal ended it.
    Killed(i32),
}

impl Ending {
    /// Whether it ended as it should.
    pub fn in_order(self) -> bool {
        self == Self::Exited(0)
    }

    /// As a shell reports it: the code, or 128 + the signal.
    pub fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128 + signal,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed(signal) => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(f, "killed by signal {signal} ({name})"),
                None => write!(f, "killed by signal {signal}"),
            },
        }
    }
}
