//! Processes that wait until the job forms again: those that have come while it ran, and former members that are faster than the others.

use std::collections::BTreeMap;

use gradlane_core::types::{LinkId, Role};
use gradlane_core::wire::frame::Join;

use super::roster::{Identity, Size};

/// Those that wait, each with its connection.
#[derive(Debug, Default)]
pub(super) struct Newcomers {
    waiting: BTreeMap<Identity, (LinkId, Join)>,
    /// While records are replayed: how many waited then.
    recalled: Size,
}

impl Newcomers {
    /// A process waits from now on. Returns its former connection, if it has come before.
    pub(super) fn add(&mut self, identity: Identity, link: LinkId, join: Join) -> Option<LinkId> {
        self.waiting.insert(identity, (link, join)).map(|(former, _)| former)
    }

    /// A connection ended, or its process does not wait any more. Returns whether it was one of a process that waits.
    pub(super) fn remove(&mut self, link: LinkId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|_, (waiting, _)| *waiting != link);
        self.waiting.len() < before
    }

    /// Whether this is the connection of a process that waits.
    pub(super) fn contains(&self, link: LinkId) -> bool {
        self.waiting.values().any(|(waiting, _)| *waiting == link)
    }

    /// Whether some wait.
    pub(super) fn are_there(&self) -> bool {
        self.waiting() != Size::default()
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> Size {
        Size { workers: self.count(Role::Worker), servers: self.count(Role::Server) }
    }

    /// How many of this role wait.
    pub(super) fn count(&self, role: Role) -> u32 {
        let present = self.waiting.keys().filter(|identity| identity.role == role).count();
        self.recalled.of(role).saturating_add(u32::try_from(present).unwrap_or(u32::MAX))
    }

    /// How many others of its role wait.
    pub(super) fn others(&self, identity: Identity) -> u32 {
        self.count(identity.role) - u32::from(self.waiting.contains_key(&identity))
    }

    /// As records say: how many wait.
    pub(super) fn recall(&mut self, waiting: Size) {
        self.recalled = waiting;
    }

    /// All that wait, in an order that is the same on every run. None does any more.
    pub(super) fn take(&mut self) -> Vec<(LinkId, Join)> {
        std::mem::take(&mut self.waiting).into_values().collect()
    }
}
