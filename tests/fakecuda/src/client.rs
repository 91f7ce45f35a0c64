//! How tests find the library and steer it.

use std::path::{Path, PathBuf};

use crate::built;
use crate::steering::{Steering, text};

/// Where the built library lies.
///
/// Whoever depends on this crate, also only for its tests, has it built by cargo beside its own test programs; programs and examples lie
/// one folder above. Processes that cargo does not start, such as Python's tests, take `target/release/libfakecuda.so` after
/// `cargo build --release -p fakecuda`.
///
/// # Panics
/// If it is not there.
pub fn library() -> PathBuf {
    built::beside_this_program("libfakecuda.so")
}

/// The library as a test sees it: settings, counters, and memory and streams of its own, which stand for a framework's.
///
/// All of it acts on the one state of this process, whoever else uses the library. Tests that share a process take a device each.
#[derive(Debug)]
pub struct Control(Steering);

/// A graph that can be launched, as long as the process lives.
#[derive(Debug)]
pub struct Exec(usize);

impl Control {
    /// Maps the library, or finds it mapped, and keeps it.
    ///
    /// # Panics
    /// If there is none.
    pub fn open(path: &Path) -> Self {
        Self(Steering::of(path))
    }

    /// Initializes the driver, whatever `FAIL` says about `cuInit`.
    pub fn initialize(&self) {
        self.0.call("fakecuda_initialize", |function: extern "C" fn() -> u32| function());
    }

    /// Changes a setting, by its name without `FAKECUDA_`.
    ///
    /// # Panics
    /// If it is not understood.
    pub fn set(&self, name: &str, value: &str) {
        self.0.set("fakecuda_set", name, value);
    }

    /// A counter of a device; the names are the fields of `Counters` in `counters.rs`.
    ///
    /// # Panics
    /// If there is no such counter or device.
    pub fn counter(&self, device: i32, name: &str) -> u64 {
        let name = text(name);
        let mut value = 0;
        type Counter = extern "C" fn(i32, *const i8, *mut u64) -> u32;
        self.0.call("fakecuda_counter", |counter: Counter| counter(device, name.as_ptr().cast(), &raw mut value));
        value
    }

    /// How often a function was called in this process; with its suffix, such as `cuMemAlloc_v2`.
    pub fn calls(&self, name: &str) -> u64 {
        let name = text(name);
        let mut value = 0;
        type Calls = extern "C" fn(*const i8, *mut u64) -> u32;
        self.0.call("fakecuda_calls", |calls: Calls| calls(name.as_ptr().cast(), &raw mut value));
        value
    }

