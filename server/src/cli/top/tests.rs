use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::metrics::{Instance, ServerMetrics, WorkerMetrics};
use gradlane_core::types::{
    Cause, Epoch, Incarnation, Member, NodeId, PartId, Phase, Process, Role, Round, TensorKey, View, WorkerId,
};
use gradlane_core::wire::frame::{Health, MemberStatus, Progress, Status, Waiting, WaitingTensor, Waits};

use super::render::{Order, Screen, render};
use crate::look::{Look, Reading, Verdict};

const PIPE: Screen = Screen { size: None, order: Order::Late, is_paused: false, note: None };

#[test]
fn a_pipe_gets_one_plain_screen() {
    let job = Job::new(3, 2);
    let before = job.reading();
    job.passes(&[(1, Cause::Submit, 71), (1, Cause::Transfer, 2), (2, Cause::Credit, 3)]);
    let look = Look::of(Some(&before), &Reading { at: Duration::from_secs(2), ..job.at_step(12) });
    let expected = "\
gradlane top  job night  epoch 1.3 running  3/3 workers 2/2 servers  step 12  200 ms  exposed 25 %
VERDICT rank 1 late (submit) 73.0 ms a step
 RANK  HOST  STATE  STEP  LATE/step  CAUSE   BLOCKED  PUSH/s   PULL/s   OPEN
 1     n1    alive  12    73.0 ms    submit  25 %     512 MiB  512 MiB  0
 2     n2    alive  12    3.0 ms     credit  25 %     512 MiB  512 MiB  0
 0     n0    alive  12    0.0 ms     -       25 %     512 MiB  512 MiB  0
 SRV  HOST  STATE  IN/s     OUT/s    LANES  SUMS   PLACED  OPEN  LAST
 0    n0    alive  1.5 GiB  1.5 GiB  50 %   4 KiB  1 MiB   3     rank 1
 1    n1    alive  1.5 GiB  1.5 GiB  50 %   4 KiB  1 MiB   3     rank 1
";
    assert_eq!(render(&look, PIPE), expected);
}

#[test]
fn a_terminal_is_never_overrun_and_what_does_not_fit_is_counted() {
    let job = Job::new(40, 10);
    let before = job.reading();
    job.passes(&[(7, Cause::Queue, 29)]);
    let look = Look::of(Some(&before), &Reading { at: Duration::from_secs(2), ..job.at_step(12) });
    for lines in 0..60 {
        for columns in [0, 20, 80, 200] {
            let text = render(&look, Screen { size: Some((columns, lines)), ..PIPE });
            assert!(text.lines().count() < usize::from(lines).max(1), "{lines}: {text}");
            assert!(text.lines().all(|line| line.chars().count() <= usize::from(columns)), "{columns}: {text}");
        }
    }
    let text = render(&look, Screen { size: Some((100, 20)), ..PIPE });
    assert!(text.contains("VERDICT rank 7 late (queue) 29.0 ms a step\n"), "{text}");
    assert!(text.contains(" more workers\n") && text.contains(" more servers\n"), "{text}");
    assert!(text.ends_with("q quit  s sort  d dump  p pause\n"), "{text}");
    let first = |screen| render(&look, screen).lines().find(|line| line.contains("alive")).unwrap().trim().to_owned();
    assert!(first(Screen { size: Some((100, 20)), ..PIPE }).starts_with("7 "), "the latest");
    assert!(first(Screen { size: Some((100, 20)), order: Order::Rank, ..PIPE }).starts_with("0 "));
    assert!(render(&look, Screen { is_paused: true, ..PIPE }).contains("  PAUSED\n"));
}

