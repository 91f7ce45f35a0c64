//! A worker asks the store of the job.

use gradlane_core::types::{LinkId, StoreAsk, Time};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::Health;

use super::Coordinator;
use crate::coordinator::questions;
use crate::coordinator::roster::{Identity, Seat};
use crate::coordinator::store::Reply;

impl Coordinator {
    /// A member asks the store.
    pub(super) fn handle_store(&mut self, now: Time, link: LinkId, identity: Identity, request: u64, ask: StoreAsk) {
        match questions::asking_worker(&self.stage, &self.roster, identity) {
            Ok(worker) => {
                let replies = self.store.ask(now, worker, request, ask);
                self.reply(replies);
            }
            Err(error) => self.connections.send(link, Frame::StoreDone { request, outcome: Err(error) }),
        }
    }

    /// Sends answers of the store. A worker without a connection gets its answer when it asks again. A worker that was given up is fenced
    /// instead.
    pub(super) fn reply(&mut self, replies: Vec<Reply>) {
        for Reply { worker, request, outcome } in replies {
            let seat = self.roster.worker(worker).filter(|seat| seat.health != Health::Dead);
            if let Some(link) = seat.and_then(Seat::link) {
                self.connections.send(link, Frame::StoreDone { request, outcome });
            }
        }
    }
}
