#![no_main]
gradlane_fuzz::target!("join_string");
