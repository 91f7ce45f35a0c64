//! CUDA devices: what is copied is right, waits for what makes it, and ends whatever happens. The driver is the fake one; the code that
//! calls it is the one that calls the real one.

#![expect(unsafe_code, reason = "memory of a test is lent to copies by its address")]

use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use fakecuda::Control;
use gradlane_core::config::Config;
use gradlane_core::cuda::{Mark, OnIssue, describe};
use gradlane_core::device::{CudaDevice, Device, Transfer};
use gradlane_core::mem::{DeviceRegion, Doubt, Lease, Ordinal, Region};
use gradlane_core::types::Done;
use gradlane_core::{Code, Error, Result};
use gradlane_tests::cluster::PATIENCE;
use gradlane_tests::fakes;
use gradlane_tests::patience::eventually;

/// Longer than any pause of a busy machine between two calls: a wait that is missing shows every time.
const LAG_US: u64 = 100_000;
const MIB: usize = 1 << 20;

mod following;
mod here;
mod late;
mod small;

#[test]
fn copies_of_all_lengths_are_exact_in_every_direction() {
    let world = World::new();
    for len in [1, 3, 4095, 65_537, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 9 * MIB + 5] {
        let data = pattern(len, 7);
        let (first, second) =
            (world.control.allocate(world.ordinal(), len), world.control.allocate(world.ordinal(), len));
        let mut host = world.lease(len);
        host.copy_from_slice(&data);
        // SAFETY: `host` outlives the copies, which are waited for.
        let lent = || unsafe { Region::new(host.as_ptr().cast_mut(), len) };
        world.copy(Transfer::In { from: lent(), to: vec![world.memory(first, len)] }, &[]).unwrap();
        world.copy(Transfer::Within { from: world.memory(first, len), to: world.memory(second, len) }, &[]).unwrap();
        host.fill(0);
        // SAFETY: as above.
        let lent = unsafe { Region::new(host.as_mut_ptr(), len) };
        world.copy(Transfer::Out { from: vec![world.memory(second, len)], to: lent }, &[]).unwrap();
        assert!(host[..] == data, "{len} bytes came back otherwise");
    }
    assert_eq!(world.counter("pageable_copies"), 0, "leases are pinned");
    assert_eq!(world.counter("write_combined"), 0, "leases are read by the processor");
}

#[test]
fn runs_of_a_device_are_one_run_of_the_host() {
    let world = World::new();
    let lens = [5 * MIB, 0, 3, MIB];
    let data = pattern(lens.iter().sum(), 3);
    let runs: Vec<_> = lens.iter().map(|len| (world.control.allocate(world.ordinal(), (*len).max(1)), *len)).collect();
    let memory = || runs.iter().map(|(address, len)| world.memory(*address, *len)).collect::<Vec<_>>();
    let (mut there, mut back) = (data.clone(), vec![0; data.len()]);
    world.copy(Transfer::In { from: region(&mut there), to: memory() }, &[]).unwrap();
    world.copy(Transfer::Out { from: memory(), to: region(&mut back) }, &[]).unwrap();
    assert!(back == data);
    assert!(world.counter("pageable_copies") > 0, "memory that is not pinned is copied as well");
}

#[test]
fn a_copy_to_the_host_waits_for_what_its_memory_is_made_by() {
    let world = World::new();
    let (address, data) = (world.control.allocate(world.ordinal(), MIB), pattern(MIB, 5));
    // Pinned, so that nothing but the end that is reported makes this thread wait; before anything is slow, because pinning waits for that.
    let mut host = world.lease(MIB);
    host.fill(0);
    let mark = world.produce_late(address, &data);
    // SAFETY: `host` outlives the copy, which is waited for.
    let lent = unsafe { Region::new(host.as_mut_ptr(), MIB) };
    world.copy(Transfer::Out { from: vec![world.memory(address, MIB)], to: lent }, &[mark]).unwrap();
    assert!(host[..] == data, "it was read before it was made");
}

