//! The one table of errors. A row makes the variant of [`Error`], its text, its class, its code on the wire, its encoding and its
//! exception in Python. To add an error, add a row.

use std::time::Duration;

use super::code::Code;
use super::fields::{Claim, Field, FieldSource, FieldType, Tensors};
use crate::id::{Epoch, Round, WorkerId};

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct ErrorKind {
    /// The name of the variant of [`Error`].
    pub variant: &'static str,
    /// The number by which other processes know the variant. It never changes.
    pub wire_code: u8,
    /// The class of the failure.
    pub code: Code,
    /// The class in the Python module `gradlane.errors`.
    pub exception: &'static str,
    /// The base classes of [`exception`](Self::exception): those of `gradlane.errors` by name, those of Python as `builtins.ValueError`.
    pub bases: &'static [&'static str],
    /// What the error means.
    pub doc: &'static str,
    /// The names of the fields and what they mean, in the order in which they travel.
    pub fields: &'static [(&'static str, &'static str)],
}

/// Makes [`Error`] and [`ERRORS`]. A row reads
/// `wire code: Variant of Code, raised as "Exception"("Base", ...) { fields }`, below its documentation and its text.
macro_rules! errors {
    ($(
        $(#[doc = $doc:literal])+
        #[error($($text:tt)+)]
        $wire_code:literal: $variant:ident of $code:ident, raised as $exception:literal($($base:literal),+) $({ $(
            $(#[doc = $field_doc:literal])+
            $field:ident: $type:ty,
        )+ })?
    )+) => {
        /// A failure. It holds fields, not a sentence, so that callers can act on them; `Display` makes the sentence.
        #[derive(Clone, PartialEq, Debug, thiserror::Error)]
        pub enum Error {$(
            $(#[doc = $doc])+
            #[error($($text)+)]
            $variant $({ $(
                $(#[doc = $field_doc])+
                $field: $type,
            )+ })?,
        )+}

        /// Every variant of [`Error`], in the order of the declaration.
        pub const ERRORS: &[ErrorKind] = &[$(
            ErrorKind {
                variant: stringify!($variant),
                wire_code: $wire_code,
                code: Code::$code,
                exception: $exception,
                bases: &[$($base),+],
                doc: concat!($($doc),+).trim_ascii(),
                fields: &[$($((stringify!($field), concat!($($field_doc),+).trim_ascii())),+)?],
            },
        )+];

        impl Error {
            /// The row of this failure's variant.
            pub fn kind(&self) -> &'static ErrorKind {
                let wire_code = match self {
                    $(Self::$variant { .. } => $wire_code,)+
                };
                ERRORS.iter().find(|kind| kind.wire_code == wire_code).expect("the table has every variant")
            }

            /// The names and values of the fields, in the order of the declaration.
            pub fn fields(&self) -> Vec<(&'static str, Field<'_>)> {
                match self {
                    $(Self::$variant { $($($field),+)? } => vec![$($((stringify!($field), $field.as_field())),+)?],)+
                }
            }

            /// This error with the names of the tensors that it is about, if it can say which and does not name them yet.
            #[must_use]
            pub fn with_names(mut self, names: &str) -> Self {
                match &mut self {
                    $(Self::$variant { $($($field),+)? } => { $($($field.name_tensors(names);)+)? })+
                }
                self
            }

            /// The error whose variant has the code `wire_code`, with its fields read from `source` in the order of the declaration.
            /// `None` if no variant has that code; then nothing was read.
            ///
            /// # Errors
            /// The fault that `source` reports.
            pub fn from_fields<S: FieldSource>(wire_code: u8, source: &mut S) -> Result<Option<Self>, S::Fault> {
                Ok(Some(match wire_code {
                    $($wire_code => Self::$variant { $($($field: FieldType::read(source, stringify!($field))?),+)? },)+
                    _ => return Ok(None),
                }))
            }
        }
    };
}

// The code 16 belonged to an error that no longer exists. No other error may have it.
errors! {
    /// An argument of a call has no meaning here.
    #[error("{what}; {hint}")]
    1: InvalidArgument of InvalidArgument, raised as "InvalidArgumentError"("Error", "builtins.ValueError") {
        /// The argument that was given.
        what: String,
        /// What to give instead.
        hint: String,
    }
    /// A setting is unknown, malformed, out of range or in conflict with another.
    #[error("setting {knob}: {problem}; {hint}")]
    2: Config of InvalidArgument, raised as "ConfigError"("InvalidArgumentError") {
        /// The setting as the user wrote it.
        knob: String,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        hint: String,
    }
    /// Workers disagree about a tensor. Every worker gets this same error.
    #[error("tensor {tensor}: {}; make them equal on all workers or use another name", disagreement(field, first, second))]
    3: Mismatch of InvalidArgument, raised as "MismatchError"("InvalidArgumentError") {
        /// The tensor's name, or its key where the name is not known.
        tensor: Tensors,
        /// `dtype`, `shape`, `op`, `length` or `name`.
        field: String,
        /// The declaration that came first.
        first: Claim,
        /// The declaration that differs from it.
        second: Claim,
    }
    /// Some workers did not contribute within the step timeout.
    #[error("tensor {tensor}, {round}: no contribution from {} after {:.1} s; {}{detail}", ranks(missing), waited.as_secs_f64(), before(notice))]
    4: Stalled of DeadlineExceeded, raised as "StallError"("TimeoutError") {
        /// The tensor's name, or its key where the name is not known.
        tensor: Tensors,
        /// The sum that did not end.
        round: Round,
        /// The ranks that did not contribute.
        missing: Vec<WorkerId>,
        /// How long the others waited for them.
        waited: Duration,
        /// What the coordinator said of the missing ranks while the sum waited; empty if it said nothing.
        notice: Box<str>,
        /// What the missing ranks did last, as far as the process knows that made the error.
        detail: Box<str>,
    }
    /// A deadline of the caller passed; the operation was abandoned.
    #[error("{what}: not done after {:.1} s", waited.as_secs_f64())]
    5: Timeout of DeadlineExceeded, raised as "TimeoutError"("Error", "builtins.TimeoutError") {
        /// The operation.
        what: String,
        /// How long the caller waited for it.
        waited: Duration,
    }
    /// A member of the job died or cannot be reached.
    #[error("lost {member} on {host}: {cause}")]
    6: PeerLost of Aborted, raised as "PeerLostError"("AbortedError") {
        /// `worker 2`, `server 0` or `coordinator`.
        member: String,
        /// Its host and process, as it announced them.
        host: String,
        /// The first evidence of the loss.
        cause: String,
    }
    /// The job did not form in time.
    #[error("the job did not form within {:.1} s: missing {}; start them, or check that they use the same join string", waited.as_secs_f64(), missing.join(", "))]
    7: NotFormed of DeadlineExceeded, raised as "NotFormedError"("TimeoutError") {
        /// The members that did not come, such as `worker 2` and `server 1`.
        missing: Vec<String>,
        /// How long the others waited for them.
        waited: Duration,
    }
    /// Two processes want one rank.
    #[error("{member} is taken by {holder}; give each process its own rank, or none to have one assigned")]
    8: DuplicateRank of AlreadyExists, raised as "DuplicateRankError"("Error") {
        /// The rank that both want.
        member: String,
        /// Host and process that have it.
        holder: String,
    }
    /// A process of another job size, version or configuration tried to join.
    #[error("{field} differs: this process has {ours}, {peer} has {theirs}; start all processes of a job alike")]
    9: Incompatible of FailedPrecondition, raised as "IncompatibleError"("FailedPreconditionError") {
        /// What differs: `protocol version`, `number of workers`, …
        field: String,
        /// The value in this process.
        ours: String,
        /// The other process.
        peer: String,
        /// The value in the other process.
        theirs: String,
    }
    /// This process belongs to a membership that has passed: the others declared it dead or replaced it.
    #[error("fenced: this process belongs to a membership before {current}; restart it to join again")]
    10: Fenced of Fenced, raised as "FencedError"("AbortedError") {
        /// The membership now.
        current: Epoch,
    }
    /// The peer did not prove its identity, or it is not permitted to do this.
    #[error("authentication: {problem}; {hint}")]
    11: Auth of Unauthenticated, raised as "AuthError"("Error") {
        /// What failed.
        problem: String,
        /// What to do.
        hint: String,
    }
    /// A peer broke the protocol. Its connection is closed; no other connection is.
    #[error("protocol: {peer} sent a frame whose {field} {problem}")]
    12: Protocol of Aborted, raised as "ProtocolError"("AbortedError") {
        /// The sender.
        peer: String,
        /// The offending field.
        field: String,
        /// What is wrong with it.
        problem: String,
    }
    /// Bytes changed on their way: the checksum does not match.
    #[error("tensor {tensor}, {round}: checksum mismatch in what {from} sent; memory or software fault on the way")]
    13: Checksum of DataLoss, raised as "ChecksumError"("Error") {
        /// The tensor's name, or its key where the name is not known.
        tensor: Tensors,
        /// The sum that the bytes belong to.
        round: Round,
        /// The sender.
        from: String,
    }
    /// A limit would be exceeded; nothing was changed.
    #[error("{what}: limit {limit} reached; {hint}")]
    14: Exhausted of ResourceExhausted, raised as "ResourceExhaustedError"("Error") {
        /// The resource.
        what: String,
        /// Its limit, with unit.
        limit: String,
        /// What to do.
        hint: String,
    }
    /// The peer is there but cannot answer now; the same call may succeed later.
    #[error("{what} is not reachable now: {cause}")]
    15: Unavailable of Unavailable, raised as "UnavailableError"("Error") {
        /// The peer.
        what: String,
        /// Why it cannot answer.
        cause: String,
    }
    /// The call does not fit the state: before `init`, after `shutdown`, a server that drains.
    #[error("{what}; {hint}")]
    17: FailedPrecondition of FailedPrecondition, raised as "FailedPreconditionError"("Error") {
        /// The state that forbids the call.
        what: String,
        /// What to call first.
        hint: String,
    }
    /// The caller cancelled the operation.
    #[error("cancelled by the caller")]
    18: Cancelled of Cancelled, raised as "CancelledError"("Error")
    /// The operating system refused.
    #[error("{what}: {cause}")]
    19: Io of Unavailable, raised as "UnavailableError"("Error") {
        /// What was tried.
        what: String,
        /// The system's words.
        cause: String,
    }
    /// A defect of Gradlane itself.
    #[error("internal error: {what}; please report it")]
    20: Internal of Internal, raised as "InternalError"("Error") {
        /// The rule that was violated.
        what: String,
    }
    /// A device, or a library that drives it, failed; nothing more can be done on it in this process.
    #[error("{device}: {what}{} failed: {cause}", in_brackets(tensor))]
    21: Device of Aborted, raised as "DeviceError"("AbortedError") {
        /// The device, such as `cuda:0`.
        device: String,
        /// What was tried.
        what: String,
        /// The tensors of the operation.
        tensor: Tensors,
        /// The fault in words, with the library's own code for it.
        cause: String,
    }
    /// The coordinator was started again and does not know the job that this process belongs to.
    #[error("this process belongs to the job of term {member}, but the coordinator leads that of term {coordinator}: it was started again, which begins a new job; start all processes of the job again")]
    22: OtherTerm of Fenced, raised as "FencedError"("AbortedError") {
        /// The term of the process's own job.
        member: u32,
        /// The term of the coordinator that it reached.
        coordinator: u32,
    }
    /// A server of the job did not answer this worker for the step timeout, though the coordinator reaches both of them.
    #[error("{server} has not answered this worker for {:.1} s: {cause}; {hint}", waited.as_secs_f64())]
    23: ServerUnreachable of DeadlineExceeded, raised as "ServerUnreachableError"("TimeoutError") {
        /// The server and where it says that it listens, such as `server 1 at node7:9000`.
        server: String,
        /// How long it has not answered.
        waited: Duration,
        /// How the last attempt to reach it failed.
        cause: String,
        /// What to check.
        hint: String,
    }
    /// A certificate is not good at this time: it has expired, or is not good yet by the clock of the host that looked at it.
    #[error("the certificate of {holder} is not good now: {times}; {hint}")]
    24: CertExpired of Unauthenticated, raised as "CertExpiredError"("AuthError") {
        /// Whose certificate it is: `this process`, or the peer's name.
        holder: String,
        /// From when until when it is good, and what time it is on the hosts that know of it.
        times: String,
        /// What to do.
        hint: String,
    }
    /// The token in the join string is one of this job, but it is not good for this: it is for another role, used up or too old.
    #[error("the token in the join string {problem}; {hint}")]
    25: Token of Unauthenticated, raised as "TokenError"("AuthError") {
        /// What is wrong with it.
        problem: String,
        /// What to do.
        hint: String,
    }
    /// The engine of this process did not end an operation by its deadline. The operation's memory stays in use.
    #[error("{what}: the engine of this process has not answered for {:.1} s: {hint}", waited.as_secs_f64())]
    26: Unresponsive of DeadlineExceeded, raised as "UnresponsiveError"("TimeoutError") {
        /// The operation.
        what: String,
        /// How long ago it began.
        waited: Duration,
        /// What that means, and what to do.
        hint: String,
    }
    /// A wait of the caller ended before the operation did. The operation goes on, and may be waited for again.
    #[error("{what} goes on: not done after {:.1} s", waited.as_secs_f64())]
    27: StillRunning of DeadlineExceeded, raised as "StillRunningError"("TimeoutError") {
        /// What was waited for.
        what: String,
        /// How long the caller waited.
        waited: Duration,
    }
    /// What the workers do with a tensor has no meaning. Every worker gets this same error.
    #[error("tensor {tensor}: {what}; {hint}")]
    28: TensorArgument of InvalidArgument, raised as "InvalidArgumentError"("Error", "builtins.ValueError") {
        /// The tensor, or those that share its part.
        tensor: Tensors,
        /// What has no meaning.
        what: String,
        /// What to do instead.
        hint: String,
    }
    /// The state of a tensor on its server forbids the call.
    #[error("tensor {tensor}: {what}; {hint}")]
    29: TensorState of FailedPrecondition, raised as "FailedPreconditionError"("Error") {
        /// The tensor, or those that share its part.
        tensor: Tensors,
        /// The state that forbids the call.
        what: String,
        /// What to do.
        hint: String,
    }
    /// A server freed a sum before this worker had it, because a worker took no sums for the step timeout.
    #[error("tensor {tensor}, {round}: {reader} did not take the sum for {:.1} s, and the server freed it", waited.as_secs_f64())]
    30: SumFreed of DeadlineExceeded, raised as "TimeoutError"("Error", "builtins.TimeoutError") {
        /// The tensor, or those that share its part.
        tensor: Tensors,
        /// The sum.
        round: Round,
        /// The worker that did not take it, such as `worker 2`.
        reader: String,
        /// How long the server waited for that worker.
        waited: Duration,
    }
    /// A contribution has a NaN or an infinity, and the setting `nan_check` makes that an error.
    #[error("tensor {tensor}, {round}: what {from} contributes has a NaN or an infinity; look for its cause there, or set nan_check=off")]
    31: NotFinite of InvalidArgument, raised as "NotFiniteError"("InvalidArgumentError", "builtins.ArithmeticError") {
        /// The tensor, or those that share its part.
        tensor: Tensors,
        /// The sum that it would have been a part of.
        round: Round,
        /// The contributor, such as `worker 2`.
        from: String,
    }
    /// The worker from which a tensor comes, or to which its sum goes, has left the job or was lost. Every worker gets this same error.
    #[error("tensor {tensor}: it comes from {root} or goes there, and {root} is not in the job any more; name a worker that is")]
    32: RootLost of InvalidArgument, raised as "RootLostError"("InvalidArgumentError") {
        /// The tensor, or those that share its part.
        tensor: Tensors,
        /// The worker, such as `worker 2`.
        root: String,
    }
    /// Workers were lost, and no others came in their place. Every member gets this same error.
    #[error("{there} of {needed} workers are there{}, and no others came within {:.1} s; start others in time (gradlane run does, see --restarts), or set a longer rejoin_timeout or a lower min_workers", without(lost), waited.as_secs_f64())]
    33: QuorumLost of Aborted, raised as "QuorumLostError"("AbortedError") {
        /// How many workers are there, with those that wait to be taken in.
        there: u32,
        /// How many the job needs to go on.
        needed: u32,
        /// Those that were lost, such as `worker 2 on host (pid 77): killed by signal 9`.
        lost: Vec<String>,
        /// How long the others held.
        waited: Duration,
    }
    /// Something that was asked for by its name is not there.
    #[error("{what} is not there; {hint}")]
    34: NotFound of NotFound, raised as "NotFoundError"("Error") {
        /// What was asked for.
        what: String,
        /// What to do.
        hint: String,
    }
    /// A file of a checkpoint is not what it was when it was saved. Nothing was loaded.
    #[error("the checkpoint is damaged: {file}: {problem}; load an earlier one")]
    35: CorruptCheckpoint of DataLoss, raised as "CorruptCheckpointError"("Error") {
        /// The file.
        file: String,
        /// What is wrong with it.
        problem: String,
    }
    /// A server was lost, and with it what it kept. The job forms again (`on_server_loss=restore`).
    #[error("lost {member} on {host}: {cause}; what it kept is gone, and the job forms again: join it again and go back to the checkpoint (gradlane.checkpoint.run does, with resume)")]
    36: StateLost of Aborted, raised as "StateLostError"("PeerLostError") {
        /// The server, such as `server 0`.
        member: String,
        /// Its host and process, as it announced them.
        host: String,
        /// The first evidence of the loss.
        cause: String,
    }
    /// The changes of a table since a version are not known any more. All of it has to be read.
    #[error("table {tensor}: {why}, so what has changed since this version is not known any more; read all of it (changed without since), or save a full snapshot")]
    37: FullResyncNeeded of FailedPrecondition, raised as "FullResyncNeededError"("FailedPreconditionError") {
        /// The table.
        tensor: Tensors,
        /// Why: too many rows were removed since, the table was cleared, or other servers keep it.
        why: String,
    }
}

/// A text that goes before another one.
fn before(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{text}; ") }
}

/// Those that are missing, behind how many are there.
fn without(lost: &[String]) -> String {
    if lost.is_empty() { String::new() } else { format!(", without {}", lost.join(", ")) }
}

fn in_brackets(tensor: &Tensors) -> String {
    match tensor {
        Tensors::Unknown => String::new(),
        Tensors::Keyed(_) | Tensors::Named(_) => format!(" (tensor {tensor})"),
    }
}

fn disagreement(field: &str, first: &Claim, second: &Claim) -> String {
    let Claim { worker, value } = first;
    if *worker == second.worker {
        return format!("{worker} used it with {field} {value} before, and now with {field} {}", second.value);
    }
    format!("{worker} has {field} {value}, {} has {field} {}", second.worker, second.value)
}

/// These workers in words, such as `ranks 1, 3`.
pub fn ranks(missing: &[WorkerId]) -> String {
    let numbers: Vec<String> = missing.iter().map(|worker| worker.0.to_string()).collect();
    format!("rank{} {}", if numbers.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn names_and_wire_codes_are_unique_and_everything_is_documented() {
        let (mut codes, mut variants) = (BTreeSet::from([16]), BTreeSet::new());
        for kind in ERRORS {
            assert!(codes.insert(kind.wire_code), "the wire code {} of {} is taken", kind.wire_code, kind.variant);
            assert!(variants.insert(kind.variant), "{} twice", kind.variant);
            assert!(kind.doc.ends_with('.'), "{}: {}", kind.variant, kind.doc);
        }
    }

    #[test]
    fn rows_that_share_an_exception_say_the_same_of_it() {
        let mut said = BTreeMap::new();
        for kind in ERRORS {
            let of_exception = (kind.bases, kind.code);
            assert_eq!(*said.entry(kind.exception).or_insert(of_exception), of_exception, "{}", kind.exception);
        }
    }
}
