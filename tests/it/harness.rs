//! The test world itself. These tests stand here, because unit tests would compile all of it once more.

mod digits;
mod path;
mod trial;
