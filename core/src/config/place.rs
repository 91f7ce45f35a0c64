//! The place of a process in its job, from the sources that know the whole job: the cluster file, then the launcher. The user's own
//! settings have precedence.

use std::collections::BTreeMap;

use super::cluster_file::ClusterFile;
use super::job_name::job_name;
use super::kinds::ProcessRole;
use super::knobs::{Config, KNOBS, Knob};
use super::launch::{self, workers_of_dmlc};
use super::launcher::{Launch, Launcher};
use super::load::read;
use super::origin::{Origin, written};
use crate::error::Result;

impl Config {
    /// Fills in the values that the cluster file knows and the user did not set. Also translates the index that selected the task in the
    /// file.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for a file that cannot be read, is malformed, or does not have this process.
    pub(super) fn place_in_cluster(&mut self) -> Result<()> {
        let Some(path) = &self.cluster_file else { return Ok(()) };
        let path = path.display().to_string();
        let cluster = ClusterFile::parse(&read(&written("cluster_file", self.origin("cluster_file")), &path)?)?;
        for (name, value) in cluster.values(self)? {
            if ["rank", "server_index"].contains(&name) || *self.origin(name) == Origin::Default {
                let knob = Knob::find(name).expect("places are knobs");
                self.set(knob, &value, Origin::Cluster(path.clone()))?;
            }
        }
        Ok(())
    }

    /// Fills in the values that the launcher knows and the user did not set.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) naming the variable that is missing or malformed.
    pub(super) fn place(&mut self, environment: &BTreeMap<String, String>) -> Result<()> {
        for (name, value, launcher) in self.said_by_launcher(environment)? {
            let knob = Knob::find(name).expect("places are knobs");
            if *self.origin(name) == Origin::Default || knob.value(self).is_empty() {
                self.set(knob, &value, Origin::Launcher(launcher))?;
            }
        }
        Ok(())
    }

    /// The names of the knobs that launchers set, with their values and sources.
    fn said_by_launcher(
        &self,
        environment: &BTreeMap<String, String>,
    ) -> Result<Vec<(&'static str, String, Launcher)>> {
        let env = |name: &str| self.said_of_place(name).or_else(|| environment.get(name).cloned());
        let described = match self.role {
            ProcessRole::Worker | ProcessRole::Server => launch::described(&env)?,
            ProcessRole::Coordinator | ProcessRole::Both => None,
        };
        let mut said = Vec::new();
        let (mut role, mut placed_by) = (self.role, None);
        if let Some(described) = described {
            said.extend(described.values().into_iter().map(|(name, value)| (name, value, Launcher::TfConfig)));
            if *self.origin("role") == Origin::Default {
                role = described.role();
            }
        }
        match role {
            ProcessRole::Worker => {
                let launch = Launch::detect(&env)?;
                placed_by = Some(launch.launcher);
                said.extend(launch.values().map(|(name, value)| (name, value.to_string(), launch.launcher)));
            }
            ProcessRole::Coordinator | ProcessRole::Both => {
                let size = workers_of_dmlc(&|name: &str| environment.get(name).cloned())?;
                said.extend(size.map(|size| ("size", size.to_string(), Launcher::Dmlc)));
            }
            ProcessRole::Server => {}
        }
        // A job whose coordinator has a known address is named after it; see `rendezvous::job`.
        if self.coordinator_host.is_none()
            && let Some(name) = job_name(placed_by, &|name: &str| environment.get(name).cloned())
        {
            said.push(("job", name, placed_by.unwrap_or(Launcher::Slurm)));
        }
        Ok(said)
    }

    /// The value of a knob by the name of its environment variable, from any source.
    fn said_of_place(&self, variable: &str) -> Option<String> {
        let knob = KNOBS.iter().find(|knob| knob.topic == "Place" && knob.env() == variable)?;
        Some(knob.value(self)).filter(|value| !value.is_empty())
    }
}
