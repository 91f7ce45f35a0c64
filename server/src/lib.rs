//! Gradlane's aggregation server and coordinator.
