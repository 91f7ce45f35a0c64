//! What the tests share.

pub mod cluster;
pub mod patience;
pub mod processes;
pub mod relay;
pub mod rounds;
