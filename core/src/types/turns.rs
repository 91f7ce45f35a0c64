//! Who waits for whom at a table.

use super::Merge;

/// Who waits for whom at a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Turns {
    /// Nobody: each push is done when it comes.
    Async,
    /// Each push is done when it comes, and nobody pulls who has pushed more than so many times more often than the slowest worker.
    Ssp {
        /// Pushes.
        ahead: u32,
    },
    /// A push waits for one of every worker. Then the gradients of each id are merged, and its row makes one step.
    Sync {
        /// How they are merged.
        merge: Merge,
    },
}

impl Turns {
    pub(super) const ALL: [Self; 3] = [Self::Async, Self::Ssp { ahead: 0 }, Self::Sync { merge: Merge::Mean }];
    pub(super) const NAMES: [&str; 3] = ["async", "ssp", "sync"];
    pub(super) const MERGES: [&str; 2] = ["mean", "sum"];

    /// As users write them: a setting and its value each.
    pub(super) fn settings(self) -> [Option<(&'static str, String)>; 2] {
        match self {
            Self::Async => [None, None],
            Self::Ssp { ahead } => {
                [Some(("mode", "ssp".to_owned())), (ahead > 0).then(|| ("ahead", ahead.to_string()))]
            }
            Self::Sync { merge } => {
                [Some(("mode", "sync".to_owned())), (merge == Merge::Sum).then(|| ("merge", "sum".to_owned()))]
            }
        }
    }
}
