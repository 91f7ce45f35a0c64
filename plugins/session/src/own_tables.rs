//! Tables of a job of one worker without servers: this process keeps them, as servers of a larger job would.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use gradlane_core::Result;
use gradlane_core::engine::{RowsHandle, RowsUse};
use gradlane_core::mem::{Copies, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::types::{PartId, TensorKey, TensorSpec};
use gradlane_server::node::accumulator::SumResources;
use gradlane_server::node::command::RowsStep;
use gradlane_server::node::table::RowStore;

/// The tables.
#[derive(Debug)]
pub(crate) struct OwnTables(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    declared: BTreeMap<String, TensorSpec>,
    store: RowStore,
}

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
        let handle = asked.alone(id, |header, body| kept.store.serve_alone(header, body))?;
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
