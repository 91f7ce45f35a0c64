//! Keeps what the report at the end of a job needs, and writes it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::Result;
use gradlane_core::config::Config;
use gradlane_core::local::confined;
use gradlane_core::metrics::Instance;
use gradlane_core::runtime::setup::setup;
use gradlane_core::types::{self, Role, Time};
use gradlane_core::wire::frame::Status;

use super::apart::within;
use crate::coordinator::Event;
use crate::report::files::Directory;
use crate::report::making::{Known, Told};
use crate::report::{LOSSES_MAX, Report, Setup};

/// See the module's documentation.
pub(super) struct Reporting {
    /// If a report is wanted at the end.
    directory: Option<Directory>,
    /// Below it are the reports that operators want.
    dump_dir: Option<PathBuf>,
    /// Of the process of the coordinator.
    setup: Setup,
    /// Whether the job goes on without workers that fail, so that none of them makes it fail.
    goes_on: bool,
    /// Of this formation of the job; `None` once it has ended.
    course: Option<Course>,
    /// Of the formation that has ended, until its report is written: with the end, and the status then.
    ended: Option<(Course, Time, Status)>,
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
    /// What each member runs and its settings; the last that it said.
    setups: BTreeMap<(Role, u32), Setup>,
    losses: Vec<String>,
    /// The processes that failed after they had left the job in order.
    failures: Vec<String>,
}

impl Reporting {
    /// Reports as the setting says, if it does.
    ///
    /// # Errors
    /// [`Error::Io`] if its directory cannot be made or written in.
    pub(super) fn by_settings(config: &Config) -> Result<Self> {
        let directory = config.report.as_deref().map(Directory::open).transpose()?;
        Ok(Self {
            directory,
            dump_dir: config.dump_dir.clone(),
            setup: Setup::of(&setup(config)),
            goes_on: config.on_worker_loss.goes_on(),
            course: None,
            ended: None,
        })
    }

    /// The job begins to form, or this coordinator goes on with it. The clock of the times began at `origin_unix_ns`. Writes the report of the
    /// formation before.
    pub(super) fn begin(&mut self, now: Time, origin_unix_ns: u64, is_resumed: bool) {
        self.write_ended();
        let (told, setups, losses, failures) = (BTreeMap::new(), BTreeMap::new(), Vec::new(), Vec::new());
        self.course =
            Some(Course { began: now, origin_unix_ns, is_resumed, formed: None, told, setups, losses, failures });
    }

    /// A member has told its metrics.
    pub(super) fn take(&mut self, now: Time, member: (Role, u32), last: Arc<Instance>) {
        let Some(course) = &mut self.course else { return };
        match course.told.entry(member) {
            Entry::Vacant(place) => drop(place.insert(Told { at: now, first: Arc::clone(&last), last })),
            Entry::Occupied(mut told) => (told.get_mut().at, told.get_mut().last) = (now, last),
        }
    }

    /// A member has told what it runs and its settings.
    pub(super) fn take_setup(&mut self, member: (Role, u32), setup: &types::Setup) {
        if let Some(course) = &mut self.course {
            course.setups.insert(member, Setup::of(setup));
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

    /// A process failed that had left the job in order, maybe after the end of the job. It counts where the loss of a worker ends the job.
    pub(super) fn note_failure(&mut self, cause: String) {
        let ended = self.ended.as_mut().map(|(course, ..)| course);
        let Some(course) = self.course.as_mut().or(ended).filter(|_| !self.goes_on) else { return };
        if course.failures.len() < LOSSES_MAX {
            course.failures.push(cause);
        }
    }

    /// The job has ended. Its report can wait for processes that fail after they have left.
    pub(super) fn end(&mut self, now: Time, status: impl FnOnce() -> Status) {
        if let Some(course) = self.course.take() {
            self.ended = Some((course, now, status()));
        }
    }

    /// Writes the report of a job that has ended, once, if that is wanted. That it cannot costs a warning, and a disk that hangs costs [`WRITING`].
    pub(super) fn write_ended(&mut self) {
        let (Some((course, now, status)), Some(directory)) = (self.ended.take(), self.directory.clone()) else {
            return;
        };
        let setup = self.setup.clone();
        let write = move || directory.write(&report(&setup, &course, (now, &status)));
        match within(WRITING, "writing a report", write) {
            Ok(path) => tracing::info!(path = %path.display(), "the report of the job"),
            Err(error) => tracing::warn!(%error, "the report of the job is missing"),
        }
    }

    /// What writes a report of the job so far, in a directory below `dump_dir`, and returns its path. `None` once the job has ended: then its
    /// report is that of the setting.
    pub(super) fn so_far(
        &self,
        now: Time,
        status: Status,
    ) -> Option<impl FnOnce(&str) -> Result<PathBuf> + Send + use<>> {
        let (course, setup, dump_dir) = (self.course.clone()?, self.setup.clone(), self.dump_dir.clone());
        Some(move |directory: &str| {
            let place = Directory::open(&confined::below_dump_dir(dump_dir.as_deref(), directory)?)?;
            place.write(&report(&setup, &course, (now, &status)))
        })
    }
}

/// The report of a job that has this status now.
fn report(setup: &Setup, course: &Course, (now, status): (Time, &Status)) -> Report {
    let Course { began, origin_unix_ns, is_resumed, formed, told, setups, losses, failures } = course;
    Report::of(&Known {
        status,
        told,
        losses,
        failures,
        formed: *formed,
        began: *began,
        now,
        origin_unix_ns: *origin_unix_ns,
        is_resumed: *is_resumed,
        setup,
        setups,
    })
}

/// A local disk takes some milliseconds. The end of the job waits for no longer.
const WRITING: Duration = Duration::from_secs(3);
