//! How connections and streams end, on the wire and as errors.

use quinn::{Connection, ConnectionError, ReadError, ReadExactError, TransportErrorCode, VarInt, WriteError};

use crate::error::{Error, Result};
use crate::identity::{THIS_PROCESS, calendar, wall_clock};
use crate::types::printable;
use crate::wire::reject;

/// Closes a connection in order; nothing failed.
pub(super) const CLOSE_ORDERLY: VarInt = VarInt::from_u32(0);
/// Closes a connection because of an error. The reason of the frame is the error, encoded as a reject.
pub(super) const CLOSE_ERROR: VarInt = VarInt::from_u32(1);
/// Resets a stream: the sender gave the exchange up, or wants its memory back.
pub(super) const STREAM_GIVEN_UP: VarInt = VarInt::from_u32(1);
/// Stops a stream: the answer is on its way, so the rest of the body is not needed.
pub(super) const STREAM_ANSWERED: VarInt = VarInt::from_u32(2);

/// Closes `connection` and tells the peer why.
pub(super) fn close_with(connection: &Connection, reason: &Error) {
    connection.close(CLOSE_ERROR, &encode_reason(reason));
}

/// Closes `connection` because the peer broke a rule.
pub(super) fn close_for_fault(connection: &Connection, fault: &Error) {
    close_with(connection, &fault.told_to_peer());
}

/// Encodes `reason` so that it fits into a closing packet. A reason that is too long is shortened to its text.
pub(super) fn encode_reason(reason: &Error) -> Vec<u8> {
    let body = reject::to_body(reason);
    if body.len() <= REASON_BYTES_MAX {
        return body;
    }
    let cause = reason.to_string().chars().take(REASON_BYTES_MAX / 5).collect();
    reject::to_body(&Error::Unavailable { what: "the peer".to_owned(), cause })
}

/// Half of the smallest datagram, so that a reason is never cut.
const REASON_BYTES_MAX: usize = 600;

/// Why the connection with `peer` ended or could not be made.
pub(super) fn connection_error(error: &ConnectionError, peer: &str) -> Error {
    let unavailable = |cause: String| Error::Unavailable { what: peer.to_owned(), cause };
    match error {
        ConnectionError::TransportError(local) => match alert_of(local.code) {
            Some(alert) => refused_by_us(alert, peer, &local.reason),
            None => unavailable(format!("connection failed: {local}")),
        },
        ConnectionError::ConnectionClosed(remote) => match alert_of(remote.error_code) {
            Some(alert) => refused_by_peer(alert, peer, &printable(&String::from_utf8_lossy(&remote.reason))),
            None => unavailable(printable(&format!("it closed the connection: {remote}"))),
        },
        ConnectionError::ApplicationClosed(remote) if remote.error_code == CLOSE_ERROR => {
            reject::from_body(&remote.reason, peer)
                .unwrap_or_else(|_| unavailable("it closed the connection for a reason that cannot be read".to_owned()))
        }
        ConnectionError::ApplicationClosed(_) => unavailable("it closed the connection".to_owned()),
        ConnectionError::Reset => unavailable("it restarted".to_owned()),
        ConnectionError::TimedOut => unavailable("it stopped answering".to_owned()),
        ConnectionError::VersionMismatch => Error::Incompatible {
            field: "QUIC version".to_owned(),
            ours: "1".to_owned(),
            peer: peer.to_owned(),
            theirs: "another".to_owned(),
        },
        ConnectionError::LocallyClosed => Error::Cancelled,
        ConnectionError::CidsExhausted => unavailable("too many connections to it".to_owned()),
    }
}

/// Why reading from `peer` failed.
pub(super) fn read_error(error: ReadError, peer: &str) -> Error {
    match error {
        ReadError::ConnectionLost(lost) => connection_error(&lost, peer),
        ReadError::Reset(_) => gave_up(peer),
        other @ (ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected) => {
            Error::Internal { what: format!("reading a stream: {other}") }
        }
    }
}

