//! The connections of the coordinator: the node at the other end, the member for which it speaks, and the commands to send.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{ControlCommand, LinkId, NodeId, Role};
use gradlane_core::wire::{Frame, limits};

use super::journal::Record;
use super::roster::Identity;
use super::{Command, Event};

/// Every connection, and the commands that the driver has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Connections {
    links: BTreeMap<LinkId, Link>,
    /// Those of observers, those of operators, and those of other nodes that have not spoken for a member yet. Later connections have greater
    /// names.
    observers: BTreeSet<LinkId>,
    operators: BTreeSet<LinkId>,
    strangers: BTreeSet<LinkId>,
    commands: VecDeque<Command>,
    /// Of members that gave up and wait for an answer.
    parting: Vec<LinkId>,
}

/// A connection. A member's seat names its connection in turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) node: NodeId,
    /// What its certificate is for.
    pub(super) role: Role,
    /// The member that joined on it.
    pub(super) speaks_for: Option<Identity>,
}

impl Connections {
    /// An authenticated node connected. Observers have [`OBSERVERS_MAX`] places of their own, operators [`OPERATORS_MAX`], and all others have
    /// `STRANGERS_MAX` until they speak for a member. When these are taken, the oldest connection without a member gives way. So nobody who may only look takes
    /// the place of a member, and idle connections keep nobody out. Members' connections are not counted, because there are no more of
    /// them than members.
    pub(super) fn add(&mut self, link: LinkId, node: NodeId, role: Role) {
        self.links.insert(link, Link { node, role, speaks_for: None });
        let (guests, what, max) = match role {
            Role::Observer => (&mut self.observers, "observers", OBSERVERS_MAX),
            Role::Admin => (&mut self.operators, "operators", OPERATORS_MAX),
            Role::Worker | Role::Server | Role::Coordinator => {
                (&mut self.strangers, "connections of no member", STRANGERS_MAX)
            }
        };
        guests.insert(link);
        if guests.len() > max {
            let oldest = guests.first().copied().expect("there is the new one");
            let error = Error::Exhausted {
                what: format!("{what} at the coordinator"),
                limit: max.to_string(),
                hint: "the oldest one gives way: ask again".to_owned(),
            };
            self.close(oldest, error);
        }
    }

    /// These connections without those of members, which are closed: their job forms again.
    pub(super) fn without_members(mut self) -> Self {
        let former: Vec<LinkId> =
            self.links.iter().filter(|(_, link)| link.speaks_for.is_some()).map(|(id, _)| *id).collect();
        for link in former.into_iter().chain(std::mem::take(&mut self.parting)) {
            let what = "this connection".to_owned();
            self.close(link, Error::Unavailable { what, cause: "the job forms again".to_owned() });
        }
        self
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.links.len()
    }

    /// A connection, unless it ended or was closed.
    pub(super) fn get(&self, link: LinkId) -> Option<Link> {
        self.links.get(&link).copied()
    }

    /// Checks that the node at the other end may join as `claimed`.
    ///
    /// # Errors
    /// [`Error::Auth`] if its certificate is that of another role.
    pub(super) fn check_claim(&self, link: LinkId, claimed: Role) -> Result<()> {
        let certified = self.links.get(&link).map(|link| link.role);
        match claimed {
            Role::Worker | Role::Server if certified == Some(claimed) => Ok(()),
            Role::Worker | Role::Server | Role::Coordinator | Role::Observer | Role::Admin => Err(Error::Auth {
                problem: match certified {
                    Some(role) => format!("this process joins as a {claimed}, but its certificate is that of a {role}"),
                    None => format!("this process joins as a {claimed} without a certificate"),
                },
                hint: format!("start it with a join string that is good for a {claimed}"),
            }),
        }
    }

    /// From now on `link` speaks for this member, or for none.
    ///
    /// # Panics
    /// If there is no such connection.
    pub(super) fn assign(&mut self, link: LinkId, member: Option<Identity>) {
        self.links.get_mut(&link).expect("only connections that exist speak for members").speaks_for = member;
        self.strangers.remove(&link);
    }

    /// From now on `link` speaks for no member, and waits for [`dismiss_parting`](Self::dismiss_parting).
    pub(super) fn part(&mut self, link: LinkId) {
        self.assign(link, None);
        self.parting.push(link);
    }

    /// Whether `link` waits for [`dismiss_parting`](Self::dismiss_parting).
    pub(super) fn is_parting(&self, link: LinkId) -> bool {
        self.parting.contains(&link)
    }

    /// Answers the members that gave up: the others know of it.
    pub(super) fn dismiss_parting(&mut self, error: &Error) {
        for link in std::mem::take(&mut self.parting) {
            self.send(link, Frame::Refused(error.clone()));
            self.close(link, error.clone());
        }
    }

    /// A connection ended. Returns the member that it spoke for.
    pub(super) fn remove(&mut self, link: LinkId) -> Option<Identity> {
        self.parting.retain(|parting| *parting != link);
        self.observers.remove(&link);
        self.operators.remove(&link);
        self.strangers.remove(&link);
        self.links.remove(&link).and_then(|link| link.speaks_for)
    }

    /// Closes a connection after everything that was sent before. Returns the member that it spoke for.
    pub(super) fn close(&mut self, link: LinkId, error: Error) -> Option<Identity> {
        self.commands.push_back(Command::Close { link, error });
        self.remove(link)
    }

    /// The node at the other end gets its next certificate.
    pub(super) fn certify(&mut self, link: LinkId) {
        self.commands.push_back(Command::Certify { link });
    }

    /// The coordinator itself obeys this command of an operator.
    pub(super) fn obey(&mut self, number: u64, command: ControlCommand) {
        self.commands.push_back(Command::Obey { number, command });
    }

    /// The driver does this with files.
    pub(super) fn disk(&mut self, disk: super::Disk) {
        self.commands.push_back(Command::Disk(disk));
    }

    /// The worker at the other end gets the key of the workers.
    pub(super) fn share_key(&mut self, link: LinkId) {
        self.commands.push_back(Command::ShareKey { link });
    }

    pub(super) fn send(&mut self, link: LinkId, frame: Frame) {
        self.commands.push_back(Command::Send { link, frame });
    }

    pub(super) fn journal(&mut self, record: Record) {
        self.commands.push_back(Command::Journal(record));
    }

    /// There is no connection any more, also none of a member that has left.
    pub(super) fn drop_all(&mut self) {
        *self = Self { commands: std::mem::take(&mut self.commands), ..Self::default() };
    }

    /// Forgets all commands, because nobody is to carry them out.
    pub(super) fn drop_commands(&mut self) {
        self.commands.clear();
    }

    pub(super) fn event(&mut self, event: Event) {
        self.commands.push_back(Command::Event(event));
    }

    /// The next command for the driver.
    pub(super) fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// Whether the driver took every command.
    pub(super) fn is_drained(&self) -> bool {
        self.commands.is_empty()
    }
}

/// Observers at once. An observer asks, and ends.
pub(super) const OBSERVERS_MAX: usize = 32;
/// Connections of operators at once. An operator gives orders, and ends.
pub(super) const OPERATORS_MAX: usize = 128;
/// Connections of workers and servers that have not joined yet: all members may come at the same time.
const STRANGERS_MAX: usize = limits::MEMBERS_MAX;
