//! The queue of one device of a rank: queues groups for the one thread that calls NCCL for it.

use std::sync::Arc;

use super::issuer::Issuer;
use super::library::Library;
use super::work::{FINALIZE_PATIENCE, Work};
use crate::collective::{Ordered, Team};
use crate::config::NCCL_ABORT_PATIENCE;
use crate::cuda::{Driver, name};
use crate::error::{Error, Result};
use crate::local::OwnThread;
use crate::mem::Ordinal;
use crate::types::{Done, Time};

/// One device's queue.
pub(super) struct DeviceQueue {
    work: Arc<Work>,
    /// Keeps the device's context.
    _driver: Arc<Driver>,
    thread: OwnThread,
}

impl DeviceQueue {
    /// Starts the queue. It connects with the other ranks at the first operation.
    ///
    /// # Errors
    /// [`Error::Device`] if the device cannot be used, [`Error::Io`] if the system cannot start a thread.
    pub(super) fn start(team: Team, library: Arc<Library>, driver: &Arc<Driver>, device: Ordinal) -> Result<Self> {
        let context = driver.device(device)?;
        tracing::info!(%library, device = name(device), "devices of this machine are reduced by NCCL");
        let work = Arc::new(Work::new(team, Arc::clone(&context)));
        let issuer = Issuer { work: Arc::clone(&work), library, context };
        let thread = OwnThread::start("gl-nccl", move || issuer.run())?;
        Ok(Self { work, _driver: Arc::clone(driver), thread })
    }

    /// As [`DeviceCollective::issue`](crate::collective::DeviceCollective::issue).
    pub(super) fn issue(&self, group: Vec<(Ordered, Done<()>)>) {
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

    /// As [`DeviceCollective::abort`](crate::collective::DeviceCollective::abort).
    pub(super) fn abort(&self, cause: Error) {
        self.work.end(cause);
    }

    /// Begins to end the queue, without waiting.
    pub(super) fn close(&self) {
        self.work.lock().closing = true;
        self.work.bell.notify_all();
    }

    /// Ends the queue, as [`DeviceCollective::shutdown`](crate::collective::DeviceCollective::shutdown), until the time `deadline` at most.
    /// What NCCL has not ended by then is left to threads of its own.
    pub(super) fn shutdown(&self, deadline: Time) {
        self.close();
        let left = || deadline.since(self.work.now());
        if !self.work.settles(FINALIZE_PATIENCE.min(left())) {
            // They would go on until their own deadline, and use memory of which nobody knows any more.
            self.work.end(shut_down());
        }
        self.thread.join(left());
        // The thread that ends the communicator reports all operations.
        drop(self.work.bell.wait_timeout_while(self.work.lock(), left(), |state| state.ending));
    }

    /// The deadline of a shutdown that begins now.
    pub(super) fn deadline(now: Time) -> Time {
        // Operations end by themselves, and then the communicator does; or it is aborted.
        now + FINALIZE_PATIENCE + NCCL_ABORT_PATIENCE.max(FINALIZE_PATIENCE * 2)
    }
}

/// The error of operations that are under way at the shutdown.
fn shut_down() -> Error {
    Error::FailedPrecondition {
        what: "the engine was shut down before the devices of this machine had reduced".to_owned(),
        hint: "wait for all handles before shutdown".to_owned(),
    }
}

impl Drop for DeviceQueue {
    fn drop(&mut self) {
        self.shutdown(Self::deadline(self.work.now()));
    }
}
