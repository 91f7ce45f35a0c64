//! The inputs that the repository keeps: for each target a file of lines, an input a line, in hexadecimal digits.
//!
//! libFuzzer wants a folder with a file for each input. [`unpack`] makes it, and [`pack`] writes what libFuzzer left over after it
//! removed the inputs that cover nothing more. Lines are sorted, so that a change of the corpus is a change of few lines.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Kind, Target, hostile};

/// The inputs of a target that were found, without its seeds.
///
/// # Panics
/// If its file cannot be read or is damaged.
pub fn found(target: &Target) -> Vec<Vec<u8>> {
    let path = path(target);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => panic!("{}: {error}", path.display()),
    };
    inputs(&text)
}

/// The inputs in the lines of a text.
///
/// # Panics
/// If a line is damaged.
pub fn inputs(text: &str) -> Vec<Vec<u8>> {
    text.lines().map(|line| bytes(line).unwrap_or_else(|| panic!("no input: {line}"))).collect()
}

/// Everything that the tests replay: the target's seeds, these damaged in every way, what strangers send, and what was found.
pub fn all(target: &Target) -> Vec<Vec<u8>> {
    let seeds = (target.seeds)();
    let damaged: Vec<Vec<u8>> = match target.kind {
        Kind::Decoder => seeds.iter().flat_map(|seed| hostile::damaged(seed)).collect(),
        Kind::Machine => Vec::new(),
    };
    [seeds, damaged, hostile::probes(), found(target)].concat()
}

/// Writes the seeds of a target and its found inputs into `folder`, a file each, for libFuzzer.
///
/// # Errors
/// If it cannot be written.
pub fn unpack(target: &Target, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for input in [(target.seeds)(), hostile::probes(), found(target)].concat() {
        fs::write(folder.join(format!("{:016x}", fingerprint(&input))), &input)?;
    }
    Ok(())
}

/// Keeps the inputs in `folder` for a target, without its seeds: the shortest ones, [`BYTES_MAX`] in all. Returns how many there are.
///
/// # Errors
/// If the folder cannot be read or the file not written.
pub fn pack(target: &Target, folder: &Path) -> io::Result<usize> {
    let seeds = [(target.seeds)(), hostile::probes()].concat();
    let mut inputs = Vec::new();
    for entry in fs::read_dir(folder)? {
        inputs.push(fs::read(entry?.path())?);
    }
    inputs.retain(|input| !input.is_empty() && !seeds.contains(input));
    inputs.sort_by(|one, other| (one.len(), one).cmp(&(other.len(), other)));
    inputs.dedup();
    let mut bytes = 0;
    let is_kept = |input: &&Vec<u8>| {
        bytes += input.len();
        bytes <= BYTES_MAX
    };
    let lines: Vec<String> = inputs.iter().take_while(is_kept).map(|input| line(input)).collect();
    fs::write(path(target), lines.concat())?;
    Ok(lines.len())
}

/// The inputs of a target that the repository keeps; their lines have twice as many bytes.
const BYTES_MAX: usize = 40 << 10;

fn path(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(format!("{}.hex", target.name))
}

fn line(input: &[u8]) -> String {
    input.iter().map(|byte| format!("{byte:02x}")).chain(["\n".to_owned()]).collect()
}

fn bytes(line: &str) -> Option<Vec<u8>> {
    let digits = line.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// FNV-1a (Fowler, Noll, Vo): the same file name for the same input on every machine.
fn fingerprint(input: &[u8]) -> u64 {
    input.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
