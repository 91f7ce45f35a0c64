//! The one table of metrics. A row makes the counter, its reader, its place in a snapshot, its name in Prometheus and its
//! documentation. To add a metric, add a row.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::cells::{ByCause, ByLimit, ByMember, ByServer, Cell, Durations, Indexed, Known, NowByServer};
use super::instance::{Instance, Value};
use super::named::{ByName, StageDurations, StageWaits};

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// What has this metric: `worker`, `server`, `coordinator` or `exporter`.
    pub scope: &'static str,
    /// The label that tells several of that scope apart, such as `rank`.
    pub label: &'static str,
    /// The labels that it has besides that one, such as `cause`.
    pub labels: &'static [&'static str],
    /// Its name in snapshots and in Python. It ends with the unit, if it has one.
    pub name: &'static str,
    /// How its value moves.
    pub kind: Kind,
    /// What its value counts.
    pub unit: Unit,
    /// What it means.
    pub help: &'static str,
}

/// How the value of a metric moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It grows and shrinks.
    Gauge,
    /// It counts durations by their length.
    Histogram,
}

impl Kind {
    /// Its name, which is also that in Prometheus.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// What the value of a metric counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Events or things.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
}

impl Unit {
    /// Its name, in the plural; none for a plain count.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Count => None,
            Self::Bytes => Some("bytes"),
            Self::Nanoseconds => Some("nanoseconds"),
        }
    }
}

