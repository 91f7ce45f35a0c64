//! A job of one worker: every reduction is a copy, and there are no other members.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gradlane_core::config::Config;
use gradlane_core::device::Device;
use gradlane_core::engine::{self, Followed, ParameterUse, Submission, Timeline};
use gradlane_core::mem::Doubt;
use gradlane_core::runtime::exporter::{Exporter, Exposure};
use gradlane_core::types::WorkerId;
use gradlane_core::{Error, Result};

use crate::parameters::Parameters;
use crate::probe::Probe;

/// The only worker of its job.
pub(crate) struct Alone {
    handles: AtomicU64,
    closed: AtomicBool,
    timeline: Timeline,
    devices: Arc<dyn Device>,
    doubt: Doubt,
    followed: Arc<Followed>,
    parameters: Parameters,
    /// While the exporter of this process shows it.
    exposure: Mutex<Option<Exposure>>,
}

impl Alone {
    /// Begins the job.
    pub(crate) fn new(config: &Config, devices: Arc<dyn Device>) -> Result<Self> {
        let timeline = Timeline::new(gradlane_core::runtime::Clock::start(), config.timeline_bytes_max);
        if let Some(place) = &config.timeline {
            timeline.start(place, WorkerId(0))?;
        }
        let (handles, closed) = (AtomicU64::new(1), AtomicBool::new(false));
        let exposure = Exporter::by_settings(config)?.map(|exporter| exporter.show(Arc::new(Probe)));
        let (doubt, followed, exposure) = (Doubt::default(), Arc::default(), Mutex::new(exposure));
        let parameters = Parameters::new();
        Ok(Self { handles, closed, timeline, devices, doubt, followed, parameters, exposure })
    }

    /// Reduces all tensors or none; `then` runs when they are done.
    pub(crate) fn reduce(
        &self,
        submissions: Vec<Submission>,
        then: impl FnOnce(u64) + Send + 'static,
    ) -> Result<engine::Handle> {
        let id = self.begin()?;
        engine::reduce_alone(id, submissions, Some(&self.devices), &self.followed, then)
    }

    /// Uses a parameter, which has ended when this returns. `then` is that of [`reduce`](Self::reduce).
    pub(crate) fn access(
        &self,
        asked: ParameterUse,
        then: impl FnOnce(u64) + Send + 'static,
    ) -> Result<engine::Handle> {
        let asked = Parameters::check(asked)?;
        let id = self.begin()?;
        let used = self.parameters.access(asked);
        then(id);
        Ok(engine::Handle::used(id, used))
    }

    /// The number of an operation that begins.
    fn begin(&self) -> Result<u64> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::FailedPrecondition {
                what: "the session was shut down".to_owned(),
                hint: "call init() again".to_owned(),
            });
        }
        Ok(self.handles.fetch_add(1, Ordering::Relaxed))
    }

    /// The parameters of the job.
    pub(crate) fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The handle of an operation that has nothing to reduce.
    pub(crate) fn nothing_to_do(&self) -> engine::Handle {
        engine::Handle::resolved(self.handles.fetch_add(1, Ordering::Relaxed), Ok(()))
    }

    /// The operations for which streams wait.
    pub(crate) fn followed(&self) -> &Followed {
        &self.followed
    }

    /// The timeline of the job.
    pub(crate) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The devices of this process.
    pub(crate) fn devices(&self) -> &Arc<dyn Device> {
        &self.devices
    }

    /// Whether a device may still write memory of operations that have ended.
    pub(crate) fn doubt(&self) -> &Doubt {
        &self.doubt
    }

    /// Ends the job; device copies under way fail. Idempotent.
    pub(crate) fn leave(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.devices.shutdown(&self.doubt);
        self.timeline.stop();
        let exposure = self.exposure.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(exposure);
    }
}
