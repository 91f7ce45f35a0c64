//! Skipped tests are counted, and in CI only the listed ones are skipped.

use gradlane_tests::skip::is_failure;

#[test]
fn a_skip_fails_where_ci_is_root_unless_its_reason_is_listed() {
    for reason in
        ["needs root: unshare -- Operation not permitted", "needs MPI", "needs a program: nft is not installed"]
    {
        assert!(is_failure(reason, true, true), "{reason}");
        assert!(!is_failure(reason, true, false), "{reason}");
        assert!(!is_failure(reason, false, true), "{reason}");
    }
    assert!(!is_failure("needs a CUDA device", true, true));
}
