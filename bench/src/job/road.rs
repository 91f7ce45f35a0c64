//! The roads that bytes take between workers and servers, as settings that choose them.

use gradlane_core::config::Knob;

use crate::memory::Traffic;
use crate::team::Wire;

/// One road.
#[derive(PartialEq, Debug)]
pub(crate) struct Road {
    /// Its name in arguments and tables.
    pub(crate) name: &'static str,
    /// Settings that choose it, where a build has them.
    settings: &'static [(&'static str, &'static str)],
    /// The setting without which there is no such road.
    needs: Option<&'static str>,
    /// What the interface counters mean; `None` if it does not pass the network.
    pub(crate) wire: Option<Wire>,
}

/// Every road: QUIC, shared memory between workers and servers, shared memory among the workers alone, memory of one process that is the
/// whole job, and what the engine chooses.
const ROADS: [Road; 5] = [
    Road {
        name: "quic",
        settings: &[("transport", "quic"), ("local_reduce", "off")],
        needs: None,
        wire: Some(Wire::Loopback { ends: 1 }),
    },
    Road {
        name: "shm",
        settings: &[("transport", "shm"), ("local_reduce", "off")],
        needs: Some("transport"),
        wire: None,
    },
    Road { name: "local", settings: &[("local_reduce", "auto")], needs: Some("local_reduce"), wire: None },
    Road { name: "mem", settings: &[("local_reduce", "off")], needs: None, wire: None },
    Road { name: "auto", settings: &[], needs: None, wire: Some(Wire::Loopback { ends: 1 }) },
];

impl Road {
    /// The road with this name.
    ///
    /// # Errors
    /// Which there are.
    pub(crate) fn parse(text: &str) -> Result<&'static Self, String> {
        let names = || ROADS.map(|road| road.name).join(", ");
        ROADS
            .iter()
            .find(|road| road.name == text)
            .ok_or_else(|| format!("{text:?} is no road; use one of {}", names()))
    }

    /// The road with this name, which there is.
    pub(crate) fn named(name: &str) -> &'static Self {
        Self::parse(name).expect("a name of the list")
    }

    /// Whether workers and servers are threads of one process.
    pub(crate) fn in_process(&self) -> bool {
        self.name == "mem"
    }

    /// What so many workers must touch where bytes go through memory; `None` where they go through a network, or may.
    pub(crate) fn traffic(&self, workers: u32) -> Option<Traffic> {
        match self.name {
            "shm" => Some(Traffic::Server { workers }),
            "local" => Some(Traffic::Workers { workers }),
            _ => None,
        }
    }

    /// The settings that choose it, as far as this build has a choice.
    ///
    /// # Errors
    /// That it cannot take this road.
    pub(crate) fn settings(&self) -> Result<impl Iterator<Item = (String, String)>, String> {
        let known = |name: &str| Knob::find(name).is_some();
        if let Some(name) = self.needs.filter(|name| !known(name)) {
            return Err(format!("--road {}: this build has no setting {name}, and no such road", self.name));
        }
        let known = self.settings.iter().filter(move |(name, _)| known(name));
        Ok(known.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }
}