/// What makes the three tests around it worth something: without its mark each copy is wrong, every time.
#[test]
fn a_copy_that_is_not_told_what_to_wait_for_shows() {
    let world = World::new();
    let [from, to] = [(); 2].map(|()| world.control.allocate(world.ordinal(), MIB));
    let (data, sent) = (pattern(MIB, 5), pattern(MIB, 9));
    // The three copies have to be faster than this, also on a machine that is loaded.
    world.control.lag(world.slow, 10 * LAG_US);
    drop(world.produce_late(from, &data));
    let mut host = sent.clone();
    world.copy(Transfer::Within { from: world.memory(from, MIB), to: world.memory(to, MIB) }, &[]).unwrap();
    world.copy(Transfer::In { from: region(&mut host), to: vec![world.memory(from, MIB)] }, &[]).unwrap();
    world.copy(Transfer::Out { from: vec![world.memory(from, MIB)], to: region(&mut host) }, &[]).unwrap();
    assert!(host == sent, "what was made later is read before it is made");
    assert!(world.bytes(to, MIB) != data, "what was made later is copied before it is made");
    world.control.consume(world.ordinal(), world.slow, from, 1);
    assert!(world.bytes(from, MIB) == data, "what came from the host is overwritten by what is made later");
}

#[test]
fn a_copy_from_the_host_waits_for_what_used_its_memory_before() {
    let world = World::new();
    let (address, data) = (world.control.allocate(world.ordinal(), MIB), pattern(MIB, 5));
    let mut host = world.lease(MIB);
    host.copy_from_slice(&data);
    let mark = world.produce_late(address, &pattern(MIB, 9));
    // SAFETY: `host` outlives the copy, which is waited for.
    let lent = unsafe { Region::new(host.as_mut_ptr(), MIB) };
    world.copy(Transfer::In { from: lent, to: vec![world.memory(address, MIB)] }, &[mark]).unwrap();
    // All that was produced is there, and the copy came after it.
    world.control.consume(world.ordinal(), world.slow, address, 1);
    assert!(world.bytes(address, MIB) == data, "it was overwritten by what was made before");
}

#[test]
fn a_copy_on_the_device_waits_as_well() {
    let world = World::new();
    let (from, to) = (world.control.allocate(world.ordinal(), MIB), world.control.allocate(world.ordinal(), MIB));
    let data = pattern(MIB, 5);
    let mark = world.produce_late(from, &data);
    world.copy(Transfer::Within { from: world.memory(from, MIB), to: world.memory(to, MIB) }, &[mark]).unwrap();
    assert!(world.bytes(to, MIB) == data, "it was read before it was made");
}

#[test]
fn a_direction_that_waits_does_not_hold_the_others_up() {
    let world = World::new();
    let late = world.control.allocate(world.ordinal(), MIB);
    let ready = world.control.allocate(world.ordinal(), MIB);
    // Pinning waits for all work of the device.
    let (mut there, mut back) = (world.lease(MIB), world.lease(MIB));
    world.control.lag(world.slow, 300_000);
    let mark = world.produce(late, &pattern(MIB, 5));
    // SAFETY: both outlive the copies, which are waited for.
    let (from, to) = unsafe { (Region::new(there.as_mut_ptr(), MIB), Region::new(back.as_mut_ptr(), MIB)) };
    let order = unbounded();
    let tell = |name: &'static str| {
        let order = order.0.clone();
        Done::new(move |outcome: Result<()>| drop(order.send((name, outcome))))
    };
    world.cuda.copy(Transfer::Out { from: vec![world.memory(late, MIB)], to }, &[mark], OnIssue::nobody(), tell("out"));
    world.cuda.copy(Transfer::In { from, to: vec![world.memory(ready, MIB)] }, &[], OnIssue::nobody(), tell("in"));
    let ended: Vec<_> = (0..2).map(|_| order.1.recv_timeout(PATIENCE).unwrap()).collect();
    assert_eq!(ended, [("in", Ok(())), ("out", Ok(()))]);
}

