//! Variables of BytePS and ps-lite that have no meaning here. Scripts set them, so each is named in a warning.

use std::collections::BTreeMap;

/// Why the variable `name` is not read, and what to do; `None` if it does no harm that it is not.
///
/// `name` is no alias of a setting. A switch that is off is not worth a warning. Names of ps-lite that other programs use too count only in
/// an `environment` that is ps-lite's.
pub(super) fn why(name: &str, value: &str, environment: &BTreeMap<String, String>) -> Option<String> {
    if value.trim() == "0" || READ_ELSEWHERE.contains(&name) {
        return None;
    }
    if OF_PS_LITE_TOO.contains(&name) {
        let is_ps_lite = environment.contains_key("DMLC_ROLE");
        return is_ps_lite.then(|| {
            "is not read here; set GRADLANE_BIND for an address, and GRADLANE_TIMELINE for a timeline".to_owned()
        });
    }
    let told = UNREAD.iter().find(|(names, _)| names.contains(&name)).map(|(_, why)| *why);
    let is_theirs = ["BYTEPS_", "DMLC_", "PS_", "PSLITE_"].iter().any(|prefix| name.starts_with(prefix));
    told.or(is_theirs.then_some("has no effect here, and is not read")).map(str::to_owned)
}

/// Whether an alias must not be read: BytePS's switch for the timeline is off, whatever folder is set.
pub(super) fn is_switched_off(alias: &str, environment: &BTreeMap<String, String>) -> bool {
    alias == "BYTEPS_TRACE_DIR" && environment.get("BYTEPS_TRACE_ON").is_some_and(|value| value.trim() == "0")
}

/// A launch reads these, or `bpslaunch`, or BytePS's names in Python.
const READ_ELSEWHERE: [&str; 7] = [
    "BYTEPS_ENABLE_ASYNC",
    "BYTEPS_FORCE_DISTRIBUTED",
    "BYTEPS_GLOBAL_RANK",
    "BYTEPS_LOCAL_RANK",
    "BYTEPS_LOCAL_SIZE",
    "DMLC_NUM_WORKER",
    "DMLC_WORKER_ID",
];

/// Variables of ps-lite without a prefix.
const OF_PS_LITE_TOO: [&str; 3] = ["PORT", "ENABLE_PROFILING", "PROFILE_PATH"];

/// By name, what takes the place of a variable, or why nothing does.
const UNREAD: [(&[&str], &str); 11] = [
    (&["BYTEPS_SCHEDULING_CREDIT"], "counts parts and is not read; set GRADLANE_CREDIT_BYTES, in bytes"),
    (
        &["BYTEPS_KEY_HASH_FN", "BYTEPS_BUILT_IN_HASH_COEF", "BYTEPS_ENABLE_MIXED_MODE", "BYTEPS_MIXED_MODE_BOUND"],
        "is not read: parts are placed by their size",
    ),
    (
        &["BYTEPS_THREADPOOL_SIZE", "BYTEPS_OMP_THREAD_PER_GPU"],
        "is not read; GRADLANE_SUM_THREADS sets the threads of a server",
    ),
    (
        &["BYTEPS_NCCL_GROUP_SIZE", "BYTEPS_NCCL_NUM_RINGS"],
        "is not read: parts that are ready together are one group on one communicator",
    ),
    (
        &["BYTEPS_SERVER_ENABLE_SCHEDULE"],
        "is not read: servers add what arrives, and workers send the most urgent first",
    ),
    (
        &["BYTEPS_TRACE_ON", "BYTEPS_TRACE_START_STEP", "BYTEPS_TRACE_END_STEP"],
        "is not read; set GRADLANE_TIMELINE, GRADLANE_TIMELINE_FROM_STEP and GRADLANE_TIMELINE_STEPS, or call gradlane.start_timeline",
    ),
    (&["BYTEPS_SOCKET_PATH"], "is not read; set GRADLANE_RUNTIME_DIR"),
    (
        &["BYTEPS_DEBUG_SAMPLE_TENSOR", "BYTEPS_SERVER_DEBUG", "PS_VERBOSE", "PS_KEY_LOG"],
        "is not read; set GRADLANE_LOG=debug",
    ),
    (
        &["PS_HEARTBEAT_INTERVAL", "PS_HEARTBEAT_TIMEOUT"],
        "is not read; set GRADLANE_HEARTBEAT_INTERVAL and GRADLANE_DEAD_TIMEOUT",
    ),
    (&["PS_RESEND", "PS_RESEND_TIMEOUT", "PS_DROP_MSG"], "is not read: what is lost is sent again in any case"),
    (
        &["DMLC_ENABLE_RDMA", "DMLC_ENABLE_UCX", "BYTEPS_ENABLE_IPC", "DMLC_INTERFACE", "DMLC_PORT"],
        "is not read: GRADLANE_TRANSPORT and GRADLANE_BIND say how and where processes meet",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::{Config, KNOBS};

    #[test]
    fn every_variable_of_byteps_is_an_alias_or_is_warned_of_once() {
        let set = |name: &str, value: &str| {
            let environment = [(name.to_owned(), value.to_owned())];
            let (_, warnings) = Config::load(&BTreeMap::new(), environment, None).unwrap();
            warnings.into_iter().map(|warning| (warning.variable, warning.problem)).collect::<Vec<_>>()
        };
        for (names, why) in UNREAD {
            for name in names {
                assert_eq!(set(name, "7"), [((*name).to_owned(), why.to_owned())]);
                assert_eq!(set(name, "0"), [], "it is off");
            }
        }
        let unknown = "has no effect here, and is not read".to_owned();
        assert_eq!(set("BYTEPS_NUMA_ON", "1"), [("BYTEPS_NUMA_ON".to_owned(), unknown)]);
        assert_eq!(set("BYTEPS_PARTITION_BYTES", "4096000"), [], "an alias");
        assert_eq!(set("PSALMS", "7"), [], "somebody else's");
    }

    #[test]
    fn names_that_other_programs_use_too_are_warned_of_only_beside_those_of_ps_lite() {
        let of_ps_lite = BTreeMap::from([("DMLC_ROLE".to_owned(), "worker".to_owned())]);
        for name in OF_PS_LITE_TOO {
            assert_eq!(why(name, "7", &BTreeMap::new()), None, "{name}");
            assert!(why(name, "7", &of_ps_lite).is_some(), "{name}");
        }
    }

    #[test]
    fn the_folder_of_a_timeline_counts_unless_its_switch_is_off() {
        for (switch, is_on) in [(None, true), (Some("1"), true), (Some("0"), false)] {
            let folder = ("BYTEPS_TRACE_DIR".to_owned(), "/tmp/traces".to_owned());
            let switch = switch.map(|value| ("BYTEPS_TRACE_ON".to_owned(), value.to_owned()));
            let (config, _) = Config::load(&BTreeMap::new(), [folder].into_iter().chain(switch.clone()), None).unwrap();
            assert_eq!(config.timeline.is_some(), is_on, "{switch:?}");
        }
    }

    #[test]
    fn what_takes_the_place_of_a_variable_exists() {
        let words = UNREAD.iter().flat_map(|(_, why)| why.split([' ', ',', '=', ':', ';']));
        for name in words.filter(|word| word.starts_with("GRADLANE_")) {
            assert!(KNOBS.iter().any(|knob| knob.env() == name), "{name}");
        }
    }
}
