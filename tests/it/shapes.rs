//! Tensors of every shape: scalars, empty ones, large ones; cut into any parts and put together again.

use gradlane_core::Error;
use gradlane_core::types::Op;
use gradlane_tests::cluster::{Cluster, Tensor, all};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::random::Random;

matrix! {
    [locally, over_shm, over_quic]:
        a_scalar_and_an_empty_tensor_are_tensors,
        blobs_are_gathered_by_adding_them_to_nothing,
        the_size_of_parts_does_not_change_a_bit,
        a_tensor_that_is_changed_while_it_is_under_way_does_no_harm_to_others;
}

fn a_scalar_and_an_empty_tensor_are_tensors(over: Over) {
    let cluster = Cluster::start(over, 3, 2);
    let sums = all(&cluster.workers, |engine| {
        let rank = engine.rank().0;
        let mut scalar = Tensor::shaped("loss", vec![], vec![f64::from(rank)]);
        let mut empty = Tensor::shaped("nothing", vec![3, 0, 5], Vec::<f64>::new());
        assert_eq!(empty.reduce(engine, Op::Sum), Ok(()));
        let reduce = |scalar: &mut Tensor<f64>, op| {
            scalar.data[0] = f64::from(rank);
            scalar.reduce(engine, op).unwrap();
            scalar.data[0]
        };
        [Op::Sum, Op::Mean, Op::Min, Op::Max].map(|op| reduce(&mut scalar, op))
    });
    assert_eq!(sums, [[3.0, 1.0, 0.0, 2.0]; 3]);
}

fn blobs_are_gathered_by_adding_them_to_nothing(over: Over) {
    let cluster = Cluster::start(over, 3, 1);
    let blobs: [&[u8]; 3] = [b"first", b"", b"the third"];
    let gathered = all(&cluster.workers, |engine| {
        let rank = engine.rank().0 as usize;
        let mut lengths = Tensor::new("lengths", vec![0_i64; 3]);
        lengths.data[rank] = blobs[rank].len() as i64;
        lengths.reduce(engine, Op::Sum).unwrap();
        let before: i64 = lengths.data[..rank].iter().sum();
        let mut all = Tensor::new("blobs", vec![0_u8; lengths.data.iter().sum::<i64>() as usize]);
        all.data[before as usize..][..blobs[rank].len()].copy_from_slice(blobs[rank]);
        all.reduce(engine, Op::Sum).unwrap();
        String::from_utf8(all.data).unwrap()
    });
    assert_eq!(gathered, ["firstthe third"; 3]);
}

fn the_size_of_parts_does_not_change_a_bit(over: Over) {
    const LEN: usize = 300_007;
    let sums = [("64 KiB", "0"), ("1 MiB", "1 MiB"), ("64 MiB", "256 KiB")].map(|(partition, fuse)| {
        // Two workers: a sum of two is the same in either order.
        let cluster = Cluster::with(over, 2, 3, &[("partition_bytes", partition), ("fuse_bytes", fuse)]);
        let sums = all(&cluster.workers, |engine| {
            let mut random = Random::new(u64::from(engine.rank().0));
            let mut tensor = Tensor::new("a", (0..LEN).map(|_| random.unit() as f32).collect());
            tensor.reduce(engine, Op::Mean).unwrap();
            tensor.data
        });
        assert_eq!(sums[0], sums[1]);
        sums.into_iter().next().expect("there is a worker")
    });
    assert_eq!(sums[0], sums[1]);
    assert_eq!(sums[0], sums[2]);
}

fn a_tensor_that_is_changed_while_it_is_under_way_does_no_harm_to_others(over: Over) {
    const LEN: usize = 1 << 20;
    let cluster = Cluster::start(over, 2, 1);
    let sums = all(&cluster.workers, |engine| {
        let mut changed = Tensor::new("changed", vec![1_f32; LEN]);
        let mut other = Tensor::new("other", vec![1_f32; LEN]);
        let [first, second] = [changed.push_pull(engine, Op::Sum).unwrap(), other.push_pull(engine, Op::Sum).unwrap()];
        for index in 0..LEN {
            scribble(&mut changed.data, index);
        }
        // Whatever bytes were on their way. Over a network they have a checksum, and a contribution that does not fit its own is told.
        let outcome = first.wait(None);
        let checked = over == Over::Quic && matches!(outcome, Err(Error::Checksum { .. }));
        assert!(outcome.is_ok() || checked, "{outcome:?}");
        assert_eq!(second.wait(None), Ok(()));
        other.data
    });
    assert!(sums.iter().flatten().all(|sum| *sum == 2.0));
}

#[expect(unsafe_code, reason = "breaks the promise of a region on purpose")]
fn scribble(data: &mut [f32], index: usize) {
    // SAFETY: within the slice. The engine reads the element meanwhile, which nobody may do to a region; a number in four aligned bytes
    // is read before or after, and both are numbers.
    unsafe { std::ptr::write_volatile(&raw mut data[index], 9.0) }
}
