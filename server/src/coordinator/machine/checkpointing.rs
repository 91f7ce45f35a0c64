//! A worker asks for a checkpoint, and servers write or read it.

use gradlane_core::error::Result;
use gradlane_core::types::{CheckpointAsk, ControlAnswer, LinkId, Recipient, Role, ServerId, Time, Written};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::Health;

use super::Coordinator;
use crate::coordinator::asker::Asker;
use crate::coordinator::checkpoints::{Answer, Found, Turn};
use crate::coordinator::journal::Entry;
use crate::coordinator::questions;
use crate::coordinator::roster::{Identity, Seat};

impl Coordinator {
    /// A member asks for a checkpoint.
    pub(super) fn handle_checkpoint(
        &mut self,
        now: Time,
        link: LinkId,
        identity: Identity,
        request: u64,
        ask: CheckpointAsk,
    ) {
        match (questions::asking_worker(&self.stage, &self.roster, identity), &self.registry) {
            (Ok(worker), Some(registry)) => {
                let turn = self.checkpoints.ask(now, (Asker::Worker(worker), request), ask, registry.parameters());
                self.turn_checkpoints(turn);
            }
            (Err(error), _) => self.connections.send(link, Frame::Checkpointed { request, outcome: Err(error) }),
            (Ok(_), None) => unreachable!("a worker asks when the job has formed"),
        }
    }

    /// A server has obeyed an order, or cannot.
    pub(super) fn handle_obeyed(&mut self, link: LinkId, identity: Identity, order: u64, outcome: Result<Written>) {
        let seat = self.roster.seat(identity).filter(|seat| seat.member.process.role == Role::Server);
        let Some(server) = seat.map(|seat| ServerId(seat.member.index)) else {
            return self.close_protocol(link, "kind", "is for servers alone");
        };
        let turn = self.checkpoints.handle_obeyed(server, order, outcome);
        self.turn_checkpoints(turn);
    }

    /// The driver has done work on files of the save or load with this number.
    pub fn handle_disk(&mut self, number: u64, outcome: Result<Found>) {
        let turn = self.checkpoints.handle_disk(number, outcome, self.clocks.steps());
        self.turn_checkpoints(turn);
    }

    /// Carries out what follows. Orders stand behind all closings of rounds that were told before.
    pub(super) fn turn_checkpoints(&mut self, turn: Turn) {
        let Turn { disk, orders, answer, steps, applies } = turn;
        for (server, order) in orders {
            let is_it = |seat: &&Seat| seat.identity().role == Role::Server && seat.member.index == server.0;
            if let Some(link) = self.roster.seats().find(is_it).and_then(Seat::link) {
                self.connections.send(link, Frame::Order(order));
            }
        }
        disk.into_iter().for_each(|disk| self.connections.disk(disk));
        match answer {
            Some(Answer { asker: Asker::Worker(worker), request, outcome }) => {
                // A worker without a connection gets its answer when it asks again.
                let seat = self.roster.worker(worker).filter(|seat| seat.health != Health::Dead);
                if let Some(link) = seat.and_then(Seat::link) {
                    self.connections.send(link, Frame::Checkpointed { request, outcome });
                }
            }
            Some(Answer { asker: Asker::Operator, request, outcome }) => {
                self.end_control(Recipient::Coordinator, request, outcome.map(ControlAnswer::Saved));
            }
            None => {}
        }
        if applies {
            let bases = self.clocks.go_back(&steps);
            self.write_down(Entry::WentBack { bases: bases.clone() });
            let turn = self.checkpoints.apply(&bases);
            self.turn_checkpoints(turn);
        }
    }
}
