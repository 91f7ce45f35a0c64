//! Memory of CUDA devices, reduced among the ranks of a machine by NCCL: sums are exact, and whatever breaks ends for everybody. Driver and
//! NCCL are the fakes; the code that calls them is the one that calls the real ones. What concerns the whole of a process, such as faults
//! and a violent end, happens in processes of its own.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::collective::Goal;
use gradlane_core::config::Config;
use gradlane_core::local::PrivateSocket;
use gradlane_core::mem::Ordinal;
use gradlane_core::reduce::Kernels;
use gradlane_core::runtime::Clock;
use gradlane_core::types::{DType, Op, WorkerId};
use gradlane_tests::cluster::PATIENCE;
use gradlane_tests::devices::{DeviceRank, Wanted, config, element, ended};
use gradlane_tests::fakes;
use gradlane_tests::patience::elapsed;

use crate::device_teams::{CROWD, Team};

/// Longer than any pause of a busy machine between two calls: a wait that is missing shows every time.
const LAG_US: u64 = 100_000;

#[test]
fn every_reduction_of_every_type_is_exact() {
    for count in [2, 4] {
        let ranks = ranks(count, &config());
        let digits = |index: usize| (0..count).map(move |rank| digit(rank, index));
        let mut key = 0;
        for (dtype, op) in DType::ALL.into_iter().flat_map(|dtype| OPS.map(|op| (dtype, op))) {
            if op.check(dtype).is_err() {
                continue;
            }
            let expected: Vec<u8> = (0..LEN)
                .flat_map(|index| {
                    let (least, most) = (digits(index).fold(f64::MAX, f64::min), digits(index).fold(0.0, f64::max));
                    let value = match op {
                        Op::Sum => digits(index).sum(),
                        Op::Mean if dtype.is_float() => digits(index).sum::<f64>() / count as f64,
                        Op::Mean => (digits(index).sum::<f64>() / count as f64).floor(),
                        Op::Min => least,
                        Op::Max => most,
                        Op::WeightedMean => {
                            digits(index).zip(WEIGHTS).map(|(x, weight)| x * weight / total(count)).sum()
                        }
                        Op::Broadcast { root } => digit(root.0 as usize, index),
                    };
                    element(dtype, value)
                })
                .collect();
            let found = each(&ranks, |rank, member| {
                // What has no weight is not looked at.
                let is_left_out = op == Op::WeightedMean && WEIGHTS[rank] == 0.0;
                let data = if is_left_out { of_each(dtype, |_| f64::NAN) } else { contribution(rank, dtype) };
                let address = member.place(&data);
                let wanted = Wanted { op, weight: WEIGHTS[rank], ..Wanted::sum(key, dtype) };
                let weights = member.reduce(&wanted, &[(address, data.len())]).unwrap();
                (weights, member.bytes(address, data.len()))
            });
            assert!(found.iter().all(|(weights, _)| *weights == total(count)), "{op} of {dtype}: {found:?}");
            assert!(found.iter().all(|(_, bytes)| *bytes == expected), "{op} of {dtype} among {count}");
            key += 1;
        }
    }
}

#[test]
fn parts_of_several_runs_go_elsewhere_and_leave_the_contribution() {
    let ranks = ranks(2, &config());
    let lens = [4 * LEN, 0, 12];
    each(&ranks, |rank, member| {
        let bytes = |value: f64| element(DType::F32, value).repeat(LEN + 3);
        let source = member.place(&bytes(digit(rank, 0)));
        let mut next = source;
        let from = lens.map(|len| {
            let at = next;
            next += len as u64;
            (at, len)
        });
        let to = lens.map(|len| (member.place(&vec![0xff; len]), len));
        let outcome = member.begin_after(&Wanted::sum(0, DType::F32), &from, &to, member.mark(0));
        ended(&outcome).unwrap();
        let found: Vec<u8> = to.iter().flat_map(|(address, len)| member.bytes(*address, *len)).collect();
        assert_eq!(found, bytes(digit(0, 0) + digit(1, 0)));
        assert_eq!(member.bytes(source, found.len()), bytes(digit(rank, 0)));
    });
}

