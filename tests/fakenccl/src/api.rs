//! The functions that the library exports.

#![expect(
    unsafe_code,
    reason = "a C interface: names are exported, and results are written to where the caller's pointers point"
)]

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::sync::Arc;

use crate::arithmetic::{Combine, Type};
use crate::clock;
use crate::codes::{Failure, IN_PROGRESS, INVALID_USAGE, Outcome, SUCCESS, SYSTEM_ERROR, text as error_text};
use crate::comm::Comm;
use crate::config::Config;
use crate::group::{self, Ended};
use crate::library::Library;
use crate::operation::{Factor, Kind, Reduction, Task};
use crate::settings::variable;

/// The first version that has `ncclCommRevoke`.
const REVOKES: c_int = 22_807;

/// `ncclUniqueId`: here the path of the file.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

/// Exported functions: `fn name(arguments) |library| { body }`; the body gives the code of success, which may be that of progress.
macro_rules! exported {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) |$library:pat_param| $body:block)+) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $kind),*) -> u32 {
                answer(stringify!($name), move |$library: &'static Library| $body)
            }
        )+
    };
}

fn answer(name: &'static str, body: impl FnOnce(&'static Library) -> Outcome<u32>) -> u32 {
    clock::enter();
    let library = Library::get();
    let outcome = match library.begin(name) {
        Some(code) => Err(Failure::new(code, format!("{name} fails because a test wants it to"))),
        None => body(library),
    };
    let code = outcome.unwrap_or_else(|failure| {
        library.note(&failure);
        failure.code
    });
    clock::leave();
    code
}

