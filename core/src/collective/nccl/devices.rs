//! NCCL for all devices of one rank: loads it at the first operation, and makes a queue for each device at its first use.
//!
//! The first device that a rank uses reduces with the first ones of the other ranks, the second with the second ones, and so on. So a model
//! on several devices must use them in the same order on all ranks.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::library::Library;
use super::queue::DeviceQueue;
use super::work::LOCK;
use crate::collective::order::Claim;
use crate::collective::{DeviceCollective, DeviceMemory, Ordered, Team};
use crate::cuda::{Driver, name};
use crate::error::{Error, Result};
use crate::mem::{DeviceRegion, Ordinal};
use crate::types::Done;

/// Paths of the libraries, if the settings name them.
#[derive(Clone, Debug)]
pub(super) struct Places {
    pub(super) cuda: Option<PathBuf>,
    pub(super) nccl: Option<PathBuf>,
}

/// The devices of one rank, with a queue for each.
pub(super) struct NcclDevices {
    places: Places,
    team: Team,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// The libraries, after the first operation.
    opened: Option<(Arc<Library>, Arc<Driver>)>,
    /// In the order of their first use.
    queues: Vec<(Ordinal, Arc<DeviceQueue>)>,
    /// The error after which no more are made.
    over: Option<Error>,
}

impl NcclDevices {
    pub(super) fn new(team: Team, places: Places) -> Self {
        Self { places, team, open: Mutex::default() }
    }

    fn queues(&self) -> Vec<Arc<DeviceQueue>> {
        self.open.lock().expect(LOCK).queues.iter().map(|(_, queue)| Arc::clone(queue)).collect()
    }
}

impl DeviceCollective for NcclDevices {
    fn check(&self, memory: &DeviceMemory) -> Result<u8> {
        let device = device_of(memory)?;
        let mut open = self.open.lock().expect(LOCK);
        let known = open.queues.iter().position(|(other, _)| *other == device);
        let device_index = u8::try_from(known.unwrap_or(open.queues.len())).expect("at most DEVICES_MAX");
        if known.is_some() {
            return Ok(device_index);
        }
        if let Some(cause) = &open.over {
            return Err(cause.clone());
        }
        if device_index == Claim::DEVICES_MAX {
            return Err(too_many(device));
        }
        let (library, driver) = open.opened(&self.places)?;
        let team = Team { bootstrap: self.team.bootstrap.about(device_index), ..self.team.clone() };
        let queue = Arc::new(DeviceQueue::start(team, library, &driver, device)?);
        open.queues.push((device, queue));
        Ok(device_index)
    }

    fn issue(&self, group: Vec<(Ordered, Done<()>)>) {
        let Some((first, _)) = group.first() else { return };
        let queue = Arc::clone(&self.open.lock().expect(LOCK).queues[usize::from(first.claim.device_index)].1);
        queue.issue(group);
    }

    fn abort(&self, cause: Error) {
        self.open.lock().expect(LOCK).over.get_or_insert_with(|| cause.clone());
        self.queues().iter().for_each(|queue| queue.abort(cause.clone()));
    }

    fn shutdown(&self) {
        let queues = self.queues();
        queues.iter().for_each(|queue| queue.close());
        // One deadline for all of them.
        let deadline = DeviceQueue::deadline((self.team.clock)());
        queues.iter().for_each(|queue| queue.shutdown(deadline));
    }
}

impl Open {
    /// The libraries that every queue needs.
    fn opened(&mut self, places: &Places) -> Result<(Arc<Library>, Arc<Driver>)> {
        if let Some(opened) = &self.opened {
            return Ok(opened.clone());
        }
        let library = Library::find(places.nccl.as_deref()).map_err(|absent| absent.error())?;
        let driver = Driver::load(places.cuda.as_deref()).map_err(|absent| absent.error())?;
        Ok(self.opened.insert((Arc::new(library), driver)).clone())
    }
}

/// The device on which all of an operation's memory lies.
fn device_of(memory: &DeviceMemory) -> Result<Ordinal> {
    let mut regions = memory.source.iter().chain(&memory.destination).map(DeviceRegion::device);
    let Some(device) = regions.next() else {
        return Err(Error::Internal { what: "an operation on devices without memory of any".to_owned() });
    };
    match regions.find(|other| *other != device) {
        None => Ok(device),
        Some(other) => Err(Error::InvalidArgument {
            what: format!("an operation on memory of {} and {}", name(device), name(other)),
            hint: "put a tensor and its result on one device".to_owned(),
        }),
    }
}

fn too_many(device: Ordinal) -> Error {
    Error::InvalidArgument {
        what: format!("memory of {}, a worker's device number {}", name(device), Claim::DEVICES_MAX + 1),
        hint: "start more workers with fewer devices each, or set local_reduce=off on all workers of the machine"
            .to_owned(),
    }
}
