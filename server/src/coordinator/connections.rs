//! The connections of the coordinator: the node at the other end, the member for which it speaks, and the commands to send.

use std::collections::{BTreeMap, VecDeque};

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{LinkId, NodeId, Role};
use gradlane_core::wire::{Frame, limits};

use super::roster::Identity;
use super::{Command, Event};

/// Every connection, and the commands that the driver has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Connections {
    links: BTreeMap<LinkId, Link>,
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
    /// An authenticated node connected.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if it is to be closed, because there are too many.
    pub(super) fn add(&mut self, link: LinkId, node: NodeId, role: Role) -> Result<()> {
        const LINKS_MAX: usize = 2 * limits::MEMBERS_MAX;
        self.links.insert(link, Link { node, role, speaks_for: None });
        if self.links.len() <= LINKS_MAX {
            return Ok(());
        }
        Err(Error::Exhausted {
            what: "connections to the coordinator".to_owned(),
            limit: LINKS_MAX.to_string(),
            hint: "close some".to_owned(),
        })
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
            Role::Worker | Role::Server | Role::Coordinator | Role::Observer => Err(Error::Auth {
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

    /// The worker at the other end gets the key of the workers.
    pub(super) fn share_key(&mut self, link: LinkId) {
        self.commands.push_back(Command::ShareKey { link });
    }

    pub(super) fn send(&mut self, link: LinkId, frame: Frame) {
        self.commands.push_back(Command::Send { link, frame });
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
