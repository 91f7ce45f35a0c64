//! The tensors of the job. The first declaration of a name fixes dtype, shape, codec and layout. A later declaration that disagrees fails
//! the tensor on every worker, for good.
//!
//! A declaration succeeds whole or declares nothing. How tensors are cut and placed is the business of [`Layouter`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::error::{Error, Result};
use gradlane_core::pipeline::{LayoutConfig, Layouter, Placement, weights_for};
use gradlane_core::types::{
    MachineId, Machines, Member, PartId, PartLayout, TensorKey, TensorKind, TensorSpec, Time, View, WorkerId, WorkerSet,
};
use gradlane_core::wire::limits;

/// Every tensor that was declared.
#[derive(Debug)]
pub(super) struct Registry {
    layouter: Layouter,
    /// How many workers formed the job.
    workers: u32,
    tensors: BTreeMap<TensorKey, Entry>,
    /// The time without new tensors after which an uneven load is reported. The load of the first tensors of a model is never even.
    quiet: Duration,
    /// When to check for an uneven load.
    warn_at: Option<Time>,
}

#[derive(Debug)]
struct Entry {
    spec: TensorSpec,
    /// The worker that declared it first.
    by: WorkerId,
    failed: Option<Error>,
    /// The workers that have declared it.
    users: WorkerSet,
    /// The workers that use the name no more.
    released: WorkerSet,
}

/// A tensor that failed for good.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Forgotten {
    pub(super) key: TensorKey,
    pub(super) error: Error,
}

/// Tensors that ended.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Ended {
    pub(super) keys: Vec<TensorKey>,
    /// All their parts lie below this index.
    pub(super) below: u32,
}

/// The parameters of the job.
pub(super) struct Parameters {
    pub(super) tensors: Vec<TensorSpec>,
    pub(super) parts: Vec<PartLayout>,
    /// The name of a table, if the job has one. A checkpoint could not be complete then.
    pub(super) table: Option<String>,
}

impl Registry {
    /// An empty registry over the servers of `view`.
    pub(super) fn new(config: LayoutConfig, view: &View, quiet: Duration) -> Self {
        let config = if view.is_on_one_machine() { config.with_large_parts() } else { config };
        let layouter = Layouter::new(config, weights(view), Machines::of(view).turns());
        let workers = u32::try_from(view.workers().count()).expect("at most MEMBERS_MAX");
        Self { layouter, workers, tensors: BTreeMap::new(), quiet, warn_at: None }
    }

    /// Whether servers keep the value of a tensor.
    pub(super) fn has_parameters(&self) -> bool {
        self.tensors.values().any(|entry| entry.spec.kind.is_kept())
    }

    /// The parameters, but for those that failed, and their parts.
    pub(super) fn parameters(&self) -> Parameters {
        let is_parameter = |spec: &TensorSpec| matches!(spec.kind, TensorKind::Parameter { .. });
        let kept = self.tensors.values().filter(|entry| is_parameter(&entry.spec) && entry.failed.is_none());
        let tensors: Vec<TensorSpec> = kept.map(|entry| entry.spec.clone()).collect();
        let parts = tensors.iter().flat_map(|tensor| self.layouter.parts_of(tensor.key()));
        let parts: BTreeMap<PartId, PartLayout> = parts.map(|layout| (layout.part, layout.clone())).collect();
        let table = self.tensors.values().find(|entry| entry.spec.kind.table().is_some());
        let table = table.map(|entry| entry.spec.name.clone());
        Parameters { tensors, parts: parts.into_values().collect(), table }
    }

    /// The tensors and the server of each part.
    pub(super) fn placement(&self) -> &Placement {
        self.layouter.placement()
    }

    /// A warning about a server with much more than its share, once after each arrival of new tensors.
    pub(super) fn warning(&mut self, now: Time) -> Option<String> {
        self.warn_at.take_if(|at| *at <= now)?;
        self.placement().warning()
    }

