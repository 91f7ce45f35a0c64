//! What names and sums leave behind: nothing. The long form is `make test-lasting`.

use gradlane_core::Result;
use gradlane_core::engine::Engine;
use gradlane_core::types::Op;
use gradlane_tests::allocation::{Counting, bytes_held};
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor, all};
use gradlane_tests::over::Over;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a sum may leave behind, on average. What is kept in any case does not grow with the sums, and is far less in all.
const LEFT_OF_A_SUM_BYTES_MAX: i64 = 100;

/// One test, because others would change the memory of the process.
#[test]
fn names_that_end_and_sums_leave_nothing_behind() {
    a_small_leak_is_found();
    for over in [Over::Local, Over::Shm, Over::Quic] {
        println!("names that end, {over}:");
        use_names_that_end(over);
        println!("sums, {over}:");
        add(over);
    }
    add_a_large_one();
}

/// A tensor of 1 GiB in the long form: it loads all servers alike, and its sum is right.
fn add_a_large_one() {
    const SERVERS: u32 = 3;
    let bytes = number("LASTING_LARGE_BYTES", 16 << 20);
    let cluster = Cluster::start(Over::Quic, 1, SERVERS);
    // Whole numbers, which floats hold exactly.
    let value = |index: usize| (index % (1 << 24)) as f32;
    let mut tensor = Tensor::new("large", (0..bytes as usize / 4).map(value).collect());
    tensor.reduce(&cluster.workers[0], Op::Sum).unwrap();
    assert!(tensor.data.iter().enumerate().all(|(index, sum)| *sum == value(index)));
    for server in cluster.embedded.servers() {
        let share = server.stats().received_bytes() as f64 / (bytes as f64 / f64::from(SERVERS));
        println!("a sum of {} MiB: {share:.3} of an equal share", bytes >> 20);
        // One part of 4 MiB more than others makes 2 % of a GiB, and 75 % of 16 MiB.
        assert!((share - 1.0).abs() < 0.05 + (4 << 20) as f64 * f64::from(SERVERS) / bytes as f64, "{share}");
    }
}

/// Sums of one step.
const TENSORS: u64 = 100;

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
    let steps = number("LASTING_SUMS", 50_000) / TENSORS;
    let cluster = Cluster::start(over, 2, 1);
    let grown = stays_flat(steps, |from, to| {
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
    let left = left_of_a_sum(grown, steps);
    println!("{left} bytes are left of a sum");
    assert!(left < LEFT_OF_A_SUM_BYTES_MAX, "{left} bytes are left of a sum {over}");
}

/// The count finds a leak of 300 bytes a sum, of which 10,000 sums of each half are too small for the growth of resident memory.
fn a_small_leak_is_found() {
    let steps = 200;
    let mut leaked = Vec::new();
    let grown = stays_flat(steps, |from, to| {
        leaked.extend((from..to).flat_map(|_| (0..TENSORS).map(|_| vec![1_u8; 300])));
    });
    assert!(left_of_a_sum(grown, steps) >= 300, "{grown} bytes");
}

/// The bytes that are left of a sum, on average over the second half of so many steps.
fn left_of_a_sum(grown_bytes: i64, steps: u64) -> i64 {
    grown_bytes / i64::try_from(steps / 2 * TENSORS).expect("few")
}

/// Runs `work` from 0 to `end`. In the second half the memory of this process, which is also the server's, must not grow. Returns by how many
/// bytes what was allocated grew in the second half.
fn stays_flat(end: u64, mut work: impl FnMut(u64, u64)) -> i64 {
    /// What the allocator may keep for itself; in the long form, less than 200 bytes a name.
    const GROWTH_MAX: u64 = 8 << 20;
    work(0, end / 2);
    let (before, held) = (resident_bytes(), bytes_held());
    work(end / 2, end);
    let (after, grown) = (resident_bytes(), bytes_held() - held);
    println!("{end}: {:.1} MiB, then {:.1} MiB", before as f64 / (1 << 20) as f64, after as f64 / (1 << 20) as f64);
    assert!(after < before + GROWTH_MAX, "from {before} to {after} bytes");
    grown
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
