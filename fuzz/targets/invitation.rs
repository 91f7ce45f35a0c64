#![no_main]
gradlane_fuzz::target!("invitation");
