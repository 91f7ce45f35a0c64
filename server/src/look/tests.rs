//! What two readings of a job say.

use std::collections::BTreeMap;
use std::sync::Arc;

use gradlane_core::metrics::{Instance, LinkReading, ServerMetrics, WorkerMetrics};
use gradlane_core::types::{
    Address, Epoch, Incarnation, Late, MachineId, NodeId, Phase, Process, Round, Scheme, ServerId, TensorKey, View,
};
use gradlane_core::wire::frame::{Progress, Status};

use super::verdict::Sign;
use super::*;

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
    assert_eq!(look.verdict, Verdict::Late { rank: 1, cause: Cause::Device, late, sign: None });
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
    let late = Verdict::Late { rank: 1, cause: Cause::Submit, late: Duration::from_millis(4), sign: None };
    assert_eq!(Look::of(Some(&before), &later(job.at_step(102), 3)).verdict, late, "of 30 ms");
}

#[test]
fn a_job_on_one_machine_is_judged_by_what_its_first_worker_saw() {
    let job = Job::on_machines(&[7, 7, 7], 1);
    let before = job.reading();
    assert_eq!(Look::of(Some(&before), &job.at(2, 2)).verdict, Verdict::NoSums);
    job.meet(0, &[(1, Cause::Queue, 3), (2, Cause::Submit, 2)]);
    assert_eq!(Look::of(Some(&before), &job.at(12, 2)).verdict, Verdict::Nobody, "of 200 ms");
    job.meet(0, &[(1, Cause::Submit, 77), (2, Cause::Submit, 8)]);
    let look = Look::of(Some(&before), &job.at(22, 2));
    let late = Duration::from_millis(40);
    assert_eq!(look.verdict, Verdict::Late { rank: 1, cause: Cause::Submit, late, sign: None });
    let shown = look.ranks.iter().map(|line| (line.late.unwrap().as_millis(), line.cause)).collect::<Vec<_>>();
    assert_eq!(shown, [(0, None), (40, Some(Cause::Submit)), (5, Some(Cause::Submit))]);
}

#[test]
fn a_worker_that_waited_for_another_of_its_machine_is_not_the_late_one() {
    let job = Job::on_machines(&[7, 8, 7, 8], 1);
    let before = job.reading();
    // Worker 1 brings the sums of its machine, where the others wait for worker 3.
    job.passes(&[(0, Cause::Submit, 1), (1, Cause::Device, 45), (3, Cause::Submit, 41)]);
    job.meet(0, &[(2, Cause::Submit, 1)]);
    job.meet(1, &[(3, Cause::Submit, 42)]);
    let look = Look::of(Some(&before), &job.at(12, 2));
    let late = Duration::from_millis(42);
    assert_eq!(look.verdict, Verdict::Late { rank: 3, cause: Cause::Submit, late, sign: None });
    assert_eq!(look.ranks.iter().map(|line| line.late.unwrap().as_millis()).collect::<Vec<_>>(), [1, 3, 1, 42]);
}

