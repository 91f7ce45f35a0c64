//! The state of the driver: devices with their primary contexts, and what was created in them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::capture::Captures;
use crate::codes::{Code, Outcome};
use crate::counters::Counters;
use crate::event::{Event, Last, Point};
use crate::faults::Faults;
use crate::graph::{Exec, Graph};
use crate::memory::{Allocation, Memory, Pinned};
use crate::ptx;
use crate::settings::{Held, variable};
use crate::stream::{Kind, Step, Stream, Work};

// One driver in a process is what the interface means; see the head of the crate.
static DRIVER: OnceLock<Driver> = OnceLock::new();

thread_local! {
    /// The stack of contexts of a thread; the last one is current.
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// Whether the thread is a stream's and runs a host function, which may not call the driver.
    static IS_CALLED_BACK: Cell<bool> = const { Cell::new(false) };
}

pub(crate) struct Driver {
    pub(crate) settings: Held,
    pub(crate) faults: Faults,
    pub(crate) captures: Captures,
    memory: Mutex<Memory>,
    /// Of the process that called anything first: a driver does not survive a fork.
    process: u32,
    /// Since `cuInit`.
    devices: OnceLock<Vec<Device>>,
    tables: Mutex<Tables>,
    calls: Mutex<BTreeMap<&'static str, u64>>,
}

pub(crate) struct Device {
    pub(crate) ordinal: usize,
    pub(crate) counters: Counters,
    /// One for each [`Direction`](crate::copies::Direction).
    pub(crate) engines: [Mutex<()>; 3],
    pub(crate) retained: AtomicUsize,
    retaining: Mutex<()>,
    /// The code that everything answers since the device failed; 0 while it has not.
    failed: AtomicU32,
    /// How many kernels run.
    running: Mutex<usize>,
    ended: Condvar,
    legacy: Arc<Stream>,
    per_thread: Arc<Stream>,
}

#[derive(Default)]
pub(crate) struct Tables {
    handles: usize,
    created_streams: usize,
    pub(crate) streams: BTreeMap<usize, Arc<Stream>>,
    pub(crate) events: BTreeMap<usize, Arc<Event>>,
    pub(crate) modules: BTreeMap<usize, ptx::Module>,
    /// With the module of each.
    pub(crate) functions: BTreeMap<usize, (usize, Arc<ptx::Kernel>)>,
    pub(crate) graphs: BTreeMap<usize, Graph>,
    pub(crate) execs: BTreeMap<usize, Arc<Exec>>,
}