#[test]
fn an_owner_has_what_all_gave_and_brings_back_what_it_made_of_it() {
    let ranks = ranks(4, &config());
    let lens = each(&ranks, |rank, member| {
        let data = contribution(rank, DType::BF16);
        let runs = [(member.place(&data), data.len())];
        for (key, owner) in (0..4).enumerate() {
            let (reduce, back) = there_and_back(key as u64, owner, Op::Mean);
            member.reduce(&reduce, &runs).unwrap();
            // A mean is divided once, by whoever knows all workers.
            let sum = of_each(DType::BF16, |index| (0..4).map(|rank| digit(rank, index)).sum());
            let is_owner = rank == owner as usize;
            assert_eq!(member.bytes(runs[0].0, data.len()), if is_owner { sum.clone() } else { data.clone() });
            member.reduce(&back, &runs).unwrap();
            assert_eq!(member.bytes(runs[0].0, data.len()), sum, "rank {rank}, from {owner}");
            member.control.produce(i32::from(member.device.0), 0, runs[0].0, &data);
        }
        data.len()
    });
    assert_eq!(lens, [2 * LEN; 4]);
}

#[test]
fn what_a_root_shows_comes_to_the_owner_and_to_nobody_else() {
    let ranks = ranks(3, &config());
    for (key, (root, expected)) in [(0, [0, 0, 2]), (1, [0, 1, 2]), (9, [0, 1, 2])].into_iter().enumerate() {
        let found = each(&ranks, |rank, member| {
            let data = contribution(rank, DType::I64);
            let address = member.place(&data);
            let (reduce, _) = there_and_back(key as u64, 1, Op::Broadcast { root: WorkerId(root) });
            member.reduce(&reduce, &[(address, data.len())]).unwrap();
            member.bytes(address, data.len())
        });
        assert_eq!(found, expected.map(|rank| contribution(rank, DType::I64)), "root {root}");
    }
}

#[test]
fn many_parts_are_reduced_whatever_the_order_in_which_ranks_come() {
    let ranks = ranks(4, &config());
    let parts = 120;
    each(&ranks, |rank, member| {
        let addresses: Vec<u64> =
            (0..parts).map(|part| member.place(&element(DType::I32, digit(rank, part)))).collect();
        let outcomes: Vec<_> = (0..parts)
            .map(|step| {
                let part = (step * [1, 7, 11, 119][rank]) % parts;
                member.begin(&Wanted::sum(part as u64, DType::I32), &[(addresses[part], 4)])
            })
            .collect();
        outcomes.iter().for_each(|outcome| assert!(ended(outcome).is_ok()));
        for (part, address) in addresses.into_iter().enumerate() {
            let expected = element(DType::I32, (0..4).map(|rank| digit(rank, part)).sum());
            assert_eq!(member.bytes(address, 4), expected, "part {part}");
        }
    });
}

#[test]
fn what_is_reduced_is_what_the_marked_stream_makes() {
    let ranks = ranks(2, &config());
    each(&ranks, |rank, member| {
        // So that nothing that is started for the first time hides a wait that is missing.
        let warm = member.place(&[0; 4]);
        member.reduce(&Wanted::sum(0, DType::F32), &[(warm, 4)]).unwrap();
        let data = contribution(rank, DType::F32);
        let runs = [(member.place(&vec![0; data.len()]), data.len())];
        let slow = member.control.user_stream(i32::from(member.device.0));
        member.control.lag(slow, LAG_US);
        member.control.produce(i32::from(member.device.0), slow, runs[0].0, &data);
        let outcome = member.begin_after(&Wanted::sum(1, DType::F32), &runs, &runs, member.mark(slow));
        ended(&outcome).unwrap();
        let expected = of_each(DType::F32, |index| digit(0, index) + digit(1, index));
        assert_eq!(member.bytes(runs[0].0, data.len()), expected);
    });
}

