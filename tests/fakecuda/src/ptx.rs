//! Runs PTX, the assembly language of CUDA devices, on the host: as much of it as kernels without shared memory need.
//!
//! Threads run one after the other. The lanes of a warp wait for each other where they exchange words or vote, and nowhere else. Other ways to wait
//! are refused when a kernel is read, as is everything else that is not known.

use std::collections::BTreeMap;

use crate::settings;
use operations::{OPERANDS_MAX, Operation, low, shift_right};
use reader::Reader;

mod operations;
mod reader;

/// What a kernel's loads and stores reach.
pub trait Memory {
    /// Fills `to` from `address`; false if that is not all allocated.
    fn load(&self, address: u64, to: &mut [u8]) -> bool;
    /// Writes `from` to `address`; false if that is not all allocated.
    fn store(&mut self, address: u64, from: &[u8]) -> bool;
}

/// The kernels of one text.
#[derive(Clone, Debug)]
pub struct Module {
    /// Of PTX: major and minor number.
    version: (u32, u32),
    /// Capability of the devices for which it is, and of which later ones run it.
    target: (u32, u32),
    kernels: BTreeMap<String, Kernel>,
}

/// A kernel, ready to run.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Bytes of each parameter, in order.
    params: Vec<usize>,
    registers: usize,
    code: Vec<Instruction>,
}

/// Why a kernel ended before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A load or store of memory that is not allocated, or not at a multiple of its size.
    Access {
        /// Where.
        address: u64,
        /// Of how much.
        bytes: usize,
    },
    /// The lanes of a warp exchange words or vote, and not all 32 lanes take part: some have ended, or are elsewhere, or there are fewer.
    Apart,
}

/// Which thread of which block it is, and how many there are; one dimension.
#[derive(Clone, Copy, Default, Debug)]
struct Thread {
    index: u32,
    threads: u32,
    block: u32,
    blocks: u32,
}

#[derive(Clone, Debug)]
struct Instruction {
    /// Done only if the register is true, or false.
    guard: Option<(usize, bool)>,
    work: Work,
}

#[derive(Clone, Debug)]
enum Work {
    Return,
    Branch {
        to: usize,
    },
    Param {
        to: usize,
        bytes: usize,
        base: Value,
        offset: u64,
    },
    Load {
        to: usize,
        bytes: usize,
        is_signed: bool,
        base: usize,
        offset: u64,
    },
    Store {
        from: Value,
        bytes: usize,
        base: usize,
        offset: u64,
    },
    /// Combines a word of memory with `from`; `to` gets the word as it was.
    Atomic {
        to: usize,
        from: Value,
        base: usize,
        offset: u64,
        operation: Operation,
    },
    /// All lanes of a warp bring the word `from`.
    Meet {
        to: usize,
        from: Value,
        members: Value,
        meeting: Meeting,
    },
    Compute {
        to: usize,
        operation: Operation,
        from: [Value; OPERANDS_MAX],
    },
}

/// What lanes get where they meet.
#[derive(Clone, Copy, Debug)]
enum Meeting {
    /// The word of the lane whose number differs by the bits of `distance`.
    Exchange { distance: Value, last: Value },
    /// A bit for each lane: whether its word is true.
    Ballot,
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Register(usize),
    Constant(u64),
    Special(Special),
}

#[derive(Clone, Copy, Debug)]
enum Special {
    Thread,
    Threads,
    Block,
    Blocks,
}

