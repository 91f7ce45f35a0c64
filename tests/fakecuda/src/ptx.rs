//! Runs PTX, the assembly language of CUDA devices, on the host: as much of it as kernels without shared memory need.
//!
//! Threads run one after the other, so that a kernel whose threads wait for each other cannot run here; it is refused when it is read, as is
//! everything else that is not known. Numbers come out as the PTX manual (8.0) says, bit for bit: each operation rounded once to nearest
//! even, subnormals kept, and every NaN that arithmetic makes the canonical one.

use std::collections::BTreeMap;

use crate::settings;

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

/// A load or store of memory that is not allocated, or not at a multiple of its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Where.
    pub address: u64,
    /// Of how much.
    pub bytes: usize,
}

/// Which thread of which block it is, and how many there are; one dimension.
#[derive(Clone, Copy, Debug)]
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
    Branch { to: usize },
    Param { to: usize, bytes: usize, base: Value, offset: u64 },
    Load { to: usize, bytes: usize, is_signed: bool, base: usize, offset: u64 },
    Store { from: Value, bytes: usize, base: usize, offset: u64 },
    Compute { to: usize, operation: Operation, from: [Value; 3] },
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

/// On the bits of its operands; those of narrow types lie at the low end.
type Operation = fn([u64; 3]) -> u64;