#[test]
fn ranks_with_several_devices_reduce_on_each_with_its_like() {
    let mut ranks = ranks(2, &config());
    let devices: Vec<[Ordinal; 2]> = ranks.iter().map(|rank| [rank.device, Ordinal(fakes::device().1)]).collect();
    // So that the first is the first on both.
    each(&ranks, |_, member| member.reduce(&Wanted::sum(0, DType::I32), &[(member.place(&[0; 4]), 4)]).unwrap());
    for round in 1..7 {
        for (member, devices) in ranks.iter_mut().zip(&devices) {
            member.device = devices[round % 2];
        }
        each(&ranks, |rank, member| {
            let runs = [(member.place(&element(DType::I32, digit(rank, round))), 4)];
            member.reduce(&Wanted::sum(round as u64, DType::I32), &runs).unwrap();
            let expected = element(DType::I32, digit(0, round) + digit(1, round));
            assert_eq!(member.bytes(runs[0].0, 4), expected, "round {round}");
        });
    }
}

#[test]
fn ranks_that_disagree_about_which_of_their_devices_it_is_both_learn_it() {
    let mut ranks = ranks(2, &config());
    each(&ranks, |_, member| member.reduce(&Wanted::sum(0, DType::F32), &[(member.place(&[0; 4]), 4)]).unwrap());
    ranks[0].device = Ordinal(fakes::device().1);
    let errors = each(&ranks, |_, member| {
        member.reduce(&Wanted::sum(1, DType::F32), &[(member.place(&[0; 4]), 4)]).unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        assert!(matches!(&error, Error::Mismatch { field, .. } if field == "device"), "{text}");
        assert!(text.contains("cuda second that it used") && text.contains("cuda first that it used"), "{text}");
    }
}

#[test]
fn a_rank_has_so_many_devices_at_most_and_is_told_what_to_do() {
    let mut ranks = ranks(2, &config());
    let rank = &mut ranks[0];
    let mut waiting = Vec::new();
    for key in 0..8 {
        waiting.push(rank.begin(&Wanted::sum(key, DType::F32), &[(rank.place(&[0; 4]), 4)]));
        rank.device = Ordinal(fakes::device().1);
    }
    let error = rank.reduce(&Wanted::sum(8, DType::F32), &[(rank.place(&[0; 4]), 4)]).unwrap_err();
    let Error::InvalidArgument { what, hint } = &error else { panic!("{error}") };
    assert!(what.contains("number 9") && hint.contains("local_reduce=off"), "{error}");
}

#[test]
fn a_mean_of_integers_is_that_of_host_memory_below_zero_and_where_the_sum_wraps() {
    let ranks = ranks(2, &config());
    for (key, dtype) in [DType::I8, DType::U8, DType::I32, DType::I64].into_iter().enumerate() {
        let contributions = [0, 1].map(|rank| integers(rank, dtype));
        let expected = mean_in_host_memory(dtype, &contributions);
        let found = each(&ranks, |rank, member| {
            let (first, second) = contributions[rank].split_at(LEN / 16 * 8);
            let runs = [first, &[], second].map(|run| (member.place(run), run.len()));
            let wanted = Wanted { op: Op::Mean, ..Wanted::sum(key as u64, dtype) };
            member.reduce(&wanted, &runs).unwrap();
            runs.iter().flat_map(|(address, len)| member.bytes(*address, *len)).collect::<Vec<u8>>()
        });
        assert!(found.iter().all(|found| *found == expected), "{dtype}");
    }
}

#[test]
fn without_the_library_every_rank_is_told_what_was_searched_and_what_to_do() {
    let config = Config { nccl_lib: Some("/nowhere/libnccl.so.2".into()), ..config() };
    let ranks = ranks(2, &config);
    let errors = each(&ranks, |_, member| {
        member.reduce(&Wanted::sum(0, DType::F32), &[(member.place(&[0; 4]), 4)]).unwrap_err()
    });
    for error in errors {
        let Error::FailedPrecondition { what, hint } = &error else { panic!("{error}") };
        assert!(what.contains("/nowhere/libnccl.so.2") && hint.contains("local_reduce=off"), "{error}");
    }
}

#[test]
fn a_library_that_is_too_old_is_named_with_what_is_needed() {
    let mut team = Team::start(2, &[("FAKENCCL_VERSION", "21903")]);
    for outcome in team.all("sum 0") {
        assert!(outcome.contains("NCCL 2.19.3") && outcome.contains("2.20.0"), "{outcome}");
    }
}

#[test]
fn ranks_in_processes_reduce_and_leave_in_order() {
    let mut team = Team::start(4, &[("FAKENCCL_INIT_US", "20000"), ("FAKENCCL_LAUNCH_US", "500")]);
    for round in 0..5 {
        assert_eq!(team.all(&format!("sum {round}")), ["ok 4"; 4]);
    }
    assert_eq!(team.all("leave"), ["left, 0 communicators are alive"; 4]);
}

/// A kernel of NCCL that waits for another rank has the only place, and every call that issues work is slow.
#[test]
fn devices_that_run_one_kernel_at_a_time_and_slow_calls_change_no_sum() {
    let mut team = Team::start(2, &[("FAKECUDA_SLOTS", "1"), ("FAKECUDA_CALL_US", "100")]);
    for round in [0, 2, 4] {
        assert_eq!(team.all(&format!("sum {round}")), ["ok 2"; 2]);
        assert_eq!(team.all(&format!("mean {}", round + 1)), ["ok 2"; 2], "a kernel of ours comes behind that of NCCL");
    }
    assert_eq!(team.all("leave"), ["left, 0 communicators are alive"; 2]);
    let mut team = Team::crowded(2, &[("FAKECUDA_SLOTS", "1"), ("FAKECUDA_CALL_US", "100")]);
    let eights = format!("{CROWD} exact in {} groups with {} ncclAllReduce", CROWD / 8, CROWD / 3);
    assert_eq!(team.all("finish"), vec![eights; 2]);
}

#[test]
fn a_mean_of_integers_is_divided_after_the_sum_however_late_nccl_begins_with_it() {
    let mut team = Team::start(3, &[("FAKENCCL_LAUNCH_US", &LAG_US.to_string())]);
    for round in 0..3 {
        assert_eq!(team.all(&format!("mean {round}")), ["ok 3"; 3]);
    }
}

#[test]
fn a_rank_that_is_killed_is_lost_to_all_that_is_under_way() {
    let mut team = Team::start(3, &[]);
    assert_eq!(team.all("sum 0"), ["ok 3"; 3]);
    // On the devices of all, and waiting for what the last one does not make.
    team.0[0].order("begin 1");
    team.0[1].order("begin 1");
    team.0[2].order("begin-late 1");
    for rank in &mut team.0 {
        assert_eq!(rank.line(), "issued");
    }
    let clock = Clock::start();
    team.0[2].signal("KILL");
    for rank in &mut team.0[..2] {
        let line = rank.line();
        assert!(line.starts_with("lost worker 2: "), "{line}");
        rank.order("sum 2");
        let line = rank.line();
        assert!(line.starts_with("lost worker 2: "), "{line}");
    }
    let took = elapsed(clock);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn an_error_of_nccl_in_the_middle_ends_everything_with_its_cause() {
    let mut team = Team::start(2, &[("FAKENCCL_FAIL", "AllReduce:1=3@2")]);
    assert_eq!(team.all("sum 0"), ["ok 2"; 2]);
    // Who notices first tells the other, which says whose devices they are unless its own NCCL has said more.
    let typed = |outcome: &String| outcome.starts_with("device cuda:") || outcome.starts_with("lost worker ");
    let outcomes = team.all("sum 1");
    assert!(outcomes.iter().all(typed), "{outcomes:?}");
    assert!(outcomes.iter().any(|outcome| outcome.contains("code 3")), "{outcomes:?}");
    let later = team.all("sum 2");
    assert!(later.iter().all(typed), "there is no way back to order: {later:?}");
}

#[test]
fn a_call_that_nccl_refuses_ends_everything_with_its_words() {
    let mut team = Team::start(2, &[("FAKENCCL_FAIL", "ncclAllReduce=5")]);
    for outcome in team.all("sum 0") {
        let told =
            outcome.starts_with("device cuda:") && outcome.contains("ncclAllReduce") && outcome.contains("code 5");
        assert!(told || outcome.starts_with("lost worker "), "{outcome}");
    }
}

#[test]
fn what_is_ready_at_once_is_exact_in_few_groups() {
    for ranks in [2, 4] {
        let mut team = Team::crowded(ranks, &[("FAKENCCL_LAUNCH_US", "500")]);
        // A third of them are sums for all, each of a tensor of its own.
        let eights = format!("{CROWD} exact in {} groups with {} ncclAllReduce", CROWD / 8, CROWD / 3);
        assert_eq!(team.all("finish"), vec![eights; ranks]);
        assert_eq!(team.all("leave"), vec!["left, 0 communicators are alive"; ranks]);
    }
}

#[test]
fn the_parts_of_a_tensor_that_are_ready_at_once_are_summed_by_one_call() {
    let mut team = Team::held(2, &[]);
    assert_eq!(team.all("tensor 8"), ["ready"; 2], "32 MiB");
    assert_eq!(team.all("finish"), ["8 exact in 1 groups with 1 ncclAllReduce"; 2]);
}

#[test]
fn a_rank_that_is_killed_in_the_middle_of_a_group_is_lost_to_all_of_it() {
    let mut team = Team::crowded(3, &[]);
    // What held the others, and three of a group; the other ranks wait for this one's fourth.
    for (rank, order) in team.0.iter_mut().zip(["go-on", "go-on", "go-on 4"]) {
        rank.order(order);
    }
    assert!(team.0.iter_mut().all(|rank| rank.line() == "going"));
    team.0[2].signal("KILL");
    let [first, second] = [0, 1].map(|rank| {
        team.0[rank].order("outcomes");
        team.0[rank].line()
    });
    assert!(first.starts_with(&format!("{CROWD} lost worker 2: ")), "{first}");
    // It has no part in what the first rank sends the third.
    assert!(second.contains(" lost worker 2: "), "{second}");
}

#[test]
fn the_end_of_the_job_in_the_middle_of_a_group_ends_all_of_it_with_its_cause() {
    let mut team = Team::crowded(2, &[]);
    team.0[0].order("go-on");
    team.0[1].order("go-on 4");
    assert!(team.0.iter_mut().all(|rank| rank.line() == "going"));
    assert_eq!(team.all("abort"), ["aborted"; 2]);
    let outcomes = team.all("outcomes");
    // The other rank may hear of the first one's end before its own.
    assert!(outcomes[0].starts_with(&format!("{CROWD} Unavailable")), "{outcomes:?}");
    assert!(outcomes[0].contains("it is over"), "{outcomes:?}");
    assert!(!outcomes[1].contains(" ok "), "{outcomes:?}");
}

#[test]
fn an_error_of_nccl_in_the_middle_of_a_group_ends_all_of_it() {
    let mut team = Team::crowded(2, &[("FAKENCCL_FAIL", "Reduce:1=3@3")]);
    assert_eq!(team.all("go-on"), ["going"; 2]);
    let outcomes = team.all("outcomes");
    assert!(outcomes.iter().all(|outcome| !outcome.contains(" ok ")), "{outcomes:?}");
    assert!(
        outcomes.iter().any(|outcome| outcome.starts_with(&CROWD.to_string()) && outcome.contains("code 3")),
        "{outcomes:?}"
    );
}

#[test]
fn what_takes_longer_than_a_step_may_is_aborted() {
    let mut team = Team::start_with(2, Duration::from_secs(1), &[]);
    assert_eq!(team.all("sum 0"), ["ok 2"; 2]);
    team.0[0].order("begin 1");
    team.0[1].order("begin-late 1");
    let clock = Clock::start();
    for rank in &mut team.0 {
        assert_eq!(rank.line(), "issued");
    }
    for rank in &mut team.0 {
        let line = rank.line();
        // Both causes are named that a rank cannot tell from each other.
        let is_told = ["did not end within 1.0 s", "may hang", "another communicator on this device"];
        let in_time = line.starts_with("device cuda:") && is_told.iter().all(|words| line.contains(words));
        assert!(in_time || line.starts_with("lost worker "), "{line}");
    }
    let took = elapsed(clock);
    assert!(took < Duration::from_secs(20), "{took:?}");
}

const OPS: [Op; 6] = [Op::Sum, Op::Mean, Op::Min, Op::Max, Op::WeightedMean, Op::Broadcast { root: WorkerId(1) }];
/// Two of them make 4, four of them make 8: shares that every type holds.
const WEIGHTS: [f64; 4] = [1.0, 3.0, 0.0, 4.0];
/// Odd, and no multiple of anything.
const LEN: usize = 1001;

fn total(ranks: usize) -> f64 {
    WEIGHTS[..ranks].iter().sum()
}

/// What a rank contributes: each rank a digit of its own in base 4, so that a sum names everybody whose contribution is missing or was
/// counted twice, and small enough for every type.
fn digit(rank: usize, index: usize) -> f64 {
    f64::from((1 + (index % 2) as u32) << (2 * (rank % 3)))
}

fn of_each(dtype: DType, value: impl Fn(usize) -> f64) -> Vec<u8> {
    (0..LEN).flat_map(|index| element(dtype, value(index))).collect()
}

fn contribution(rank: usize, dtype: DType) -> Vec<u8> {
    of_each(dtype, |index| digit(rank, index))
}

/// Integers of which many are below zero and many are so large that their sums wrap.
fn integers(rank: usize, dtype: DType) -> Vec<u8> {
    let any = |index: usize| (index as i64 - 500).wrapping_mul(0x1234_5678_9abc_def1).rotate_left(8 * rank as u32);
    let numbers = (0..LEN).map(|index| if index % 2 == 0 { index as i64 / 2 - 250 } else { any(index) });
    numbers.flat_map(|number| number.to_le_bytes()[..dtype.bytes() as usize].to_vec()).collect()
}

fn mean_in_host_memory(dtype: DType, contributions: &[Vec<u8>]) -> Vec<u8> {
    let kernels = Kernels::portable();
    let mut sum = vec![0; contributions[0].len()];
    kernels.start(Op::Mean, dtype, 1.0, &contributions[0], &mut sum);
    contributions[1..].iter().for_each(|next| kernels.add(Op::Mean, dtype, 1.0, next, &mut sum));
    kernels.finish_in_place(Op::Mean, dtype, contributions.len() as f64, &mut sum);
    sum
}

fn there_and_back(key: u64, owner: u32, op: Op) -> (Wanted, Wanted) {
    let owner = WorkerId(owner);
    let wanted = |goal| Wanted { goal, op, ..Wanted::sum(key, DType::BF16) };
    let dtype = if matches!(op, Op::Broadcast { .. }) { DType::I64 } else { DType::BF16 };
    let reduce = Wanted { dtype, ..wanted(Goal::Reduce { owner }) };
    (reduce.clone(), Wanted { goal: Goal::Broadcast { owner }, ..reduce })
}

/// Ranks of a machine, in this process and with a device each.
fn ranks(count: usize, config: &Config) -> Ranks {
    let listener = PrivateSocket::listen(&std::env::temp_dir()).unwrap();
    let path = listener.path().to_owned();
    let mut listener = Some(listener);
    let members: Vec<_> = (0..count).map(|_| (listener.take(), fakes::device())).collect();
    std::thread::scope(|scope| {
        let joining: Vec<_> = members
            .into_iter()
            .enumerate()
            .map(|(me, (listener, device))| {
                let path = &path;
                scope.spawn(move || DeviceRank::join((me, count), (listener, path), device, config, PATIENCE).unwrap())
            })
            .collect();
        Ranks(joining.into_iter().map(|rank| rank.join().unwrap()).collect())
    })
}

/// Ranks that leave together, because whoever frees a communicator waits for the others.
struct Ranks(Vec<DeviceRank>);

impl Deref for Ranks {
    type Target = [DeviceRank];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Ranks {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        std::thread::scope(|scope| self.0.drain(..).for_each(|rank| drop(scope.spawn(move || drop(rank)))));
    }
}

fn each<T: Send>(ranks: &[DeviceRank], run: impl Fn(usize, &DeviceRank) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let run = &run;
        let running: Vec<_> =
            ranks.iter().enumerate().map(|(rank, member)| scope.spawn(move || run(rank, member))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
