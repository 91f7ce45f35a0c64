//! Uses without exchanges: what a process does that keeps rows for itself.

use std::sync::Arc;

use gradlane_core::error::{Error, Result};
use gradlane_core::mem::Frozen;
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{ExchangeId, NodeId, Version, WorkerId};
use gradlane_core::wire::{Response, Rows as Header};

use super::store::RowStore;
use crate::node::command::{AskedRows, RowsStep, Served};
use crate::node::event::Event;

impl RowStore {
    /// Does a use at once, as a server would for its only worker. Returns the version of the part and the body of the answer.
    ///
    /// # Errors
    /// Why a server would refuse it.
    pub fn serve_alone(&mut self, header: &Header, body: &[u8]) -> Result<(Version, Option<Frozen>)> {
        let (mut answered, mut answer, mut refused) = (None, None, None);
        let mut say = |event| match event {
            Event::Send(Outgoing::Answer { header: Response::Rows(header), .. }) => answered = Some(header.version),
            Event::Send(Outgoing::Block { block, .. }) => answer = Some(block),
            Event::Served(Served { refusal: Some(error), .. }) => refused = Some(error),
            _ => {}
        };
        let (part, epoch) = (header.target.part, header.target.epoch);
        let (exchange, node) = (ExchangeId(0), NodeId([0; 32]));
        // The answer is one block.
        let (workers, block_bytes): (Arc<[_]>, u64) = (Arc::new([(WorkerId(0), node)]), u64::MAX);
        let asked = Box::new(AskedRows { node, header: *header, epoch, workers, block_bytes, refusal: None });
        self.step(part, RowsStep::Serve { exchange, asked }, &mut say);
        self.receive(part, exchange, &[body], &mut say);
        match (refused, answered) {
            (Some(error), _) => Err(error),
            (None, Some(version)) => Ok((version, answer)),
            (None, None) => Err(Error::Internal { what: "a use of a table was not answered".to_owned() }),
        }
    }
}