#[test]
fn it_says_when_it_does_not_see_everybody() {
    let job = Job::new(2, 1);
    let before = job.reading();
    let mut now = Reading { at: Duration::from_secs(2), ..job.at_step(12) };
    now.told.remove(&(Role::Worker, 1));
    let text = render(&Look::of(Some(&before), &now), PIPE);
    assert!(text.contains("\n2 of 3 answered; missing: worker 1\n"), "{text}");
    let line = text.lines().find(|line| line.starts_with(" 1 ")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words, ["1", "n1", "alive", "12", "-", "-", "-", "-", "-", "-"]);

    // One that is known to be lost is not waited for.
    now.status.members[1].health = Health::Dead;
    let text = render(&Look::of(Some(&before), &now), PIPE);
    assert!(!text.contains("answered") && text.contains(" 1/2 workers 1/1 servers"), "{text}");
}

#[test]
fn tensors_that_wait_have_a_line_each_up_to_three() {
    let mut reading = Job::new(2, 1).reading();
    let waiting = |index: u64| WaitingTensor {
        tensor: format!("layer{index}.weight"),
        told_by: "server 0".to_owned(),
        age: Duration::ZERO,
        waiting: Waiting {
            part: PartId { key: TensorKey(index), index: 0 },
            round: Round(812),
            waited: Duration::from_millis(312),
            missing: vec![WorkerId(3)],
            more: 0,
        },
    };
    reading.status.waits.tensors = (0..5).map(waiting).collect();
    let text = render(&Look::of(None, &reading), PIPE);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("WAITING")).collect();
    assert_eq!((lines.len(), lines[0]), (3, "WAITING layer0.weight r812 0.3 s for [3]"), "{text}");
    let noted = render(&Look::of(None, &reading), Screen { note: Some("1 of 2 workers have written"), ..PIPE });
    assert!(noted.ends_with("1 of 2 workers have written\n"), "{noted}");
}

#[test]
fn a_delay_on_two_servers_at_the_same_time_delays_a_step_once() {
    let job = Job::new(2, 2);
    let before = job.reading();
    for (server, millis) in job.servers.iter().zip([300, 500]) {
        server.round_duration_nanoseconds.add(Duration::from_millis(1));
        ServerMetrics::add(&server.steps, 5);
        server.late_nanoseconds.add(1, Cause::Device, Duration::from_millis(millis));
    }
    let look = Look::of(Some(&before), &Reading { at: Duration::from_secs(2), ..job.at_step(7) });
    let late = Duration::from_millis(100);
    assert_eq!(look.verdict, Verdict::Late { rank: 1, cause: Cause::Device, late });
    assert_eq!((look.ranks[0].late, look.ranks[1].late), (Some(Duration::ZERO), Some(late)));
}

#[test]
fn a_verdict_needs_two_readings_sums_and_a_delay_that_counts() {
    let job = Job::new(2, 1);
    let before = job.reading();
    assert_eq!(Look::of(None, &before).verdict, Verdict::Unknown);
    let later = |reading: Reading, seconds| Reading { at: Duration::from_secs(seconds), ..reading };
    assert_eq!(Look::of(Some(&before), &later(job.at_step(2), 2)).verdict, Verdict::NoSums);
    job.passes(&[(0, Cause::Submit, 0), (1, Cause::Submit, 4)]);
    // Ten steps took 300 ms each, so 4 ms are little of one.
    assert_eq!(Look::of(Some(&before), &later(job.at_step(12), 3)).verdict, Verdict::Nobody);
    let late = Verdict::Late { rank: 1, cause: Cause::Submit, late: Duration::from_millis(4) };
    assert_eq!(Look::of(Some(&before), &later(job.at_step(102), 3)).verdict, late, "of 30 ms");
}

#[test]
fn a_server_that_was_started_again_has_no_rates_and_blames_nobody() {
    let job = Job::new(2, 1);
    job.passes(&[(1, Cause::Submit, 400)]);
    let before = job.reading();
    let fresh = Job::new(2, 1);
    let look = Look::of(Some(&before), &Reading { at: Duration::from_secs(3), ..fresh.at_step(12) });
    assert_eq!((look.verdict, look.hosts[0].input, look.ranks[0].push), (Verdict::NoSums, None, None));
}

