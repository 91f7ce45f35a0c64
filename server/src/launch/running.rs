//! Which jobs of this user run on this host.
//!
//! A process that leads a job keeps a file for it in `<state_dir>/running`, readable by the user alone, with join strings and the process.
//! So `gradlane status` finds a job that was started in any way: by `gradlane run`, by `gradlane coordinator`, or by a first worker that
//! embeds the coordinator. A file whose process was killed is removed by the next process that looks.

use std::fs;
use std::path::{Path, PathBuf};

use gradlane_core::config::Config;
use gradlane_core::local::private_file::{self, IfOpen};
use gradlane_core::types::JoinString;

use super::left_behind;
use super::rendezvous;
use super::writer_process::WriterProcess;
use crate::coordinator::driver::CoordinatorNode;

/// A job that a process of this user leads on this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Running {
    /// The name of the job. Several jobs may have one name.
    pub job: String,
    /// Lets an observer in.
    pub join: JoinString,
    /// Lets an operator in, who gives orders.
    pub operators: JoinString,
    /// The process that leads it.
    pub pid: u32,
    /// Its command line; empty if it cannot be read.
    pub command: String,
}

/// The file of a job that this process leads. Dropping it removes the file.
#[derive(Debug)]
pub struct Listed(PathBuf);

impl Listed {
    /// Lists the job that this process leads from now on. Nothing if there is no directory for it, or if it cannot be written: then the job
    /// runs all the same, and `gradlane status` and `gradlane ctl` need a join string.
    pub fn here(config: &Config, coordinator: &CoordinatorNode) -> Option<Self> {
        Self::with(config, coordinator.join_string(), &coordinator.operators_string())
    }

    fn with(config: &Config, join: &JoinString, operators: &JoinString) -> Option<Self> {
        // Settings that were not loaded, as in tests, still hold the `~` of the default.
        let state_dir = config.state_dir.as_deref().filter(|path| !path.starts_with("~"))?;
        let directory = directory(state_dir);
        left_behind::sweep_running(&directory);
        let writer = WriterProcess::this();
        // The port tells the jobs of one process apart.
        let port = join.address.rsplit(':').next().unwrap_or_default();
        let name = format!("{}.{port}", writer.pid);
        let content = format!("{}{}\n{operators}\n", rendezvous::content(join, &writer), config.job);
        match private_file::write_in(&directory, IfOpen::Shut, &name, &content) {
            Ok(()) => Some(Self(directory.join(name))),
            Err(error) => {
                tracing::debug!(%error, "gradlane status will not find this job by itself");
                None
            }
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The jobs of this user on this host, the oldest process first. Removes what processes of this host left that were killed.
pub fn jobs(state_dir: &Path) -> Vec<Running> {
    let directory = directory(state_dir);
    left_behind::sweep_running(&directory);
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut jobs: Vec<(u64, Running)> = entries.filter_map(|entry| read(&entry.path())).collect();
    jobs.sort_by_key(|(start, running)| (*start, running.pid));
    jobs.into_iter().map(|(_, running)| running).collect()
}

/// The job of one file, and when its process started; nothing if that does not run here.
fn read(path: &Path) -> Option<(u64, Running)> {
    let content = match rendezvous::read_private(path) {
        Ok(content) => content?,
        Err(error) => {
            tracing::warn!(%error, "a file of a running job is not read");
            return None;
        }
    };
    let writer = rendezvous::writer(&content)?;
    if writer.is_gone() || !writer.is_seen_from_here() {
        return None;
    }
    let join = rendezvous::published(&content).ok()?;
    let job = content.lines().nth(2)?.to_owned();
    let operators = content.lines().nth(3)?.parse().ok()?;
    let words = fs::read(format!("/proc/{}/cmdline", writer.pid)).unwrap_or_default();
    let words: Vec<_> = words.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let command = words.join(" ").trim_end().to_owned();
    Some((writer.start, Running { job, join, operators, pid: writer.pid, command }))
}

fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("running")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_listed_as_long_as_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let config =
            |job: &str| Config { state_dir: Some(dir.path().to_owned()), job: job.to_owned(), ..Config::default() };
        let night = Listed::with(&config("night"), &join(1), &join(3)).unwrap();
        let day = Listed::with(&config("day"), &join(2), &join(4)).unwrap();
        let mut found = jobs(dir.path());
        found.sort_by(|one, other| one.job.cmp(&other.job));
        assert_eq!(found.iter().map(|running| &*running.job).collect::<Vec<_>>(), ["day", "night"]);
        assert_eq!((found[0].join.clone(), found[0].operators.clone()), (join(2), join(4)));
        assert_eq!(found[0].pid, std::process::id());
        assert!(!found[0].command.is_empty());
        drop((night, day));
        assert_eq!(jobs(dir.path()), []);
    }

    #[test]
    fn what_a_killed_process_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { state_dir: Some(dir.path().to_owned()), ..Config::default() };
        let listed = Listed::with(&config, &join(1), &join(2));
        let path = listed.as_ref().unwrap().0.clone();
        let dead = WriterProcess { start: WriterProcess::this().start + 1, ..WriterProcess::this() };
        private_file::write(&path, rendezvous::content(&join(1), &dead) + "default\n" + &join(2).to_string() + "\n")
            .unwrap();
        assert_eq!(jobs(dir.path()), []);
        assert!(!path.exists());
    }

    #[test]
    fn a_job_without_a_directory_runs_all_the_same() {
        assert!(Listed::with(&Config::default(), &join(1), &join(2)).is_none());
        let file = tempfile::NamedTempFile::new().unwrap();
        let config = Config { state_dir: Some(file.path().to_owned()), ..Config::default() };
        assert!(Listed::with(&config, &join(1), &join(2)).is_none());
        assert_eq!(jobs(file.path()), []);
    }

    fn join(secret: u8) -> JoinString {
        JoinString { address: format!("127.0.0.1:900{secret}"), ca_hash: [1; 32], secret: [secret; 16] }
    }
}
