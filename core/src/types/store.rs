//! What workers ask of the key-value store of the job, and what they are answered.

use std::time::Duration;

/// A request to the store of the job: small values by key, which all workers share.
///
/// Every request happens at one moment, as a whole. The store compares keys and prefixes byte by byte, and gives no character a meaning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreAsk {
    /// Gives a key a value. Answered by [`StoreAnswer::Done`], or by [`StoreAnswer::Value`] with the present value if that is not the
    /// expected one; then nothing changes.
    Put {
        /// The key.
        key: String,
        /// Its new value.
        value: Vec<u8>,
        /// The value that it must have for that, where an absent key counts as empty. `None` if any value is overwritten.
        expected: Option<Vec<u8>>,
    },
    /// Adds to a number, which the store keeps as decimal digits. An absent key counts as 0. Answered by [`StoreAnswer::Number`] with the
    /// sum.
    Add {
        /// The key.
        key: String,
        /// What to add.
        amount: i64,
    },
    /// Puts these bytes behind the value of a key. An absent key counts as empty. Answered by [`StoreAnswer::Done`].
    Append {
        /// The key.
        key: String,
        /// What to put behind its value.
        value: Vec<u8>,
    },
    /// Reads a value. Answered by [`StoreAnswer::Value`].
    Get {
        /// The key.
        key: String,
        /// How long to wait for the key if it is absent; then [`Error::Timeout`](crate::Error::Timeout) answers. `None` to be answered at
        /// once.
        wait: Option<Duration>,
    },
    /// Removes a key if it is there. Answered by [`StoreAnswer::Number`] with the count of the keys that went.
    Delete {
        /// The key.
        key: String,
        /// Whether all keys go that begin with it.
        is_prefix: bool,
    },
    /// Lists the keys that begin with `prefix`. Answered by [`StoreAnswer::Keys`].
    Dir {
        /// Empty for all keys.
        prefix: String,
    },
}

/// The answer of the store to a [`StoreAsk`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreAnswer {
    /// It was done.
    Done,
    /// The value of the key; `None` if the key is absent.
    Value(Option<Vec<u8>>),
    /// A sum, or a count.
    Number(i64),
    /// Keys, in the order of their bytes.
    Keys(Vec<String>),
}

impl StoreAsk {
    /// The key, or the prefix.
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. }
            | Self::Add { key, .. }
            | Self::Append { key, .. }
            | Self::Get { key, .. }
            | Self::Delete { key, .. }
            | Self::Dir { prefix: key } => key,
        }
    }

    /// Whether it can change the store, so that it must not happen twice.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Put { .. } | Self::Add { .. } | Self::Append { .. } | Self::Delete { .. } => true,
            Self::Get { .. } | Self::Dir { .. } => false,
        }
    }

    /// Whether an answer is of the kind that this request has.
    pub fn is_answered_by(&self, answer: &StoreAnswer) -> bool {
        match (self, answer) {
            (Self::Put { .. } | Self::Append { .. }, StoreAnswer::Done)
            | (Self::Put { .. } | Self::Get { .. }, StoreAnswer::Value(_))
            | (Self::Add { .. } | Self::Delete { .. }, StoreAnswer::Number(_))
            | (Self::Dir { .. }, StoreAnswer::Keys(_)) => true,
            (
                Self::Put { .. }
                | Self::Add { .. }
                | Self::Append { .. }
                | Self::Get { .. }
                | Self::Delete { .. }
                | Self::Dir { .. },
                StoreAnswer::Done | StoreAnswer::Value(_) | StoreAnswer::Number(_) | StoreAnswer::Keys(_),
            ) => false,
        }
    }
}
