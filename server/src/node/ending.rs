//! How a server ends: gently, or at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gradlane_core::config::OnServerLoss;
use gradlane_core::local::failpoint::{Failpoint, reach};
use gradlane_core::runtime::Membership;

use super::data_plane::DataPlane;

/// Completes what is open, for at most `patience`, and returns whether nothing was left. See [`Server::drain`](super::Server::drain).
pub(super) fn drain(
    plane: &Arc<DataPlane>,
    membership: &Mutex<Membership>,
    on_server_loss: OnServerLoss,
    patience: Duration,
) -> bool {
    reach(Failpoint::Drains);
    match on_server_loss {
        OnServerLoss::Continue | OnServerLoss::Restore => {
            locked(membership).give_up("it was asked to stop".to_owned());
            plane.wait(Some(patience)).is_some()
        }
        OnServerLoss::Abort => plane.drain(patience),
    }
}

/// Ends at once: open exchanges fail on the workers' side. Idempotent.
pub(super) fn stop(plane: &Arc<DataPlane>, membership: &Mutex<Membership>, patience: Duration) {
    plane.end();
    locked(membership).stop();
    plane.stop(patience);
}

/// How long peers may take to learn that a server is gone.
pub(super) const FAREWELL: Duration = Duration::from_millis(500);

fn locked(membership: &Mutex<Membership>) -> MutexGuard<'_, Membership> {
    membership.lock().unwrap_or_else(PoisonError::into_inner)
}
