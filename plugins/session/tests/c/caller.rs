//! A caller in C: its session, and the memory that it gives.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use gradlane_session::c::*;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A job of one, ended with the test. What its callbacks use is declared before it, because the end of the session ends its callbacks.
pub(crate) struct Session(pub(crate) GradlaneSession);

impl Session {
    pub(crate) fn start() -> Self {
        let (mut session, mut told) = (0, Told::new());
        // SAFETY: the variable and the description live in this function.
        let status = unsafe { gradlane_init(null(), 0, &mut session, told.error()) };
        assert_eq!(status, GradlaneStatus::Ok, "{}", told.text());
        Self(session)
    }

    pub(crate) fn submit(&self, submission: &GradlaneSubmission) -> GradlaneOperation {
        let (mut operation, mut told) = (0, Told::new());
        // SAFETY: in a job of one the operation has ended when this returns, and the tests keep the memory as long.
        let status = unsafe { gradlane_submit(self.0, submission, &mut operation, told.error()) };
        assert_eq!(status, GradlaneStatus::Ok, "{}", told.text());
        operation
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: no pointers.
        assert_eq!(unsafe { gradlane_shutdown(self.0, 0, null_mut()) }, GradlaneStatus::Ok);
    }
}

/// Memory for the description of an error.
pub(crate) struct Told {
    pub(crate) error: GradlaneError,
    text: Box<[c_char; 512]>,
}

impl Told {
    pub(crate) fn new() -> Self {
        let mut text = Box::new([0; 512]);
        let error = GradlaneError {
            struct_size: size_of::<GradlaneError>(),
            text: text.as_mut_ptr(),
            text_capacity: text.len(),
            text_bytes: 0,
            status: 0,
            retryable: 0,
        };
        Self { error, text }
    }

    pub(crate) fn error(&mut self) -> *mut GradlaneError {
        &raw mut self.error
    }

    pub(crate) fn text(&self) -> String {
        // SAFETY: it began as zeros, and the library ends what it writes with one.
        unsafe { CStr::from_ptr(self.text.as_ptr()) }.to_str().unwrap().to_owned()
    }
}

pub(crate) fn submission(name: &CStr, shape: &[u64], values: &mut [f32]) -> GradlaneSubmission {
    GradlaneSubmission {
        name: name.as_ptr(),
        shape: shape.as_ptr(),
        dimensions: shape.len(),
        source: values.as_mut_ptr().cast(),
        bytes: size_of_val(values),
        dtype: GradlaneDtype::Float32 as u32,
        op: GradlaneOp::Sum as u32,
        ..GradlaneSubmission::empty()
    }
}

/// The submission, whose operation's end `sender` tells.
///
/// # Safety
/// The sender lives until then.
pub(crate) unsafe fn with_callback(
    submission: GradlaneSubmission,
    sender: &Sender<GradlaneOperation>,
) -> GradlaneSubmission {
    unsafe extern "C" fn tell(user: *mut c_void, operation: GradlaneOperation) {
        // SAFETY: promised by the caller of `with_callback`.
        let sender = unsafe { &*user.cast::<Sender<GradlaneOperation>>() };
        sender.send(operation).unwrap();
    }
    GradlaneSubmission { callback: Some(tell), user: (&raw const *sender).cast_mut().cast(), ..submission }
}

pub(crate) fn ended(receiver: &Receiver<GradlaneOperation>) -> GradlaneOperation {
    receiver.recv_timeout(PATIENCE).expect("the callback runs")
}
