//! The tables of the whole benchmark: their commands, deadlines and targets.

use crate::team::mpi::Library;

/// One table.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Table {
    /// The name of its files.
    pub(super) name: &'static str,
    /// The command line, without peers and files.
    pub(super) words: Vec<&'static str>,
    pub(super) peers: &'static [Peer],
    pub(super) needs: Needs,
    /// Seconds after which it is ended.
    pub(super) seconds: u64,
    /// The targets of this project on a machine with two cores, as expectations.
    pub(super) targets: &'static [&'static str],
}

/// A peer that the host may lack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Peer {
    Gloo,
    Ranks(Library),
}

/// What a host must have for a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Needs {
    Nothing,
    /// Root, and these commands in addition to those that links always need.
    Links(&'static [&'static str]),
}

/// Sizes, types and effort of the tables of reductions: few exchanges of large tensors, many of small ones.
const SWEEP: &str = "--place in -b 64K -e 256M -d f32,bf16 -n 64 -w 1 --volume 256M";

const MPI: Peer = Peer::Ranks(Library::Mpi);
const EVERY_PEER: &[Peer] =
    &[Peer::Gloo, MPI, Peer::Ranks(Library::Mpich), Peer::Ranks(Library::IntelMpi), Peer::Ranks(Library::OneCcl)];
/// Those that are worth a comparison where ranks share cores. A sum of 1 MiB of 4 ranks on 2 cores takes MPICH 240 ms and oneCCL 6 ms.
const PEERS_THAT_SHARE_CORES: &[Peer] = &[Peer::Gloo, MPI, Peer::Ranks(Library::IntelMpi)];

/// Sizes and effort of the tables beside all peers, of one machine with more ranks than it may have cores.
const RANKS: &str = "--road local,shm --place in --sizes 4K,64K,1M,16M -n 40 -w 4 --volume 128M";

/// Codecs whose bodies are sent over links: one of each length.
const CODECS: &str = "--codec fp16 --codec int8 --codec fp8_e4m3 --codec int4 --codec topk --codec randomk";