    /// When [`Registry::warning`] looks.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.warn_at
    }

    /// Declares `specs` for `worker`. Returns the answer, and the tensors that every worker must forget because of it.
    pub(super) fn declare(
        &mut self,
        now: Time,
        worker: WorkerId,
        specs: &[TensorSpec],
        fuse: bool,
    ) -> (Result<Vec<PartLayout>>, Vec<Forgotten>) {
        let new = match self.check(worker, specs) {
            Ok(new) => new,
            Err(Refusal::Asker(error)) => return (Err(error), Vec::new()),
            Err(Refusal::Everybody { key, error }) => {
                let forgotten = self.fail(key, &error);
                return (Err(error), forgotten);
            }
        };
        let layouts = self.layouter.declare(specs, fuse);
        if layouts.is_ok() {
            if !new.is_empty() {
                self.warn_at = Some(now + self.quiet);
                self.tensors.extend(new.into_iter().map(|(key, spec)| (key, Entry::new(spec, worker))));
            }
            for spec in specs {
                self.tensors.get_mut(&spec.key()).expect("declared above").users.insert(worker);
            }
        }
        (layouts, Vec::new())
    }

    /// `worker` uses these names no more. Returns the keys of those that are known.
    pub(super) fn release(&mut self, worker: WorkerId, names: &[String]) -> Vec<TensorKey> {
        let mut keys = Vec::new();
        for name in names {
            let key = TensorKey::of(name);
            if let Some(entry) = self.tensors.get_mut(&key).filter(|entry| entry.spec.name == *name) {
                entry.released.insert(worker);
                keys.push(key);
            }
        }
        keys
    }

    /// The tensors that some workers use no more.
    pub(super) fn released(&self) -> Vec<TensorKey> {
        self.tensors.iter().filter(|(_, entry)| !entry.released.is_empty()).map(|(key, _)| *key).collect()
    }

    /// The workers that use the name of a tensor no more.
    pub(super) fn released_by(&self, key: TensorKey) -> WorkerSet {
        self.tensors.get(&key).map(|entry| entry.released.clone()).unwrap_or_default()
    }

    /// Whether `worker` has said that it does not use one of these names any more.
    pub(super) fn is_released(&self, worker: WorkerId, specs: &[TensorSpec]) -> bool {
        let is_released =
            |spec: &TensorSpec| self.tensors.get(&spec.key()).is_some_and(|entry| entry.released.contains(worker));
        specs.iter().any(is_released)
    }

    /// Ends those of `keys` that none of their participants among `workers` uses any more. Tensors that share a part end together. `None` if there are none.
    pub(super) fn end(&mut self, keys: &[TensorKey], workers: &WorkerSet) -> Option<Ended> {
        let mut ended = BTreeSet::new();
        for key in keys.iter().filter(|key| self.tensors.contains_key(key)) {
            if !ended.contains(key) {
                let together = self.together(*key);
                if together.iter().all(|key| self.tensors[key].is_released_by(workers)) {
                    ended.extend(together);
                }
            }
        }
        if ended.is_empty() {
            return None;
        }
        for key in &ended {
            self.tensors.remove(key);
        }
        let keys: Vec<TensorKey> = ended.into_iter().collect();
        let below = self.layouter.remove(&keys);
        Some(Ended { keys, below })
    }

    /// The tensors that failed, for a member that may have missed it.
    pub(super) fn forgotten(&self) -> impl Iterator<Item = Forgotten> {
        self.tensors.iter().filter_map(|(key, entry)| Some(Forgotten { key: *key, error: entry.failed.clone()? }))
    }

    /// The names of the first few tensors in a part.
    pub(super) fn name_of(&self, part: PartId) -> String {
        const NAMES_MAX: usize = 3;
        let Some(layout) = self.layouter.parts_of(part.key).find(|layout| layout.part == part) else {
            return self.tensor_name(part.key);
        };
        let names: Vec<String> =
            layout.pieces.iter().take(NAMES_MAX).map(|piece| self.tensor_name(piece.tensor)).collect();
        let more = layout.pieces.len() - names.len();
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("{}{more}", names.join(", "))
    }

    /// The name of a tensor, in words if it is not known.
    pub(super) fn tensor_name(&self, key: TensorKey) -> String {
        // A report may be older than the end of the name.
        let ended = || "a tensor whose name has ended".to_owned();
        self.tensors.get(&key).map_or_else(ended, |entry| entry.spec.name.clone())
    }

    /// The tensors of `specs` that are new, if they agree with the earlier declarations.
    fn check(
        &self,
        worker: WorkerId,
        specs: &[TensorSpec],
    ) -> std::result::Result<BTreeMap<TensorKey, TensorSpec>, Refusal> {
        limits::check_tensors(specs).map_err(Refusal::Asker)?;
        let mut new: BTreeMap<TensorKey, TensorSpec> = BTreeMap::new();
        for spec in specs {
            spec.participants.check_size(&spec.name, self.workers).map_err(Refusal::Asker)?;
            let key = spec.key();
            if let Some(entry) = self.tensors.get(&key) {
                entry.check(worker, spec)?;
                continue;
            }
            spec.participants.check_member(&spec.name, worker).map_err(Refusal::Asker)?;
            if new.insert(key, spec.clone()).is_some_and(|twin| twin != *spec) {
                return Err(Refusal::Asker(Error::InvalidArgument {
                    what: format!(
                        "tensor {} occurs twice in one declaration, with different specifications",
                        spec.name
                    ),
                    hint: "give each tensor a different name".to_owned(),
                }));
            }
        }
        if self.tensors.len() + new.len() > limits::TENSORS_MAX {
            return Err(Refusal::Asker(Error::Exhausted {
                what: "tensors of a job".to_owned(),
                limit: limits::TENSORS_MAX.to_string(),
                hint: "undeclare names that are used no more, or join small tensors into larger ones".to_owned(),
            }));
        }
        Ok(new)
    }

    /// Fails a tensor and those that share a part with it: their sums could not complete without its bytes.
    fn fail(&mut self, key: TensorKey, error: &Error) -> Vec<Forgotten> {
        let mut forgotten = Vec::new();
        for key in self.together(key) {
            let entry = self.tensors.get_mut(&key).expect("pieces and disagreements are about declared tensors");
            if entry.failed.is_none() {
                entry.failed = Some(error.clone());
                forgotten.push(Forgotten { key, error: error.clone() });
            }
        }
        forgotten
    }

    /// A tensor, and all that share a part with it, or with one that does.
    fn together(&self, key: TensorKey) -> BTreeSet<TensorKey> {
        let mut together = BTreeSet::new();
        let mut next = vec![key];
        while let Some(key) = next.pop() {
            if together.insert(key) {
                next.extend(self.layouter.parts_of(key).flat_map(|layout| &layout.pieces).map(|piece| piece.tensor));
            }
        }
        together
    }
}

