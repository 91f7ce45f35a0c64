//! TensorFlow's `TF_Status`, owned.
#![expect(unsafe_code, reason = "calls TensorFlow's functions")]

use std::ffi::{CStr, CString};

use gradlane_abi::{Failure, GradlaneStatus};

use crate::api::{Api, TfStatus};

/// A status for the answers of TensorFlow's functions, and for ours.
pub(crate) struct Status<'api> {
    api: &'api Api,
    status: *mut TfStatus,
}

impl<'api> Status<'api> {
    /// A status without an error.
    pub(crate) fn new(api: &'api Api) -> Self {
        // SAFETY: the function needs nothing.
        Self { api, status: unsafe { (api.new_status)() } }
    }

    /// The status of a failure.
    pub(crate) fn of(api: &'api Api, failure: &Failure) -> Self {
        let this = Self::new(api);
        // A text of the engine has no zeros; one that has is cut there by C.
        let text = CString::new(failure.text.replace('\0', " ")).expect("zeros were replaced");
        // SAFETY: the status is ours, and the text ends with a zero.
        unsafe { (api.set_status)(this.status, failure.canonical_code(), text.as_ptr()) };
        this
    }

    /// The address for TensorFlow's functions.
    pub(crate) fn as_ptr(&self) -> *mut TfStatus {
        self.status
    }

    /// The error that a function of TensorFlow has told.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        // SAFETY: the status is ours; its text is valid until it is changed.
        let (code, text) =
            unsafe { ((self.api.get_code)(self.status), CStr::from_ptr((self.api.message)(self.status))) };
        match code {
            0 => Ok(()),
            _ => Err(Failure::new(GradlaneStatus::Internal, format!("TensorFlow: {}", text.to_string_lossy()))),
        }
    }
}

impl Drop for Status<'_> {
    fn drop(&mut self) {
        // SAFETY: the status is ours, and nothing uses it any more.
        unsafe { (self.api.delete_status)(self.status) };
    }
}
