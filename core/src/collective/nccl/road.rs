//! The road of one rank: finds NCCL at the first operation, and hands what comes to the one thread that speaks to it.

use std::sync::{Arc, Mutex, OnceLock};

use super::Places;
use super::issuer::Issuer;
use super::library::{Absent, Library};
use super::work::{ABORT_PATIENCE, FINALIZE_PATIENCE, LOCK, Work};
use crate::collective::{DeviceMemory, DeviceRoad, Ordered, Team};
use crate::cuda::{Driver, name};
use crate::error::{Error, Result};
use crate::local::OwnThread;
use crate::mem::Ordinal;
use crate::types::Done;

/// One rank's road.
pub(super) struct Road {
    places: Places,
    library: OnceLock<std::result::Result<Arc<Library>, Absent>>,
    /// From the first operation on.
    started: Mutex<Option<Started>>,
    work: Arc<Work>,
}

struct Started {
    device: Ordinal,
    /// Keeps the device's context.
    _driver: Arc<Driver>,
    thread: OwnThread,
}

impl Road {
    pub(super) fn new(team: Team, places: Places) -> Self {
        Self { places, library: OnceLock::new(), started: Mutex::new(None), work: Arc::new(Work::new(team)) }
    }

    /// Starts on the device of the first operation; later ones must be of the same.
    fn start(&self, device: Ordinal) -> Result<()> {
        let mut started = self.started.lock().expect(LOCK);
        if let Some(Started { device: first, .. }) = &*started {
            return if *first == device { Ok(()) } else { Err(elsewhere(*first, device)) };
        }
        let library = self.library.get_or_init(|| Library::find(self.places.nccl.as_deref()).map(Arc::new));
        let library = library.clone().map_err(|absent| absent.error())?;
        let driver = Driver::load(self.places.cuda.as_deref()).map_err(|absent| absent.error())?;
        let context = driver.device(device)?;
        tracing::info!(%library, device = name(device), "devices of this machine are reduced by NCCL");
        let issuer = Issuer { work: Arc::clone(&self.work), library, context };
        let thread = OwnThread::start("gl-nccl", move || issuer.run())?;
        *started = Some(Started { device, _driver: driver, thread });
        Ok(())
    }
}

impl DeviceRoad for Road {
    fn check(&self, memory: &DeviceMemory) -> Result<()> {
        let mut regions = memory.source.iter().chain(&memory.destination);
        let Some(device) = regions.next().map(crate::mem::DeviceRegion::device) else {
            return Err(Error::Internal { what: "an operation on devices without memory of any".to_owned() });
        };
        if let Some(other) = regions.find(|region| region.device() != device) {
            return Err(elsewhere(device, other.device()));
        }
        self.start(device)
    }

    fn issue(&self, group: Vec<(Ordered, Done<()>)>) {
        let mut state = self.work.lock();
        if let Some(cause) = &state.over {
            let cause = cause.clone();
            drop(state);
            return group.into_iter().for_each(|(_, done)| done.err(cause.clone()));
        }
        state.queue.push_back(group);
        drop(state);
        self.work.bell.notify_all();
    }

    fn abort(&self, cause: Error) {
        self.work.end(cause);
    }

    fn shutdown(&self) {
        self.work.lock().closing = true;
        self.work.bell.notify_all();
        if let Some(Started { thread, .. }) = &*self.started.lock().expect(LOCK) {
            thread.join(FINALIZE_PATIENCE);
        }
        // Whoever ends it reports to everybody, or has taken it upon itself to.
        drop(self.work.bell.wait_timeout_while(self.work.lock(), ABORT_PATIENCE, |state| state.ending));
    }
}

impl Drop for Road {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn elsewhere(first: Ordinal, device: Ordinal) -> Error {
    Error::InvalidArgument {
        what: format!("memory of {}, while the workers of this machine reduce that of {}", name(device), name(first)),
        hint: "start one worker a device and move the tensor to its device, or set local_reduce=off on all workers of the machine"
            .to_owned(),
    }
}
