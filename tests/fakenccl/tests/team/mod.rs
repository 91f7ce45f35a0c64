//! Ranks as threads, each with a device of its own, over both fakes.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUcontext, CUstream};
use libloading::Library;

pub(crate) const DEVICES: i32 = 64;
pub(crate) const SUM: u32 = 0;
pub(crate) const F32: u32 = 7;
/// Nothing takes longer unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Calls the driver; the number that it answers.
macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the fake checks handles and addresses of devices; places of the host outlive the calls.
        unsafe { cudarc::driver::sys::$function($($argument),*) as u32 }
    };
}
pub(crate) use cu;

macro_rules! table {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty;)+) => {
        /// The library's functions, by their own names.
        #[expect(non_snake_case, reason = "the names are NVIDIA's")]
        pub(crate) struct Nccl { $(pub(crate) $name: extern "C" fn($($argument),*) -> $result,)+ }

        impl Nccl {
            #[expect(non_snake_case, reason = "the names are NVIDIA's")]
            fn bind(library: &'static Library) -> Self {
                $(
                    // SAFETY: the types are those of the library's header.
                    let $name = *unsafe { library.get::<extern "C" fn($($argument),*) -> $result>(stringify!($name)) }.expect("exported");
                )+
                Self { $($name),+ }
            }
        }
    };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Id(pub(crate) [u8; 128]);

/// `ncclConfig_t` of the header 2.28.
#[repr(C)]
pub(crate) struct Config {
    pub(crate) size: usize,
    pub(crate) magic: u32,
    pub(crate) version: u32,
    pub(crate) blocking: c_int,
    /// `cgaClusterSize`, `minCTAs`, `maxCTAs`.
    pub(crate) ctas: [c_int; 3],
    pub(crate) net_name: *const c_char,
    /// `splitShare`, `trafficClass`.
    pub(crate) shares: [c_int; 2],
    pub(crate) comm_name: *const c_char,
    /// From `collnetEnable` to `nvlinkCentricSched`.
    pub(crate) others: [c_int; 6],
}

impl Config {
    pub(crate) fn not_blocking() -> Self {
        const NONE: c_int = c_int::MIN;
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 22_800,
            blocking: 0,
            ctas: [NONE; 3],
            net_name: std::ptr::null(),
            shares: [NONE; 2],
            comm_name: std::ptr::null(),
            others: [NONE; 6],
        }
    }
}

table! {
    ncclGetVersion: fn(*mut c_int) -> u32;
    ncclGetUniqueId: fn(*mut Id) -> u32;
    ncclCommInitRank: fn(*mut usize, c_int, Id, c_int) -> u32;
    ncclCommInitRankConfig: fn(*mut usize, c_int, Id, c_int, *const Config) -> u32;
    ncclCommSplit: fn(usize, c_int, c_int, *mut usize, *const Config) -> u32;
    ncclCommFinalize: fn(usize) -> u32;
    ncclCommDestroy: fn(usize) -> u32;
    ncclCommAbort: fn(usize) -> u32;
    ncclCommRevoke: fn(usize, c_int) -> u32;
    ncclCommGetAsyncError: fn(usize, *mut u32) -> u32;
    ncclGetErrorString: fn(u32) -> *const c_char;
    ncclGetLastError: fn(usize) -> *const c_char;
    ncclGroupStart: fn() -> u32;
    ncclGroupEnd: fn() -> u32;
    ncclAllReduce: fn(u64, u64, usize, u32, u32, usize, CUstream) -> u32;
    ncclReduce: fn(u64, u64, usize, u32, u32, c_int, usize, CUstream) -> u32;
    ncclReduceScatter: fn(u64, u64, usize, u32, u32, usize, CUstream) -> u32;
    ncclAllGather: fn(u64, u64, usize, u32, usize, CUstream) -> u32;
    ncclBroadcast: fn(u64, u64, usize, u32, c_int, usize, CUstream) -> u32;
    ncclSend: fn(u64, usize, u32, c_int, usize, CUstream) -> u32;
    ncclRecv: fn(u64, usize, u32, c_int, usize, CUstream) -> u32;
    ncclRedOpCreatePreMulSum: fn(*mut u32, *mut c_void, u32, u32, usize) -> u32;
    ncclRedOpDestroy: fn(u32, usize) -> u32;
    ncclCommCount: fn(usize, *mut c_int) -> u32;
    ncclCommUserRank: fn(usize, *mut c_int) -> u32;
    ncclCommCuDevice: fn(usize, *mut c_int) -> u32;
}

/// One rank: its context is current in its thread.
pub(crate) struct Member {
    pub(crate) nccl: Arc<Nccl>,
    pub(crate) cuda: Arc<fakecuda::Control>,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) device: i32,
    pub(crate) stream: CUstream,
    pub(crate) comm: usize,
}

