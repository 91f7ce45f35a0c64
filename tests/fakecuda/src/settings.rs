//! How the fake behaves, from the environment and from tests.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// See the table at the head of the crate.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) devices: usize,
    pub(crate) memory: u64,
    pub(crate) lag: Duration,
    pub(crate) lag_stream: Lagging,
    /// Bytes a second; 0 is as fast as it goes.
    pub(crate) rate: f64,
    pub(crate) hidden: bool,
    pub(crate) pci: Vec<String>,
    pub(crate) peers: usize,
    /// Whether freed addresses are used again at once, and what waits for running work does so.
    pub(crate) is_strict: bool,
    /// How long a call takes that puts work into a stream.
    pub(crate) call: Duration,
    /// How many kernels a device runs at a time.
    pub(crate) slots: usize,
    /// Whether memory that processes share may be registered.
    pub(crate) registers_shared: bool,
    /// Compute capability of the devices: major and minor number.
    pub(crate) capability: (u32, u32),
    /// Of CUDA, that the driver speaks: major and minor number.
    pub(crate) version: (u32, u32),
}

/// Which streams are slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lagging {
    All,
    Default,
    User,
    Created(usize),
}

pub(crate) struct Held(Mutex<Settings>);

/// Names of all settings but `FAIL`, which the faults understand.
const NAMES: [&str; 14] = [
    "DEVICES",
    "MEMORY",
    "LAG_US",
    "LAG_STREAM",
    "GB_PER_S",
    "HIDDEN",
    "PCI",
    "PEERS",
    "STRICT",
    "CALL_US",
    "SLOTS",
    "REGISTER_SHARED",
    "CAPABILITY",
    "VERSION",
];

impl Held {
    pub(crate) fn from_environment() -> Self {
        let mut settings = Settings {
            devices: 1,
            memory: 4 << 30,
            lag: Duration::ZERO,
            lag_stream: Lagging::All,
            rate: 0.0,
            hidden: false,
            pci: Vec::new(),
            peers: 0,
            is_strict: true,
            call: Duration::ZERO,
            slots: 8,
            registers_shared: true,
            capability: (9, 0),
            version: (13, 0),
        };
        for name in NAMES {
            if let Some(value) = variable(name) {
                // A C library has nobody to tell; a test that misspells a value should not run with another one.
                assert!(settings.set(name, &value), "FAKECUDA_{name}={value} is not understood");
            }
        }
        Self(Mutex::new(settings))
    }

    pub(crate) fn get(&self) -> Settings {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it was understood.
    pub(crate) fn set(&self, name: &str, value: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).set(name, value)
    }
}

impl Settings {
    fn set(&mut self, name: &str, value: &str) -> bool {
        fn put<T>(to: &mut T, value: Option<T>) -> bool {
            value.map(|value| *to = value).is_some()
        }
        let yes_or_no = || ["0", "1"].iter().position(|known| *known == value).map(|at| at == 1);
        match name {
            "DEVICES" => put(&mut self.devices, value.parse().ok().filter(|devices| *devices <= 128)),
            "MEMORY" => put(&mut self.memory, value.parse().ok()),
            "LAG_US" => put(&mut self.lag, value.parse().ok().map(Duration::from_micros)),
            "LAG_STREAM" => put(&mut self.lag_stream, Lagging::parse(value)),
            "GB_PER_S" => {
                let rate = value.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0);
                put(&mut self.rate, rate.map(|rate| rate * 1e9))
            }
            "HIDDEN" => put(&mut self.hidden, yes_or_no()),
            "STRICT" => put(&mut self.is_strict, yes_or_no()),
            "CALL_US" => put(&mut self.call, value.parse().ok().map(Duration::from_micros)),
            "SLOTS" => put(&mut self.slots, value.parse().ok().filter(|slots| *slots > 0)),
            "REGISTER_SHARED" => put(&mut self.registers_shared, yes_or_no()),
            "CAPABILITY" => put(&mut self.capability, version(value)),
            "VERSION" => put(&mut self.version, version(value)),
            "PCI" => put(&mut self.pci, Some(value.split(',').map(|one| one.trim().to_owned()).collect())),
            "PEERS" => put(&mut self.peers, value.parse().ok()),
            _ => false,
        }
    }

    /// The newest PTX that the driver compiles: 9.0 for CUDA 13.0, 8.4 for 12.4 (PTX manual, "Release Notes").
    pub(crate) fn ptx_version(&self) -> (u32, u32) {
        (self.version.0.saturating_sub(4), self.version.1)
    }

    /// The PCI address of a device, such as `0000:01:00.0`.
    pub(crate) fn pci_address(&self, device: usize) -> String {
        self.pci.get(device).cloned().unwrap_or_else(|| format!("0000:{:02x}:00.0", device + 1))
    }

    pub(crate) fn are_peers(&self, one: usize, other: usize) -> bool {
        one != other && (self.peers == 0 || one / self.peers == other / self.peers)
    }
}

/// Two numbers with a dot between them.
pub(crate) fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

impl Lagging {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "all" => Some(Self::All),
            "default" => Some(Self::Default),
            "user" => Some(Self::User),
            number => number.parse().ok().map(Self::Created),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a C library has no other way to be told before the first call")]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(format!("FAKECUDA_{name}")).ok().filter(|value| !value.is_empty())
}
