#![no_main]
gradlane_fuzz::target!("answer");
