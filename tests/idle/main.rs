//! What an idle job costs. In a process of its own, because the processor's time is counted by process.

use std::time::Duration;

use gradlane_core::types::Op;
use gradlane_tests::cluster::{Cluster, Tensor, all};
use gradlane_tests::over::Over;

/// How long nothing happens.
const IDLE: Duration = Duration::from_secs(2);
/// Ticks in which the kernel counts processor time: `USER_HZ`, 100 on every Linux for user space.
const TICKS_PER_SECOND: f64 = 100.0;

#[test]
fn an_idle_job_leaves_the_processor_alone() {
    [Over::Local, Over::Shm, Over::Quic].into_iter().for_each(idle);
}

fn idle(over: Over) {
    let cluster = Cluster::start(over, 2, 1);
    all(&cluster.workers, |engine| Tensor::new("a", vec![1_f32; 1000]).reduce(engine, Op::Sum).unwrap());
    let before = ticks();
    // Waits on a condition that does not come true.
    cluster.embedded.servers()[0].join(Some(IDLE)).unwrap_err();
    let share = (ticks() - before) as f64 / TICKS_PER_SECOND / IDLE.as_secs_f64();
    println!("an idle job of 2 workers, a server and a coordinator uses {:.1} % of a core {over}", share * 100.0);
    // A thread that polls would use all of one; what is left are heartbeats and keep-alives.
    assert!(share < 0.2, "{share} of a core {over}");
}

/// The processor time of this process: user and system, fields 14 and 15 of its line (proc(5)).
fn ticks() -> u64 {
    let line = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields = line.rsplit_once(')').expect("the name stands in brackets").1;
    let field = |number: usize| -> u64 {
        fields.split_whitespace().nth(number - 3).expect("proc(5)").parse().expect("a number of ticks")
    };
    field(14) + field(15)
}
