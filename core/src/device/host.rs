//! A device in the memory of this process, for tests and for programs without a GPU.
//!
//! Addresses are pointers. There is no work on streams, so every mark is reached at once. One thread for each direction makes the copies in
//! order, as copy engines do.
#![expect(unsafe_code, reason = "memory is known by address, as that of a real device is")]

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::{Device, Transfer, Varying};
use crate::codec::{Malformed, Tools, Workspace};
use crate::cuda::{Mark, OnIssue};
use crate::error::{Error, Result};
use crate::local::SharedBacking;
use crate::mem::{Copies, DeviceRegion, Doubt, Lease, Ordinal, Pool, Region};
use crate::reduce::Kernels;
use crate::types::{CodecSpec, DType, Done, InCopies, Span};

/// Devices of this kind. Dropping it shuts it down.
pub struct HostDevice {
    devices: u16,
    pool: Pool,
    /// Memory that other processes can map.
    shown_pool: Pool,
    /// `None` after the shutdown.
    queues: Mutex<Option<CopyQueues>>,
}

/// One queue and one thread for each direction: out, in, within.
struct CopyQueues {
    submit: [Sender<Job>; 3],
    threads: [JoinHandle<()>; 3],
}

struct Job {
    transfer: Transfer,
    done: Done<()>,
}

impl HostDevice {
    /// Starts `devices` devices in the memory of this process. `copies` counts the bytes that are copied from them, which is the staging.
    ///
    /// # Safety
    /// Every [`DeviceRegion`] that it gets keeps the contract of [`Region::new`].
    ///
    /// # Errors
    /// [`Error::Io`] if the system cannot start a thread.
    pub unsafe fn start(devices: u16, copies: &Copies) -> Result<Self> {
        let spawn = |name: &str| {
            let ((submit, jobs), copies) = (unbounded(), copies.clone());
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&jobs, &copies));
            thread
                .map(|thread| (submit, thread))
                .map_err(|error| Error::Io { what: format!("starting thread {name}"), cause: error.to_string() })
        };
        let ((out, from), (back, to), (within, inside)) =
            (spawn("gl-host-out")?, spawn("gl-host-in")?, spawn("gl-host-within")?);
        let queues = CopyQueues { submit: [out, back, within], threads: [from, to, inside] };
        let shown_pool = Pool::on(Arc::new(SharedBacking::new()));
        Ok(Self { devices, pool: Pool::new(), shown_pool, queues: Mutex::new(Some(queues)) })
    }
}

impl Device for HostDevice {
    fn name(&self, device: Ordinal) -> String {
        format!("host:{device}")
    }

    fn mark(&self, device: Ordinal, _stream: u64) -> Result<Mark> {
        if device.0 < self.devices {
            return Ok(Mark::Reached);
        }
        Err(Error::InvalidArgument {
            what: format!("device {device} of {}", self.devices),
            hint: "devices count from 0".to_owned(),
        })
    }

    fn lease(&self, _device: Ordinal, bytes: usize, shown: bool) -> Result<Lease> {
        Ok(if shown { &self.shown_pool } else { &self.pool }.lease(bytes))
    }

    fn lease_again(&self, device: Ordinal, bytes: usize, shown: bool) -> Option<Lease> {
        self.lease(device, bytes, shown).ok()
    }

    fn in_copies(&self, dtype: DType, codec: CodecSpec) -> InCopies {
        let knows = codec != CodecSpec::PLAIN && codec.encodes(dtype);
        if knows { InCopies::EncodeAndDecode } else { InCopies::Nothing }
    }

    fn copy(&self, transfer: Transfer, _after: &[Mark], _issued: OnIssue, done: Done<()>) {
        let queue = match transfer {
            Transfer::Out { .. } | Transfer::Encode { .. } => 0,
            Transfer::In { .. } | Transfer::Decode { .. } => 1,
            Transfer::Within { .. } => 2,
        };
        let job = Job { transfer, done };
        let refused = match &*self.queues.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(queues) => queues.submit[queue].send(job).err().map(|job| job.0),
            None => Some(job),
        };
        if let Some(job) = refused {
            job.done.err(Error::Unavailable { what: "the device".to_owned(), cause: "it was shut down".to_owned() });
        }
    }

    fn copy_here(&self, transfer: Transfer, after: &[Mark], issued: OnIssue, done: Done<()>) {
        self.copy(transfer, after, issued, done);
    }

    /// Looks on this thread.
    fn all_finite(&self, runs: Vec<DeviceRegion>, dtype: DType, _after: &[Mark], done: Done<bool>) {
        let kernels = Kernels::detect();
        done.ok(runs.iter().all(|run| {
            // SAFETY: by the contract of `start`.
            let run = unsafe { region(run) };
            // SAFETY: a contribution is not written while it is looked at.
            kernels.all_finite(dtype, unsafe { run.as_slice() })
        }));
    }

    fn shutdown(&self, _doubt: &Doubt) {
        // Finishes all submitted copies, which is quick because they only copy memory.
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(CopyQueues { submit, threads }) = queues else { return };
        drop(submit);
        for thread in threads {
            // The outcome of a copy may end the device, on one of these threads.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        self.shutdown(&Doubt::default());
    }
}

