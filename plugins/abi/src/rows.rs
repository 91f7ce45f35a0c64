//! The structures of the C interface for tables.

use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};

use super::types::GradlaneCallback;

/// One use of a table: rows of float32 by id, which servers keep. A field of zero has its usual meaning, so a structure may be set to zero
/// bytes first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GradlaneTableUse {
    /// `sizeof(GradlaneTableUse)`.
    pub struct_size: usize,
    /// UTF-8, ended by a zero, at most 256 bytes.
    pub name: *const c_char,
    /// What the table is: the rule by which gradients change rows, and behind a semicolon the settings, such as
    /// `adagrad:lr=0.1;dim=16,init=uniform,scale=0.05,seed=7`. `dim`, the elements of a row, has to be among them; the others are `init`, `scale`,
    /// `seed`, `after`, `score`, `share`, `rows`, `full`, `ttl`, `bound`, `codec`, `dtype`, `mode`, `ahead` and `merge`. Servers keep rows as `dtype`
    /// says: `f32`, `bf16` or `fp16`. What comes and goes is float32. The first use of a name on any worker fixes it on all workers.
    pub table: *const c_char,
    /// The ids, in any order and as often as wanted; any 64 bits are an id. Read during the call only, and ignored by a shrink, stats and a
    /// clear.
    pub ids: *const u64,
    /// The number of ids, at most 1,048,576.
    pub count: usize,
    /// Of a pull or a look, the memory for the rows, one after the other in the order of the ids; it must stay valid, and nothing else may read
    /// or write it, until the operation has ended. Of a push, a gradient for each id; gradients of one id are added up first. They are
    /// read during the call only. Ignored otherwise.
    pub rows: *mut f32,
    /// Bytes of `rows`: the number of ids times the elements of a row times 4.
    pub bytes: usize,
    /// The steps of the training before this use, from 0; servers take the highest that any worker has said. Rules such as `adam` follow it,
    /// and a shrink removes by it.
    pub step: u64,
    /// Milliseconds for the whole operation; 0 takes the job's step timeout, which is also the upper bound.
    pub timeout_ms: u64,
    /// Called when the operation has ended; NULL for no call.
    pub callback: GradlaneCallback,
    /// The last argument of `callback`.
    pub user: *mut c_void,
    /// Higher goes first; only the order matters.
    pub priority: i32,
    /// Always 0.
    pub reserved: u32,
}

/// What all servers together count in a table.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GradlaneTableCounts {
    /// Rows that a shrink has looked at; 0 of stats.
    pub scanned: u64,
    /// Rows that this shrink has removed; of stats, all that were ever removed.
    pub evicted: u64,
    /// Rows that are there.
    pub rows: u64,
    /// Ids that were pulled, and have no row yet.
    pub waiting: u64,
    /// Memory that the servers take for the table.
    pub bytes: u64,
    /// Ids whose gradients were dropped, because they had no row.
    pub dropped: u64,
}

impl GradlaneTableUse {
    /// A use of nothing: of its fields only the size is not zero.
    pub fn empty() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            name: null(),
            table: null(),
            ids: null(),
            count: 0,
            rows: null_mut(),
            bytes: 0,
            step: 0,
            timeout_ms: 0,
            callback: None,
            user: null_mut(),
            priority: 0,
            reserved: 0,
        }
    }
}