#[test]
fn a_worker_that_is_slow_after_the_sum_of_its_machine_stays_the_late_one() {
    let job = Job::on_machines(&[7, 8, 7, 8], 1);
    let before = job.reading();
    job.passes(&[(1, Cause::Device, 45)]);
    // For itself it has not waited.
    job.meet(1, &[(1, Cause::Queue, 20), (3, Cause::Submit, 2)]);
    let late = Duration::from_millis(43);
    let verdict = Look::of(Some(&before), &job.at(12, 2)).verdict;
    assert_eq!(verdict, Verdict::Late { rank: 1, cause: Cause::Device, late, sign: None });
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
fn a_server_that_is_behind_is_named_and_no_worker() {
    let job = Job::new(3, 2);
    let before = job.reading();
    job.passes(&[(0, Cause::Submit, 2)]);
    for round in 0..10 {
        job.servers[1].late_nanoseconds.add(round % 3, Cause::Sum, Duration::from_millis(30));
    }
    let look = Look::of(Some(&before), &job.at(12, 2));
    assert_eq!(look.verdict, Verdict::Behind { server: 1, late: Duration::from_millis(30) });
    assert_eq!(look.verdict.to_string(), "server 1 is behind with its additions, 30.0 ms a step");
    assert_eq!(look.ranks[2].late, Some(Duration::ZERO), "what a server is behind is no worker's");
}

#[test]
fn what_a_late_worker_has_more_of_than_the_others_explains_it() {
    let told = |cause, data: [u64; 3], core: [u64; 3]| {
        let job = Job::new(3, 1);
        let before = job.reading();
        // 500 ms in a second.
        job.passes(&[(1, cause, 100)]);
        for (rank, worker) in job.workers.iter().enumerate() {
            WorkerMetrics::add(&worker.data_wait_nanoseconds, data[rank] * 1_000_000);
            WorkerMetrics::add(&worker.run_delay_nanoseconds, core[rank] * 1_000_000);
        }
        match Look::of(Some(&before), &job.at(12, 2)).verdict {
            Verdict::Late { rank: 1, sign, .. } => sign,
            verdict => panic!("{verdict}"),
        }
    };
    assert_eq!(told(Cause::Submit, [0, 0, 0], [0, 0, 0]), None);
    assert_eq!(told(Cause::Submit, [20, 900, 20], [0, 300, 0]), Some(Sign::Data(0.44)));
    assert_eq!(told(Cause::Submit, [0, 300, 0], [20, 900, 20]), Some(Sign::Core(0.44)));
    assert_eq!(told(Cause::Submit, [900, 900, 900], [900, 900, 900]), None, "all have it");
    assert_eq!(told(Cause::Submit, [0, 100, 0], [0, 100, 0]), None, "too little");
    assert_eq!(told(Cause::Device, [0, 900, 0], [0, 0, 0]), None, "data does not come after the submission");
    let full = Sign::Full(Duration::from_millis(64), Duration::from_micros(210));
    let sentences = [Sign::Data(0.44), Sign::Core(1.25), Sign::Loss(0.0123), full].map(|sign| sign.to_string());
    let expected = [
        "its training waits for its data loader, 44 % of the time",
        "its threads wait for a core, 1.2 s in a second",
        "1.2 % of its packets are lost",
        "its link is full, a round trip takes 64.0 ms, and that of others 210 us",
    ];
    assert_eq!(sentences, expected);
}

#[test]
fn a_slow_transfer_is_one_of_a_full_link_or_of_lost_packets() {
    let told = |rtt: u64, lost: u64| {
        let job = Job::new(3, 1);
        let before = job.reading();
        job.passes(&[(1, Cause::Transfer, 100)]);
        let told = LinkReading {
            rtt: Duration::from_millis(rtt),
            sent_packets: 1_000,
            lost_packets: lost,
            ..LinkReading::default()
        };
        job.workers[1].link(ServerId(0)).read(&LinkReading::default(), &told);
        match Look::of(Some(&before), &job.at(12, 2)).verdict {
            Verdict::Late { rank: 1, cause: Cause::Transfer, sign, .. } => sign,
            verdict => panic!("{verdict}"),
        }
    };
    assert_eq!(told(1, 1), None, "2 of 1,400 packets");
    assert_eq!(told(1, 13), Some(Sign::Loss(0.01)), "14 of 1,400");
    let full = Some(Sign::Full(Duration::from_millis(64), Duration::from_micros(210)));
    assert_eq!((told(64, 1), told(64, 300)), (full, full));
    assert_eq!(told(9, 1), None, "that may be the way to a server that is far");
}

#[test]
fn a_link_is_full_if_the_interfaces_of_the_machine_carry_no_more() {
    let told = |megabytes: u64, capacity: &[(String, u64)]| {
        let job = Job::new(3, 2);
        job.workers[1].nic_capacity_bytes_per_second.set(capacity);
        let before = job.reading();
        job.passes(&[(1, Cause::Transfer, 100)]);
        // In two seconds, to the server of another host and to the one of its own.
        for server in [0, 1] {
            let sent = LinkReading { sent_bytes: megabytes * 1_000_000, ..LinkReading::default() };
            job.workers[1].link(ServerId(server)).read(&LinkReading::default(), &sent);
        }
        let look = Look::of(Some(&before), &job.at(12, 2));
        let Verdict::Late { rank: 1, sign, .. } = look.verdict else { panic!("{}", look.verdict) };
        (sign, look.ranks[1].limit_word().unwrap())
    };
    let nics = [("eth0".to_owned(), 40_000_000), ("eth1".to_owned(), 60_000_000)];
    let full = Sign::Nic(0.95);
    assert_eq!(told(190, &nics), (Some(full), "nic 95 %".to_owned()));
    assert_eq!(told(170, &nics), (None, "cwnd".to_owned()));
    assert_eq!(told(190, &[]), (None, "cwnd".to_owned()), "nobody knows what they carry");
    let sentence = "its link is full, 95 % of what the network interfaces of its machine carry";
    assert_eq!(full.to_string(), sentence);
}

#[test]
fn what_workers_receive_from_a_machine_fills_its_interfaces_too() {
    let job = Job::new(3, 1);
    job.servers[0].nic_capacity_bytes_per_second.set(&[("eth0".to_owned(), 100_000_000)]);
    let before = job.reading();
    job.passes(&[(1, Cause::Submit, 0)]);
    for worker in &job.workers[1..] {
        let received = LinkReading { received_bytes: 100_000_000, sent_bytes: 60_000_000, ..LinkReading::default() };
        worker.link(ServerId(0)).read(&LinkReading::default(), &received);
    }
    let look = Look::of(Some(&before), &job.at(12, 2));
    let shares: Vec<_> = look.ranks.iter().map(|line| line.nic).collect();
    assert_eq!(shares, [Some(1.0), None, None], "worker 0 and the server are on n0");
}

#[test]
fn a_server_whose_link_is_full_is_named_where_all_wait_and_where_one_is_last() {
    let told = |late: u64, blocked: u64, received: u64| {
        let job = Job::new(3, 2);
        job.servers[1].nic_capacity_bytes_per_second.set(&[("eth0".to_owned(), 100_000_000)]);
        let before = job.reading();
        job.passes(&[(2, Cause::Transfer, late)]);
        for worker in &job.workers {
            WorkerMetrics::add(&worker.caller_blocked_nanoseconds, blocked * 1_000_000);
            let received = LinkReading { received_bytes: received * 1_000_000, ..LinkReading::default() };
            worker.link(ServerId(1)).read(&LinkReading::default(), &received);
        }
        Look::of(Some(&before), &job.at(12, 2)).verdict
    };
    let full = Verdict::FullServer { server: 1, share: 0.96 };
    let sentence = "the link of server 1 is full, 96 % of what the network interfaces of its machine carry";
    assert_eq!(full.to_string(), sentence);
    // In two seconds, by two workers: the third one is on the machine of that server.
    assert_eq!(told(0, 1_500, 96), full);
    assert_eq!(told(0, 0, 96), Verdict::Nobody, "it is busy, and nobody waits");
    assert_eq!(told(0, 1_500, 60), Verdict::Nobody, "it is not full");
    let Verdict::Late { rank: 2, sign, .. } = told(100, 1_500, 96) else { panic!("rank 2 is late") };
    assert_eq!(sign, Some(Sign::FullServer(1, 0.96)));
}

#[test]
fn a_full_server_is_named_only_where_the_links_of_the_last_worker_explain_nothing() {
    let told = |rtt: u64, lost: u64| {
        let job = Job::new(3, 2);
        job.servers[1].nic_capacity_bytes_per_second.set(&[("eth0".to_owned(), 100_000_000)]);
        let before = job.reading();
        job.passes(&[(2, Cause::Transfer, 100)]);
        for worker in &job.workers {
            let received = LinkReading { received_bytes: 96_000_000, ..LinkReading::default() };
            worker.link(ServerId(1)).read(&LinkReading::default(), &received);
        }
        let told = LinkReading {
            rtt: Duration::from_millis(rtt),
            sent_packets: 1_000,
            lost_packets: lost,
            ..LinkReading::default()
        };
        job.workers[2].link(ServerId(0)).read(&LinkReading::default(), &told);
        match Look::of(Some(&before), &job.at(12, 2)).verdict {
            Verdict::Late { rank: 2, cause: Cause::Transfer, sign, .. } => sign,
            verdict => panic!("{verdict}"),
        }
    };
    assert_eq!(told(1, 1), Some(Sign::FullServer(1, 0.96)));
    assert_eq!(told(1, 13), Some(Sign::Loss(0.01)));
    assert_eq!(told(64, 13), Some(Sign::Full(Duration::from_millis(64), Duration::from_micros(210))));
}

/// A job whose metrics are counted as its processes count them. Each worker is on a host of its own.
pub(crate) struct Job {
    workers: Vec<WorkerMetrics>,
    servers: Vec<ServerMetrics>,
    /// Of each worker. Those of one machine reduce among themselves.
    machines: Vec<MachineId>,
}

impl Job {
    pub(crate) fn new(workers: usize, servers: usize) -> Self {
        let job = Self {
            workers: (0..workers).map(|_| WorkerMetrics::default()).collect(),
            servers: (0..servers).map(|_| ServerMetrics::default()).collect(),
            machines: vec![MachineId::UNKNOWN; workers],
        };
        for server in &job.servers {
            server.late_nanoseconds.show(workers);
            server.last.show(workers);
            server.lane_busy_nanoseconds.show(1);
        }
        job
    }

    /// The machine of each worker.
    fn on_machines(machines: &[u64], servers: usize) -> Self {
        let of = machines.iter().map(|machine| MachineId(*machine)).collect();
        Self { machines: of, ..Self::new(machines.len(), servers) }
    }

    /// Ten steps among the workers of a machine, whose leader counts, in each of which ranks were missing alone for so many milliseconds.
    fn meet(&self, leader: usize, late: &[(usize, Cause, u64)]) {
        let metrics = &self.workers[leader];
        WorkerMetrics::add(&metrics.machine_steps, 10);
        for (rank, cause, millis) in late {
            let mut times = Late::default();
            times[*cause as usize] = Duration::from_millis(10 * millis);
            metrics.machine_late_nanoseconds.add(*rank, &times);
            metrics.machine_last.add(*rank, 10);
        }
    }

    /// Two seconds of ten rounds on each server, in each of which ranks were missing alone for so many milliseconds.
    pub(crate) fn passes(&self, late: &[(usize, Cause, u64)]) {
        for worker in &self.workers {
            WorkerMetrics::add(&worker.push_bytes, 1 << 30);
            WorkerMetrics::add(&worker.pull_bytes, 1 << 30);
            WorkerMetrics::add(&worker.caller_blocked_nanoseconds, 500_000_000);
            let reading = LinkReading {
                rtt: Duration::from_micros(210),
                sent_packets: 400,
                lost_packets: 1,
                limited_nanoseconds: [800_000_000, 0, 900_000_000, 0, 0],
                ..LinkReading::default()
            };
            worker.link(ServerId(0)).read(&LinkReading::default(), &reading);
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

    /// Each worker waits so many milliseconds for its data, and all wait so many for handles.
    pub(crate) fn spends(&self, data: &[u64], blocked: u64) {
        for (worker, data) in self.workers.iter().zip(data) {
            WorkerMetrics::add(&worker.data_wait_nanoseconds, data * 1_000_000);
            WorkerMetrics::add(&worker.caller_blocked_nanoseconds, blocked * 1_000_000);
        }
    }

    /// At the second 0, in step 2.
    pub(crate) fn reading(&self) -> Reading {
        self.at_step(2)
    }

    /// In this step at this second.
    pub(crate) fn at(&self, step: u64, second: u64) -> Reading {
        Reading { at: Duration::from_secs(second), ..self.at_step(step) }
    }

    pub(crate) fn at_step(&self, step: u64) -> Reading {
        let of = |role: Role, index: usize| Member {
            process: Process { host: format!("n{index}"), ..Process::new(role, Incarnation(1)) },
            node: NodeId([0; 32]),
            index: u32::try_from(index).unwrap(),
            first_round: Round(0),
        };
        let worker = |(index, machine): (usize, &MachineId)| {
            let mut member = of(Role::Worker, index);
            (member.process.machine, member.process.addresses) = (*machine, vec![Address::new(Scheme::Shm, "socket")]);
            member
        };
        let workers = self.machines.iter().enumerate().map(worker);
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
                waits: Box::default(),
            },
            told: all,
            told_at: BTreeMap::new(),
        }
    }
}
