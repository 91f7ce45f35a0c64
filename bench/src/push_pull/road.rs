//! The roads that bytes take between workers and servers, as settings that choose them.

use gradlane_core::config::Knob;

use crate::team::Wire;

/// One road.
#[derive(PartialEq, Debug)]
pub(crate) struct Road {
    /// Its name in arguments and tables.
    pub(crate) name: &'static str,
    settings: &'static [(&'static str, &'static str)],
    /// What the interface counters mean; `None` if it does not pass the network.
    pub(crate) wire: Option<Wire>,
}

/// Every road. What a build cannot do is known by the settings that it does not have.
const ROADS: [Road; 4] = [
    Road { name: "quic", settings: &[("road", "quic")], wire: Some(Wire::Loopback { ends: 1 }) },
    Road { name: "shm", settings: &[("road", "shm")], wire: None },
    Road { name: "local", settings: &[("local_reduce", "true")], wire: None },
    Road { name: "auto", settings: &[], wire: Some(Wire::Loopback { ends: 1 }) },
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

    /// The settings that choose it, as far as this build has a choice.
    ///
    /// # Errors
    /// That it cannot take this road.
    pub(crate) fn settings(&self) -> Result<Vec<(String, String)>, String> {
        let known = |name: &str| Knob::find(name).is_some();
        match self.settings.iter().find(|(name, _)| !known(name)) {
            // Where there is no choice, all bytes go by QUIC.
            Some(_) if self.name == "quic" => {}
            Some((name, _)) => return Err(format!("--road {}: this build has no setting {name}", self.name)),
            None => {}
        }
        let known = self.settings.iter().filter(|(name, _)| known(name));
        Ok(known.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }
}
