//! What the exporter shows of a coordinator.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use gradlane_core::metrics::{CoordinatorMetrics, Instance, OfProcess as _};
use gradlane_core::runtime::exporter::{self, Shown, Standing, StandingCell};
use gradlane_core::runtime::{Usage, process};
use gradlane_core::types::{Phase, Role};
use gradlane_core::wire::frame::Hold;

use super::gathered::{Gathered, Seen};
use super::happened::sentence;
use crate::coordinator::{Census, CoordinatorConfig, Event, Life};
use crate::look::Look;
use crate::look::page::{Around, page};

/// The metrics and the state of a coordinator. Its thread writes them, and they can be read while that thread is stuck.
pub(super) struct Probe {
    job: String,
    pub(super) metrics: CoordinatorMetrics,
    /// What the members have told of themselves.
    pub(super) gathered: Gathered,
    standing: StandingCell,
    /// The settings of its process in one number.
    settings: u64,
    usage: Usage,
}

impl Probe {
    /// `enrolments_refused` is counted by the listener. `settings` are those of its process in one number.
    pub(super) fn new(config: &CoordinatorConfig, settings: u64, enrolments_refused: Arc<AtomicU64>) -> Self {
        let metrics = CoordinatorMetrics { enrolments_refused, ..CoordinatorMetrics::default() };
        CoordinatorMetrics::set(&metrics.workers_expected, config.workers.into());
        CoordinatorMetrics::set(&metrics.servers_expected, config.servers.into());
        metrics.configured(settings);
        metrics.placed(Role::Coordinator, 0, &process::host());
        let gathered = Gathered::new(config.suspect_timeout.max(TOLD_LASTS));
        let (standing, usage) = (StandingCell::default(), Usage::new());
        Self { job: config.job.clone(), metrics, gathered, standing, settings, usage }
    }

    /// The job may have changed.
    pub(super) fn follow(&self, census: &Census, present: impl Iterator<Item = (Role, u32)>) {
        self.gathered.follow(census, present);
        let Census { workers, servers, suspect, connections, life, epoch } = *census;
        for (gauge, value) in [
            (&self.metrics.workers_joined, workers),
            (&self.metrics.servers_joined, servers),
            (&self.metrics.members_suspect, suspect),
            (&self.metrics.connections, connections),
            (&self.metrics.running, u64::from(life == Life::Running)),
            (&self.metrics.epoch, epoch.number.into()),
            (&self.metrics.term, epoch.term.into()),
        ] {
            CoordinatorMetrics::set(gauge, value);
        }
        self.standing.advance(match life {
            // It can do its work, which is to take the members in. Were it not ready, a Kubernetes service would not lead them to it.
            Life::Forming | Life::Running => Standing::Ready,
            Life::Ended => Standing::Ended,
            Life::Failed => Standing::Failed,
        });
    }

    /// An event in the life of the job.
    pub(super) fn count(&self, event: &Event) {
        sentence(event).into_iter().for_each(|sentence| self.gathered.note(sentence));
        let counter = match event {
            Event::Ordered { .. } => &self.metrics.orders,
            Event::Refused { .. } => &self.metrics.refusals,
            Event::Dead { .. } => &self.metrics.losses,
            Event::Stall { .. } => &self.metrics.stalls,
            Event::HotServer { .. } => &self.metrics.hot_servers,
            Event::Formed { .. }
            | Event::Suspect { .. }
            | Event::Ends { .. }
            | Event::GoesOn { .. }
            | Event::Recovered { .. }
            | Event::Restores { .. }
            | Event::FormsAgain { .. }
            | Event::Holds { .. }
            | Event::Finished(_) => return,
        };
        CoordinatorMetrics::add(counter, 1);
    }

    /// The coordinator can do no more.
    pub(super) fn broke_down(&self) {
        self.standing.advance(Standing::Failed);
    }
}

