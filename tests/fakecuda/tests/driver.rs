//! The fake as cudarc sees it: what the driver's documentation promises holds, and what it forbids is refused.
//!
//! All tests share the one driver of this process; each takes a device of its own.

#![expect(unsafe_code, reason = "the driver's interface is C")]

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use cudarc::driver::sys::{self, CUcontext, CUevent, CUfunction, CUmodule, CUstream};
use fakecuda::{Control, library};

const DEVICES: i32 = 40;
/// Longer than any pause of a busy machine between two calls.
const LAG_US: u64 = 100_000;

/// Each thread of a block adds the second parameter to a word of its own from where the first says.
const ADD: &CStr = c"
    .version 8.0
    .visible .entry add(
        .param .u64 add_to,
        .param .u32 add_more
    )
    {
        ld.param.u64 %rd1, [add_to];
        ld.param.u32 %r1, [add_more];
        mov.u32 %r2, %tid.x;
        mul.wide.u32 %rd2, %r2, 4;
        add.s64 %rd1, %rd1, %rd2;
        ld.global.u32 %r3, [%rd1];
        add.s32 %r3, %r3, %r1;
        st.global.u32 [%rd1], %r3;
        ret;
    }";

/// Calls the driver; the number that it answers.
macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the fake checks handles and addresses of devices; places of the host outlive the calls, which wait where they must.
        unsafe { sys::$function($($argument),*) as u32 }
    };
}

#[path = "driver/graphs.rs"]
mod graphs;

/// The driver with a device that no other test uses, whose context is current in this thread.
struct World {
    control: Control,
    device: i32,
    context: CUcontext,
}

impl World {
    fn new() -> Self {
        static NEXT: AtomicI32 = AtomicI32::new(0);
        let control = Control::open(&library());
        let device = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(device < DEVICES, "more devices, please");
        control.set("DEVICES", &DEVICES.to_string());
        // SAFETY: loading it runs nothing.
        assert!(unsafe { sys::is_culib_present() }, "cudarc finds what is mapped by its name");
        assert_eq!(cu!(cuInit(0)), 0);
        let mut context = null_mut();
        assert_eq!(cu!(cuDevicePrimaryCtxRetain(&mut context, device)), 0);
        assert_eq!(cu!(cuCtxSetCurrent(context)), 0);
        Self { control, device, context }
    }

    fn stream(&self, flags: u32) -> CUstream {
        let mut stream = null_mut();
        assert_eq!(cu!(cuStreamCreate(&mut stream, flags)), 0);
        stream
    }

    fn event(&self) -> CUevent {
        let mut event = null_mut();
        assert_eq!(cu!(cuEventCreate(&mut event, 2)), 0);
        event
    }

    fn allocate(&self, bytes: usize) -> u64 {
        let mut address = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&mut address, bytes)), 0);
        address
    }

    fn pinned(&self, bytes: usize) -> *mut c_void {
        let mut address = null_mut();
        assert_eq!(cu!(cuMemHostAlloc(&mut address, bytes, 1)), 0);
        address
    }

    /// The words of a device, after all that its default stream is ordered with.
    fn words(&self, address: u64, count: usize) -> Vec<u32> {
        words(&self.control.consume(self.device, 0, address, count * 4))
    }

    /// A kernel in a module of its own, which adds a number to a word a thread.
    fn kernel(&self) -> (CUmodule, CUfunction) {
        let (mut module, mut add) = (null_mut(), null_mut());
        assert_eq!(cu!(cuModuleLoadData(&mut module, ADD.as_ptr().cast())), 0);
        assert_eq!(cu!(cuModuleGetFunction(&mut add, module, c"add".as_ptr())), 0);
        (module, add)
    }

    /// A stream that is slow, and words that it will write.
    fn producer(&self, address: u64, values: &[u32]) -> CUstream {
        let stream = self.control.user_stream(self.device);
        self.control.lag(stream, LAG_US);
        self.control.produce(self.device, stream, address, &bytes(values));
        stream as CUstream
    }
}

