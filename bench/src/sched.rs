//! What does the scheduler cost, with many tasks waiting?
//!
//! Drives the production machine as the engine does, on one thread: drains its commands after every call. The machine's time is an argument
//! and stands still, so that the benchmark measures only the machine.

use std::collections::BTreeSet;
use std::sync::Arc;

use clap::Args;
use gradlane_core::config::Config;
use gradlane_core::pipeline::{Duty, Pipeline, Route, Stage, Topology};
use gradlane_core::sched::{Command, GroupId, Outcome, Scheduler, SchedulerConfig, TaskId, TaskSpec};
use gradlane_core::types::{DeviceKind, PartId, Priority, Round, ServerId, TensorKey, Time};

use crate::measure::{Samples, time};
use crate::report::screen::note;
use crate::report::{Conclusion, Figures, Record, Report, Row, smoke_note};
use crate::table::Table;

/// Waiting tasks of `--smoke`.
const SMOKE_QUEUED: u64 = 100;
/// Servers among which the parts are spread.
const SERVERS: u64 = 8;

/// What does the scheduler cost, with many tasks waiting?
///
/// "submit" is the cost of opening a submission of one part and queueing it. "move" is the cost of taking a task for a stage and finishing
/// it there: this queues it for the next stage or, after the last one, resolves its submission. Meanwhile the given number of tasks of
/// random priority waits, less at most a tenth of them. Costs are in nanoseconds; ± is half the distance between the smallest and the
/// largest sample.
///
/// In the JSON file and with --expect, a size is the number of tasks that wait, and a time one operation in µs: 'move/time<=1@10000'.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Tasks that wait; several are separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000", value_parser = clap::value_parser!(u64).range(10..=10_000_000))]
    queued: Vec<u64>,
    /// Samples of each.
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u32).range(5..))]
    iterations: u32,
    #[command(flatten)]
    record: Record,
    /// Verify every result, but with few samples: the figures mean nothing.
    #[arg(long)]
    smoke: bool,
}

/// Measures and prints.
pub(crate) fn answer(arguments: &Arguments) -> Conclusion {
    Conclusion::of(measure_all(arguments).map_err(Conclusion::Wrong), &arguments.record)
}

/// The table, and the same as a report for files; or the wrong result.
fn measure_all(arguments: &Arguments) -> Result<(String, Report), String> {
    let (sizes, iterations) = match arguments.smoke {
        true => (&[SMOKE_QUEUED][..], 5),
        false => (&arguments.queued[..], arguments.iterations),
    };
    let setting = format!("PUSH and PULL, one thread, {iterations} samples each; every submission resolved once");
    let version = format!("gradlane-bench sched, {}", env!("CARGO_PKG_VERSION"));
    let mut report = Report::begin("sched", vec![version, setting.clone()]);
    report.setting.extend(smoke_note(arguments.smoke));
    let mut table = Table::new(["queued", "submit ns", "move ns"]);
    for &queued in sizes {
        let costs = measure(queued, iterations)?;
        table.push([queued.to_string(), costs.submit.to_string(), costs.moving.to_string()]);
        for (name, costs) in [("submit", costs.submit), ("move", costs.moving)] {
            let in_place = Some(Figures::of_times(costs.scaled(1e-3)));
            report.rows.push(Row { bytes: queued, count: queued, in_place, ..Row::new(name, true, "") });
        }
    }
    let width = arguments.record.width();
    Ok((note(&setting, width) + &table.within(width), report))
}

/// Nanoseconds an operation, sample by sample.
#[derive(Default)]
struct Costs {
    submit: Samples,
    moving: Samples,
}

fn measure(queued: u64, iterations: u32) -> Result<Costs, String> {
    let mut load = Load::new();
    load.submit(queued);
    let batch = queued / 10;
    let mut costs = Costs::default();
    for _ in 0..iterations {
        let moves = 2 * batch;
        costs.moving.push_cost(moves, time(|| load.carry_out(batch)));
        costs.submit.push_cost(batch, time(|| load.submit(batch)));
        load.check(queued)?;
    }
    load.carry_out(queued);
    load.check(0)?;
    Ok(costs)
}

