//! The settings of a command line: `-o name=value`, and flags that are short names.

use std::collections::BTreeMap;

use clap::Args;
use gradlane_core::config::{Config, Origin, ProcessRole};
use gradlane_core::runtime::process;
use gradlane_core::{Error, Result};

use crate::log;

/// Every flag except `-o` is the setting with its name.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct Settings {
    /// Any setting by its name; `gradlane config` lists them. May be repeated
    #[arg(short = 'o', long = "option", value_name = "NAME=VALUE")]
    options: Vec<String>,
    /// TOML file with settings
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// Number of workers
    #[arg(short = 'n', long, visible_alias = "np", value_name = "N")]
    pub(super) workers: Option<String>,
    /// Number of servers; with 0, the launcher or the first worker embeds one
    #[arg(short = 's', long, value_name = "N")]
    pub(super) servers: Option<String>,
    /// The fewest and the most workers of an elastic job, which goes on without lost workers and takes in others
    #[arg(long, value_name = "MIN:MAX")]
    elastic: Option<String>,
    /// Name of the job
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Join string; others can see it in the list of processes, so prefer GRADLANE_JOIN or --join-file
    #[arg(long, value_name = "STRING")]
    join: Option<String>,
    /// File with the join string; a coordinator writes it, readable by its user alone
    #[arg(long, value_name = "FILE")]
    join_file: Option<String>,
    /// Where to listen
    #[arg(long, value_name = "HOST:PORT")]
    bind: Option<String>,
    /// Host under which others reach this process
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,
    /// Where keys and join strings are kept
    #[arg(long, value_name = "DIR")]
    state_dir: Option<String>,
    /// Where to show metrics over HTTP: the first port of this host's processes, such as 127.0.0.1:9400
    #[arg(long, value_name = "HOST:PORT")]
    metrics_bind: Option<String>,
    /// A coordinator takes up the job of its last start again, with the same join string
    #[arg(long)]
    resume: bool,
    /// Log level or filter
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

impl Settings {
    /// The given settings by name.
    pub(super) fn arguments(&self) -> Result<BTreeMap<String, String>> {
        let flags = [
            ("config", &self.config),
            ("size", &self.workers),
            ("servers", &self.servers),
            ("elastic", &self.elastic),
            ("job", &self.job),
            ("join", &self.join),
            ("join_file", &self.join_file),
            ("bind", &self.bind),
            ("advertise", &self.advertise),
            ("state_dir", &self.state_dir),
            ("metrics_bind", &self.metrics_bind),
            ("resume", &self.resume.then(|| "true".to_owned())),
            ("log", &self.log),
        ];
        let given = flags.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?)));
        let mut arguments: BTreeMap<String, String> = given.collect();
        for option in &self.options {
            let Some((name, value)) = option.split_once('=') else {
                return Err(Error::Config {
                    knob: option.clone(),
                    problem: "has no value".to_owned(),
                    hint: "write -o name=value".to_owned(),
                });
            };
            let name = name.trim().replace('-', "_");
            if arguments.insert(name.clone(), value.to_owned()).is_some() {
                return Err(Error::Config {
                    knob: name,
                    problem: "is given twice".to_owned(),
                    hint: "give each setting once".to_owned(),
                });
            }
        }
        Ok(arguments)
    }

    /// Loads the settings of this process for `role`, whatever role the environment names, and starts its log.
    pub(super) fn load(&self, role: Option<ProcessRole>) -> Result<Config> {
        load(self.arguments()?, role)
    }

    /// The role that the settings name; a server if they name none.
    pub(super) fn role(&self) -> Result<ProcessRole> {
        let arguments = self.arguments()?;
        Ok(match Config::from_process(&arguments) {
            Ok((config, _)) if *config.origin("role") != Origin::Default => config.role,
            // Errors are reported when the settings are loaded for that role.
            Ok(_) | Err(_) => ProcessRole::Server,
        })
    }
}

/// Loads these settings of this process for `role`, whatever role the environment names, and starts its log.
pub(super) fn load(mut arguments: BTreeMap<String, String>, role: Option<ProcessRole>) -> Result<Config> {
    if let Some(role) = role {
        arguments.insert("role".to_owned(), role.name().to_owned());
    }
    let (config, warnings) = Config::from_process(&arguments)?;
    log::start(&config)?;
    let warnings = warnings.iter().map(ToString::to_string);
    for warning in warnings.chain(process::why_machine_is_unknown(&config)) {
        tracing::warn!("{warning}");
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_is_a_knob() {
        let every = Settings {
            options: Vec::new(),
            config: None,
            workers: Some("2".to_owned()),
            servers: Some("1".to_owned()),
            elastic: Some("1:4".to_owned()),
            job: Some("night".to_owned()),
            join: None,
            join_file: Some("/tmp/join".to_owned()),
            bind: Some("127.0.0.1:0".to_owned()),
            advertise: Some("n1".to_owned()),
            state_dir: Some("/tmp/state".to_owned()),
            metrics_bind: Some("127.0.0.1:0".to_owned()),
            resume: true,
            log: Some("info".to_owned()),
        };
        let mut arguments = every.arguments().unwrap();
        arguments.insert("role".to_owned(), "coordinator".to_owned());
        let (config, _) = Config::load(&arguments, [], None).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((config.size, config.servers, config.job.as_str()), (Some(2), 1, "night"));
    }
}