/// Both libraries, and the driver initialized.
pub(crate) fn libraries() -> (Arc<Nccl>, Arc<fakecuda::Control>) {
    let cuda = fakecuda::Control::open(&fakecuda::library());
    cuda.set("DEVICES", &DEVICES.to_string());
    cuda.initialize();
    // SAFETY: loading it runs nothing.
    let library = unsafe { Library::new(fakenccl::library()) }.expect("it is built");
    (Arc::new(Nccl::bind(Box::leak(Box::new(library)))), Arc::new(cuda))
}

/// Runs `work` as so many ranks of a communicator that blocks; what they give, by rank.
pub(crate) fn team<T: Send>(ranks: usize, work: impl Fn(&mut Member) -> T + Sync) -> Vec<T> {
    let id = unique_id(&libraries().0);
    apart(ranks, |member| {
        assert_eq!(
            (member.nccl.ncclCommInitRank)(&mut member.comm, member.ranks as c_int, id, member.rank as c_int),
            0
        );
        let outcome = work(member);
        if member.comm != 0 {
            assert_eq!((member.nccl.ncclCommFinalize)(member.comm), 0);
            assert_eq!((member.nccl.ncclCommDestroy)(member.comm), 0);
        }
        outcome
    })
}

/// The same without a communicator.
pub(crate) fn apart<T: Send>(ranks: usize, work: impl Fn(&mut Member) -> T + Sync) -> Vec<T> {
    static NEXT: AtomicI32 = AtomicI32::new(0);
    let first = NEXT.fetch_add(ranks as i32, Ordering::Relaxed);
    assert!(first + ranks as i32 <= DEVICES, "more devices, please");
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..ranks)
            .map(|rank| scope.spawn(move || work(&mut Member::new(rank, ranks, first + rank as i32))))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

pub(crate) fn unique_id(nccl: &Nccl) -> Id {
    let mut id = Id([0; 128]);
    assert_eq!((nccl.ncclGetUniqueId)(&mut id), 0);
    id
}

impl Member {
    pub(crate) fn new(rank: usize, ranks: usize, device: i32) -> Self {
        let (nccl, cuda) = libraries();
        let (mut context, mut stream): (CUcontext, CUstream) = (null_mut(), null_mut());
        // SAFETY: loading it runs nothing.
        assert!(unsafe { sys::is_culib_present() });
        assert_eq!(cu!(cuDevicePrimaryCtxRetain(&mut context, device)), 0);
        assert_eq!(cu!(cuCtxSetCurrent(context)), 0);
        assert_eq!(cu!(cuStreamCreate(&mut stream, 1)), 0);
        Self { nccl, cuda, rank, ranks, device, stream, comm: 0 }
    }

    /// Memory of the device with these bytes.
    pub(crate) fn device(&self, bytes: &[u8]) -> u64 {
        let address = self.cuda.allocate(self.device, bytes.len());
        self.cuda.produce(self.device, self.stream as u64, address, bytes);
        address
    }

    pub(crate) fn floats(&self, values: impl IntoIterator<Item = f32>) -> u64 {
        self.device(&values.into_iter().flat_map(f32::to_ne_bytes).collect::<Vec<u8>>())
    }

    /// What lies there when the stream has come so far.
    pub(crate) fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        self.cuda.consume(self.device, self.stream as u64, address, len)
    }

    pub(crate) fn read(&self, address: u64, count: usize) -> Vec<f32> {
        let bytes = self.bytes(address, count * 4);
        bytes.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().expect("four"))).collect()
    }

    pub(crate) fn all_reduce(&self, address: u64, count: usize) -> u32 {
        (self.nccl.ncclAllReduce)(address, address, count, F32, SUM, self.comm, self.stream)
    }

    /// The state of the communicator once it is not in progress.
    pub(crate) fn settled(&self) -> u32 {
        let begin = now();
        loop {
            let state = self.state();
            if state != 7 {
                return state;
            }
            assert!(begin.elapsed() < PATIENCE, "it stays in progress");
            std::thread::yield_now();
        }
    }

    /// The state of the communicator once it failed.
    pub(crate) fn failure(&self) -> u32 {
        let begin = now();
        loop {
            let state = self.state();
            if state != 7 && state != 0 {
                return state;
            }
            assert!(begin.elapsed() < PATIENCE, "it does not fail");
            std::thread::yield_now();
        }
    }

    pub(crate) fn state(&self) -> u32 {
        let mut state = 99;
        assert_eq!((self.nccl.ncclCommGetAsyncError)(self.comm, &mut state), 0);
        state
    }

    pub(crate) fn last_error(&self) -> String {
        // SAFETY: the library's text ends with a zero and stays.
        let text = unsafe { CStr::from_ptr((self.nccl.ncclGetLastError)(self.comm)) };
        text.to_string_lossy().into_owned()
    }
}

#[expect(clippy::disallowed_methods, reason = "waiting has a deadline")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
