//! Passes the join string from a coordinator to processes that were given only its `host:port`, through a file of the user.
//!
//! Launch scripts for `DMLC_*` variables hold no secret that could prove who may join. But such processes share the user's home directory:
//! the coordinator writes its join string to `<state_dir>/jobs/<job>/join`, readable by the user alone, and the others wait for it. The
//! caller decides whether a process needs this, and the job's name.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gradlane_core::config::{Config, Origin};
use gradlane_core::local::private_file::{self, IfOpen};
use gradlane_core::runtime::Clock;
use gradlane_core::types::Time;
use gradlane_core::types::join::JoinString;
use gradlane_core::{Error, Result};

use super::left_behind::sweep_jobs;
use super::writer_process::WriterProcess;
use crate::os;
use crate::trusted_file::{self, LINES_BYTES_MAX, Purpose};

/// A published join string. Dropping it removes the file.
#[derive(Debug)]
pub struct Published {
    path: PathBuf,
    content: String,
}

impl Published {
    /// The file that holds it.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // A later coordinator of the same job may have replaced the file.
        if fs::read_to_string(&self.path).is_ok_and(|content| content == self.content) {
            let _ = fs::remove_file(&self.path);
            // Stays if the coordinator keeps more there, such as the number of its term.
            let _ = self.path.parent().map(fs::remove_dir);
        }
    }
}

/// Checks that no other process of this host leads `job`. Processes would find the wrong one of two coordinators with one name. Nothing
/// is known about processes of other hosts.
///
/// # Errors
/// [`Error::FailedPrecondition`] if one does; [`Error::Auth`] for a file that others could have written.
pub fn check_free(state_dir: &Path, job: &str) -> Result<()> {
    let content = read_private(&job_dir(state_dir, job)?.join(JOIN))?.unwrap_or_default();
    match writer(&content) {
        Some(writer) if writer.lives_beside_this() => Err(Error::FailedPrecondition {
            what: format!("process {} of this host leads job {job} already", writer.pid),
            hint: "give this job another name (--job or GRADLANE_JOB), or end the other one".to_owned(),
        }),
        Some(_) | None => Ok(()),
    }
}

/// Publishes `join` for the user's processes that look for `job`.
///
/// # Errors
/// As [`check_free`]; [`Error::Config`] for a job that cannot be a file name, [`Error::Io`] if the directory cannot be written,
/// [`Error::Auth`] if it belongs to another user.
pub fn publish(state_dir: &Path, job: &str, join: &JoinString) -> Result<Published> {
    check_free(state_dir, job)?;
    let directory = job_dir(state_dir, job)?;
    sweep_jobs(&state_dir.join(JOBS));
    let path = directory.join(JOIN);
    let content = content(join, &WriterProcess::this());
    // The end of an earlier job of this name may remove its folder just now, and another start may sweep.
    private_file::write_in(&directory, IfOpen::Shut, JOIN, &content)?;
    Ok(Published { path, content })
}

/// Waits until the coordinator of `job` has published its join string.
///
/// Ignores a file that a killed coordinator of this host left behind.
///
/// # Errors
/// [`Error::Auth`] for a file that others could read or have written, [`Error::Config`] for a job that cannot be a file name,
/// [`Error::Unavailable`] after `patience`.
pub fn find(state_dir: &Path, job: &str, patience: Duration) -> Result<JoinString> {
    let path = job_dir(state_dir, job)?.join(JOIN);
    let mut dead = None;
    let found = within(patience, || {
        let Some(content) = read_private(&path)? else { return Ok(None) };
        match writer(&content) {
            Some(writer) if writer.is_gone() => {
                dead = Some(writer.pid);
                Ok(None)
            }
            Some(_) | None => published(&content).map(Some),
        }
    })?;
    found.ok_or_else(|| {
        let found = dead.map_or_else(|| "there is none".to_owned(), |pid| format!("its coordinator (pid {pid}) has died"));
        Error::Unavailable {
            what: format!("the coordinator of job {job}"),
            cause: format!(
                "waited {:.1} s for its join string in {}, but {found}; start the coordinator, or, without a home directory in \
                 common, give every process its join string in GRADLANE_JOIN or GRADLANE_JOIN_FILE",
                patience.as_secs_f64(),
                path.display()
            ),
        }
    })
}

/// The job of this process: the name from its settings, else a name made of the coordinator's `host:port`, which is the same for all
/// processes of the job.
pub fn job(config: &Config) -> String {
    match (&config.coordinator_host, config.coordinator_port) {
        (Some(host), Some(port)) if *config.origin("job") == Origin::Default => {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
            let host: String = host.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
            format!("{host}_{port}")
        }
        (Some(_) | None, _) => config.job.clone(),
    }
}

/// The directory for the state of this user's jobs.
///
/// # Errors
/// [`Error::Config`] if it is not known.
pub fn state_dir(config: &Config) -> Result<&Path> {
    config.state_dir.as_deref().ok_or_else(|| Error::Config {
        knob: "state_dir".to_owned(),
        problem: "is not known, because HOME is not set".to_owned(),
        hint: "give a directory of this user, or the join string".to_owned(),
    })
}

