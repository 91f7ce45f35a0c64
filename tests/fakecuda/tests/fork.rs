//! The fake in a fork of the process that has it.

#![expect(unsafe_code, reason = "the driver's interface is C")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use cudarc::driver::sys;
use fakecuda::{Control, library};

macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the fake checks handles and addresses.
        unsafe { sys::$function($($argument),*) as u32 }
    };
}

#[test]
fn a_fork_of_the_process_has_no_driver() {
    let _control = Control::open(&library());
    // SAFETY: loading it runs nothing.
    assert!(unsafe { sys::is_culib_present() });
    assert_eq!(cu!(cuInit(0)), 0);
    assert_eq!(cu!(cuDeviceGetCount(&mut 0)), 0);
    let ask = || match (cu!(cuDeviceGetCount(&mut 0)), cu!(cuInit(0))) {
        (3, 3) => Ok(()),
        _ => Err(std::io::ErrorKind::Other.into()),
    };
    let mut command = Command::new("true");
    // SAFETY: the fork calls the driver, which looks at nothing but the process's number there.
    unsafe { command.pre_exec(ask) };
    assert!(command.status().expect("both answered 3").success());
}
