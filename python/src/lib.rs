//! The native half of the `gradlane` Python package.