#[test]
fn the_driver_introduces_itself() {
    let world = World::new();
    let mut version = 0;
    assert_eq!(cu!(cuDriverGetVersion(&mut version)), 0);
    assert_eq!(version, 13_000);
    let mut count = 0;
    assert_eq!(cu!(cuDeviceGetCount(&mut count)), 0);
    assert_eq!(count, DEVICES);
    let mut name = [0_i8; 64];
    assert_eq!(cu!(cuDeviceGetPCIBusId(name.as_mut_ptr(), 64, 1)), 0);
    let name: Vec<u8> = name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    assert_eq!(String::from_utf8_lossy(&name), "0000:02:00.0");
    let mut major = 0;
    let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    assert_eq!(cu!(cuDeviceGetAttribute(&mut major, attribute, world.device)), 0);
    assert_eq!(major, 9);
    assert_eq!(cu!(cuDeviceGet(&mut count, DEVICES)), 101);
}

#[test]
fn every_byte_of_a_copy_arrives() {
    let world = World::new();
    let (stream, device, other) = (world.stream(1), world.allocate(4096), world.allocate(4096));
    let (there, back) = (world.pinned(4096), world.pinned(4096));
    let values: Vec<u32> = (0..1024).collect();
    write(there, &values);
    assert_eq!(cu!(cuMemcpyHtoDAsync_v2(device, there, 4096, stream)), 0);
    assert_eq!(cu!(cuMemcpyDtoDAsync_v2(other, device, 4096, stream)), 0);
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(back, other, 4096, stream)), 0);
    assert_eq!(cu!(cuStreamSynchronize(stream)), 0);
    assert_eq!(read(back, 1024), values);
    let counters =
        ["copies_h2d", "copies_d2d", "copies_d2h", "bytes_d2h", "pageable_copies", "write_combined", "live_streams"];
    let counted = counters.map(|name| world.control.counter(world.device, name));
    assert_eq!(counted, [1, 1, 1, 4096, 0, 0, 1]);
}

#[test]
fn a_fill_writes_its_pattern() {
    let world = World::new();
    let address = world.allocate(4096);
    assert_eq!(cu!(cuMemsetD8_v2(address, 7, 4096)), 0);
    assert_eq!(cu!(cuMemsetD32Async(address + 4, 99, 2, null_mut())), 0);
    assert_eq!(world.words(address, 4), [0x0707_0707, 99, 99, 0x0707_0707]);
}

#[test]
fn a_pinned_copy_returns_at_once_and_a_pageable_one_when_it_has_ended() {
    let world = World::new();
    let (device, pinned) = (world.allocate(16), world.pinned(16));
    let stream = world.producer(device, &[1, 2, 3, 4]);
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(pinned, device, 16, stream)), 0);
    assert_eq!(cu!(cuStreamQuery(stream)), 600, "what is slow is still under way");
    let mut pageable = [0_u32; 4];
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(pageable.as_mut_ptr().cast(), device, 16, stream)), 0);
    assert_eq!(pageable, [1, 2, 3, 4]);
    assert_eq!(read(pinned, 4), [1, 2, 3, 4], "it came before it in the stream");
    assert_eq!(world.control.counter(world.device, "pageable_copies"), 1);
}

#[test]
fn memory_that_was_registered_is_pinned_until_it_is_unregistered() {
    let world = World::new();
    let mut memory = vec![0_u32; 4096];
    let (start, bytes) = (memory.as_mut_ptr().cast::<c_void>(), memory.len() * 4);
    assert_eq!(cu!(cuMemHostRegister_v2(start, bytes, 1)), 0);
    assert_eq!(cu!(cuMemHostRegister_v2(start.wrapping_byte_add(64), 64, 1)), 712);
    assert_eq!(world.control.counter(world.device, "pinned_bytes"), bytes as u64);
    let device = world.allocate(64);
    let stream = world.producer(device, &[5]);
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(start.wrapping_byte_add(4), device, 4, stream)), 0);
    assert_eq!(cu!(cuStreamQuery(stream)), 600);
    assert_eq!(cu!(cuMemHostUnregister(start)), 0);
    assert_eq!(world.control.counter(world.device, "released_in_use"), 1, "the copy was under way");
    assert_eq!(memory[..2], [0, 5]);
    assert_eq!(cu!(cuMemHostUnregister(start)), 713);
    assert_eq!(world.control.counter(world.device, "pinned_bytes"), 0);
}

