//! Errors as values. Each names the fault, the parties and what to do next.
//!
//! Errors are cloned for every waiter and travel between processes (`wire::reject`), so they hold plain data only. One table, [`ERRORS`],
//! lists all of them.

use std::time::Duration;

use crate::id::{Round, TensorKey, WorkerId};

mod fields;
mod table;

pub use fields::{Claim, Field, FieldSource};
pub use table::{Code, ERRORS, Error, ErrorKind, ranks};

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

    /// This error with the names of tensors instead of their keys. Servers and the ranks of a machine know tensors by key; keys mean nothing
    /// to people.
    #[must_use]
    pub fn with_name(mut self, key: TensorKey, name: &str) -> Self {
        let key = key.to_string();
        self.each_text(&mut |text| {
            if text.contains(&key) {
                *text = text.replace(&key, name);
            }
        });
        self
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
    pub fn of_one_who_gave_up(&self, worker: WorkerId, tensor: String, round: Round) -> Self {
        match self {
            Self::Mismatch { .. }
            | Self::InvalidArgument { .. }
            | Self::Checksum { .. }
            | Self::Stalled { .. }
            | Self::PeerLost { .. } => self.clone(),
            other => {
                let detail = format!("{worker} gave this round up: {other}");
                Self::Stalled { tensor, round, missing: vec![worker], waited: Duration::ZERO, detail }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_names_both_sides() {
        let error = Error::Mismatch {
            tensor: "fc.weight".to_owned(),
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
            tensor: "fc.weight".to_owned(),
            round: Round(7),
            missing: vec![WorkerId(1), WorkerId(3)],
            waited: Duration::from_secs(10),
            detail: "worker 1 was last seen 0.2 s ago".to_owned(),
        };
        let text = error.to_string();
        assert!(text.starts_with("tensor fc.weight, round 7: no contribution from ranks 1, 3 after 10.0 s"), "{text}");
    }

    #[test]
    fn what_is_wrong_with_a_round_is_told_as_it_is_and_all_else_with_who_gave_up() {
        let told = |error: Error| error.of_one_who_gave_up(WorkerId(3), "w".to_owned(), Round(7));
        let claim = |worker, value: &str| Claim { worker: WorkerId(worker), value: value.to_owned() };
        let [tensor, field] = ["w", "op"].map(str::to_owned);
        let mismatch = Error::Mismatch { tensor, field, first: claim(0, "sum"), second: claim(1, "max") };
        assert_eq!(told(mismatch.clone()), mismatch);
        for private in [Error::Cancelled, Error::Unavailable { what: "the moon".to_owned(), cause: String::new() }] {
            let Error::Stalled { tensor, round, missing, detail, .. } = told(private.clone()) else {
                panic!("{private}")
            };
            assert_eq!((tensor.as_str(), round, missing), ("w", Round(7), vec![WorkerId(3)]));
            assert_eq!(detail, format!("worker 3 gave this round up: {private}"));
        }
    }

    #[test]
    fn a_name_takes_the_place_of_a_key_in_every_text_of_every_error() {
        struct OfKey(TensorKey);
        impl FieldSource for OfKey {
            type Fault = ();

            fn text(&mut self, _: &str) -> std::result::Result<String, ()> {
                Ok(format!("tensor {} here", self.0))
            }
            fn claim(&mut self, _: &str) -> std::result::Result<Claim, ()> {
                Ok(Claim { worker: WorkerId(1), value: self.0.to_string() })
            }
            fn round(&mut self, _: &str) -> std::result::Result<Round, ()> {
                Ok(Round(2))
            }
            fn ranks(&mut self, _: &str) -> std::result::Result<Vec<WorkerId>, ()> {
                Ok(vec![WorkerId(1), WorkerId(2)])
            }
            fn members(&mut self, _: &str) -> std::result::Result<Vec<String>, ()> {
                Ok(vec![self.0.to_string()])
            }
            fn duration(&mut self, _: &str) -> std::result::Result<Duration, ()> {
                Ok(Duration::from_millis(10_002))
            }
            fn number(&mut self, _: &str) -> std::result::Result<u32, ()> {
                Ok(3)
            }
            fn epoch(&mut self, _: &str) -> std::result::Result<crate::id::Epoch, ()> {
                Ok(crate::id::Epoch { term: 1, number: 2 })
            }
        }
        let key = TensorKey::of("fc.weight");
        for kind in ERRORS {
            let error = Error::from_fields(kind.wire_code, &mut OfKey(key)).unwrap().unwrap();
            let text = error.with_name(key, "fc.weight").to_string();
            assert!(!text.contains(&key.to_string()), "{text}");
            for debug_form in ["WorkerId(", "Round(", "Epoch {", "Some(", "None", "[\"", "Duration"] {
                assert!(!text.contains(debug_form), "{}: {text}", kind.variant);
            }
        }
    }

    #[test]
    fn only_what_may_pass_by_itself_is_retryable() {
        assert!(Error::Unavailable { what: String::new(), cause: String::new() }.retryable());
        assert!(!Error::Cancelled.retryable());
    }
}
