//! The tables of the whole benchmark: which questions, at what length, and how long each may take.

/// One table.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Table {
    /// Of its files.
    pub(super) name: &'static str,
    /// The command line, without peers and files.
    pub(super) words: Vec<&'static str>,
    pub(super) peers: &'static [Peer],
    pub(super) needs: Needs,
    /// After so many seconds it is ended.
    pub(super) seconds: u64,
}

/// A peer that may not be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Peer {
    Gloo,
    Mpi,
}

/// What a host must have for a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Needs {
    Nothing,
    /// Root, and commands besides those that always are needed for links.
    Links(&'static [&'static str]),
}

/// Sizes, types and effort of the tables of reductions: few exchanges of what is large, many of what is small.
const SWEEP: &str = "--place in -b 64K -e 256M -d f32,bf16 -n 64 -w 1 --volume 256M";

/// All of them, in the order of the page. On two cores those of reductions take three to four minutes each, links five, the others less.
pub(super) fn all() -> Vec<Table> {
    use Peer::{Gloo, Mpi};
    let here = |name, words: &'static str, peers, seconds| table(name, words, peers, Needs::Nothing, seconds);
    let links = |name, words, peers, tools: &'static [&'static str], seconds| {
        table(name, words, peers, Needs::Links(tools), seconds)
    };
    vec![
        with(here("collective", "push-pull --road local", &[Gloo, Mpi], 420), SWEEP),
        with(here("server", "push-pull --road shm,quic", &[Gloo], 420), SWEEP),
        here("model", "push-pull --road local,shm,quic --model resnet50 --place in -n 2 -w 1", &[Gloo], 180),
        here(
            "modes",
            "push-pull --road shm,quic --mode push-only,pull-only,push-then-pull -b 64K -e 64M -f 32 -n 64 -w 1 --volume 128M",
            &[],
            120,
        ),
        here("transport", "transport --road quic,shm,mem -b 4K -e 16M -n 64 -w 1 --volume 512M", &[], 180),
        here(
            "transport-1500",
            "transport --road quic -b 64K -e 16M -f 16 -n 64 -w 1 --volume 512M --set datagram_bytes_max=1452",
            &[],
            120,
        ),
        here("latency", "latency --road local,shm,quic -n 40", &[Gloo, Mpi], 300),
        links("net", "net", &[Gloo], &[], 480),
        links("net-latency", "net latency", &[], &[], 180),
        links("net-loss", "net loss", &[], &["nft"], 240),
        here("reduce", "reduce", &[], 120),
        here("sched", "sched", &[], 60),
    ]
}

fn table(name: &'static str, words: &'static str, peers: &'static [Peer], needs: Needs, seconds: u64) -> Table {
    Table { name, words: words.split_whitespace().collect(), peers, needs, seconds }
}

fn with(mut table: Table, words: &'static str) -> Table {
    table.words.extend(words.split_whitespace());
    table
}
