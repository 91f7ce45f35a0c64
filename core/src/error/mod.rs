//! Errors as values. Each names the fault, the parties and what to do next.
//!
//! Errors are cloned for every waiter and travel between processes (`wire::reject`), so they hold plain data only. One table, [`ERRORS`],
//! lists all of them.

use std::time::Duration;

use crate::id::{Round, WorkerId};

mod code;
mod fields;
mod table;

pub use code::Code;
pub use fields::{Claim, Field, FieldSource, Tensors};
pub use table::{ERRORS, Error, ErrorKind, ranks};

/// The result of everything in Gradlane that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// The text of a panic; `None` if it has none.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
}

impl Error {
    /// The class of this failure.
    pub fn code(&self) -> Code {
        self.kind().code
    }

    /// The error of `what`, such as `thread gl-push`, which ended with this panic.
    pub fn of_panic(what: &str, panic: &(dyn std::any::Any + Send)) -> Self {
        Self::Internal { what: format!("{what} panicked: {}", panic_text(panic).unwrap_or("no message")) }
    }

    /// Whether the same call may succeed later without anything else being changed.
    pub fn retryable(&self) -> bool {
        self.code().retryable()
    }

    /// This error as the peer must see it. In an incompatibility the two sides are swapped, because the peer shows the text to its user.
    #[must_use]
    pub fn told_to_peer(&self) -> Self {
        match self {
            Self::Incompatible { field, ours, peer: _, theirs } => Self::Incompatible {
                field: field.clone(),
                ours: theirs.clone(),
                peer: "the other end of the connection".to_owned(),
                theirs: ours.clone(),
            },
            other => other.clone(),
        }
    }

    /// Whether it concerns only the worker that got it: its caller gave up, its way to a server is gone, or the job continues without it.
    /// [`of_one_who_gave_up`](Self::of_one_who_gave_up) makes the error that other workers get.
    pub fn concerns_one_worker(&self) -> bool {
        matches!(
            self,
            Self::Cancelled
                | Self::Timeout { .. }
                | Self::StillRunning { .. }
                | Self::Fenced { .. }
                | Self::ServerUnreachable { .. }
        )
    }

    /// The error for workers that wait for a round of `tensor` from which `worker` withdrew because of this error. If this error names a
    /// fault of the round or of the job, it is this error itself. Otherwise it is a stall that names `worker` and this error.
    #[must_use]
    pub fn of_one_who_gave_up(&self, worker: WorkerId, tensor: impl Into<Tensors>, round: Round) -> Self {
        match self {
            Self::Mismatch { .. }
            | Self::InvalidArgument { .. }
            | Self::TensorArgument { .. }
            | Self::Checksum { .. }
            | Self::NotFinite { .. }
            | Self::Stalled { .. }
            | Self::PeerLost { .. }
            | Self::StateLost { .. }
            | Self::QuorumLost { .. } => self.clone(),
            other => {
                let (tensor, notice) = (tensor.into(), Box::default());
                let detail = format!("{worker} gave this round up: {other}").into();
                Self::Stalled { tensor, round, missing: vec![worker], waited: Duration::ZERO, notice, detail }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::TensorKey;

    #[test]
    fn a_mismatch_names_both_sides() {
        let error = Error::Mismatch {
            tensor: "fc.weight".into(),
            field: "shape".to_owned(),
            first: Claim { worker: WorkerId(0), value: "[10]".to_owned() },
            second: Claim { worker: WorkerId(1), value: "[11]".to_owned() },
        };
        assert!(error.to_string().starts_with("tensor fc.weight: worker 0 has shape [10], worker 1 has shape [11]"));
    }

    #[test]
    fn each_side_hears_of_an_incompatibility_in_its_own_words() {
        let [field, ours, peer, theirs] = ["version", "2", "worker 0", "1"].map(str::to_owned);
        let told = Error::Incompatible { field, ours, peer, theirs }.told_to_peer().to_string();
        assert!(
            told.starts_with("version differs: this process has 1, the other end of the connection has 2;"),
            "{told}"
        );
        assert_eq!(Error::Cancelled.told_to_peer(), Error::Cancelled);
    }

    #[test]
    fn a_stall_names_the_missing_ranks() {
        let error = Error::Stalled {
            tensor: "fc.weight".into(),
            round: Round(7),
            missing: vec![WorkerId(1), WorkerId(3)],
            waited: Duration::from_secs(10),
            notice: Box::default(),
            detail: "worker 1 was last seen 0.2 s ago".into(),
        };
        let text = error.to_string();
        assert!(text.starts_with("tensor fc.weight, round 7: no contribution from ranks 1, 3 after 10.0 s"), "{text}");
    }

    #[test]
    fn what_is_wrong_with_a_round_is_told_as_it_is_and_all_else_with_who_gave_up() {
        let told = |error: Error| error.of_one_who_gave_up(WorkerId(3), "w", Round(7));
        let claim = |worker, value: &str| Claim { worker: WorkerId(worker), value: value.to_owned() };
        let (tensor, field) = ("w".into(), "op".to_owned());
        let mismatch = Error::Mismatch { tensor, field, first: claim(0, "sum"), second: claim(1, "max") };
        assert_eq!(told(mismatch.clone()), mismatch);
        for private in [Error::Cancelled, Error::Unavailable { what: "the moon".to_owned(), cause: String::new() }] {
            let Error::Stalled { tensor, round, missing, detail, .. } = told(private.clone()) else {
                panic!("{private}")
            };
            assert_eq!((tensor, round, missing), ("w".into(), Round(7), vec![WorkerId(3)]));
            assert_eq!(*detail, *format!("worker 3 gave this round up: {private}"));
        }
    }

    #[test]
    fn an_error_takes_the_names_of_its_tensors_once() {
        let lost = |tensor| Error::Checksum { tensor, round: Round(2), from: "server 0".to_owned() };
        let named = lost(TensorKey(8).into()).with_names("a + b");
        assert_eq!(named, lost("a + b".into()));
        assert_eq!(named.clone().with_names("c"), named);
        let [device, what, cause] = ["cuda:0", "a copy", "code 6"].map(str::to_owned);
        let failed = Error::Device { device, what, tensor: Tensors::Unknown, cause };
        assert_eq!(failed.to_string(), "cuda:0: a copy failed: code 6");
        assert_eq!(failed.with_names("a").to_string(), "cuda:0: a copy (tensor a) failed: code 6");
    }

    #[test]
    fn no_text_shows_how_a_field_is_kept() {
        for error in crate::wire::samples::errors() {
            let text = error.to_string();
            for debug_form in ["WorkerId(", "Round(", "Epoch {", "Named(", "Some(", "None", "[\"", "Duration"] {
                assert!(!text.contains(debug_form), "{}: {text}", error.kind().variant);
            }
        }
    }

    #[test]
    fn only_what_may_pass_by_itself_is_retryable() {
        assert!(Error::Unavailable { what: String::new(), cause: String::new() }.retryable());
        assert!(!Error::Cancelled.retryable());
    }
}