/// All tables. On two cores those of reductions and of collectives take three to four minutes each, links five, the others a minute or less.
/// Quick tables come first, so that little is lost if time runs out.
pub(super) fn all() -> Vec<Table> {
    use Needs::{Links, Nothing};
    use Peer::Gloo;
    let ranks = |name, workers, peers| Table { peers, seconds: 300, ..table(name, &[workers, RANKS], Nothing) };
    vec![
        Table { seconds: 60, targets: &["move/time<=1@10000"], ..table("sched", &["sched"], Nothing) },
        Table { seconds: 120, targets: &["ratio:copy>=0.8@256M"], ..table("reduce", &["reduce"], Nothing) },
        Table {
            seconds: 120,
            targets: &[
                "encode bf16/ratio:copy>=0.5",
                "encode bf16:stochastic=1/ratio:copy>=0.4",
                "encode int8/ratio:copy>=0.5",
                "encode fp8_e4m3/ratio:copy>=0.5",
                "encode onebit/ratio:copy>=0.5",
                "decode onebit/ratio:copy>=0.5",
                "add onebit/ratio:copy>=0.5",
            ],
            ..table("codec", &["codec"], Nothing)
        },
        Table { seconds: 60, targets: &["step adamw/ratio:copy>=0.5"], ..table("rule", &["rule"], Nothing) },
        Table { seconds: 240, targets: &["store/ratio:memory>=0.5"], ..table("table", &["table"], Nothing) },
        Table {
            peers: &[Gloo, MPI],
            seconds: 420,
            targets: &["ratio:mpi>=1@64K-4M", "ratio:mpi>=1.5@64M-256M", "ratio:gloo>=3"],
            ..table("collective", &["push-pull --road local", SWEEP], Nothing)
        },
        ranks("ranks-2", "push-pull --workers 2", EVERY_PEER),
        ranks("ranks-4", "push-pull --workers 4", PEERS_THAT_SHARE_CORES),
        ranks("ranks-8", "push-pull --workers 8", PEERS_THAT_SHARE_CORES),
        Table {
            peers: &[Gloo],
            seconds: 420,
            targets: &["shm/ratio:gloo>=2", "shm/bound>=0.6", "quic/time<=60000@64M"],
            ..table("server", &["push-pull --road shm,quic,mem", SWEEP], Nothing)
        },
        Table {
            seconds: 180,
            targets: &["quic x8/ratio:tcp>=0.7@1M-4M", "quic x8/ratio:tls>=1.3@1M-4M"],
            ..table(
                "one-worker",
                &[
                    "push-pull --workers 1 --road quic,shm --backend tcp,tls --inflight 8 --place out -b 64K -e 4M -n 64 -w 1 --volume 512M",
                ],
                Nothing,
            )
        },
        Table {
            seconds: 120,
            targets: &["algbw>=0.9@1M-4M"],
            ..table(
                "one-worker-1500",
                &[
                    "push-pull --workers 1 --road quic --backend tcp,tls --inflight 8 --place out -b 64K -e 4M -n 64 -w 1 --volume 512M",
                    "--set datagram_bytes_max=1452",
                ],
                Nothing,
            )
        },
        Table {
            seconds: 180,
            ..table("transport", &["transport --road quic,shm,mem -b 4K -e 16M -n 64 -w 1 --volume 512M"], Nothing)
        },
        Table {
            peers: &[Gloo, MPI],
            seconds: 300,
            targets: &["shm idle/p50<=40@4K", "quic idle/p50<=150@4K"],
            ..table("latency", &["latency --road local,shm,quic -n 40"], Nothing)
        },
        Table {
            seconds: 120,
            targets: &["cost<=1.3"],
            ..table("small", &["small --road local,shm,quic -n 20 -w 2 -N 9"], Nothing)
        },
        Table {
            peers: &[Gloo],
            seconds: 180,
            ..table("model", &["push-pull --road local,shm,quic --model resnet50 --place in -n 2 -w 1"], Nothing)
        },
        Table {
            seconds: 120,
            ..table(
                "modes",
                &[
                    "push-pull --road shm,quic --mode push-only,pull-only,push-then-pull",
                    "-b 64K -e 64M -f 32 -n 64 -w 1 --volume 128M",
                ],
                Nothing,
            )
        },
        Table {
            peers: &[Gloo, MPI],
            seconds: 420,
            ..table(
                "collectives",
                &[
                    "push-pull --road local,shm,quic --collective reduce-scatter,all-gather,all-to-all",
                    "-b 64K -e 32M -f 8 -n 64 -w 1 --volume 128M",
                ],
                Nothing,
            )
        },
        Table {
            seconds: 180,
            targets: &["quic busy/cost<=1.25"],
            ..table("net-latency", &["net latency"], Links(&[]))
        },
        Table {
            seconds: 240,
            targets: &["quic lossy/cost:tcp<=1"],
            ..table("net-loss", &["net loss"], Links(&["nft"]))
        },
        Table {
            peers: &[Gloo],
            seconds: 600,
            targets: &["optimum<=1.05", "quic 4+4/ratio:gloo>=1.4", "quic 4+2/ratio:gloo>=1.2"],
            ..table("net", &["net"], Links(&[]))
        },
        Table {
            seconds: 180,
            targets: &["optimum<=1.15"],
            ..table("net-codec", &["net --machines 2+2 --rate 1gbit -b 64M", CODECS], Links(&[]))
        },
        Table {
            seconds: 180,
            targets: &["optimum<=1.15"],
            ..table("net-codec-slow", &["net --machines 2+2 --rate 100mbit -b 16M", CODECS], Links(&[]))
        },
    ]
}

fn table(name: &'static str, lines: &[&'static str], needs: Needs) -> Table {
    let words = lines.iter().flat_map(|line| line.split_whitespace()).collect();
    Table { name, words, peers: &[], needs, seconds: 0, targets: &[] }
}
