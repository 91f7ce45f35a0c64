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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use gradlane_core::Error;
    use gradlane_core::config::Config;
    use gradlane_core::engine::Scan;
    use gradlane_core::types::{Priority, RowAction, ShrinkBounds};

    use crate::Session;

    use super::*;

    #[test]
    fn a_session_pulls_pushes_and_counts_and_tells_the_end_of_each_use() {
        let session = Session::alone(&Config::default()).unwrap();
        let (sender, receiver) = channel();
        let done = |action, gradients: &[f32]| {
            let sender = sender.clone();
            let begun =
                session.begin_rows(used("sgd:lr=0.5;dim=2", action, gradients), move |id| sender.send(id).unwrap());
            let begun = begun.unwrap();
            assert_eq!(receiver.recv().unwrap(), begun.handle().id());
            begun.handle().wait(None).unwrap();
            begun
        };
        done(RowAction::Push, &[1.0, 2.0, 10.0, 20.0, 3.0, 4.0]);
        let mut rows = [0.0; 6];
        done(RowAction::Pull, &[]).read_rows(&mut rows);
        assert_eq!(rows, [-2.0, -3.0, -5.0, -10.0, -2.0, -3.0], "gradients of one id are added up");
        assert_eq!(done(RowAction::Stats, &[]).counts().rows, 2);
    }

    #[test]
    fn another_description_of_a_table_is_a_mismatch() {
        let session = Session::alone(&Config::default()).unwrap();
        session.use_rows(used("sgd:lr=0.5;dim=2", RowAction::Pull, &[])).unwrap();
        let other = session.use_rows(used("sgd:lr=0.25;dim=2", RowAction::Pull, &[]));
        assert!(matches!(other.map(|_| ()), Err(Error::Mismatch { .. })));
    }

    fn used<'a>(spec: &str, action: RowAction, gradients: &'a [f32]) -> RowsUse<'a> {
        RowsUse {
            tensor: TensorSpec::table("rows", spec.parse().unwrap()),
            action,
            step: 0,
            ids: if action.has_ids() { &[7, 1 << 40, 7] } else { &[] },
            gradients,
            marks: &[],
            scan: Scan::default(),
            bounds: ShrinkBounds::KEEP,
            priority: Priority(0),
            timeout: None,
        }
    }
}