    /// Lets a device answer `code` to everything from now on; 0 makes it well again.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn fail_device(&self, device: i32, code: u32) {
        self.0.call("fakecuda_fail_device", |fail: extern "C" fn(i32, u32) -> u32| fail(device, code));
    }

    /// Keeps the context of a device, as a framework does: what was allocated there stays when an engine lets go of it.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn retain(&self, device: i32) {
        let mut context = 0;
        type Retain = extern "C" fn(*mut usize, i32) -> u32;
        self.0.call("cuDevicePrimaryCtxRetain", |retain: Retain| retain(&raw mut context, device));
    }

    /// Ends [`retain`](Self::retain).
    ///
    /// # Panics
    /// If nobody retains it.
    pub fn release(&self, device: i32) {
        self.0.call("cuDevicePrimaryCtxRelease_v2", |release: extern "C" fn(i32) -> u32| release(device));
    }

    /// A stream such as a framework has, non-blocking; its handle. It is not among those that `LAG_STREAM` numbers.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn user_stream(&self, device: i32) -> u64 {
        let mut stream = 0_usize;
        type UserStream = extern "C" fn(i32, *mut usize) -> u32;
        self.0.call("fakecuda_user_stream", |create: UserStream| create(device, &raw mut stream));
        stream as u64
    }

    /// Destroys such a stream. What was put into it is still done.
    ///
    /// # Panics
    /// If there is none.
    pub fn destroy(&self, stream: u64) {
        self.0.call("cuStreamDestroy_v2", |destroy: extern "C" fn(usize) -> u32| destroy(stream as usize));
    }

    /// Makes one stream wait so long before each copy, kernel or host function, whatever the settings say.
    ///
    /// # Panics
    /// If there is no such stream.
    pub fn lag(&self, stream: u64, micros: u64) {
        self.0.call("fakecuda_lag", |lag: extern "C" fn(usize, u64) -> u32| lag(stream as usize, micros));
    }

    /// Memory of a device; its address.
    ///
    /// # Panics
    /// If there is none.
    pub fn allocate(&self, device: i32, bytes: usize) -> u64 {
        let mut address = 0;
        type Allocate = extern "C" fn(i32, usize, *mut u64) -> u32;
        self.0.call("fakecuda_allocate", |allocate: Allocate| allocate(device, bytes, &raw mut address));
        address
    }

    /// Frees what [`allocate`](Self::allocate) gave, after all work of the device.
    ///
    /// # Panics
    /// If it is no allocation.
    pub fn free(&self, address: u64) {
        self.0.call("fakecuda_free", |free: extern "C" fn(u64) -> u32| free(address));
    }

    /// Puts into a stream of `device` that these bytes are written to `address`, and returns at once: what a kernel of a framework does
    /// with a gradient. Stream 0 is the default one.
    ///
    /// # Panics
    /// If the memory is not all of one allocation.
    pub fn produce(&self, device: i32, stream: u64, address: u64, data: &[u8]) {
        type Produce = extern "C" fn(i32, usize, u64, *const u8, usize) -> u32;
        self.0.call("fakecuda_produce", |produce: Produce| {
            produce(device, stream as usize, address, data.as_ptr(), data.len())
        });
    }

    /// Puts into a stream of `device` that bytes at `from` are written to `to`, and returns at once: what a kernel of a framework does that
    /// reads one tensor and makes another.
    ///
    /// # Panics
    /// If the memory is not all of one allocation each.
    pub fn carry(&self, device: i32, stream: u64, (to, from): (u64, u64), len: usize) {
        type Carry = extern "C" fn(i32, usize, u64, u64, usize) -> u32;
        self.0.call("fakecuda_carry", |carry: Carry| carry(device, stream as usize, to, from, len));
    }

    /// What a kernel that was put into the stream now would read at `address`. Waits for the stream.
    ///
    /// # Panics
    /// If the memory is not all of one allocation, or the device failed.
    pub fn consume(&self, device: i32, stream: u64, address: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        type Consume = extern "C" fn(i32, usize, u64, *mut u8, usize) -> u32;
        self.0.call("fakecuda_consume", |consume: Consume| {
            consume(device, stream as usize, address, data.as_mut_ptr(), len)
        });
        data
    }

    /// Where the host sees memory of a device; the same address unless `HIDDEN` is set.
    ///
    /// # Panics
    /// If the memory is not all of one allocation.
    pub fn host_address(&self, address: u64, bytes: usize) -> usize {
        let mut host = 0;
        type HostAddress = extern "C" fn(u64, usize, *mut usize) -> u32;
        self.0.call("fakecuda_host_address", |resolve: HostAddress| resolve(address, bytes, &raw mut host));
        host
    }

    /// Begins a capture of `stream` in the global mode, PyTorch's own: what threads elsewhere do can break it.
    ///
    /// # Panics
    /// If it cannot be captured.
    pub fn begin_capture(&self, stream: u64) {
        const GLOBAL: u32 = 0;
        type Begin = extern "C" fn(usize, u32) -> u32;
        self.0.call("cuStreamBeginCapture_v2", |begin: Begin| begin(stream as usize, GLOBAL));
    }

    /// Ends it, on the thread that began it; what it captured, ready to be launched.
    ///
    /// # Panics
    /// If it was broken meanwhile.
    pub fn end_capture(&self, stream: u64) -> Exec {
        let (mut graph, mut exec) = (0, 0);
        type End = extern "C" fn(usize, *mut usize) -> u32;
        type Instantiate = extern "C" fn(*mut usize, usize, u64) -> u32;
        self.0.call("cuStreamEndCapture", |end: End| end(stream as usize, &raw mut graph));
        self.0.call("cuGraphInstantiateWithFlags", |make: Instantiate| make(&raw mut exec, graph, 0));
        self.0.call("cuGraphDestroy", |destroy: extern "C" fn(usize) -> u32| destroy(graph));
        Exec(exec)
    }

    /// Puts all that was captured into a stream, and returns at once.
    ///
    /// # Panics
    /// If the driver refuses.
    pub fn launch(&self, exec: &Exec, stream: u64) {
        type Launch = extern "C" fn(usize, usize) -> u32;
        self.0.call("cuGraphLaunch", |launch: Launch| launch(exec.0, stream as usize));
    }
}
