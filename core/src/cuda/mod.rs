//! The ground of everything that is done with CUDA: the driver, found at run time, and thin owners of what it hands out.
//!
//! The device that copies and the collective of a machine's devices both stand on it and do not see each other. Without the feature
//! `cuda` nothing is left of it but the words that are said of any device.

/// A point in the work of a device's stream. What was submitted to that stream before has been done when it is reached.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Mark {
    /// Nothing to wait for.
    Reached,
}
