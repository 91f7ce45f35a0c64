//! A worker declares tensors, or undeclares them.

use gradlane_core::cluster::empty_barrier;
use gradlane_core::types::{LinkId, Role, ServerId, Time, View, WorkerId, WorkerSet};
use gradlane_core::wire::Frame;

use super::Coordinator;
use crate::coordinator::endings::Waiting;
use crate::coordinator::questions;
use crate::coordinator::registry::{Ended, Forgotten, Registry};
use crate::coordinator::roster::{Identity, Seat};

impl Coordinator {
    /// A member declares tensors.
    pub(super) fn handle_declare(
        &mut self,
        now: Time,
        link: LinkId,
        identity: Identity,
        request: u64,
        declaration: Waiting,
    ) {
        let worker = match questions::asking_worker(&self.stage, &self.roster, identity) {
            Ok(worker) => worker,
            Err(error) => return self.connections.send(link, Frame::Declared { request, outcome: Err(error) }),
        };
        match self.endings.wait(running(&mut self.registry), worker, request, declaration) {
            Ok(Some(declaration)) => self.declare(now, link, worker, request, &declaration),
            Ok(None) => {}
            Err(error) => self.connections.send(link, Frame::Declared { request, outcome: Err(error) }),
        }
    }

    /// A member uses these names no more.
    pub(super) fn handle_undeclare(
        &mut self,
        now: Time,
        link: LinkId,
        identity: Identity,
        request: u64,
        names: &[String],
    ) {
        if let Ok(worker) = questions::asking_worker(&self.stage, &self.roster, identity) {
            let workers = workers(&self.view());
            let registry = running(&mut self.registry);
            let ended = self.endings.undeclare(now, registry, worker, request, names, &workers);
            self.tell_ended(now, ended);
        }
        // If the worker has left, or the job is over, names do not matter any more.
        self.connections.send(link, Frame::Undeclared { request });
    }

    /// Some workers are lost, and need not undeclare anything.
    pub(super) fn end_names_without_lost(&mut self, now: Time) {
        let workers = workers(&self.view());
        let ended = self.endings.go_on(now, running(&mut self.registry), &workers);
        self.tell_ended(now, ended);
    }

    /// Tells a server that has connected what it may have missed.
    pub(super) fn greet_server(&mut self, link: LinkId) {
        for ended in self.endings.lately() {
            self.connections.send(link, frame(ended));
        }
        for closing in self.clocks.told() {
            self.connections.send(link, Frame::Close(closing.clone()));
        }
        let seat = self.roster.seats().find(|seat| seat.link() == Some(link));
        if let Some(order) = seat.and_then(|seat| self.checkpoints.order_for(ServerId(seat.member.index))) {
            self.connections.send(link, Frame::Order(order));
        }
    }

    fn declare(&mut self, now: Time, link: LinkId, worker: WorkerId, request: u64, declaration: &Waiting) {
        let Waiting { tensors, fuse } = declaration;
        let (outcome, forgotten) = match self.clocks.check(worker, tensors) {
            Ok(()) => running(&mut self.registry).declare(now, worker, tensors, *fuse),
            Err(error) => (Err(error), Vec::new()),
        };
        if outcome.is_ok() {
            self.clocks.declare(worker, tensors);
        }
        self.connections.send(link, Frame::Declared { request, outcome });
        for Forgotten { key, error } in forgotten {
            let registry = running(&mut self.registry);
            let (name, released) = (registry.tensor_name(key), registry.released_by(key));
            let answers = self.barriers.fail(empty_barrier(&name), &error);
            self.answer(answers);
            // A worker that has undeclared the name may have declared it again, and then means another tensor.
            let uses = |identity: Identity| {
                let rank = self.roster.seat(identity).map(|seat| WorkerId(seat.member.index));
                identity.role != Role::Worker || rank.is_none_or(|rank| !released.contains(rank))
            };
            for link in self.roster.links(uses) {
                self.connections.send(link, Frame::Forget { key, error: error.clone() });
            }
        }
    }

    /// Tells the servers what ended, and answers the declarations that waited for it.
    fn tell_ended(&mut self, now: Time, ended: Option<Ended>) {
        let Some(ended) = ended else { return };
        self.clocks.end(&ended.keys);
        for link in self.roster.links(|identity| identity.role == Role::Server) {
            self.connections.send(link, frame(&ended));
        }
        while let Some((worker, request, declaration)) = self.endings.next_ready(running(&mut self.registry)) {
            // A worker without a connection asks again.
            if let Some(link) = self.roster.worker(worker).and_then(Seat::link) {
                self.declare(now, link, worker, request, &declaration);
            }
        }
    }
}

fn running(registry: &mut Option<Registry>) -> &mut Registry {
    registry.as_mut().expect("a job that runs has a registry")
}

fn workers(view: &View) -> WorkerSet {
    view.workers().map(|member| WorkerId(member.index)).collect()
}

fn frame(ended: &Ended) -> Frame {
    Frame::Ended { keys: ended.keys.clone(), below: ended.below }
}
