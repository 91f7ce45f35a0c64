//! Jobs on bad networks. The table of all is in `tests/harness/network/cases.rs`, and `make test-net` runs it; here are some that are
//! quick. What can be heard late is asserted generously: the figures are those of `make test-net`.

use gradlane_tests::network::{self, CASES, Moment};

macro_rules! cases {
    ($($test:ident: $name:literal, $moment:ident;)+) => { $(
        #[test]
        fn $test() {
            lives($name, Moment::$moment);
        }
    )+ };
}

cases! {
    sums_are_exact_with_5_percent_of_loss_over_quic: "loss 5 %", Steady;
    a_job_forms_and_ends_through_bursts_of_loss_over_quic: "bursts of loss", EpochChange;
    sums_are_exact_when_datagrams_overtake_each_other_over_quic: "reorder 10 %", Steady;
    a_job_forms_and_ends_though_bits_flip_over_quic: "corruption 0.1 %", EpochChange;
    a_path_that_becomes_narrower_stops_nothing_over_quic: "MTU 1500 to 1280", Steady;
    a_worker_that_the_coordinator_misses_for_a_while_is_no_loss_over_quic: "cut W|C", Steady;
    a_job_forms_and_ends_while_links_flap_over_quic: "flaps of 1 s", EpochChange;
    a_worker_with_a_slow_control_connection_is_no_loss_over_quic: "slow W|C", Steady;
    a_job_forms_and_ends_though_the_server_has_a_slow_control_connection_over_quic: "slow S|C", EpochChange;
    members_that_get_new_addresses_come_back_over_quic: "new addresses", Steady;
}

fn lives(name: &str, moment: Moment) {
    let case = CASES.iter().find(|case| case.name == name).expect("it is in the table");
    let outcome = network::run(case, moment, 1);
    println!("{outcome:?}");
    assert_eq!(outcome.fault(case), None);
}