#[test]
fn a_fault_of_the_device_ends_all_that_is_pending_there_and_nothing_elsewhere() {
    let (world, other) = (World::new(), World::new());
    let address = world.control.allocate(world.ordinal(), MIB);
    let mut memory: Vec<_> = (0..6).map(|_| world.lease(MIB)).collect();
    let mark = world.produce_late(address, &pattern(MIB, 5));
    let pending: Vec<_> = memory
        .iter_mut()
        .enumerate()
        .map(|(index, lease)| {
            // SAFETY: `memory` outlives the copies, which have ended when they are told of.
            let host = unsafe { Region::new(lease.as_mut_ptr(), MIB) };
            let run = || vec![world.memory(address, MIB)];
            let transfer = match index % 2 {
                0 => Transfer::Out { from: run(), to: host },
                _ => Transfer::In { from: host, to: run() },
            };
            world.begin(transfer, std::slice::from_ref(&mark))
        })
        .collect();
    world.control.fail_device(world.ordinal(), 700);
    for outcome in pending {
        let error = outcome.recv_timeout(PATIENCE).expect("told in time").unwrap_err();
        let Error::Device { device, what, cause, .. } = &error else { panic!("{error}") };
        assert_eq!((device.as_str(), error.code()), (world.cuda.name(world.device).as_str(), Code::Aborted));
        // The steps of a copy; the fault meets each of the six in another one.
        let steps = ["letting a stream wait", "a copy", "creating an event", "recording an event"];
        assert!(steps.iter().any(|step| what.starts_with(step)), "{error}");
        assert!(cause.contains("illegal address") && cause.contains("700"), "{error}");
    }
    let mut host = vec![0; 4];
    let later = world.copy(Transfer::Out { from: vec![world.memory(address, 4)], to: region(&mut host) }, &[]);
    assert!(matches!(later, Err(Error::Device { .. })), "{later:?}");
    assert!(matches!(world.cuda.mark(world.device, 0), Err(Error::Device { .. })));

    let elsewhere = other.control.allocate(other.ordinal(), 4);
    other.copy(Transfer::Out { from: vec![other.memory(elsewhere, 4)], to: region(&mut host) }, &[]).unwrap();
}

#[test]
fn addresses_of_nothing_are_refused_and_harm_nobody() {
    let world = World::new();
    let address = world.control.allocate(world.ordinal(), MIB);
    let mut host = vec![0; 2 * MIB];
    let mut out = |bytes| {
        let to = region(&mut host[..bytes]);
        world.copy(Transfer::Out { from: vec![world.memory(address, bytes)], to }, &[])
    };
    let error = out(2 * MIB).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains("2097152 bytes"), "{error}");
    out(MIB).unwrap();
}

#[test]
fn a_device_that_does_not_exist_is_refused_with_those_that_do() {
    let world = World::new();
    let error = world.cuda.mark(Ordinal(999), 0).unwrap_err();
    assert!(
        matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains("cuda:0 to cuda:127"),
        "{error}"
    );
}

#[test]
fn a_stream_under_capture_is_refused_and_the_capture_survives_all_else() {
    let world = World::new();
    let address = world.control.allocate(world.ordinal(), MIB);
    let (captured, mut host) = (world.control.user_stream(world.ordinal()), vec![0; MIB]);
    let (first, second) = (pattern(MIB, 3), pattern(MIB, 4));
    let elsewhere = world.control.allocate(world.ordinal(), MIB);
    world.control.begin_capture(captured);
    world.control.produce(world.ordinal(), captured, elsewhere, &first);
    let error = world.cuda.mark(world.device, captured).unwrap_err();
    assert!(matches!(error, Error::FailedPrecondition { .. }) && error.to_string().contains("CUDA graph"), "{error}");
    // Memory is pinned, events are made and asked for, on other threads than that of the capture.
    let lease = std::thread::scope(|scope| {
        let copies = || {
            let lease = world.lease(2 * MIB);
            world.copy(Transfer::Out { from: vec![world.memory(address, MIB)], to: region(&mut host) }, &[]).unwrap();
            lease
        };
        scope.spawn(copies).join().unwrap()
    });
    world.control.produce(world.ordinal(), captured, address, &second);
    let graph = world.control.end_capture(captured);
    assert_eq!(lease.len(), 2 * MIB);
    assert!(host.iter().all(|byte| *byte == 0), "what is captured is not done");
    // A submission behind the graph waits for all that was captured, around what was refused.
    world.control.lag(captured, LAG_US);
    world.control.launch(&graph, captured);
    let mark = world.cuda.mark(world.device, captured).unwrap();
    world.copy(Transfer::Out { from: vec![world.memory(address, MIB)], to: region(&mut host) }, &[mark]).unwrap();
    assert!(host == second && world.bytes(elsewhere, MIB) == first);
}