/// The folder of the jobs in the directory of a user's state.
const JOBS: &str = "jobs";
/// The file of the join string in the job's directory.
const JOIN: &str = "join";

/// The directory for the state of `job`; made at the first write.
///
/// # Errors
/// [`Error::Config`] for a job that cannot be a file name.
pub fn job_dir(state_dir: &Path, job: &str) -> Result<PathBuf> {
    if job.is_empty() || job.starts_with('.') || job.contains(['/', '\0']) {
        return Err(Error::Config {
            knob: "job".to_owned(),
            problem: format!("{job:?} cannot be the name of a directory"),
            hint: "use letters, digits, '.', '-' and '_'".to_owned(),
        });
    }
    Ok(state_dir.join(JOBS).join(job))
}

/// Waits up to `patience` for a file with a join string that the user has named.
///
/// It must belong to this user or to root, as secrets do that are mounted into containers, and nobody else may write it: who writes it
/// decides which coordinator this process obeys. Others may read it, because such secrets often can be read by a group.
///
/// # Errors
/// [`Error::Auth`] for a file that others could have written, or that holds no join string, [`Error::Unavailable`] after `patience`.
pub fn read_join_file(path: &Path, patience: Duration) -> Result<JoinString> {
    let found = within(patience, || {
        let Some(content) = trusted_file::read(path, JOIN_FILE)? else { return Ok(None) };
        // It may be written by hand, and not at once.
        join_in(&content)
    })?;
    found.ok_or_else(|| Error::Unavailable {
        what: format!("the join file {}", path.display()),
        cause: format!(
            "nothing in it after {:.1} s; start the coordinator with the same join_file",
            patience.as_secs_f64()
        ),
    })
}

/// What is published: the join string, and who wrote it.
pub(super) fn content(join: &JoinString, writer: &WriterProcess) -> String {
    format!("{join}\n{writer}\n")
}

/// The writer of what was published, if it names one.
pub(super) fn writer(content: &str) -> Option<WriterProcess> {
    content.lines().nth(1).and_then(WriterProcess::parse)
}

/// The join string that was published.
pub(super) fn published(content: &str) -> Result<JoinString> {
    content.lines().next().unwrap_or_default().parse()
}

/// The join string in a file that the user has named; nothing while it is not written.
pub(super) fn join_in(content: &str) -> Result<Option<JoinString>> {
    match content.lines().next() {
        Some(line) if !line.trim().is_empty() => line.parse().map(Some),
        Some(_) | None => Ok(None),
    }
}

/// Others may read it, because such secrets often can be read by a group.
const JOIN_FILE: Purpose = Purpose {
    name: "join file",
    forbidden: 0o022,
    hint: "who writes it decides which coordinator this process obeys: let it belong to this user or to root, and chmod go-w",
    bytes_max: LINES_BYTES_MAX,
};

/// Polls until there is a result, at least once and at most for `patience`.
fn within<T>(patience: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    /// Polls, because events of file systems do not work on shared ones; a poll takes some microseconds.
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    let clock = Clock::start();
    loop {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        let left = patience.saturating_sub(clock.now().since(Time::ZERO));
        if left.is_zero() {
            return Ok(None);
        }
        crossbeam_channel::after(left.min(LOOK_EVERY)).recv().expect("a timer fires");
    }
}

/// The content of a file that only this user can have written and read; nothing if there is no file.
pub(super) fn read_private(path: &Path) -> Result<Option<String>> {
    let failed = |error: &io::Error| io_error("reading", path, error);
    // Checks the opened file, so that it cannot be replaced between check and use. Does not follow links.
    let mut file = match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(untrusted(path, "is a symbolic link")),
        Err(error) => return Err(failed(&error)),
    };
    let metadata = file.metadata().map_err(|error| failed(&error))?;
    if metadata.uid() != os::effective_user() {
        return Err(untrusted(path, &format!("belongs to user {}", metadata.uid())));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(untrusted(path, &format!("can be read or written by others (mode {:o})", metadata.mode() & 0o777)));
    }
    trusted_file::bounded(&mut file, LINES_BYTES_MAX).map(Some).map_err(|error| failed(&error))
}

fn untrusted(path: &Path, problem: &str) -> Error {
    Error::Auth {
        problem: format!("the join file {} {problem}", path.display()),
        hint: "everybody who can read it can join the job: remove it, and start the coordinator again".to_owned(),
    }
}

