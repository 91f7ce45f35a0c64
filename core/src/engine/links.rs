//! The engine's connections to the servers of the view: dialled at once, dialled again with back-off while the job lives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Metrics;
use super::shared::{Shared, State};
use crate::error::Error;
use crate::transport::{Peer, Road};
use crate::types::{Done, LinkId, ServerId, Time, View, WorkerId};

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Which server is reached by which connection.
#[derive(Default, Debug)]
pub(super) struct Links(BTreeMap<ServerId, Link>);

#[derive(Debug)]
struct Link {
    peer: Peer,
    state: LinkState,
    backoff: Duration,
}

/// `Dialling → Up → Waiting → Dialling …`, and `Dialling → Waiting` when a dial fails.
#[derive(Debug)]
enum LinkState {
    Dialling,
    Up(LinkId),
    Waiting { until: Time },
}

impl Links {
    /// The connection to `server`, if there is one now.
    pub(super) fn up(&self, server: ServerId) -> Option<LinkId> {
        match self.0.get(&server)?.state {
            LinkState::Up(link) => Some(link),
            LinkState::Dialling | LinkState::Waiting { .. } => None,
        }
    }

    /// Follows the view: servers that are new in it, to be dialled by the worker `rank`.
    pub(super) fn follow(&mut self, view: &View, rank: WorkerId) -> Vec<(Peer, ServerId)> {
        let here = view.workers().find(|worker| worker.index == rank.0).map(|worker| worker.process.machine);
        let mut dials = Vec::new();
        for member in view.servers() {
            let server = ServerId(member.index);
            let is_near = here.is_some_and(|here| here.is_shared_with(member.process.machine));
            let peer = Peer {
                address: member.process.address.clone(),
                door: if is_near { member.process.socket_path.clone() } else { String::new() },
                node: member.node,
                name: member.name(),
            };
            if self.0.get(&server).is_none_or(|link| link.peer != peer) {
                dials.push((peer.clone(), server));
                self.0.insert(server, Link { peer, state: LinkState::Dialling, backoff: BACKOFF_MIN });
            }
        }
        dials
    }

    /// Servers whose turn has come again.
    pub(super) fn due(&mut self, now: Time) -> Vec<(Peer, ServerId)> {
        let mut dials = Vec::new();
        for (server, link) in &mut self.0 {
            if matches!(link.state, LinkState::Waiting { until } if until <= now) {
                link.state = LinkState::Dialling;
                dials.push((link.peer.clone(), *server));
            }
        }
        dials
    }

    /// When a server's turn comes.
    pub(super) fn next_due(&self) -> Option<Time> {
        let waiting = self.0.values().filter_map(|link| match link.state {
            LinkState::Waiting { until } => Some(until),
            LinkState::Dialling | LinkState::Up(_) => None,
        });
        waiting.min()
    }

    fn established(&mut self, server: ServerId, link: LinkId) {
        let entry = self.0.get_mut(&server).expect("a dialled server is known");
        entry.state = LinkState::Up(link);
        entry.backoff = BACKOFF_MIN;
    }

    fn failed(&mut self, now: Time, server: ServerId) {
        let entry = self.0.get_mut(&server).expect("a dialled server is known");
        entry.state = LinkState::Waiting { until: now + entry.backoff };
        entry.backoff = (entry.backoff * 2).min(BACKOFF_MAX);
    }
}

/// Connects to a server; the outcome opens or closes the scheduler's gate for it.
pub(super) fn dial(shared: &Arc<Shared>, peer: Peer, server: ServerId) {
    let (on_done, on_loss) = (Arc::clone(shared), Arc::downgrade(shared));
    let name = peer.name.clone();
    let lost = Box::new(move |_link: LinkId, error: Error| {
        if let Some(shared) = on_loss.upgrade() {
            tracing::warn!(server = server.0, %error, "connection lost");
            shared.with(|state, now| down(state, now, server));
        }
    });
    let done = Done::new(move |outcome| match outcome {
        Ok(link) => {
            let road = on_done.transport.road(link);
            tracing::debug!(server = server.0, ?road, "connected");
            Metrics::add(&on_done.metrics.connections, 1);
            Metrics::add(&on_done.metrics.shm_connections, u64::from(road == Road::SharedMemory));
            on_done.with(|state, now| {
                state.links.established(server, link);
                state.scheduler.handle_link_up(now, server);
            });
        }
        Err(error) => {
            tracing::debug!(server = name, %error, "not reachable");
            on_done.with(|state, now| down(state, now, server));
        }
    });
    shared.transport.connect(peer, shared.settings.dial_patience, lost, done);
}

fn down(state: &mut State, now: Time, server: ServerId) {
    state.scheduler.handle_link_down(now, server);
    if state.ended.is_none() {
        state.links.failed(now, server);
    }
}
