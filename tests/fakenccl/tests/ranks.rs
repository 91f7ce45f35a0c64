//! What ranks of one machine get from each other. All tests share one process; each rank has a device of its own.

#![expect(unsafe_code, reason = "NCCL's interface is C")]

#[expect(dead_code, reason = "shared with a test that needs less of it")]
mod team;

use std::ffi::c_int;
use std::ptr::null_mut;

use half::{bf16, f16};
use team::{Config, F32, SUM, apart, cu, libraries, team, unique_id};

/// More than two steps of an operation.
const MANY: usize = 300_000;

#[test]
fn the_library_introduces_itself() {
    let (nccl, _) = libraries();
    let mut version = 0;
    assert_eq!((nccl.ncclGetVersion)(&mut version), 0);
    assert_eq!(version, 22_809);
    assert_ne!(unique_id(&nccl).0, unique_id(&nccl).0);
}

#[test]
fn a_communicator_knows_its_ranks_and_devices() {
    let said = team(2, |member| {
        let [mut count, mut rank, mut device]: [c_int; 3] = [0; 3];
        assert_eq!((member.nccl.ncclCommCount)(member.comm, &mut count), 0);
        assert_eq!((member.nccl.ncclCommUserRank)(member.comm, &mut rank), 0);
        assert_eq!((member.nccl.ncclCommCuDevice)(member.comm, &mut device), 0);
        (count, rank, device == member.device)
    });
    assert_eq!(said, [(2, 0, true), (2, 1, true)]);
}

#[test]
fn all_ranks_get_the_sum_of_a_tensor_that_needs_several_steps() {
    for ranks in [1, 2, 4] {
        let sums = team(ranks, |member| {
            let address = member.floats((0..MANY).map(|at| (at % 1000) as f32 + member.rank as f32));
            assert_eq!(member.all_reduce(address, MANY), 0);
            member.read(address, MANY)
        });
        let more = (0..ranks).sum::<usize>();
        let expected: Vec<f32> = (0..MANY).map(|at| (at % 1000 * ranks + more) as f32).collect();
        assert!(sums.iter().all(|sum| *sum == expected), "{ranks} ranks");
    }
}

#[test]
fn every_element_type_is_combined_in_every_way() {
    // Of each type 3 and 5, then their sum, product, maximum, minimum and average.
    fn elements<T: Copy, const N: usize>(
        values: [f64; 7],
        of: impl Fn(f64) -> T,
        bytes: impl Fn(T) -> [u8; N],
    ) -> Vec<Vec<u8>> {
        values.into_iter().map(|value| bytes(of(value)).to_vec()).collect()
    }
    let values = [3.0, 5.0, 8.0, 15.0, 5.0, 3.0, 4.0];
    let table = [
        (0, elements(values, |value| value as i8, i8::to_ne_bytes)),
        (1, elements(values, |value| value as u8, u8::to_ne_bytes)),
        (2, elements(values, |value| value as i32, i32::to_ne_bytes)),
        (3, elements(values, |value| value as u32, u32::to_ne_bytes)),
        (4, elements(values, |value| value as i64, i64::to_ne_bytes)),
        (5, elements(values, |value| value as u64, u64::to_ne_bytes)),
        (6, elements(values, f16::from_f64, f16::to_ne_bytes)),
        (7, elements(values, |value| value as f32, f32::to_ne_bytes)),
        (8, elements(values, |value| value, f64::to_ne_bytes)),
        (9, elements(values, bf16::from_f64, bf16::to_ne_bytes)),
    ];
    team(2, |member| {
        for (dtype, values) in &table {
            for op in 0..5 {
                let own = &values[member.rank];
                let (send, receive) = (member.device(own), member.device(own));
                let code = (member.nccl.ncclAllReduce)(send, receive, 1, *dtype, op, member.comm, member.stream);
                assert_eq!(code, 0);
                let got = member.bytes(receive, own.len());
                assert_eq!(got, values[2 + op as usize], "type {dtype}, op {op}");
            }
        }
    });
}

