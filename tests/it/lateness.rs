//! Servers say who was late, and why, in a job of real processes. The first worker of a machine says the same of those that reduce there.

use std::path::Path;
use std::time::Duration;

use gradlane_core::engine::Engine;
use gradlane_core::metrics::{Cell, Value};
use gradlane_core::types::{Cause, Op};
use gradlane_tests::cluster::{Cluster, Tensor, all};
use gradlane_tests::over::Over;
use gradlane_tests::patience::eventually;
use gradlane_tests::processes::Process;

use crate::actors::{ACTOR, coordinator, server, worker};
use crate::exporter::{get, ports};

/// How long one worker waits before it submits, while all others have contributed.
const PAUSE: Duration = Duration::from_millis(60);
const ROUNDS: u32 = 3;

#[test]
fn servers_name_the_worker_that_submits_late_and_no_other() {
    let home = tempfile::tempdir().unwrap();
    let ports = ports(2);
    let (_coordinator, join) = coordinator(home.path(), 3, 2, &[]);
    let bind = |index: usize| format!("127.0.0.1:{}", ports[index]);
    let _servers = [0, 1].map(|index| server(Over::Quic, &join, index, &[("metrics_bind", &bind(index as usize))]));
    let mut puppets = [0, 1, 2].map(|rank| worker(Over::Quic, &["puppet"], &join, Some(rank), 3, &[]));
    let joined = puppets.iter_mut().map(|puppet| puppet.line());
    assert_eq!(joined.collect::<Vec<_>>(), ["joined 0", "joined 1", "joined 2"]);

    // Each tensor is on one of the servers.
    let mut bodies = [0, 0];
    for (at, name) in ["left", "right"].into_iter().enumerate() {
        let before = read(&ports).received;
        puppets.iter_mut().for_each(|puppet| puppet.order(&format!("sum {name} 0")));
        puppets.iter_mut().for_each(|puppet| assert_eq!(puppet.line(), "ok"));
        bodies[at] = (read(&ports).received - before) / 3;
    }
    let before = counted(&ports, &mut puppets[0]);
    assert_eq!(before.last.iter().sum::<f64>(), before.rounds);
    assert!(before.late.iter().flatten().sum::<f64>() <= before.round_seconds, "only rounds are waited in");

    let round_with_a_late_worker = |puppets: &mut [Process; 3], round: u32| {
        for (name, body) in ["left", "right"].into_iter().zip(bodies) {
            let received = read(&ports).received;
            puppets[..2].iter_mut().for_each(|puppet| puppet.order(&format!("sum {name} {round}")));
            eventually("both are there", || (read(&ports).received == received + 2 * body).then_some(()));
            assert!(crossbeam_channel::never::<()>().recv_timeout(PAUSE).is_err());
            puppets[2].order(&format!("sum {name} {round}"));
            puppets.iter_mut().for_each(|puppet| assert_eq!(puppet.line(), "ok"));
        }
    };
    (1..=ROUNDS).for_each(|round| round_with_a_late_worker(&mut puppets, round));
    let after = counted(&ports, &mut puppets[0]);
    let late = |rank: usize, cause: Cause| after.late[rank][cause as usize] - before.late[rank][cause as usize];
    for rank in [0, 1] {
        assert_eq!(after.last[rank], before.last[rank], "worker {rank} was never last");
        assert_eq!(Cause::ALL.map(|cause| late(rank, cause)), [0.0; 6], "worker {rank}");
    }
    assert_eq!(after.last[2] - before.last[2], after.rounds - before.rounds);
    let paused = PAUSE.as_secs_f64() * f64::from(2 * ROUNDS);
    assert!(late(2, Cause::Submit) > 0.9 * paused, "{} of {paused} s", late(2, Cause::Submit));
    assert!(after.late.iter().flatten().sum::<f64>() <= after.round_seconds + 1e-6);

    // `gradlane top` finds the job by itself, and says the same of the second that it looks at.
    let mut round = ROUNDS;
    let named = std::iter::repeat_with(|| {
        let mut top = Process::start(Path::new(ACTOR), &["top"], home.path(), &[]);
        while !top.has_ended() {
            round += 1;
            round_with_a_late_worker(&mut puppets, round);
        }
        let ended = top.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let [head, time_use, verdict, ..] = &ended.output[..] else { panic!("{ended:?}") };
        assert!(time_use.starts_with("exposed "), "{time_use}");
        assert!(head.contains(" 3/3 workers 2/2 servers"), "{head}");
        assert!(!ended.output.iter().any(|line| line.contains('\x1b')), "a pipe gets plain text: {ended:?}");
        // A machine that is busy with other things may have had no round in that second.
        verdict.starts_with("VERDICT rank 2 late (submit) ")
    });
    assert!(named.take(10).any(|is_named| is_named));
}

