//! CUDA devices: a stream and a thread for each direction of copies, pinned host memory, and outcomes from a reaper.
//!
//! The thread of a direction submits its copies, because a copy of memory that is not pinned blocks its thread in the driver until it is
//! done, including the marks before it. So only that direction waits. The thread of a stage calls CUDA only in [`lease`](Device::lease),
//! and the caller's thread only in [`mark`](Device::mark) and, with memory that is pinned, in [`copy_here`](Device::copy_here). Looks for NaN
//! and infinities have a stream and a thread too, because a copy may wait long for the marks before it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Device, Transfer, Varying};
use crate::codec::Coding;
use crate::config::Config;
use crate::config::units::print_bytes;
use crate::cuda::{self, Driver, Mark, OnIssue, Reaper};
use crate::error::{Error, Result};
use crate::mem::{DeviceRegion, Doubt, Lease, Ordinal, Pool};
use crate::types::{CodecSpec, DType, Done, InCopies, Round};
use backing::{Kind, OfKind, PinnedBacking};
use copy_queue::{CopyQueue, Direction, Job, ended};
use look_queue::{Look, LookQueue};

mod backing;
mod copies;
mod copy_queue;
mod look_queue;
mod parts;
mod relay;

/// All CUDA devices that the process sees. The first mark or copy on a device makes its context.
pub struct CudaDevice {
    driver: Arc<Driver>,
    pools: BTreeMap<Kind, Pool>,
    /// The NUMA node of each device.
    nodes: Vec<Option<u32>>,
    backing: Arc<PinnedBacking>,
    pinned_bytes_max: u64,
    patience: Duration,
    reaper: Arc<Reaper>,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    copies: BTreeMap<(Ordinal, Direction), CopyQueue>,
    looks: BTreeMap<Ordinal, LookQueue>,
    closed: bool,
}

impl CudaDevice {
    /// Looks for the driver as `cuda_lib` says, and starts the reaper. Makes no context.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no driver or no device, with the names that were tried and what to do; [`Error::Io`] if the
    /// system cannot start a thread.
    pub fn load(config: &Config) -> Result<Self> {
        Self::load_below(Path::new("/"), config)
    }

    /// The same for the machine below `root`.
    fn load_below(root: &Path, config: &Config) -> Result<Self> {
        let driver = Driver::load(config.cuda_lib.as_deref()).map_err(|absent| absent.error())?;
        match cuda::groups(&driver, root) {
            Ok(groups) => tracing::info!(driver = driver.library(), cuda = driver.version(), "{groups}"),
            // The first use of a device reports the error to its caller.
            Err(error) => tracing::warn!(%error, "the PCIe groups of the devices are unknown"),
        }
        let backing = Arc::new(PinnedBacking::new(Arc::clone(&driver), config.pinned_bytes_max));
        let nodes: Vec<_> = driver.ordinals().map(|device| cuda::numa_node(&driver, root, device)).collect();
        let kinds = nodes.iter().chain([&None]).flat_map(|node| [false, true].map(|shown| Kind { node: *node, shown }));
        let pool = |kind| (kind, Pool::on(Arc::new(OfKind { backing: Arc::clone(&backing), kind })));
        Ok(Self {
            driver,
            pools: kinds.map(pool).collect(),
            nodes,
            backing,
            pinned_bytes_max: config.pinned_bytes_max,
            patience: config.shutdown_timeout,
            reaper: Arc::new(Reaper::start()?),
            queues: Mutex::default(),
        })
    }

    /// The number of devices; their ordinals begin at 0.
    pub fn count(&self) -> usize {
        self.driver.ordinals().count()
    }

    /// Checks a job, and submits it if there is something to copy; `here` as in [`submit`](Self::submit).
    fn begin(&self, job: Job, here: bool) {
        match route(&job.transfer) {
            Ok(Some((device, direction))) => self.submit(device, direction, job, here),
            Ok(None) => job.done.ok(()),
            Err(error) => job.done.err(error),
        }
    }

    /// The kind of memory for copies of `device`. A wrong ordinal is reported by the copy.
    fn kind(&self, device: Ordinal, shown: bool) -> Kind {
        Kind { node: self.nodes.get(usize::from(device.0)).copied().flatten(), shown }
    }

