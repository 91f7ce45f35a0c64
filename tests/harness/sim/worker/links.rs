//! The links of a worker to its servers.

use gradlane_core::error::Error;
use gradlane_core::types::{LinkId, ServerId};

use super::super::world::{Context, Input};
use super::WorkerProcess;

/// What a link was dialled for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialled {
    pub(super) server: ServerId,
    pub(super) attempt: u64,
    pub(super) is_up: bool,
}

impl WorkerProcess {
    pub(super) fn handle_link(&mut self, context: &mut Context, input: Input) {
        let now = context.now;
        match input {
            Input::LinkReady { link } => match self.links.get_mut(&link) {
                Some(Dialled { server, attempt, is_up }) => {
                    *is_up = true;
                    let (server, attempt) = (*server, *attempt);
                    self.worker.handle_dialled(now, server, attempt, Ok(link));
                }
                // Too late: the attempt has failed.
                None => context.send_link(self.me, link, Input::LinkLost { link, error: Error::Cancelled }),
            },
            Input::LinkFailed { link } => {
                // The attempt may have succeeded; its own timeout finds nothing to do.
                if let Some(Dialled { server, attempt, is_up: false }) = self.links.get(&link).copied() {
                    self.links.remove(&link);
                    let error = Error::Unavailable { what: server.to_string(), cause: "no answer".to_owned() };
                    self.worker.handle_dialled(now, server, attempt, Err(error));
                }
            }
            Input::LinkLost { link, error } => {
                self.transport.lose(context, link, &error);
                if let Some(Dialled { server, attempt, .. }) = self.links.remove(&link) {
                    self.worker.handle_link_lost(now, server, attempt, error);
                }
            }
            _ => {}
        }
    }

    /// This worker leaves a server that broke the protocol.
    pub(super) fn lose_link(&mut self, context: &mut Context, link: LinkId, error: &Error) {
        context.send_link(self.me, link, Input::LinkLost { link, error: error.told_to_peer() });
        if let Some(Dialled { server, attempt, .. }) = self.links.remove(&link) {
            self.worker.handle_link_lost(context.now, server, attempt, error.clone());
        }
    }
}
