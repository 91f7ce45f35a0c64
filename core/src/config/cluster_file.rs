//! The static cluster file. It lists a job with all its addresses, for hosts where no discovery is needed.
//!
//! ```toml
//! [cluster]
//! coordinator = "n0:7000"
//! [cluster.server]
//! 0 = "n1:7001"
//! [cluster.worker]
//! 0 = "n2"
//! 2 = "n3"
//! ```
//!
//! The same file serves all processes: `role`, with `rank` or `server_index`, selects the task. Indices may have gaps, for example if a
//! host was taken out. The ranks and server indices of the job close the gaps and keep the order. Values from this file override a
//! launcher. Arguments, environment and configuration file override this file, except for the two indices, which it translates.

use std::collections::BTreeMap;

use super::kinds::{Address, Kind, ProcessRole};
use super::knobs::Config;
use super::launcher::{Launch, Launcher};
use super::load::File;
use crate::error::{Error, Result};

/// A job from a cluster file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ClusterFile {
    path: String,
    /// `host:port`.
    coordinator: String,
    /// `host:port` by index.
    servers: BTreeMap<u32, String>,
    /// Hosts by index.
    workers: BTreeMap<u32, String>,
}

impl ClusterFile {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`Error::Config`] naming the file and the entry that is missing, unknown or malformed.
    pub(super) fn parse(file: &File) -> Result<Self> {
        let bad = |entry: &str, problem: &str| malformed(&file.path, entry, problem);
        let text: toml::Table = file.text.parse().map_err(|cause: toml::de::Error| bad("syntax", cause.message()))?;
        if let Some(other) = text.keys().find(|name| *name != "cluster") {
            return Err(bad(other, "is unknown; all stands below [cluster]"));
        }
        let cluster =
            text.get("cluster").and_then(toml::Value::as_table).ok_or_else(|| bad("cluster", "is missing"))?;
        if let Some(other) = cluster.keys().find(|name| !["coordinator", "server", "worker"].contains(&name.as_str())) {
            return Err(bad(other, "is no job; the jobs are coordinator, server, worker"));
        }
        let coordinator = cluster.get("coordinator").ok_or_else(|| bad("coordinator", "is missing"))?;
        let tasks = |job: &str, with_port: bool| {
            let none = toml::Table::new();
            let table = match cluster.get(job) {
                Some(value) => value.as_table().ok_or_else(|| bad(job, "is no table of addresses by index"))?,
                None => &none,
            };
            let task = |(index, address): (&String, &toml::Value)| {
                let entry = format!("{job}.{index}");
                let number = index.parse().map_err(|_| bad(&entry, "is no index"))?;
                address_of(address, with_port).map(|address| (number, address)).map_err(|problem| bad(&entry, &problem))
            };
            table.iter().map(task).collect::<Result<BTreeMap<u32, String>>>()
        };
        Ok(Self {
            path: file.path.clone(),
            coordinator: address_of(coordinator, true).map_err(|problem| bad("coordinator", &problem))?,
            servers: tasks("server", true)?,
            workers: tasks("worker", false)?,
        })
    }

    /// The names of the knobs that the file sets for the process with these settings, and their values.
    ///
    /// # Errors
    /// [`Error::Config`] for a task that is not in the file. The error lists the tasks that are.
    pub(super) fn values(&self, config: &Config) -> Result<Vec<(&'static str, String)>> {
        let (host, port) = split(&self.coordinator);
        let mut values = vec![
            ("coordinator_host", host.to_owned()),
            ("coordinator_port", port.to_owned()),
            ("size", self.workers.len().to_string()),
            ("servers", self.servers.len().to_string()),
        ];
        match (config.role, config.rank, config.server_index) {
            (ProcessRole::Worker, Some(index), _) => {
                let rank = self.position("worker", &self.workers, "rank", index)?;
                let hosts: Vec<&str> = self.workers.values().map(String::as_str).collect();
                let place = Launch::among(Launcher::Gradlane, &hosts, rank);
                values.extend(place.values().map(|(name, value)| (name, value.to_string())));
            }
            (ProcessRole::Worker, None, _) => {
                return Err(self.no_task("rank", "is not given".to_owned(), "worker", &self.workers));
            }
            (ProcessRole::Server, _, Some(index)) => {
                let position = self.position("server", &self.servers, "server_index", index)?;
                let (host, port) = split(&self.servers[&index]);
                values.push(("server_index", position.to_string()));
                values.push(("bind", format!("0.0.0.0:{port}")));
                values.push(("advertise", host.to_owned()));
            }
            // A server that asks for no index gets any index. A coordinator has none.
            (ProcessRole::Server, _, None) | (ProcessRole::Coordinator | ProcessRole::Both, _, _) => {}
        }
        Ok(values)
    }

    /// The position of `index` among the tasks of a job.
    fn position(&self, job: &str, tasks: &BTreeMap<u32, String>, knob: &str, index: u32) -> Result<usize> {
        let position = tasks.keys().position(|known| *known == index);
        position.ok_or_else(|| self.no_task(knob, format!("is {index}, which is no {job} of the file"), job, tasks))
    }

    fn no_task(&self, knob: &str, problem: String, job: &str, tasks: &BTreeMap<u32, String>) -> Error {
        let known: Vec<String> = tasks.keys().map(u32::to_string).collect();
        Error::Config {
            knob: format!("{knob} beside the cluster file {}", self.path),
            problem,
            hint: match known.is_empty() {
                true => format!("it has no {job}; add [cluster.{job}]"),
                false => format!("give one of {}", known.join(", ")),
            },
        }
    }
}

fn address_of(value: &toml::Value, with_port: bool) -> std::result::Result<String, String> {
    let text = value.as_str().ok_or("is no text")?.trim();
    match with_port {
        true => Address::parse(text),
        false if text.is_empty() => Err("is empty".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn split(address: &str) -> (&str, &str) {
    address.rsplit_once(':').expect("it was parsed as host:port")
}

fn malformed(path: &str, entry: &str, problem: &str) -> Error {
    Error::Config {
        knob: format!("{entry} in the cluster file {path}"),
        problem: problem.to_owned(),
        hint: "write [cluster] with coordinator = \"host:port\", and [cluster.server] and [cluster.worker] with addresses by index"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests;
