//! What counts as a fault of a job on a bad network.

use std::time::Duration;

use gradlane_core::Error;
use gradlane_tests::network::{CALL_ENDS, CASES, Outcome, RECOVERY_MAX};

#[test]
fn what_a_job_may_not_do_is_a_fault() {
    let heals = &CASES[0];
    let good = || Outcome { recovery: Some(Duration::ZERO), harmed: 1, ..Outcome::default() };
    let late = || (Error::Cancelled, Duration::ZERO);
    let faults = [
        (Outcome { wrong: vec!["counted twice".to_owned()], ..good() }, "counted twice"),
        (Outcome { hangs: 1, ..good() }, "did not end"),
        (Outcome { errors: vec![late()], ..good() }, "cancelled"),
        (Outcome { harmed: 0, ..good() }, "no harm"),
        (Outcome { recovery: None, ..good() }, "None"),
        (Outcome { recovery: Some(2 * RECOVERY_MAX), ..good() }, "40s"),
    ];
    assert_eq!(good().fault(heals), None);
    for (outcome, names) in faults {
        let fault = outcome.fault(heals).unwrap_or_else(|| panic!("{names}"));
        assert!(fault.contains(names), "{fault}");
    }
}

#[test]
fn a_network_that_does_not_heal_owes_every_rank_the_right_error_in_time() {
    let lasts = CASES.iter().find(|case| case.name == "W|S for good").expect("it is in the table");
    let silent = || Error::Timeout { what: "a sum".to_owned(), waited: CALL_ENDS };
    let after =
        |error, time| Outcome { errors: vec![(error, time), (silent(), time)], harmed: 1, ..Outcome::default() };
    assert_eq!(after(silent(), CALL_ENDS).fault(lasts), None);
    assert!(after(silent(), 2 * CALL_ENDS).fault(lasts).is_some(), "too late");
    assert!(after(Error::Cancelled, CALL_ENDS).fault(lasts).is_some(), "another error");
    let one = Outcome { errors: vec![(silent(), CALL_ENDS)], harmed: 1, ..Outcome::default() };
    assert!(one.fault(lasts).is_some(), "one rank has none");
}