exported! {
    fn ncclGetVersion(version: *mut c_int) |library| { put(version, library.settings().version) }
    fn ncclGetUniqueId(id: *mut UniqueId) |_| { put(id, unique_id()?) }
    fn ncclCommInitRank(comm: *mut usize, ranks: c_int, id: UniqueId, rank: c_int) |library| {
        init(library, comm, ranks, id, rank, true)
    }
    fn ncclCommInitRankConfig(
        comm: *mut usize, ranks: c_int, id: UniqueId, rank: c_int, config: *const Config,
    ) |library| {
        init(library, comm, ranks, id, rank, blocks(config, true)?)
    }
    fn ncclCommSplit(comm: usize, color: c_int, key: c_int, new: *mut usize, config: *const Config) |library| {
        let parent = library.comm(comm)?;
        parent.ready()?;
        let blocks = blocks(config, parent.blocks)?;
        put(new, 0)?;
        // Who is with whom is known at once: all ranks call it, and wait for each other here.
        let Some((rank, ranks, path)) = parent.split(color, key)? else { return Ok(SUCCESS) };
        let child = parent.child(rank, ranks, blocks)?;
        meet(library, new, child, path)
    }
    fn ncclCommFinalize(comm: usize) |library| {
        library.look_at_the_context();
        let comm = library.comm(comm)?;
        comm.finalize()?;
        if comm.blocks {
            comm.drain()?;
        }
        Ok(if comm.blocks { SUCCESS } else { IN_PROGRESS })
    }
    fn ncclCommDestroy(comm: usize) |library| {
        library.look_at_the_context();
        let found = library.comm(comm)?;
        if !found.blocks && found.result() == IN_PROGRESS {
            let text = "Attempt to use communicator before the previous operation returned ncclSuccess";
            return Err(Failure::argument(text));
        }
        library.take(|settings| settings.destroy);
        let outcome = found.wait_until_idle().and_then(|()| found.drain());
        found.leave();
        library.forget(comm);
        outcome.map(|()| SUCCESS)
    }
    fn ncclCommAbort(comm: usize) |library| {
        library.look_at_the_context();
        let found = library.comm(comm)?;
        found.abort();
        library.forget(comm);
        Ok(SUCCESS)
    }
    fn ncclCommRevoke(comm: usize, flags: c_int) |library| {
        if library.settings().version < REVOKES {
            return Err(Failure::argument("this version has no such function"));
        }
        if flags != 0 {
            return Err(Failure::argument("no flags are known"));
        }
        let found = library.comm(comm)?;
        found.revoke();
        Ok(if found.blocks { SUCCESS } else { IN_PROGRESS })
    }
    fn ncclCommGetAsyncError(comm: usize, result: *mut u32) |library| {
        let state = library.comm(comm)?.result();
        if state != IN_PROGRESS {
            clock::learn();
        }
        put(result, state)
    }
    fn ncclCommCount(comm: usize, count: *mut c_int) |library| { put(count, int(library.comm(comm)?.ranks)) }
    fn ncclCommUserRank(comm: usize, rank: *mut c_int) |library| { put(rank, int(library.comm(comm)?.rank)) }
    fn ncclCommCuDevice(comm: usize, device: *mut c_int) |library| { put(device, library.comm(comm)?.place.device) }
    fn ncclGroupStart() |_| {
        group::start();
        Ok(SUCCESS)
    }
    fn ncclGroupEnd() |_| { ended() }
    fn ncclAllReduce(
        send: usize, receive: usize, count: usize, dtype: u32, op: u32, comm: usize, stream: usize,
    ) |library| {
        let comm = library.comm(comm)?;
        call(stream, (send, receive), count, dtype, Kind::AllReduce(reduction(&comm, op)?), comm)
    }
    fn ncclReduce(
        send: usize, receive: usize, count: usize, dtype: u32, op: u32, root: c_int, comm: usize, stream: usize,
    ) |library| {
        let comm = library.comm(comm)?;
        let kind = Kind::Reduce { reduction: reduction(&comm, op)?, root: rank(&comm, root)? };
        call(stream, (send, receive), count, dtype, kind, comm)
    }
    fn ncclReduceScatter(
        send: usize, receive: usize, count: usize, dtype: u32, op: u32, comm: usize, stream: usize,
    ) |library| {
        let comm = library.comm(comm)?;
        call(stream, (send, receive), count, dtype, Kind::ReduceScatter(reduction(&comm, op)?), comm)
    }
    fn ncclAllGather(send: usize, receive: usize, count: usize, dtype: u32, comm: usize, stream: usize) |library| {
        call(stream, (send, receive), count, dtype, Kind::AllGather, library.comm(comm)?)
    }
    fn ncclBroadcast(
        send: usize, receive: usize, count: usize, dtype: u32, root: c_int, comm: usize, stream: usize,
    ) |library| {
        let comm = library.comm(comm)?;
        let kind = Kind::Broadcast { root: rank(&comm, root)? };
        call(stream, (send, receive), count, dtype, kind, comm)
    }
    fn ncclSend(send: usize, count: usize, dtype: u32, peer: c_int, comm: usize, stream: usize) |library| {
        let comm = library.comm(comm)?;
        let kind = Kind::Send { to: rank(&comm, peer)? };
        call(stream, (send, 0), count, dtype, kind, comm)
    }
    fn ncclRecv(receive: usize, count: usize, dtype: u32, peer: c_int, comm: usize, stream: usize) |library| {
        let comm = library.comm(comm)?;
        let kind = Kind::Receive { from: rank(&comm, peer)? };
        call(stream, (0, receive), count, dtype, kind, comm)
    }
    fn ncclRedOpCreatePreMulSum(op: *mut u32, scalar: usize, dtype: u32, residence: u32, comm: usize) |library| {
        let comm = library.comm(comm)?;
        comm.ready()?;
        let bytes = Type::of(dtype)?.bytes();
        let factor = match residence {
            0 => Factor::OnDevice(scalar),
            1 => Factor::Here(bytes_at(scalar as *const u8, bytes)?),
            _ => return Err(Failure::argument("the scalar lies neither on the device nor here")),
        };
        put(op, comm.add_scale(factor))
    }
    fn ncclRedOpDestroy(op: u32, comm: usize) |library| {
        library.comm(comm)?.remove_scale(op)?;
        Ok(SUCCESS)
    }
    fn fakenccl_set(name: *const c_char, value: *const c_char) |library| {
        let understood = library.set(&string(name)?, &string(value)?);
        if understood { Ok(SUCCESS) } else { Err(Failure::argument("a setting that is not understood")) }
    }
    fn fakenccl_counter(name: *const c_char, value: *mut u64) |library| {
        put(value, library.counter(&string(name)?))
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: u32) -> *const c_char {
    error_text(code).as_ptr()
}

/// The communicator may be null.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(comm: usize) -> *const c_char {
    Library::get().last_error(comm)
}

fn unique_id() -> Outcome<UniqueId> {
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid");
    let random = random.map_err(|error| Failure::new(SYSTEM_ERROR, format!("no random number: {error}")))?;
    let path = std::env::temp_dir().join(format!("fakenccl-{}", random.trim()));
    let path = path.as_os_str().as_encoded_bytes();
    let mut id = UniqueId([0; 128]);
    // The last byte stays 0.
    if path.len() >= id.0.len() {
        return Err(Failure::new(SYSTEM_ERROR, "the name of the temporary folder is too long"));
    }
    id.0[..path.len()].copy_from_slice(path);
    Ok(id)
}