#[test]
fn a_stream_that_waits_for_an_event_sees_what_came_before_it() {
    let world = World::new();
    let (device, pinned, event) = (world.allocate(4), world.pinned(4), world.event());
    let producer = world.producer(device, &[42]);
    assert_eq!(cu!(cuEventRecord(event, producer)), 0);
    assert_eq!(cu!(cuEventQuery(event)), 600);
    let consumer = world.stream(1);
    assert_eq!(cu!(cuStreamWaitEvent(consumer, event, 0)), 0);
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(pinned, device, 4, consumer)), 0);
    assert_eq!(cu!(cuStreamSynchronize(consumer)), 0);
    assert_eq!(read(pinned, 1), [42]);
    assert_eq!(cu!(cuEventQuery(event)), 0);
}

#[test]
fn a_missing_wait_is_seen_in_thirty_of_thirty_runs() {
    let world = World::new();
    let consumer = world.stream(1);
    let (device, pinned) = (world.allocate(4), world.pinned(4));
    for run in 1..=30 {
        let producer = world.producer(device, &[run]);
        assert_eq!(cu!(cuMemcpyDtoHAsync_v2(pinned, device, 4, consumer)), 0);
        assert_eq!(cu!(cuStreamSynchronize(consumer)), 0);
        assert_eq!(read(pinned, 1), [run - 1], "what was there before");
        assert_eq!(cu!(cuStreamSynchronize(producer)), 0);
        assert_eq!(cu!(cuStreamDestroy_v2(producer)), 0);
    }
}

#[test]
fn whoever_waits_for_an_event_waits_for_the_record_before_it() {
    let world = World::new();
    let (device, pinned, event) = (world.allocate(4), world.pinned(4), world.event());
    let slow = world.producer(device, &[1]);
    assert_eq!(cu!(cuEventRecord(event, slow)), 0);
    let consumer = world.stream(1);
    assert_eq!(cu!(cuStreamWaitEvent(consumer, event, 0)), 0);
    // The event is used again, on a stream that has nothing to do.
    let idle = world.stream(1);
    assert_eq!(cu!(cuEventRecord(event, idle)), 0);
    assert_eq!(cu!(cuEventSynchronize(event)), 0);
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(pinned, device, 4, consumer)), 0);
    assert_eq!(cu!(cuStreamQuery(consumer)), 600, "it still waits for the first record");
    assert_eq!(cu!(cuStreamSynchronize(consumer)), 0);
    assert_eq!(read(pinned, 1), [1]);
}

#[test]
fn an_event_of_a_destroyed_stream_is_still_reached() {
    let world = World::new();
    let (device, event) = (world.allocate(4), world.event());
    let producer = world.producer(device, &[9]);
    assert_eq!(cu!(cuEventRecord(event, producer)), 0);
    assert_eq!(cu!(cuStreamDestroy_v2(producer)), 0);
    assert_eq!(cu!(cuEventSynchronize(event)), 0);
    assert_eq!(world.words(device, 1), [9]);
}

