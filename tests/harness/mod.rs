//! What the tests share.

pub mod allocation;
pub mod cluster;
pub mod device_actor;
pub mod device_crowd;
pub mod devices;
pub mod digits;
pub mod element;
pub mod fakes;
pub mod feedback;
pub mod fuzz;
pub mod gated_device;
pub mod network;
pub mod over;
pub mod patience;
pub mod processes;
pub mod random;
pub mod rounds;
pub mod siege;
pub mod sim;
pub mod skip;
pub mod steps;
pub mod tap;