    /// Hands a job to the thread of its direction, and starts that thread for the first job. With `here`, this thread may submit it.
    fn submit(&self, device: Ordinal, direction: Direction, job: Job, here: bool) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.closed {
            return job.done.err(ended());
        }
        if let Some(queue) = queues.copies.get(&(device, direction)) {
            let entrance = queue.entrance().clone();
            drop(queues);
            return if here { entrance.submit_here(job) } else { entrance.submit(job) };
        }
        let context = self.driver.device(device);
        match context.and_then(|context| CopyQueue::start(&context, direction, Arc::clone(&self.reaper))) {
            Ok(queue) => queues.copies.entry((device, direction)).or_insert(queue).entrance().submit(job),
            Err(error) => job.done.err(error),
        }
    }

    /// Hands a look to the thread of the device for looks, and starts that thread for the first one.
    fn submit_look(&self, device: Ordinal, look: Look) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.closed {
            return look.done.err(ended());
        }
        if let Some(queue) = queues.looks.get(&device) {
            return queue.submit(look);
        }
        let answers = self.pools[&self.kind(device, false)].clone();
        let context = self.driver.device(device);
        match context.and_then(|context| LookQueue::start(&context, Arc::clone(&self.reaper), answers)) {
            Ok(queue) => queues.looks.entry(device).or_insert(queue).submit(look),
            Err(error) => look.done.err(error),
        }
    }
}

impl Device for CudaDevice {
    fn name(&self, device: Ordinal) -> String {
        cuda::name(device)
    }

    fn mark(&self, device: Ordinal, stream: u64) -> Result<Mark> {
        self.driver.device(device)?.mark(stream)
    }

    fn lease(&self, device: Ordinal, bytes: usize, shown: bool) -> Result<Lease> {
        if bytes as u64 > self.pinned_bytes_max {
            return Err(Error::Exhausted {
                what: format!("{} of pinned memory", print_bytes(bytes as u64)),
                limit: print_bytes(self.pinned_bytes_max),
                hint: "raise pinned_bytes_max, or lower partition_bytes".to_owned(),
            });
        }
        Ok(self.pools[&self.kind(device, shown)].lease(bytes))
    }

    fn lease_again(&self, device: Ordinal, bytes: usize, shown: bool) -> Option<Lease> {
        self.pools[&self.kind(device, shown)].lease_again(bytes)
    }

    fn in_copies(&self, dtype: DType, codec: CodecSpec) -> InCopies {
        relay::in_copies(dtype, codec)
    }

    fn copy(&self, transfer: Transfer, after: &[Mark], issued: OnIssue, done: Done<()>) {
        self.begin(Job { transfer, after: after.to_vec(), issued, done }, false);
    }

    fn copy_here(&self, transfer: Transfer, after: &[Mark], issued: OnIssue, done: Done<()>) {
        self.begin(Job { transfer, after: after.to_vec(), issued, done }, true);
    }

    fn all_finite(&self, runs: Vec<DeviceRegion>, dtype: DType, after: &[Mark], done: Done<bool>) {
        let Some(device) = runs.iter().find(|run| !run.is_empty()).map(DeviceRegion::device) else {
            return done.ok(true);
        };
        if runs.iter().any(|run| run.device() != device) {
            return done.err(Error::Internal { what: "a look at memory of several devices".to_owned() });
        }
        self.submit_look(device, Look { runs, dtype, after: after.to_vec(), done });
    }

    fn shutdown(&self, doubt: &Doubt) {
        let (copies, looks) = {
            let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            queues.closed = true;
            (std::mem::take(&mut queues.copies), std::mem::take(&mut queues.looks))
        };
        // Ends all threads before it waits for any. The deadline is one for all of them.
        let ends = copies.into_values().map(CopyQueue::close).chain(looks.into_values().map(LookQueue::close));
        let ends: Vec<_> = ends.collect();
        let deadline = now() + self.patience;
        let left = || deadline.saturating_duration_since(now());
        ends.iter().for_each(|thread| thread.join(left()));
        if !self.reaper.shutdown(left()) {
            doubt.raise().keep();
        }
        // Freeing it would also wait for all work of the device, which may not end.
        if doubt.exists() {
            self.backing.keep();
        }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.shutdown(&Doubt::default());
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice").field("driver", &self.driver).field("pools", &self.pools).finish_non_exhaustive()
    }
}

