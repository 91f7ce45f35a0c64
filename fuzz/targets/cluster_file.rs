#![no_main]
gradlane_fuzz::target!("cluster_file");
