//! Enrols a process with the coordinator whose join string it has found, and looks again where it found it.
//!
//! A join string in a file may be that of an earlier coordinator. On its own host a process can tell whether the writer of the file still
//! runs; on other hosts it cannot. So it reads the file again when the coordinator does not answer, or is another one, and takes what is
//! newer. Otherwise processes would dial a coordinator that was killed until `join_timeout`.

use std::path::PathBuf;
use std::time::Duration;

use gradlane_core::config::Config;
use gradlane_core::identity::Credentials;
use gradlane_core::runtime::Clock;
use gradlane_core::types::{JoinString, Role, Time};
use gradlane_core::{Error, Result};

use super::rendezvous;
use super::waiting::Waiting;
use crate::site;

/// A join string, and where it was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The join string.
    pub join: JoinString,
    /// Where a newer one would be.
    pub place: Place,
}

/// Where a process finds the join string of its job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// It was given, and does not change.
    Given,
    /// A file that the user has named.
    File(PathBuf),
    /// The file that a coordinator of this user has published.
    Published {
        /// The directory of the user's jobs.
        state_dir: PathBuf,
        /// The job's name.
        job: String,
    },
}

impl Found {
    /// The join string of a process: from its settings, else from its join file, else from the user's coordinator of its job. Waits up to
    /// `patience` for the file.
    ///
    /// # Errors
    /// As [`rendezvous::find`] and [`rendezvous::read_join_file`]; [`Error::Config`] without a directory to look into.
    pub fn by_settings(config: &Config, patience: Duration) -> Result<Self> {
        let place = match (&config.join, &config.join_file) {
            (Some(join), _) => return Ok(join.clone().into()),
            (None, Some(path)) => Place::File(path.clone()),
            (None, None) => {
                Place::Published { state_dir: rendezvous::state_dir(config)?.to_owned(), job: rendezvous::job(config) }
            }
        };
        let _waiting = Waiting::start(config.stall_warn, place.lacks());
        Self::at(place, patience)
    }

    /// Waits up to `patience` for the join string at `place`.
    ///
    /// # Errors
    /// As [`by_settings`](Self::by_settings); [`Error::Internal`] for [`Place::Given`], where nothing can be found.
    pub fn at(place: Place, patience: Duration) -> Result<Self> {
        let join = match &place {
            Place::Given => {
                return Err(Error::Internal { what: "a join string that was given is looked for".to_owned() });
            }
            Place::File(path) => rendezvous::read_join_file(path, patience)?,
            Place::Published { state_dir, job } => rendezvous::find(state_dir, job, patience)?,
        };
        Ok(Self { join, place })
    }

    /// Makes a key and has the coordinator certify it as `role`, within `patience`. Returns the join string that was good, too. Where the
    /// settings have certificates of the site, these prove who both sides are.
    ///
    /// # Errors
    /// As [`Credentials::enroll`]. A join string that is not that of the coordinator which answers is refused only after a short while in
    /// which no newer one was found. It is tried once.
    pub fn enrol(self, config: &Config, role: Role, patience: Duration) -> Result<(JoinString, Credentials)> {
        let site = site::by_settings(config)?;
        let address = &self.join.address;
        let what = format!(
            "the coordinator at {address} has not let it in; check that the coordinator runs, and that no firewall drops UDP to that address"
        );
        let _waiting = Waiting::start(config.stall_warn, what);
        self.try_each(patience, |join, patience| Credentials::enroll_by(site.as_ref(), join, role, patience))
    }