/// The device and the direction of the queue that copies `transfer`; `None` if there is nothing to copy.
fn route(transfer: &Transfer) -> Result<Option<(Ordinal, Direction)>> {
    let (direction, runs, form, other): (_, &[DeviceRegion], _, _) = match transfer {
        Transfer::Out { from, to } => (Direction::Out, from, None, to.len()),
        Transfer::In { from, to } => (Direction::In, to, None, from.len()),
        Transfer::Encode { from, to, coding, seed } => {
            (Direction::Out, from, Some((coding, Some(seed.round()))), to.len())
        }
        Transfer::Decode { from, to, coding } => (Direction::In, to, Some((coding, None)), from.len()),
        Transfer::Within { from, to } => {
            if from.device() != to.device() {
                return Err(unequal(format!("from cuda:{} to cuda:{}", from.device(), to.device())));
            }
            (Direction::Within, std::slice::from_ref(from), None, to.len())
        }
    };
    let bytes: u64 = runs.iter().map(|run| bytes_here(form, run)).sum::<Result<_>>()?;
    let varies = form.is_some_and(|(coding, _)| coding.codec.varies());
    let is_sum_that_varies = varies && direction == Direction::In;
    if varies && runs.len() != 1 || !is_sum_that_varies && bytes != other as u64 || bytes < other as u64 {
        return Err(unequal(format!("of {bytes} and {other} bytes")));
    }
    let Some(device) = runs.first().map(DeviceRegion::device).filter(|_| bytes > 0) else { return Ok(None) };
    if runs.iter().any(|run| run.device() != device) {
        return Err(unequal(format!("of several devices, the first of which is cuda:{device}")));
    }
    Ok(Some((device, direction)))
}

/// Bytes of a run on the host: of its body, if it is encoded. If the length of bodies varies, these are the most, and in a round that encodes
/// the room of the body.
fn bytes_here(form: Option<(&Coding, Option<Round>)>, run: &DeviceRegion) -> Result<u64> {
    let Some((coding, round)) = form else { return Ok(run.len() as u64) };
    let Coding { dtype, codec, .. } = coding;
    let least = if round.is_some() { InCopies::Encode } else { InCopies::EncodeAndDecode };
    if relay::in_copies(*dtype, *codec) < least {
        return Err(unequal(format!("of {dtype} as {codec}")));
    }
    let varying = round.and_then(|round| Varying::of(coding, round, run.len() as u64 / dtype.bytes()));
    Ok(varying.map_or_else(|| parts::body_bytes(coding, run.len()), Varying::room))
}

#[expect(clippy::disallowed_methods, reason = "how long a device takes is measured where it is waited for")]
fn now() -> Instant {
    Instant::now()
}

fn unequal(what: String) -> Error {
    Error::Internal { what: format!("a copy between regions {what}") }
}

#[cfg(test)]
mod tests {
    use fakecuda::Control;

    use super::*;
    use crate::codec::testing;
    use crate::cuda::fake;
    use crate::local::numa;
    use crate::mem::borrow::region_of;

