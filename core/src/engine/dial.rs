//! Connects to servers for the machine.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::metrics::Metrics;
use super::shared::Shared;
use crate::error::Error;
use crate::local::PeerProcess;
use crate::types::{Done, LinkId, NodeId};
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
                if let Some(process) = process.get() {
                    witness(&shared, node, Arc::clone(process));
                }
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
                on_done.transport.measure(*link, Arc::new(on_done.metrics.link(server)));
            }
            Err(error) => tracing::debug!(server = server.0, %error, "not reachable"),
        }
        on_done.report(|state, now| state.worker.handle_dialled(now, server, attempt, outcome));
    });
    shared.transport.connect(to, timeout, lost, done);
}

/// Tells the coordinator if a server has ended, whose connection is lost: its silence would tell it later. On a thread of its own, because a
/// process that is killed closes its connections a while before it has ended.
fn witness(shared: &Arc<Shared>, node: NodeId, process: Arc<PeerProcess>) {
    let shared = Arc::downgrade(shared);
    let waiting = std::thread::Builder::new().name("gl-witness".to_owned()).spawn(move || {
        if process.ends_within(ENDING)
            && let Some(shared) = shared.upgrade()
        {
            shared.tell(|membership| membership.reporter().report_end(node, process.pid));
        }
    });
    // Without a thread, its silence tells it.
    drop(waiting);
}

/// Longer than a process takes to end that has closed its connections.
const ENDING: Duration = Duration::from_secs(2);