/// What is computed: the instruction, how many operands it has beside its result, and what it does.
const OPERATIONS: &[(&str, usize, Operation)] = &[
    ("mov.u16", 1, |[a, ..]| a & 0xffff),
    ("mov.u32", 1, |[a, ..]| low(a)),
    ("mov.u64", 1, |[a, ..]| a),
    ("mov.f32", 1, |[a, ..]| low(a)),
    ("mov.b32", 1, |[a, ..]| low(a)),
    ("mov.b64", 1, |[a, ..]| a),
    ("cvta.to.global.u64", 1, |[a, ..]| a),
    ("cvt.u64.u32", 1, |[a, ..]| low(a)),
    ("cvt.u32.u64", 1, |[a, ..]| low(a)),
    ("cvt.rn.f32.f64", 1, |[a, ..]| from_f32(f64::from_bits(a) as f32)),
    ("cvt.f32.f16", 1, |[a, ..]| from_f32(f16_to_f32(a))),
    ("cvt.rn.f16.f32", 1, |[a, ..]| f32_to_f16(f32_of(a))),
    ("add.s32", 2, |[a, b, _]| low(a.wrapping_add(b))),
    ("add.s64", 2, |[a, b, _]| a.wrapping_add(b)),
    ("sub.s32", 2, |[a, b, _]| low(a.wrapping_sub(b))),
    ("neg.s64", 1, |[a, ..]| a.wrapping_neg()),
    ("mul.lo.s32", 2, |[a, b, _]| low(a.wrapping_mul(b))),
    ("mul.lo.s64", 2, |[a, b, _]| a.wrapping_mul(b)),
    ("mul.wide.u32", 2, |[a, b, _]| low(a) * low(b)),
    // What a division by zero gives is left open; this is what devices give.
    ("div.u32", 2, |[a, b, _]| low(low(a).checked_div(low(b)).unwrap_or(u64::MAX))),
    ("div.u64", 2, |[a, b, _]| a.checked_div(b).unwrap_or(u64::MAX)),
    ("rem.u32", 2, |[a, b, _]| low(a).checked_rem(low(b)).unwrap_or(low(a))),
    ("mul.rn.f32", 2, |[a, b, _]| from_f32(f32_of(a) * f32_of(b))),
    ("mul.rn.f64", 2, |[a, b, _]| from_f64(f64::from_bits(a) * f64::from_bits(b))),
    ("and.b32", 2, |[a, b, _]| low(a & b)),
    ("and.b64", 2, |[a, b, _]| a & b),
    ("or.b32", 2, |[a, b, _]| low(a | b)),
    ("or.b64", 2, |[a, b, _]| a | b),
    ("xor.b32", 2, |[a, b, _]| low(a ^ b)),
    ("xor.b64", 2, |[a, b, _]| a ^ b),
    // A shift by the width or more leaves nothing, or the sign alone.
    ("shl.b32", 2, |[a, b, _]| low(a.checked_shl(low(b) as u32).unwrap_or(0))),
    ("shl.b64", 2, |[a, b, _]| a.checked_shl(low(b) as u32).unwrap_or(0)),
    ("shr.u32", 2, |[a, b, _]| low(a).checked_shr(low(b) as u32).unwrap_or(0)),
    ("shr.u64", 2, |[a, b, _]| a.checked_shr(low(b) as u32).unwrap_or(0)),
    ("shr.s32", 2, |[a, b, _]| low(shift_right(a << 32, low(b) + 32))),
    ("shr.s64", 2, |[a, b, _]| shift_right(a, low(b))),
    // So many bits from one on. Both numbers are bytes, and there are none above the highest bit.
    ("bfe.u32", 3, |[a, from, len]| {
        let ones = 1_u64.checked_shl(u32::from(len as u8)).map_or(u64::MAX, |above| above - 1);
        low(a).checked_shr(u32::from(from as u8)).unwrap_or(0) & ones
    }),
    ("setp.eq.f64", 2, |[a, b, _]| u64::from(f64::from_bits(a) == f64::from_bits(b))),
    ("setp.eq.s64", 2, |[a, b, _]| u64::from(a == b)),
    ("setp.ne.s64", 2, |[a, b, _]| u64::from(a != b)),
    ("setp.lt.u64", 2, |[a, b, _]| u64::from(a < b)),
    ("setp.ge.u64", 2, |[a, b, _]| u64::from(a >= b)),
    ("setp.ge.u32", 2, |[a, b, _]| u64::from(low(a) >= low(b))),
    ("setp.gt.u32", 2, |[a, b, _]| u64::from(low(a) > low(b))),
    ("selp.b32", 3, |[a, b, is_first]| low(if is_first != 0 { a } else { b })),
];

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
    /// Whether it is no multiple of its size.
    pub const fn is_misaligned(self) -> bool {
        !self.address.is_multiple_of(self.bytes as u64)
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
    /// The first access to memory that is not allocated, or not at a multiple of its size; what was stored before stays.
    pub fn run(&self, blocks: u32, threads: u32, params: &[u8], memory: &mut dyn Memory) -> Result<(), Fault> {
        let mut registers = vec![0; self.registers];
        for block in 0..blocks {
            for index in 0..threads {
                registers.fill(0);
                self.run_thread(Thread { index, threads, block, blocks }, &mut registers, params, memory)?;
            }
        }
        Ok(())
    }

    fn run_thread(
        &self,
        thread: Thread,
        registers: &mut [u64],
        params: &[u8],
        memory: &mut dyn Memory,
    ) -> Result<(), Fault> {
        let mut next = 0;
        while let Some(Instruction { guard, work }) = self.code.get(next) {
            next += 1;
            if guard.is_some_and(|(register, expected)| (registers[register] != 0) != expected) {
                continue;
            }
            match work {
                Work::Return => break,
                Work::Branch { to } => next = *to,
                Work::Param { to, bytes, base, offset } => {
                    let (address, mut word) = (thread.value(*base, registers).wrapping_add(*offset), [0; 8]);
                    let from = usize::try_from(address).ok().and_then(|start| params.get(start..start + *bytes));
                    word[..*bytes].copy_from_slice(from.ok_or(Fault { address, bytes: *bytes })?);
                    registers[*to] = u64::from_le_bytes(word);
                }
                Work::Load { to, bytes, is_signed, base, offset } => {
                    let (address, mut word) = (registers[*base].wrapping_add(*offset), [0; 8]);
                    reach(address, *bytes, || memory.load(address, &mut word[..*bytes]))?;
                    let (bits, above) = (u64::from_le_bytes(word), 64 - 8 * *bytes);
                    registers[*to] = if *is_signed { shift_right(bits << above, above as u64) } else { bits };
                }
                Work::Store { from, bytes, base, offset } => {
                    let (address, word) = (registers[*base].wrapping_add(*offset), thread.value(*from, registers));
                    reach(address, *bytes, || memory.store(address, &word.to_le_bytes()[..*bytes]))?;
                }
                Work::Compute { to, operation, from } => {
                    registers[*to] = operation(from.map(|operand| thread.value(operand, registers)));
                }
            }
        }
        Ok(())
    }
}

impl Thread {
    fn value(self, of: Value, registers: &[u64]) -> u64 {
        match of {
            Value::Register(register) => registers[register],
            Value::Constant(bits) => bits,
            Value::Special(special) => u64::from(match special {
                Special::Thread => self.index,
                Special::Threads => self.threads,
                Special::Block => self.block,
                Special::Blocks => self.blocks,
            }),
        }
    }
}