#[test]
fn the_default_stream_waits_for_blocking_streams_only() {
    let world = World::new();
    let (device, pinned, host) = (world.allocate(8), world.pinned(8), world.pinned(8));
    write(pinned, &[3, 4]);
    for (flags, expected) in [(1, [0, 0]), (0, [3, 4])] {
        assert_eq!(cu!(cuMemsetD8_v2(device, 0, 8)), 0);
        assert_eq!(cu!(cuStreamSynchronize(null_mut())), 0);
        let stream = world.stream(flags);
        world.control.lag(stream as u64, LAG_US);
        assert_eq!(cu!(cuMemcpyHtoDAsync_v2(device, pinned, 8, stream)), 0);
        assert_eq!(cu!(cuMemcpyDtoHAsync_v2(host, device, 8, null_mut())), 0);
        assert_eq!(cu!(cuStreamSynchronize(null_mut())), 0);
        assert_eq!(read(host, 2), expected, "flags {flags}");
        assert_eq!(cu!(cuStreamSynchronize(stream)), 0);
    }
}

#[test]
fn memory_outside_of_an_allocation_is_refused() {
    let world = World::new();
    let (device, pinned) = (world.allocate(4096), world.pinned(8192));
    let copy = |address: u64, bytes: usize| cu!(cuMemcpyDtoHAsync_v2(pinned, address, bytes, null_mut()));
    assert_eq!(copy(device, 4096), 0);
    assert_eq!(copy(device, 4097), 1, "one too many");
    assert_eq!(copy(device + 4095, 2), 1);
    assert_eq!(copy(device - 1, 1), 1);
    assert_eq!(copy(pinned as u64, 16), 1, "memory of the host");
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(device as *mut c_void, device, 16, null_mut())), 1, "memory of the device");
    assert_eq!(cu!(cuMemFree_v2(device)), 0);
    assert_eq!(copy(device, 16), 1, "freed");
    assert_eq!(cu!(cuMemFree_v2(device)), 1);
}

#[test]
fn what_was_freed_is_given_out_again_at_once() {
    let world = World::new();
    let (first, other) = (world.allocate(5000), world.allocate(9000));
    world.control.free(first);
    assert_ne!(world.allocate(9000), other);
    assert_eq!(world.allocate(8000), first, "as many pages");
    assert_eq!(world.words(first, 1), [0], "and nothing of what was there");
}

#[test]
fn code_is_loaded_and_memory_is_pinned_and_freed_after_all_running_work() {
    let world = World::new();
    let [address, spare] = [(); 2].map(|()| world.allocate(4));
    let mut own = vec![0_u8; 4096];
    let start = own.as_mut_ptr();
    let pin = || assert!(!world.pinned(4).is_null());
    let load = || assert!(!world.kernel().0.is_null());
    let register = || assert_eq!(cu!(cuMemHostRegister_v2(start.cast(), 4096, 1)), 0);
    let free = || assert_eq!(cu!(cuMemFree_v2(spare)), 0);
    let waiting: [&dyn Fn(); 4] = [&pin, &load, &register, &free];
    for (at, call) in waiting.into_iter().enumerate() {
        let stream = world.producer(address, &[7]);
        assert_eq!(cu!(cuStreamQuery(stream)), 600, "call {at}");
        call();
        assert_eq!(cu!(cuStreamQuery(stream)), 0, "call {at}");
    }
    assert_eq!(cu!(cuMemHostUnregister(start.cast())), 0);
    assert_eq!(world.control.counter(world.device, "implicit_waits"), 3, "freeing is not counted");
}

#[test]
fn kernels_of_a_device_wait_for_a_free_place() {
    extern "C" fn first(order: *mut c_void) {
        let Order { begun, go_on, said } = order_of(order);
        begun.wait();
        go_on.wait();
        said.lock().expect("no panic").push("the first ends");
    }
    extern "C" fn second(order: *mut c_void) {
        order_of(order).said.lock().expect("no panic").push("the second begins");
    }
    let world = World::new();
    world.control.set("SLOTS", "1");
    let order = Order::default();
    let argument = (&raw const order).cast_mut().cast();
    let streams = [world.stream(1), world.stream(1)];
    assert_eq!(cu!(cuLaunchHostFunc(streams[0], Some(first), argument)), 0);
    order.begun.wait();
    assert_eq!(cu!(cuLaunchHostFunc(streams[1], Some(second), argument)), 0);
    order.go_on.wait();
    assert!(streams.iter().all(|stream| cu!(cuStreamSynchronize(*stream)) == 0));
    world.control.set("SLOTS", "8");
    assert_eq!(*order.said.lock().expect("no panic"), ["the first ends", "the second begins"]);
}

