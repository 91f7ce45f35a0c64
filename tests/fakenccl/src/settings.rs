//! How the fake behaves, from the environment and from tests. The table is at the head of the crate.

use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) timeout: Duration,
    pub(crate) version: i32,
    pub(crate) init: Duration,
    pub(crate) launch: Duration,
    pub(crate) duplicates: bool,
    /// How many operations are done before the next one waits.
    pub(crate) hold: Option<u64>,
    /// Whether ranks that are gone are not noticed, and what else NCCL does not forgive.
    pub(crate) is_strict: bool,
    /// How long an abort lets operations go on before it stops them.
    pub(crate) abort: Duration,
    /// How long a communicator takes to be destroyed.
    pub(crate) destroy: Duration,
    /// The code with which a new communicator fails at once; 0 for none.
    pub(crate) init_code: u32,
}

const NAMES: [&str; 10] = [
    "TIMEOUT",
    "VERSION",
    "INIT_US",
    "LAUNCH_US",
    "DUPLICATES",
    "HOLD",
    "STRICT",
    "ABORT_US",
    "DESTROY_US",
    "INIT_CODE",
];

impl Settings {
    pub(crate) fn from_environment() -> Self {
        let none = Duration::ZERO;
        let timeout = Duration::from_secs(5);
        let mut settings = Self {
            timeout,
            version: 22_809,
            init: none,
            launch: none,
            duplicates: false,
            hold: None,
            is_strict: true,
            abort: none,
            destroy: none,
            init_code: 0,
        };
        for name in NAMES {
            if let Some(value) = variable(&format!("FAKENCCL_{name}")) {
                // A C library has nobody to tell; a test that misspells a value should not run with another one.
                assert!(settings.set(name, &value), "FAKENCCL_{name}={value} is not understood");
            }
        }
        settings
    }

    /// Whether it was understood.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> bool {
        fn put<T>(to: &mut T, value: Option<T>) -> bool {
            value.map(|value| *to = value).is_some()
        }
        let micros = || value.parse().ok().map(Duration::from_micros);
        let yes_or_no = || ["0", "1"].iter().position(|known| *known == value).map(|at| at == 1);
        match name {
            "TIMEOUT" => {
                put(&mut self.timeout, value.parse().ok().and_then(|secs| Duration::try_from_secs_f64(secs).ok()))
            }
            "VERSION" => put(&mut self.version, value.parse().ok()),
            "INIT_US" => put(&mut self.init, micros()),
            "LAUNCH_US" => put(&mut self.launch, micros()),
            "DUPLICATES" => put(&mut self.duplicates, yes_or_no()),
            "STRICT" => put(&mut self.is_strict, yes_or_no()),
            "ABORT_US" => put(&mut self.abort, micros()),
            "DESTROY_US" => put(&mut self.destroy, micros()),
            "INIT_CODE" => put(&mut self.init_code, value.parse().ok()),
            "HOLD" if value.is_empty() => put(&mut self.hold, Some(None)),
            "HOLD" => put(&mut self.hold, value.parse().ok().map(Some)),
            _ => false,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a C library has no other way to be told before the first call")]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[expect(clippy::disallowed_methods, reason = "ranks that do not come are waited for with a deadline")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Makes something slow.
#[expect(clippy::disallowed_methods, reason = "that it takes time is what a test asks for; nothing is waited for")]
pub(crate) fn pass(duration: Duration) {
    if !duration.is_zero() {
        std::thread::sleep(duration);
    }
}
