//! What is fuzzed: every decoder that reads bytes of another process or of a person, and the machines under hostile sequences of events.
//!
//! A [`Target`] takes any bytes and asserts what must hold of them. libFuzzer feeds the targets (`fuzz/`, `make fuzz`), and `cargo test`
//! replays the corpus with the same functions (`tests/corpus`). So each rule is written down once.
//!
//! What holds for all targets: no panic, and memory within [`Target::bytes_max`].

pub mod corpus;
pub mod hostile;

mod input;
mod members;

mod c_calls;
mod coordinator;
mod node;
mod peers;
mod ranks;
mod shm;
mod texts;
mod wire;

use crate::allocation::most_bytes_held;
use crate::random::Random;

/// One thing to fuzz.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, also that of its file in `tests/corpus`.
    pub name: &'static str,
    /// Whether the inputs of `hostile` are made of its seeds.
    pub kind: Kind,
    /// Takes an input, and panics if a rule is broken.
    pub check: fn(&[u8]),
    /// Good inputs, from which the fuzzer and [`hostile`] begin.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// The most memory that an input of no bytes may take, and how much more each of its bytes may.
    pub memory: Memory,
}

/// What reads the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A decoder: damaged messages are inputs of their own kind.
    Decoder,
    /// A machine: the bytes choose events, so any bytes are as good as damaged ones.
    Machine,
}

/// A bound of memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// For any input: error messages, fixed tables.
    pub bytes: u64,
    /// For each byte of the input.
    pub times: u64,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    wire::HEADER,
    wire::FRAME,
    wire::REJECT,
    wire::WITHDRAWAL,
    peers::CERTIFICATE,
    peers::ENROLMENT_REQUEST,
    peers::ENROLMENT_ANSWER,
    peers::ANSWER,
    peers::SHM_MESSAGE,
    peers::CODEC,
    peers::HTTP_REQUEST,
    texts::JOIN_STRING,
    texts::INVITATION,
    texts::TERM,
    texts::JOURNAL,
    texts::RENDEZVOUS,
    texts::SETTING,
    texts::SETTINGS,
    texts::TF_CONFIG,
    texts::CLUSTER_FILE,
    node::NODE,
    coordinator::COORDINATOR,
    ranks::ORDER,
    ranks::AGREEMENT,
    shm::SHM_LINK,
    c_calls::C_CALLS,
];

/// The target of this name.
///
/// # Errors
/// The names of all targets, if there is none.
pub fn named(name: &str) -> Result<&'static Target, String> {
    let names = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    TARGETS.iter().find(|target| target.name == name).ok_or_else(names)
}

impl Target {
    /// Gives `bytes` to this target.
    ///
    /// # Panics
    /// If a rule is broken.
    pub fn run(&self, bytes: &[u8]) {
        let held = most_bytes_held(|| (self.check)(bytes));
        let Memory { bytes: base, times } = self.memory;
        let allowed = base + times * bytes.len() as u64;
        assert!(held <= allowed, "{}: {held} bytes were allocated for {} bytes of input", self.name, bytes.len());
    }
}

/// Inputs for machines: `count` of random bytes, the same in every run, up to `bytes_max` long.
fn random_inputs(count: usize, bytes_max: u64) -> Vec<Vec<u8>> {
    let mut random = Random::new(1);
    let mut input = || (0..random.between(1, bytes_max)).map(|_| random.bits() as u8).collect();
    (0..count).map(|_| input()).collect()
}
