//! Memory of a device that another process opens.

#![expect(unsafe_code, reason = "the driver's interface is C")]

use std::process::Command;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUcontext, CUipcMemHandle};
use fakecuda::{Control, library};

/// Tells this program that it is the other process, and what it opens.
const HANDLE: &str = "FAKECUDA_TESTS_HANDLE";

/// Calls the driver; the number that it answers.
macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the fake checks handles and addresses of devices; places of the host outlive the calls.
        unsafe { sys::$function($($argument),*) as u32 }
    };
}

#[test]
fn another_process_reads_and_writes_the_same_memory() {
    let control = world();
    if let Some(handle) = handle_of_the_parent() {
        let mut address = 0;
        assert_eq!(cu!(cuIpcOpenMemHandle_v2(&mut address, handle, 1)), 0);
        assert_eq!(control.consume(0, 0, address + 8, 4), [9, 8, 7, 6]);
        control.produce(0, 0, address, &[1, 2, 3]);
        control.consume(0, 0, address, 1);
        assert_eq!(cu!(cuIpcCloseMemHandle(address)), 0);
        assert_eq!(cu!(cuIpcCloseMemHandle(address)), 1);
        return;
    }
    // Not the first allocation, so that it lies somewhere within the file.
    let (_, address) = (control.allocate(0, 5000), control.allocate(0, 4096));
    control.produce(0, 0, address + 8, &[9, 8, 7, 6]);
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    assert_eq!(cu!(cuIpcGetMemHandle(&mut handle, address + 100)), 0, "any address of it names all of it");
    assert_eq!(cu!(cuIpcOpenMemHandle_v2(&mut 0, handle, 1)), 1, "not in the same process");
    control.consume(0, 0, address, 1);
    let text: Vec<String> = handle.reserved.iter().map(|byte| byte.to_string()).collect();
    let status = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "another_process_reads_and_writes_the_same_memory"])
        .env(HANDLE, text.join(" "))
        .status()
        .expect("it starts");
    assert!(status.success());
    assert_eq!(control.consume(0, 0, address, 4), [1, 2, 3, 0]);
    control.free(address);
}

/// The driver, with the context of device 0 current.
fn world() -> Control {
    let control = Control::open(&library());
    control.initialize();
    // SAFETY: loading it runs nothing.
    assert!(unsafe { sys::is_culib_present() });
    let mut context: CUcontext = null_mut();
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(&mut context, 0)), 0);
    assert_eq!(cu!(cuCtxSetCurrent(context)), 0);
    control
}

#[expect(clippy::disallowed_methods, reason = "the test starts itself as another process")]
fn handle_of_the_parent() -> Option<CUipcMemHandle> {
    let text = std::env::var(HANDLE).ok()?;
    let bytes: Vec<_> = text.split(' ').map(|byte| byte.parse().expect("a number")).collect();
    Some(CUipcMemHandle { reserved: bytes.try_into().expect("64 of them") })
}