/// What two host functions and their test tell each other.
struct Order {
    begun: std::sync::Barrier,
    go_on: std::sync::Barrier,
    said: std::sync::Mutex<Vec<&'static str>>,
}

impl Default for Order {
    fn default() -> Self {
        let both = || std::sync::Barrier::new(2);
        Self { begun: both(), go_on: both(), said: std::sync::Mutex::default() }
    }
}

fn order_of<'a>(order: *mut c_void) -> &'a Order {
    // SAFETY: the test that passes it waits for the streams before it ends.
    unsafe { &*order.cast_const().cast::<Order>() }
}

#[test]
fn memory_of_another_device_is_refused() {
    let world = World::new();
    let other = World::new();
    let (theirs, pinned) = (other.allocate(64), other.pinned(64));
    let stream = other.stream(1);
    assert_eq!(cu!(cuCtxSetCurrent(world.context)), 0);
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(pinned, theirs, 64, null_mut())), 1);
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(pinned, theirs, 64, stream)), 400, "a stream of another context");
    let ours = world.allocate(64);
    assert_eq!(cu!(cuMemcpyPeerAsync(ours, world.context, theirs, other.context, 64, null_mut())), 0);
    assert_eq!(cu!(cuEventRecord(world.event(), stream)), 400);
}

#[test]
fn a_thread_without_a_context_is_told_so() {
    let world = World::new();
    let outcome = std::thread::spawn(|| {
        let mut address = 0;
        cu!(cuMemAlloc_v2(&mut address, 16))
    });
    assert_eq!(outcome.join().expect("no panic"), 201);
    let mut before = null_mut();
    assert_eq!(cu!(cuCtxPopCurrent_v2(&mut before)), 0);
    assert_eq!(before, world.context);
    assert_eq!(cu!(cuCtxSynchronize()), 201);
}

#[test]
fn only_mapped_memory_that_may_be_written_is_registered() {
    const PAGE: usize = 4096;
    let _world = World::new();
    // SAFETY: new memory, at an address of the kernel's choice.
    let start = unsafe {
        libc::mmap(
            null_mut(),
            3 * PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: of this mapping, which nobody uses.
    unsafe {
        assert_eq!(libc::mprotect(start.byte_add(PAGE), PAGE, libc::PROT_READ), 0);
        assert_eq!(libc::munmap(start.byte_add(2 * PAGE), PAGE), 0);
    }
    let read_only = start.wrapping_byte_add(PAGE);
    assert_eq!(cu!(cuMemHostRegister_v2(start, PAGE, 1)), 0);
    assert_eq!(cu!(cuMemHostRegister_v2(read_only, PAGE, 1)), 1);
    assert_eq!(cu!(cuMemHostRegister_v2(read_only, 2 * PAGE, 8)), 1, "the second page is not mapped");
    assert_eq!(cu!(cuMemHostRegister_v2(read_only, PAGE, 8)), 0);
    assert_eq!([start, read_only].map(|page| cu!(cuMemHostUnregister(page))), [0, 0]);
    // SAFETY: nothing is there any more that anybody uses.
    assert_eq!(unsafe { libc::munmap(start, 2 * PAGE) }, 0);
}

#[test]
fn a_call_fails_when_a_test_wants_it_to() {
    let world = World::new();
    world.control.set("FAIL", &format!("cuMemHostAlloc:{0}=2@2*1,DtoH:{0}=719", world.device));
    let mut address = null_mut();
    assert_eq!(cu!(cuMemHostAlloc(&mut address, 64, 1)), 0);
    assert_eq!(cu!(cuMemHostAlloc(&mut address, 64, 1)), 2);
    let (device, event, stream) = (world.allocate(64), world.event(), world.stream(1));
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(address, device, 64, stream)), 0, "it is accepted");
    // A failed device reaches its events; whoever asks hears why.
    let recorded = cu!(cuEventRecord(event, stream));
    assert!([0, 719].contains(&recorded));
    assert_eq!(cu!(cuStreamSynchronize(stream)), 719);
    assert_eq!(cu!(cuEventQuery(event)), 719);
    assert_eq!(cu!(cuMemAlloc_v2(&mut 0, 64)), 719, "and nothing works any more");
    world.control.fail_device(world.device, 0);
    assert_eq!(cu!(cuEventQuery(event)), 0);
}

