//! Whole engines whose tensors lie on CUDA devices, several of them on a machine: reduced there, exchanged once a machine, and brought back.
//! Driver and NCCL are the fakes.

use std::sync::Arc;

use fakecuda::Control;
use gradlane_core::Error;
use gradlane_core::config::Config;
use gradlane_core::device::{CudaDevice, Device};
use gradlane_core::engine::{Engine, Memory, Submission};
use gradlane_core::mem::{DeviceRegion, Ordinal};
use gradlane_core::types::{DType, Op, Priority, TensorSpec, WorkerId};
use gradlane_tests::cluster::{Cluster, PATIENCE, SMALL_PARTS, Tensor, all, config};
use gradlane_tests::fakes;

const LEN: usize = 100_003;

#[test]
fn a_sum_of_devices_is_exchanged_once_a_machine_and_is_exact_on_all_of_them() {
    for machines in [&["a", "a"][..], &["a", "a", "b"], &["a", "a", "b", "b"]] {
        let (cluster, seats) = start(machines, &SMALL_PARTS);
        let count = machines.len();
        let root = WorkerId(u32::try_from(count - 1).unwrap());
        for op in [Op::Sum, Op::Mean, Op::Max, Op::Broadcast { root }] {
            let before = total(&cluster, "d2h_bytes");
            all(&cluster.workers, |engine| {
                let (rank, seat) = (engine.rank().0 as usize, &seats[engine.rank().0 as usize]);
                let contribution = |rank: usize| move |index: usize| (12 * (index % 50) * (rank + 1)) as f32;
                let ours: Vec<f32> = (0..LEN).map(contribution(rank)).collect();
                let (source, destination) = (seat.place(&ours), seat.place(&vec![-1.0; LEN]));
                let submission = |round: u64| {
                    let priority = Priority(i32::try_from(round).unwrap());
                    seat.submission(engine, &format!("{op}"), op, (source, destination), priority)
                };
                for round in 0..2 {
                    engine.reduce(submission(round), Some(PATIENCE)).unwrap();
                }
                let expected = (0..LEN).map(|index| {
                    let all = (0..count).map(|rank| contribution(rank)(index));
                    match op {
                        Op::Sum => all.sum(),
                        Op::Mean => all.sum::<f32>() / count as f32,
                        Op::Max => all.fold(0.0, f32::max),
                        _ => contribution(count - 1)(index),
                    }
                });
                assert_eq!(seat.values(destination), expected.collect::<Vec<f32>>(), "{op} on {machines:?}");
                assert_eq!(seat.values(source), ours, "what was contributed is still there");
            });
            let distinct = machines.iter().collect::<std::collections::BTreeSet<_>>().len();
            let senders = match op {
                _ if distinct == 1 => 0,
                Op::Broadcast { .. } => 1,
                _ => distinct,
            };
            let copied = total(&cluster, "d2h_bytes") - before;
            assert_eq!(copied, 2 * (senders * LEN * 4) as u64, "{op} on {machines:?}: a copy for each machine");
        }
    }
}

#[test]
fn ranks_of_a_machine_whose_tensors_lie_in_different_kinds_of_memory_all_learn_both() {
    for machines in [&["a", "a"][..], &["a", "a", "b"]] {
        let (cluster, seats) = start(machines, &[("step_timeout", "1 h")]);
        let errors = all(&cluster.workers, |engine| {
            let seat = &seats[engine.rank().0 as usize];
            let mut tensor = Tensor::new("w", vec![1_f32; LEN]);
            match engine.rank() {
                WorkerId(0) => tensor.reduce(engine, Op::Sum),
                _ => {
                    let place = seat.place(&tensor.data);
                    let submission = seat.submission(engine, "w", Op::Sum, (place, place), Priority(0));
                    engine.reduce(submission, Some(PATIENCE))
                }
            }
            .unwrap_err()
        });
        for error in errors {
            assert!(
                matches!(&error, Error::Mismatch { tensor, field, .. } if tensor == "w" && field == "device"),
                "{error}"
            );
        }
    }
}

/// What one rank has of a device.
struct Seat {
    control: Control,
    device: Ordinal,
}

impl Seat {
    fn place(&self, values: &[f32]) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let address = self.control.allocate(i32::from(self.device.0), bytes.len());
        self.control.produce(i32::from(self.device.0), 0, address, &bytes);
        address
    }

    fn values(&self, address: u64) -> Vec<f32> {
        let bytes = self.control.consume(i32::from(self.device.0), 0, address, 4 * LEN);
        bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap())).collect()
    }

    fn submission(
        &self,
        engine: &Engine,
        name: &str,
        op: Op,
        (source, destination): (u64, u64),
        priority: Priority,
    ) -> Submission {
        let device = engine.device().expect("it was given one");
        let memory = |address| Memory::Device {
            region: DeviceRegion::new(self.device, address, 4 * LEN),
            after: device.mark(self.device, 0).unwrap(),
        };
        Submission {
            tensor: TensorSpec { name: name.to_owned(), dtype: DType::F32, shape: vec![LEN as u64] },
            source: memory(source),
            destination: memory(destination),
            op,
            weight: 1.0,
            priority,
            timeout: None,
        }
    }
}

/// Workers on the machines of these names, with a device each, and a server.
fn start(machines: &[&str], settings: &[(&str, &str)]) -> (Cluster, Vec<Seat>) {
    let seat = |_: &&str| {
        let (control, ordinal) = fakes::device();
        Seat { control, device: Ordinal(ordinal) }
    };
    let seats: Vec<Seat> = machines.iter().map(seat).collect();
    let [cuda, nccl] = [fakes::fakecuda(), fakes::fakenccl()].map(|path| path.to_str().unwrap().to_owned());
    let settings = [&[("cuda_lib", cuda.as_str()), ("nccl_lib", nccl.as_str())], settings].concat();
    let config: Config = config(&settings);
    let device = |_| Some(Arc::new(CudaDevice::load(&config).unwrap()) as Arc<dyn Device>);
    (Cluster::on_with_devices(machines, 1, &settings, device), seats)
}

fn total(cluster: &Cluster, name: &str) -> u64 {
    let value = |engine: &Engine| engine.metrics().snapshot().into_iter().find(|(other, _)| *other == name).unwrap().1;
    cluster.workers.iter().map(value).sum()
}
