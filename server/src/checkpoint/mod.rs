//! The files of checkpoints: how parameters are written to a directory, and read from it, by any number of servers.
//!
//! ```text
//! runs/a/                          what a user calls the path
//!   latest                         the name of the newest whole checkpoint
//!   lock                           held by the coordinator that saves here
//!   checkpoint-12/
//!     manifest.json                written last: without it the directory is no checkpoint
//!     server-0.json                a table: which elements of which tensors are where
//!     server-0.safetensors         values, which other tools can read
//!     server-0.state.safetensors   what the rules keep
//! ```
//!
//! **Whole or not at all.** Each file is written under another name, brought to the disk, and renamed. The manifest is written when all
//! servers have done that, and `latest` after it. So a process may die at any point: what was whole before stays whole and stays the
//! latest. What was begun and not finished goes with the next save.
//!
//! **Checked.** The manifest has one form, to the byte, and has the checksum of each table. A table has the checksum of each run of elements.
//! Nothing is applied before all of them were compared ([`read`]).
//!
//! **Not by server.** Elements are found by the name of their tensor and their place in it, so any number of servers and any size of parts can
//! load what others have saved.

mod directory;
mod export;
mod faults;
mod form;
mod manifest;
mod part;
mod read;
mod write;

pub use directory::{Directories, Saving, find, open, place, root};
pub use export::export;
pub use manifest::Manifest;
pub use part::FrozenPart;
pub use read::{Saved, Source, read};
pub use write::write;
