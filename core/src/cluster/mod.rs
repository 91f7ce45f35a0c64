//! A node's side of the job's membership.
//!
//! [`Member`] speaks the control protocol with the coordinator: it joins, keeps the connection alive, asks for layouts and barriers,
//! and tells its process when the job is over and why. What a membership *is* stands in [`View`](crate::types::View); who decides it is
//! the coordinator, in the server crate.

mod member;
mod requests;

pub use member::{Member, MemberCommand, MemberConfig, MemberEvent};
