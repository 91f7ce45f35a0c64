#![no_main]
gradlane_fuzz::target!("enrolment_answer");
