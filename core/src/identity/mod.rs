//! Who may join a job, and how a process proves who it is.
//!
//! Every job has an [`Authority`] of its own, held by the coordinator. A process joins with a secret (a join string, an invitation) or with a
//! certificate of its [`Site`]. It then holds [`Credentials`], and its certificate names it to all others ([`PeerIdentity`]). The transports
//! stand above: they own sockets and TLS sessions, carry the messages of enrolment, and ask here what to show and whom to believe.

mod admitting;
mod authority;
mod certificate;
mod credentials;
mod site;
mod validity;

pub(crate) mod enrolment;
pub(crate) mod gate;
mod invitation;

pub mod envelope;

pub use authority::Authority;
pub use certificate::PeerIdentity;
pub(crate) use certificate::{SERVER_NAME, public_key_hash};
pub use credentials::Credentials;
pub(crate) use credentials::THIS_PROCESS;
pub use site::{Load, Site, SiteFiles};
pub use validity::{Renewal, Validity};
pub(crate) use validity::{calendar, wall_clock};

#[cfg(test)]
pub(crate) use certificate::sha256;

#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing;