#[test]
fn names_of_hosts_cannot_steer_the_terminal() {
    let mut reading = Job::new(1, 0).reading();
    reading.status.view.members[0].process.host = "n\x1b[2J\n1".to_owned();
    reading.status.view.job = "a\x07b".to_owned();
    let text = render(&Look::of(None, &reading), PIPE);
    assert!(text.chars().all(|char| char == '\n' || !char.is_control()), "{text:?}");
}

/// A job whose metrics are counted as its processes count them. Each worker is on a host of its own.
pub(crate) struct Job {
    workers: Vec<WorkerMetrics>,
    servers: Vec<ServerMetrics>,
}

impl Job {
    pub(crate) fn new(workers: usize, servers: usize) -> Self {
        let job = Self {
            workers: (0..workers).map(|_| WorkerMetrics::default()).collect(),
            servers: (0..servers).map(|_| ServerMetrics::default()).collect(),
        };
        for server in &job.servers {
            server.late_nanoseconds.show(workers);
            server.last.show(workers);
            server.lane_busy_nanoseconds.show(1);
        }
        job
    }

    /// Two seconds of ten rounds on each server, in each of which ranks were missing alone for so many milliseconds.
    pub(crate) fn passes(&self, late: &[(usize, Cause, u64)]) {
        for worker in &self.workers {
            WorkerMetrics::add(&worker.push_bytes, 1 << 30);
            WorkerMetrics::add(&worker.pull_bytes, 1 << 30);
            WorkerMetrics::add(&worker.caller_blocked_nanoseconds, 500_000_000);
        }
        for server in &self.servers {
            ServerMetrics::add(&server.steps, 10);
            ServerMetrics::add(&server.received_bytes, 3 << 30);
            ServerMetrics::add(&server.sent_bytes, 3 << 30);
            server.lane_busy_nanoseconds.add(0, 1_000_000_000);
            for _ in 0..10 {
                server.round_duration_nanoseconds.add(Duration::from_millis(100));
                for (rank, cause, millis) in late {
                    server.late_nanoseconds.add(*rank, *cause, Duration::from_millis(*millis));
                }
                server.last.add(late.first().map_or(0, |(rank, ..)| *rank), 1);
            }
        }
    }

    /// At the second 0, in step 2.
    pub(crate) fn reading(&self) -> Reading {
        self.at_step(2)
    }

    pub(crate) fn at_step(&self, step: u64) -> Reading {
        let of = |role: Role, index: usize| Member {
            process: Process { host: format!("n{index}"), ..Process::new(role, Incarnation(1)) },
            node: NodeId([0; 32]),
            index: u32::try_from(index).unwrap(),
            first_round: Round(0),
        };
        let workers = (0..self.workers.len()).map(|index| of(Role::Worker, index));
        let members: Vec<Member> =
            workers.chain((0..self.servers.len()).map(|index| of(Role::Server, index))).collect();
        let status = MemberStatus {
            health: Health::Alive,
            silent: Duration::ZERO,
            progress: Progress { last: Some((TensorKey(1), Round(step))), pending: 3, bytes_in_flight: 4096 },
            placed_bytes: 1 << 20,
            placed_parts: 2,
        };
        let told = |role: Role, instances: Vec<Instance>| {
            (0..)
                .zip(instances)
                .map(move |(index, instance)| ((role, index), Arc::new(instance)))
                .collect::<BTreeMap<_, _>>()
        };
        let mut all = told(Role::Worker, self.workers.iter().map(|metrics| metrics.instance(0)).collect());
        all.extend(told(Role::Server, self.servers.iter().map(|metrics| metrics.instance(0)).collect()));
        Reading {
            at: Duration::ZERO,
            status: Status {
                members: vec![status; members.len()],
                view: View::plain("night", Epoch { term: 1, number: 3 }, Phase::Running, members),
                imbalance_milli: 1000,
                hold: None,
                waits: Waits::default(),
            },
            told: all,
            told_at: BTreeMap::new(),
        }
    }
}
