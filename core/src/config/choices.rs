//! Settings that are one word of a few.

use super::kinds::{Kind, Unit};
use crate::types::Scheme;

/// Makes a kind whose values are words, and the enum of its values at once.
macro_rules! choice {
    ($(#[doc = $doc:literal])+ $name:ident { $( $(#[doc = $meaning:literal])+ $value:ident = $word:literal, )+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $( $(#[doc = $meaning])+ $value, )+
        }

        impl Kind for $name {
            type Value = Self;
            const UNIT: Unit = Unit::Choice(&[$($word),+]);

            fn parse(text: &str) -> Result<Self, String> {
                match text.trim() {
                    $( $word => Ok(Self::$value), )+
                    _ => Err("is none of the choices".to_owned()),
                }
            }

            fn print(value: &Self) -> String {
                match value {
                    $( Self::$value => $word.to_owned(), )+
                }
            }
        }
    };
}

choice! {
    /// How exchanges reach a server.
    TransportChoice {
        /// Through shared memory where the server is on the same machine, over QUIC elsewhere.
        Auto = "auto",
        /// Always over QUIC.
        Quic = "quic",
        /// Always through shared memory; a server elsewhere cannot be reached.
        Shm = "shm",
    }
}

impl TransportChoice {
    /// Whether a process may connect to addresses with this scheme.
    pub fn allows(self, scheme: Scheme) -> bool {
        match self {
            Self::Auto => true,
            Self::Quic => scheme == Scheme::Quic,
            Self::Shm => scheme == Scheme::Shm,
        }
    }
}

choice! {
    /// Which bodies and sums carry a CRC-32C.
    Checksum {
        /// Those that leave the machine. Memory that two processes map is the same memory: there is no wire on which bits could change, and
        /// the passes over the bytes cost a quarter of the whole exchange.
        Auto = "auto",
        /// All, which also finds memory that spoils what it holds.
        Always = "true",
        /// None.
        Never = "false",
    }
}

choice! {
    /// How a sender finds out what the network can take.
    Congestion {
        /// By the queue that it causes, and by loss as `cubic`: what is urgent waits for little. For hosts whose threads run when they
        /// want to, and networks without senders that fill queues: those get more.
        Delay = "delay",
        /// As TCP does on Linux (RFC 9438): fair to it, slowed down by loss.
        Cubic = "cubic",
        /// By measured bandwidth and delay (version 1): full speed in spite of loss, and not fair to those that heed it.
        Bbr = "bbr",
        /// As the QUIC standard does (RFC 9002).
        NewReno = "newreno",
    }
}

choice! {
    /// What becomes of a job that loses a worker.
    OnWorkerLoss {
        /// It ends, and every member hears the cause.
        Abort = "abort",
        /// It goes on with the workers that are left.
        Continue = "continue",
        /// The same, but if too few workers are left, these wait behind their step until others have come.
        Wait = "wait",
    }
}

impl OnWorkerLoss {
    /// Whether the job goes on with the workers that are left.
    pub fn goes_on(self) -> bool {
        match self {
            Self::Abort => false,
            Self::Continue | Self::Wait => true,
        }
    }
}

choice! {
    /// What becomes of a job that loses a server.
    OnServerLoss {
        /// It ends, and every member hears the cause.
        Abort = "abort",
        /// It goes on with the servers that are left, and no sum is lost.
        Continue = "continue",
        /// It forms again with the members that are left, and workers go back to a checkpoint.
        Restore = "restore",
    }
}

impl OnServerLoss {
    /// Whether the job survives the loss of a server, in one way or the other.
    pub fn survives(self) -> bool {
        match self {
            Self::Abort => false,
            Self::Continue | Self::Restore => true,
        }
    }
}

choice! {
    /// What becomes of a tensor whose elements the codec that was asked for does not encode.
    CompressionFallback {
        /// An error says so.
        Error = "error",
        /// It travels unchanged.
        None = "none",
    }
}

choice! {
    /// What becomes of a contribution with a NaN or an infinity.
    NanCheck {
        /// It is added like any other.
        Off = "off",
        /// It is added, and the log names it.
        Warn = "warn",
        /// It is an error of its round.
        Error = "error",
    }
}

choice! {
    /// Whether the workers of one machine reduce among themselves.
    LocalReduce {
        /// Wherever all workers are on one machine.
        Auto = "auto",
        /// Never.
        Off = "off",
    }
}

choice! {
    /// What runs operations inside a framework's compiled programs.
    FrameworkCall {
        /// The native code, or Python functions where that does not load.
        Auto = "auto",
        /// The native code.
        Native = "native",
        /// Python functions.
        Fallback = "fallback",
    }
}
