//! What a listener and the lanes tell the driver of a node.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gradlane_core::local::failpoint::{Failpoint, reach};
use gradlane_core::metrics::ServerMetrics;
use gradlane_core::transport::Incoming;
use gradlane_core::types::{ControlCommand, ExchangeId, View};
use gradlane_core::wire::Request;

use super::DataPlane;
use crate::node::command::{Added, Receipt, Route};
use crate::node::lanes::{Job, Told};

impl DataPlane {
    /// Handles what the listener tells.
    pub(super) fn handle(self: &Arc<Self>, incoming: Incoming) {
        match incoming {
            Incoming::LinkUp { link, node: peer, address } => {
                tracing::debug!(link = link.0, node = %peer, address, "peer connected");
                self.with(|node, now| {
                    node.handle_link_up(link, peer);
                    self.flight.recorder.linked(now, link, node.worker_at(link));
                });
                reach(Failpoint::PeerCame);
            }
            Incoming::LinkDown { link, reason } => {
                tracing::debug!(link = link.0, %reason, "peer gone");
                self.with(|node, now| {
                    self.flight.recorder.unlinked(now, link, node.worker_at(link));
                    node.handle_link_down(link);
                });
            }
            Incoming::ProcessEnded { node, pid } => {
                if let Some(reporter) = self.reporter.get() {
                    reporter.report_end(node, pid);
                }
            }
            Incoming::Opened { link, exchange, header } => {
                let _span = tracing::trace_span!("open", link = link.0, exchange = exchange.0).entered();
                let restores = matches!(header, Request::Restore(_));
                reach(if restores { Failpoint::RestoreOpened } else { Failpoint::HeaderHeard });
                self.with(|node, now| {
                    self.flight.recorder.opened(now, exchange, &header, || node.worker_at(link));
                    if self.trace.is_on() {
                        self.trace.opened(now, exchange, &header, || node.worker_at(link));
                    }
                    node.handle_opened(now, link, exchange, &header);
                });
            }
            Incoming::Body { exchange, chunks } => self.receive(exchange, chunks),
            Incoming::Torn { exchange, reason } => {
                tracing::debug!(exchange = exchange.0, %reason, "exchange torn");
                self.with(|node, now| {
                    self.flight.recorder.torn(now, exchange);
                    if self.trace.is_on() {
                        self.trace.failed(now, exchange, "torn");
                    }
                    node.handle_torn(exchange);
                });
            }
            Incoming::Answered { exchange } => {
                let _span = tracing::trace_span!("answered", exchange = exchange.0).entered();
                reach(Failpoint::SumTaken);
                if self.trace.is_on() {
                    self.trace.taken(self.clock.now(), exchange);
                }
                self.with(|node, now| {
                    if self.flight.is_on() {
                        match node.services().sums.sum_of(exchange) {
                            Some((slot, worker)) => self.flight.recorder.taken(now, slot, worker, exchange),
                            None => self.flight.recorder.use_taken(now, exchange),
                        }
                    }
                    node.handle_answered(exchange);
                });
            }
        }
    }

    /// Hands the next bytes of a body to the lane of its part.
    fn receive(self: &Arc<Self>, exchange: ExchangeId, chunks: Vec<Bytes>) {
        let route = self.routes().get(&exchange).copied();
        let Some(route) = route else {
            return self.with(|node, now| node.handle_body(now, exchange, &chunks));
        };
        ServerMetrics::add(&self.stats.received_bytes, chunks.iter().map(|chunk| chunk.len() as u64).sum());
        self.lanes().submit(Job::Body { route, exchange, chunks });
        self.lanes().run();
        reach(Failpoint::BodyFlows);
    }

    /// A lane, which has been behind for so long, says what became of a body or a use, for which workers uses wait, or what the squares of a
    /// gradient are.
    pub(super) fn hear(self: &Arc<Self>, told: Told, behind: Duration) {
        if let Told::Receipt { receipt: Receipt::Whole, .. } = told {
            reach(Failpoint::BodyWhole);
        }
        if let Told::Receipt { receipt: Receipt::Whole, route: Route::Sum { slot, worker }, .. } = told
            && self.trace.is_on()
        {
            self.trace.received(self.clock.now(), slot, worker);
        }
        let recorder = &self.flight.recorder;
        self.change(|node, now| match told {
            Told::Receipt { route, exchange, receipt } => {
                match route {
                    Route::Sum { slot, worker } => recorder.received(now, slot, worker, exchange, receipt),
                    Route::Gift { .. } | Route::Parameter { .. } => recorder.use_received(now, exchange, receipt),
                    Route::Table { .. } => {}
                }
                node.handle_receipt(now, route, exchange, Added { receipt, behind });
            }
            Told::Squares { part, round, sum } => node.handle_squares(part, round, sum),
            Told::Served(served) => {
                recorder.served(now, &served);
                node.handle_served(&served);
            }
            Told::Waits(waits) => recorder.waits(now, &waits),
            Told::Refused { exchange, about, error } => recorder.refused(now, exchange, &about, &error),
        });
    }

    /// Records that the job has these members.
    pub(crate) fn formed(&self, view: &View) {
        self.flight.formed(view);
        if self.flight.is_on() {
            self.flight.recorder.formed(self.clock.now(), view);
        }
    }

    /// Records that an operator has given this order.
    pub(crate) fn ordered(&self, number: u64, command: &ControlCommand) {
        if self.flight.is_on() {
            self.flight.recorder.ordered(self.clock.now(), number, command);
        }
    }
}
