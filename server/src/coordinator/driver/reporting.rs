//! Keeps what the report at the end of a job needs, and writes it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::bounded;
use gradlane_core::config::Config;
use gradlane_core::local::OwnThread;
use gradlane_core::metrics::Instance;
use gradlane_core::types::{Role, Stats, Time};
use gradlane_core::wire::frame::Status;
use gradlane_core::{Error, Result};

use super::{Driver, log};
use crate::coordinator::Event;
use crate::report::Report;
use crate::report::files::Directory;
use crate::report::making::{self, Known, Told};
use crate::report::{LOSSES_MAX, Setting, Versions};

/// See the module's documentation. It does nothing where no report is wanted.
pub(super) struct Reporting {
    /// If one is wanted.
    directory: Option<Directory>,
    settings: BTreeMap<String, Setting>,
    versions: Versions,
    /// Of this formation of the job; `None` once its report is written.
    course: Option<Course>,
}

/// What has happened since the job began to form.
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
        Ok(Self { directory, settings: making::settings(config), versions: making::versions(), course: None })
    }

    /// The job begins to form, or this coordinator goes on with it. The clock of the times began at `origin_unix_ns`.
    pub(super) fn begin(&mut self, now: Time, origin_unix_ns: u64, is_resumed: bool) {
        let (told, losses) = (BTreeMap::new(), Vec::new());
        let course = Course { began: now, origin_unix_ns, is_resumed, formed: None, told, losses };
        self.course = self.directory.is_some().then_some(course);
    }

    /// A member has told its metrics. Those of another part than it is are left out.
    pub(super) fn take(&mut self, now: Time, member: (Role, u32), stats: &Stats) {
        let (Some(course), (role, index)) = (&mut self.course, member) else { return };
        if stats.scope == role.to_string()
            && stats.label == index.to_string()
            && let Some(instance) = Instance::from_pairs(&stats.scope, &stats.label, &stats.values)
        {
            let last = Arc::new(instance);
            match course.told.entry(member) {
                Entry::Vacant(place) => drop(place.insert(Told { at: now, first: Arc::clone(&last), last })),
                Entry::Occupied(mut told) => (told.get_mut().at, told.get_mut().last) = (now, last),
            }
        }
    }

    /// Something has happened to the job.
    fn note(&mut self, now: Time, event: &Event) {
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

    /// The job has ended: writes its report, once. That it cannot costs a warning, and a disk that hangs costs [`WRITING`].
    fn end(&mut self, now: Time, status: &Status) {
        let (Some(course), Some(directory)) = (self.course.take(), self.directory.clone()) else { return };
        let report = Report::of(&Known {
            status,
            told: &course.told,
            losses: &course.losses,
            formed: course.formed,
            began: course.began,
            now,
            origin_unix_ns: course.origin_unix_ns,
            is_resumed: course.is_resumed,
            settings: &self.settings,
            versions: &self.versions,
        });
        let (sender, written) = bounded(1);
        let thread = OwnThread::start("gl-report", move || {
            let _ = sender.send(directory.write(&report));
        });
        let late = || Err(Error::Timeout { what: "writing it".to_owned(), waited: WRITING });
        match thread.and_then(|_| written.recv_timeout(WRITING).unwrap_or_else(|_| late())) {
            Ok(path) => tracing::info!(path = %path.display(), "the report of the job"),
            Err(error) => tracing::warn!(%error, "the report of the job is missing"),
        }
    }
}

impl Driver {
    /// An event in the life of the job.
    pub(super) fn note(&mut self, event: &Event) {
        self.probe.count(event);
        self.reporting.note(self.now(), event);
        log::event(event);
    }

    /// Writes the report of a job that has ended, if that is wanted and was not done.
    pub(super) fn report(&mut self) {
        let now = self.now();
        if self.reporting.course.is_some() {
            self.reporting.end(now, &self.machine.status(now));
        }
    }
}

/// A local disk takes some milliseconds. The end of the job waits for no longer.
const WRITING: Duration = Duration::from_secs(3);
