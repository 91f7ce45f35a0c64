//! `gradlane token new`: a further join string for a job that runs, for one role.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use gradlane_core::config::Config;
use gradlane_core::identity::Authority;
use gradlane_core::types::Role;
use gradlane_core::{Error, Result};

use super::roles::announcement;
use crate::launch::rendezvous;
use crate::private_file;

/// What a token is good for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Good {
    pub(super) role: Role,
    pub(super) uses: u32,
    pub(super) lasts: Duration,
}

/// Makes a token for the job that `config` names, and says where it is: in the join file, or below the job's state directory.
///
/// # Errors
/// Why there is no such job, or why it takes no tokens.
pub(super) fn make(config: &Config, good: Good) -> Result<()> {
    let (state_dir, job) = (rendezvous::state_dir(config)?, rendezvous::job(config));
    let join = rendezvous::find(state_dir, &job, Duration::ZERO)?;
    let directory = rendezvous::job_dir(state_dir, &job)?;
    let token = Authority::invite(&directory, &job, &join, good.role, good.uses, good.lasts)?;
    let path = match &config.join_file {
        Some(path) => path.clone(),
        None => beside(&directory, good.role)?,
    };
    private_file::write(&path, format!("{token}\n"))?;
    let line = announcement(&token, Some(&path), std::io::stdout().is_terminal())?;
    // A reader that has closed the pipe is no failure.
    let _ = writeln!(std::io::stdout(), "{line}");
    Ok(())
}

/// A path in the directory of tokens that is free.
fn beside(directory: &std::path::Path, role: Role) -> Result<PathBuf> {
    let paths = (1..=1_000).map(|number| directory.join("tokens").join(format!("{role}-{number}.join")));
    paths.into_iter().find(|path| !path.exists()).ok_or_else(|| Error::Exhausted {
        what: format!("tokens in {}", directory.display()),
        limit: "1000".to_owned(),
        hint: "name a file with --join-file".to_owned(),
    })
}
