//! Reads the lines of a kernel.

use std::collections::BTreeMap;

use super::operations::{OPERANDS_MAX, OPERATIONS, Operation, low};
use super::{Instruction, Kernel, Meeting, Special, Value, Work};

/// A kernel that is being read, line by line.
#[derive(Default)]
pub(super) struct Reader {
    /// Names and sizes.
    params: Vec<(String, usize)>,
    registers: BTreeMap<String, usize>,
    labels: BTreeMap<String, usize>,
    /// Where a branch goes is known when all labels are.
    branches: Vec<(usize, String)>,
    code: Vec<Instruction>,
}

impl Reader {
    /// Reads the next line.
    ///
    /// # Errors
    /// What is not known.
    pub(super) fn read(&mut self, line: &str) -> Result<(), String> {
        // A pragma tells an assembler not to unroll a loop.
        if matches!(line, "" | ")" | "{" | ".pragma \"nounroll\"") || line.starts_with(".reg ") {
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
        // Two words that lie side by side: `ld.param.v2.u32 {%r1, %r2}, [%rd1]`.
        if let (Some(kind), [first, second, from]) = (name.strip_prefix("ld.param.v2"), &operands[..]) {
            for (word, to) in (0..).zip([first.trim_start_matches('{'), second.trim_end_matches('}')]) {
                let work = self.param(to, kind, from, word)?;
                self.code.push(Instruction { guard, work });
            }
            return Ok(());
        }
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
            (name, [to, from]) if name.starts_with("ld.param.") => self.param(to, &name["ld.param".len()..], from, 0),
            // A second result says whether there is such a lane, and there always is.
            ("shfl.sync.bfly.b32", [to, from, distance, last, members]) => {
                let (to, _) = to.split_once('|').unwrap_or((to, ""));
                let [from, distance] = [self.value(from)?, self.value(distance)?];
                let [last, members] = [self.value(last)?, self.value(members)?];
                Ok(Work::Meet { to: self.register(to)?, from, members, meeting: Meeting::Exchange { distance, last } })
            }
            ("vote.sync.ballot.b32", [to, from, members]) => {
                let [from, members] = [self.value(from)?, self.value(members)?];
                Ok(Work::Meet { to: self.register(to)?, from, members, meeting: Meeting::Ballot })
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
            ("atom.global.add.u32" | "atom.global.or.b32", [to, place, from]) => {
                let operation: Operation = match name {
                    "atom.global.add.u32" => |[a, b, ..]| low(a.wrapping_add(b)),
                    _ => |[a, b, ..]| low(a | b),
                };
                let ((base, offset), from) = (address(place)?, self.value(from)?);
                let base = self.register(base)?;
                Ok(Work::Atomic { to: self.register(to)?, from, base, offset, operation })
            }
            (name, [to, from @ ..]) => {
                let known = OPERATIONS.iter().find(|(known, operands, _)| *known == name && *operands == from.len());
                let (_, _, operation) = known.ok_or_else(|| format!("`{name}` is not known here"))?;
                let mut values = [Value::Constant(0); OPERANDS_MAX];
                for (value, operand) in values.iter_mut().zip(from) {
                    *value = self.value(operand)?;
                }
                Ok(Work::Compute { to: self.register(to)?, operation: *operation, from: values })
            }
            (name, []) => Err(format!("`{name}` is not known here")),
        }
    }

    /// A load of a word of the parameters: the one of this index from there on.
    fn param(&mut self, to: &str, kind: &str, from: &str, index: u64) -> Result<Work, String> {
        let (bytes, (base, offset)) = (bytes_of(kind)?, address(from)?);
        let offset = offset.wrapping_add(index * bytes as u64);
        Ok(Work::Param { to: self.register(to)?, bytes, base: self.value(base)?, offset })
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

    /// The kernel of all lines.
    ///
    /// # Errors
    /// A label that is not there.
    pub(super) fn finish(mut self) -> Result<Kernel, String> {
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
