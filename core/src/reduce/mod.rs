//! reduce.
