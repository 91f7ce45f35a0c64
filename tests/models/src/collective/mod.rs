//! What the ranks of a machine share.

pub mod host;