/// Does what loads or stores, or says where that cannot be done.
fn reach(address: u64, bytes: usize, access: impl FnOnce() -> bool) -> Result<(), Fault> {
    let fault = Fault { address, bytes };
    if !fault.is_misaligned() && access() { Ok(()) } else { Err(fault) }
}

/// A kernel that is being read, line by line.
#[derive(Default)]
struct Reader {
    /// Names and sizes.
    params: Vec<(String, usize)>,
    registers: BTreeMap<String, usize>,
    labels: BTreeMap<String, usize>,
    /// Where a branch goes is known when all labels are.
    branches: Vec<(usize, String)>,
    code: Vec<Instruction>,
}

impl Reader {
    fn read(&mut self, line: &str) -> Result<(), String> {
        if matches!(line, "" | ")" | "{") || line.starts_with(".reg ") {
            return Ok(());
        }
        if let Some(param) = line.strip_prefix(".param ") {
            let unknown = || format!("`{line}` is not known here");
            let mut words = param.trim_end_matches(',').split(' ').rev();
            let (name, kind) = words.next().zip(words.next()).ok_or_else(unknown)?;
            // A structure is an array of bytes: `.param .align 8 .b8 name[4096]`.
            let (name, len) = name.split_once('[').unwrap_or((name, "1]"));
            let len: usize = len.trim_end_matches(']').parse().map_err(|_| unknown())?;
            self.params.push((name.to_owned(), len * bytes_of(kind)?));
            return Ok(());
        }
        if let Some(label) = line.strip_suffix(':') {
            self.labels.insert(label.to_owned(), self.code.len());
            return Ok(());
        }
        let (guard, instruction) = match line.strip_prefix('@').and_then(|guarded| guarded.split_once(' ')) {
            Some((register, rest)) => {
                let expected = !register.starts_with('!');
                (Some((self.register(register.trim_start_matches('!'))?, expected)), rest)
            }
            None => (None, line),
        };
        let (name, operands) = instruction.split_once(char::is_whitespace).unwrap_or((instruction, ""));
        let operands: Vec<&str> = operands.split(',').map(str::trim).filter(|operand| !operand.is_empty()).collect();
        let work = self.work(name, &operands)?;
        self.code.push(Instruction { guard, work });
        Ok(())
    }

    fn work(&mut self, name: &str, operands: &[&str]) -> Result<Work, String> {
        match (name, operands) {
            ("ret", []) => Ok(Work::Return),
            ("bra" | "bra.uni", [label]) => {
                self.branches.push((self.code.len(), (*label).to_owned()));
                Ok(Work::Branch { to: 0 })
            }
            (name, [to, from]) if name.starts_with("ld.param.") => {
                let (bytes, (base, offset)) = (bytes_of(&name["ld.param".len()..])?, address(from)?);
                Ok(Work::Param { to: self.register(to)?, bytes, base: self.value(base)?, offset })
            }
            (name, [to, from]) if name.starts_with("ld.global.") => {
                let (kind, (base, offset)) = (&name["ld.global".len()..], address(from)?);
                let (is_signed, base) = (kind.starts_with(".s"), self.register(base)?);
                Ok(Work::Load { to: self.register(to)?, bytes: bytes_of(kind)?, is_signed, base, offset })
            }
            (name, [to, from]) if name.starts_with("st.global.") => {
                let (base, offset) = address(to)?;
                let base = self.register(base)?;
                Ok(Work::Store { from: self.value(from)?, bytes: bytes_of(&name["st.global".len()..])?, base, offset })
            }
            (name, [to, from @ ..]) => {
                let known = OPERATIONS.iter().find(|(known, operands, _)| *known == name && *operands == from.len());
                let (_, _, operation) = known.ok_or_else(|| format!("`{name}` is not known here"))?;
                let mut values = [Value::Constant(0); 3];
                for (value, operand) in values.iter_mut().zip(from) {
                    *value = self.value(operand)?;
                }
                Ok(Work::Compute { to: self.register(to)?, operation: *operation, from: values })
            }
            (name, []) => Err(format!("`{name}` is not known here")),
        }
    }

    fn register(&mut self, name: &str) -> Result<usize, String> {
        if !name.starts_with('%') || name.contains('.') {
            return Err(format!("`{name}` is no register"));
        }
        let next = self.registers.len();
        Ok(*self.registers.entry(name.to_owned()).or_insert(next))
    }