#[test]
fn where_nothing_can_be_pinned_copies_are_still_right() {
    let world = World::new();
    let _failing = fakes::failing(&format!("cuMemHostAlloc:{}=2", world.device));
    assert_round_trip(&world, 3 * MIB);
    assert_eq!(world.counter("pinned_bytes"), 0);
    assert!(world.counter("pageable_copies") > 0);
}

#[test]
fn where_little_can_be_pinned_slabs_are_smaller() {
    let world = World::new();
    drop(world.lease(MIB));
    assert_eq!(world.counter("pinned_bytes"), MIB as u64);
    // The next slab would be of 2 MiB; the second attempt is half of it.
    let _failing = fakes::failing(&format!("cuMemHostAlloc:{}=2@1*1", world.device));
    let leases = [world.lease(MIB), world.lease(MIB)];
    assert_eq!(world.counter("pinned_bytes"), 2 * MIB as u64);
    drop(leases);
}

#[test]
fn slabs_double_and_small_leases_share_them() {
    let world = World::new();
    let leases: Vec<_> = (0..7).map(|_| world.lease(MIB)).collect();
    assert_eq!((world.counter("pinned_bytes"), world.counter("pinned_ranges")), (7 * MIB as u64, 3), "1 + 2 + 4 MiB");
    drop(leases);
    let again: Vec<_> = (0..7).map(|_| world.lease(MIB)).collect();
    assert_eq!(world.counter("pinned_bytes"), 7 * MIB as u64, "what came back is leased again");
    drop(again);
}

#[test]
fn memory_that_others_can_be_shown_is_registered_as_long_as_it_is_mapped() {
    let world = World::new();
    let shown = |bytes| world.cuda.lease(world.device, bytes, true).unwrap();
    let (address, data) = (world.control.allocate(world.ordinal(), MIB), pattern(MIB, 5));
    world.control.produce(world.ordinal(), 0, address, &data);
    let mark = world.cuda.mark(world.device, 0).unwrap();
    let mut host = shown(MIB);
    // SAFETY: `host` outlives the copy, which is waited for.
    let lent = unsafe { Region::new(host.as_mut_ptr(), MIB) };
    world.copy(Transfer::Out { from: vec![world.memory(address, MIB)], to: lent }, &[mark]).unwrap();
    assert!(host[..] == data);
    assert_eq!(["pinned_ranges", "pageable_copies"].map(|name| world.counter(name)), [1, 0]);
    let [first, second] = [host.freeze(), shown(2 * MIB).freeze()];
    let places = [&first, &second].map(|lease| lease.place().expect("others find it").segment);
    assert_eq!((places, world.lease(MIB).freeze().place()), ([0, 1], None));
    drop((first, second));
    let left = world.leave();
    assert_eq!(["pinned_bytes", "released_in_use"].map(left), [0; 2]);
}

#[test]
fn where_memory_cannot_be_registered_it_is_pinned_all_the_same() {
    let world = World::new();
    let _failing = fakes::failing(&format!("cuMemHostRegister_v2:{}=801", world.device));
    let lease = world.cuda.lease(world.device, MIB, true).unwrap();
    assert_eq!((world.counter("pinned_bytes"), lease.freeze().place()), (MIB as u64, None));
}

#[test]
fn beyond_the_limit_leases_are_of_ordinary_memory() {
    let world = World::with(|config| config.pinned_bytes_max = 2 * MIB as u64);
    let error = world.cuda.lease(world.device, 2 * MIB + 1, false).unwrap_err();
    assert!(matches!(error, Error::Exhausted { .. }) && error.to_string().contains("pinned_bytes_max"), "{error}");
    let held: Vec<_> = (0..4).map(|_| world.lease(MIB)).collect();
    assert_eq!(world.counter("pinned_bytes"), 2 * MIB as u64);
    assert_round_trip(&world, 2 * MIB);
    assert!(world.counter("pageable_copies") > 0);
    drop(held);
}

