//! Skipped tests are counted, and those that CI can run as root are not skipped there.

use gradlane_tests::skip::is_failure;

#[test]
fn a_skip_for_want_of_root_fails_where_ci_is_root_and_nowhere_else() {
    assert!(is_failure("needs root: unshare -- Operation not permitted", true, true));
    for (reason, is_ci, is_root) in [
        ("needs root: run it with sudo", true, false),
        ("needs root: run it with sudo", false, true),
        ("needs MPI", true, true),
    ] {
        assert!(!is_failure(reason, is_ci, is_root), "{reason} {is_ci} {is_root}");
    }
}