fn io_error(doing: &str, path: &Path, error: &io::Error) -> Error {
    Error::Io { what: format!("{doing} {}", path.display()), cause: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::writer_process::start_of;
    use super::*;

    #[test]
    fn what_is_published_is_found_and_gone_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let published = publish(dir.path(), "job", &join()).unwrap();
        assert_eq!(find(dir.path(), "job", Duration::ZERO), Ok(join()));
        let path = published.path().to_owned();
        drop(published);
        assert!(!path.parent().unwrap().exists(), "no folder is left of a job that ended");
    }

    #[test]
    fn only_the_user_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let published = publish(dir.path(), "job", &join()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(published.path()), 0o600);
        assert_eq!(mode(published.path().parent().unwrap()), 0o700);
    }

    #[test]
    fn a_seeker_that_came_first_waits() {
        let dir = tempfile::tempdir().unwrap();
        let seeker = {
            let path = dir.path().to_owned();
            std::thread::spawn(move || find(&path, "job", Duration::from_secs(10)))
        };
        let _published = publish(dir.path(), "job", &join()).unwrap();
        assert_eq!(seeker.join().unwrap(), Ok(join()));
    }

    #[test]
    fn a_seeker_in_vain_is_told_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let error = find(dir.path(), "job", Duration::from_millis(10)).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }));
        assert!(error.to_string().contains("GRADLANE_JOIN"), "{error}");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let published = publish(dir.path(), "job", &join()).unwrap();
        fs::set_permissions(published.path(), Permissions::from_mode(0o640)).unwrap();
        let error = find(dir.path(), "job", Duration::ZERO).unwrap_err();
        assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains("mode 640")), "{error}");
    }

    #[test]
    fn a_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let published = publish(dir.path(), "real", &join()).unwrap();
        fs::create_dir(dir.path().join("jobs/job")).unwrap();
        symlink(published.path(), dir.path().join("jobs/job/join")).unwrap();
        let error = find(dir.path(), "job", Duration::ZERO).unwrap_err();
        assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains("symbolic link")), "{error}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_file_of_a_dead_coordinator_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let published = publish(dir.path(), "job", &join()).unwrap();
        let reborn = WriterProcess { start: 1, ..WriterProcess::this() };
        private_file::write(published.path(), format!("{}\n{reborn}\n", join())).unwrap();
        let error = find(dir.path(), "job", Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("has died"), "{error}");

        let elsewhere = WriterProcess { host: "another-host".to_owned(), ..reborn };
        private_file::write(published.path(), format!("{}\n{elsewhere}\n", join())).unwrap();
        assert_eq!(find(dir.path(), "job", Duration::ZERO), Ok(join()), "of other hosts nothing is known");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_name_of_a_job_that_runs_is_not_given_to_another() {
        let dir = tempfile::tempdir().unwrap();
        let published = publish(dir.path(), "job", &join()).unwrap();
        // The parent of this test runs as long as it does.
        let pid = std::os::unix::process::parent_id();
        let other = WriterProcess { pid, start: start_of(pid).unwrap(), ..WriterProcess::this() };
        let content = format!("{}\n{other}\n", join());
        private_file::write(published.path(), &content).unwrap();
        for outcome in [check_free(dir.path(), "job"), publish(dir.path(), "job", &join()).map(drop)] {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains(&format!("process {pid} ")) && error.contains("--job"), "{error}");
        }
        assert_eq!(fs::read_to_string(published.path()).unwrap(), content);
        check_free(dir.path(), "another").unwrap();
    }

    #[test]
    fn a_join_file_counts_only_if_nobody_else_can_have_written_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("join-file");
        fs::write(&path, format!("{}\n", join())).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert_eq!(read_join_file(&path, Duration::ZERO), Ok(join()));
        fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
        let error = read_join_file(&path, Duration::from_secs(60)).unwrap_err();
        assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains("mode 660")), "{error}");
    }

    #[test]
    fn a_coordinator_does_not_remove_the_file_of_its_successor() {
        let dir = tempfile::tempdir().unwrap();
        let first = publish(dir.path(), "job", &join()).unwrap();
        let later = JoinString { secret: [7; 16], ..join() };
        let _second = publish(dir.path(), "job", &later).unwrap();
        drop(first);
        assert_eq!(find(dir.path(), "job", Duration::ZERO), Ok(later));
    }

    #[test]
    fn a_job_never_leaves_its_directory() {
        for job in ["", ".", "..", "a/b", "../x"] {
            assert!(matches!(publish(Path::new("/nonexistent"), job, &join()), Err(Error::Config { .. })), "{job}");
        }
    }

    #[test]
    fn a_job_without_a_name_is_called_after_its_coordinator() {
        let config = |variables: &[(&str, &str)]| {
            let environment = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Config::load(&Default::default(), environment, None).unwrap().0
        };
        let coordinator = [("DMLC_PS_ROOT_URI", "10.0.0.1"), ("DMLC_PS_ROOT_PORT", "9000")];
        assert_eq!(job(&config(&coordinator)), "10.0.0.1_9000");
        assert_eq!(job(&config(&[("DMLC_PS_ROOT_URI", "::1"), coordinator[1]])), "__1_9000");
        assert_eq!(job(&config(&[coordinator[0], coordinator[1], ("GRADLANE_JOB", "night")])), "night");
        assert_eq!(job(&config(&[])), "default");
    }

    fn join() -> JoinString {
        JoinString { address: "127.0.0.1:9000".to_owned(), ca_hash: [1; 32], secret: [2; 16] }
    }
}
