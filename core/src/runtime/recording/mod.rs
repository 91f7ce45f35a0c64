//! What every flight recorder is made of, whatever its process records: memory of a fixed size that is read while it is written, and a file.
//!
//! ```text
//!  any thread ──events──► Ring: the newest ones                    ─┐
//!  one thread at a time ──begin, change, end──► OpenTable           ─┼─► Recorder::copy ──► Flight ──► NAME.flight.json
//!  members, the first error that ended the work ──► Flight          ─┘
//! ```
//! A dump must be possible while every other thread of the process is stuck. So it takes no lock of an engine, a server or a coordinator: the
//! ring and the table are read while others write them, and the locks of texts are held for an insertion or a copy only.
//!
//! Each process has its own events: [`engine`](crate::engine) those of a worker; a server and a coordinator record theirs elsewhere.

mod dump;
mod flight;
mod open;
mod ring;
mod slot;
mod words;

pub(crate) use dump::failure;
pub use dump::{Copied, FORM, Recorded, Recorder, TEXT_MAX, Tensors, UNKNOWN, known_round, lines};
pub use flight::{DIRECTORY, Flight, STACKS_SUFFIX, SUFFIX, Stacks, write_stacks_alone};
pub use open::{OpenOperation, OpenTable};
pub use ring::{Newest, Ring};
pub use slot::WORDS;
pub use words::words;
