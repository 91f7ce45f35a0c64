//! Scans that are open.

/// A scan that has more pages.
#[derive(Debug)]
pub(super) struct Scan {
    /// The version at which it began.
    pub(super) version: u64,
    /// Changes behind this version are wanted; `None` for everything.
    pub(super) since: Option<u64>,
    pub(super) with_state: bool,
    pub(super) freeze: u64,
    /// The ids that were removed, and are not there again.
    pub(super) gone: Vec<u64>,
}
