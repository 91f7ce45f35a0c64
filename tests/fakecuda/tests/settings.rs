//! Settings that change how every device behaves; one test, because they are the process's.

#![expect(unsafe_code, reason = "the driver's interface is C")]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use fakecuda::{Control, library};

macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the fake checks handles and addresses.
        unsafe { sys::$function($($argument),*) as u32 }
    };
}

#[test]
fn settings_change_what_devices_do() {
    let control = Control::open(&library());
    // SAFETY: loading it runs nothing.
    assert!(unsafe { sys::is_culib_present() });
    assert_eq!(cu!(cuDeviceGetCount(&mut 0)), 3, "before cuInit nothing works");
    control.set("DEVICES", "2");
    control.set("FAIL", "cuInit=100@1*1");
    assert_eq!(cu!(cuInit(0)), 100);
    assert_eq!(cu!(cuInit(0)), 0);
    control.set("DEVICES", "5");
    let mut count = 0;
    assert_eq!(cu!(cuDeviceGetCount(&mut count)), 0);
    assert_eq!(count, 2, "the number of devices is fixed by cuInit");
    assert_eq!(control.calls("cuInit"), 2);

    let mut context = null_mut();
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(&mut context, 0)), 0);
    assert_eq!(cu!(cuCtxSetCurrent(context)), 0);
    control.set("HIDDEN", "1");
    let address = control.allocate(0, 1 << 20);
    assert_ne!(control.host_address(address, 1 << 20) as u64, address);
    control.produce(0, 0, address + 3, &[1, 2, 3]);
    assert_eq!(control.consume(0, 0, address + 2, 5), [0, 1, 2, 3, 0]);

    // 1 MiB at 0.02 GB/s takes 52 ms.
    control.set("GB_PER_S", "0.02");
    let mut pinned = null_mut();
    assert_eq!(cu!(cuMemHostAlloc(&mut pinned, 1 << 20, 4)), 0);
    assert_eq!(control.counter(0, "write_combined"), 1);
    let streams: Vec<sys::CUstream> = (0..2).map(|_| stream()).collect();
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(pinned, address, 1 << 20, streams[0])), 0);
    assert_eq!(cu!(cuStreamQuery(streams[0])), 600);
    assert_eq!(cu!(cuStreamSynchronize(streams[0])), 0);
    control.set("GB_PER_S", "0");

    // Each call that puts work into a stream takes its time, and the others do not.
    control.set("CALL_US", "20000");
    let (begun, took) = (now(), Duration::from_millis(20));
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(pinned, address, 1, streams[0])), 0);
    assert!(begun.elapsed() >= took, "a copy");
    let begun = now();
    assert_eq!(cu!(cuLaunchHostFunc(streams[0], Some(nothing), null_mut())), 0);
    assert!(begun.elapsed() >= took, "a host function");
    control.set("CALL_US", "3600000000");
    assert_eq!(cu!(cuStreamSynchronize(streams[0])), 0, "it puts nothing into a stream");
    control.set("CALL_US", "0");

    // Of the two created streams the second lags, and nobody else.
    control.set("LAG_STREAM", "1");
    control.set("LAG_US", "100000");
    assert_eq!(cu!(cuMemsetD8Async(address, 1, 1, streams[1])), 0);
    assert_eq!(cu!(cuMemsetD8Async(address, 1, 1, streams[0])), 0);
    assert_eq!(cu!(cuStreamSynchronize(streams[0])), 0);
    assert_eq!(cu!(cuStreamQuery(streams[1])), 600, "it came first and is still at it");
    assert_eq!(cu!(cuStreamSynchronize(streams[1])), 0);
    control.set("LAG_STREAM", "default");
    assert_eq!(cu!(cuMemsetD8Async(address, 1, 1, null_mut())), 0);
    assert_eq!(cu!(cuStreamQuery(null_mut())), 600);
    assert_eq!(cu!(cuStreamSynchronize(null_mut())), 0);

    // Whoever uses what has ended ends the process; not here.
    control.set("STRICT", "0");
    assert_eq!(cu!(cuStreamDestroy_v2(streams[1])), 0);
    assert_eq!([cu!(cuStreamQuery(streams[1])), cu!(cuStreamDestroy_v2(streams[1]))], [400, 400]);
    control.set("STRICT", "1");
    assert_eq!(cu!(cuStreamQuery(0x77 as sys::CUstream)), 400, "it never was a stream");

    // A driver compiles PTX of its own time, for devices of its own and earlier generations.
    let loaded = |version: &str, capability: &str| {
        control.set("VERSION", version);
        control.set("CAPABILITY", capability);
        let mut major = 0;
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        assert_eq!(cu!(cuDeviceGetAttribute(&mut major, attribute, 0)), 0);
        assert!(capability.starts_with(&major.to_string()));
        let text = c".version 8.0\n.target sm_70\n.address_size 64\n";
        cu!(cuModuleLoadData(&mut null_mut(), text.as_ptr().cast()))
    };
    assert_eq!(loaded("12.0", "7.0"), 0);
    assert_eq!(loaded("11.8", "9.0"), 222);
    assert_eq!(loaded("13.0", "6.1"), 218);
    assert_eq!(loaded("13.0", "10.0"), 0);
}

extern "C" fn nothing(_: *mut c_void) {}

#[expect(clippy::disallowed_methods, reason = "the time that calls take is what is tested")]
fn now() -> Instant {
    Instant::now()
}

fn stream() -> sys::CUstream {
    let mut stream = null_mut();
    assert_eq!(cu!(cuStreamCreate(&mut stream, 1)), 0);
    stream
}