/// Why reading `field` from `peer` failed.
pub(super) fn read_exact_error(error: ReadExactError, field: &str, peer: &str) -> Error {
    match error {
        ReadExactError::FinishedEarly(got) => early_end(field, &format!("ends after {got} bytes"), peer),
        ReadExactError::ReadError(error) => read_error(error, peer),
    }
}

/// `peer` reset or stopped a stream.
pub(super) fn gave_up(peer: &str) -> Error {
    Error::Unavailable { what: peer.to_owned(), cause: "it gave the exchange up".to_owned() }
}

/// `peer` finished a stream in the middle of `field`.
pub(super) fn early_end(field: &str, problem: &str, peer: &str) -> Error {
    Error::Protocol { peer: peer.to_owned(), field: field.to_owned(), problem: problem.to_owned() }
}

/// The outcome of writing to a stream. A stream that the peer stopped is no error: the peer does not need the rest, because its answer is
/// ready. A peer that gave up resets its own half of the stream too, and the reader sees that.
pub(super) fn written(outcome: std::result::Result<(), WriteError>, peer: &str) -> Result<()> {
    match outcome {
        Ok(()) | Err(WriteError::Stopped(_)) => Ok(()),
        Err(WriteError::ConnectionLost(lost)) => Err(connection_error(&lost, peer)),
        Err(other @ (WriteError::ClosedStream | WriteError::ZeroRttRejected)) => {
            Err(Error::Internal { what: format!("writing a stream: {other}") })
        }
    }
}

/// The TLS alert in a code of a failed handshake.
fn alert_of(code: TransportErrorCode) -> Option<u8> {
    let code = u64::from(code);
    (0x100..0x200).contains(&code).then_some((code & 0xff) as u8)
}

/// This process ended a handshake with this alert, because of the certificate of `peer`.
pub(in crate::transport) fn refused_by_us(alert: u8, peer: &str, reason: &str) -> Error {
    match alert {
        CERTIFICATE_EXPIRED => not_good_now(peer, reason),
        alert => auth_error(alert, format!("this process refused the certificate of {peer}: {reason}")),
    }
}

/// `peer` ended a handshake with this alert, because of the certificate of this process.
pub(in crate::transport) fn refused_by_peer(alert: u8, peer: &str, reason: &str) -> Error {
    match alert {
        CERTIFICATE_EXPIRED => not_good_now(THIS_PROCESS, &format!("{peer} says: {reason}")),
        alert => auth_error(alert, format!("{peer} refused the certificate of this process: {reason}")),
    }
}

/// The error for a certificate that has expired or is not good yet. `reason` shows the clock of the process that refused it.
/// [`Credentials::explain`] adds the validity of this process's own certificate.
///
/// [`Credentials::explain`]: crate::identity::Credentials
fn not_good_now(holder: &str, reason: &str) -> Error {
    Error::CertExpired {
        holder: holder.to_owned(),
        times: format!("{reason}; the clock of this process shows {}", calendar(wall_clock())),
        hint: "compare the clocks of both hosts (NTP); a process renews its certificate at two thirds of \
               `certificate_lifetime` while the coordinator reaches it, and one that was cut off for longer must be started again"
            .to_owned(),
    }
}

/// The error of a handshake that ended with a TLS alert (RFC 8446, section 6).
pub(in crate::transport) fn auth_error(alert: u8, problem: String) -> Error {
    let hint = match alert {
        48 | 42 | 51 => {
            "it belongs to another job or to an earlier run: use the join string that the coordinator prints now"
        }
        116 => "it has no certificate: start it with the job's join string",
        49 => "no name in it is in the setting tls_peer of the process that refused it",
        120 => {
            "it speaks another version of Gradlane's protocol, or only one side has certificates of the site (tls_cert): start all \
             processes of a job with one version and alike"
        }
        _ => "start it again with the join string that the coordinator prints now",
    };
    Error::Auth { problem, hint: hint.to_owned() }
}

/// The TLS alert for a certificate that is not good at this time: too old, or not good yet.
pub(in crate::transport) const CERTIFICATE_EXPIRED: u8 = 45;
