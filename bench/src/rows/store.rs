//! What a server does with rows, without any transport.

use gradlane_core::engine::{RowsHandle, RowsUse};
use gradlane_core::mem::{Copies, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::types::{RowAction, TableSpec};
use gradlane_server::node::accumulator::SumResources;
use gradlane_server::node::table::RowStore;

use super::contender::Contender;
use super::job::use_of;

/// A store that this thread uses.
pub(super) struct Store {
    spec: TableSpec,
    store: RowStore,
    uses: u64,
}

impl Store {
    pub(super) fn new(spec: TableSpec) -> Self {
        let (kernels, pool, copies) = (Kernels::detect(), Pool::new(), Copies::default());
        let store = RowStore::new(SumResources { kernels, pool, copies, defect: None });
        Self { spec, store, uses: 0 }
    }

    fn serve(&mut self, asked: RowsUse<'_>) -> Result<RowsHandle, String> {
        self.uses += 1;
        let used = asked.alone(self.uses, |header, body| self.store.serve_alone(header, body));
        let handle = used.map_err(|error| error.to_string())?;
        handle.handle().wait(None).map_err(|error| error.to_string())?;
        Ok(handle)
    }
}

impl Contender for Store {
    fn name(&self) -> String {
        "store".to_owned()
    }

    fn pull(&mut self, ids: &[u64], rows: &mut [f32]) -> Result<(), String> {
        self.serve(use_of(self.spec, RowAction::Pull, ids, &[])).map(|handle| handle.read_rows(rows))
    }

    fn push(&mut self, ids: &[u64], gradients: &[f32]) -> Result<(), String> {
        self.serve(use_of(self.spec, RowAction::Push, ids, gradients)).map(drop)
    }
}