impl Module {
    /// Reads the kernels of `text`.
    ///
    /// # Errors
    /// What is not known, with its line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut version, mut target) = ((0, 0), (0, 0));
        let mut kernels = BTreeMap::new();
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, statement(line)));
        while let Some((number, line)) = lines.next() {
            let Some((_, name)) = line.split_once(".entry ") else {
                let unknown = || format!("line {number}: `{line}` is not known here");
                match line.split_once(' ') {
                    Some((".version", text)) => version = settings::version(text).ok_or_else(unknown)?,
                    Some((".target", text)) => target = capability(text).ok_or_else(unknown)?,
                    Some((".address_size", "64")) => {}
                    _ if line.is_empty() => {}
                    _ => return Err(unknown()),
                }
                continue;
            };
            let mut kernel = Reader::default();
            for (number, line) in lines.by_ref() {
                if line == "}" {
                    break;
                }
                kernel.read(line).map_err(|what| format!("line {number}: {what}"))?;
            }
            let name = name.trim_end_matches('(').to_owned();
            kernels.insert(name, kernel.finish()?);
        }
        Ok(Self { version, target, kernels })
    }

    /// The version of PTX that it says it is in: major and minor number.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The compute capability that it needs at least: major and minor number.
    pub fn target(&self) -> (u32, u32) {
        self.target
    }

    /// The kernel called `name`.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.get(name)
    }

    /// What its kernels are called, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kernels.keys().map(String::as_str)
    }
}

/// The capability of a target such as `sm_75` or `sm_100`. Targets with a letter, such as `sm_90a`, run on devices of that one alone, which
/// nothing here has.
fn capability(text: &str) -> Option<(u32, u32)> {
    let number: u32 = text.strip_prefix("sm_")?.parse().ok()?;
    Some((number / 10, number % 10))
}

/// A line without comment, indentation and the semicolon at its end.
fn statement(line: &str) -> &str {
    line.split("//").next().unwrap_or_default().trim().trim_end_matches(';').trim_end()
}

impl Fault {
    /// Whether it is an access at no multiple of its size.
    pub const fn is_misaligned(self) -> bool {
        matches!(self, Self::Access { address, bytes } if !address.is_multiple_of(bytes as u64))
    }
}

impl Kernel {
    /// Bytes of each parameter, in order.
    pub fn params(&self) -> &[usize] {
        &self.params
    }

    /// Runs `blocks` blocks of `threads` threads. `params` has the bytes of all parameters, one behind the other.
    ///
    /// # Errors
    /// The first [`Fault`]; what was stored before stays.
    pub fn run(&self, blocks: u32, threads: u32, params: &[u8], memory: &mut dyn Memory) -> Result<(), Fault> {
        let mut lanes = Vec::new();
        for block in 0..blocks {
            for first in (0..threads).step_by(LANES) {
                lanes.resize_with(LANES.min((threads - first) as usize), || Lane::new(self.registers));
                for (index, lane) in (first..).zip(&mut lanes) {
                    lane.begin(Thread { index, threads, block, blocks });
                }
                self.run_warp(&mut lanes, params, memory)?;
            }
        }
        Ok(())
    }

    /// Runs lanes to their end.
    fn run_warp(&self, lanes: &mut [Lane], params: &[u8], memory: &mut dyn Memory) -> Result<(), Fault> {
        loop {
            for lane in &mut *lanes {
                self.run_lane(lane, params, memory)?;
            }
            let Some(at) = lanes.iter().map(|lane| lane.next).min().filter(|next| *next < self.code.len()) else {
                return Ok(());
            };
            let Work::Meet { to, from, members, meeting } = &self.code[at].work else {
                unreachable!("lanes stop there or at the end")
            };
            let is_of_all = |lane: &Lane| {
                let is_last = match meeting {
                    Meeting::Exchange { last, .. } => low(lane.value(*last)) == LANES as u64 - 1,
                    Meeting::Ballot => true,
                };
                lane.next == at && low(lane.value(*members)) == low(u64::MAX) && is_last
            };
            if lanes.len() < LANES || !lanes.iter().all(is_of_all) {
                return Err(Fault::Apart);
            }
            let words: Vec<u64> = lanes.iter().map(|lane| low(lane.value(*from))).collect();
            let ballot = words.iter().enumerate().fold(0, |bits, (lane, word)| bits | u64::from(*word != 0) << lane);
            for (number, lane) in lanes.iter_mut().enumerate() {
                lane.registers[*to] = match meeting {
                    Meeting::Exchange { distance, .. } => words[(number ^ lane.value(*distance) as usize) % LANES],
                    Meeting::Ballot => ballot,
                };
                lane.next += 1;
            }
        }
    }

