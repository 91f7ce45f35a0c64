//! Keeps what the report at the end of a job needs, and writes it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};
use gradlane_core::config::Config;
use gradlane_core::local::{OwnThread, confined};
use gradlane_core::metrics::Instance;
use gradlane_core::types::{Role, Time};
use gradlane_core::wire::frame::Status;
use gradlane_core::{Error, Result};

use crate::coordinator::Event;
use crate::report::Report;
use crate::report::files::Directory;
use crate::report::making::{self, Known, Told};
use crate::report::{LOSSES_MAX, Setting};

/// See the module's documentation.
pub(super) struct Reporting {
    /// If a report is wanted at the end.
    directory: Option<Directory>,
    /// Below it are the reports that operators want.
    dump_dir: Option<PathBuf>,
    settings: BTreeMap<String, Setting>,
    /// Of this formation of the job; `None` once its report is written.
    course: Option<Course>,
}

/// What has happened since the job began to form.
#[derive(Clone)]
struct Course {
    began: Time,
    origin_unix_ns: u64,
    is_resumed: bool,
    formed: Option<Time>,
    /// Also of members that are gone.
    told: BTreeMap<(Role, u32), Told>,
    losses: Vec<String>,
}

impl Reporting {
    /// Reports as the setting says, if it does.
    ///
    /// # Errors
    /// [`Error::Io`] if its directory cannot be made or written in.
    pub(super) fn by_settings(config: &Config) -> Result<Self> {
        let directory = config.report.as_deref().map(Directory::open).transpose()?;
        Ok(Self { directory, dump_dir: config.dump_dir.clone(), settings: making::settings(config), course: None })
    }

    /// The job begins to form, or this coordinator goes on with it. The clock of the times began at `origin_unix_ns`.
    pub(super) fn begin(&mut self, now: Time, origin_unix_ns: u64, is_resumed: bool) {
        let (told, losses) = (BTreeMap::new(), Vec::new());
        self.course = Some(Course { began: now, origin_unix_ns, is_resumed, formed: None, told, losses });
    }

    /// A member has told its metrics.
    pub(super) fn take(&mut self, now: Time, member: (Role, u32), last: Arc<Instance>) {
        let Some(course) = &mut self.course else { return };
        match course.told.entry(member) {
            Entry::Vacant(place) => drop(place.insert(Told { at: now, first: Arc::clone(&last), last })),
            Entry::Occupied(mut told) => (told.get_mut().at, told.get_mut().last) = (now, last),
        }
    }

    /// Something has happened to the job.
    pub(super) fn note(&mut self, now: Time, event: &Event) {
        let Some(course) = &mut self.course else { return };
        if let Event::Formed { .. } = event {
            course.formed = Some(now);
        }
        if let Event::Dead { member, place, cause } = event
            && course.losses.len() < LOSSES_MAX
        {
            course.losses.push(format!("{member} on {place}: {cause}"));
        }
    }

    /// The job has ended: writes its report, once, if that is wanted. That it cannot costs a warning, and a disk that hangs costs [`WRITING`].
    pub(super) fn end(&mut self, now: Time, status: impl FnOnce() -> Status) {
        let (Some(course), Some(directory)) = (self.course.take(), self.directory.clone()) else { return };
        match self.write(WRITING, course, (now, status()), || Ok(directory)) {
            Ok(path) => tracing::info!(path = %path.display(), "the report of the job"),
            Err(error) => tracing::warn!(%error, "the report of the job is missing"),
        }
    }

    /// Writes a report of the job so far, in a directory below `dump_dir`, and returns its path.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a directory that is not below it; [`Error::Io`]; [`Error::Timeout`] if the disk hangs.
    pub(super) fn so_far(&self, now: Time, status: Status, directory: String) -> Result<PathBuf> {
        let Some(course) = self.course.clone() else {
            return Err(Error::Internal { what: "a job that runs has no course".to_owned() });
        };
        let dump_dir = self.dump_dir.clone();
        let place = move || Directory::open(&confined::below_dump_dir(dump_dir.as_deref(), &directory)?);
        self.write(WRITING_SO_FAR, course, (now, status), place)
    }

    /// Makes a report of a job that has this status now, and writes it. It does so in a thread, because a job may be large and a disk may hang, and
    /// waits for `patience`.
    fn write(
        &self,
        patience: Duration,
        course: Course,
        (now, status): (Time, Status),
        place: impl FnOnce() -> Result<Directory> + Send + 'static,
    ) -> Result<PathBuf> {
        let settings = self.settings.clone();
        let (sender, written) = bounded(1);
        let _thread = OwnThread::start("gl-report", move || {
            let Course { began, origin_unix_ns, is_resumed, formed, told, losses } = &course;
            let report = Report::of(&Known {
                status: &status,
                told,
                losses,
                formed: *formed,
                began: *began,
                now,
                origin_unix_ns: *origin_unix_ns,
                is_resumed: *is_resumed,
                settings: &settings,
                versions: &making::versions(),
            });
            let _ = sender.send(place().and_then(|directory| directory.write(&report)));
        })?;
        let failed = |error| match error {
            RecvTimeoutError::Timeout => Error::Timeout { what: "writing a report".to_owned(), waited: patience },
            RecvTimeoutError::Disconnected => Error::Internal { what: "the thread of a report panicked".to_owned() },
        };
        written.recv_timeout(patience).map_err(failed)?
    }
}

/// A local disk takes some milliseconds. The end of the job waits for no longer.
const WRITING: Duration = Duration::from_secs(3);
/// The members of a job that goes on wait for their coordinator meanwhile.
const WRITING_SO_FAR: Duration = Duration::from_millis(500);