    fn value(&mut self, text: &str) -> Result<Value, String> {
        Ok(match text {
            "%tid.x" => Value::Special(Special::Thread),
            "%ntid.x" => Value::Special(Special::Threads),
            "%ctaid.x" => Value::Special(Special::Block),
            "%nctaid.x" => Value::Special(Special::Blocks),
            register if register.starts_with('%') => Value::Register(self.register(register)?),
            // The place of a parameter among all parameters.
            name if name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') => {
                let at = self.params.iter().position(|(known, _)| known == name);
                let before = &self.params[..at.ok_or_else(|| format!("there is no parameter {name}"))?];
                Value::Constant(before.iter().map(|(_, bytes)| *bytes as u64).sum())
            }
            // Floats are written as their bits.
            number => {
                let bits = number.strip_prefix("0f").or_else(|| number.strip_prefix("0d"));
                let parsed = match bits {
                    Some(bits) => u64::from_str_radix(bits, 16),
                    None => number.parse::<i64>().map(i64::cast_unsigned).or_else(|_| number.parse()),
                };
                Value::Constant(parsed.map_err(|_| format!("`{number}` is not known here"))?)
            }
        })
    }

    fn finish(mut self) -> Result<Kernel, String> {
        for (at, label) in self.branches {
            let to = *self.labels.get(&label).ok_or_else(|| format!("there is no label {label}"))?;
            self.code[at].work = Work::Branch { to };
        }
        let params = self.params.into_iter().map(|(_, bytes)| bytes).collect();
        Ok(Kernel { params, registers: self.registers.len(), code: self.code })
    }
}

/// Base and offset of `[%rd1]`, `[%rd1+8]` or `[name+8]`.
fn address(text: &str) -> Result<(&str, u64), String> {
    let inner = text.trim_matches(['[', ']']);
    let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
    let offset: i64 = offset.parse().map_err(|_| format!("`{text}` is no address"))?;
    Ok((base, offset.cast_unsigned()))
}

/// Bytes of a type such as `.u64`.
fn bytes_of(kind: &str) -> Result<usize, String> {
    let bits = kind.strip_prefix('.').and_then(|kind| kind.get(1..)).and_then(|bits| bits.parse().ok());
    match bits {
        Some(bits @ (8 | 16 | 32 | 64)) => Ok(bits / 8),
        Some(_) | None => Err(format!("`{kind}` is not known here")),
    }
}

fn low(bits: u64) -> u64 {
    bits & 0xffff_ffff
}

/// Copies of the sign come in from above.
fn shift_right(bits: u64, by: u64) -> u64 {
    (bits.cast_signed() >> by.min(63)).cast_unsigned()
}

fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

/// The bits of a result; of a NaN those that devices make.
fn from_f32(value: f32) -> u64 {
    u64::from(if value.is_nan() { 0x7fff_ffff } else { value.to_bits() })
}

fn from_f64(value: f64) -> u64 {
    if value.is_nan() { 0x7fff_ffff_ffff_ffff } else { value.to_bits() }
}

fn f16_to_f32(bits: u64) -> f32 {
    let (exponent, mantissa) = (bits >> 10 & 0x1f, (bits & 0x3ff) as f32);
    let magnitude = match exponent {
        0 => mantissa * 2.0_f32.powi(-24),
        31 if mantissa == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        exponent => (1024.0 + mantissa) * 2.0_f32.powi(exponent as i32 - 25),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

fn f32_to_f16(value: f32) -> u64 {
    if value.is_nan() {
        return 0x7fff;
    }
    let sign = u64::from(value.is_sign_negative()) << 15;
    let magnitude = f64::from(value.abs());
    // The exponent of the step between neighbours is ten less than that of the number; the smallest normal number has -14.
    let exponent = if magnitude < 2.0_f64.powi(-14) { -14 } else { f64_exponent(magnitude).min(16) };
    let steps = (magnitude / 2.0_f64.powi(exponent - 10)).round_ties_even().min(2048.0);
    // A carry out of the mantissa is one to the exponent.
    let rounded = ((exponent + 14) as u64) << 10;
    sign | (rounded + steps as u64).min(0x7c00)
}

fn f64_exponent(value: f64) -> i32 {
    (value.to_bits() >> 52 & 0x7ff) as i32 - 1023
}

#[cfg(test)]
mod tests;