    /// Runs a lane to its end, or to where lanes meet.
    fn run_lane(&self, lane: &mut Lane, params: &[u8], memory: &mut dyn Memory) -> Result<(), Fault> {
        while let Some(Instruction { guard, work }) = self.code.get(lane.next) {
            let at = lane.next;
            lane.next += 1;
            if guard.is_some_and(|(register, expected)| (lane.registers[register] != 0) != expected) {
                continue;
            }
            match work {
                Work::Return => lane.next = self.code.len(),
                Work::Branch { to } => lane.next = *to,
                Work::Param { to, bytes, base, offset } => {
                    let (address, mut word) = (lane.value(*base).wrapping_add(*offset), [0; 8]);
                    let from = usize::try_from(address).ok().and_then(|start| params.get(start..start + *bytes));
                    word[..*bytes].copy_from_slice(from.ok_or(Fault::Access { address, bytes: *bytes })?);
                    lane.registers[*to] = u64::from_le_bytes(word);
                }
                Work::Load { to, bytes, is_signed, base, offset } => {
                    let (address, mut word) = (lane.registers[*base].wrapping_add(*offset), [0; 8]);
                    reach(address, *bytes, || memory.load(address, &mut word[..*bytes]))?;
                    let (bits, above) = (u64::from_le_bytes(word), 64 - 8 * *bytes);
                    lane.registers[*to] = if *is_signed { shift_right(bits << above, above as u64) } else { bits };
                }
                Work::Store { from, bytes, base, offset } => {
                    let (address, word) = (lane.registers[*base].wrapping_add(*offset), lane.value(*from));
                    reach(address, *bytes, || memory.store(address, &word.to_le_bytes()[..*bytes]))?;
                }
                Work::Atomic { to, from, base, offset, operation } => {
                    let (address, mut word) = (lane.registers[*base].wrapping_add(*offset), [0; 4]);
                    reach(address, word.len(), || memory.load(address, &mut word))?;
                    let before = u64::from(u32::from_le_bytes(word));
                    let after = operation([before, lane.value(*from), 0, 0]) as u32;
                    reach(address, word.len(), || memory.store(address, &after.to_le_bytes()))?;
                    lane.registers[*to] = before;
                }
                Work::Meet { .. } => {
                    lane.next = at;
                    break;
                }
                Work::Compute { to, operation, from } => {
                    lane.registers[*to] = operation(from.map(|operand| lane.value(operand)));
                }
            }
        }
        Ok(())
    }
}

/// The lanes of a warp.
const LANES: usize = 32;

/// A thread and what it has.
struct Lane {
    thread: Thread,
    registers: Vec<u64>,
    /// Its next instruction; behind the last one it has ended.
    next: usize,
}

impl Lane {
    fn new(registers: usize) -> Self {
        Self { thread: Thread::default(), registers: vec![0; registers], next: 0 }
    }

    fn begin(&mut self, thread: Thread) {
        self.registers.fill(0);
        (self.thread, self.next) = (thread, 0);
    }

    fn value(&self, of: Value) -> u64 {
        let Thread { index, threads, block, blocks } = self.thread;
        match of {
            Value::Register(register) => self.registers[register],
            Value::Constant(bits) => bits,
            Value::Special(special) => u64::from(match special {
                Special::Thread => index,
                Special::Threads => threads,
                Special::Block => block,
                Special::Blocks => blocks,
            }),
        }
    }
}

/// Does what loads or stores, or says where that cannot be done.
fn reach(address: u64, bytes: usize, access: impl FnOnce() -> bool) -> Result<(), Fault> {
    let fault = Fault::Access { address, bytes };
    if !fault.is_misaligned() && access() { Ok(()) } else { Err(fault) }
}

#[cfg(test)]
mod tests;
