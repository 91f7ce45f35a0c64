#![no_main]
gradlane_fuzz::target!("tf_config");
