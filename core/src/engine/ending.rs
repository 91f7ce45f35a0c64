//! The end of an engine: in order, or because this process gives up.

use std::time::Duration;

use super::driver::{Engine, locked};
use super::local_peers;
use crate::error::{Error, Result};
use crate::runtime::exporter::Standing;
use crate::runtime::status;
use crate::types::Role;
use crate::wire::frame::Health;

impl Engine {
    /// Leaves the job: pending submissions fail. Then waits at most `grace` for the other workers, because a server in this process may
    /// still serve them. Idempotent.
    ///
    /// # Errors
    /// [`Error::Timeout`] naming the workers that had not left by then; this process has left anyway.
    ///
    /// Operations for which a stream waits ([`Handle::follow`](super::Handle::follow)) are no pending ones: their caller was told that all is
    /// well. They get `grace` to end first, and an error of one of them is returned after this process has left.
    pub fn shutdown(&self, grace: Duration) -> Result<()> {
        let late = match self.settle(Some(grace)) {
            // Those fail below, with an error that says why.
            Err(Error::Timeout { .. }) => Ok(()),
            settled => settled,
        };
        let left = self.leave(grace).map_err(|error| match error {
            Error::Timeout { waited, .. } => {
                Error::Timeout { what: format!("waiting for {} to leave", self.who_stays()), waited }
            }
            other => other,
        });
        if let Err(error) = &left
            && !grace.is_zero()
        {
            self.shared.flight.request_failed(error);
            self.shared.flight.settle(ENDING);
        }
        left.and(late).and_then(|()| self.shared.followed.check())
    }

    /// Waits until all operations have ended for which streams wait, at most for `timeout`.
    ///
    /// # Errors
    /// The first error among them of which nobody was told; [`Error::Timeout`] if some have not ended in time.
    pub fn settle(&self, timeout: Option<Duration>) -> Result<()> {
        let settled = self.shared.followed.settle(timeout, &|| self.shared.works());
        settled.inspect_err(|error| {
            if let Error::Unresponsive { .. } = error {
                self.shared.flight.failed(error);
            }
        })
    }

    /// The workers that have not left, as far as the coordinator still answers.
    fn who_stays(&self) -> String {
        const PATIENCE: Duration = Duration::from_secs(1);
        let status = status(&self.coordinator, &self.credentials, PATIENCE).ok();
        let members = status.iter().flat_map(|status| status.view.members.iter().zip(&status.members));
        let stays = members.filter(|(member, now)| member.process.role == Role::Worker && now.health != Health::Left);
        let names: Vec<String> = stays.map(|(member, _)| member.described()).collect();
        if names.is_empty() { "the other workers".to_owned() } else { names.join(", ") }
    }

    /// Ends the work of this process because of `cause`: pending submissions fail, and for the job this is the loss of a worker, whose
    /// cause every member gets. Waits at most `grace` until the coordinator knows. Like [`shutdown`](Self::shutdown), it has no effect
    /// after this worker has left.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the coordinator did not answer in time; this process has left anyway.
    pub fn give_up(&self, cause: String, grace: Duration) -> Result<()> {
        if std::mem::replace(&mut *locked(&self.leaving), true) {
            return Ok(());
        }
        self.shared.probe.standing.advance(Standing::Ending);
        // Nothing is withdrawn: the other workers hear of the loss, which ends all of their rounds.
        self.shared.flight.ended(&given_up(&cause));
        self.shared.report(|state, now| state.worker.handle_failed(now, given_up(&cause)));
        if let Some(membership) = &*locked(&self.shared.membership) {
            membership.give_up(cause);
        }
        self.close(grace)
    }

    pub(super) fn leave(&self, grace: Duration) -> Result<()> {
        if std::mem::replace(&mut *locked(&self.leaving), true) {
            return Ok(());
        }
        self.shared.probe.standing.advance(Standing::Ending);
        if self.shared.with(|state, now| state.leave(now, grace)).is_ok() {
            // The machine ends this wait after `grace`. The rest is for threads that are late, or stuck.
            let patience = grace.saturating_add(ENDING);
            let _ =
                self.shared.milestones.wait(patience, "telling servers of withdrawals", |reached| reached.may_leave);
        }
        if local_peers::goes_on(&self.config) {
            // The others of this machine go on, and can meet again only once this rank leads them no more.
            self.shared.company.shutdown();
        }
        if let Some(membership) = &*locked(&self.shared.membership) {
            membership.leave();
        }
        self.close(grace)
    }

    /// Waits at most `grace` for the answer of the coordinator, then ends all threads.
    fn close(&self, grace: Duration) -> Result<()> {
        let milestones = &self.shared.milestones;
        let what = "waiting for the other workers to leave";
        let left = milestones.wait(grace, what, |reached| reached.left || reached.failed.is_some());
        let membership = locked(&self.shared.membership).take();
        drop(membership);
        self.shared.company.shutdown();
        self.following.end(ENDING);
        // The thread may have met another team meanwhile.
        self.shared.company.shutdown();
        self.shared.transport.shutdown(Duration::from_secs(1));
        // Ends the copies under way, and with them the last handles.
        if let Some(device) = &self.shared.device {
            device.shutdown(&self.shared.doubt);
        }
        // Only now, because a sum that came meanwhile, and for which other ranks wait, is still copied to its device.
        self.shared.close();
        self.stages.end(ENDING);
        // Taken out of the lock first, because a callback under way may arm it.
        let timer = locked(&self.shared.timer).take();
        drop(timer);
        self.stop_timeline();
        self.shared.flight.settle(ENDING);
        self.shared.probe.standing.advance(Standing::Ended);
        // Frees the port, if nobody else is shown there.
        let exposure = locked(&self.exposure).take();
        drop(exposure);
        left
    }
}

/// How long the end of an engine waits for a thread that was told to end. A thread that is stuck stays behind, with a warning.
const ENDING: Duration = Duration::from_secs(2);

/// The error of submissions that are under way when their worker gives up.
fn given_up(cause: &str) -> Error {
    Error::FailedPrecondition {
        what: format!("this process gave up: {cause}"),
        hint: "see its own error, and start the job again".to_owned(),
    }
}
