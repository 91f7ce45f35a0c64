//! A worker arrives at a barrier, or ticks a clock.

use std::time::Duration;

use gradlane_core::types::{LinkId, Role, ServerId, Squares, Tick, Time};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::Health;

use super::Coordinator;
use crate::coordinator::barrier::Arrival;
use crate::coordinator::clocks::{Answer, Turn};
use crate::coordinator::questions;
use crate::coordinator::roster::{Identity, Seat};

impl Coordinator {
    /// A member arrives at a barrier.
    pub(super) fn handle_barrier(
        &mut self,
        now: Time,
        link: LinkId,
        identity: Identity,
        request: u64,
        name: String,
        timeout: Duration,
    ) {
        match questions::asking_worker(&self.stage, &self.roster, identity) {
            Ok(worker) => {
                let answers = self.barriers.arrive(now, Arrival { worker, request, name, timeout });
                self.answer(answers);
            }
            Err(error) => self.connections.send(link, Frame::BarrierDone { request, outcome: Err(error) }),
        }
    }

    /// A member ticks a clock.
    pub(super) fn handle_tick(&mut self, now: Time, link: LinkId, identity: Identity, request: u64, tick: Tick) {
        match questions::asking_worker(&self.stage, &self.roster, identity) {
            Ok(worker) => {
                let turn = self.clocks.tick(now, worker, request, tick);
                self.turn_clocks(turn);
            }
            Err(error) => self.connections.send(link, Frame::Ticked { request, outcome: Err(error) }),
        }
    }

    /// A server says its share of the norm of a round.
    pub(super) fn handle_squares(&mut self, now: Time, link: LinkId, identity: Identity, squares: Squares) {
        match self.roster.seat(identity).map(|seat| seat.member.index) {
            Some(index) if identity.role == Role::Server => {
                let turn = self.clocks.take_squares(now, ServerId(index), squares);
                self.turn_clocks(turn);
            }
            Some(_) | None => self.close_protocol(link, "kind", "is for servers alone"),
        }
    }

    /// Tells servers how rounds are closed, and then workers that they may go on.
    pub(super) fn turn_clocks(&mut self, turn: Turn) {
        let servers = self.roster.links(|identity| identity.role == Role::Server);
        for closing in turn.closed {
            for link in &servers {
                self.connections.send(*link, Frame::Close(closing.clone()));
            }
        }
        self.tell_ticked(turn.answers);
    }

    /// Answers ticks. A worker without a connection gets its answer when it ticks again. A worker that was given up is fenced instead.
    pub(super) fn tell_ticked(&mut self, answers: Vec<Answer>) {
        for Answer { worker, request, outcome } in answers {
            let seat = self.roster.worker(worker).filter(|seat| seat.health != Health::Dead);
            if let Some(link) = seat.and_then(Seat::link) {
                self.connections.send(link, Frame::Ticked { request, outcome });
            }
        }
    }
}
