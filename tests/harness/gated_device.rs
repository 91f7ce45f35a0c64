//! A device whose memory is this process's and whose copies a test can hold up, look at and let fail.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;

use gradlane_core::cuda::{Mark, OnIssue};
use gradlane_core::device::{Device, HostDevice, Transfer};
use gradlane_core::engine::{Memory, Submission};
use gradlane_core::error::Tensors;
use gradlane_core::mem::{Copies, DeviceRegion, Doubt, Lease, Ordinal};
use gradlane_core::types::{CodecSpec, DType, Done, InCopies, Op};
use gradlane_core::{Error, Result};

use crate::cluster::{PATIENCE, Tensor};
use crate::element::Element;

/// See the module.
#[derive(Debug)]
pub struct TestDevice {
    inner: HostDevice,
    state: Mutex<State>,
    changed: Condvar,
}

/// Which copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the device.
    Out,
    /// To the device.
    In,
}

#[derive(Default, Debug)]
struct State {
    /// Copies of this direction are held.
    closed: Option<Direction>,
    held: VecDeque<(Transfer, Done<()>)>,
    /// Where every copy of this device's memory began, in the order in which they were asked for.
    asked: Vec<(Direction, u64)>,
    /// The next copy of this direction fails.
    fails: Option<Direction>,
    /// The threads that asked for copies which they may submit themselves.
    submitters: Vec<ThreadId>,
}

impl State {
    fn of(&self, direction: Direction) -> impl Iterator<Item = u64> {
        self.asked.iter().filter(move |(asked, _)| *asked == direction).map(|(_, at)| *at)
    }
}

impl TestDevice {
    /// Two of them.
    ///
    /// # Panics
    /// If the system gives no threads.
    #[expect(unsafe_code, reason = "tests lend their vectors as memory of a device")]
    pub fn start() -> Arc<Self> {
        // SAFETY: memory belongs to tensors whose owners wait for their handles before they touch or drop them.
        let inner = unsafe { HostDevice::start(2, &Copies::default()) }.expect("threads");
        Arc::new(Self { inner, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Holds copies of this direction from now on.
    pub fn close(&self, direction: Direction) {
        self.state.lock().expect(LOCK).closed = Some(direction);
    }

    /// Makes all copies that were held, and holds none any more.
    pub fn open(&self) {
        let held = {
            let mut state = self.state.lock().expect(LOCK);
            state.closed = None;
            std::mem::take(&mut state.held)
        };
        for (transfer, done) in held {
            self.inner.copy(transfer, &[], OnIssue::nobody(), done);
        }
    }

    /// Makes the copy that is held for longest.
    ///
    /// # Panics
    /// If none is.
    pub fn let_one_through(&self) {
        let (transfer, done) = self.state.lock().expect(LOCK).held.pop_front().expect("one is held");
        self.inner.copy(transfer, &[], OnIssue::nobody(), done);
    }

    /// Waits until so many copies of this direction were asked for, and says where they begin on the device.
    ///
    /// # Panics
    /// If they are not within [`PATIENCE`].
    pub fn asked(&self, direction: Direction, copies: usize) -> Vec<u64> {
        let state = self.state.lock().expect(LOCK);
        let too_few = |state: &mut State| state.of(direction).count() < copies;
        let (state, timeout) = self.changed.wait_timeout_while(state, PATIENCE, too_few).expect(LOCK);
        assert!(!timeout.timed_out(), "{} of {copies} copies were asked for", state.of(direction).count());
        state.of(direction).collect()
    }

    /// Forgets what was asked for so far.
    pub fn forget(&self) {
        self.state.lock().expect(LOCK).asked.clear();
    }

    /// The threads that asked for copies which they may submit themselves.
    pub fn submitters(&self) -> Vec<ThreadId> {
        self.state.lock().expect(LOCK).submitters.clone()
    }

    /// Lets the next copy of this direction fail.
    pub fn fail(&self, direction: Direction) {
        self.state.lock().expect(LOCK).fails = Some(direction);
    }
}

impl Device for TestDevice {
    fn name(&self, device: Ordinal) -> String {
        self.inner.name(device)
    }

    fn mark(&self, device: Ordinal, stream: u64) -> Result<Mark> {
        self.inner.mark(device, stream)
    }

    fn lease(&self, device: Ordinal, bytes: usize, shown: bool) -> Result<Lease> {
        self.inner.lease(device, bytes, shown)
    }

    fn lease_again(&self, device: Ordinal, bytes: usize, shown: bool) -> Option<Lease> {
        self.inner.lease_again(device, bytes, shown)
    }

    fn in_copies(&self, dtype: DType, codec: CodecSpec) -> InCopies {
        self.inner.in_copies(dtype, codec)
    }

    fn copy(&self, transfer: Transfer, after: &[Mark], issued: OnIssue, done: Done<()>) {
        let (direction, at) = match &transfer {
            Transfer::Out { from: runs, .. } | Transfer::Encode { from: runs, .. } => {
                (Direction::Out, runs[0].address())
            }
            Transfer::In { to: runs, .. } | Transfer::Decode { to: runs, .. } => (Direction::In, runs[0].address()),
            Transfer::Within { .. } => return self.inner.copy(transfer, after, issued, done),
        };
        let mut state = self.state.lock().expect(LOCK);
        state.asked.push((direction, at));
        self.changed.notify_all();
        if state.fails == Some(direction) {
            state.fails = None;
            drop(state);
            let [device, what, cause] = ["host:0", "a copy", "it was told to fail"].map(str::to_owned);
            return done.err(Error::Device { device, what, tensor: Tensors::Unknown, cause });
        }
        if state.closed == Some(direction) {
            return state.held.push_back((transfer, done));
        }
        drop(state);
        self.inner.copy(transfer, after, issued, done);
    }

    fn copy_here(&self, transfer: Transfer, after: &[Mark], issued: OnIssue, done: Done<()>) {
        self.state.lock().expect(LOCK).submitters.push(std::thread::current().id());
        self.copy(transfer, after, issued, done);
    }

    fn all_finite(&self, runs: Vec<DeviceRegion>, dtype: DType, after: &[Mark], done: Done<bool>) {
        self.inner.all_finite(runs, dtype, after, done);
    }

    fn shutdown(&self, doubt: &Doubt) {
        self.open();
        self.inner.shutdown(doubt);
    }
}

impl<T: Element> Tensor<T> {
    /// As [`submission`](Self::submission), of the same memory as that of a device.
    pub fn on_device(&mut self, op: Op) -> Submission {
        self.on(Ordinal(0), op)
    }

    /// As [`on_device`](Self::on_device), of a certain one.
    pub fn on(&mut self, device: Ordinal, op: Op) -> Submission {
        let [source, destination] = [(); 2].map(|()| self.memory_of(device));
        Submission { source, destination, ..self.submission(op) }
    }

    /// The tensor's memory as that of a device.
    pub fn memory_of(&mut self, device: Ordinal) -> Memory {
        let (address, bytes) = (self.data.as_mut_ptr() as u64, self.data.len() * size_of::<T>());
        Memory::Device { region: DeviceRegion::new(device, address, bytes), after: Mark::Reached }
    }
}

const LOCK: &str = "nobody panics while holding it";