/// How much of the sums each server of `view` gets: more on machines of their own than beside workers.
fn weights(view: &View) -> Vec<f64> {
    let machine = |member: &Member| Some(member.process.machine).filter(|machine| *machine != MachineId::UNKNOWN);
    let workers: Vec<_> = view.workers().map(machine).collect();
    let servers: Vec<_> = view.servers().map(machine).collect();
    weights_for(&workers, &servers)
}

enum Refusal {
    /// Of no concern to the others.
    Asker(Error),
    /// The tensor fails on every worker.
    Everybody { key: TensorKey, error: Error },
}

impl Entry {
    fn new(spec: TensorSpec, by: WorkerId) -> Self {
        Self { spec, by, failed: None, users: WorkerSet::default(), released: WorkerSet::default() }
    }

    /// Whether all of `workers` that take part have said that they do not use the name any more. A sum needs all participants, and a
    /// parameter is for those that use it.
    fn is_released_by(&self, workers: &WorkerSet) -> bool {
        let takes_part = |worker| match self.spec.kind {
            TensorKind::Sum { .. } => self.spec.participants.contains(worker),
            TensorKind::Parameter { .. } | TensorKind::Table { .. } => self.users.contains(worker),
        };
        workers.iter().all(|worker| !takes_part(worker) || self.released.contains(worker))
    }

    fn check(&self, worker: WorkerId, spec: &TensorSpec) -> std::result::Result<(), Refusal> {
        let difference = self.spec.declared().difference(&spec.declared());
        let mismatch = difference.map(|found| found.into_error(spec.name.clone(), self.by, worker));
        match (mismatch, &self.failed) {
            // Another name with the same hash. The tensor that came first is not affected.
            (Some(error), _) if self.spec.name != spec.name => return Err(Refusal::Asker(error)),
            (_, Some(error)) => return Err(Refusal::Asker(error.clone())),
            (Some(error), None) => return Err(Refusal::Everybody { key: spec.key(), error }),
            (None, None) => {}
        }
        spec.participants.check_member(&spec.name, worker).map_err(Refusal::Asker)
    }
}

#[cfg(test)]
mod tests {
    use gradlane_core::error::Claim;
    use gradlane_core::types::{CodecSpec, DType, Epoch, Incarnation, NodeId, Phase, Process, Role, Round};

    use super::*;

    #[test]
    fn the_first_declaration_fixes_the_layout_and_the_same_one_gets_it_again() {
        let mut registry = registry();
        let (first, _) = registry.declare(Time::ZERO, WorkerId(0), &[spec("a", &[10]), spec("b", &[5])], false);
        let (second, _) = registry.declare(Time::ZERO, WorkerId(1), &[spec("b", &[5]), spec("a", &[10])], false);
        let tensors = |layouts: &[PartLayout]| layouts.iter().map(|layout| layout.part.key).collect::<Vec<_>>();
        assert_eq!(tensors(&first.unwrap()), [TensorKey::of("a"), TensorKey::of("b")]);
        assert_eq!(tensors(&second.unwrap()), [TensorKey::of("b"), TensorKey::of("a")]);
    }

