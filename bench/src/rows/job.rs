//! Rows on servers that are processes of this host.

use std::time::Duration;

use gradlane_core::engine::{Engine, RowsHandle, RowsUse, Scan};
use gradlane_core::types::{Priority, RowAction, ShrinkBounds, TableSpec, TensorSpec};

use super::contender::Contender;
use crate::job::road::Road;
use crate::job::{self, Before, JobOptions};
use crate::push_pull::worker::Means;
use crate::team::process::Process;

/// A job whose only worker is this process. Dropping it ends its processes.
pub(super) struct Job {
    name: String,
    spec: TableSpec,
    engine: Engine,
    _helpers: Vec<Process>,
}

impl Job {
    /// Starts coordinator and servers, and joins.
    ///
    /// # Errors
    /// The error of the first process that failed.
    pub(super) fn start(road: &Road, servers: u32, spec: TableSpec, patience: Duration) -> Result<Self, String> {
        let mut settings = job::settings(&[])?;
        settings.extend(road.settings()?);
        let config = job::config(&settings)?;
        let name = format!("{}-{servers}", road.name);
        let options = JobOptions {
            name: name.clone(),
            workers: 1,
            servers,
            settings,
            join: None,
            before: Before::default(),
            interface: "lo".to_owned(),
            wire: road.wire,
            patience,
        };
        let mut helpers = Vec::new();
        let join = job::start_helpers(&options, &mut helpers)?;
        let engine = Means::of(&join, &config)?.engine(0, 1, config)?;
        Ok(Self { name, spec, engine, _helpers: helpers })
    }

    fn serve(&self, asked: RowsUse<'_>) -> Result<RowsHandle, String> {
        let handle = self.engine.use_rows(asked).map_err(|error| error.to_string())?;
        handle.handle().wait(None).map_err(|error| error.to_string())?;
        Ok(handle)
    }
}

/// A use of the table of this spec.
pub(super) fn use_of<'a>(spec: TableSpec, action: RowAction, ids: &'a [u64], gradients: &'a [f32]) -> RowsUse<'a> {
    RowsUse {
        tensor: TensorSpec::table("rows", spec),
        action,
        step: 0,
        ids,
        gradients,
        marks: &[],
        scan: Scan::default(),
        bounds: ShrinkBounds::KEEP,
        priority: Priority::default(),
        timeout: None,
    }
}

impl Contender for Job {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn pull(&mut self, ids: &[u64], rows: &mut [f32]) -> Result<(), String> {
        self.serve(use_of(self.spec, RowAction::Pull, ids, &[])).map(|handle| handle.read_rows(rows))
    }

    fn push(&mut self, ids: &[u64], gradients: &[f32]) -> Result<(), String> {
        self.serve(use_of(self.spec, RowAction::Push, ids, gradients)).map(drop)
    }
}
