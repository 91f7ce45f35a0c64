//! What the tests share.

pub mod sim;