#[test]
fn only_the_root_gets_a_reduction_and_all_get_its_broadcast() {
    let values = team(3, |member| {
        let (send, receive) = (member.floats([1.0 + member.rank as f32; 4]), member.floats([9.0; 4]));
        let (nccl, comm, stream) = (&member.nccl, member.comm, member.stream);
        assert_eq!((nccl.ncclReduce)(send, receive, 4, F32, SUM, 1, comm, stream), 0);
        let reduced = member.read(receive, 4)[3];
        assert_eq!((nccl.ncclBroadcast)(receive, send, 4, F32, 1, comm, stream), 0);
        (reduced, member.read(send, 4)[0])
    });
    assert_eq!(values, [(9.0, 6.0), (6.0, 6.0), (9.0, 6.0)]);
}

#[test]
fn shards_are_reduced_and_gathered_in_place() {
    let shard = 100_000;
    let whole = team(4, |member| {
        let address = member.floats((0..4 * shard).map(|at| (at % 977) as f32));
        let own = address + (member.rank * shard * 4) as u64;
        let (nccl, comm, stream) = (&member.nccl, member.comm, member.stream);
        assert_eq!((nccl.ncclReduceScatter)(address, own, shard, F32, SUM, comm, stream), 0);
        assert_eq!((nccl.ncclAllGather)(own, address, shard, F32, comm, stream), 0);
        member.read(address, 4 * shard)
    });
    let expected: Vec<f32> = (0..4 * shard).map(|at| (at % 977 * 4) as f32).collect();
    assert!(whole.iter().all(|whole| *whole == expected));
}

#[test]
fn shards_are_reduced_and_gathered_from_one_place_to_another() {
    let shard = 3;
    let found = team(2, |member| {
        let whole = member.floats((0..2 * shard).map(|at| (at + 10 * member.rank) as f32));
        let (own, gathered) = (member.floats(vec![-1.0; shard]), member.floats(vec![-1.0; 2 * shard]));
        let (nccl, comm, stream) = (&member.nccl, member.comm, member.stream);
        assert_eq!((nccl.ncclReduceScatter)(whole, own, shard, F32, SUM, comm, stream), 0);
        assert_eq!((nccl.ncclAllGather)(own, gathered, shard, F32, comm, stream), 0);
        [member.read(own, shard), member.read(gathered, 2 * shard), member.read(whole, 2 * shard)]
    });
    let sums = [10.0, 12.0, 14.0, 16.0, 18.0, 20.0];
    for (rank, [own, gathered, whole]) in found.iter().enumerate() {
        assert_eq!(own[..], sums[rank * shard..][..shard], "rank {rank}");
        assert_eq!(gathered[..], sums, "rank {rank}");
        assert!((0..2 * shard).all(|at| whole[at] == (at + 10 * rank) as f32), "{whole:?} is what was contributed");
    }
}

#[test]
fn a_shard_at_the_wrong_place_of_its_tensor_is_refused() {
    team(2, |member| {
        let address = member.floats([0.0; 8]);
        let (nccl, comm, stream) = (&member.nccl, member.comm, member.stream);
        let [own, other] = [member.rank, 1 - member.rank].map(|rank| address + 16 * rank as u64);
        // The place of another rank's shard, and one that no rank has.
        for wrong in [other, own + 4 - 8 * member.rank as u64] {
            assert_eq!((nccl.ncclReduceScatter)(address, wrong, 4, F32, SUM, comm, stream), 4);
            assert!(member.last_error().starts_with("ReduceScatter: 32 bytes at"), "{}", member.last_error());
            assert_eq!((nccl.ncclAllGather)(wrong, address, 4, F32, comm, stream), 4);
            assert!(member.last_error().starts_with("AllGather: 16 bytes at"), "{}", member.last_error());
        }
        assert_eq!((nccl.ncclReduceScatter)(address, own, 4, F32, SUM, comm, stream), 0);
        assert_eq!((nccl.ncclAllGather)(own, address, 4, F32, comm, stream), 0);
        assert_eq!(member.read(address, 8), [0.0; 8]);
    });
}