#[test]
fn shutdown_ends_what_waits() {
    let world = World::with(|config| config.shutdown_timeout = Duration::from_millis(50));
    let address = world.control.allocate(world.ordinal(), MIB);
    // Pinning waits for all work of the device.
    let host = world.lease(MIB);
    world.control.lag(world.slow, 1_000_000);
    let mark = world.produce(address, &pattern(MIB, 5));
    // SAFETY: the lease is of memory that is never freed after this, and nobody reads it.
    let lent = || unsafe { Region::new(host.as_ptr().cast_mut(), MIB) };
    let out = || Transfer::Out { from: vec![world.memory(address, MIB)], to: lent() };
    let pending = world.begin(out(), &[mark]);
    let doubt = Doubt::default();
    world.cuda.shutdown(&doubt);
    world.cuda.shutdown(&doubt);
    assert!(doubt.exists(), "the copy may still come");
    let error = pending.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert!(matches!(error, Error::FailedPrecondition { .. }), "{error}");
    assert!(matches!(world.copy(out(), &[]), Err(Error::FailedPrecondition { .. })));
    drop(host);
    // A framework has the context as well, so that the device goes on.
    let framework = CudaDevice::load(&config()).unwrap();
    framework.mark(world.device, 0).unwrap();
    let left = world.leave();
    assert_eq!((left("pinned_bytes"), left("released_in_use")), (MIB as u64, 0), "what may be written is never freed");
    eventually("the copy that was given up", || (left("copies_d2h") > 0).then_some(()));
    drop(framework);
}

#[test]
fn what_was_used_goes_back() {
    let world = World::new();
    assert_round_trip(&world, 5 * MIB);
    let left = world.leave();
    let left = ["pinned_bytes", "live_events", "live_streams", "released_in_use"].map(left);
    assert_eq!(left, [0; 4], "the framework's stream is not counted");
}

#[test]
fn a_driver_that_shuts_down_with_the_process_is_left_alone() {
    let world = World::new();
    let address = world.control.allocate(world.ordinal(), MIB);
    let mut host = world.lease(MIB);
    let mark = world.produce_late(address, &pattern(MIB, 5));
    // SAFETY: `host` outlives the copy, which has ended when it is told of.
    let to = unsafe { Region::new(host.as_mut_ptr(), MIB) };
    let pending = world.begin(Transfer::Out { from: vec![world.memory(address, MIB)], to }, &[mark]);
    world.control.fail_device(world.ordinal(), 4);
    let error = pending.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert!(error.to_string().contains("shutting down"), "{error}");
    drop(host);
    // Nothing hangs or panics, and nothing is asked of it that it must do.
    drop(world.leave());
}

#[test]
fn copies_of_several_threads_do_not_mix() {
    let world = World::new();
    let world = &world;
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || (1..20).for_each(|turn| assert_round_trip_of(world, turn * 70_001, seed + turn as u8)));
        }
    });
}

#[test]
fn the_doctor_lists_what_there_is() {
    let world = World::new();
    let lines = describe(&config(), None);
    assert!(lines[0].usable && lines[0].found.contains("libfakecuda.so"), "{:?}", lines[0]);
    let own = lines.iter().find(|line| line.subject == world.cuda.name(world.device)).unwrap();
    assert!(own.usable && own.found.contains("PCI 0000:") && own.found.contains("GiB"), "{own:?}");
}

/// There and back, through a lease.
fn assert_round_trip(world: &World, len: usize) {
    assert_round_trip_of(world, len, 11);
}

