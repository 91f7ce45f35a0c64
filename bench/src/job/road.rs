//! The values of `--road`: ways for bytes between workers and servers, and the settings that choose each.

use gradlane_core::config::Knob;

use crate::memory::Traffic;
use crate::team::Wire;

/// One value of `--road`.
#[derive(PartialEq, Debug)]
pub(crate) struct Road {
    /// Its name in arguments and tables.
    pub(crate) name: &'static str,
    /// How bytes travel, for the head of a table.
    pub(crate) about: &'static str,
    /// Settings that choose it. Settings that this build lacks are skipped.
    settings: &'static [(&'static str, &'static str)],
    /// The setting that this build must have.
    needs: Option<&'static str>,
    /// What the interface counters mean; `None` if the bytes do not pass a network interface.
    pub(crate) wire: Option<Wire>,
}

/// All of them: QUIC; shared memory between workers and servers; shared memory among the workers alone; one process that holds the whole
/// job; and the engine's own choice.
const ROADS: [Road; 5] = [
    Road {
        name: "quic",
        about: "through servers, as to another machine: encrypted packets over the loopback interface",
        settings: &[("transport", "quic"), ("local_reduce", "off")],
        needs: None,
        wire: Some(Wire::Loopback { ends: 1 }),
    },
    Road {
        name: "shm",
        about: "through servers of this machine, in shared memory",
        settings: &[("transport", "shm"), ("local_reduce", "off")],
        needs: Some("transport"),
        wire: None,
    },
    Road {
        name: "local",
        about: "the workers add among themselves in shared memory; no server takes part",
        settings: &[("local_reduce", "auto")],
        needs: Some("local_reduce"),
        wire: None,
    },
    Road {
        name: "mem",
        about: "workers and servers are threads of one process",
        settings: &[("local_reduce", "off")],
        needs: None,
        wire: None,
    },
    Road {
        name: "auto",
        about: "the engine chooses, as in training",
        settings: &[],
        needs: None,
        wire: Some(Wire::Loopback { ends: 1 }),
    },
];

impl Road {
    /// The value with this name.
    ///
    /// # Errors
    /// If there is none; the text lists all names.
    pub(crate) fn parse(text: &str) -> Result<&'static Self, String> {
        let names = || ROADS.map(|road| road.name).join(", ");
        ROADS
            .iter()
            .find(|road| road.name == text)
            .ok_or_else(|| format!("{text:?} is no value of --road; use one of {}", names()))
    }

    /// The value with this name, which must exist.
    pub(crate) fn named(name: &str) -> &'static Self {
        Self::parse(name).expect("a name of the list")
    }

    /// Those that a job of `workers` workers on this machine can use, with workers and servers as processes. A single worker has nobody to
    /// add with.
    pub(crate) fn all_here(workers: u32) -> Vec<&'static Self> {
        let names: &[&str] = if workers > 1 { &["local", "shm", "quic"] } else { &["shm", "quic"] };
        names.iter().map(|name| Self::named(name)).collect()
    }

    /// The one that a training job of `workers` workers on this machine uses without any setting.
    pub(crate) fn of_training(workers: u32) -> &'static Self {
        Self::all_here(workers)[0]
    }

    /// Whether workers and servers are threads of one process.
    pub(crate) fn in_process(&self) -> bool {
        self.name == "mem"
    }

    /// The bytes of memory that a reduction over `workers` must touch; `None` if bytes go, or may go, through a network.
    pub(crate) fn traffic(&self, workers: u32) -> Option<Traffic> {
        match self.name {
            "shm" => Some(Traffic::Server { workers }),
            "local" => Some(Traffic::Workers { workers }),
            _ => None,
        }
    }

    /// The settings that choose it, except those that this build lacks.
    ///
    /// # Errors
    /// If this build lacks the setting that is needed.
    pub(crate) fn settings(&self) -> Result<impl Iterator<Item = (String, String)>, String> {
        let known = |name: &str| Knob::find(name).is_some();
        if let Some(name) = self.needs.filter(|name| !known(name)) {
            return Err(format!("--road {}: this build has no setting {name}, so it cannot choose this", self.name));
        }
        let known = self.settings.iter().filter(move |(name, _)| known(name));
        Ok(known.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }
}
