//! Codecs with error feedback: what one round loses comes with the next, on the workers and in the answers of the servers.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use gradlane_core::device::Device;
use gradlane_core::engine::{Engine, Submission};
use gradlane_core::types::{CodecSpec, Op};
use gradlane_tests::cluster::{Cluster, PATIENCE, SMALL_PARTS, Tensor, all};
use gradlane_tests::feedback::{Model, given, reduce};
use gradlane_tests::gated_device::TestDevice;
use gradlane_tests::over::Over;
use gradlane_tests::tap::{Fate, Tap};

use crate::actors::Job;

/// Many parts, the last one shorter.
const LEN: usize = 70_003;

#[test]
fn every_sum_is_that_of_the_scalar_model_on_all_workers_bit_for_bit() {
    for over in [Over::Shm, Over::Quic] {
        for workers in [2, 3] {
            let cluster = Cluster::with(over, workers, 2, &SMALL_PARTS);
            for text in ["bf16:feedback=1", "fp16:feedback=1", "bf16"] {
                let sums = all(&cluster.workers, |engine| {
                    (0..6).map(|round| reduce(engine, text, spec(text), round, LEN).unwrap()).collect::<Vec<_>>()
                });
                let mut model = Model::new(spec(text), workers as usize, LEN);
                for round in 0..6 {
                    let due = model.round(&of_all(workers, round));
                    for (rank, sums) in sums.iter().enumerate() {
                        assert!(
                            sums[round as usize] == due,
                            "{over:?}, {text}: round {round} of worker {rank} of {workers}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn what_was_delivered_differs_from_what_was_given_by_one_residual_however_many_rounds_there_are() {
    // The elements are the same in all rounds, so that what is lost without feedback adds up.
    const ROUNDS: u64 = 40;
    let worst = |engine: &Engine, text: &str, rounds: u64| {
        let workers = engine.size();
        let mut delivered = vec![0.0; LEN];
        for _ in 0..rounds {
            let sum = reduce(engine, text, spec(text), 0, LEN).unwrap();
            delivered.iter_mut().zip(sum).for_each(|(all, sum)| *all += f64::from(sum));
        }
        let given: Vec<Vec<f32>> = (0..workers).map(|rank| given(rank, 0, LEN)).collect();
        let due = |index: usize| rounds as f64 * given.iter().map(|given| f64::from(given[index])).sum::<f64>();
        delivered.iter().enumerate().map(|(index, all)| (all - due(index)).abs()).fold(0.0, f64::max)
    };
    for over in [Over::Shm, Over::Quic] {
        for workers in [2, 3] {
            let cluster = Cluster::with(over, workers, 2, &SMALL_PARTS);
            let gaps = all(&cluster.workers, |engine| {
                ["bf16:feedback=1", "int8:feedback=1", "bf16", "int8"].map(|text| worst(engine, text, ROUNDS))
            });
            for [bf16, int8, bf16_alone, int8_alone] in gaps {
                // Half a step of each worker's largest contribution, and of the largest sum: 4 and 12, with 8 bits or 254 steps.
                let one = f64::from(workers) * 4.0 / 256.0 + 12.0 / 256.0;
                assert!(bf16 <= one && int8 <= 2.0 * one, "{over:?}, {workers} workers: {bf16}, {int8}");
                assert!(bf16_alone > 4.0 * one && int8_alone > 4.0 * one, "{over:?}: {bf16_alone}, {int8_alone}");
            }
        }
    }
}

#[test]
fn rounds_that_all_workers_take_back_change_no_sum_that_comes_later() {
    for over in [Over::Shm, Over::Quic] {
        for text in ["bf16:feedback=1", "fp16:feedback=1"] {
            let cluster = Cluster::with(over, 2, 2, &SMALL_PARTS);
            let sums = all(&cluster.workers, |engine| {
                let reduce = |round| reduce(engine, "w", spec(text), round, LEN).unwrap();
                let mut sums = vec![reduce(0)];
                engine.hold_feedback("w").unwrap();
                for round in 1..7 {
                    for unused in 0..round % 3 {
                        reduce(100 * round + unused);
                        engine.take_back_feedback("w").unwrap();
                    }
                    sums.push(reduce(round));
                }
                sums
            });
            let mut model = Model::new(spec(text), 2, LEN);
            for round in 0..7 {
                let due = model.round(&of_all(2, round));
                assert!(sums.iter().all(|sums| sums[round as usize] == due), "{over:?}, {text}: round {round}");
            }
        }
    }
}

#[test]
fn a_link_that_is_cut_in_the_middle_of_a_push_gives_nothing_twice() {
    let cut = |push| if push % 7 == 0 { Fate::Cut } else { Fate::Stay };
    for over in [Over::Shm, Over::Quic] {
        let cluster = Cluster::tapped(over, 2, 2, &SMALL_PARTS, |transport| Arc::new(Tap::new(transport, cut)));
        let codec = spec("bf16:feedback=1");
        let sums = all(&cluster.workers, |engine| {
            (0..12).map(|round| reduce(engine, "w", codec, round, LEN).unwrap()).collect::<Vec<_>>()
        });
        let mut model = Model::new(codec, 2, LEN);
        for round in 0..12 {
            let due = model.round(&of_all(2, round));
            assert!(sums.iter().all(|sums| sums[round as usize] == due), "{over:?}: round {round}");
        }
        for engine in &cluster.workers {
            assert!(engine.metrics().repeats.load(Relaxed) > 0);
        }
    }
}

#[test]
fn the_owner_of_a_part_has_the_residual_of_its_machine() {
    let cluster = Cluster::on(Over::Quic, &["a", "a", "b", "b"], 2, &SMALL_PARTS);
    let codec = spec("bf16:feedback=1");
    let sums = all(&cluster.workers, |engine| {
        (0..4).map(|round| reduce(engine, "w", codec, round, LEN).unwrap()).collect::<Vec<_>>()
    });
    let mut model = Model::new(codec, 2, LEN);
    for round in 0..4 {
        let machine = |ranks: [u32; 2]| {
            let [first, second] = ranks.map(|rank| given(rank, round, LEN));
            first.iter().zip(second).map(|(first, second)| first + second).collect::<Vec<f32>>()
        };
        let due = model.round(&[(0, machine([0, 1])), (1, machine([2, 3]))]);
        assert!(sums.iter().all(|sums| sums[round as usize] == due), "round {round}");
    }
    let held: Vec<u64> = cluster.workers.iter().map(residual_bytes).collect();
    assert_eq!([held[0] + held[1], held[2] + held[3]], [4 * LEN as u64; 2], "{held:?}: once on each machine");
    assert!(held.iter().all(|bytes| *bytes > 0), "{held:?}: owners go round");
}

#[test]
fn a_job_goes_on_with_what_the_workers_and_servers_of_another_one_kept() {
    let codec = spec("bf16:feedback=1");
    let machines: &[&str] = &["a", "a", "b", "b"];
    let formed = |over, servers| match over {
        Over::Quic => Cluster::on(over, machines, servers, &SMALL_PARTS),
        _ => Cluster::with(over, 2, servers, &SMALL_PARTS),
    };
    for over in [Over::Shm, Over::Quic] {
        let rounds = |engine: &Engine, rounds: std::ops::Range<u64>| {
            rounds.map(|round| reduce(engine, "w", codec, round, LEN).unwrap()).collect::<Vec<_>>()
        };
        let before = formed(over, 2);
        let ranks = before.workers.len() as u32;
        let saved = all(&before.workers, |engine| {
            let sums = rounds(engine, 0..3);
            let answers = engine.answer_feedback(&["w"]).unwrap().remove(0);
            (sums, engine.feedback("w").unwrap(), answers)
        });
        drop(before);
        assert!(saved.iter().all(|(.., answers)| *answers == saved[0].2 && answers.iter().any(|byte| *byte != 0)));
        let after = formed(over, 3);
        let sums = all(&after.workers, |engine| {
            let (_, state, answers) = &saved[engine.rank().0 as usize];
            let Tensor { spec, .. } = Tensor::new("w", given(0, 0, LEN));
            engine.declare(vec![spec.with_codec(codec)], true, None).unwrap();
            engine.set_feedback("w", state).unwrap();
            engine.set_answer_feedback(&[("w", answers)]).unwrap();
            assert_eq!(engine.answer_feedback(&["w"]).unwrap(), std::slice::from_ref(answers));
            rounds(engine, 3..6)
        });
        let senders = 2;
        let mut model = Model::new(codec, senders, LEN);
        for round in 0..6 {
            let of_machine = |machine: u32| {
                let ranks = (0..ranks / 2).map(|rank| given(machine * ranks / 2 + rank, round, LEN));
                let add = |sum: Vec<f32>, more: Vec<f32>| sum.iter().zip(more).map(|(sum, more)| sum + more).collect();
                (machine as usize, ranks.reduce(add).unwrap())
            };
            let due = model.round(&[of_machine(0), of_machine(1)]);
            for (rank, (first, second)) in saved.iter().map(|(sums, ..)| sums).zip(&sums).enumerate() {
                let sum = if round < 3 { &first[round as usize] } else { &second[round as usize - 3] };
                assert!(*sum == due, "{over:?}: round {round} of worker {rank}");
            }
        }
    }
}

#[test]
fn the_host_encodes_what_a_device_has_if_there_is_feedback() {
    let devices = |_| Some(TestDevice::start() as Arc<dyn Device>);
    let cluster = Cluster::with_devices(Over::Quic, 2, 1, &SMALL_PARTS, devices);
    let codec = spec("bf16:feedback=1");
    let sums = all(&cluster.workers, |engine| {
        let round = |round| {
            let Tensor { spec, data } = Tensor::new("w", given(engine.rank().0, round, LEN));
            let mut tensor = Tensor { spec: spec.with_codec(codec), data };
            engine.push_pull(tensor.on_device(Op::Sum), |_| {}).unwrap().wait(Some(PATIENCE)).unwrap();
            tensor.data
        };
        (0..3).map(round).collect::<Vec<_>>()
    });
    let mut model = Model::new(codec, 2, LEN);
    for round in 0..3 {
        let due = model.round(&of_all(2, round));
        assert!(sums.iter().all(|sums| sums[round as usize] == due), "round {round}");
    }
}

#[test]
fn only_sums_and_means_use_a_residual() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    let codec = spec("bf16:feedback=1");
    all(&cluster.workers, |engine| {
        let value = 1.0_f32 + 1.0 / 512.0;
        let round = |op| {
            let Tensor { spec, data } = Tensor::new("w", vec![value]);
            let mut tensor = Tensor { spec: spec.with_codec(codec), data };
            tensor.reduce(engine, op).unwrap();
            tensor.data[0]
        };
        // 1 + 1/256 is as near to 1 as to the next number of bf16, 1 + 1/128.
        assert_eq!([round(Op::Mean), round(Op::Mean)], [1.0, 1.0]);
        assert_eq!([round(Op::Min), round(Op::Max), round(Op::WeightedMean)], [1.0; 3]);
        assert_eq!([round(Op::Mean), round(Op::Mean)], [1.0 + 1.0 / 128.0, 1.0]);
    });
}

#[test]
fn a_name_that_is_undeclared_gives_its_residual_back() {
    let cluster = Cluster::with(Over::Quic, 2, 1, &SMALL_PARTS);
    let codec = spec("int8:feedback=1");
    let mut first = Vec::new();
    for life in 0..2 {
        let sums = all(&cluster.workers, |engine| {
            let sums = [0, 1].map(|round| reduce(engine, "w", codec, round, LEN).unwrap());
            assert_eq!(residual_bytes(engine), 4 * LEN as u64);
            engine.undeclare(&["w".to_owned()], Some(PATIENCE)).unwrap();
            assert_eq!(residual_bytes(engine), 0, "life {life}");
            sums
        });
        first.push(sums);
    }
    assert!(first[0] == first[1], "the second life begins at zero");
}

#[test]
fn after_a_round_without_a_sum_the_next_one_begins_at_zero() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    let codec = spec("bf16:feedback=1");
    let given_up = Barrier::new(2);
    let sums = all(&cluster.workers, |engine| {
        let round = |timeout| {
            let Tensor { spec, data } = Tensor::new("w", vec![1.0_f32 + 1.0 / 512.0]);
            let mut tensor = Tensor { spec: spec.with_codec(codec), data };
            let submission = Submission { timeout, ..tensor.submission(Op::Mean) };
            engine.push_pull(submission, |_| {}).and_then(|handle| handle.wait(Some(PATIENCE))).map(|()| tensor.data[0])
        };
        assert_eq!(round(None), Ok(1.0));
        if engine.rank().0 == 0 {
            assert!(round(Some(Duration::from_millis(100))).is_err(), "the other worker has not come");
            given_up.wait();
        } else {
            given_up.wait();
            // If the contribution of the other worker came before that worker gave up, there is a sum.
            if let Ok(sum) = round(None) {
                assert_eq!(sum, 1.0);
            }
        }
        [(); 3].map(|()| round(None).unwrap())
    });
    // With what the failed round lost, or the round before it, the larger number would come earlier.
    assert_eq!(sums, [[1.0, 1.0, 1.0 + 1.0 / 128.0]; 2]);
}

#[test]
fn survivors_of_a_lost_worker_begin_at_zero_in_the_same_round() {
    for over in [Over::Shm, Over::Quic] {
        // So patient that silence cannot be what is heard of.
        let mut job = Job::start(over, 3, 1, &[("on_worker_loss", "continue"), ("dead_timeout", "1h")]);
        let mut model = Model::new(spec("bf16:feedback=1"), 3, 5_000);
        for round in 0..8 {
            let ranks = if round < 3 { &[0, 1, 2][..] } else { &[0, 1] };
            if round == 3 {
                let pid = job.puppets[2].pid();
                job.puppets[2].signal("KILL");
                job.embedded.coordinator().report_death(pid, "worker 2 was killed by signal 9".to_owned());
            }
            for rank in ranks {
                job.puppets[*rank].order(&format!("fed bf16:feedback=1 {round}"));
            }
            let due =
                model.round(&ranks.iter().map(|rank| (*rank, given(*rank as u32, round, 5_000))).collect::<Vec<_>>());
            let due: Vec<u8> = due.iter().flat_map(|element| element.to_le_bytes()).collect();
            for rank in ranks {
                let said = job.puppets[*rank].line();
                assert_eq!(
                    said,
                    format!("sum {:08x}", crc32c::crc32c(&due)),
                    "{over:?}: round {round} of worker {rank}"
                );
                assert_eq!(job.puppets[*rank].line(), "ok");
            }
        }
    }
}

fn spec(text: &str) -> CodecSpec {
    text.parse().unwrap()
}

/// What each worker gives to a round.
fn of_all(workers: u32, round: u64) -> Vec<(usize, Vec<f32>)> {
    (0..workers).map(|rank| (rank as usize, given(rank, round, LEN))).collect()
}

fn residual_bytes(engine: &Engine) -> u64 {
    engine.metrics().residual_bytes()
}