/// A scheduler, and counts of its submissions and results.
struct Load {
    scheduler: Scheduler,
    name: Arc<str>,
    random: u64,
    submitted: u64,
    /// Recorded during the measurement, and checked afterwards.
    resolved: Vec<GroupId>,
    seen: BTreeSet<GroupId>,
    released: u64,
    failed: u64,
}

impl Load {
    fn new() -> Self {
        let config = SchedulerConfig {
            credit_bytes: u64::MAX,
            credit_tasks: u32::MAX,
            oldest_every: Config::default().oldest_every,
            ..SchedulerConfig::default()
        };
        let pipeline = Pipeline::for_role(&Topology::flat(2, DeviceKind::Host));
        let after = |stage| pipeline.after(stage, Route::host(Duty::Owner));
        assert_eq!([after(Stage::Push), after(Stage::Pull)], [Some(Stage::Pull), None], "a task moves twice");
        Self {
            scheduler: Scheduler::new(config, pipeline),
            name: Arc::from("layer4.2.conv3.weight"),
            random: 1,
            submitted: 0,
            resolved: Vec::new(),
            seen: BTreeSet::new(),
            released: 0,
            failed: 0,
        }
    }

    fn submit(&mut self, tasks: u64) {
        for _ in 0..tasks {
            let group = self.scheduler.open_group(Time::ZERO, Arc::clone(&self.name), Round(0), 1, None);
            let spec = TaskSpec {
                part: PartId { key: TensorKey(self.submitted), index: 0 },
                server: ServerId((self.submitted % SERVERS) as u32),
                bytes: 4 << 20,
                round: Round(0),
                priority: self.priority(),
                route: Route::host(Duty::Owner),
                groups: vec![group],
            };
            self.scheduler.submit(Time::ZERO, spec);
            self.submitted += 1;
            self.drain();
        }
    }

    /// Takes `tasks` tasks through both stages.
    fn carry_out(&mut self, tasks: u64) {
        let pushed: Vec<TaskId> = (0..tasks)
            .map(|_| {
                let task = self.scheduler.take(Time::ZERO, Stage::Push).expect("enough tasks wait without a gate");
                self.scheduler.finish(Time::ZERO, task.id, Outcome::Done);
                self.drain();
                task.id
            })
            .collect();
        for task in pushed {
            self.scheduler.finish(Time::ZERO, task, Outcome::Done);
            self.drain();
        }
    }

    fn drain(&mut self) {
        while let Some(command) = self.scheduler.next_command() {
            match command {
                Command::Wake(_) => {}
                Command::Release(_) => self.released += 1,
                Command::Resolved { group, outcome: Ok(()) } => self.resolved.push(group),
                Command::Resolved { outcome: Err(_), .. }
                | Command::Abandon(_)
                | Command::Decline(_)
                | Command::Withdraw { .. } => {
                    self.failed += 1;
                }
            }
        }
    }

    /// Whether all but `waiting` submissions were resolved, each once.
    fn check(&mut self, waiting: u64) -> Result<(), String> {
        for group in self.resolved.drain(..) {
            if !self.seen.insert(group) {
                return Err(format!("{group:?} resolved twice"));
            }
        }
        let due = self.submitted - waiting;
        let found = (self.seen.len() as u64, self.released, self.failed, self.scheduler.waiting(Stage::Push) as u64);
        if found != (due, due, 0, waiting) {
            return Err(format!(
                "resolved, released, failed, waiting are {found:?}; due are {due} and {waiting} waiting"
            ));
        }
        Ok(())
    }

    /// SplitMix64 (Steele, Lea, Flood 2014); makes as many distinct priorities as a model has.
    fn priority(&mut self) -> Priority {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Priority(-(((bits ^ (bits >> 31)) % 1000) as i32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smoke_run_resolves_every_submission_once() {
        let arguments = Arguments { queued: vec![], iterations: 5, record: Record::default(), smoke: true };
        let (table, report) = measure_all(&arguments).expect("all resolved once");
        assert!(table.contains(&SMOKE_QUEUED.to_string()), "{table}");
        assert_eq!(report.rows.iter().map(|row| row.contender.as_str()).collect::<Vec<_>>(), ["submit", "move"]);
    }

    #[test]
    fn a_submission_that_is_not_resolved_is_a_wrong_result() {
        let mut load = Load::new();
        load.submit(3);
        assert!(load.check(3).is_ok());
        assert!(load.check(0).is_err());
    }
}