#[test]
fn a_host_function_runs_in_its_turn_and_may_not_call_the_driver() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn look(word: *mut c_void) {
        // SAFETY: the test keeps the word until the stream has done this.
        let word = unsafe { *word.cast::<u32>() };
        assert_eq!(cu!(cuCtxSynchronize()), 800);
        SEEN.store(word, Ordering::Release);
    }
    let world = World::new();
    let (device, pinned) = (world.allocate(4), world.pinned(4));
    let stream = world.producer(device, &[77]);
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(pinned, device, 4, stream)), 0);
    let function: unsafe extern "C" fn(*mut c_void) = look;
    assert_eq!(cu!(cuLaunchHostFunc(stream, Some(function), pinned)), 0);
    assert_eq!(SEEN.load(Ordering::Acquire), 0);
    assert_eq!(cu!(cuStreamSynchronize(stream)), 0);
    assert_eq!(SEEN.load(Ordering::Acquire), 77);
}

#[test]
fn a_kernel_does_what_its_ptx_says_until_its_module_is_gone() {
    let world = World::new();
    let (module, add) = world.kernel();
    let mut function = null_mut();
    assert_eq!(cu!(cuModuleGetFunction(&mut function, module, c"subtract".as_ptr())), 500);
    let address = world.allocate(8);
    world.control.produce(world.device, 0, address, &bytes(&[40, 50]));
    assert_eq!(launch(add, (1, 2), address, 2), 0);
    assert_eq!(launch(add, (2, 1), address, 3), 0);
    assert_eq!(world.words(address, 2), [42 + 2 * 3, 52]);
    for grid in [(0, 1), (1, 0), (1, 1025)] {
        assert_eq!(launch(add, grid, address, 1), 1, "{grid:?}");
    }
    assert_eq!(cu!(cuModuleUnload(module)), 0);
    assert_eq!(launch(add, (1, 1), address, 1), 400);
}

#[test]
fn a_kernel_that_reaches_what_it_must_not_takes_the_device_with_it() {
    for (moved_by, threads, code) in [(0, 3, 700), (2, 1, 716)] {
        let world = World::new();
        let (_, add) = world.kernel();
        assert_eq!(launch(add, (1, threads), world.allocate(8) + moved_by, 1), 0);
        assert_eq!(cu!(cuCtxSynchronize()), code);
    }
}

#[test]
fn ptx_that_cannot_be_run_here_is_refused() {
    let _world = World::new();
    let mut module = null_mut();
    for text in [c"\x7fELF", c".visible .entry wait(\n)\n{\nbar.sync 0;\nret;\n}"] {
        assert_eq!(cu!(cuModuleLoadData(&mut module, text.as_ptr().cast())), 218, "{text:?}");
    }
}

#[test]
fn addresses_tell_what_they_are() {
    let world = World::new();
    let (device, pinned) = (world.allocate(256), world.pinned(256));
    let (mut base, mut bytes) = (0, 0);
    assert_eq!(cu!(cuMemGetAddressRange_v2(&mut base, &mut bytes, device + 100)), 0);
    assert_eq!((base, bytes), (device, 256));
    let kind = |address: u64| {
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        let mut kind = 0_u32;
        (cu!(cuPointerGetAttribute((&raw mut kind).cast(), attribute, address)), kind)
    };
    assert_eq!(kind(device + 255), (0, 2));
    assert_eq!(kind(pinned as u64), (0, 1));
    assert_eq!(kind(&raw const base as u64).0, 1);
}

