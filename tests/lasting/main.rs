//! What names and sums leave behind: nothing. The long form is `make test-lasting`.

use gradlane_core::Result;
use gradlane_core::engine::Engine;
use gradlane_core::types::Op;
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor, all};
use gradlane_tests::over::Over;

/// One test, because others would change the memory of the process.
#[test]
fn names_that_end_and_sums_leave_nothing_behind() {
    for over in [Over::Local, Over::Shm, Over::Quic] {
        println!("names that end, {over}:");
        use_names_that_end(over);
        println!("sums, {over}:");
        add(over);
    }
}

fn use_names_that_end(over: Over) {
    let names = number("LASTING_NAMES", 1500);
    let cluster = Cluster::start(over, 2, 1);
    stays_flat(names, |from, to| {
        all(&cluster.workers, |engine| {
            for index in from..to {
                let name = format!("metric of step {index}");
                sum(engine, &name, 16).unwrap();
                engine.undeclare(&[name], Some(PATIENCE)).unwrap();
            }
        });
    });
}

fn add(over: Over) {
    const TENSORS: u64 = 100;
    let steps = number("LASTING_SUMS", 50_000) / TENSORS;
    let cluster = Cluster::start(over, 2, 1);
    stays_flat(steps, |from, to| {
        all(&cluster.workers, |engine| {
            let mut tensors: Vec<Tensor> =
                (0..TENSORS).map(|index| Tensor::new(&index.to_string(), vec![0_f32; 16])).collect();
            for step in from..to {
                tensors.iter_mut().for_each(|tensor| tensor.data.fill((step % 1000) as f32));
                let begun: Vec<_> =
                    tensors.iter_mut().map(|tensor| tensor.push_pull(engine, Op::Sum).unwrap()).collect();
                begun.iter().for_each(|handle| handle.wait(Some(PATIENCE)).unwrap());
                assert!(tensors.iter().all(|tensor| tensor.data == [2.0 * (step % 1000) as f32; 16]));
            }
        });
    });
}

/// Runs `work` from 0 to `end`. In the second half the memory of this process, which is also the server's, must not grow.
fn stays_flat(end: u64, mut work: impl FnMut(u64, u64)) {
    /// What the allocator may keep for itself; in the long form, less than 200 bytes a name.
    const GROWTH_MAX: u64 = 8 << 20;
    work(0, end / 2);
    let before = resident_bytes();
    work(end / 2, end);
    let after = resident_bytes();
    println!("{end}: {:.1} MiB, then {:.1} MiB", before as f64 / (1 << 20) as f64, after as f64 / (1 << 20) as f64);
    assert!(after < before + GROWTH_MAX, "from {before} to {after} bytes");
}

fn sum(engine: &Engine, name: &str, len: usize) -> Result<()> {
    let mut tensor = Tensor::new(name, vec![1_f32; len]);
    tensor.reduce(engine, Op::Sum)?;
    assert_eq!(tensor.data, vec![2.0; len], "{name}");
    Ok(())
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("on Linux");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[expect(clippy::disallowed_methods, reason = "it is the test that is told, not Gradlane")]
fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).map_or(usual, |text| text.parse().expect("a number"))
}
