//! Uses of a table: what each is, and how many bytes travel for it.

use std::fmt;

use super::{PartId, Span, TableSpec};

/// A use of a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RowAction {
    /// Reads rows for training: ids without a row get one, if they are admitted.
    Pull,
    /// Reads rows and changes nothing. Ids without a row read as what their row would begin with.
    Look,
    /// Changes rows by gradients. Ids without a row get one first, if they are admitted.
    Push,
    /// Lets rows decay, and removes those that are not worth their place.
    Shrink,
    /// Counts what is there.
    Stats,
    /// Removes all rows.
    Clear,
    /// Begins a scan: reads the rows that were changed since a version, and the ids that were removed since then.
    Changed,
    /// Goes on with the scan that this worker has begun last, or ends it.
    Page,
    /// Puts rows back with all that is kept of them, and removes others.
    Restore,
    /// As [`Push`](Self::Push), with a score for each id.
    PushScored,
}

/// What a shrink removes, after the scores of all rows were multiplied by `decay`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ShrinkBounds {
    /// From 0 to 1.
    pub decay: f64,
    /// Rows with a lower score go.
    pub min_score: f64,
    /// Rows that were not pushed to, nor pulled for training, for more steps than this go.
    pub max_idle: u64,
    /// So many rows stay, those of the highest scores. Each part of the table has its share of them.
    pub floor: u64,
}

impl ShrinkBounds {
    /// Nothing goes.
    pub const KEEP: Self = Self { decay: 1.0, min_score: 0.0, max_idle: u64::MAX, floor: 0 };
}

/// What a use of a table sends to a part, and what comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowsCut {
    /// The part.
    pub part: PartId,
    /// How many ids it names. Of a scan, which names none: the most bytes of a page.
    pub ids: u64,
    /// Which bytes of the use go there.
    pub sent: Span,
    /// Which bytes of its answer come from there.
    pub got: Span,
}

/// How far the changes of a part of a table have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanPoint {
    /// The first shard of the part.
    pub first: u32,
    /// The life of the part: a random number, which another server, or the same one after a restart, does not have. Never 0.
    pub life: u64,
    /// The version of the part, of this life.
    pub version: u64,
    /// Where the next page of a scan begins; 0 if there is none.
    pub cursor: u64,
}

impl RowAction {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 10] = [
        Self::Pull,
        Self::Look,
        Self::Push,
        Self::Shrink,
        Self::Stats,
        Self::Clear,
        Self::Changed,
        Self::Page,
        Self::Restore,
        Self::PushScored,
    ];
    /// Numbers that a use of [`Shrink`](Self::Shrink) sends: the factor of the scores, the least score, the most idle steps, and the rows of
    /// the whole table that stay in any case. Each has 8 bytes.
    pub const SHRINK_NUMBERS: u64 = 4;
    /// Numbers that [`Shrink`](Self::Shrink) and [`Stats`](Self::Stats) answer.
    pub const COUNTS: u64 = 6;
    /// Bytes that [`Changed`](Self::Changed) sends to a part.
    pub const BEGIN_BYTES: u64 = 32;
    /// Bytes that [`Page`](Self::Page) sends to a part.
    pub const PAGE_BYTES: u64 = 24;
    /// Bytes of a page before its rows.
    pub const PAGE_FRONT_BYTES: u64 = 32;
    /// Bytes of what is known of a row beside its numbers, in pages with state and in a restore: the step of its last use, u32, and its score,
    /// f32.
    pub const MARK_BYTES: u64 = 8;
    /// Bytes of the score of an id.
    pub const SCORE_BYTES: u64 = 4;
    /// The cursor of a page that ends its scan and is empty.
    pub const END: u64 = u64::MAX;

    /// The wire code; never changes.
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The use with this wire code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.code() == code)
    }

    /// Whether it names ids.
    pub const fn has_ids(self) -> bool {
        matches!(self, Self::Pull | Self::Look | Self::Push | Self::Restore | Self::PushScored)
    }

    /// Whether it changes rows by gradients.
    pub const fn pushes(self) -> bool {
        matches!(self, Self::Push | Self::PushScored)
    }

    /// Whether rows come back.
    pub const fn brings_rows(self) -> bool {
        matches!(self, Self::Pull | Self::Look)
    }

    /// Whether it reads pages of a scan.
    pub const fn scans(self) -> bool {
        matches!(self, Self::Changed | Self::Page)
    }

    /// Whether it may add rows.
    pub const fn creates(self) -> bool {
        matches!(self, Self::Pull | Self::Push | Self::Restore | Self::PushScored)
    }

    /// Whether a server does it once, and answers a repeat without doing it again.
    pub const fn changes(self) -> bool {
        !matches!(self, Self::Look | Self::Stats | Self::Changed | Self::Page)
    }

    /// Whether anything is sent for it behind its header.
    pub const fn sends(self) -> bool {
        !matches!(self, Self::Stats | Self::Clear)
    }

    /// Whether anything comes back behind the header of the answer.
    pub const fn receives(self) -> bool {
        !matches!(self, Self::Push | Self::PushScored | Self::Clear | Self::Restore)
    }

    /// Bytes that a use of so many ids sends to a part of a table.
    pub fn sent_bytes(self, ids: u64, table: &TableSpec) -> u64 {
        match self {
            Self::Pull | Self::Look => ids * 8,
            Self::Push => ids * (8 + table.row_bytes()),
            Self::PushScored => ids * (8 + Self::SCORE_BYTES + table.row_bytes()),
            Self::Restore => ids * (8 + Self::MARK_BYTES + 4 * table.row_len()),
            Self::Shrink => Self::SHRINK_NUMBERS * 8,
            Self::Stats | Self::Clear => 0,
            Self::Changed => Self::BEGIN_BYTES,
            Self::Page => Self::PAGE_BYTES,
        }
    }

    /// Bytes that come back; of a scan at most.
    pub const fn got_bytes(self, ids: u64, table: &TableSpec) -> u64 {
        match self {
            Self::Pull | Self::Look => ids * table.row_bytes(),
            Self::Shrink | Self::Stats => Self::COUNTS * 8,
            Self::Push | Self::PushScored | Self::Clear | Self::Restore => 0,
            Self::Changed | Self::Page => ids,
        }
    }

    /// The fewest bytes of a page that holds a row with its state.
    pub fn page_bytes_min(table: &TableSpec) -> u64 {
        Self::PAGE_FRONT_BYTES + 8 + Self::MARK_BYTES + 4 * table.row_len()
    }
}

impl fmt::Display for RowAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            ["pull", "look", "push", "shrink", "stats", "clear", "changed", "page", "restore", "push with scores"];
        f.write_str(names[*self as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_use_has_its_code() {
        for action in RowAction::ALL {
            assert_eq!(RowAction::from_code(action.code()), Some(action));
        }
        assert_eq!((RowAction::from_code(0), RowAction::from_code(11)), (None, None));
    }
}