impl fmt::Debug for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostDevice").field("devices", &self.devices).finish_non_exhaustive()
    }
}

fn work(jobs: &Receiver<Job>, copies: &Copies) {
    while let Ok(Job { transfer, done }) = jobs.recv() {
        match make(transfer, copies) {
            Ok(()) => done.ok(()),
            Err(error) => done.err(error),
        }
    }
}

/// Makes a copy.
///
/// # Errors
/// [`Error::Protocol`] for a body that no encoder makes.
fn make(transfer: Transfer, copies: &Copies) -> Result<()> {
    match transfer {
        Transfer::Out { from, to } => {
            let mut rest = to;
            for run in &from {
                let (mut to, later) = rest.split_at(run.len());
                // SAFETY: by the contract of `start`, and staging memory belongs to this copy alone.
                let (from, to) = unsafe { (region(run), to.as_mut_slice()) };
                // SAFETY: a contribution is not written while it is copied.
                copies.copy(unsafe { from.as_slice() }, to);
                rest = later;
            }
        }
        Transfer::In { from, to } => {
            let mut rest = from;
            for run in &to {
                let (from, later) = rest.split_at(run.len());
                // SAFETY: by the contract of `start`.
                unsafe { region(run) }.copy_from(&from);
                rest = later;
            }
        }
        Transfer::Encode { from, to, coding, seed } => {
            let codec = coding.codec();
            let (mut rest, mut first) = (to, 0);
            for run in &from {
                let len = run.len() as u64 / coding.dtype.bytes();
                let varying = Varying::of(&coding, seed.round(), len);
                let bytes = varying.map_or_else(|| codec.body_bytes(len).max(), Varying::room);
                let (mut to, later) = rest.split_at(usize::try_from(bytes).expect("less than the run"));
                // SAFETY: by the contract of `start`, and staging memory belongs to this copy alone.
                let (from, to) = unsafe { (region(run), to.as_mut_slice()) };
                // SAFETY: a contribution is not written while it is copied.
                let from = unsafe { from.as_slice() };
                let seed = seed.from_element(first);
                let tools = Tools { kernels: Kernels::detect(), seed, workspace: &mut Workspace::default() };
                match varying {
                    None => {
                        codec.encode(tools, coding.divisor, from, to).expect("what has an exact length is not refused");
                    }
                    Some(varying) => {
                        let Span { bytes: longest, .. } = varying.longest();
                        let used = codec.encode(tools, coding.divisor, from, &mut to[..longest as usize]);
                        varying.tell(to, used.ok().map(|used| used as u64));
                    }
                }
                (rest, first) = (later, first + len);
            }
        }
        Transfer::Decode { from, to, coding } => {
            let codec = coding.codec();
            let mut rest = from;
            for run in &to {
                let bytes = codec.body_bytes(run.len() as u64 / coding.dtype.bytes()).max();
                // A body whose length varies is the only one.
                let bytes = if coding.codec.varies() { rest.len() } else { bytes as usize };
                let (from, later) = rest.split_at(bytes);
                // SAFETY: by the contract of `start`.
                let mut to = unsafe { region(run) };
                // SAFETY: the sum and its place are nobody else's while it is copied.
                let (from, to) = unsafe { (from.as_slice(), to.as_mut_slice()) };
                codec.decode(Kernels::detect(), from, to).map_err(broken)?;
                rest = later;
            }
        }
        Transfer::Within { from, to } => {
            // SAFETY: by the contract of `start`.
            let (from, mut to) = unsafe { (region(&from), region(&to)) };
            to.copy_from(&from);
        }
    }
    Ok(())
}

fn broken(malformed: Malformed) -> Error {
    Error::Protocol { peer: "the server of a sum".to_owned(), field: "body".to_owned(), problem: malformed.to_string() }
}

