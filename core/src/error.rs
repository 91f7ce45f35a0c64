//! What can go wrong, as values: each names the fault, the parties and what to do next.
//!
//! Errors are cloned to every waiter and travel between processes (`wire::reject`), so they hold plain data only.

use std::time::Duration;

use crate::types::{Epoch, Round, WorkerId};

/// The result of everything in Gradlane that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What a worker said of a tensor; one side of a disagreement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Who said it.
    pub worker: WorkerId,
    /// What it said, such as `float32` or `[64, 3, 7, 7]`.
    pub value: String,
}

/// A failure. Fields instead of sentences, so that callers can act on them; the sentence is made when it is shown.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Error {
    /// An argument of a call has no meaning here.
    #[error("{what}; {hint}")]
    InvalidArgument {
        /// What was given.
        what: String,
        /// What to give instead.
        hint: String,
    },
    /// A setting is unknown, malformed, out of range or in conflict with another.
    #[error("setting {knob}: {problem}; {hint}")]
    Config {
        /// The setting as the user wrote it.
        knob: String,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// Workers disagree about a tensor. Every worker gets this same error.
    #[error("tensor {tensor}: {} has {field} {}, {} has {field} {}; make them equal on all workers or use another name", first.worker, first.value, second.worker, second.value)]
    Mismatch {
        /// The tensor's name, or its key where the name is not known.
        tensor: String,
        /// `dtype`, `shape`, `op`, `length` or `name`.
        field: String,
        /// Whoever spoke first.
        first: Claim,
        /// Whoever disagreed.
        second: Claim,
    },
    /// Some workers did not contribute within the step timeout.
    #[error("tensor {tensor}, {round}: no contribution from {} after {:.1} s; {detail}", ranks(missing), waited.as_secs_f64())]
    Stalled {
        /// The tensor's name, or its key where the name is not known.
        tensor: String,
        /// Which sum.
        round: Round,
        /// The ranks that were waited for.
        missing: Vec<WorkerId>,
        /// How long.
        waited: Duration,
        /// What the missing ranks did last, as far as it is known.
        detail: String,
    },
    /// A deadline of the caller passed; the operation was abandoned.
    #[error("{what}: not done after {:.1} s", waited.as_secs_f64())]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
    },
    /// A member of the job died or cannot be reached.
    #[error("lost {member} on {host}: {cause}")]
    PeerLost {
        /// `worker 2`, `server 0`, `coordinator`.
        member: String,
        /// Its host and process, as it announced them.
        host: String,
        /// The first evidence of the loss.
        cause: String,
    },
    /// The cluster did not form in time.
    #[error("the job did not form within {:.1} s: missing {}; start them, or check that they use the same join string", waited.as_secs_f64(), missing.join(", "))]
    NotFormed {
        /// `worker 2`, `server 1`, …
        missing: Vec<String>,
        /// How long.
        waited: Duration,
    },
    /// Two processes want one rank.
    #[error("{member} is taken by {holder}; give each process its own rank, or none to have one assigned")]
    DuplicateRank {
        /// The rank asked for.
        member: String,
        /// Host and process that hold it.
        holder: String,
    },
    /// A process of another job size, version or configuration tried to join.
    #[error("{field} differs: this process has {ours}, {peer} has {theirs}; start all processes of a job alike")]
    Incompatible {
        /// What differs: `protocol version`, `number of workers`, …
        field: String,
        /// This side.
        ours: String,
        /// Who the other side is.
        peer: String,
        /// The other side.
        theirs: String,
    },
    /// A message of a membership that has passed: the sender was declared dead or replaced.
    #[error("fenced: this process belongs to a membership before {current}; restart it to join again")]
    Fenced {
        /// The membership now.
        current: Epoch,
    },
    /// Who the peer is could not be proven, or it may not do this.
    #[error("authentication: {problem}; {hint}")]
    Auth {
        /// What failed.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// A peer broke the protocol. Its connection is closed; nobody else is disturbed.
    #[error("protocol: {peer} sent a frame whose {field} {problem}")]
    Protocol {
        /// Who sent it.
        peer: String,
        /// The offending field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Bytes changed on their way: the checksum does not match.
    #[error("tensor {tensor}, {round}: checksum mismatch in what {from} sent; memory or software fault on the way")]
    Checksum {
        /// The tensor's name, or its key where the name is not known.
        tensor: String,
        /// Which sum.
        round: Round,
        /// The sender.
        from: String,
    },
    /// A limit would be exceeded; nothing was changed.
    #[error("{what}: limit {limit} reached; {hint}")]
    Exhausted {
        /// Which resource.
        what: String,
        /// Its limit, with unit.
        limit: String,
        /// What to do.
        hint: String,
    },
    /// The peer is there but cannot answer now; the same call may succeed later.
    #[error("{what} is not reachable now: {cause}")]
    Unavailable {
        /// Who or what.
        what: String,
        /// Why.
        cause: String,
    },
    /// The call does not fit the state: before `init`, after `shutdown`, a server that drains.
    #[error("{what}; {hint}")]
    FailedPrecondition {
        /// Which state forbids it.
        what: String,
        /// What to call first.
        hint: String,
    },
    /// The caller cancelled the operation.
    #[error("cancelled by the caller")]
    Cancelled,
    /// The operating system refused.
    #[error("{what}: {cause}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's words.
        cause: String,
    },
    /// A device, or a library that drives it, failed; nothing more can be done on it in this process.
    #[error("{device}: {what} failed: {cause}")]
    Device {
        /// Which one, such as `cuda:0`.
        device: String,
        /// What was tried.
        what: String,
        /// The fault in words, with the library's own code for it.
        cause: String,
    },
    /// A defect of Gradlane itself.
    #[error("internal error: {what}; please report it")]
    Internal {
        /// What was violated.
        what: String,
    },
}

