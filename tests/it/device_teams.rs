//! Ranks of a machine with devices, in processes of their own: what concerns the whole of a process, such as faults and a violent end,
//! needs one for each.

use std::path::Path;
use std::time::Duration;

use gradlane_tests::cluster::PATIENCE;
use gradlane_tests::processes::Process;

use crate::actors::ACTOR;

/// Operations that are ready at once: three groups.
pub(crate) const CROWD: usize = 24;

/// Ranks of a machine, each in a process of its own, which does what the test orders.
pub(crate) struct Team(pub(crate) Vec<Process>);

impl Team {
    /// Starts so many, with these variables in their environment.
    pub(crate) fn start(ranks: usize, variables: &[(&str, &str)]) -> Self {
        Self::start_with(ranks, PATIENCE, variables)
    }

    /// The same, where an operation may take `step_timeout`.
    pub(crate) fn start_with(ranks: usize, step_timeout: Duration, variables: &[(&str, &str)]) -> Self {
        Self::start_each(ranks, step_timeout, &|_| variables.to_vec())
    }

    /// The same, where each rank has variables of its own.
    pub(crate) fn start_each<'text>(
        ranks: usize,
        step_timeout: Duration,
        variables: &dyn Fn(usize) -> Vec<(&'text str, &'text str)>,
    ) -> Self {
        let step = step_timeout.as_millis().to_string();
        let start = |rank: usize, path: &str| {
            let mut variables: Vec<(String, String)> =
                variables(rank).iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            variables.push(("FAKECUDA_DEVICES".to_owned(), ranks.to_string()));
            let arguments = ["devices", &rank.to_string(), &ranks.to_string(), &step, path];
            Process::start(Path::new(ACTOR), &arguments, &std::env::temp_dir(), &variables)
        };
        let mut first = start(0, "");
        let path = first.line();
        let mut team = vec![first];
        team.extend((1..ranks).map(|rank| start(rank, &path)));
        for rank in &mut team {
            assert_eq!(rank.line(), "joined");
        }
        Self(team)
    }

    /// Ranks whose queues are full and do not go on.
    pub(crate) fn held(ranks: usize, variables: &[(&str, &str)]) -> Self {
        // A rank that is held back is waited for.
        let mut team = Self::start(ranks, &[variables, &[("FAKENCCL_TIMEOUT", "60")]].concat());
        assert_eq!(team.all("hold"), vec!["held"; ranks]);
        team
    }

    /// Ranks with many operations that are ready at once and do not go on.
    pub(crate) fn crowded(ranks: usize, variables: &[(&str, &str)]) -> Self {
        let mut team = Self::held(ranks, variables);
        assert_eq!(team.all(&format!("crowd {CROWD}")), vec!["ready"; ranks]);
        team
    }

    /// Orders all ranks to do the same; what each says.
    pub(crate) fn all(&mut self, order: &str) -> Vec<String> {
        self.0.iter_mut().for_each(|rank| rank.order(order));
        self.0.iter_mut().map(Process::line).collect()
    }
}
