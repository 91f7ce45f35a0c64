//! Connections to the servers of the view. They are dialled at once, and dialled again with back-off while the job lives.
//!
//! ```text
//!  (new in the view) ──► Dialling ──dialled──► Up ──lost──► Waiting ──the pause is over──► Dialling
//!                            └──────────failed──────────────► Waiting
//! ```
//! A server that leaves the view, or moves, is forgotten from any state. Reports carry the number of their attempt, so a late report about
//! a forgotten connection changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::command::{Destination, Dial};
use crate::types::{LinkId, ServerId, Time};

/// How long an attempt may take.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// The pause after the first failure; doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Which connection leads to which server.
#[derive(Default, Debug)]
pub(super) struct Links {
    servers: BTreeMap<ServerId, Link>,
    attempts: u64,
}

#[derive(Debug)]
struct Link {
    to: Destination,
    state: LinkState,
    /// Number of the latest dial.
    attempt: u64,
    backoff: Duration,
}

#[derive(Debug)]
enum LinkState {
    Dialling,
    Up(LinkId),
    Waiting { until: Time },
}

/// The changes of the links that a new view causes.
#[derive(Default, Debug)]
pub(super) struct Changes {
    pub(super) dials: Vec<Dial>,
    /// Servers that are no longer in the view.
    pub(super) gone: Vec<ServerId>,
    /// Links to servers that are gone or have moved.
    pub(super) closed: Vec<LinkId>,
}

impl Links {
    /// The connection to `server`, if there is one now.
    pub(super) fn up(&self, server: ServerId) -> Option<LinkId> {
        self.servers.get(&server)?.up()
    }

    /// Follows a new view with these servers.
    pub(super) fn follow(&mut self, servers: &BTreeMap<ServerId, Destination>) -> Changes {
        let mut changes = Changes::default();
        self.servers.retain(|server, link| {
            let stays = servers.get(server) == Some(&link.to);
            if !stays {
                changes.closed.extend(link.up());
            }
            if !servers.contains_key(server) {
                changes.gone.push(*server);
            }
            stays
        });
        for (server, to) in servers {
            if !self.servers.contains_key(server) {
                let (state, backoff) = (LinkState::Dialling, BACKOFF_MIN);
                self.servers.insert(*server, Link { to: to.clone(), state, attempt: 0, backoff });
                changes.dials.extend(self.dial(*server));
            }
        }
        changes
    }

    /// Servers whose pause is over, which must be dialled again.
    pub(super) fn due(&mut self, now: Time) -> Vec<Dial> {
        let is_due = |link: &Link| matches!(link.state, LinkState::Waiting { until } if until <= now);
        let due: Vec<ServerId> =
            self.servers.iter().filter(|(_, link)| is_due(link)).map(|(server, _)| *server).collect();
        due.into_iter().filter_map(|server| self.dial(server)).collect()
    }

    /// The next time at which a pause ends.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let waiting = self.servers.values().filter_map(|link| match link.state {
            LinkState::Waiting { until } => Some(until),
            LinkState::Dialling | LinkState::Up(_) => None,
        });
        waiting.min()
    }

    /// An attempt succeeded. Returns whether it is the current attempt.
    pub(super) fn established(&mut self, server: ServerId, attempt: u64, link: LinkId) -> bool {
        let Some(entry) = self.servers.get_mut(&server).filter(|entry| entry.is_dialling(attempt)) else {
            return false;
        };
        entry.state = LinkState::Up(link);
        entry.backoff = BACKOFF_MIN;
        true
    }

    /// The attempt failed, or its connection was lost. Returns whether it was the current attempt.
    pub(super) fn lost(&mut self, now: Time, server: ServerId, attempt: u64) -> bool {
        let Some(entry) = self.servers.get_mut(&server).filter(|entry| entry.attempt == attempt) else {
            return false;
        };
        match entry.state {
            LinkState::Waiting { .. } => false,
            LinkState::Dialling | LinkState::Up(_) => {
                entry.state = LinkState::Waiting { until: now + entry.backoff };
                entry.backoff = (entry.backoff * 2).min(BACKOFF_MAX);
                true
            }
        }
    }

    /// Stops dialling servers.
    pub(super) fn stop(&mut self) {
        self.servers.retain(|_, link| !matches!(link.state, LinkState::Waiting { .. }));
    }

    fn dial(&mut self, server: ServerId) -> Option<Dial> {
        let link = self.servers.get_mut(&server)?;
        self.attempts += 1;
        (link.attempt, link.state) = (self.attempts, LinkState::Dialling);
        Some(Dial { server, attempt: link.attempt, to: link.to.clone(), timeout: DIAL_TIMEOUT })
    }
}

impl Link {
    fn up(&self) -> Option<LinkId> {
        match self.state {
            LinkState::Up(link) => Some(link),
            LinkState::Dialling | LinkState::Waiting { .. } => None,
        }
    }

    fn is_dialling(&self, attempt: u64) -> bool {
        match self.state {
            LinkState::Dialling => self.attempt == attempt,
            LinkState::Up(_) | LinkState::Waiting { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::NodeId;

    const ONE: ServerId = ServerId(0);

    #[test]
    fn a_server_that_is_not_reached_is_dialled_again_after_a_pause_that_doubles() {
        let mut links = Links::default();
        let mut dial = links.follow(&servers("a")).dials.remove(0);
        let mut now = Time::ZERO;
        for pause_ms in [50, 100, 200] {
            assert!(links.lost(now, ONE, dial.attempt));
            let due = now + Duration::from_millis(pause_ms);
            assert_eq!(links.poll_timeout(), Some(due));
            now = due;
            dial = links.due(now).remove(0);
        }
        assert!(links.established(ONE, dial.attempt, LinkId(7)));
        assert_eq!((links.up(ONE), links.poll_timeout()), (Some(LinkId(7)), None));
    }

    #[test]
    fn a_server_that_moved_is_dialled_anew_and_a_report_about_its_old_place_changes_nothing() {
        let mut links = Links::default();
        let old = links.follow(&servers("a")).dials.remove(0);
        let new = links.follow(&servers("b")).dials.remove(0);
        assert!(!links.established(ONE, old.attempt, LinkId(1)));
        assert!(links.established(ONE, new.attempt, LinkId(2)));
        assert!(!links.lost(Time::ZERO, ONE, old.attempt));
        assert_eq!(links.up(ONE), Some(LinkId(2)));
    }

    #[test]
    fn a_server_that_left_the_view_is_forgotten_and_its_link_closed() {
        let mut links = Links::default();
        let dial = links.follow(&servers("a")).dials.remove(0);
        links.established(ONE, dial.attempt, LinkId(1));
        let changes = links.follow(&BTreeMap::new());
        assert_eq!((changes.gone, changes.closed), (vec![ONE], vec![LinkId(1)]));
        assert!(!links.lost(Time::ZERO, ONE, dial.attempt));
        assert_eq!((links.up(ONE), links.poll_timeout()), (None, None));
    }

    #[test]
    fn a_connection_that_is_lost_before_it_was_reported_is_not_used() {
        let mut links = Links::default();
        let dial = links.follow(&servers("a")).dials.remove(0);
        assert!(links.lost(Time::ZERO, ONE, dial.attempt));
        assert!(!links.established(ONE, dial.attempt, LinkId(1)));
        assert_eq!(links.up(ONE), None);
    }

    fn servers(address: &str) -> BTreeMap<ServerId, Destination> {
        let (address, socket_path, name) = (address.to_owned(), String::new(), "server 0".to_owned());
        BTreeMap::from([(ONE, Destination { address, socket_path, node: NodeId([0; 32]), name })])
    }
}