impl Shown for Probe {
    fn name(&self) -> &'static str {
        "coordinator"
    }

    fn standing(&self) -> Standing {
        self.standing.now()
    }

    fn values(&self) -> Option<Instance> {
        CoordinatorMetrics::set(&self.metrics.members_answered, self.gathered.answered() as u64);
        self.metrics.member_last_seen_nanoseconds.set(self.gathered.last_seen());
        for (server, bytes) in (0..).zip(self.gathered.placed()) {
            self.metrics.placed_bytes.set(server, bytes);
        }
        self.usage.refresh(&self.metrics);
        Some(self.metrics.instance(&self.job))
    }

    fn gathered(&self) -> Option<exporter::Gathered> {
        Some(self.gathered.latest())
    }

    fn page(&self) -> Option<String> {
        let Seen { before, now, age, points, second, events } = self.gathered.seen()?;
        let mut troubles = Vec::new();
        if let Phase::Aborted(cause) | Phase::Restores(cause) = &now.status.view.phase {
            troubles.push(cause.to_string());
        }
        if let Some(Hold { there, needed, .. }) = &now.status.hold {
            troubles.push(format!("{there} of {needed} workers are there; they wait behind their step for others"));
        }
        if age >= OLD {
            let seconds = age.as_secs();
            troubles.push(format!("this is {seconds} s old: no member was heard since, or the coordinator is stuck"));
        }
        let (version, settings) = (env!("CARGO_PKG_VERSION"), self.settings);
        Some(page(&Look::of(before.as_ref(), &now), &Around { troubles, points, second, events, version, settings }))
    }
}

/// Members tell their metrics once a second.
const TOLD_LASTS: Duration = Duration::from_secs(3);
/// A page says how old it is from then on.
const OLD: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;
    use gradlane_core::Error;
    use gradlane_core::config::Config;
    use gradlane_core::types::Epoch;

    use super::super::{CoordinatorNode, Input};
    use super::*;
    use crate::scrape::{exporter, get};

    #[test]
    fn it_is_shown_while_its_thread_is_stuck() {
        let config = Config { bind: "127.0.0.1:0".to_owned(), ..Config::default() };
        let machine = CoordinatorConfig { job: "night".to_owned(), ..CoordinatorConfig::from_config(&config, 2, 1) };
        let node = CoordinatorNode::start(machine, &config, None).unwrap();
        let exporter = exporter();
        node.show_at(&exporter);
        let (reply, taken) = bounded(0);
        node.inputs.send(Input::Status(reply)).unwrap();
        while !node.inputs.is_empty() {
            std::thread::yield_now();
        }
        // Its thread waits until somebody takes the status.
        let (_, text) = get(&exporter, "/metrics");
        assert!(text.contains("gradlane_coordinator_workers_expected{job_name=\"night\"} 2\n"), "{text}");
        assert!(text.contains("gradlane_coordinator_members_missing{job_name=\"night\"} 3\n"), "{text}");
        assert_eq!(get(&exporter, "/readyz"), (200, "coordinator: ready\n".to_owned()));
        taken.recv().unwrap();
        node.stop(Error::Cancelled);
        assert!(!get(&exporter, "/metrics").1.contains("gradlane_coordinator_"), "it is not shown any more");
    }

    #[test]
    fn what_people_look_for_is_counted() {
        let probe = Probe::new(&CoordinatorConfig::from_config(&Config::default(), 2, 1), 0, Arc::default());
        let text = String::new;
        for event in [
            Event::Refused { who: text(), error: Error::Cancelled },
            Event::Dead { member: text(), place: text(), cause: text() },
            Event::Dead { member: text(), place: text(), cause: text() },
            Event::HotServer { warning: text() },
            Event::Ends { reason: "" },
        ] {
            probe.count(&event);
        }
        let metrics = &probe.metrics;
        let counted = (metrics.refusals(), metrics.losses(), metrics.hot_servers(), metrics.stalls());
        assert_eq!(counted, (1, 2, 1, 0));
    }

    #[test]
    fn a_job_is_counted_and_ready_until_it_ends() {
        let config = CoordinatorConfig::from_config(&Config::default(), 2, 1);
        let census = Census {
            workers: 1,
            servers: 1,
            suspect: 0,
            connections: 3,
            life: Life::Forming,
            epoch: Epoch { term: 7, number: 0 },
        };
        for (life, standing, running) in [
            (Life::Forming, Standing::Ready, 0),
            (Life::Running, Standing::Ready, 1),
            (Life::Ended, Standing::Ended, 0),
            (Life::Failed, Standing::Failed, 0),
        ] {
            let probe = Probe::new(&config, 0, Arc::default());
            probe.follow(&Census { life, ..census }, std::iter::empty());
            assert_eq!((probe.standing(), probe.metrics.running()), (standing, running), "{life:?}");
            let metrics = &probe.metrics;
            assert_eq!((metrics.members_missing(), metrics.connections(), metrics.term()), (1, 3, 7));
        }
    }
}
