//! What is told to whom: answers, refusals, and how connections are closed.

use gradlane_core::error::Error;
use gradlane_core::types::defect::{Defect, planted};
use gradlane_core::types::{LinkId, Role, Time};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::{AckTimes, Health, Join};

use super::Coordinator;
use crate::coordinator::Event;
use crate::coordinator::barrier::Answer;
use crate::coordinator::connections::Link;
use crate::coordinator::registry::{Forgotten, Registry};
use crate::coordinator::roster::Seat;
use crate::coordinator::stage::Stage;

impl Coordinator {
    /// Answers a heartbeat. The driver fills in when it sends the answer, and when its clock began.
    pub(super) fn acknowledge(&mut self, now: Time, link: LinkId, sent: Time) {
        let times = AckTimes { received: now, answered: now, began_unix_ns: 0 };
        self.connections.send(link, Frame::HeartbeatAck { sent, times });
    }

    pub(super) fn refuse(&mut self, link: LinkId, join: &Join, error: Error) {
        // Why the job is over is said once.
        if !matches!(self.stage, Stage::Closing { .. } | Stage::Finished { .. }) {
            let who = format!("{} on {}", join.process.role, join.process.place());
            self.connections.event(Event::Refused { who, error: error.clone() });
        }
        self.dismiss(link, error);
    }

    /// Tells a process that it is no member, and closes the connection.
    pub(super) fn dismiss(&mut self, link: LinkId, error: Error) {
        self.connections.send(link, Frame::Refused(error.clone()));
        self.close(link, error);
    }

    pub(super) fn close_protocol(&mut self, link: LinkId, field: &str, problem: &str) {
        let Some(Link { node, speaks_for, .. }) = self.connections.get(link) else { return };
        let peer = speaks_for.map_or_else(|| format!("node {node}"), |identity| self.roster.name(identity));
        self.close(link, Error::Protocol { peer, field: field.to_owned(), problem: problem.to_owned() });
    }

    /// What was asked over a connection that ends needs no answer.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.forget_newcomer(link);
        self.controls.forget(link);
    }

    pub(super) fn close(&mut self, link: LinkId, error: Error) {
        self.forget(link);
        if let Some(identity) = self.connections.close(link, error.clone()) {
            self.hold_seat(identity, error);
        }
    }

    pub(super) fn answer(&mut self, answers: Vec<Answer>) {
        for Answer { worker, request, outcome } in answers {
            // A worker without a connection gets the answer when it asks again. A worker that was given up is fenced instead.
            let seat = self.roster.worker(worker).filter(|seat| seat.health != Health::Dead);
            if let Some(link) = seat.and_then(Seat::link) {
                self.connections.send(link, Frame::BarrierDone { request, outcome });
            }
        }
    }

    pub(super) fn broadcast(&mut self, frame: &Frame) {
        let mut links = self.roster.links(|_| true);
        if planted(self.config.defect, Defect::ViewNotBroadcast) && links.len() > 1 && matches!(frame, Frame::View(_)) {
            links.pop();
        }
        for link in links {
            self.connections.send(link, frame.clone());
        }
    }

    /// Tells a member that has connected the stage of the job, and the news that it may have missed.
    pub(super) fn greet(&mut self, now: Time, link: LinkId) {
        if matches!(self.stage, Stage::Forming { .. }) {
            return;
        }
        let role = self.connections.get(link).map(|link| link.role);
        if role == Some(Role::Worker) {
            self.connections.share_key(link);
        }
        if let Some((identity, worker)) = self.worker_at(link)
            && let Some((change, passage)) = self.boundaries.released(worker)
        {
            return self.part_from(identity, change, passage);
        }
        let view = self.view();
        self.connections.send(link, Frame::View(view));
        if !matches!(self.stage, Stage::Running)
            && let Some(seat) = self.roster.seats_mut().find(|seat| seat.link() == Some(link))
        {
            seat.leaves_on = Some(link);
        }
        if matches!(self.stage, Stage::Running) {
            self.repeat_commands(link);
            match role {
                Some(Role::Server) => self.greet_server(link),
                Some(Role::Worker) => self.greet_stepping(now, link),
                Some(Role::Coordinator | Role::Observer | Role::Admin) | None => {}
            }
            for Forgotten { key, error } in self.registry.iter().flat_map(Registry::forgotten) {
                self.connections.send(link, Frame::Forget { key, error });
            }
        }
    }
}
