//! Gradlane's aggregation server and coordinator.

pub mod aggregate;
