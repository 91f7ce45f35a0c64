//! Processes that wait until the job forms again: those that have come while it ran, and former members that are faster than the others.

use std::collections::{BTreeMap, BTreeSet};

use gradlane_core::types::{LinkId, Role};
use gradlane_core::wire::frame::Join;

use super::roster::Identity;

/// Those that wait, each with its connection.
#[derive(Debug, Default)]
pub(super) struct Newcomers {
    waiting: BTreeMap<Identity, (LinkId, Join)>,
    /// While records are replayed: which ones waited then.
    waited: BTreeSet<Role>,
}

impl Newcomers {
    /// A process waits from now on. Returns its former connection, if it has come before.
    pub(super) fn add(&mut self, identity: Identity, link: LinkId, join: Join) -> Option<LinkId> {
        self.waiting.insert(identity, (link, join)).map(|(former, _)| former)
    }

    /// A connection ended, or its process does not wait any more. Returns the role of the process if it was one that waits.
    pub(super) fn remove(&mut self, link: LinkId) -> Option<Role> {
        let (identity, _) = self.waiting.iter().find(|(_, (waiting, _))| *waiting == link)?;
        let identity = *identity;
        self.waiting.remove(&identity);
        Some(identity.role)
    }

    /// Whether this is the connection of a process that waits.
    pub(super) fn contains(&self, link: LinkId) -> bool {
        self.waiting.values().any(|(waiting, _)| *waiting == link)
    }

    /// The roles of those that wait.
    pub(super) fn roles(&self) -> BTreeSet<Role> {
        self.waiting.keys().map(|identity| identity.role).chain(self.waited.iter().copied()).collect()
    }

    /// How many of this role wait.
    pub(super) fn count(&self, role: Role) -> usize {
        self.waiting.keys().filter(|identity| identity.role == role).count()
    }

    /// How many others of its role wait.
    pub(super) fn others(&self, identity: Identity) -> usize {
        self.count(identity.role) - usize::from(self.waiting.contains_key(&identity))
    }

    /// As records say: some of this role wait.
    pub(super) fn recall(&mut self, role: Role) {
        self.waited.insert(role);
    }

    /// As records say: none of this role waits.
    pub(super) fn forget(&mut self, role: Role) {
        self.waited.remove(&role);
    }

    /// All that wait, in an order that is the same on every run. None does any more.
    pub(super) fn take(&mut self) -> Vec<(LinkId, Join)> {
        std::mem::take(&mut self.waiting).into_values().collect()
    }
}
