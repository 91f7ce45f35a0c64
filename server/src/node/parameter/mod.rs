//! Parameters: dense tensors that live on servers. Each worker changes and reads them by itself, and waits for no other worker.
//!
//! [`Parameters`] decides and owns no bytes. [`Values`] has the bytes and carries out its steps.
//!
//! **A part of a parameter** begins with an init, from whichever worker comes first. Its value has version 1 then, and each change makes the
//! next version. An init of a part that has a value changes nothing.
//!
//! **Done once.** A worker counts its uses of a tensor in the round of its headers, and has one use of a part at a time. For each worker the
//! ledger has the latest change that was done, and the version that it made. A repeat of that change is answered and not done again. The ledger
//! names processes and not ranks, because a process that takes over a rank counts from the beginning. An entry goes when its worker does.
//!
//! **Whole or not at all.** The body of a change is received beside the value. When all of it came and its checksum is right, the change is done
//! at once, in one step of the part's lane. A body that breaks off has changed nothing, so its repeat begins anew. An answer holds the
//! blocks of one version, which are shared and never written. So nobody reads half of a change.
//!
//! **Modes.** A change whose mode bounds its staleness is judged by its lag when it came whole. A gradient of a mode with rounds is kept; when
//! the coordinator has closed its round, those of the workers that closed it are added up, in the order of their ranks, the rule is applied
//! once, and all others of this round go. A pull by a worker that knows of more closed rounds than this server waits for the news.
//!
//! **Clipping.** If the gradients of a round are clipped, this server says the squares of its share, and no parameter of the clock changes until
//! the coordinator says the norm of all. So between any two words of the coordinator, all servers have applied the same rounds.
//!
//! **Checkpoints.** `checkpoints` freezes values to be written, and puts in their place what was read.
//!
//! **Compensation.** If the mode compensates old gradients, the version that each worker was given last is kept, and a gradient must be of this
//! version. It is refused otherwise: its worker has begun to read a later one, and did not take it.
//!
//! **Handles.** A server of one's own has a [`Handle`](crate::handle::Handle) that does the additions to the keys of `KVWorker`, and their
//! pulls, in the step that would add or answer otherwise. Nothing is decided by it.
//!
//! **Learning rates.** An operator may change that of a rule, from a global step on. The rule of the declaration stays what it is.
//!
//! **Memory.** Booked are: each value, also one that is kept for a compensation; each body that is on its way, or kept for its round; and for each answer with a value as many bytes again, until it was
//! handed over, because it may hold the blocks of an earlier version.

mod bases;
mod checkpoints;
mod machine;
mod opening;
mod orders;
mod rates;
mod refusals;
mod rounds;
mod values;

#[cfg(test)]
mod checkpoint_tests;
#[cfg(test)]
mod compensation_tests;
#[cfg(test)]
mod handle_tests;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod rate_tests;
#[cfg(test)]
mod round_tests;
#[cfg(test)]
pub(crate) mod tests;

pub(super) use machine::Parameters;
pub use values::Values;