/// The classes of failure, equal in Rust and Python; gRPC's well-known names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Code {
    /// The caller gave something without meaning.
    InvalidArgument,
    /// Somebody else has it.
    AlreadyExists,
    /// The state forbids it.
    FailedPrecondition,
    /// The job, the peer or the device ended.
    Aborted,
    /// Not in time.
    DeadlineExceeded,
    /// Not now.
    Unavailable,
    /// A limit was reached.
    ResourceExhausted,
    /// The caller cancelled.
    Cancelled,
    /// A message of a past membership.
    Fenced,
    /// Identity not proven.
    Unauthenticated,
    /// Bytes changed on their way.
    DataLoss,
    /// A defect of Gradlane.
    Internal,
}

impl Error {
    /// The class of this failure.
    pub fn code(&self) -> Code {
        match self {
            Self::InvalidArgument { .. } | Self::Config { .. } | Self::Mismatch { .. } => Code::InvalidArgument,
            Self::Stalled { .. } | Self::Timeout { .. } | Self::NotFormed { .. } => Code::DeadlineExceeded,
            Self::PeerLost { .. } | Self::Protocol { .. } | Self::Device { .. } => Code::Aborted,
            Self::DuplicateRank { .. } => Code::AlreadyExists,
            Self::Incompatible { .. } | Self::FailedPrecondition { .. } => Code::FailedPrecondition,
            Self::Fenced { .. } => Code::Fenced,
            Self::Auth { .. } => Code::Unauthenticated,
            Self::Checksum { .. } => Code::DataLoss,
            Self::Exhausted { .. } => Code::ResourceExhausted,
            Self::Unavailable { .. } | Self::Io { .. } => Code::Unavailable,
            Self::Cancelled => Code::Cancelled,
            Self::Internal { .. } => Code::Internal,
        }
    }

    /// What the other side is told of what this side found: an incompatibility in its own words, because it is the one that shows them.
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

    /// Whether the same call may succeed later without anything else being changed.
    pub fn retryable(&self) -> bool {
        matches!(self.code(), Code::Unavailable | Code::ResourceExhausted)
    }

    /// What those hear who wait for a round of `tensor` that `worker` gave up for this reason: the reason itself where it names what is
    /// wrong with the round or the job, and else who gave it up and why.
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

fn ranks(missing: &[WorkerId]) -> String {
    let numbers: Vec<String> = missing.iter().map(|worker| worker.0.to_string()).collect();
    format!("rank{} {}", if numbers.len() == 1 { "" } else { "s" }, numbers.join(", "))
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
    fn only_what_may_pass_by_itself_is_retryable() {
        assert!(Error::Unavailable { what: String::new(), cause: String::new() }.retryable());
        assert!(!Error::Cancelled.retryable());
    }
}