impl Driver {
    pub(crate) fn get() -> &'static Self {
        DRIVER.get_or_init(|| {
            let faults = Faults::default();
            let list = variable("FAIL").unwrap_or_default();
            assert!(faults.set(&list), "FAKECUDA_FAIL={list} is not understood");
            Self {
                settings: Held::from_environment(),
                faults,
                captures: Captures::default(),
                memory: Mutex::default(),
                process: std::process::id(),
                devices: OnceLock::new(),
                tables: Mutex::default(),
                calls: Mutex::default(),
            }
        })
    }

    /// What `cuInit` does; the second time nothing.
    pub(crate) fn initialize(&self) {
        let count = self.settings.get().devices;
        self.devices.get_or_init(|| (0..count).map(Device::new).collect());
    }

    /// Whether this process is a fork of the one that has the driver. It has none of its threads, and locks may be held for ever.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    pub(crate) fn is_initialized(&self) -> bool {
        self.devices.get().is_some()
    }

    /// Counts a call, and says with which code it fails before it does anything.
    pub(crate) fn begin(&self, name: &'static str) -> Option<u32> {
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
        let device = CONTEXTS.with_borrow(|contexts| contexts.last().and_then(|context| Device::of_context(*context)));
        self.faults.strike(name, device)
    }

    /// How often the function was called.
    pub(crate) fn calls(&self, name: &str) -> u64 {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied().unwrap_or(0)
    }

    pub(crate) fn is_called_back() -> bool {
        IS_CALLED_BACK.with(Cell::get)
    }

    pub(crate) fn devices(&self) -> &[Device] {
        self.devices.get().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn device(&self, ordinal: i32) -> Outcome<&Device> {
        let ordinal = usize::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?;
        self.devices().get(ordinal).ok_or(Code::INVALID_DEVICE)
    }

    /// The device whose context is current, if it has not failed.
    pub(crate) fn current(&self) -> Outcome<&Device> {
        let context = current_context();
        let device = self.of_context(context)?;
        if device.retained.load(Ordering::Acquire) == 0 {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        device.healthy()?;
        Ok(device)
    }

    pub(crate) fn of_context(&self, context: usize) -> Outcome<&Device> {
        let ordinal = Device::of_context(context).ok_or(Code::INVALID_CONTEXT)?;
        self.devices().get(ordinal).ok_or(Code::INVALID_CONTEXT)
    }

    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream of a handle; 0 and 1 are the legacy default stream of the current context, 2 the per-thread one.
    pub(crate) fn stream(&self, handle: usize) -> Outcome<Arc<Stream>> {
        let found = self.stream_to_look_at(handle)?;
        self.refuse_default(&found, true)?;
        Ok(found)
    }

    /// The same, for a call that puts nothing into it and waits for nothing of it.
    pub(crate) fn stream_to_look_at(&self, handle: usize) -> Outcome<Arc<Stream>> {
        match handle {
            0..=2 => self.stream_of(self.current()?, handle),
            _ => self.stream_called(handle),
        }
    }

    /// An error if `stream` is the legacy default one and a stream is under capture that it would wait for.
    pub(crate) fn refuse_default(&self, stream: &Stream, breaks: bool) -> Outcome {
        if stream.kind != Kind::Legacy {
            return Ok(());
        }
        let streams = self.tables().streams.clone();
        let is_blocking = |handle: usize| {
            streams.get(&handle).is_some_and(|other| other.device == stream.device && other.is_blocking())
        };
        self.captures.refuse_default(is_blocking, breaks)
    }

    fn stream_called(&self, handle: usize) -> Outcome<Arc<Stream>> {
        let tables = self.tables();
        tables.streams.get(&handle).cloned().ok_or_else(|| self.no_handle(&tables, handle, "stream"))
    }

    /// The event of a handle.
    pub(crate) fn event(&self, handle: usize) -> Outcome<Arc<Event>> {
        let tables = self.tables();
        tables.events.get(&handle).cloned().ok_or_else(|| self.no_handle(&tables, handle, "event"))
    }

    /// What comes of a handle that nothing has. The driver may crash if something had it, and so does this, as a test must not get by with
    /// it; unless it is not strict.
    pub(crate) fn no_handle(&self, tables: &Tables, handle: usize, what: &str) -> Code {
        if self.settings.get().is_strict && tables.was_given_out(handle) {
            eprintln!("fakecuda: {what} {handle:#x} is used after its end");
            std::process::abort();
        }
        Code::INVALID_HANDLE
    }

    /// The same, where the default streams are those of `device`.
    pub(crate) fn stream_of(&self, device: &Device, handle: usize) -> Outcome<Arc<Stream>> {
        match handle {
            0 | 1 => Ok(device.legacy.clone()),
            2 => Ok(device.per_thread.clone()),
            _ => self.stream_called(handle),
        }
    }

    /// The stream of a handle, which must be of the current context.
    pub(crate) fn stream_here(&self, handle: usize) -> Outcome<Arc<Stream>> {
        let device = self.current()?;
        let stream = self.stream(handle)?;
        if stream.device == device.ordinal { Ok(stream) } else { Err(Code::INVALID_HANDLE) }
    }

    /// The streams of a device, the default ones too.
    pub(crate) fn streams_of(&self, device: &Device) -> Vec<Arc<Stream>> {
        let created = self.tables();
        let created = created.streams.values().filter(|stream| stream.device == device.ordinal).cloned();
        created.chain([device.legacy.clone(), device.per_thread.clone()]).collect()
    }

    pub(crate) fn create_stream(&self, device: &Device, is_users: bool, flags: u32, priority: i32) -> usize {
        let mut tables = self.tables();
        let kind = if is_users {
            Kind::User
        } else {
            tables.created_streams += 1;
            Kind::Created(tables.created_streams - 1)
        };
        let handle = tables.handle();
        tables.streams.insert(handle, Stream::new(device.ordinal, kind, flags, priority));
        device.counters.live_streams.add(1);
        handle
    }

    /// Puts a step into a stream, after what the rules of the default stream put before it. Work of a stream under capture becomes part of
    /// the capture instead.
    pub(crate) fn submit(&self, handle: usize, stream: &Arc<Stream>, step: Step) {
        let step = match step {
            Step::Work(work) => match self.captures.add(handle, work) {
                Some(work) => Step::Work(work),
                None => return,
            },
            other @ (Step::Graph(_) | Step::Reach(_) | Step::Wait(_) | Step::After(..)) => other,
        };
        let device = &self.devices()[stream.device];
        let before = match stream.kind {
            Kind::Legacy => self.streams_of(device).into_iter().filter(|other| other.is_blocking()).collect(),
            _ if stream.is_blocking() => vec![device.legacy.clone()],
            _ => Vec::new(),
        };
        for other in before.into_iter().filter(|other| !other.is_idle()) {
            let steps = other.submitted();
            stream.submit(Step::After(other, steps));
        }
        stream.submit(step);
    }

    pub(crate) fn record(&self, event: &Event, handle: usize, stream: &Arc<Stream>) {
        if let Some(point) = self.captures.point(handle) {
            return event.record(Last::Captured(point));
        }
        let point = Arc::new(Point::default());
        event.record(Last::In(point.clone()));
        self.submit(handle, stream, Step::Reach(point));
    }

    /// Waits until the stream has done what it was given so far; then whether its device is well.
    pub(crate) fn synchronize(&self, handle: usize) -> Outcome {
        let stream = self.stream(handle)?;
        self.captures.refuse(handle)?;
        self.captures.forbid()?;
        let device = &self.devices()[stream.device];
        device.counters.waits.add(1);
        if stream.kind == Kind::Legacy {
            // It is ordered with the blocking streams; waiting for it is waiting for them.
            self.streams_of(device)
                .iter()
                .filter(|other| other.is_blocking())
                .for_each(|other| other.wait(other.submitted()));
        }
        stream.wait(stream.submitted());
        device.healthy()
    }

    /// Waits for all streams of a device.
    pub(crate) fn drain(&self, device: &Device) {
        for stream in self.streams_of(device) {
            stream.wait(stream.submitted());
        }
    }

    /// Lets a call that puts work into a stream take as long as it should.
    pub(crate) fn take_time(&self) {
        crate::time::pass(self.settings.get().call);
    }

    /// What the driver does before it loads code or pins memory: it waits for all work of the device.
    pub(crate) fn synchronize_implicitly(&self, device: &Device) {
        if self.settings.get().is_strict {
            device.counters.implicit_waits.add(1);
            self.drain(device);
        }
    }

    /// Memory of a device, if it has as much left.
    pub(crate) fn allocate(&self, device: &Device, bytes: usize) -> Outcome<u64> {
        let settings = self.settings.get();
        let mut memory = self.memory();
        if bytes as u64 > settings.memory.saturating_sub(device.counters.device_bytes.get()) {
            return Err(Code::OUT_OF_MEMORY);
        }
        let allocation = memory.allocate(device.ordinal, bytes, (settings.hidden, settings.is_strict))?;
        device.counters.live_allocations.add(1);
        device.counters.device_bytes.add(bytes as u64);
        Ok(allocation.address)
    }

    /// Frees memory of a device, after all work of it, as the driver does.
    pub(crate) fn free(&self, device: &Device, allocation: Arc<Allocation>) {
        // The register and this function; whatever else holds it is in a queue.
        if Arc::strong_count(&allocation) > 2 {
            device.counters.released_in_use.add(1);
        }
        self.drain(device);
        self.memory().release(&allocation);
        device.counters.live_allocations.sub(1);
        device.counters.device_bytes.sub(allocation.bytes as u64);
    }

    /// Ends that a range is pinned, after all work of its device.
    pub(crate) fn unpin(&self, pinned: Arc<Pinned>) {
        let device = &self.devices()[pinned.device];
        if Arc::strong_count(&pinned) > 2 {
            device.counters.released_in_use.add(1);
        }
        self.devices().iter().filter(|device| !device.is_unused()).for_each(|device| self.drain(device));
        self.memory().unpin(&pinned);
        device.counters.pinned_ranges.sub(1);
        device.counters.pinned_bytes.sub(pinned.bytes as u64);
    }

    /// Takes down the primary context: nobody holds it any more.
    pub(crate) fn destroy(&self, device: &Device) {
        self.drain(device);
        let mut tables = self.tables();
        tables.streams.retain(|_, stream| {
            let stays = stream.device != device.ordinal;
            if !stays {
                stream.close();
                device.counters.live_streams.sub(1);
            }
            stays
        });
        let before = tables.events.len();
        tables.events.retain(|_, event| event.device != device.ordinal);
        device.counters.live_events.sub((before - tables.events.len()) as u64);
        drop(tables);
        let allocations = self.memory().of(device.ordinal);
        for allocation in allocations {
            self.free(device, allocation);
        }
    }

    /// Does what a stream took from its queue, unless the device has failed.
    pub(crate) fn execute(&self, device: usize, work: Work) {
        let device = &self.devices()[device];
        if device.healthy().is_err() {
            return;
        }
        let name = match &work {
            Work::Copy(copy) => copy.name(),
            Work::Fill(_) => "Fill",
            Work::Kernel(_) => "Kernel",
            Work::Call(_) => "Host",
        };
        if let Some(code) = self.faults.strike(name, Some(device.ordinal)) {
            return device.fail(code);
        }
        match work {
            Work::Copy(copy) => copy.execute(device, self.settings.get().rate),
            Work::Fill(fill) => fill.execute(),
            Work::Kernel(launch) => {
                let _slot = device.slot(self.settings.get().slots);
                device.counters.kernels.add(1);
                if let Err(code) = launch.execute(self) {
                    device.fail(code.0);
                }
            }
            Work::Call(call) => {
                // Whoever stands in for a library puts its kernels into the stream as host functions.
                let _slot = device.slot(self.settings.get().slots);
                device.counters.host_functions.add(1);
                IS_CALLED_BACK.set(true);
                (call.function)(call.argument as *mut c_void);
                IS_CALLED_BACK.set(false);
            }
        }
    }
}

impl Device {
    fn new(ordinal: usize) -> Self {
        Self {
            ordinal,
            counters: Counters::default(),
            engines: Default::default(),
            retained: AtomicUsize::new(0),
            retaining: Mutex::default(),
            failed: AtomicU32::new(0),
            running: Mutex::default(),
            ended: Condvar::new(),
            legacy: Stream::new(ordinal, Kind::Legacy, 0, 0),
            per_thread: Stream::new(ordinal, Kind::PerThread, 0, 0),
        }
    }

    /// The handle of its primary context.
    pub(crate) fn context(&self) -> usize {
        (self.ordinal + 1) << 12
    }

    fn of_context(context: usize) -> Option<usize> {
        (context.is_multiple_of(1 << 12)).then(|| (context >> 12).checked_sub(1)).flatten()
    }

    /// The turn to retain or release its context: who retains it while it is taken down waits, and then has a new one.
    pub(crate) fn retaining(&self) -> MutexGuard<'_, ()> {
        self.retaining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until fewer than `slots` kernels run here. The kernel that has the result runs until it is dropped.
    fn slot(&self, slots: usize) -> Slot<'_> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |running: &mut usize| *running >= slots;
        *self.ended.wait_while(running, full).unwrap_or_else(PoisonError::into_inner) += 1;
        Slot(self)
    }

    fn is_unused(&self) -> bool {
        self.retained.load(Ordering::Acquire) == 0
    }

    /// An error once it has failed.
    pub(crate) fn healthy(&self) -> Outcome {
        match self.failed.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// From now on everything about it answers this; 0 makes it well again.
    pub(crate) fn fail(&self, code: u32) {
        self.failed.store(code, Ordering::Release);
    }
}

/// A running kernel's place on its device.
struct Slot<'a>(&'a Device);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.ended.notify_all();
    }
}

impl Tables {
    /// Looks like a pointer and is none; never given out twice.
    pub(crate) fn handle(&mut self) -> usize {
        self.handles += 1;
        Self::FIRST + (self.handles << 4)
    }

    const FIRST: usize = 1 << 24;

    fn was_given_out(&self, handle: usize) -> bool {
        let number = handle.wrapping_sub(Self::FIRST) >> 4;
        handle.is_multiple_of(16) && (1..=self.handles).contains(&number)
    }
}

/// 0 if there is none.
pub(crate) fn current_context() -> usize {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied().unwrap_or(0))
}

/// Replaces the current context; 0 takes it away.
pub(crate) fn set_context(context: usize) {
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.pop();
        if context != 0 {
            contexts.push(context);
        }
    });
}

pub(crate) fn push_context(context: usize) {
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(context));
}

pub(crate) fn pop_context() -> Outcome<usize> {
    CONTEXTS.with_borrow_mut(Vec::pop).ok_or(Code::INVALID_CONTEXT)
}
