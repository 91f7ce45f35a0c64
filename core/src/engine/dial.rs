//! Connects to servers for the machine.

use std::sync::{Arc, OnceLock};

use super::metrics::Metrics;
use super::shared::Shared;
use crate::error::Error;
use crate::local::PeerProcess;
use crate::types::{Done, LinkId};
use crate::worker::Dial;

/// Connects to a server, and reports the outcome to the machine.
pub(super) fn dial(shared: &Arc<Shared>, dial: Dial) {
    let Dial { server, attempt, to, timeout } = dial;
    let (on_done, on_loss) = (Arc::clone(shared), Arc::downgrade(shared));
    let node = to.node;
    let process: Arc<OnceLock<Arc<PeerProcess>>> = Arc::default();
    let seen = Arc::clone(&process);
    let lost = Box::new(move |_link: LinkId, error: Error| {
        if let Some(shared) = on_loss.upgrade() {
            if error == Error::Cancelled || shared.look(|state| state.worker.is_leaving()) {
                tracing::debug!(server = server.0, %error, "connection closed");
            } else {
                tracing::warn!(server = server.0, %error, "connection lost");
            }
            if let Some(process) = process.get().filter(|process| process.has_ended()) {
                // Its silence would tell it later.
                shared.report_end(node, process.pid);
            }
            shared.report(|state, now| state.worker.handle_link_lost(now, server, attempt, error));
        }
    });
    let done = Done::new(move |outcome| {
        match &outcome {
            Ok(link) => {
                if let Some(process) = on_done.transport.process(*link) {
                    let _ = seen.set(process);
                }
                let zero_copy = on_done.transport.capabilities(*link).zero_copy;
                tracing::debug!(server = server.0, zero_copy, "connected");
                Metrics::add(&on_done.metrics.connections, 1);
                Metrics::add(&on_done.metrics.shm_connections, u64::from(zero_copy));
            }
            Err(error) => tracing::debug!(server = server.0, %error, "not reachable"),
        }
        on_done.report(|state, now| state.worker.handle_dialled(now, server, attempt, outcome));
    });
    shared.transport.connect(to, timeout, lost, done);
}
