#![no_main]
gradlane_fuzz::target!("shm_message");