/// # Safety
/// The contract of [`Region::new`].
unsafe fn region(run: &DeviceRegion) -> Region {
    let address = usize::try_from(run.address()).expect("a pointer of this process");
    // SAFETY: by the caller's promise.
    unsafe { Region::new(address as *mut u8, run.len()) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::codec::{Coding, testing};
    use crate::mem::borrow::region_of;

    #[test]
    fn runs_are_copied_one_after_the_other_out_and_in_and_staging_is_counted() {
        let (device, copies) = start();
        let (mut there, mut here) = (*b"abcdefgh", [0; 5]);
        let runs = |memory: &mut [u8]| vec![run(&mut memory[1..3]), run(&mut memory[4..7])];
        let from = runs(&mut there);
        copy(&device, Transfer::Out { from, to: region_of(&mut here) });
        assert_eq!((&here, copies.bytes()), (b"bcefg", 5));
        here = *b"BCEFG";
        let to = runs(&mut there);
        copy(&device, Transfer::In { from: region_of(&mut here), to });
        assert_eq!(&there, b"aBCdEFGh");
        let (from, to) = (run(&mut there[..2]), run(&mut there[6..]));
        copy(&device, Transfer::Within { from, to });
        assert_eq!((&there, copies.bytes()), (b"aBCdEFaB", 5));
    }

    #[test]
    fn elements_are_encoded_on_their_way_out_and_decoded_on_their_way_in() {
        let (device, _) = start();
        let coding = Coding { dtype: DType::F32, codec: CodecSpec::BF16, divisor: 2.0 };
        let mut there = [2.0_f32, 512.0 + 1.0, -6.0].map(f32::to_le_bytes).concat();
        let mut here = [0; 6];
        let from = vec![run(&mut there[..4]), run(&mut there[4..])];
        copy(&device, Transfer::Encode { from, to: region_of(&mut here), coding, seed: testing::SEED() });
        let to = vec![run(&mut there[..4]), run(&mut there[4..])];
        copy(&device, Transfer::Decode { from: region_of(&mut here), to, coding });
        assert_eq!(there, [1.0_f32, 256.0, -3.0].map(f32::to_le_bytes).concat(), "halved, and 256.5 rounded");
    }

    #[test]
    fn what_is_drawn_goes_on_from_run_to_run() {
        let (device, _) = start();
        let coding = Coding { dtype: DType::F32, codec: CodecSpec::BF16.with_stochastic(), divisor: 1.0 };
        let mut there = [1.003_f32; 300].map(f32::to_le_bytes).concat();
        let [mut whole, mut halves] = [[0; 600]; 2];
        for (to, cut) in [(&mut whole, 1200), (&mut halves, 400)] {
            let from = there.chunks_mut(cut).map(run).collect();
            copy(&device, Transfer::Encode { from, to: region_of(to), coding, seed: testing::SEED() });
        }
        assert_eq!(whole, halves);
        assert_ne!(whole[..300], whole[300..], "some are rounded up, and some down");
    }

    #[test]
    fn a_body_that_no_encoder_makes_is_an_error() {
        let (device, _) = start();
        let coding = Coding { dtype: DType::F32, codec: "int8".parse().unwrap(), divisor: 1.0 };
        let (mut here, mut there) = ([0, 0, 0, 0, 0x80], [0; 4]);
        let transfer = Transfer::Decode { from: region_of(&mut here), to: vec![run(&mut there)], coding };
        let (sender, outcome) = mpsc::channel();
        device.copy(transfer, &[], OnIssue::nobody(), Done::new(move |outcome| sender.send(outcome).unwrap()));
        assert!(matches!(outcome.recv(), Ok(Err(Error::Protocol { .. }))));
    }

    #[test]
    fn after_the_end_copies_are_refused_and_what_was_asked_for_is_done() {
        let (device, _) = start();
        let (mut there, mut here) = ([7; 4], [0; 4]);
        let (sender, outcome) = mpsc::channel();
        let transfer = Transfer::Out { from: vec![run(&mut there)], to: region_of(&mut here) };
        device.copy(transfer, &[], OnIssue::nobody(), Done::new(move |outcome| sender.send(outcome).unwrap()));
        device.shutdown(&Doubt::default());
        assert_eq!((outcome.recv(), here), (Ok(Ok(())), [7; 4]));
        let (sender, outcome) = mpsc::channel();
        let transfer = Transfer::Within { from: run(&mut there), to: run(&mut there) };
        device.copy(transfer, &[], OnIssue::nobody(), Done::new(move |outcome| sender.send(outcome).unwrap()));
        assert!(matches!(outcome.recv(), Ok(Err(Error::Unavailable { .. }))));
    }

    #[test]
    fn only_what_there_is_can_be_marked() {
        let (device, _) = start();
        assert!(device.mark(Ordinal(0), 0).is_ok());
        assert!(matches!(device.mark(Ordinal(1), 0), Err(Error::InvalidArgument { .. })));
    }

    fn start() -> (HostDevice, Copies) {
        let copies = Copies::default();
        // SAFETY: the tests keep what they give to it until it was copied.
        (unsafe { HostDevice::start(1, &copies) }.unwrap(), copies)
    }

    fn run(memory: &mut [u8]) -> DeviceRegion {
        DeviceRegion::new(Ordinal(0), memory.as_mut_ptr() as u64, memory.len())
    }

    fn copy(device: &HostDevice, transfer: Transfer) {
        let (sender, outcome) = mpsc::channel();
        device.copy(transfer, &[], OnIssue::nobody(), Done::new(move |outcome| sender.send(outcome).unwrap()));
        assert_eq!(outcome.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
    }
}
