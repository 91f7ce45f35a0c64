//! Removes what killed processes of this user have left behind: files with join strings, files of jobs that run, and the folders of jobs.
//!
//! Only what is known to be left is removed: the file names its writer, a process of this host that has ended. Nothing is known about
//! processes of other hosts and of other process namespaces, which may share the folder. A process that starts just now may write its own
//! file in the place of one that is being removed. That file stays.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::writer_process::WriterProcess;
use crate::os;
use crate::trusted_file::{self, LINES_BYTES_MAX, Purpose};

/// What every name of a launcher's join file begins with.
pub(super) const RUN_PREFIX: &str = "gradlane-run-";
/// An empty folder that is younger may be that of a job that begins just now.
const BEGINNING: Duration = Duration::from_secs(3600);

/// Removes the join files of killed launchers in `folder`.
pub(super) fn sweep_join_files(folder: &Path) {
    let is_join_file = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(RUN_PREFIX) && name.ends_with(".join")
    };
    entries(folder).iter().filter(|path| is_join_file(path)).for_each(|path| remove_left(path));
}

/// Removes the files of jobs in `folder` whose processes were killed.
pub(super) fn sweep_running(folder: &Path) {
    entries(folder).iter().for_each(|path| remove_left(path));
}

/// Removes the folders in `jobs` of which nothing is left but the join string of a coordinator that was killed, or nothing at all. What
/// a coordinator needs to resume its job stays.
pub(super) fn sweep_jobs(jobs: &Path) {
    for folder in entries(jobs) {
        match &entries(&folder)[..] {
            [] if is_ours(&folder) && is_old(&folder) => drop(fs::remove_dir(&folder)),
            [join] if is_left(join) => {
                remove_left(join);
                // Stays if a job begins in it just now. One that has written nothing yet makes it again.
                let _ = fs::remove_dir(&folder);
            }
            _ => {}
        }
    }
}

fn remove_left(path: &Path) {
    if is_left(path) {
        take_away(path);
    }
}

/// Removes a file whose writer was seen to have ended. It is moved first, and looked at again where nobody else writes. What another process
/// has put into its place meanwhile goes back.
fn take_away(path: &Path) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".left.{}.{name}", std::process::id()));
    if fs::rename(path, &aside).is_ok() && !is_left(&aside) {
        // Not over a file that is newer still.
        let _ = fs::hard_link(&aside, path);
    }
    let _ = fs::remove_file(aside);
}

/// Whether a file of this user names a writer that is known to have ended.
fn is_left(path: &Path) -> bool {
    const LEFT: Purpose = Purpose { name: "join file", forbidden: 0o077, hint: "", bytes_max: LINES_BYTES_MAX };
    let content = || trusted_file::read(path, LEFT).ok().flatten();
    let writer = |content: String| content.lines().nth(1).and_then(WriterProcess::parse);
    is_ours(path) && content().and_then(writer).is_some_and(|writer| writer.is_gone())
}

fn is_ours(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.uid() == os::effective_user() && !found.is_symlink())
}

fn is_old(path: &Path) -> bool {
    let age = fs::symlink_metadata(path).and_then(|found| found.modified()).ok().and_then(|made| made.elapsed().ok());
    age.is_some_and(|age| age > BEGINNING)
}

/// What lies in a folder; nothing if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use gradlane_core::local::private_file;

    #[test]
    fn only_files_of_processes_that_have_ended_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let this = WriterProcess::this();
        let gone = WriterProcess { start: 1, ..this.clone() };
        let elsewhere = WriterProcess { host: "another-host".to_owned(), ..gone.clone() };
        let unknown = "gradlane1.somewhere\n".to_owned();
        let files = [
            ("gradlane-run-1.join", with(&gone), false),
            ("gradlane-run-2.join", with(&this), true),
            ("gradlane-run-3.join", with(&elsewhere), true),
            ("gradlane-run-4.join", unknown, true),
            ("another-1.join", with(&gone), true),
        ];
        for (name, content, _) in &files {
            private_file::write(&dir.path().join(name), content).unwrap();
        }
        sweep_join_files(dir.path());
        for (name, _, stays) in files {
            assert_eq!(dir.path().join(name).exists(), stays, "{name}");
        }
    }

    #[test]
    fn a_file_that_took_the_place_of_one_that_is_removed_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("join");
        private_file::write(&path, with(&WriterProcess::this())).unwrap();
        take_away(&path);
        assert_eq!(fs::read_to_string(&path).unwrap(), with(&WriterProcess::this()));
        let gone = WriterProcess { start: 1, ..WriterProcess::this() };
        private_file::write(&path, with(&gone)).unwrap();
        take_away(&path);
        assert_eq!(entries(dir.path()), Vec::<PathBuf>::new());
    }

    #[test]
    fn the_folder_of_a_job_goes_with_its_coordinator_unless_it_can_be_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let gone = WriterProcess { start: 1, ..WriterProcess::this() };
        for (name, writer) in [("dead", &gone), ("resumable", &gone), ("alive", &WriterProcess::this())] {
            fs::create_dir(dir.path().join(name)).unwrap();
            private_file::write(&dir.path().join(name).join("join"), with(writer)).unwrap();
        }
        private_file::write(&dir.path().join("resumable/key"), "secret").unwrap();
        fs::create_dir(dir.path().join("begins")).unwrap();
        sweep_jobs(dir.path());
        let mut left: Vec<String> = entries(dir.path())
            .iter()
            .map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
            .collect();
        left.sort();
        assert_eq!(left, ["alive", "begins", "resumable"]);
        assert!(dir.path().join("resumable/join").exists());
    }

    fn with(writer: &WriterProcess) -> String {
        format!("gradlane1.somewhere\n{writer}\n")
    }
}
