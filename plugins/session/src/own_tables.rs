//! Tables of a job of one worker without servers: this process keeps them, as servers of a larger job would.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use gradlane_core::engine::{RowsHandle, RowsUse};
use gradlane_core::mem::{Copies, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{ExchangeId, NodeId, PartId, TensorKey, TensorSpec, Version};
use gradlane_core::wire::{Response, Rows};
use gradlane_core::{Error, Result};
use gradlane_server::node::accumulator::SumResources;
use gradlane_server::node::command::{AskedRows, RowsStep, Served};
use gradlane_server::node::event::Event;
use gradlane_server::node::table::RowStore;

/// The tables.
#[derive(Debug)]
pub(crate) struct OwnTables(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    declared: BTreeMap<String, TensorSpec>,
    store: RowStore,
}

/// The only exchange that there is at a time.
const EXCHANGE: ExchangeId = ExchangeId(0);
/// Answers are one block.
const BLOCK_BYTES: u64 = u64::MAX;

impl OwnTables {
    pub(crate) fn new() -> Self {
        let (kernels, pool, copies) = (Kernels::detect(), Pool::new(), Copies::default());
        let store = RowStore::new(SumResources { kernels, pool, copies, defect: None });
        Self(Mutex::new(Kept { declared: BTreeMap::new(), store }))
    }

    /// Does a use, which `begin` gives its number.
    ///
    /// # Errors
    /// As [`RowsUse::alone`], or of `begin`.
    pub(crate) fn use_rows(&self, begin: impl FnOnce() -> Result<u64>, asked: RowsUse<'_>) -> Result<RowsHandle> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Here, so that later uses have larger numbers.
        let id = begin()?;
        let tensor = asked.tensor.clone();
        if let Some(declared) = kept.declared.get(&tensor.name)
            && let Some(found) = declared.declared().difference(&tensor.declared())
        {
            let me = gradlane_core::types::WorkerId(0);
            return Err(found.into_error(tensor.name, me, me));
        }
        let handle = asked.alone(id, |header, body| serve(&mut kept.store, header, body))?;
        kept.declared.insert(tensor.name.clone(), tensor);
        Ok(handle)
    }

    /// Names are over.
    pub(crate) fn forget(&self, names: &[String]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            if kept.declared.remove(name).is_some() {
                let part = PartId { key: TensorKey::of(name), index: 0 };
                kept.store.step(part, RowsStep::Drop, &mut |_| {});
            }
        }
    }
}

/// What a server would answer.
fn serve(store: &mut RowStore, header: &Rows, body: &[u8]) -> Result<(Version, Vec<u8>)> {
    let (mut answered, mut bytes, mut refused) = (None, Vec::new(), None);
    let mut say = |event| match event {
        Event::Send(Outgoing::Answer { header: Response::Rows(header), .. }) => answered = Some(header.version),
        Event::Send(Outgoing::Block { block, .. }) => bytes.extend_from_slice(&block),
        Event::Served(Served { refusal: Some(error), .. }) => refused = Some(error),
        _ => {}
    };
    let (part, epoch) = (header.target.part, header.target.epoch);
    let node = NodeId([0; 32]);
    let workers = std::sync::Arc::new([node]);
    let asked = Box::new(AskedRows { node, header: *header, epoch, workers, block_bytes: BLOCK_BYTES, refusal: None });
    store.step(part, RowsStep::Serve { exchange: EXCHANGE, asked }, &mut say);
    store.receive(part, EXCHANGE, &[body], &mut say);
    match (refused, answered) {
        (Some(error), _) => Err(error),
        (None, Some(version)) => Ok((version, bytes)),
        (None, None) => Err(Error::Internal { what: "a use of a table was not answered".to_owned() }),
    }
}