fn init(library: &Library, to: *mut usize, ranks: c_int, id: UniqueId, rank: c_int, blocks: bool) -> Outcome<u32> {
    let path: Vec<u8> = id.0.iter().copied().take_while(|byte| *byte != 0).collect();
    let path = String::from_utf8(path).ok().filter(|path| path.contains("fakenccl-"));
    let path = path.ok_or_else(|| Failure::argument("the unique id is none of this library"))?;
    let [rank, ranks] = [rank, ranks].map(usize::try_from);
    let (Ok(rank), Ok(ranks)) = (rank, ranks) else { return Err(Failure::argument("a negative rank")) };
    if rank >= ranks {
        return Err(Failure::argument(format!("rank {rank} of {ranks}")));
    }
    let comm = Comm::new(rank, ranks, blocks)?;
    match library.settings().init_code {
        0 => meet(library, to, comm, PathBuf::from(path)),
        code => {
            // As NCCL does where it fails after it has made the communicator: whoever called has it, and must abort it.
            put(to, library.enter(comm))?;
            Err(Failure::new(code, "ncclCommInitRankConfig fails at once because a test wants it to"))
        }
    }
}

/// Begins to meet; whether that has ended is for the group to say.
fn meet(library: &Library, to: *mut usize, comm: Arc<Comm>, path: PathBuf) -> Outcome<u32> {
    put(to, library.enter(comm.clone()))?;
    comm.meet(path);
    group::start();
    group::add_meeting(comm);
    ended()
}

fn call(
    stream: usize,
    (send, receive): (usize, usize),
    count: usize,
    dtype: u32,
    kind: Kind,
    comm: Arc<Comm>,
) -> Outcome<u32> {
    let task = Task { kind, dtype: Type::of(dtype)?, count, send, receive };
    if count == 0 {
        comm.ready()?;
        return Ok(SUCCESS);
    }
    group::start();
    let added = group::add(comm, stream, task);
    let ended = ended();
    added.and(ended)
}

fn ended() -> Outcome<u32> {
    Library::get().look_at_the_context();
    group::end().map(|ended| if ended == Ended::Later { IN_PROGRESS } else { SUCCESS })
}

fn reduction(comm: &Comm, op: u32) -> Outcome<Reduction> {
    Ok(match op {
        0 => Reduction::Plain(Combine::Sum),
        1 => Reduction::Plain(Combine::Prod),
        2 => Reduction::Plain(Combine::Max),
        3 => Reduction::Plain(Combine::Min),
        4 => Reduction::Average,
        own => Reduction::Scaled(comm.scale(own)?),
    })
}

fn rank(comm: &Comm, rank: c_int) -> Outcome<usize> {
    let found = usize::try_from(rank).ok().filter(|rank| *rank < comm.ranks);
    found.ok_or_else(|| Failure::argument(format!("rank {rank} of {}", comm.ranks)))
}

fn blocks(config: *const Config, otherwise: bool) -> Outcome<bool> {
    if config.is_null() {
        return Ok(otherwise);
    }
    let mut known = Config::NOTHING;
    // SAFETY: the size comes first in all versions, and the caller passes as many bytes as it says.
    let given = unsafe { config.cast::<usize>().read() }.min(Config::bytes_of(Library::get().settings().version));
    // SAFETY: the same bytes, no more than `known` has. The fields are numbers and pointers, which are not followed.
    unsafe { std::ptr::copy_nonoverlapping(config.cast::<u8>(), (&raw mut known).cast::<u8>(), given) };
    let blocks = known.blocks(otherwise)?;
    // The environment goes before the program.
    Ok(match variable("NCCL_COMM_BLOCKING").as_deref() {
        Some("0") => false,
        Some("1") => true,
        _ => blocks,
    })
}

fn put<T>(to: *mut T, value: T) -> Outcome<u32> {
    if to.is_null() {
        return Err(Failure::argument("a null pointer where a result goes"));
    }
    // SAFETY: the caller of the C interface passes a place for the result.
    unsafe { to.write(value) };
    Ok(SUCCESS)
}

fn bytes_at(from: *const u8, len: usize) -> Outcome<Vec<u8>> {
    if from.is_null() {
        return Err(Failure::argument("a null pointer where bytes are"));
    }
    // SAFETY: the caller of the C interface passes as many readable bytes.
    Ok(unsafe { std::slice::from_raw_parts(from, len) }.to_vec())
}

fn string(from: *const c_char) -> Outcome<String> {
    if from.is_null() {
        return Err(Failure::new(INVALID_USAGE, "a null pointer where a text is"));
    }
    // SAFETY: the caller of the C interface passes a text that ends with a zero.
    Ok(unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned())
}

fn int(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}
