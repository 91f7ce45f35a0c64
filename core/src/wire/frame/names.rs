//! The first names of a long list.

use std::fmt;

use crate::types::printable;

/// The first names of a list, at most [`Names::LISTED_MAX`], and how many more there are.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Names {
    /// The first ones. On the wire each has at most [`NAME_BYTES_MAX`](crate::wire::limits::NAME_BYTES_MAX) bytes, and the rest is cut.
    pub listed: Vec<String>,
    /// How many there are besides.
    pub more: u32,
}

impl Names {
    /// The most names that are listed.
    pub const LISTED_MAX: usize = 8;

    /// Lists the first of `names`, of which there are `count`.
    pub fn first(names: impl Iterator<Item = String>, count: usize) -> Self {
        let listed: Vec<String> = names.take(Self::LISTED_MAX).collect();
        let more = u32::try_from(count - listed.len()).unwrap_or(u32::MAX);
        Self { listed, more }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.more == 0
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.listed.join(", ")))?;
        match self.more {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
