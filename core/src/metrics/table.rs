//! The one table of metrics. A row makes the counter, its reader, its place in a snapshot, its name in Prometheus and its
//! documentation. To add a metric, add a row.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::cells::{
    ByCause, ByDevice, ByLimit, ByMember, ByServer, Cell, Durations, Fact, Indexed, Known, MachineLast, MachineLate,
    NowByLane, NowByServer,
};
use super::instance::{Instance, Value};
use super::named::{ByName, StageDurations, StageWaits};
use super::row::{Kind, Metric, Unit, metrics};
use super::sinks::BySink;

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
        /// Bytes of parts under way to servers and back, and on their way between devices and host for that, which count against the credit. The
        /// credit is one for all servers. Counted at each heartbeat.
        inflight_bytes: Gauge of Bytes;
        /// Bytes that may be under way: the setting `credit_bytes`. A part that is more urgent than others may take as much again.
        credit_bytes: Gauge of Bytes;
        /// Tensors that were found without progress for `stall_warn` and have not ended. The worker looks for them every `stall_warn`. Counted at
        /// each heartbeat.
        stalled_tensors: Gauge of Count;
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
        /// Steps of the workers of its machine, which reduce among themselves, by the tensor that has most. Only the first of them counts.
        machine_steps: Counter of Count;
    }
    computed {
        /// Operations that have not ended.
        handles_live: Gauge of Count = |metrics| metrics.submissions().saturating_sub(metrics.resolved());
    }
    cells {
        /// What this process runs: the version of Gradlane and the commit of which it was built, as far as that is known. The value is 1.
        build_info: Gauge of Count by "version" "commit" in Fact;
        /// Who this is in its job. The value is 1.
        member_info: Gauge of Count by "role" "index" "host" in Fact;
        /// The settings that somebody gave, in one number without those of its place: processes with equal settings have the same. The value is 1.
        config_info: Gauge of Count by "hash" in Fact;
        /// Time from the submission of an operation to its end. In Python, this is the sum, and `push_pull_duration_count` counts the operations.
        push_pull_duration_nanoseconds: Histogram of Nanoseconds in Durations;
        /// Time from the begin of a step to that of the next one. A step begins with the first part of a round that no tensor of this worker has had
        /// before: in a training, with the first gradient. In Python, this is the sum, and `step_duration_count` counts the steps.
        step_duration_nanoseconds: Histogram of Nanoseconds in Durations;
        /// Operations that ended with an error, by its class, such as `deadline_exceeded`. Classes without an error are not shown.
        errors: Counter of Count by "class" in ByName;
        /// Exchanges with servers that failed and were to be repeated, by the class of the error: `unavailable` where a connection was lost,
        /// `resource_exhausted` where the server had no memory. Classes without an error are not shown.
        exchange_failures: Counter of Count by "class" in ByName;
        /// Time in which a sum of the workers of its machine had only this one missing, by what its part waited for. Time in which several sums
        /// waited for it counts once. Only the first worker of a machine counts.
        machine_late_nanoseconds: Counter of Nanoseconds by "late_rank" "cause" in MachineLate;
        /// Sums of parts among the workers of its machine to which this worker came last. Only the first worker of a machine counts.
        machine_last: Counter of Count by "last_rank" in MachineLast;
        /// How wrong the clock of the job may be in this process: half of the delay of the heartbeats that tell it.
        clock_error_nanoseconds: Gauge of Nanoseconds in Known;
        /// By how much the wall clock of this host differs from the clock of the job, in either direction. The clock of the job began as the wall
        /// clock of the coordinator.
        clock_offset_nanoseconds: Gauge of Nanoseconds in Known;
        /// What a network interface of the machine can carry in each direction, as the kernel says: of those that are up and have hardware of their
        /// own. Absent where the kernel does not know, as in most virtual machines.
        nic_capacity_bytes_per_second: Gauge of BytesPerSecond by "device" in ByDevice;
        /// Events of what this process did: of the flight recorder, and of timelines. Those of a recorder that is full take the places of older ones.
        trace_events: Counter of Count by "sink" in BySink;
        /// Events among them that are missing: of the recorder, because two threads met in one place; of a timeline, because its file was full or
        /// not written fast enough.
        trace_events_lost: Counter of Count by "sink" in BySink;
        /// How long a stage of a part took, from the queue to its end. PULL takes until the sum is there.
        stage_duration_nanoseconds: Histogram of Nanoseconds by "stage" in StageDurations;
        /// Time that parts waited for a stage, added over the parts: `order` for the sum of the round before, `link` for a connection or the pause
        /// before a repeat, `device` while as many copies as may be were under way, `credit` while nothing was taken because the credit was used
        /// up, else `queue`. `peers` is the time from the queue until all workers of the machine were ready for the part, and it was the turn of
        /// their sum.
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
        /// Bytes of memory for tensors that are in use or promised: sums, values of parameters, and what is on its way to them. Counted at each
        /// heartbeat.
        sum_bytes: Gauge of Bytes;
        /// Bytes that there are for them, by the setting `server_bytes_max`. Parts beyond them wait.
        sum_limit_bytes: Gauge of Bytes;
        /// Rounds of parts that have begun and miss the contribution of a worker. Counted at each heartbeat.
        waiting_rounds: Gauge of Count;
    }
    computed {}
    cells {
        /// What this process runs: the version of Gradlane and the commit of which it was built, as far as that is known. The value is 1.
        build_info: Gauge of Count by "version" "commit" in Fact;
        /// Who this is in its job. The value is 1.
        member_info: Gauge of Count by "role" "index" "host" in Fact;
        /// The settings that somebody gave, in one number without those of its place: processes with equal settings have the same. The value is 1.
        config_info: Gauge of Count by "hash" in Fact;
        /// How wrong the clock of the job may be in this process: half of the delay of the heartbeats that tell it.
        clock_error_nanoseconds: Gauge of Nanoseconds in Known;
        /// By how much the wall clock of this host differs from the clock of the job, in either direction. The clock of the job began as the wall
        /// clock of the coordinator.
        clock_offset_nanoseconds: Gauge of Nanoseconds in Known;
        /// What a network interface of the machine can carry in each direction, as the kernel says: of those that are up and have hardware of their
        /// own. Absent where the kernel does not know, as in most virtual machines.
        nic_capacity_bytes_per_second: Gauge of BytesPerSecond by "device" in ByDevice;
        /// Events of what this process did: of the flight recorder, and of timelines. Those of a recorder that is full take the places of older ones.
        trace_events: Counter of Count by "sink" in BySink;
        /// Events among them that are missing: of the recorder, because two threads met in one place; of a timeline, because its file was full or
        /// not written fast enough.
        trace_events_lost: Counter of Count by "sink" in BySink;
        /// Time from the first byte of a round of a part to its sum.
        round_duration_nanoseconds: Histogram of Nanoseconds in Durations;
        /// Time in which a round had only this worker missing, by what its contribution waited for. Time in which several rounds waited for it counts
        /// once. Where the workers of a machine reduce among themselves, it is the worker that brings their sum.
        late_nanoseconds: Counter of Nanoseconds by "rank" "cause" in ByCause;
        /// Rounds of parts whose last contribution was that of this worker, where there was another one.
        last: Counter of Count by "rank" in Indexed;
        /// Time in which a sum lane worked, whichever thread did it.
        lane_busy_nanoseconds: Counter of Nanoseconds by "lane" in Indexed;
        /// Steps of parts, and pieces of contributions, that wait for a sum lane.
        lane_parts: Gauge of Count by "lane" in NowByLane;
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
        /// What this process runs: the version of Gradlane and the commit of which it was built, as far as that is known. The value is 1.
        build_info: Gauge of Count by "version" "commit" in Fact;
        /// Who this is in its job. The value is 1.
        member_info: Gauge of Count by "role" "index" "host" in Fact;
        /// The settings that somebody gave, in one number without those of its place: processes with equal settings have the same. The value is 1.
        config_info: Gauge of Count by "hash" in Fact;
        /// When a member last told its metrics, since 1970. Members tell them once a second.
        member_last_seen_nanoseconds: Gauge of Nanoseconds by "role" "index" in ByMember;
        /// Bytes of the parts that the layout has placed on a server.
        placed_bytes: Gauge of Bytes by "server" in NowByServer;
    }

    /// What the exporter of a process counted: the thread that answers these requests.
    "exporter" by "version": ExporterMetrics {
        /// Requests that got what they asked for.
        answers: Counter of Count;
        /// Requests that were refused: malformed, too long or too slow, for another host, or for a page that does not exist.
        refusals: Counter of Count;
        /// Connections that were turned away, because too many were open.
        connections_refused: Counter of Count;
        /// Time in which the thread answered probes alone, because it had used more than its share of a core. Other requests wait meanwhile.
        held_back_nanoseconds: Counter of Nanoseconds;
    }
    computed {}
    cells {}
}

#[cfg(test)]
mod tests;