/// The same with bytes of one's own.
fn assert_round_trip_of(world: &World, len: usize, seed: u8) {
    let (address, data) = (world.control.allocate(world.ordinal(), len), pattern(len, seed));
    let mut host = world.lease(len);
    host.copy_from_slice(&data);
    // SAFETY: `host` outlives the copies, which are waited for.
    let lent = || unsafe { Region::new(host.as_ptr().cast_mut(), len) };
    world.copy(Transfer::In { from: lent(), to: vec![world.memory(address, len)] }, &[]).unwrap();
    assert!(world.bytes(address, len) == data);
    let others = pattern(len, seed ^ 0xff);
    world.control.produce(world.ordinal(), 0, address, &others);
    let mark = world.cuda.mark(world.device, 0).unwrap();
    world.copy(Transfer::Out { from: vec![world.memory(address, len)], to: lent() }, &[mark]).unwrap();
    assert!(host[..] == others);
}

/// A device that no other test uses, and a framework's stream that is slow.
struct World {
    cuda: CudaDevice,
    control: Control,
    device: Ordinal,
    slow: u64,
}

impl World {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Config)) -> Self {
        let (control, device) = fakes::device();
        let mut config = config();
        change(&mut config);
        let (cuda, device) = (CudaDevice::load(&config).unwrap(), Ordinal(device));
        // The device in whose context memory is pinned is the first that is used.
        cuda.mark(device, 0).unwrap();
        let slow = control.user_stream(i32::from(device.0));
        control.lag(slow, LAG_US);
        Self { cuda, control, device, slow }
    }

    fn ordinal(&self) -> i32 {
        i32::from(self.device.0)
    }

    fn memory(&self, address: u64, len: usize) -> DeviceRegion {
        DeviceRegion::new(self.device, address, len)
    }

    fn lease(&self, bytes: usize) -> Lease {
        self.cuda.lease(self.device, bytes, false).unwrap()
    }

    /// Writes `data` on the slow stream; where it has done so.
    fn produce(&self, address: u64, data: &[u8]) -> Mark {
        self.control.produce(self.ordinal(), self.slow, address, data);
        self.cuda.mark(self.device, self.slow).unwrap()
    }

    /// The same, where everything that copies has been started before: a wait that is missing must not be hidden by a thread that starts.
    fn produce_late(&self, address: u64, data: &[u8]) -> Mark {
        let mut byte = [0];
        self.copy(Transfer::Out { from: vec![self.memory(address, 1)], to: region(&mut byte) }, &[]).unwrap();
        self.copy(Transfer::In { from: region(&mut byte), to: vec![self.memory(address, 1)] }, &[]).unwrap();
        let spare = self.control.allocate(self.ordinal(), 1);
        self.copy(Transfer::Within { from: self.memory(address, 1), to: self.memory(spare, 1) }, &[]).unwrap();
        self.produce(address, data)
    }

    fn begin(&self, transfer: Transfer, after: &[Mark]) -> Receiver<Result<()>> {
        let (sender, outcome) = unbounded();
        // A test that has failed no longer listens.
        self.cuda.copy(transfer, after, OnIssue::nobody(), Done::new(move |result| drop(sender.send(result))));
        outcome
    }

    fn copy(&self, transfer: Transfer, after: &[Mark]) -> Result<()> {
        self.begin(transfer, after).recv_timeout(PATIENCE).expect("a copy ends")
    }

    /// What lies there now.
    fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        self.control.consume(self.ordinal(), 0, address, len)
    }

    fn counter(&self, name: &str) -> u64 {
        self.control.counter(self.ordinal(), name)
    }

    /// Drops all that belongs to the engine; what the driver counts then.
    fn leave(self) -> impl Fn(&str) -> u64 {
        let Self { cuda, control, device, .. } = self;
        drop(cuda);
        move |name| control.counter(i32::from(device.0), name)
    }
}

fn config() -> Config {
    Config { cuda_lib: Some(fakes::fakecuda()), ..Config::default() }
}

/// `memory`, for a copy that is waited for before it is looked at again.
fn region(memory: &mut [u8]) -> Region {
    // SAFETY: upheld by the tests, see above.
    unsafe { Region::new(memory.as_mut_ptr(), memory.len()) }
}

/// Bytes that are nowhere equal to those of another seed.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 239) as u8 ^ seed).collect()
}