#[test]
fn buffers_that_overlap_otherwise_are_refused() {
    team(2, |member| {
        let address = member.floats([0.0; 8]);
        let (nccl, comm, stream) = (&member.nccl, member.comm, member.stream);
        assert_eq!((nccl.ncclAllReduce)(address, address + 4, 4, F32, SUM, comm, stream), 4);
        assert!(member.last_error().contains("overlap"), "{}", member.last_error());
        assert_eq!((nccl.ncclAllReduce)(address, address, 9, F32, SUM, comm, stream), 4, "beyond the end");
        let mut local = [0.0_f32; 4];
        let local = local.as_mut_ptr() as u64;
        assert_eq!((nccl.ncclAllReduce)(local, local, 4, F32, SUM, comm, stream), 4, "memory of the host");
        assert_eq!((nccl.ncclAllReduce)(address, address, 4, 12, SUM, comm, stream), 4, "no such type");
        assert_eq!((nccl.ncclAllReduce)(address, address, 4, F32, 77, comm, stream), 4, "no such op");
        assert_eq!((nccl.ncclReduce)(address, address, 4, F32, SUM, 2, comm, stream), 4, "no such rank");
    });
}

#[test]
fn every_rank_has_its_own_factor() {
    let sums = team(2, |member| {
        let mut factor = [0.25_f32, 2.0][member.rank];
        let mut op = 0;
        let scalar = (&raw mut factor).cast();
        assert_eq!((member.nccl.ncclRedOpCreatePreMulSum)(&mut op, scalar, F32, 1, member.comm), 0);
        let address = member.floats([4.0, 8.0]);
        assert_eq!((member.nccl.ncclAllReduce)(address, address, 2, F32, op, member.comm, member.stream), 0);
        // What was called keeps it.
        assert_eq!((member.nccl.ncclRedOpDestroy)(op, member.comm), 0);
        assert_eq!((member.nccl.ncclAllReduce)(address, address, 2, F32, op, member.comm, member.stream), 4);
        member.read(address, 2)
    });
    assert_eq!(sums, [[9.0, 18.0], [9.0, 18.0]]);
}

#[test]
fn letters_of_a_group_go_side_by_side() {
    let received = team(3, |member| {
        let count = 50_000;
        let (send, receive) = (member.floats(vec![member.rank as f32; count]), member.floats(vec![-1.0; count]));
        let (next, before) = ((member.rank + 1) % 3, (member.rank + 2) % 3);
        let (nccl, comm, stream) = (&member.nccl, member.comm, member.stream);
        assert_eq!((nccl.ncclGroupStart)(), 0);
        assert_eq!((nccl.ncclSend)(send, count, F32, next as c_int, comm, stream), 0);
        assert_eq!((nccl.ncclRecv)(receive, count, F32, before as c_int, comm, stream), 0);
        assert_eq!((nccl.ncclGroupEnd)(), 0);
        let got = member.read(receive, count);
        (got[0], got[count - 1])
    });
    assert_eq!(received, [(2.0, 2.0), (0.0, 0.0), (1.0, 1.0)]);
}

#[test]
fn a_group_does_all_of_its_operations() {
    let sums = team(2, |member| {
        let tensors: Vec<u64> = (0..5).map(|at| member.floats([at as f32; 3])).collect();
        assert_eq!((member.nccl.ncclGroupStart)(), 0);
        assert!(tensors.iter().all(|tensor| member.all_reduce(*tensor, 3) == 0));
        assert_eq!((member.nccl.ncclGroupEnd)(), 0);
        tensors.iter().map(|tensor| member.read(*tensor, 3)[1]).collect::<Vec<f32>>()
    });
    assert_eq!(sums, [[0.0, 2.0, 4.0, 6.0, 8.0]; 2]);
    assert_eq!((libraries().0.ncclGroupEnd)(), 5, "not in a group");
}

#[test]
fn what_two_ranks_send_each_other_may_go_with_what_all_do() {
    let found = team(3, |member| {
        let (nccl, rank, comm, stream) = (member.nccl.clone(), member.rank, member.comm, member.stream);
        let (sum, letter) = (member.floats([1.0]), member.floats([rank as f32]));
        assert_eq!((nccl.ncclGroupStart)(), 0);
        // A letter that is called first, and a rank that has none.
        let code = match rank {
            0 => (nccl.ncclSend)(letter, 1, F32, 1, comm, stream),
            1 => (nccl.ncclRecv)(letter, 1, F32, 0, comm, stream),
            _ => 0,
        };
        assert_eq!((code, member.all_reduce(sum, 1)), (0, 0));
        assert_eq!((nccl.ncclGroupEnd)(), 0);
        (member.read(sum, 1)[0], member.read(letter, 1)[0])
    });
    assert_eq!(found, [(3.0, 0.0), (3.0, 0.0), (3.0, 2.0)]);
}

