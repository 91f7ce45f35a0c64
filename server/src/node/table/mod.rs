//! Tables: rows by id that live on servers. Each worker reads and changes them by itself, and waits for others only if the table says so.
//!
//! [`Tables`] decides which uses are taken and books their memory; it owns no rows. [`RowStore`] has the rows and does the uses, each as a whole
//! when its body came, in the order of the part's lane, or when the workers came for which it waits ([`waiting`]). What a use does to rows is in
//! [`rows`].
//!
//! **Parts.** A table has a fixed number of shards, and a part is a run of them. The shard of an id follows from the id alone.
//!
//! **Done once.** A worker counts its uses of a table in the round of its headers, and has one use of a part at a time. The store knows the
//! latest change of each worker, and answers a repeat of it without doing it again.
//!
//! **Changes.** A part has a version, which each change raises, and each row has that of its last change. Ids that were removed are remembered
//! for a while. A scan reads what has changed since a version, page by page; meanwhile the part is frozen for the worker that reads, so all
//! pages are of one moment. A part has a *life*, a random number of the first scan: versions of another life say nothing here.
//!
//! **Memory.** Booked are: the rows of each part, as far as they are there; the copies that open scans may need; and for each exchange its
//! body, its answer, and the most by which it may make the table grow. When the store has done it, the table's part of that stays booked, and
//! the rest is given back.

mod alone;
mod arena;
mod machine;
mod merge;
mod rows;
mod scanned;
mod store;
mod tombs;
mod upload;
mod waiting;

#[cfg(test)]
mod tests;

pub(super) use machine::Tables;
pub use store::RowStore;