#[test]
fn memory_of_the_device_is_counted_and_ends() {
    let world = World::new();
    let (mut free, mut total) = (0, 0);
    let address = world.allocate(1 << 20);
    assert_eq!(cu!(cuMemGetInfo_v2(&mut free, &mut total)), 0);
    assert_eq!(total - free, 1 << 20);
    assert_eq!(cu!(cuMemAlloc_v2(&mut 0, total)), 2);
    assert_eq!(cu!(cuMemFree_v2(address)), 0);
    assert_eq!(cu!(cuMemGetInfo_v2(&mut free, &mut total)), 0);
    assert_eq!((world.control.counter(world.device, "live_allocations"), free), (0, total));
}

#[test]
fn the_last_release_of_a_context_takes_all_with_it() {
    let world = World::new();
    let (device, _) = (world.allocate(64), world.stream(1));
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(world.device)), 0);
    assert_eq!(cu!(cuMemAlloc_v2(&mut 0, 64)), 709);
    let mut context = null_mut();
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(&mut context, world.device)), 0);
    assert_eq!(cu!(cuMemFree_v2(device)), 1);
    let counters = ["live_streams", "live_events", "live_allocations"];
    assert_eq!(counters.map(|name| world.control.counter(world.device, name)), [0; 3]);
}

#[test]
fn events_say_how_long_it_took_between_them() {
    let world = World::new();
    let (mut start, mut end) = (null_mut(), null_mut());
    assert_eq!(cu!(cuEventCreate(&mut start, 0)), 0);
    assert_eq!(cu!(cuEventCreate(&mut end, 0)), 0);
    let device = world.allocate(4);
    let stream = world.stream(1);
    world.control.lag(stream as u64, 20_000);
    assert_eq!(cu!(cuEventRecord(start, stream)), 0);
    assert_eq!(cu!(cuMemsetD8Async(device, 0, 4, stream)), 0);
    assert_eq!(cu!(cuEventRecord(end, stream)), 0);
    assert_eq!(cu!(cuEventSynchronize(end)), 0);
    let mut milliseconds = 0.0;
    assert_eq!(cu!(cuEventElapsedTime_v2(&mut milliseconds, start, end)), 0);
    assert!(Duration::from_secs_f32(milliseconds / 1e3) >= Duration::from_millis(20), "{milliseconds} ms");
    assert_eq!(cu!(cuEventElapsedTime_v2(&mut milliseconds, start, world.event())), 400, "an event without a time");
}

/// Into the default stream.
fn launch(add: CUfunction, grid: (u32, u32), to: u64, more: u32) -> u32 {
    launch_in(null_mut(), add, grid, to, more)
}

fn launch_in(stream: CUstream, add: CUfunction, (blocks, threads): (u32, u32), to: u64, more: u32) -> u32 {
    let mut arguments = [(&raw const to).cast_mut().cast::<c_void>(), (&raw const more).cast_mut().cast()];
    cu!(cuLaunchKernel(add, blocks, 1, 1, threads, 1, 1, 0, stream, arguments.as_mut_ptr(), null_mut()))
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().expect("four"))).collect()
}

fn write(to: *mut c_void, words: &[u32]) {
    // SAFETY: the tests give memory that is long enough and that no stream uses now.
    unsafe { std::slice::from_raw_parts_mut(to.cast::<u32>(), words.len()) }.copy_from_slice(words);
}

fn read(from: *mut c_void, count: usize) -> Vec<u32> {
    // SAFETY: as for `write`.
    unsafe { std::slice::from_raw_parts(from.cast::<u32>(), count) }.to_vec()
}