#[test]
fn ranks_that_group_the_same_calls_differently_are_told() {
    let said = team(2, |member| {
        let tensors = [member.floats([1.0; 4]), member.floats([1.0; 4])];
        if member.rank == 0 {
            assert_eq!((member.nccl.ncclGroupStart)(), 0);
            assert!(tensors.iter().all(|tensor| member.all_reduce(*tensor, 4) == 0));
            assert_eq!((member.nccl.ncclGroupEnd)(), 0, "nobody can know yet");
        } else {
            assert_eq!(member.all_reduce(tensors[0], 4), 0);
            assert!([0, 5].contains(&member.all_reduce(tensors[1], 4)), "the first may have failed already");
        }
        let said = (member.failure(), member.last_error());
        assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
        member.comm = 0;
        said
    });
    assert_eq!([said[0].0, said[1].0], [5, 5]);
    assert!(said[0].1.contains("in group 0 of 2") && said[0].1.contains("in group 0 of 1"), "{}", said[0].1);
}

#[test]
fn a_communicator_is_split_by_color_in_the_order_of_keys() {
    let said = team(4, |member| {
        let mut new = 0;
        let color = (member.rank % 2) as c_int;
        let key = -(member.rank as c_int);
        assert_eq!((member.nccl.ncclCommSplit)(member.comm, color, key, &mut new, std::ptr::null()), 0);
        let mut rank = 0;
        assert_eq!((member.nccl.ncclCommUserRank)(new, &mut rank), 0);
        let address = member.floats([member.rank as f32]);
        assert_eq!((member.nccl.ncclAllReduce)(address, address, 1, F32, SUM, new, member.stream), 0);
        let sum = member.read(address, 1)[0];
        assert_eq!((member.nccl.ncclCommDestroy)(new), 0);
        (rank, sum)
    });
    assert_eq!(said, [(1, 2.0), (1, 4.0), (0, 2.0), (0, 4.0)]);
}

#[test]
fn ranks_that_call_different_things_are_told() {
    let said = team(2, |member| {
        let address = member.floats([1.0; 8]);
        assert_eq!(member.all_reduce(address, 8 - member.rank), 0, "nobody can know yet");
        let code = member.failure();
        let text = member.last_error();
        assert_eq!(member.all_reduce(address, 8), 5, "and nothing works any more");
        assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
        member.comm = 0;
        (code, text)
    });
    assert_eq!([said[0].0, said[1].0], [5, 5]);
    assert!(said[0].1.contains("AllReduce of 8 F32") && said[0].1.contains("AllReduce of 7 F32"), "{}", said[0].1);
}

#[test]
fn ranks_that_scatter_and_gather_differently_are_told() {
    // What ranks 0 and 1 call, and what both must be told.
    type Calls = &'static [(&'static str, usize)];
    let table: [([Calls; 2], [&str; 2]); 4] = [
        ([&[("scatter", 4)], &[("scatter", 3)]], ["ReduceScatter of 4 F32", "ReduceScatter of 3 F32"]),
        ([&[("gather", 4)], &[("gather", 3)]], ["AllGather of 4 F32", "AllGather of 3 F32"]),
        ([&[("scatter", 4)], &[("gather", 4)]], ["ReduceScatter of 4 F32", "AllGather of 4 F32"]),
        (
            [&[("scatter", 4), ("gather", 4)], &[("gather", 4), ("scatter", 4)]],
            ["ReduceScatter of 4 F32", "AllGather of 4 F32"],
        ),
    ];
    for (calls, [first, second]) in table {
        let said = team(2, |member| {
            let (whole, shard) = (member.floats([1.0; 8]), member.floats([1.0; 4]));
            let (nccl, comm, stream) = (&member.nccl, member.comm, member.stream);
            for (at, (name, count)) in calls[member.rank].iter().enumerate() {
                let code = match *name {
                    "scatter" => (nccl.ncclReduceScatter)(whole, shard, *count, F32, SUM, comm, stream),
                    _ => (nccl.ncclAllGather)(shard, whole, *count, F32, comm, stream),
                };
                assert!(code == 0 || (at > 0 && code == 5), "only the first call is certain not to have failed yet");
            }
            let said = (member.failure(), member.last_error());
            assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
            member.comm = 0;
            said
        });
        for (code, text) in said {
            assert_eq!(code, 5, "{text}");
            assert!(text.contains(first) && text.contains(second), "{text}");
        }
    }
}