    #[test]
    fn a_disagreement_names_both_sides_and_fails_the_tensor_for_good() {
        let mut registry = registry();
        registry.declare(Time::ZERO, WorkerId(0), &[spec("a", &[10])], false).0.unwrap();
        let (outcome, forgotten) = registry.declare(Time::ZERO, WorkerId(1), &[spec("a", &[11])], false);
        let error = Error::Mismatch {
            tensor: "a".into(),
            field: "shape".to_owned(),
            first: Claim { worker: WorkerId(0), value: "[10]".to_owned() },
            second: Claim { worker: WorkerId(1), value: "[11]".to_owned() },
        };
        assert_eq!(outcome, Err(error.clone()));
        assert_eq!(forgotten, [Forgotten { key: TensorKey::of("a"), error: error.clone() }]);
        let (outcome, forgotten) = registry.declare(Time::ZERO, WorkerId(0), &[spec("a", &[10])], false);
        assert_eq!(
            (outcome, forgotten),
            (Err(error.clone()), Vec::new()),
            "even who was first; the others know it already"
        );
        assert_eq!(registry.forgotten().collect::<Vec<_>>(), [Forgotten { key: TensorKey::of("a"), error }]);
    }

    #[test]
    fn a_dtype_is_compared_like_a_shape() {
        let mut registry = registry();
        registry.declare(Time::ZERO, WorkerId(0), &[spec("a", &[10])], false).0.unwrap();
        let other = TensorSpec { dtype: DType::BF16, ..spec("a", &[10]) };
        let (outcome, _) = registry.declare(Time::ZERO, WorkerId(1), &[other], false);
        assert!(matches!(outcome, Err(Error::Mismatch { field, .. }) if field == "dtype"));
    }

    #[test]
    fn a_codec_is_compared_like_a_shape_and_both_are_named() {
        let mut registry = registry();
        registry.declare(Time::ZERO, WorkerId(0), &[spec("a", &[10]).with_codec(CodecSpec::BF16)], false).0.unwrap();
        let (outcome, forgotten) = registry.declare(Time::ZERO, WorkerId(1), &[spec("a", &[10])], false);
        let error = Error::Mismatch {
            tensor: "a".into(),
            field: "codec".to_owned(),
            first: Claim { worker: WorkerId(0), value: "bf16".to_owned() },
            second: Claim { worker: WorkerId(1), value: "none".to_owned() },
        };
        assert_eq!(outcome, Err(error.clone()));
        assert_eq!(forgotten, [Forgotten { key: TensorKey::of("a"), error }]);
    }

    #[test]
    fn tensors_that_share_a_part_fail_together() {
        let mut registry = registry();
        registry.declare(Time::ZERO, WorkerId(0), &[spec("a", &[10]), spec("b", &[5])], true).0.unwrap();
        registry.declare(Time::ZERO, WorkerId(0), &[spec("c", &[5])], true).0.unwrap();
        let (_, forgotten) = registry.declare(Time::ZERO, WorkerId(1), &[spec("b", &[6])], true);
        let keys: BTreeSet<TensorKey> = forgotten.iter().map(|forgotten| forgotten.key).collect();
        assert_eq!(keys, BTreeSet::from([TensorKey::of("a"), TensorKey::of("b")]));
        assert!(registry.declare(Time::ZERO, WorkerId(1), &[spec("c", &[5])], true).0.is_ok());
    }

    #[test]
    fn a_declaration_that_fails_declares_nothing() {
        let mut registry = registry();
        registry.declare(Time::ZERO, WorkerId(0), &[spec("a", &[10])], false).0.unwrap();
        registry.declare(Time::ZERO, WorkerId(1), &[spec("new", &[1]), spec("a", &[11])], false).0.unwrap_err();
        assert!(registry.declare(Time::ZERO, WorkerId(0), &[spec("new", &[2])], false).0.is_ok());
    }

    #[test]
    fn two_names_with_one_key_are_told_apart() {
        let mut registry = registry();
        // As if the hash of "stranger" were that of "a".
        registry.tensors.insert(TensorKey::of("a"), Entry::new(spec("stranger", &[1]), WorkerId(3)));
        let (outcome, forgotten) = registry.declare(Time::ZERO, WorkerId(1), &[spec("a", &[1])], false);
        assert!(matches!(outcome, Err(Error::Mismatch { field, .. }) if field == "name"));
        assert_eq!(forgotten, [], "the first of them lives on");
    }

