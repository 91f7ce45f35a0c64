//! What the tests share.

pub mod cluster;
pub mod digits;
pub mod element;
pub mod random;
pub mod relay;
pub mod tap;