    /// Calls `attempt` with the newest join string until it succeeds.
    fn try_each<T>(
        self,
        patience: Duration,
        mut attempt: impl FnMut(&JoinString, Duration) -> Result<T>,
    ) -> Result<(JoinString, T)> {
        let Self { mut join, place } = self;
        if place == Place::Given {
            let outcome = attempt(&join, patience)?;
            return Ok((join, outcome));
        }
        let clock = Clock::start();
        let elapsed = || clock.now().since(Time::ZERO);
        loop {
            let left = patience.saturating_sub(elapsed());
            let error = match attempt(&join, left.min(ATTEMPT)) {
                Ok(outcome) => return Ok((join, outcome)),
                Err(error) => error,
            };
            let (waits_until, asks_again) = match &error {
                // Another coordinator answers, whose own join string may be about to come. It would refuse this one again.
                Error::Auth { .. } => (patience.min(elapsed() + REFUSED), false),
                // Nobody answers, or there is no place yet.
                Error::Timeout { .. } => (patience, true),
                error if error.retryable() => (patience, true),
                _ => return Err(error),
            };
            loop {
                if let Some(newer) = newer(&place, &join)? {
                    tracing::info!(former = join.address, address = newer.address, "another coordinator leads the job");
                    join = newer;
                    break;
                }
                if elapsed() >= waits_until {
                    return Err(told_with_place(error, &place));
                }
                let _ = crossbeam_channel::after(PAUSE).recv();
                if asks_again {
                    break;
                }
            }
        }
    }
}

impl Place {
    /// What a process waits for if it finds no join string here.
    pub fn lacks(&self) -> String {
        match self {
            Self::Given => "it has a join string".to_owned(),
            Self::File(path) => format!("the join file {} is not there; start the coordinator", path.display()),
            Self::Published { state_dir, job } => {
                format!(
                    "no coordinator of job {job} has published its join string in {}; start it",
                    state_dir.display()
                )
            }
        }
    }
}

impl From<JoinString> for Found {
    /// One that was given.
    fn from(join: JoinString) -> Self {
        Self { join, place: Place::Given }
    }
}

