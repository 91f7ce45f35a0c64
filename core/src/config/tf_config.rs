//! `TF_CONFIG` of TensorFlow: the tasks of a whole job, and which of them this process is.
//!
//! ```json
//! {"cluster": {"chief": ["n0:1"], "worker": ["n1:1", "n2:1"], "ps": ["n3:1"]}, "task": {"type": "worker", "index": 0}}
//! ```
//!
//! The chief and the workers are workers here, the chief first. Parameter servers are servers. The addresses only tell which tasks share a
//! host, because their ports belong to TensorFlow. [`super::launch`] decides whether this variable is used.

use std::collections::BTreeMap;

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::kinds::ProcessRole;
use super::launcher::{Launch, Launcher};
use crate::error::{Error, Result};

/// The name of the variable.
const VARIABLE: &str = "TF_CONFIG";
/// The kinds of tasks that take part in a job, in the order of their ranks.
const KINDS: [&str; 3] = ["chief", "worker", "ps"];

/// The content of the variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TfConfig {
    /// A name that all tasks of the cluster derive in the same way.
    pub(super) job: String,
    /// Number of parameter servers.
    pub(super) servers: u32,
    /// The task of this process.
    pub(super) task: Task,
}

/// One process of the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// The chief or a worker.
    Worker(Launch),
    /// The parameter server of this index.
    Server(u32),
}

impl TfConfig {
    /// Reads the variable. `None` if it is not set, or names no cluster, as in a job of one process.
    ///
    /// # Errors
    /// [`Error::Config`] for malformed content, and for a task that is not in the cluster. The error lists the tasks that are.
    pub(super) fn find(env: &impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let Some(text) = env(VARIABLE) else { return Ok(None) };
        let value: Value = serde_json::from_str(&text).map_err(|cause| bad(format!("is no JSON: {cause}")))?;
        let cluster = Cluster::read(&value["cluster"])?;
        if cluster.tasks.is_empty() {
            return Ok(None);
        }
        let task = cluster.task(&value["task"])?;
        Ok(Some(Self { job: cluster.name(), servers: cluster.count("ps"), task }))
    }

    /// The role of this process.
    pub(super) fn role(&self) -> ProcessRole {
        match self.task {
            Task::Worker(_) => ProcessRole::Worker,
            Task::Server(_) => ProcessRole::Server,
        }
    }

    /// The place of this worker.
    ///
    /// # Errors
    /// [`Error::Config`] if it is a parameter server.
    pub(super) fn worker(&self) -> Result<Launch> {
        match self.task {
            Task::Worker(launch) => Ok(launch),
            Task::Server(index) => Err(Error::Config {
                knob: VARIABLE.to_owned(),
                problem: format!("has the task ps {index}, which is a server and trains nothing"),
                hint: "start `gradlane server` for it".to_owned(),
            }),
        }
    }

    /// The names of the other knobs that it sets besides the place of a worker, and their values.
    pub(super) fn values(&self) -> Vec<(&'static str, String)> {
        let mut values = vec![
            ("role", self.role().name().to_owned()),
            ("job", self.job.clone()),
            ("servers", self.servers.to_string()),
        ];
        if let Task::Server(index) = self.task {
            values.push(("server_index", index.to_string()));
        }
        values
    }
}

/// The addresses of all tasks, by the position of the kind in [`KINDS`] and by index. Indices may have gaps; ranks close them.
struct Cluster {
    tasks: BTreeMap<(usize, u64), String>,
}

impl Cluster {
    fn read(value: &Value) -> Result<Self> {
        let mut tasks = BTreeMap::new();
        for (place, kind) in KINDS.into_iter().enumerate() {
            let malformed = || bad(format!("has {} as {kind} of its cluster, where addresses belong", value[kind]));
            let listed: Vec<(u64, &Value)> = match &value[kind] {
                Value::Null => Vec::new(),
                Value::Array(addresses) => (0..).zip(addresses).collect(),
                Value::Object(addresses) => addresses
                    .iter()
                    .map(|(index, address)| Ok((index.parse().map_err(|_| malformed())?, address)))
                    .collect::<Result<_>>()?,
                Value::Bool(_) | Value::Number(_) | Value::String(_) => return Err(malformed()),
            };
            for (index, address) in listed {
                tasks.insert((place, index), address.as_str().ok_or_else(malformed)?.to_owned());
            }
        }
        Ok(Self { tasks })
    }

    /// The task that `value` describes.
    fn task(&self, value: &Value) -> Result<Task> {
        let kind = value["type"].as_str().unwrap_or_default();
        if kind == "evaluator" {
            return Err(Error::Config {
                knob: VARIABLE.to_owned(),
                problem: "has the task evaluator, which takes no part in the job".to_owned(),
                hint: "do not call gradlane there, or unset TF_CONFIG to evaluate in a job of one process".to_owned(),
            });
        }
        let place = KINDS.into_iter().position(|known| known == kind).zip(value["index"].as_u64());
        let Some(place) = place.filter(|place| self.tasks.contains_key(place)) else {
            return Err(Error::Config {
                knob: VARIABLE.to_owned(),
                problem: format!("has the task {value}, which its cluster does not have"),
                hint: format!("give one of {}", self.names().join(", ")),
            });
        };
        if kind == "ps" {
            return Ok(Task::Server(count(self.tasks.range((place.0, 0)..place))));
        }
        let hosts: Vec<&str> = self.tasks.iter().filter(|((place, _), _)| KINDS[*place] != "ps").map(host).collect();
        let rank = self.tasks.range(..place).count();
        Ok(Task::Worker(Launch::among(Launcher::TfConfig, &hosts, rank)))
    }

    /// A name made from all tasks. It does not depend on their order or spacing in the text.
    fn name(&self) -> String {
        let lines: Vec<String> = self
            .names()
            .into_iter()
            .zip(self.tasks.values())
            .map(|(name, address)| format!("{name} {address}\n"))
            .collect();
        format!("tf_{:016x}", xxh3_64(lines.concat().as_bytes()))
    }

    fn names(&self) -> Vec<String> {
        self.tasks.keys().map(|(place, index)| format!("{} {index}", KINDS[*place])).collect()
    }

    fn count(&self, kind: &str) -> u32 {
        count(self.tasks.keys().filter(|(place, _)| KINDS[*place] == kind))
    }
}

fn host<'a>((_, address): (&(usize, u64), &'a String)) -> &'a str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

fn count(of: impl IntoIterator) -> u32 {
    u32::try_from(of.into_iter().count()).expect("an environment variable is not as long as that")
}

fn bad(problem: String) -> Error {
    Error::Config {
        knob: VARIABLE.to_owned(),
        problem,
        hint:
            r#"write {"cluster": {"worker": ["host:port", ...], "ps": [...]}, "task": {"type": "worker", "index": 0}}"#
                .to_owned(),
    }
}

#[cfg(test)]
mod tests;
