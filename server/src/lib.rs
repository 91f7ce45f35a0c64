//! Gradlane's aggregation server and coordinator.

pub mod aggregate;

pub mod accumulator;
pub mod sum;