/// The join string that is now at `place`, if it is another one.
fn newer(place: &Place, join: &JoinString) -> Result<Option<JoinString>> {
    match Found::at(place.clone(), Duration::ZERO) {
        Ok(found) => Ok(Some(found.join).filter(|newer| newer != join)),
        // It was removed: the next coordinator may write it.
        Err(Error::Unavailable { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Says where an address came from at which nobody answers.
fn told_with_place(error: Error, place: &Place) -> Error {
    let origin = match place {
        Place::Given => return error,
        Place::File(path) => path.display().to_string(),
        Place::Published { state_dir, job } => format!("{} for job {job}", state_dir.display()),
    };
    match error {
        Error::Unavailable { what, cause } => Error::Unavailable {
            what,
            cause: format!(
                "{cause}; its join string is from {origin}, where no newer one came: start the coordinator again"
            ),
        },
        Error::Timeout { what, waited } => {
            Error::Timeout { what: format!("{what} (by the join string from {origin})"), waited }
        }
        other => other,
    }
}

/// After so long without an answer the file is read again.
const ATTEMPT: Duration = Duration::from_secs(3);
/// How long a file may lag behind the coordinator that has taken the address of a former one.
const REFUSED: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::private_file;

    #[test]
    fn a_newer_file_is_read_when_the_coordinator_of_an_older_one_does_not_answer() {
        for silence in [unavailable(), Error::Timeout { what: "enrolling".to_owned(), waited: ATTEMPT }] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("join-file");
            write(&path, &join(1));
            let found = Found::at(Place::File(path.clone()), Duration::ZERO).unwrap();
            let mut dialled = Vec::new();
            let (join_of_job, ()) = found
                .try_each(HOUR, |tried, slice| {
                    assert!(slice <= ATTEMPT, "not for an hour");
                    dialled.push(tried.clone());
                    if *tried == join(2) {
                        return Ok(());
                    }
                    write(&path, &join(2));
                    Err(silence.clone())
                })
                .unwrap();
            assert_eq!((join_of_job, dialled), (join(2), vec![join(1), join(2)]));
        }
    }

    #[test]
    fn a_file_that_is_removed_is_waited_for_and_the_end_says_where_it_was_looked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("join-file");
        write(&path, &join(1));
        let found = Found::at(Place::File(path.clone()), Duration::ZERO).unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = found.try_each(Duration::ZERO, |_, _| Err::<(), _>(unavailable())).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }));
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }

    #[test]
    fn a_coordinator_that_is_another_one_is_refused_unless_its_join_string_comes_soon() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("join-file");
        let refused = Error::Auth { problem: "another authority".to_owned(), hint: String::new() };
        write(&path, &join(1));
        let found = || Found::at(Place::File(path.clone()), Duration::ZERO).unwrap();
        let error = found().try_each(Duration::ZERO, |_, _| Err::<(), _>(refused.clone())).unwrap_err();
        assert_eq!(error, refused);
        let outcome = found().try_each(HOUR, |tried, _| {
            if *tried == join(2) {
                return Ok(());
            }
            write(&path, &join(2));
            Err(refused.clone())
        });
        assert_eq!(outcome, Ok((join(2), ())));
    }

    #[test]
    fn a_join_string_that_is_refused_is_tried_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("join-file");
        write(&path, &join(1));
        let refused = Error::Auth { problem: "an unknown secret".to_owned(), hint: String::new() };
        let spent = Error::Token { problem: "is used up".to_owned(), hint: String::new() };
        for (error, patience) in [(refused, PAUSE * 2), (spent, HOUR)] {
            let found = Found::at(Place::File(path.clone()), Duration::ZERO).unwrap();
            let mut attempts = 0;
            let outcome = found.try_each(patience, |_, _| {
                attempts += 1;
                Err::<(), _>(error.clone())
            });
            assert_eq!((outcome, attempts), (Err(error), 1));
        }
    }

    #[test]
    fn a_good_join_string_waits_for_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("join-file");
        write(&path, &join(1));
        let found = Found::at(Place::File(path), Duration::ZERO).unwrap();
        let full = || Error::Exhausted { what: "places".to_owned(), limit: "64".to_owned(), hint: String::new() };
        let mut refusals = vec![full(), full(), full()];
        let outcome = found.try_each(HOUR, |_, _| refusals.pop().map_or(Ok(()), Err));
        assert_eq!(outcome, Ok((join(1), ())));
    }

    #[test]
    fn what_was_given_is_tried_once_and_other_errors_end_it() {
        let mut patiences = Vec::new();
        let given = Found::from(join(1)).try_each(HOUR, |_, patience| {
            patiences.push(patience);
            Err::<(), _>(unavailable())
        });
        assert_eq!((given, patiences), (Err(unavailable()), vec![HOUR]));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("join-file");
        write(&path, &join(1));
        let complete = Error::FailedPrecondition { what: "the job is complete".to_owned(), hint: String::new() };
        let found = Found::at(Place::File(path), Duration::ZERO).unwrap();
        assert_eq!(found.try_each(HOUR, |_, _| Err::<(), _>(complete.clone())), Err(complete));
    }

    #[test]
    fn what_was_given_goes_before_the_file_and_the_file_before_the_search() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("join-file");
        write(&file, &join(1));
        let config = Config { join_file: Some(file.clone()), ..Config::default() };
        let of_file = Found { join: join(1), place: Place::File(file) };
        assert_eq!(Found::by_settings(&config, Duration::ZERO), Ok(of_file));
        let config = Config { join: Some(join(9)), ..config };
        assert_eq!(Found::by_settings(&config, Duration::ZERO), Ok(join(9).into()));
        let nowhere = Config { state_dir: None, ..Config::default() };
        assert!(matches!(Found::by_settings(&nowhere, Duration::ZERO), Err(Error::Config { .. })));
    }

    const HOUR: Duration = Duration::from_secs(3600);

    fn write(path: &Path, join: &JoinString) {
        private_file::write(path, format!("{join}\n")).unwrap();
    }

    fn unavailable() -> Error {
        Error::Unavailable { what: "the coordinator".to_owned(), cause: "nothing answers".to_owned() }
    }

    fn join(number: u8) -> JoinString {
        JoinString { address: "127.0.0.1:9000".to_owned(), ca_hash: [number; 32], secret: [2; 16] }
    }
}
