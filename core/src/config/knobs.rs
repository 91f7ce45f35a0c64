//! The one table of knobs. A row makes the field of [`Config`], the environment variable, the key of the file, the parser, the line of the
//! report and its documentation. To add a knob, add a row.

use std::collections::BTreeMap;

use super::choices::{
    Checksum, CompressionFallback, Congestion, FrameworkCall, LocalReduce, NanCheck, OnServerLoss, OnWorkerLoss,
    TransportChoice,
};
use super::elastic::Elastic;
use super::kinds::{
    Address, Bytes, Codec, Count, Flag, Indices, Join, Kind, LogFilter, Name, Names, Optional, Path, PreShared, Role,
    Text, TimeSpan, Unit,
};
use super::origin::{Origin, PREFIX};

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Its topic, such as `Failures`.
    pub topic: &'static str,
    /// Its key in the file and among the arguments, and the name of its field.
    pub name: &'static str,
    /// Its name in the previous version, which still works; empty if it was the same.
    pub former: &'static str,
    /// Environment variables of BytePS, ps-lite and others that mean the same; read after ours, in this order.
    pub aliases: &'static [&'static str],
    /// How its value is written.
    pub unit: Unit,
    /// The value if no source gives one; empty for none.
    pub default: &'static str,
    /// The smallest and the largest value.
    pub range: Option<(&'static str, &'static str)>,
    /// What it means.
    pub doc: &'static str,
    pub(super) set: fn(&mut Config, &str) -> Result<(), String>,
    pub(super) print: fn(&Config) -> String,
}

impl Knob {
    /// The row of the knob with this name, in this version or the previous one.
    pub fn find(name: &str) -> Option<&'static Self> {
        KNOBS.iter().find(|knob| knob.name == name || !knob.former.is_empty() && knob.former == name)
    }

    /// Its environment variable, such as `GRADLANE_PARTITION_BYTES`.
    pub fn env(&self) -> String {
        variable(self.name)
    }

    /// Every environment variable that sets it, in the order in which they are read.
    pub fn variables(&self) -> impl Iterator<Item = String> {
        let former = Some(self.former).filter(|name| !name.is_empty()).map(variable);
        let aliases = self.aliases.iter().map(|alias| (*alias).to_owned());
        std::iter::once(self.env()).chain(former).chain(aliases)
    }

    /// Its value in `config`, as text; masked if secret, empty if absent.
    pub fn value(&self, config: &Config) -> String {
        (self.print)(config)
    }
}

pub(super) fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.to_ascii_uppercase())
}

/// Parses and checks a value against its limits.
fn parse<K: Kind>(text: &str, range: Option<(&str, &str)>) -> Result<K::Value, String> {
    let value = K::parse(text)?;
    if let (Some((low, high)), Some(quantity)) = (range, K::quantity(&value)) {
        let limit =
            |text| K::parse(text).ok().and_then(|limit| K::quantity(&limit)).expect("a test parses every limit");
        if quantity < limit(low) || quantity > limit(high) {
            return Err(format!("is not between {low} and {high}"));
        }
    }
    Ok(value)
}

