//! What members report of others.

use gradlane_core::types::{LinkId, MachineId, NodeId, Role, Time};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::{Stall, Waiting};

use super::Coordinator;
use crate::coordinator::roster::{Identity, Seat};
use crate::coordinator::stage::Stage;
use crate::coordinator::stall::Notice;
use crate::coordinator::{Event, questions};

impl Coordinator {
    /// A member says that the process of another one has ended, which it can see on its own machine alone.
    pub(super) fn handle_witness(&mut self, now: Time, link: LinkId, witness: Identity, node: NodeId, pid: u32) {
        let machine = self.roster.seat(witness).map(|seat| seat.member.process.machine);
        let Some(machine) = machine.filter(|machine| *machine != MachineId::UNKNOWN) else { return };
        if !matches!(self.stage, Stage::Running) {
            return;
        }
        let name = self.roster.name(witness);
        let is_it = |seat: &Seat| seat.is_present() && seat.member.node == node && seat.member.process.pid == pid;
        if self.roster.seats().any(|seat| is_it(seat) && seat.member.process.machine != machine) {
            return self.close_protocol(link, "process that ended", "is on another machine");
        }
        for seat in self.roster.seats_mut().filter(|seat| is_it(seat)) {
            self.failure_detector.saw_end(now, seat, &name);
        }
    }

    pub(super) fn handle_stall(&mut self, now: Time, link: LinkId, teller: Identity, stall: Stall) {
        let workers = self.roster.size().workers;
        if stall.missing.len() > workers as usize || stall.missing.iter().any(|rank| rank.0 >= workers) {
            return self.close_protocol(link, "missing ranks", "do not exist");
        }
        let (Stage::Running, Some(registry)) = (&self.stage, &self.registry) else { return };
        // Servers tell of theirs more often by themselves.
        if teller.role == Role::Worker {
            self.waits.handle_stall(now, teller, stall.clone());
        }
        let Some(told) = self.stalls.notice(now, stall, &self.roster, registry) else { return };
        let Notice { tensor, stall, detail } = told;
        let notice = Frame::StallNotice { tensor: tensor.clone(), stall: stall.clone(), detail: detail.clone() };
        for link in self.roster.links(|identity| identity.role == Role::Worker) {
            self.connections.send(link, notice.clone());
        }
        if let Some(others) = self.stalls.is_news_for_people(now) {
            self.connections.event(Event::Stall { tensor, stall, detail, others });
        }
    }

    /// A server tells which of its rounds wait.
    pub(super) fn handle_waits(&mut self, now: Time, link: LinkId, server: Identity, rounds: Vec<Waiting>) {
        let workers = self.roster.size().workers;
        if server.role != Role::Server {
            return self.close_protocol(link, "kind", "only a server sends");
        }
        if rounds.iter().flat_map(|round| &round.missing).any(|rank| rank.0 >= workers) {
            return self.close_protocol(link, "missing ranks", "do not exist");
        }
        self.waits.handle(now, server, rounds);
    }

    /// A member keeps its key and its role as long as it is one, so its next certificate is a matter of the job's authority alone.
    pub(super) fn handle_renewal(&mut self, link: LinkId, identity: Identity) {
        match questions::renewal(&self.stage, &self.roster, identity) {
            Ok(()) => self.connections.certify(link),
            Err(error) => self.connections.send(link, Frame::Renewed { outcome: Err(error) }),
        }
    }
}