/// Makes a structure of counters and gauges for each scope, and [`METRICS`]. A row reads `name: Kind of Unit;`, below its documentation. A
/// counter that others hold too has `, shared` behind its unit. A gauge that follows from other values is computed:
/// `name: Gauge of Unit = |metrics| value;`. What has more than one number says its [`Cell`], and the labels that tell the numbers apart:
/// `name: Kind of Unit by "label" in Cell;`.
macro_rules! metrics {
    ($(
        $(#[doc = $scope_doc:literal])+
        $scope:literal by $label:literal: $set:ident {
            $(
                $(#[doc = $help:literal])+
                $name:ident: $kind:ident of $unit:ident $(, $shared:ident)?;
            )+
        }
        computed {
            $(
                $(#[doc = $gauge_help:literal])+
                $gauge:ident: Gauge of $gauge_unit:ident = $value:expr;
            )*
        }
        cells {
            $(
                $(#[doc = $cell_help:literal])+
                $cell:ident: $cell_kind:ident of $cell_unit:ident $(by $($cell_label:literal)+)? in $type:ident;
            )*
        }
    )+) => {
        /// Every metric, by scope.
        pub const METRICS: &[Metric] = &[$(
            $(metrics!(@row $scope, $label, [], $name, $kind, $unit, $($help),+),)+
            $(metrics!(@row $scope, $label, [], $gauge, Gauge, $gauge_unit, $($gauge_help),+),)*
            $(metrics!(@row $scope, $label, [$($($cell_label),+)?], $cell, $cell_kind, $cell_unit, $($cell_help),+),)*
        )+];

        $(
            $(#[doc = $scope_doc])+
            #[derive(Default, Debug)]
            pub struct $set {$(
                $(#[doc = $help])+
                pub $name: metrics!(@cell $($shared)?),
            )+$(
                $(#[doc = $cell_help])+
                pub $cell: $type,
            )*}

            impl $set {
                /// Adds `by` to `counter`, one of the fields.
                pub fn add(counter: &AtomicU64, by: u64) {
                    counter.fetch_add(by, Ordering::Relaxed);
                }

                /// Sets `gauge`, one of the fields.
                pub fn set(gauge: &AtomicU64, value: u64) {
                    gauge.store(value, Ordering::Relaxed);
                }

                $(
                    $(#[doc = $help])+
                    pub fn $name(&self) -> u64 {
                        self.$name.load(Ordering::Relaxed)
                    }
                )+

                $(
                    $(#[doc = $gauge_help])+
                    pub fn $gauge(&self) -> u64 {
                        let value: fn(&Self) -> u64 = $value;
                        value(self)
                    }
                )*

                /// Every metric with its name, in the order of the table.
                pub fn snapshot(&self) -> Vec<(&'static str, Value)> {
                    vec![
                        $((stringify!($name), Value::Plain(self.$name())),)+
                        $((stringify!($gauge), Value::Plain(self.$gauge())),)*
                        $((stringify!($cell), self.$cell.value()),)*
                    ]
                }

                /// The values now, of the one that `label` names.
                pub fn instance(&self, label: impl Display) -> Instance {
                    Instance { scope: $scope, label: label.to_string(), further: Vec::new(), values: self.snapshot() }
                }
            }
        )+
    };
    (@row $scope:literal, $label:literal, [$($labels:literal),*], $name:ident, $kind:ident, $unit:ident, $($help:literal),+) => {
        Metric {
            scope: $scope,
            label: $label,
            labels: &[$($labels),*],
            name: stringify!($name),
            kind: Kind::$kind,
            unit: Unit::$unit,
            help: concat!($($help),+).trim_ascii(),
        }
    };
    (@cell) => { AtomicU64 };
    (@cell shared) => { Arc<AtomicU64> };
}

metrics! {
    /// What one worker counted since its engine started.
    "worker" by "rank": WorkerMetrics {
        /// Operations accepted.
        submissions: Counter of Count;
        /// Operations that ended, with a result or with an error.
        resolved: Counter of Count;
        /// Operations that ended with an error.
        failed: Counter of Count;
        /// Contributions sent to servers, repeats included. Counts parts, not tensors.
        pushes: Counter of Count;
        /// Bytes of the contributions, without headers.
        push_bytes: Counter of Bytes;
        /// Sums received from servers. Counts parts, not tensors.
        pulls: Counter of Count;
        /// Bytes of the sums, without headers.
        pull_bytes: Counter of Bytes;
        /// Bytes of the headers of contributions and sums.
        header_bytes: Counter of Bytes;
        /// Contributions sent again after a loss.
        repeats: Counter of Count;
        /// Rounds that this worker withdrew from, because it was cancelled, failed, or left the job. Counts parts.
        withdrawals: Counter of Count;
        /// Contributions with a NaN or an infinity that were found, as the setting `nan_check` asks. Counts parts.
        not_finite: Counter of Count, shared;
        /// Changes of parameters that ended well, whatever became of them. Counts tensors.
        changes: Counter of Count;
        /// Changes among them that were scaled, because they were computed from a version that was too old.
        changes_scaled: Counter of Count;
        /// Changes among them that were discarded for the same reason.
        changes_discarded: Counter of Count;
        /// Changes among them that came after their round was closed.
        changes_late: Counter of Count;
        /// Changes among them that were computed from the version to which they came: their lag is 0.
        changes_of_lag_0: Counter of Count;
        /// Changes among them of a lag of 1 to 3 versions.
        changes_of_lag_1_to_3: Counter of Count;
        /// Changes among them of a lag of 4 to 15 versions.
        changes_of_lag_4_to_15: Counter of Count;
        /// Changes among them of a lag of 16 to 63 versions.
        changes_of_lag_16_to_63: Counter of Count;
        /// Changes among them of a lag of 64 or more versions.
        changes_of_lag_64_or_more: Counter of Count;
        /// Rounds of clocks that were closed without this worker.
        rounds_late: Counter of Count;
        /// Parts that the workers of one machine reduced among themselves, whether the sums went on to a server or not.
        local_sums: Counter of Count;
        /// Bytes of these parts.
        local_bytes: Counter of Bytes;
        /// Bytes of these parts that lie on devices, and that NCCL added so that every rank of the machine got the sums (`ncclAllReduce`).
        nccl_all_reduce_bytes: Counter of Bytes, shared;
        /// The same where each rank got an equal share of the sums (`ncclReduceScatter`).
        nccl_reduce_scatter_bytes: Counter of Bytes, shared;
        /// The same where one rank got the sum (`ncclReduce`).
        nccl_reduce_bytes: Counter of Bytes, shared;
        /// Bytes of sums that came from servers, and that the devices of a machine got from each other in equal shares (`ncclAllGather`).
        nccl_all_gather_bytes: Counter of Bytes, shared;
        /// Bytes that devices of a machine got from one of them (`ncclBroadcast`, `ncclSend`).
        nccl_broadcast_bytes: Counter of Bytes, shared;
        /// Groups of operations that were given to NCCL.
        nccl_groups: Counter of Count, shared;
        /// Time that a thread took to put these groups on streams, with their waits and kernels. It does not include waits for a device.
        nccl_issue_nanoseconds: Counter of Nanoseconds, shared;
        /// Bytes copied from devices, to be sent.
        d2h_bytes: Counter of Bytes;
        /// Bytes of sums copied to devices.
        h2d_bytes: Counter of Bytes;
        /// Operations on devices for whose end a stream waited, and no thread.
        stream_waits: Counter of Count, shared;
        /// Waits of the caller's threads for the end of an operation. A training step on devices has none for its gradients.
        host_waits: Counter of Count, shared;
        /// Time in which the caller's threads waited for handles: communication that hid behind no computation.
        caller_blocked_nanoseconds: Counter of Nanoseconds, shared;
        /// Time in which the training waited for its data loader, as far as the script tells it with `gradlane.timeline.data`.
        data_wait_nanoseconds: Counter of Nanoseconds;
        /// Connections made to servers, again after a loss included.
        connections: Counter of Count;
        /// Connections among them that go through shared memory, to servers on this machine.
        shm_connections: Counter of Count;
        /// Bytes copied between buffers of this process. Over a network it stays 0 for tensors in host memory, because they are sent from
        /// where they lie. To a server on this machine each contribution is copied once, into memory that the server reads.
        copied_bytes: Counter of Bytes, shared;
        /// Bytes of the residuals of error feedback: 4 for each element that this worker sends of tensors whose codec has it.
        residual_bytes: Gauge of Bytes, shared;
        /// Whether parts wait because the credit is used up: 1 or 0.
        starved: Gauge of Count, shared;
        /// Processor time that its process took.
        process_cpu_nanoseconds: Counter of Nanoseconds;
        /// Memory of its process that is in RAM.
        process_resident_memory_bytes: Gauge of Bytes;
        /// Descriptors that its process has open.
        process_open_fds: Gauge of Count;
        /// When its process began, since 1970.
        process_start_time_nanoseconds: Gauge of Nanoseconds;
        /// Time in which threads of its process could have run and waited for a core, added over the threads.
        run_delay_nanoseconds: Counter of Nanoseconds;
        /// Rounds of the tensor that was reduced most often: the training steps, where each reduces it once. Counted at each heartbeat.
        rounds: Gauge of Count;
    }
    computed {
        /// Operations that have not ended.
        handles_live: Gauge of Count = |metrics| metrics.submissions().saturating_sub(metrics.resolved());
    }
    cells {
        /// Time from the submission of an operation to its end. In Python, this is the sum, and `push_pull_duration_count` counts the operations.
        push_pull_duration_nanoseconds: Histogram of Nanoseconds in Durations;
        /// How wrong the clock of the job may be in this process: half of the delay of the heartbeats that tell it.
        clock_error_nanoseconds: Gauge of Nanoseconds in Known;
        /// By how much the wall clock of this host differs from the clock of the job, in either direction. The clock of the job began as the wall
        /// clock of the coordinator.
        clock_offset_nanoseconds: Gauge of Nanoseconds in Known;
        /// How long a stage of a part took, from the queue to its end. PULL takes until the sum is there.
        stage_duration_nanoseconds: Histogram of Nanoseconds by "stage" in StageDurations;
        /// Time that parts waited in the queue of a stage, added over the parts: `credit` while nothing was taken because the credit was used up,
        /// else `queue`, which includes the wait for the round before and for a connection.
        stage_wait_nanoseconds: Counter of Nanoseconds by "stage" "reason" in StageWaits;
        /// Bytes of contributions and sums that travelled under a codec, in their own element type.
        codec_raw_bytes: Counter of Bytes by "codec" in ByName;
        /// The bytes that travelled for them.
        codec_wire_bytes: Counter of Bytes by "codec" in ByName;
        /// Connections made to a server, again after a loss included.
        link_connects: Counter of Count by "server" in ByServer;
        /// Bytes that were sent to a server. Over a network, these are the datagrams of QUIC with headers, acknowledgements and repeats, without
        /// the headers of UDP and IP. Over shared memory, these are contributions, and there are no other metrics of the link but bytes.
        link_sent_bytes: Counter of Bytes by "server" in ByServer;
        /// The same of what came from a server. Over shared memory, these are sums.
        link_received_bytes: Counter of Bytes by "server" in ByServer;
        /// Packets of QUIC that were sent to a server.
        link_sent_packets: Counter of Count by "server" in ByServer;
        /// Packets among them that were taken for lost, and whose bytes were sent again. Probes for larger datagrams do not count.
        link_lost_packets: Counter of Count by "server" in ByServer;
        /// How often the congestion window of the connection to a server was made smaller.
        link_congestion_events: Counter of Count by "server" in ByServer;
        /// The round trip to a server, smoothed as in RFC 9002.
        link_rtt_nanoseconds: Gauge of Nanoseconds by "server" in NowByServer;
        /// The congestion window of the connection to a server.
        link_cwnd_bytes: Gauge of Bytes by "server" in NowByServer;
        /// The largest datagram that the path to a server takes.
        link_mtu_bytes: Gauge of Bytes by "server" in NowByServer;
        /// Time in which a link to a server sent nothing more, by what held it. The thread that sends works in turns, and what it finds at the end of
        /// a turn counts until the end of the next: `app`, all was sent and acknowledged, or acknowledged without more being sent; `credit`, the
        /// same while parts wait because the credit is used up; `cwnd`, the congestion window is full or packets are paced; `flow`, the server
        /// said that it takes no more; `socket`, the kernel takes no more. While it has more to send and goes on, no time counts.
        link_limited_nanoseconds: Counter of Nanoseconds by "server" "by" in ByLimit;
    }

    /// What one server counted since its start.
    "server" by "server": ServerMetrics {
        /// Bytes of contributions that arrived, those of repeats too.
        received_bytes: Counter of Bytes;
        /// Bytes of sums handed over to the transport.
        sent_bytes: Counter of Bytes;
        /// Bytes copied between the buffer in which they arrived and their accumulator, or between that and the buffer from which they are
        /// sent. Additions do not count, nor does the first write of an accumulator.
        copied_bytes: Counter of Bytes, shared;
        /// Processor time that its process took.
        process_cpu_nanoseconds: Counter of Nanoseconds;
        /// Memory of its process that is in RAM.
        process_resident_memory_bytes: Gauge of Bytes;
        /// Descriptors that its process has open.
        process_open_fds: Gauge of Count;
        /// When its process began, since 1970.
        process_start_time_nanoseconds: Gauge of Nanoseconds;
        /// Time in which threads of its process could have run and waited for a core, added over the threads.
        run_delay_nanoseconds: Counter of Nanoseconds;
        /// Steps, by the tensor that has most: sums of a round whose number was higher than that of every sum before.
        steps: Counter of Count;
    }
    computed {}
    cells {
        /// How wrong the clock of the job may be in this process: half of the delay of the heartbeats that tell it.
        clock_error_nanoseconds: Gauge of Nanoseconds in Known;
        /// By how much the wall clock of this host differs from the clock of the job, in either direction. The clock of the job began as the wall
        /// clock of the coordinator.
        clock_offset_nanoseconds: Gauge of Nanoseconds in Known;
        /// Time from the first byte of a round of a part to its sum.
        round_duration_nanoseconds: Histogram of Nanoseconds in Durations;
        /// Time in which a round had only this worker missing, by what its contribution waited for. Time in which several rounds waited for it counts
        /// once. Where the workers of a machine reduce among themselves, it is the worker that brings their sum.
        late_nanoseconds: Counter of Nanoseconds by "rank" "cause" in ByCause;
        /// Rounds of parts whose last contribution was that of this worker, where there was another one.
        last: Counter of Count by "rank" in Indexed;
        /// Time in which a sum lane worked, whichever thread did it.
        lane_busy_nanoseconds: Counter of Nanoseconds by "lane" in Indexed;
    }

    /// What the coordinator of a job counted since its start, and what it knows of the job.
    "coordinator" by "job_name": CoordinatorMetrics {
        /// Workers that the job has when it is complete.
        workers_expected: Gauge of Count;
        /// Workers that are members now: they have joined, and have neither left nor been given up.
        workers_joined: Gauge of Count;
        /// Servers that the job has when it is complete.
        servers_expected: Gauge of Count;
        /// Servers that are members now.
        servers_joined: Gauge of Count;
        /// Members that are silent for longer than `suspect_timeout`.
        members_suspect: Gauge of Count;
        /// Members that have told their metrics in the last seconds.
        members_answered: Gauge of Count;
        /// Members that were given up.
        losses: Counter of Count;
        /// Whether the job runs: 1 once all members have joined, and 0 before that and after its end.
        running: Gauge of Count;
        /// The number of the membership, which grows with each change of it; 0 until the job runs.
        epoch: Gauge of Count;
        /// The number of this start of the coordinator, which grows with each.
        term: Gauge of Count;
        /// Connections of members and of others that ask.
        connections: Gauge of Count;
        /// Frames that were handled, of members and of processes that want to be members.
        frames: Counter of Count;
        /// Requests for the state of the job, such as those of `gradlane status`.
        status_requests: Counter of Count;
        /// Orders of operators, such as those of `gradlane ctl`, that were given on.
        orders: Counter of Count;
        /// Processes with a certificate of this job that were refused as members, for example because their rank is taken.
        refusals: Counter of Count;
        /// Processes that asked for a certificate and were refused: they know no secret of the job, or the job is complete.
        enrolments_refused: Counter of Count, shared;
        /// Reports of sums that wait for workers. Each sum is reported once per `stall_warn`.
        stalls: Counter of Count;
        /// Warnings that one server has much more than its share.
        hot_servers: Counter of Count;
        /// Processor time that its process took.
        process_cpu_nanoseconds: Counter of Nanoseconds;
        /// Memory of its process that is in RAM.
        process_resident_memory_bytes: Gauge of Bytes;
        /// Descriptors that its process has open.
        process_open_fds: Gauge of Count;
        /// When its process began, since 1970.
        process_start_time_nanoseconds: Gauge of Nanoseconds;
        /// Time in which threads of its process could have run and waited for a core, added over the threads.
        run_delay_nanoseconds: Counter of Nanoseconds;
    }
    computed {
        /// Workers and servers that the job waits for.
        members_missing: Gauge of Count = |metrics| {
            let expected = metrics.workers_expected() + metrics.servers_expected();
            expected.saturating_sub(metrics.workers_joined() + metrics.servers_joined())
        };
    }
    cells {
        /// When a member last told its metrics, since 1970. Members tell them once a second.
        member_last_seen_nanoseconds: Gauge of Nanoseconds by "role" "index" in ByMember;
    }

    /// What the exporter of a process counted: the thread that answers these requests.
    "exporter" by "version": ExporterMetrics {
        /// Requests that got what they asked for.
        answers: Counter of Count;
        /// Requests that were refused: malformed, too long or too slow, for another host, or for a page that does not exist.
        refusals: Counter of Count;
        /// Connections that were turned away, because too many were open.
        connections_refused: Counter of Count;
    }
    computed {}
    cells {}
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_snapshot_has_the_rows_of_its_scope_in_their_order() {
        for instance in [
            WorkerMetrics::default().instance(0),
            ServerMetrics::default().instance(0),
            CoordinatorMetrics::default().instance("night"),
            ExporterMetrics::default().instance("0.1.0"),
        ] {
            let rows = METRICS.iter().filter(|metric| metric.scope == instance.scope).map(|metric| metric.name);
            assert_eq!(rows.collect::<Vec<_>>(), instance.values.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_added_through_any_holder_of_a_counter_is_read() {
        let metrics = WorkerMetrics::default();
        let shared = Arc::clone(&metrics.copied_bytes);
        WorkerMetrics::add(&metrics.copied_bytes, 3);
        WorkerMetrics::add(&shared, 4);
        WorkerMetrics::add(&metrics.submissions, 5);
        WorkerMetrics::add(&metrics.resolved, 2);
        assert_eq!((metrics.copied_bytes(), metrics.submissions(), metrics.handles_live()), (7, 5, 3));
        assert!(metrics.snapshot().contains(&("copied_bytes", Value::Plain(7))));
    }

    #[test]
    fn a_job_misses_the_members_that_have_not_joined() {
        let metrics = CoordinatorMetrics::default();
        for (gauge, value) in [
            (&metrics.workers_expected, 4),
            (&metrics.servers_expected, 2),
            (&metrics.workers_joined, 3),
            (&metrics.servers_joined, 0),
        ] {
            CoordinatorMetrics::set(gauge, value);
        }
        assert_eq!(metrics.members_missing(), 3);
    }

    #[test]
    fn names_are_unique_end_with_their_unit_and_are_documented() {
        let mut names = BTreeSet::new();
        for metric in METRICS {
            assert!(names.insert((metric.scope, metric.name)), "{} twice", metric.name);
            let unit = ["bytes", "nanoseconds"].into_iter().find(|unit| metric.name.ends_with(&format!("_{unit}")));
            assert_eq!(unit, metric.unit.name(), "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}: {}", metric.name, metric.help);
        }
    }
}