    #[test]
    fn servers_on_machines_of_their_own_get_the_larger_share() {
        assert_eq!(weights(&view(&[1, 2], &[1, 2])), [1.0, 1.0], "all beside workers");
        assert_eq!(weights(&view(&[1, 2], &[8, 9])), [1.0, 1.0], "none beside workers");
        assert_eq!(weights(&view(&[1, 2], &[1, 9, 2])), [1.0, 2.0, 1.0]);
        assert_eq!(weights(&view(&[1, 2], &[1, 9, 0])), [1.0, 1.0, 1.0], "one does not know where it runs");
    }

    #[test]
    fn a_job_has_a_bounded_number_of_parts() {
        let mut registry = registry();
        let (outcome, _) = registry.declare(Time::ZERO, WorkerId(0), &[spec("vast", &[1 << 61])], false);
        assert!(matches!(outcome, Err(Error::Exhausted { what, .. }) if what.contains("parts")));
    }

    #[test]
    fn a_job_has_a_bounded_number_of_tensors() {
        let mut registry = registry();
        let many: Vec<TensorSpec> = (0..limits::TENSORS_MAX).map(|index| spec(&index.to_string(), &[0])).collect();
        registry.declare(Time::ZERO, WorkerId(0), &many, false).0.unwrap();
        let (outcome, _) = registry.declare(Time::ZERO, WorkerId(0), &[spec("one more", &[0])], false);
        assert!(matches!(outcome, Err(Error::Exhausted { what, .. }) if what == "tensors of a job"));
    }

    #[test]
    fn one_name_twice_in_one_declaration_must_mean_the_same() {
        let mut registry = registry();
        let (outcome, _) = registry.declare(Time::ZERO, WorkerId(0), &[spec("a", &[1]), spec("a", &[2])], false);
        assert!(matches!(outcome, Err(Error::InvalidArgument { .. })));
        let (outcome, _) = registry.declare(Time::ZERO, WorkerId(0), &[spec("a", &[1]), spec("a", &[1])], false);
        assert_eq!(outcome.unwrap().len(), 1);
    }

    #[test]
    fn a_shared_part_is_named_by_its_tensors_shortened() {
        let mut registry = registry();
        let specs = ["a", "b", "c", "d", "e"].map(|name| spec(name, &[1]));
        let layouts = registry.declare(Time::ZERO, WorkerId(0), &specs, true).0.unwrap();
        assert_eq!(registry.name_of(layouts[0].part), "a, b, c and 2 more");
        let unknown = PartId { key: TensorKey(7), index: 0 };
        assert_eq!(registry.name_of(unknown), "a tensor whose name has ended");
    }

    #[test]
    fn an_uneven_load_is_a_warning_once_no_more_tensors_come() {
        let mut registry = Registry::new(LayoutConfig::default(), &view(&[1], &[1, 1]), QUIET);
        registry.declare(Time::ZERO, WorkerId(0), &[spec("a", &[900_000])], false).0.unwrap();
        assert_eq!(registry.warning(Time::ZERO), None, "more tensors may come");
        assert_eq!(registry.poll_timeout(), Some(Time::ZERO + QUIET));
        let late = Time::ZERO + QUIET;
        assert!(registry.warning(late).is_some_and(|text| text.starts_with("hot server: server 0")));
        assert_eq!((registry.warning(late), registry.poll_timeout()), (None, None));
        registry.declare(late, WorkerId(1), &[spec("a", &[900_000])], false).0.unwrap();
        assert_eq!(registry.poll_timeout(), None, "nothing new");
    }

    const QUIET: Duration = Duration::from_secs(10);

    fn registry() -> Registry {
        Registry::new(LayoutConfig::default(), &view(&[1], &[1]), QUIET)
    }

    fn view(worker_machines: &[u64], server_machines: &[u64]) -> View {
        let member = |role, index: usize, machine: u64| Member {
            process: Process { machine: MachineId(machine), ..Process::new(role, Incarnation(index as u128)) },
            node: NodeId([index as u8; 32]),
            index: index as u32,
            first_round: Round(0),
        };
        let workers = worker_machines.iter().enumerate().map(|(index, machine)| member(Role::Worker, index, *machine));
        let servers = server_machines.iter().enumerate().map(|(index, machine)| member(Role::Server, index, *machine));
        View::plain("test", Epoch { term: 1, number: 1 }, Phase::Running, workers.chain(servers).collect())
    }

    fn spec(name: &str, shape: &[u64]) -> TensorSpec {
        TensorSpec::new(name, DType::F32, shape.to_vec())
    }
}
