//! What a server does at the order of an operator.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use gradlane_core::config::OnServerLoss;
use gradlane_core::local::confined;
use gradlane_core::runtime::Membership;
use gradlane_core::runtime::exporter::stats;
use gradlane_core::runtime::timeline::Window;
use gradlane_core::types::{ControlAnswer, ControlCommand, TensorKey};
use gradlane_core::{Error, Result};

use super::data_plane::DataPlane;
use super::ending;
use super::trace::Place;
use crate::log;

/// Obeys on the thread of the membership.
pub(super) struct Ordered {
    plane: Arc<DataPlane>,
    on_server_loss: OnServerLoss,
    dump_dir: Option<PathBuf>,
    /// Set once, right after start: it needs this struct.
    membership: OnceLock<Weak<Mutex<Membership>>>,
}

impl Ordered {
    pub(super) fn new(plane: &Arc<DataPlane>, on_server_loss: OnServerLoss, dump_dir: Option<PathBuf>) -> Self {
        Self { plane: Arc::clone(plane), on_server_loss, dump_dir, membership: OnceLock::new() }
    }

    /// The membership of this server.
    pub(super) fn attach(&self, membership: &Arc<Mutex<Membership>>) {
        let _ = self.membership.set(Arc::downgrade(membership));
    }

    /// Obeys a command, and tells the coordinator what it has come to.
    pub(super) fn obey(&self, number: u64, command: ControlCommand) {
        self.plane.ordered(number, &command);
        let outcome = match command {
            ControlCommand::Stats => stats(&*self.plane.probe),
            ControlCommand::Log { filter } => log::change(&filter).map(|()| ControlAnswer::Done),
            ControlCommand::Drain => return self.drain(number),
            ControlCommand::DumpRecorder { directory } => {
                return self
                    .apart(number, move |plane| Ok(ControlAnswer::dumped(&plane.flight.dump_by_order(&directory)?)));
            }
            ControlCommand::Timeline { directory, from, steps } => {
                let dump_dir = self.dump_dir.clone();
                return self.apart(number, move |plane| {
                    let place = confined::below_dump_dir(dump_dir.as_deref(), &directory)?;
                    let path = plane.trace.start_now(&Place { place, window: Window { from, steps } })?;
                    Ok(ControlAnswer::dumped(&path))
                });
            }
            ControlCommand::StopTimeline => {
                return self.apart(number, |plane| {
                    plane.stop_timeline();
                    Ok(ControlAnswer::Done)
                });
            }
            ControlCommand::SetRate { tensor, rate, step } => {
                self.plane.handle_rate(TensorKey::of(&tensor), step, rate).map(|()| ControlAnswer::RateSet { step })
            }
            ControlCommand::Save { .. } | ControlCommand::Dump { .. } | ControlCommand::Unknown { .. } => {
                Err(command.refusal("a server"))
            }
        };
        self.plane.report_commanded(number, outcome);
    }

    /// Obeys on a thread of its own, because a file is written and the thread of the membership must go on.
    fn apart(&self, number: u64, obey: impl FnOnce(&DataPlane) -> Result<ControlAnswer> + Send + 'static) {
        let plane = Arc::clone(&self.plane);
        let obey = move || {
            let outcome = obey(&plane);
            plane.report_commanded(number, outcome);
        };
        if let Err(error) = std::thread::Builder::new().name("gl-order".to_owned()).spawn(obey) {
            let error = Error::Io { what: "starting a thread".to_owned(), cause: error.to_string() };
            self.plane.report_commanded(number, Err(error));
        }
    }

    /// Does what SIGTERM does to the process of a server. The answer goes first, because the membership ends with it.
    fn drain(&self, number: u64) {
        let Some(membership) = self.membership.get().and_then(Weak::upgrade) else {
            let (what, hint) = ("the server has just started".to_owned(), "ask again".to_owned());
            return self.plane.report_commanded(number, Err(Error::FailedPrecondition { what, hint }));
        };
        tracing::warn!("an operator has ordered this server to drain");
        self.plane.report_commanded(number, Ok(ControlAnswer::Done));
        let (plane, on_server_loss) = (Arc::clone(&self.plane), self.on_server_loss);
        let drain = move || {
            ending::drain(&plane, &membership, on_server_loss, PATIENCE);
            ending::stop(&plane, &membership, ending::FAREWELL);
        };
        // The thread of the membership must go on meanwhile.
        let started: Result<_> = std::thread::Builder::new()
            .name("gl-drain".to_owned())
            .spawn(drain)
            .map_err(|error| Error::Io { what: "starting a thread".to_owned(), cause: error.to_string() });
        if let Err(error) = started {
            tracing::error!(%error, "the server does not drain");
        }
    }
}

/// Rounds under way may take so long, as after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(1);