    #[test]
    fn sides_of_different_length_or_device_are_refused() {
        let mut host = [0; 8];
        let mut out = |from| route(&Transfer::Out { from, to: region_of(&mut host) });
        let run = |device, len| DeviceRegion::new(Ordinal(device), 0x1000, len);
        assert_eq!(out(vec![run(1, 6), run(1, 2)]), Ok(Some((Ordinal(1), Direction::Out))));
        assert!(matches!(out(vec![run(1, 6)]), Err(Error::Internal { .. })));
        assert!(matches!(out(vec![run(1, 6), run(0, 2)]), Err(Error::Internal { .. })));
        assert!(matches!(out(Vec::new()), Err(Error::Internal { .. })));
        let mut encoded = |bytes, codec| {
            let coding = Coding { dtype: DType::F32, codec, divisor: 1.0 };
            let (from, to, seed) = (vec![run(1, bytes)], region_of(&mut host), testing::SEED());
            route(&Transfer::Encode { from, to, coding, seed })
        };
        assert_eq!(encoded(16, CodecSpec::BF16), Ok(Some((Ordinal(1), Direction::Out))));
        assert!(matches!(encoded(8, CodecSpec::BF16), Err(Error::Internal { .. })));
        assert!(matches!(encoded(16, CodecSpec::PLAIN), Err(Error::Internal { .. })));
        assert_eq!(encoded(16, "int8".parse().unwrap()), Ok(Some((Ordinal(1), Direction::Out))), "a scale and codes");
        assert!(matches!(encoded(16, "int8:feedback=1".parse().unwrap()), Err(Error::Internal { .. })));
        // One entry of 5 bytes, and the length of the body; the sum of it has any length that is not above that of the elements.
        let topk: CodecSpec = "topk:count=1".parse().unwrap();
        assert!(matches!(encoded(400, topk), Err(Error::Internal { .. })), "24 bytes");
        let mut host = [0; 40];
        let mut routed = |runs: Vec<DeviceRegion>, bytes: usize, is_encoded: bool| {
            let coding = Coding { dtype: DType::F32, codec: topk, divisor: 1.0 };
            let (host, seed) = (region_of(&mut host[..bytes]), testing::SEED());
            route(&match is_encoded {
                true => Transfer::Encode { from: runs, to: host, coding, seed },
                false => Transfer::Decode { from: host, to: runs, coding },
            })
        };
        assert_eq!(routed(vec![run(1, 400)], 24, true), Ok(Some((Ordinal(1), Direction::Out))));
        assert!(matches!(routed(vec![run(1, 400), run(1, 0)], 24, true), Err(Error::Internal { .. })), "one run");
        for bytes in [1, 7, 24, 40] {
            assert_eq!(routed(vec![run(1, 40)], bytes, false), Ok(Some((Ordinal(1), Direction::In))));
        }
        assert!(matches!(routed(vec![run(1, 36)], 40, false), Err(Error::Internal { .. })));
        let within = |to| route(&Transfer::Within { from: run(0, 4), to });
        assert_eq!(within(run(0, 4)), Ok(Some((Ordinal(0), Direction::Within))));
        assert!(matches!(within(run(1, 4)), Err(Error::Internal { .. })));
    }

    #[test]
    fn there_is_nothing_to_do_for_no_bytes() {
        assert_eq!(route(&Transfer::In { from: region_of(&mut []), to: Vec::new() }), Ok(None));
    }

    #[test]
    fn what_stages_for_a_device_is_pinned_near_it() {
        if !numa::can_prefer() {
            return;
        }
        let machine = tempfile::tempdir().unwrap();
        let (control, driver) = fake::driver();
        let [near, anywhere] = [Ordinal(NEAR), Ordinal(NEAR + 1)];
        for (device, node) in [(near, "0"), (anywhere, "-1")] {
            let address = driver.facts(device).unwrap().pci_bus_id;
            fake::lay_out(machine.path(), &format!("pci0000:a0/0000:a0:00.0/{address}"), node);
        }
        let config = Config { cuda_lib: Some(fakecuda::library()), ..Config::default() };
        let cuda = CudaDevice::load_below(machine.path(), &config).unwrap();
        // What is pinned counts for the first device that was used.
        cuda.mark(near, 0).unwrap();
        let counted = || ["pinned_ranges", "pinned_near"].map(|name| control.counter(i32::from(NEAR), name));
        let _anywhere = cuda.lease(anywhere, 1000, false).unwrap();
        assert_eq!(counted(), [1, 0]);
        let _near = [1000, 2000].map(|bytes| cuda.lease(near, bytes, false).unwrap());
        assert_eq!(counted(), [2, 1], "a slab of its own, and both leases in it");
        let _elsewhere = cuda.lease(Ordinal(u16::MAX), 1000, false).unwrap();
        assert_eq!(counted(), [2, 1], "a device whose node is unknown shares the slabs of that kind");
    }

    #[test]
    fn without_a_driver_the_error_says_where_it_was_looked_for() {
        let config = Config { cuda_lib: Some("/nowhere/libcuda.so.1".into()), ..Config::default() };
        let error = CudaDevice::load(&config).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }) && error.to_string().contains("/nowhere"), "{error}");
    }

    /// The fake driver, and its devices.
    pub(super) fn fake_device() -> (Control, CudaDevice) {
        let (control, _driver) = fake::driver();
        let config = Config { cuda_lib: Some(fakecuda::library()), ..Config::default() };
        let cuda = CudaDevice::load(&config).unwrap();
        // Makes the context. Without one, the end of another world would free what this one allocates.
        cuda.mark(Ordinal(0), 0).unwrap();
        (control, cuda)
    }

    /// A device that no other test of this process uses, nor the next.
    const NEAR: u16 = 3;
}