macro_rules! knobs {
    ($($topic:literal { $(
        $(#[doc = $doc:literal])+
        $name:ident: $kind:ty = $default:literal $(in $low:literal to $high:literal)? $(, formerly $former:literal)? $(, alias $alias:literal)*;
    )+ })+) => {
        /// The settings of one process. The fields are the knobs of [`KNOBS`], under the same names and in the same order.
        ///
        /// Load it with [`Config::from_process`] or [`Config::load`]; the default has the default of every knob.
        #[derive(Clone, PartialEq, Debug)]
        pub struct Config {
            $($(
                $(#[doc = $doc])+
                pub $name: <$kind as Kind>::Value,
            )+)+
            /// Where the values that are not defaults came from, by the name of their knob.
            pub origins: BTreeMap<&'static str, Origin>,
        }

        /// Every knob.
        pub const KNOBS: &[Knob] = &[$($(
            Knob {
                topic: $topic,
                name: stringify!($name),
                former: concat!("" $(, $former)?),
                aliases: &[$($alias),*],
                unit: <$kind as Kind>::UNIT,
                default: $default,
                range: knobs!(@range $($low $high)?),
                doc: concat!($($doc),+).trim_ascii(),
                set: |config, text| {
                    config.$name = parse::<$kind>(text, knobs!(@range $($low $high)?))?;
                    Ok(())
                },
                print: |config| <$kind as Kind>::print(&config.$name),
            },
        )+)+];

        impl Default for Config {
            fn default() -> Self {
                Self {
                    $($( $name: <$kind as Kind>::parse($default).expect("a test parses every default"), )+)+
                    origins: BTreeMap::new(),
                }
            }
        }
    };
    (@range) => { None };
    (@range $low:literal $high:literal) => { Some(($low, $high)) };
}

knobs! {
    "Job" {
        /// What this process does: worker, server, coordinator, or both for a coordinator with a server.
        role: Role = "worker", alias "DMLC_ROLE";
        /// Name of the job; equal in all its processes. Unset, it is made of the number of the job in Slurm, MPI or torchrun, so that two jobs
        /// of one user have two names.
        job: Name = "default";
        /// Join string of the job, as its coordinator printed it.
        join: Optional<Join> = "";
        /// File with the join string: written by a coordinator, read by the others unless `join` is given.
        join_file: Optional<Path> = "";
        /// Secret that all hosts of a torchrun job were given: the join string travels sealed with it. `secret_file` is safer than a variable.
        secret: Optional<PreShared> = "";
        /// File with that secret, which others cannot read.
        secret_file: Optional<Path> = "";
        /// Certificate of this process from the site's own authority, in PEM: it proves who may enrol, and no join string does.
        tls_cert: Optional<Path> = "";
        /// Key of that certificate, in PEM; a file that others cannot read.
        tls_key: Optional<Path> = "";
        /// Certificates of the site's authorities, in PEM.
        tls_ca: Optional<Path> = "";
        /// Names of the certificates that take part in the job: DNS names and URIs, or the beginning of a URI with /* behind it.
        tls_peer: Names = "";
        /// Host of the coordinator, where no join string names it.
        coordinator_host: Optional<Text> = "", alias "DMLC_PS_ROOT_URI";
        /// Port of the coordinator, where no join string names it.
        coordinator_port: Optional<Count<u16>> = "" in "1" to "65535", alias "DMLC_PS_ROOT_PORT";
        /// File with the addresses of the whole job; `role`, with `rank` or `server_index`, is looked up in it.
        cluster_file: Optional<Path> = "";
        /// Where state is kept, one directory a job below it; none where there is no home directory.
        state_dir: Optional<Path> = "~/.gradlane";
        /// The directory below which checkpoints are saved and found, shared by the coordinator and all servers; the one in which they run where none is given. Workers name paths below it.
        checkpoint_dir: Optional<Path> = "";
        /// The directory below which each member writes what `gradlane ctl dump` and `gradlane ctl timeline` ask for; the one in which it runs where none is given. If it is given, a member that fails dumps its flight recorder in the directory `flight` below it, and so do the members of a program in Python, servers, coordinators and launchers on SIGUSR1.
        dump_dir: Optional<Path> = "";
        /// How long the certificate of a process is good; renewed at two thirds of it while the process runs. Set it at the coordinator.
        certificate_lifetime: TimeSpan = "24 h" in "2 s" to "720 h";
        /// A coordinator goes on with the job of its last start, of which it did not see the end, with the same members, join string and certificates; else every start has new ones. It finds them in `state_dir`, and members dial it where it was. SIGTERM then stops it without ending its job; SIGINT ends the job.
        resume: Flag = "false";
    }
    "Place" {
        /// Rank of this worker, from 0.
        rank: Optional<Count> = "" in "0" to "4095";
        /// Number of workers.
        size: Optional<Count> = "" in "1" to "4096";
        /// Rank of this worker among those on its host.
        local_rank: Optional<Count> = "" in "0" to "4095";
        /// Number of workers on this host.
        local_size: Optional<Count> = "" in "1" to "4096";
        /// Index of this host.
        node_rank: Optional<Count> = "" in "0" to "4095";
        /// Name of this machine: processes that share memory have the same; found out if absent.
        machine: Optional<Text> = "";
        /// Number of hosts with workers.
        num_nodes: Optional<Count> = "" in "1" to "4096";
        /// Number of servers; 0 embeds one in the worker of rank 0.
        servers: Count = "0" in "0" to "4095", alias "DMLC_NUM_SERVER";
        /// Index that this server asks for; any if absent.
        server_index: Optional<Count> = "" in "0" to "4094";
    }
    "Network" {
        /// Where a server or coordinator listens; port 0 takes a free one.
        bind: Address = "0.0.0.0:0";
        /// Host that a server or coordinator announces to the others; found out if absent.
        advertise: Optional<Text> = "", alias "DMLC_NODE_HOST";
        /// How exchanges reach servers: over QUIC, through shared memory (shm), or auto for shared memory on the same machine.
        transport: TransportChoice = "auto", formerly "road";
        /// Where processes of one machine find each other's sockets; /tmp if absent or not there.
        runtime_dir: Optional<Path> = "", alias "XDG_RUNTIME_DIR";
        /// Send and receive buffer of a socket; the system may give less.
        socket_buffer_bytes: Bytes = "16 MiB" in "64 KiB" to "1 GiB";
        /// Largest UDP payload; found out by probing if absent.
        datagram_bytes_max: Optional<Bytes> = "" in "1452" to "65507";
        /// Congestion control between workers and servers: `cubic` shares a network fairly with TCP, `delay` keeps queues short.
        congestion: Congestion = "cubic";
        /// Which contributions and sums carry a CRC-32C: all (true), none (false), or auto for those that leave the machine, as shared
        /// memory has no wire on which bits could change.
        checksum: Checksum = "auto";
    }
    "Scheduling" {
        /// Most bytes of a part: larger tensors are split, and each part travels and is summed by itself.
        partition_bytes: Bytes = "4 MiB" in "64 KiB" to "64 MiB", alias "BYTEPS_PARTITION_BYTES";
        /// In a job on several machines, a tensor is split into 16 parts as long as none is smaller than this, so that its sum comes back while it is still being sent. As much as partition_bytes makes parts as large as possible.
        pipeline_bytes_min: Bytes = "64 KiB" in "4 KiB" to "64 MiB";
        /// Tensors up to this length share parts; 0 fuses none.
        fuse_bytes: Bytes = "256 KiB" in "0" to "64 MiB";
        /// Bytes in flight per worker, from the start of a push until its sum is there; a larger part runs alone.
        credit_bytes: Bytes = "64 MiB" in "1" to "1 TiB";
        /// Bytes submitted and not yet resolved; a submission beyond waits.
        submit_bytes_max: Bytes = "4 GiB" in "1 MiB" to "16 TiB";
        /// Every so many takes of a queue one goes to the task that waits longest, so that none starves; 0 for never.
        oldest_every: Count = "32" in "0" to "1000000";
    }
    "Summation" {
        /// Workers of one machine reduce among themselves in shared memory, and where there are several machines, one of them exchanges each part for all; off on one is off on its machine.
        local_reduce: LocalReduce = "auto";
        /// Add in the order of ranks, not of arrival: bitwise the same sums on every run.
        deterministic: Flag = "false";
        /// What becomes of a contribution with a NaN or an infinity: `off` adds it like any other, `warn` adds it and logs tensor, worker and round, `error` fails its round on all workers. Each worker looks at its own contributions when it first reads them: in host memory, so devices encode none of them then, or on the device if NCCL adds them. Then nothing is added, and no stream can wait for a sum, before the device has come to the contribution.
        nan_check: NanCheck = "off";
        /// Threads that add in a server; 0 for one per core.
        sum_threads: Count = "0" in "0" to "1024", alias "BYTEPS_SERVER_ENGINE_THREAD";
        /// Memory of a server: seven eighths for sums, finished and growing, and one for what workers have sent over QUIC and nobody has read. The sums need more than three times its share of the model, more if `deterministic`. Unset, three quarters of what its host and its control groups give it.
        server_bytes_max: Optional<Bytes> = "" in "1 MiB" to "64 TiB";
    }
    "Compression" {
        /// How tensors travel where a call says nothing, such as `bf16` or `int8:block=512`: those with two dimensions or more, and min_compress_bytes. Equal on all workers.
        compression: Codec = "none";
        /// Where a codec is chosen for a whole model or job, tensors with fewer bytes, or fewer than two dimensions, travel unchanged. fp16 and bf16 act on all tensors of a model for which they are chosen. Equal on all workers.
        min_compress_bytes: Bytes = "8 KiB" in "0" to "1 GiB", alias "BYTEPS_MIN_COMPRESS_BYTES";
        /// What becomes of a tensor whose elements do not suit the codec that its call names: an error, or none for no compression. Casts leave such tensors alone in any case.
        compression_fallback: CompressionFallback = "error";
    }
    "Devices" {
        /// The CUDA driver's library, where it is not the one that the loader finds; tests name a fake one.
        cuda_lib: Optional<Path> = "";
        /// NCCL's library, where it is neither loaded by the framework nor found by the loader.
        nccl_lib: Optional<Path> = "";
        /// Memory of the host that a process may pin for copies from and to devices; beyond it copies go through ordinary memory, slower.
        pinned_bytes_max: Bytes = "1 GiB" in "1 MiB" to "1 TiB";
        /// Devices behind one PCIe switch, counted by local rank: those of a switch reduce first, and the host adds what the switches have. Unset, all devices of a machine reduce at once. `gradlane doctor` tells what would fit.
        pcie_switch_size: Optional<Count> = "" in "1" to "64", alias "BYTEPS_PCIE_SWITCH_SIZE";
        /// Local ranks that may hold and exchange what the workers of their machine reduce, such as `0,2`; unset, all of them in turn.
        reduce_roots: Indices = "", alias "BYTEPS_REDUCE_ROOTS";
    }
    "Frameworks" {
        /// What runs the operations of TensorFlow's graphs: native operations or Python functions. Read from the environment when the first graph is made.
        tensorflow_op: FrameworkCall = "auto";
        /// What reduces inside of JAX's compiled functions: XLA's custom call or Python functions. Read from the environment at the first reduction.
        jax_call: FrameworkCall = "auto";
    }
    "Failures" {
        /// How long a process waits for the job to form.
        join_timeout: TimeSpan = "300 s" in "1 ms" to "24 h";
        /// How long a coordinator waits for all members; below `join_timeout`, because it can say who is missing.
        form_timeout: TimeSpan = "290 s" in "1 ms" to "24 h";
        /// How often a process says that it lives.
        heartbeat_interval: TimeSpan = "250 ms" in "1 ms" to "60 s";
        /// Silence after which a member is suspect. A member dials a coordinator again that was silent for so long.
        suspect_timeout: TimeSpan = "2 s" in "1 ms" to "10 min";
        /// Silence after which a member is dead.
        dead_timeout: TimeSpan = "5 s" in "1 ms" to "1 h";
        /// What becomes of a job that loses a worker; the coordinator's setting counts. With `continue` it goes on with the workers that are left: sums and means are theirs from the step that was under way. It ends if the lost worker reduced with others on its machine (see `local_reduce`), and with the loss of a server (see `on_server_loss`). `wait` is the same, but if too few workers are left, these hold behind their step until others have come (see `rejoin_timeout`): fewer than `min_workers`, or, if neither that nor `elastic` is set, than the job formed with. It needs scripts that count steps, takes in workers up to that number as an elastic job does, and so needs what `elastic` needs. It also goes on without a worker that left in order. Give all workers the same setting: one with `continue` or `wait` keeps what a sum would overwrite until the sum is whole, which takes memory for the sums that are on their way, and another copy where a sum in host memory goes to the place of its contribution.
        on_worker_loss: OnWorkerLoss = "abort";
        /// What becomes of a job that loses a server; the coordinator's setting counts. With `continue` it goes on with the servers that are left: sums that the server had sent to some workers come to the others, and the rest is summed anew, so that no step is lost. It ends if no server is left, or if the job has parameters on servers. What error feedback of answers has kept there is lost. With `restore` the job forms again, as one that takes in workers does: all that servers have is gone, and everything under way fails with a `StateLostError`. Workers join again and go back to the latest checkpoint, which `gradlane.checkpoint.run` does. A server that comes meanwhile is taken in the place of the lost one; else the job goes on with the servers that are left, if there are any. It needs servers that are processes of their own. Both imply `on_worker_loss=continue`. Give all processes the same setting: a worker with `continue` keeps the latest sum of each tensor, which takes as much host memory as the tensors that it reduces over servers, and another copy of each sum in host memory.
        on_server_loss: OnServerLoss = "abort";
        /// The fewest workers that go on after a loss. If fewer are left, the job ends with the cause (`on_worker_loss=continue`), or they hold until others have come (`wait`, where the default is the number with which the job formed). Workers that left in order count.
        min_workers: Count = "1" in "1" to "4096";
        /// With `on_worker_loss=continue`: how long a worker that was asked to leave (SIGTERM, a spot notice) has to come to the end of its step. The others then go on without it at once; the coordinator's setting counts.
        leave_grace: TimeSpan = "25 s" in "1 ms" to "1 h";
        /// The fewest and the most workers of the job, such as `2:8`: lost workers cost the others nothing, and others may come at the end of a step, until there are so many. Implies `on_worker_loss=continue` (unless you set `wait`), `min_workers` and, unless you set it otherwise, `local_reduce=off`, because the loss of a worker that reduces on devices with others of its machine is the loss of that machine. Give it to all processes of the job; it needs a coordinator that no worker embeds.
        elastic: Optional<Elastic> = "";
        /// How long an elastic job that takes in workers waits for all of them to meet; then it goes on with those that came.
        reform_timeout: TimeSpan = "30 s" in "1 ms" to "1 h";
        /// With `on_worker_loss=wait`: how long workers that are too few hold behind their step until others have come. Then the job ends, and all members get the error `QuorumLost`. The coordinator's setting counts.
        rejoin_timeout: TimeSpan = "600 s" in "1 ms" to "24 h";
        /// How long a job runs on without its coordinator.
        control_lost_timeout: TimeSpan = "300 s" in "1 ms" to "24 h";
        /// Wait for a missing contribution after which a warning names the ranks; repeated at this interval.
        stall_warn: TimeSpan = "10 s" in "1 ms" to "1 h";
        /// Wait for a missing contribution after which the tensor fails on all ranks; also the wait for a server that does not answer.
        step_timeout: TimeSpan = "120 s" in "1 ms" to "24 h";
        /// How long an orderly exit waits for exchanges under way and for threads to end.
        shutdown_timeout: TimeSpan = "2 s" in "0" to "10 min";
    }
    "Log" {
        /// Level or filter of the log, such as info or info,gradlane_core::sched=trace.
        log: LogFilter = "warn", alias "BYTEPS_LOG_LEVEL";
        /// Timeline of a worker or a server in Chrome's trace format: a file name that ends in .json, before which the rank is put, or a folder; none if absent.
        timeline: Optional<Path> = "", alias "BYTEPS_TRACE_DIR";
        /// First step of a timeline; 0 for the begin. A step is the highest round of a tensor so far.
        timeline_from_step: Count = "0" in "0" to "1000000000";
        /// Number of steps of a timeline; 0 for all.
        timeline_steps: Count = "0" in "0" to "1000000000";
        /// Size at which a timeline ends.
        timeline_bytes_max: Bytes = "256 MiB" in "64 KiB" to "64 GiB";
        /// Events that the flight recorder of a member keeps, 64 bytes each, beside up to 16,384 open operations of a worker or a server in 2 MiB. More events that do not fit the processor's second cache make small sums slower. 0 records nothing.
        recorder_events: Count = "8192" in "0" to "1048576";
        /// The directory in which the coordinator writes a report when the job ends or fails: JSON for `gradlane compare`, and a page of text. Made if it is not there; absent for no report.
        report: Optional<Path> = "";
        /// Where this process shows its metrics and its state over HTTP, such as 127.0.0.1:9400; absent for nowhere, and port 0 for any free
        /// one, which the log names. Anybody who reaches the address can read them. Each process of a host has a port of its own: a worker adds
        /// its local rank, and `gradlane run` takes this port for itself and the following ones for its workers, then for its servers.
        metrics_bind: Optional<Address> = "";
        /// Whether `metrics_bind` may be an address that other hosts can reach. There is no password: whoever reaches it reads counters, the
        /// names of the job and of hosts, and names of tensors that wait. Without this, such an address shows nothing, and a warning says so.
        metrics_public: Flag = "false";
        /// Further names under which others may ask for metrics. The address that was asked, `localhost`, and the names of this host are always
        /// good; any other name is refused, so that no web page can read them through a name of its own.
        metrics_hosts: Names = "";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_default_and_every_limit_parses() {
        let mut config = Config::default();
        for knob in KNOBS {
            assert_eq!((knob.set)(&mut config, knob.default), Ok(()), "{}", knob.name);
            for limit in knob.range.iter().flat_map(|(low, high)| [low, high]) {
                assert_eq!((knob.set)(&mut config, limit), Ok(()), "{}", knob.name);
            }
        }
    }

    #[test]
    fn every_printed_value_reads_back() {
        let mut config = Config::default();
        for knob in KNOBS {
            let printed = knob.value(&config);
            assert_eq!((knob.set)(&mut config, &printed), Ok(()), "{}", knob.name);
        }
        assert_eq!(config, Config::default());
    }

    #[test]
    fn a_value_beyond_its_limits_is_refused_with_them() {
        let mut config = Config::default();
        for (name, value) in
            [("partition_bytes", "1 KiB"), ("partition_bytes", "65 MiB"), ("dead_timeout", "0"), ("size", "0")]
        {
            let problem = (Knob::find(name).unwrap().set)(&mut config, value).unwrap_err();
            assert!(problem.starts_with("is not between "), "{name}: {problem}");
        }
        assert_eq!(config, Config::default(), "a refused value changes nothing");
    }

    #[test]
    fn names_are_unique_and_documented() {
        let mut names = BTreeSet::new();
        for knob in KNOBS {
            assert!(knob.variables().all(|name| names.insert(name)), "a variable of {} twice", knob.name);
            assert!(knob.doc.ends_with('.'), "{}: {}", knob.name, knob.doc);
        }
    }

    #[test]
    fn an_unlimited_knob_has_no_quantity() {
        for knob in KNOBS {
            let numeric = matches!(knob.unit, Unit::Bytes | Unit::Duration | Unit::Count);
            assert_eq!(knob.range.is_some(), numeric, "{}", knob.name);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused_but_never_panics(text in "\\PC{0,12}|[0-9.]{0,30} ?[a-zA-Zµ]{0,3}") {
            let mut config = Config::default();
            for knob in KNOBS {
                if (knob.set)(&mut config, &text).is_ok() && !knob.unit.is_secret() {
                    let printed = knob.value(&config);
                    prop_assert_eq!((knob.set)(&mut config, &printed), Ok(()));
                    prop_assert_eq!(knob.value(&config), printed);
                }
            }
        }
    }
}
