//! The state of the library in this process.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_char};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::codes::{Failure, Outcome};
use crate::comm::Comm;
use crate::cuda::Cuda;
use crate::faults::Faults;
use crate::settings::{Settings, now, variable};

// One library in a process is what the interface means; see the head of the crate.
static LIBRARY: OnceLock<Library> = OnceLock::new();

pub(crate) struct Library {
    settings: Mutex<Settings>,
    /// A setting changed.
    changed: Condvar,
    pub(crate) faults: Faults,
    comms: Mutex<Comms>,
    calls: Mutex<BTreeMap<&'static str, u64>>,
    errors: Mutex<Errors>,
    /// Operations whose turn in their stream has come, but for what is sent and received.
    pub(crate) begun: AtomicU64,
    /// Operations that were executed to their end.
    pub(crate) executed: AtomicU64,
    /// The driver, once it was looked for.
    cuda: OnceLock<Outcome<Cuda>>,
    /// Time in calls of threads that issue groups, and from there until these knew that they were done.
    call_nanoseconds: AtomicU64,
    /// Contexts that were made on the first device because a thread had none.
    contexts_made: AtomicU64,
}

/// How often whoever is held looks for an abort.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Default)]
struct Comms {
    handles: usize,
    live: BTreeMap<usize, Arc<Comm>>,
}

/// Texts of errors. Whoever asked for one holds a pointer, so none is ever freed; there are as many as different errors.
#[derive(Default)]
struct Errors {
    texts: BTreeSet<CString>,
    last: Option<CString>,
}

thread_local! {
    /// The last error of a thread, which is what it asks for.
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

impl Library {
    pub(crate) fn get() -> &'static Self {
        LIBRARY.get_or_init(|| {
            let faults = Faults::default();
            let list = variable("FAKENCCL_FAIL").unwrap_or_default();
            assert!(faults.set(&list), "FAKENCCL_FAIL={list} is not understood");
            Self {
                settings: Mutex::new(Settings::from_environment()),
                changed: Condvar::new(),
                faults,
                comms: Mutex::default(),
                calls: Mutex::default(),
                errors: Mutex::default(),
                begun: AtomicU64::new(0),
                executed: AtomicU64::new(0),
                cuda: OnceLock::new(),
                call_nanoseconds: AtomicU64::new(0),
                contexts_made: AtomicU64::new(0),
            }
        })
    }

    /// Every call that works on a device does this first: it looks which context the thread has, and makes one if it has none.
    pub(crate) fn look_at_the_context(&self) {
        if self.settings().is_strict
            && let Ok(cuda) = self.cuda.get_or_init(Cuda::find)
            && cuda.enters_the_first_device()
        {
            self.contexts_made.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Waits as long as a setting says.
    pub(crate) fn take(&self, time: impl Fn(&Settings) -> Duration) {
        let begin = now();
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = time(&settings).saturating_sub(begin.elapsed());
            if left.is_zero() {
                return;
            }
            settings = self.changed.wait_timeout(settings, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes a setting; whether it was understood.
    pub(crate) fn set(&self, name: &str, value: &str) -> bool {
        if name == "FAIL" {
            return self.faults.set(value);
        }
        let understood = self.settings.lock().unwrap_or_else(PoisonError::into_inner).set(name, value);
        self.changed.notify_all();
        understood
    }

    /// Waits as long as a test holds operations, or until the communicator is `aborted`.
    pub(crate) fn pass_on(&self, aborted: &AtomicBool) {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        while settings.hold.is_some_and(|hold| self.executed.load(Ordering::Acquire) >= hold)
            && !aborted.load(Ordering::Acquire)
        {
            let woken = self.changed.wait_timeout(settings, LOOK);
            settings = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Counts a call, and says with which code it fails before it does anything.
    pub(crate) fn begin(&self, name: &'static str) -> Option<u32> {
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
        self.faults.strike(name, None)
    }

    /// A call took so long until its caller knew that it was done.
    pub(crate) fn took(&self, took: Duration) {
        self.call_nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::AcqRel);
    }

    /// A number by name: `live_comms`, `begun`, `executed`, `call_nanoseconds`, `contexts_made`, or the name of a function for how often it was called.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        match name {
            "live_comms" => self.comms.lock().unwrap_or_else(PoisonError::into_inner).live.len() as u64,
            "begun" => self.begun.load(Ordering::Acquire),
            "executed" => self.executed.load(Ordering::Acquire),
            "call_nanoseconds" => self.call_nanoseconds.load(Ordering::Acquire),
            "contexts_made" => self.contexts_made.load(Ordering::Acquire),
            function => self.calls.lock().unwrap_or_else(PoisonError::into_inner).get(function).copied().unwrap_or(0),
        }
    }

    /// Enters a communicator; its handle.
    pub(crate) fn enter(&self, comm: Arc<Comm>) -> usize {
        let mut comms = self.comms.lock().unwrap_or_else(PoisonError::into_inner);
        comms.handles += 1;
        // Looks like a pointer and is none: a handle that is used after its end is refused.
        let handle = (1 << 24) + (comms.handles << 4);
        comms.live.insert(handle, comm);
        handle
    }

    pub(crate) fn comm(&self, handle: usize) -> Outcome<Arc<Comm>> {
        let comms = self.comms.lock().unwrap_or_else(PoisonError::into_inner);
        comms.live.get(&handle).cloned().ok_or_else(|| Failure::argument("there is no such communicator"))
    }

    pub(crate) fn forget(&self, handle: usize) {
        self.comms.lock().unwrap_or_else(PoisonError::into_inner).live.remove(&handle);
    }

    pub(crate) fn note(&self, failure: &Failure) {
        let text = self.keep(&failure.text);
        LAST.set(Some(text.clone()));
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).last = Some(text);
    }

    /// What went wrong last: with this communicator, else in this thread, else in this process; empty if nothing did.
    pub(crate) fn last_error(&self, comm: usize) -> *const c_char {
        let failure = self.comm(comm).ok().and_then(|comm| comm.failure()).map(|failure| self.keep(&failure.text));
        let last = failure.or_else(|| LAST.with_borrow(Clone::clone));
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last.as_ref().or(errors.last.as_ref()).and_then(|text| errors.texts.get(text));
        last.map_or(c"".as_ptr(), |text| text.as_ptr())
    }

    fn keep(&self, text: &str) -> CString {
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).texts.insert(text.clone());
        text
    }
}