#[test]
fn the_first_worker_of_a_machine_names_the_one_for_which_the_others_there_wait() {
    // On one machine no server is asked. A first worker may itself be the late one.
    for (machines, late, first) in
        [(&["a", "a"][..], 0, 0), (&["a", "a"], 1, 0), (&["a", "b", "b", "a"], 1, 1), (&["a", "b", "b", "a"], 2, 1)]
    {
        let cluster = Cluster::on(Over::Quic, machines, 1, &[]);
        let pass = |pause: Duration| {
            all(&cluster.workers, |engine| {
                let mut tensors = ["left", "right"].map(|name| Tensor::new(name, vec![1.0_f32; 100]));
                for _ in 0..ROUNDS {
                    if engine.rank().0 == late {
                        assert!(crossbeam_channel::never::<()>().recv_timeout(pause).is_err());
                    }
                    let handles = tensors.each_mut().map(|tensor| tensor.push_pull(engine, Op::Max).unwrap());
                    handles.iter().for_each(|handle| handle.wait(None).unwrap());
                }
            });
        };
        pass(Duration::ZERO);
        let before = submit_of(&cluster.workers[first], late);
        pass(PAUSE);
        let counted = submit_of(&cluster.workers[first], late) - before;
        let paused = PAUSE * ROUNDS;
        assert!(counted > paused.mul_f64(0.9), "{machines:?}: worker {late} paused {paused:?}, counted {counted:?}");
        assert!(counted < 2 * paused, "{machines:?}: both tensors waited at the same time: {counted:?}");
        let metrics = cluster.workers[first].metrics();
        assert_eq!(metrics.machine_steps(), u64::from(2 * ROUNDS), "{machines:?}");
        let nobody = |worker: &Engine| worker.metrics().machine_last.value() == Value::Family(Vec::new());
        for (rank, worker) in cluster.workers.iter().enumerate() {
            let leads = machines.iter().position(|machine| *machine == machines[rank]) == Some(rank);
            assert_eq!(nobody(worker), !leads, "{machines:?}: worker {rank}");
        }
    }
}

/// For how long the first worker of a machine has waited for this one to submit.
fn submit_of(first: &Engine, late: u32) -> Duration {
    let Value::Family(numbers) = first.metrics().machine_late_nanoseconds.value() else { panic!("a family") };
    let wanted = [late.to_string(), Cause::Submit.name().to_owned()];
    numbers
        .into_iter()
        .find(|(labels, _)| *labels == wanted)
        .map_or(Duration::ZERO, |(_, late)| Duration::from_nanos(late))
}

/// What the servers count, once they have counted all rounds to which this worker has contributed. Workers have a sum just before that.
fn counted(ports: &[u16], puppet: &mut Process) -> Counted {
    puppet.order("metric pushes");
    let pushes: f64 = puppet.line().parse().expect("a number");
    eventually("all rounds are counted", || Some(read(ports)).filter(|counted| counted.rounds == pushes))
}

/// What the servers count, in all.
struct Counted {
    received: u64,
    rounds: f64,
    round_seconds: f64,
    /// By rank.
    last: [f64; 3],
    /// By rank and cause.
    late: [[f64; Cause::ALL.len()]; 3],
}

fn read(ports: &[u16]) -> Counted {
    let texts: Vec<String> = ports.iter().map(|port| get(*port, "/metrics").1).collect();
    let sum = |name: &str, labels: &str| -> f64 {
        let is_wanted = |line: &&str| line.starts_with(&format!("gradlane_server_{name}{{")) && line.contains(labels);
        let lines = texts.iter().flat_map(|text| text.lines()).filter(is_wanted);
        lines.map(|line| line.rsplit_once(' ').expect("a value").1.parse::<f64>().expect("a number")).sum()
    };
    let of = |rank: usize, cause: Cause| format!("rank=\"{rank}\",cause=\"{}\"", cause.name());
    Counted {
        received: sum("received_bytes_total", "") as u64,
        rounds: sum("round_duration_seconds_count", ""),
        round_seconds: sum("round_duration_seconds_sum", ""),
        last: [0, 1, 2].map(|rank| sum("last_total", &format!("rank=\"{rank}\""))),
        late: [0, 1, 2].map(|rank| Cause::ALL.map(|cause| sum("late_seconds_total", &of(rank, cause)))),
    }
}
