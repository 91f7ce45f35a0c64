//! What a member tells the coordinator without waiting for an answer.

use std::time::Duration;

use super::Member;
use crate::cluster::MemberEvent;
use crate::cluster::obeying::Heard;
use crate::cluster::offsets::{Exchange, Offsets};
use crate::error::Result;
use crate::types::{
    Closing, ControlAnswer, ControlCommand, Defect, Epoch, Half, Holdings, NodeId, Squares, Time, Written, planted,
};
use crate::wire::Frame;
use crate::wire::frame::{AckTimes, Stall};

impl Member {
    /// How long the last heartbeat's answer took. `None` before the first.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// What the answers to heartbeats say about the coordinator's clock.
    pub fn offsets(&self) -> &Offsets {
        &self.offsets
    }

    /// The coordinator has answered a heartbeat.
    pub(super) fn handle_ack(&mut self, now: Time, sent: Time, times: AckTimes) {
        if sent > now {
            return self.fail_protocol("clock", "lies ahead of this process's own");
        }
        self.round_trip = Some(now.since(sent));
        let AckTimes { received, answered, began_unix_ns } = times;
        self.offsets.add(began_unix_ns, Exchange { sent, received, answered, heard: now });
    }

    /// Reports that a sum waits for contributions. Without a connection the report is dropped. The caller reports a sum that still waits
    /// again.
    pub fn report_stall(&mut self, stall: Stall) {
        self.ask(Frame::Stall(stall));
    }

    /// Tells the coordinator what this worker has and wants of the parts whose servers were lost, and again after each reconnection.
    pub fn report_holdings(&mut self, holdings: Holdings) {
        if self.may_ask().is_ok() {
            self.holdings = Some(holdings.clone());
            self.ask(Frame::Holdings(holdings));
        }
    }

    /// Tells the coordinator this server's share of the norm of a round, and again after each reconnection until the server hears of the norm.
    pub fn report_squares(&mut self, squares: Squares) {
        if !planted(self.config.defect, Defect::SquaresNotRepeated) {
            self.squares.push(squares);
        }
        self.ask(Frame::Squares(squares));
    }

    /// The coordinator says how a round is closed.
    pub(super) fn handle_close(&mut self, closing: Closing) {
        if let Half::Norm(_) = closing.half {
            self.squares.retain(|said| (said.clock, said.round) != (closing.clock, closing.round));
        }
        self.tell(MemberEvent::Close(closing));
    }

    /// Reports that servers have the sums that this worker was to restore. Without a connection the report is dropped: the coordinator asks
    /// again.
    pub fn report_restored(&mut self, epoch: Epoch) {
        self.ask(Frame::Restored { epoch });
    }

    /// Reports that this server has obeyed an order of the coordinator, or why it cannot. Without a connection the report is dropped: the
    /// coordinator gives the order again.
    pub fn report_obeyed(&mut self, order: u64, outcome: Result<Written>) {
        self.ask(Frame::Obeyed { order, outcome });
    }

    /// The coordinator passes on a command of an operator, perhaps not for the first time.
    pub(super) fn handle_command(&mut self, number: u64, command: ControlCommand) {
        match self.obeying.hear(number) {
            Heard::New => self.tell(MemberEvent::Command { number, command }),
            Heard::Again => {}
            Heard::Done(outcome) => self.ask(Frame::Commanded { number, outcome }),
        }
    }

    /// Reports that this process has obeyed a command of an operator, or why it cannot. Without a connection the report waits until the
    /// coordinator tells the command again.
    pub fn report_commanded(&mut self, number: u64, outcome: Result<ControlAnswer>) {
        self.obeying.end(number, outcome.clone());
        self.ask(Frame::Commanded { number, outcome });
    }

    /// Reports that the process `pid` of a node of this machine has ended. Without a connection the report is dropped: its silence shows
    /// it later.
    pub fn report_end(&mut self, node: NodeId, pid: u32) {
        self.ask(Frame::Saw { node, pid });
    }

    /// This process uses these names no more, and has nothing under way for them. Their declarations were answered. If the membership has
    /// ended, nothing happens.
    pub fn undeclare(&mut self, names: Vec<String>) {
        let request = self.requests.number();
        if self.may_ask().is_ok() {
            let frame = self.requests.undeclare(request, names);
            self.ask(frame);
        }
    }

    /// Asks for the next certificate of this process; [`MemberEvent::Renewed`](crate::cluster::MemberEvent::Renewed) is the answer. Without a connection this does nothing, and a
    /// request that is lost is not repeated: the caller asks again.
    pub fn renew(&mut self) {
        if self.line.is_up() {
            self.send(Frame::Renew);
        }
    }
}