#[test]
fn an_abort_releases_whoever_waits() {
    team(2, |member| {
        let address = member.floats([1.0]);
        if member.rank == 0 {
            assert_eq!(member.all_reduce(address, 1), 0);
            assert_eq!(cu!(cuStreamQuery(member.stream)), 600, "it waits for rank 1");
        }
        assert_eq!((member.nccl.ncclCommAbort)(member.comm), 0);
        assert_eq!(cu!(cuStreamSynchronize(member.stream)), 0);
        assert_eq!((member.nccl.ncclCommAbort)(member.comm), 4, "it is gone");
        member.comm = 0;
    });
}

#[test]
fn a_communicator_that_does_not_block_says_when_it_is_done() {
    let id = unique_id(&libraries().0);
    let control = fakenccl::Control::open(&fakenccl::library());
    let sums = apart(2, |member| {
        let (nccl, stream) = (member.nccl.clone(), member.stream);
        let (ranks, rank) = (member.ranks as c_int, member.rank as c_int);
        let begun = (nccl.ncclCommInitRankConfig)(&mut member.comm, ranks, id, rank, &Config::not_blocking());
        assert_eq!(begun, 7);
        assert_eq!(member.settled(), 0);
        let address = member.floats([1.5]);
        let launching = control.counter("call_nanoseconds");
        assert_eq!(member.all_reduce(address, 1), 7);
        assert_eq!(member.settled(), 0, "it is in the stream now");
        assert!(control.counter("call_nanoseconds") > launching, "a thread has put it there");
        let sum = member.read(address, 1)[0];
        assert_eq!((nccl.ncclCommFinalize)(member.comm), 7);
        assert_eq!(member.settled(), 0);
        assert_eq!((nccl.ncclCommDestroy)(member.comm), 0);
        assert_eq!(cu!(cuStreamSynchronize(stream)), 0);
        sum
    });
    assert_eq!(sums, [3.0, 3.0]);
}

#[test]
fn two_ranks_on_one_device_are_refused() {
    let id = unique_id(&libraries().0);
    let codes = apart(2, |member| {
        // Both take the device of the first.
        let mut context = null_mut();
        let device = member.device - member.rank as i32;
        assert_eq!(cu!(cuDevicePrimaryCtxRetain(&mut context, device)), 0);
        assert_eq!(cu!(cuCtxSetCurrent(context)), 0);
        let code = (member.nccl.ncclCommInitRank)(&mut member.comm, 2, id, member.rank as c_int);
        (code, member.last_error())
    });
    assert_eq!([codes[0].0, codes[1].0], [5, 5]);
    assert!(codes[0].1.contains("Duplicate GPU"), "{}", codes[0].1);
}

#[test]
fn a_thread_without_a_context_and_a_stream_of_another_device_are_refused() {
    let id = unique_id(&libraries().0);
    let streams: std::sync::Mutex<Vec<(usize, usize)>> = std::sync::Mutex::default();
    team(2, |member| {
        streams.lock().expect("no panic").push((member.rank, member.stream as usize));
        // An operation of both, so that both are in the list.
        let address = member.floats([1.0]);
        assert_eq!(member.all_reduce(address, 1), 0);
        assert_eq!(member.read(address, 1), [2.0], "{}", member.last_error());
        let theirs = streams.lock().expect("no panic").iter().find(|(rank, _)| *rank != member.rank).expect("there").1;
        let theirs = theirs as cudarc::driver::sys::CUstream;
        assert_eq!((member.nccl.ncclAllReduce)(address, address, 1, F32, SUM, member.comm, theirs), 4);
        let mut comm = 0;
        assert_eq!(cu!(cuCtxSetCurrent(null_mut())), 0);
        assert_eq!((member.nccl.ncclCommInitRank)(&mut comm, 2, id, 0), 1);
        assert_eq!((member.nccl.ncclCommInitRank)(&mut comm, 2, id, 2), 4, "no such rank");
    });
}
