// gradlane.h: the C interface of Gradlane, which sums tensors over all workers of a job, and keeps parameters
// and tables for them.
//
// This file is generated from the Rust sources in plugins/session/src/c by tests/build.rs. Do not edit it.
//
//     GradlaneSession session;
//     GradlaneOperation operation;
//     gradlane_init(NULL, 0, &session, NULL);
//     GradlaneSubmission submission = {.struct_size = sizeof submission, .name = "w", .shape = shape, .dimensions = 1,
//         .dtype = GRADLANE_DTYPE_FLOAT32, .op = GRADLANE_OP_SUM, .source = values, .bytes = sizeof values};
//     gradlane_submit(session, &submission, &operation, NULL);
//     gradlane_wait(operation, GRADLANE_FOREVER, NULL);
//     gradlane_release(operation, NULL);
//     gradlane_shutdown(session, 10000, NULL);
//
// ERRORS. Every function that can fail returns a GradlaneStatus, and describes the error in the GradlaneError that the
// caller gives; NULL for no description. No error is kept per thread or process. A function that fails has no effect,
// unless its comment says otherwise.
//
// MEMORY. Structures, texts and arrays are read during the call only; the caller may free them when it returns. The
// library keeps only these pointers of the caller: `source` and `destination` of a submission, `value` and `into` of a use
// of a parameter, and `rows` of a pull or a look, which it uses until the operation has ended, and `callback` and `user`,
// which it uses once. Do not free anything that the library returns: end sessions with gradlane_shutdown, and operations
// with gradlane_release.
//
// HANDLES. Sessions and operations are numbers. A number that was released, or is of another kind, is an error and never
// undefined behaviour. A pointer that is neither NULL nor valid is undefined behaviour, as everywhere in C.
//
// THREADS. Every function may be called by several threads at once. In a forked child all calls that concern the parent's
// sessions and operations fail. The other workers treat a process that exits without gradlane_shutdown as lost.
//
// STEPS. A training that goes on while workers leave, are lost or come calls gradlane_begin_step before each step; see
// examples/c/elastic.c. Programs without it work in such a job too, but nobody can come to it or leave it in order.
//
// VERSIONS. Structures begin with their size, so that they can grow: a program that was compiled for an older header works
// with a newer library. Compare gradlane_abi_version() with GRADLANE_ABI_VERSION at start.

#ifndef GRADLANE_H
#define GRADLANE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The result of a call. Values never change; new ones may be added.
typedef enum GradlaneStatus {
    // The call or the operation succeeded.
    GRADLANE_STATUS_OK = 0,
    // The operation has not ended yet. This is not an error.
    GRADLANE_STATUS_PENDING = 1,
    // An argument is invalid, or workers disagree about a tensor.
    GRADLANE_STATUS_INVALID_ARGUMENT = 2,
    // Another process has the rank.
    GRADLANE_STATUS_ALREADY_EXISTS = 3,
    // The state does not allow the call: the handle was released, the session was shut down, or the process was forked.
    GRADLANE_STATUS_FAILED_PRECONDITION = 4,
    // The job, a peer or a device ended.
    GRADLANE_STATUS_ABORTED = 5,
    // A deadline passed.
    GRADLANE_STATUS_DEADLINE_EXCEEDED = 6,
    // The same call may succeed later.
    GRADLANE_STATUS_UNAVAILABLE = 7,
    // A limit was reached; nothing was changed.
    GRADLANE_STATUS_RESOURCE_EXHAUSTED = 8,
    // The caller cancelled the operation.
    GRADLANE_STATUS_CANCELLED = 9,
    // This process belongs to a past membership of the job.
    GRADLANE_STATUS_FENCED = 10,
    // A peer could not prove its identity.
    GRADLANE_STATUS_UNAUTHENTICATED = 11,
    // Bytes were damaged on the way.
    GRADLANE_STATUS_DATA_LOSS = 12,
    // A defect of Gradlane.
    GRADLANE_STATUS_INTERNAL = 13,
    // The engine of this process does not end the operation, because its threads are stuck. The memory of the operation stays in use.
    GRADLANE_STATUS_UNRESPONSIVE = 14,
    // What was asked for by its name is not there.
    GRADLANE_STATUS_NOT_FOUND = 15,
} GradlaneStatus;

// The description of an error. The structure and the text belong to the caller. The library writes to them only during the call that gets
// them, and only if that call returns an error.
typedef struct GradlaneError {
    // In: `sizeof(GradlaneError)`.
    size_t struct_size;
    // In: memory for the description, or NULL.
    char *text;
    // In: bytes of that memory.
    size_t text_capacity;
    // Out: bytes of the whole description without its final zero. The text was cut if this is not below `text_capacity`.
    size_t text_bytes;
    // Out: the result of the call, a `GradlaneStatus`.
    int32_t status;
    // Out: 1 if the same call may succeed later without other changes, else 0.
    int32_t retryable;
} GradlaneError;

// The version of this interface. It grows when a function or structure changes so that programs must be compiled again.
#define GRADLANE_ABI_VERSION 1

// An unlimited time, in milliseconds.
#define GRADLANE_FOREVER UINT64_C(18446744073709551615)

// A session: the membership of this process in a job. 0 is never a session.
typedef uint64_t GradlaneSession;

// A submitted operation. 0 is never an operation.
typedef uint64_t GradlaneOperation;

// Runs once when an operation has ended, or is given up because the engine's threads are stuck: then `gradlane_poll` says
// `GRADLANE_STATUS_PENDING` or `GRADLANE_STATUS_UNRESPONSIVE`, and the memory stays in use. It runs on a thread of the library. It may call
// any function of this library except `gradlane_shutdown` of its own session. It must return soon, because it delays other callbacks, and
// it must not throw. `operation` may already be released.
typedef void (*GradlaneCallback)(void *user, GradlaneOperation operation);

// Element types. 16-bit floats are added in float32 and rounded once. Integer sums wrap.
typedef enum GradlaneDtype {
    // IEEE 754 single precision.
    GRADLANE_DTYPE_FLOAT32 = 1,
    // IEEE 754 double precision.
    GRADLANE_DTYPE_FLOAT64 = 2,
    // IEEE 754 half precision.
    GRADLANE_DTYPE_FLOAT16 = 3,
    // bfloat16.
    GRADLANE_DTYPE_BFLOAT16 = 4,
    // Signed 32 bits.
    GRADLANE_DTYPE_INT32 = 5,
    // Signed 64 bits.
    GRADLANE_DTYPE_INT64 = 6,
    // Signed 8 bits.
    GRADLANE_DTYPE_INT8 = 7,
    // Unsigned 8 bits.
    GRADLANE_DTYPE_UINT8 = 8,
} GradlaneDtype;

// How the contributions of all workers become one result.
typedef enum GradlaneOp {
    // The sum.
    GRADLANE_OP_SUM = 1,
    // The sum divided by the number of workers.
    GRADLANE_OP_MEAN = 2,
    // The smallest; NaN wins.
    GRADLANE_OP_MIN = 3,
    // The largest; NaN wins.
    GRADLANE_OP_MAX = 4,
    // The mean with the weights `weight`. Floating point only.
    GRADLANE_OP_WEIGHTED_MEAN = 5,
    // The bytes of the worker `root`.
    GRADLANE_OP_BROADCAST = 6,
} GradlaneOp;

// What a worker does with a parameter: a tensor that servers keep, and that each worker changes and reads by itself, at any time.
typedef enum GradlaneAccess {
    // Gives it its first value, unless it has one.
    GRADLANE_ACCESS_INIT = 1,
    // Adds to it, element by element.
    GRADLANE_ACCESS_PUSH_ADD = 2,
    // Takes its place.
    GRADLANE_ACCESS_PUSH_ASSIGN = 3,
    // Reads it.
    GRADLANE_ACCESS_PULL = 4,
    // Adds to it, and reads the value that this makes.
    GRADLANE_ACCESS_PUSH_PULL_ADD = 5,
    // Takes its place, and reads the value that this makes.
    GRADLANE_ACCESS_PUSH_PULL_ASSIGN = 6,
    // Is a gradient, by which the rule of the parameter changes it.
    GRADLANE_ACCESS_PUSH_STEP = 7,
    // Is a gradient, and reads the value that the rule makes.
    GRADLANE_ACCESS_PUSH_PULL_STEP = 8,
    // Reads the exponential average of its values, which its rule keeps.
    GRADLANE_ACCESS_PULL_EMA = 9,
    // Reads the mean of its last values, which its rule keeps.
    GRADLANE_ACCESS_PULL_WINDOW = 10,
} GradlaneAccess;

// What became of a change of a parameter. A higher one is worse for its worker.
typedef enum GradlaneFate {
    // It was done, or there was nothing to change.
    GRADLANE_FATE_ACCEPTED = 0,
    // It is kept until its round is closed.
    GRADLANE_FATE_KEPT = 1,
    // It was multiplied by 1 / (1 + lag), and done.
    GRADLANE_FATE_SCALED = 2,
    // It was not done, because its lag is above what the mode allows.
    GRADLANE_FATE_DISCARDED_STALE = 3,
    // It was not done, because its round was closed without this worker.
    GRADLANE_FATE_DROPPED_LATE = 4,
} GradlaneFate;

// The memory of a tensor.
typedef enum GradlaneMemory {
    // Memory of this process.
    GRADLANE_MEMORY_HOST = 0,
    // Memory of the CUDA device `device`.
    GRADLANE_MEMORY_CUDA = 1,
} GradlaneMemory;

// A setting, with its name in the configuration file, or one of `rank`, `size`, `local_rank`, `servers` and `coordinator` (a `host:port`
// or a join string).
typedef struct GradlaneSetting {
    // UTF-8, ended by a zero.
    const char *name;
    // UTF-8, ended by a zero.
    const char *value;
} GradlaneSetting;

// The declaration of a name, equal on all workers.
typedef struct GradlaneTensor {
    // `sizeof(GradlaneTensor)`; in an array all are equal.
    size_t struct_size;
    // UTF-8, ended by a zero, at most 256 bytes.
    const char *name;
    // Dimensions in elements; NULL for a scalar.
    const uint64_t *shape;
    // The number of dimensions, at most 64.
    size_t dimensions;
    // How the tensor travels between machines: NULL or "none" for the bytes as they are, or a codec with its parameters, such as "bf16" or
    // "int8:block=512". With "fp16" and "bf16", integers and types that are as narrow travel as they are; with other codecs they are an
    // error, unless "fallback=1" is among the parameters. With "min_bytes=8192" smaller tensors, and those with fewer than two dimensions,
    // travel as they are. So does a broadcast in any case.
    const char *codec;
    // A `GradlaneDtype`.
    uint32_t dtype;
    // Always 0.
    uint32_t reserved;
} GradlaneTensor;

// One tensor to reduce. A field of zero has its usual meaning, so a structure may be set to zero bytes first.
typedef struct GradlaneSubmission {
    // `sizeof(GradlaneSubmission)`; in an array all are equal.
    size_t struct_size;
    // UTF-8, ended by a zero, at most 256 bytes. The first use of a name fixes dtype, shape, codec, members and receiver on all
    // workers that take part.
    const char *name;
    // Dimensions in elements; NULL for a scalar.
    const uint64_t *shape;
    // The number of dimensions, at most 64.
    size_t dimensions;
    // How the tensor travels between machines: NULL or "none" for the bytes as they are, or a codec with its parameters, such as "bf16" or
    // "int8:block=512". With "fp16" and "bf16", integers and types that are as narrow travel as they are; with other codecs they are an
    // error, unless "fallback=1" is among the parameters. With "min_bytes=8192" smaller tensors, and those with fewer than two dimensions,
    // travel as they are. So does a broadcast in any case.
    const char *codec;
    // This worker's contribution: contiguous, in C order. It must stay valid, and nothing else may write to it, until the operation has
    // ended.
    void *source;
    // The memory for the result, as long as the source and on the same device or host. If it is NULL or equal to `source`, the result
    // replaces the contribution; otherwise the two must not overlap. It must stay valid, and nothing else may read or write it, until the
    // operation has ended.
    void *destination;
    // Bytes of the tensor: the product of the dimensions times the size of an element.
    size_t bytes;
    // For memory of a device: the `CUstream` whose work so far must end before the source is read. 0 is the default stream.
    uint64_t source_stream;
    // The same for the destination; ignored if the result replaces the contribution.
    uint64_t destination_stream;
    // Milliseconds for the whole operation; 0 takes the job's step timeout, which is also the upper bound.
    uint64_t timeout_ms;
    // This worker's weight in a `GRADLANE_OP_WEIGHTED_MEAN`, zero or positive; ignored otherwise.
    double weight;
    // A `GradlaneDtype`.
    uint32_t dtype;
    // A `GradlaneOp`.
    uint32_t op;
    // The rank whose bytes a `GRADLANE_OP_BROADCAST` sends to all; ignored otherwise.
    uint32_t root;
    // Higher goes first; only the order matters.
    int32_t priority;
    // A `GradlaneMemory`.
    uint32_t memory;
    // The device's ordinal in this process; ignored for host memory.
    uint32_t device;
    // Called when the operation has ended; NULL for no call.
    GradlaneCallback callback;
    // The last argument of `callback`.
    void *user;
    // The ranks of the workers that take part, in any order, this one among them; only these are waited for. NULL for all workers. A
    // tensor with members is declared by its first use.
    const uint32_t *members;
    // The number of `members`; 0 for all workers.
    size_t member_count;
    // 0: all workers that take part get the result. 1: the rank `receiver` alone, and nothing changes on the others.
    uint32_t has_receiver;
    // The rank that gets the result; ignored unless `has_receiver` is 1.
    uint32_t receiver;
} GradlaneSubmission;

// One use of a parameter. A field of zero has its usual meaning, so a structure may be set to zero bytes first.
typedef struct GradlaneParameterUse {
    // `sizeof(GradlaneParameterUse)`.
    size_t struct_size;
    // UTF-8, ended by a zero, at most 256 bytes. The first use of a name on any worker fixes dtype and shape on all workers.
    const char *name;
    // Dimensions in elements, none of them 0; NULL for a scalar.
    const uint64_t *shape;
    // The number of dimensions, at most 64.
    size_t dimensions;
    // The value or the change: contiguous, in C order. Of a pull, the memory for the value. It must stay valid, and
    // nothing else may write to it, until the operation has ended; where a value lands in it, nothing else may read it either.
    void *value;
    // Of a push_pull, the memory for the value, as long as the change and on the same device or host. If it is NULL or equal to `value`,
    // the value replaces the change; otherwise the two must not overlap. Ignored otherwise.
    void *into;
    // Bytes of the parameter: the product of the dimensions times the size of an element.
    size_t bytes;
    // For memory of a device: the `CUstream` whose work so far must end before `value` is used. 0 is the default stream.
    uint64_t value_stream;
    // The same for `into`.
    uint64_t into_stream;
    // Milliseconds for the whole operation; 0 takes the job's step timeout, which is also the upper bound.
    uint64_t timeout_ms;
    // A `GradlaneDtype`.
    uint32_t dtype;
    // A `GradlaneAccess`.
    uint32_t access;
    // Higher goes first; only the order matters.
    int32_t priority;
    // A `GradlaneMemory`.
    uint32_t memory;
    // The device's ordinal in this process; ignored for host memory.
    uint32_t device;
    // Always 0.
    uint32_t reserved;
    // Called when the operation has ended; NULL for no call.
    GradlaneCallback callback;
    // The last argument of `callback`.
    void *user;
    // How gradients change the parameter, such as `sgd:lr=0.1,momentum=0.9`, in every use of it and equal on all workers; NULL if they do
    // not.
    const char *rule;
    // When changes are done, such as `async:max_staleness=8`, `ssp:bound=4`, `sync` or `k_of_n:k=3`, in every use of it and equal on all
    // workers; NULL for `async`.
    const char *mode;
    // The name of the clock that the mode follows, see `gradlane_tick`; NULL for none, which only `async` allows.
    const char *clock;
    // In mode `sync` or `k_of_n`: of a gradient, the round to which it belongs, from 1, otherwise the last round that this worker has finished,
    // whose changes a value must have. In other modes, the global step as the last tick has told it. 0 without a clock.
    uint64_t clock_at;
} GradlaneParameterUse;

// What a use of a parameter has come to.
typedef struct GradlaneEffect {
    // The version that was made or read; of a parameter in several parts, the lowest of theirs.
    uint64_t version;
    // A `GradlaneFate`; of several parts, the worst.
    uint32_t fate;
    // The versions between the one from which the change was computed and the one to which it came; of several parts, the most.
    uint32_t lag;
} GradlaneEffect;

// Where a worker stands after a tick.
typedef struct GradlaneTicked {
    // The round that is finished; the next one is one more.
    uint64_t round;
    // The global step: the rounds that were closed, or without those the ticks of all workers.
    uint64_t step;
    // How many rounds the slowest worker is behind this one.
    uint64_t ahead;
    // A `GradlaneFate`: accepted, or dropped because the round was closed without this worker.
    uint64_t fate;
} GradlaneTicked;

// A checkpoint that is whole.
typedef struct GradlaneCheckpoint {
    // Its number: those of one directory count from 1.
    uint64_t number;
    // How many tensors were written, or read.
    uint64_t tensors;
    // The bytes of their values.
    uint64_t bytes;
    // How many files it has.
    uint64_t files;
} GradlaneCheckpoint;

// What becomes of a parameter that a checkpoint lacks.
typedef enum GradlaneMissing {
    // Nothing is loaded.
    GRADLANE_MISSING_REFUSE = 1,
    // It keeps the value that it has, or waits for its first one.
    GRADLANE_MISSING_LEAVE = 2,
    // Its value is zero.
    GRADLANE_MISSING_ZERO = 3,
} GradlaneMissing;

// What `gradlane_begin_step` says. A program sets `struct_size`, and the library the other fields.
typedef struct GradlaneStep {
    // In: `sizeof(GradlaneStep)`.
    size_t struct_size;
    // Out: 1 if this worker has left the job, as it was told, and has begun no step; else 0.
    uint32_t has_left;
    // Out: 1 if other workers than in the step before train from this step on, or the job has formed again; else 0. The same on all workers.
    uint32_t has_changed;
    // Out: 1 if the job has formed again with workers that have come, since the step before, or before the first step of this worker; else 0.
    // Then the state of the training must be brought to them.
    uint32_t formed_again;
    // Out: the number of workers that train.
    uint32_t size;
    // Out: this worker's rank. It stays until the job forms again.
    uint32_t rank;
    // Out: the place of this worker among those that train, from 0 and without gaps.
    uint32_t index;
    // Out: the lowest rank of those that train, which can be the root of a broadcast. Below it are only ranks of workers that are gone.
    uint32_t lowest_rank;
    // Always 0.
    uint32_t reserved;
} GradlaneStep;

// One use of a table: rows of float32 by id, which servers keep. A field of zero has its usual meaning, so a structure may be set to zero
// bytes first.
typedef struct GradlaneTableUse {
    // `sizeof(GradlaneTableUse)`.
    size_t struct_size;
    // UTF-8, ended by a zero, at most 256 bytes.
    const char *name;
    // What the table is: the rule by which gradients change rows, and behind a semicolon the settings, such as
    // `adagrad:lr=0.1;dim=16,init=uniform,scale=0.05,seed=7`. `dim`, the elements of a row, has to be among them; the others are `init`, `scale`,
    // `seed`, `after`, `score`, `share`, `rows`, `full`, `ttl`, `bound`, `codec`, `dtype`, `mode`, `ahead` and `merge`. Servers keep rows as `dtype`
    // says: `f32`, `bf16` or `fp16`. What comes and goes is float32. The first use of a name on any worker fixes it on all workers.
    const char *table;
    // The ids, in any order and as often as wanted; any 64 bits are an id. Read during the call only, and ignored by a shrink, stats and a
    // clear.
    const uint64_t *ids;
    // The number of ids, at most 1,048,576.
    size_t count;
    // Of a pull or a look, the memory for the rows, one after the other in the order of the ids; it must stay valid, and nothing else may read
    // or write it, until the operation has ended. Of a push, a gradient for each id; gradients of one id are added up first. They are
    // read during the call only. Ignored otherwise.
    float *rows;
    // Bytes of `rows`: the number of ids times the elements of a row times 4.
    size_t bytes;
    // The steps of the training before this use, from 0; servers take the highest that any worker has said. Rules such as `adam` follow it,
    // and a shrink removes by it.
    uint64_t step;
    // Milliseconds for the whole operation; 0 takes the job's step timeout, which is also the upper bound.
    uint64_t timeout_ms;
    // Called when the operation has ended; NULL for no call.
    GradlaneCallback callback;
    // The last argument of `callback`.
    void *user;
    // Higher goes first; only the order matters.
    int32_t priority;
    // Always 0.
    uint32_t reserved;
} GradlaneTableUse;

// What all servers together count in a table.
typedef struct GradlaneTableCounts {
    // Rows that a shrink has looked at; 0 of stats.
    uint64_t scanned;
    // Rows that this shrink has removed; of stats, all that were ever removed.
    uint64_t evicted;
    // Rows that are there.
    uint64_t rows;
    // Ids that were pulled, and have no row yet.
    uint64_t waiting;
    // Memory that the servers take for the table.
    uint64_t bytes;
    // Ids whose gradients were dropped, because they had no row.
    uint64_t dropped;
} GradlaneTableCounts;

// The version of this library's interface; compare it with `GRADLANE_ABI_VERSION`.
uint32_t gradlane_abi_version(void);

// The library's own version, as a text that is valid as long as the library is loaded.
const char *gradlane_version(void);

// Joins the job that this process was started for, and returns once the job runs.
//
// The job is found in the environment: `gradlane run`, `DMLC_*`, torchrun, `TF_CONFIG`, MPI, Slurm; otherwise this is a job of one. If the
// launcher starts no servers, rank 0 embeds them. `settings` override the environment; NULL with a count of 0 for none. The setting
// `join_timeout` bounds the call. A process may have several sessions.
//
// `session` receives the session, which `gradlane_shutdown` ends.
GradlaneStatus gradlane_init(const GradlaneSetting *settings, size_t settings_count, GradlaneSession *session, GradlaneError *error);

// Leaves the job and ends the session, also if it returns an error: the session's number is not valid afterwards.
//
// Pending operations fail, and their memory is free when this returns, unless `gradlane_poll` says `GRADLANE_STATUS_PENDING` or
// `GRADLANE_STATUS_UNRESPONSIVE` for one, because the engine's threads are stuck. Their numbers stay valid until they are released. Waits at
// most `grace_ms` for the other workers, then stops servers that this process embeds. All callbacks have run when this returns. A callback
// of this session must not call it.
GradlaneStatus gradlane_shutdown(GradlaneSession session, uint64_t grace_ms, GradlaneError *error);

// Writes this worker's number in the job, from 0, to `rank`.
GradlaneStatus gradlane_rank(GradlaneSession session, uint32_t *rank, GradlaneError *error);

// Writes the number of workers of the job to `size`.
GradlaneStatus gradlane_size(GradlaneSession session, uint32_t *size, GradlaneError *error);

// Writes 1 to `in_doubt` if a device may still write the memory of operations that have failed, and 0 otherwise.
//
// After an error, ask before memory that was lent is freed or used for something else. While the answer is 1, keep it. If it is still 1 when
// the session is shut down, never free it.
GradlaneStatus gradlane_in_doubt(GradlaneSession session, uint32_t *in_doubt, GradlaneError *error);

// Fixes dtype and shape of names ahead of their first use, in one round trip.
//
// If `fuse` is not 0, small neighbours may share messages, and all tensors of the list must be submitted in every round. Tensors without
// elements are left out. `timeout_ms` bounds the wait; 0 takes the job's step timeout, and a little more for the answer.
GradlaneStatus gradlane_declare(GradlaneSession session, const GradlaneTensor *tensors, size_t count, int32_t fuse, uint64_t timeout_ms, GradlaneError *error);

// Says that this worker uses these names no more. When every worker has said so, they cost nothing any more, and may be used again for
// tensors of another dtype or shape.
//
// Names whose tensors share messages must be given in one call. The operations on them must have ended. A call that uses one of the names
// again waits until every worker has said that it does not. `timeout_ms` bounds the wait for what is left of ended operations, not for the
// other workers; 0 takes the job's step timeout, and a little more for the answer.
GradlaneStatus gradlane_undeclare(GradlaneSession session, const char *const *names, size_t count, uint64_t timeout_ms, GradlaneError *error);

// Waits until every worker has called the barrier `name`, at most `timeout_ms`; 0 takes the job's step timeout.
GradlaneStatus gradlane_barrier(GradlaneSession session, const char *name, uint64_t timeout_ms, GradlaneError *error);

// Writes the metrics of this worker to `buffer` in Prometheus' text format, with a terminating zero.
//
// `bytes`, unless it is NULL, receives the bytes of the whole text without the zero. The text was cut if that is not below `capacity`.
GradlaneStatus gradlane_metrics(GradlaneSession session, char *buffer, size_t capacity, size_t *bytes, GradlaneError *error);

// Submits a reduction and returns at once.
//
// `operation` receives the operation, which the caller releases. Source and destination belong to the library until the operation has
// ended: until `gradlane_poll` or `gradlane_wait` returns anything but `GRADLANE_STATUS_PENDING` or `GRADLANE_STATUS_UNRESPONSIVE` for it.
// When its callback runs, it has ended too, unless `gradlane_poll` says one of these two in the callback.
// The call waits while more bytes are unresolved than the setting `submit_bytes_max` allows.
//
// If the arguments are wrong, this call fails and no callback runs. All later errors are errors of the operation.
GradlaneStatus gradlane_submit(GradlaneSession session, const GradlaneSubmission *submission, GradlaneOperation *operation, GradlaneError *error);

// Submits a group of reductions as one operation, all or none.
//
// For many small tensors this costs far less than a call for each, because they share messages. Such a group must be submitted as a whole
// in every round. All members must lie in the same memory, and have the same `op`, `root`, `weight` and `timeout_ms`. `callback` and
// `user` are those of the first member. The operation ends when all members have ended, with the error of the first that failed.
GradlaneStatus gradlane_submit_all(GradlaneSession session, const GradlaneSubmission *submissions, size_t count, GradlaneOperation *operation, GradlaneError *error);

// Reduces a tensor and returns when the result has landed. Faster than `gradlane_submit` and `gradlane_wait`, because the calling thread
// does a part of the work. `callback` is not called. After `GRADLANE_STATUS_UNRESPONSIVE` never free the memory.
GradlaneStatus gradlane_push_pull(GradlaneSession session, const GradlaneSubmission *submission, GradlaneError *error);

// Waits until the operation has ended, at most `timeout_ms`. `GRADLANE_FOREVER` waits until its end, which the job's step timeout bounds.
//
// Returns `GRADLANE_STATUS_PENDING` if it has not ended, else its status. May be repeated, and called by several threads. Returns
// `GRADLANE_STATUS_UNRESPONSIVE` if the engine should have ended the operation and has not, because its threads are stuck; the memory then
// stays in use.
GradlaneStatus gradlane_wait(GradlaneOperation operation, uint64_t timeout_ms, GradlaneError *error);

// Returns the status of the operation, or `GRADLANE_STATUS_PENDING` if it has not ended, or `GRADLANE_STATUS_UNRESPONSIVE` as `gradlane_wait`.
GradlaneStatus gradlane_poll(GradlaneOperation operation, GradlaneError *error);

// Cancels the operation. It ends with `GRADLANE_STATUS_CANCELLED` once its memory is free, unless it has ended already. The other workers'
// operations fail, because this contribution will not come: cancel on all workers, or on none.
GradlaneStatus gradlane_cancel(GradlaneOperation operation, GradlaneError *error);

// Releases the number of the operation, which is not valid afterwards. An operation that has not ended goes on, and its memory stays in
// use. Then only its callback or the end of the session tells when the memory is free.
GradlaneStatus gradlane_release(GradlaneOperation operation, GradlaneError *error);

// Begins the next step of a training. Call it on every worker before each step, as often as on the others.
//
// Between two steps there is a boundary, at which all workers hear of the same changes: others have left, were lost, or have come. This call
// returns at once, unless the workers change: then it waits until every worker stands at the boundary and its operations have ended. With
// `on_worker_loss=wait` it also waits there until enough workers have come. `step` receives what has changed.
//
// Where workers have come, `formed_again` is 1 on all workers, also on those that have come and call this for the first time: bring the state
// of the training to them by broadcasts from `lowest_rank` then, in the same order on all workers, before anything else. Ranks and size are
// new, and operations of before are over. No other thread may submit during the call, and no callback may make it.
//
// If `has_left` is 1, no step has begun: this worker has left the job, as `gradlane_leave` told it. Shut the session down and end.
//
// Returns `GRADLANE_STATUS_DEADLINE_EXCEEDED` if others do not come to the boundary in time, `GRADLANE_STATUS_ABORTED` if the job is over,
// also because too few workers were left for too long. If the job was to form again and did not, the session is over too.
GradlaneStatus gradlane_begin_step(GradlaneSession session, GradlaneStep *step, GradlaneError *error);

// The loop over the steps has ended on this worker: no boundary waits for it until it begins a step again. Call it behind the last step, if
// anything is reduced afterwards.
GradlaneStatus gradlane_end_steps(GradlaneSession session, GradlaneError *error);

// Lets this worker leave the job at the end of its step: its next `gradlane_begin_step` says `has_left`. The others train on.
//
// Any thread may call this, but no handler of a signal: note the signal there, and call this before the next step. If the worker does not
// come to the end of its step within the setting `leave_grace`, the others go on without it all the same. Returns
// `GRADLANE_STATUS_FAILED_PRECONDITION` if the others could not go on, because the setting `on_worker_loss` is `abort`, or because this process
// serves them.
GradlaneStatus gradlane_leave(GradlaneSession session, GradlaneError *error);

// Uses a parameter, and returns at once. A parameter is a tensor that servers keep. Each worker changes it and reads it by itself, and
// waits for no other worker. A change is made once, also if a connection breaks. Uses of one parameter by this worker come one after the
// other, in the order of these calls.
//
// `operation` receives the operation, as that of `gradlane_submit`. The memory belongs to the library until the operation has ended. It
// ends with `GRADLANE_STATUS_FAILED_PRECONDITION` if the parameter has no value yet, or the job has no server. A job of one worker without
// servers keeps its parameters itself, in host memory.
//
// If the arguments are wrong, this call fails and no callback runs. All later errors are errors of the operation.
GradlaneStatus gradlane_access(GradlaneSession session, const GradlaneParameterUse *parameter_use, GradlaneOperation *operation, GradlaneError *error);

// Writes the version of the parameter that the operation has made or read to `version`. It is 1 after the first value, and one more after
// each change; of a parameter in several parts it is the lowest of their versions.
//
// Of a use of a table it is the lowest version of the parts that were used.
//
// Fails with `GRADLANE_STATUS_FAILED_PRECONDITION` if the operation has not ended well, or is a reduction.
GradlaneStatus gradlane_operation_version(GradlaneOperation operation, uint64_t *version, GradlaneError *error);

// Writes what the use of a parameter has come to.
//
// Fails with `GRADLANE_STATUS_FAILED_PRECONDITION` if the operation has not ended well, or is a reduction.
GradlaneStatus gradlane_operation_effect(GradlaneOperation operation, GradlaneEffect *effect, GradlaneError *error);

// Waits until one of `count` operations has ended, well or not, at most `timeout_ms`. `GRADLANE_FOREVER` waits until then, which the job's
// step timeout bounds. Reductions and uses of parameters and of tables may be mixed.
//
// `index` receives the position of the first one in the array that has ended; `gradlane_wait` tells how. Returns
// `GRADLANE_STATUS_PENDING` if none has.
GradlaneStatus gradlane_wait_any(const GradlaneOperation *operations, size_t count, uint64_t timeout_ms, size_t *index, GradlaneError *error);

// Finishes round `round` of the clock `clock`, and waits until this worker may begin its next round, at most `timeout_ms`; 0 takes the job's
// step timeout. All changes of the round must have ended before. `mode` is the mode of the parameters that follow the clock, equal on all
// workers. Saying a round again is the same tick, so that a wait that was too short can go on.
//
// `samples` are those from which this worker's changes of the round were computed; schedules by samples follow their sum.
//
// `ticked` receives where the worker stands. With `waits` 0, the call does not wait for others; a mode with rounds does not allow that.
GradlaneStatus gradlane_tick(GradlaneSession session, const char *clock, const char *mode, uint64_t round, uint64_t samples, uint32_t waits, uint64_t timeout_ms, GradlaneTicked *ticked, GradlaneError *error);

// Tells that this worker ticks the clock `clock` no more, so that the others wait for it no more. Call it behind the last tick, where workers
// may have different numbers of rounds. The other arguments are those of `gradlane_tick`.
GradlaneStatus gradlane_leave_clock(GradlaneSession session, const char *clock, const char *mode, uint64_t timeout_ms, GradlaneError *error);

// Reads rows of a table for training, and returns at once; only the first use of a table waits until it is declared. An id without a row
// gets one, if the table admits it. A worker waits for no other worker. Uses of one table by this worker come one after the other, in the
// order of these calls.
//
// `operation` receives the operation, as that of `gradlane_submit`. The rows are in the caller's memory once `gradlane_poll`, `gradlane_wait`
// or `gradlane_wait_any` tells that it has ended well, and when its callback runs. It ends with `GRADLANE_STATUS_FAILED_PRECONDITION` if the
// table is full, or a server has no memory for more rows. A job of one worker without servers keeps its tables itself.
//
// If the arguments are wrong, this call fails and no callback runs. All later errors are errors of the operation.
GradlaneStatus gradlane_table_pull(GradlaneSession session, const GradlaneTableUse *table_use, GradlaneOperation *operation, GradlaneError *error);

// Reads rows of a table for evaluation, as `gradlane_table_pull`. It makes no row and changes nothing: ids without a row read as what it would
// begin with.
GradlaneStatus gradlane_table_look(GradlaneSession session, const GradlaneTableUse *table_use, GradlaneOperation *operation, GradlaneError *error);

// Changes rows of a table by gradients, as its rule says, and returns once the gradients were read; otherwise as `gradlane_table_pull`. A change
// is made once, also if a connection breaks.
//
// Fails with `GRADLANE_STATUS_INVALID_ARGUMENT` if a gradient is infinite or not a number; nothing was sent then.
GradlaneStatus gradlane_table_push(GradlaneSession session, const GradlaneTableUse *table_use, GradlaneOperation *operation, GradlaneError *error);

// Removes rows of a table that are not worth their place, on all servers. `gradlane_operation_counts` tells how many.
//
// A row's score is 1 for each push. The scores of all rows are multiplied by `decay` first, from 0 to 1. Then rows with a score below
// `min_score` go, and rows whose last push or pull is more than `max_idle` steps ago; `UINT64_MAX` for none of these. `floor` rows of the highest
// scores stay in any case.
GradlaneStatus gradlane_table_shrink(GradlaneSession session, const GradlaneTableUse *table_use, double decay, double min_score, uint64_t max_idle, uint64_t floor, GradlaneOperation *operation, GradlaneError *error);

// Counts what is in a table, on all servers. `gradlane_operation_counts` tells the numbers.
GradlaneStatus gradlane_table_stats(GradlaneSession session, const GradlaneTableUse *table_use, GradlaneOperation *operation, GradlaneError *error);

// Removes all rows of a table.
GradlaneStatus gradlane_table_clear(GradlaneSession session, const GradlaneTableUse *table_use, GradlaneOperation *operation, GradlaneError *error);

// Writes what the servers have counted in a shrink, or for stats.
//
// Fails with `GRADLANE_STATUS_FAILED_PRECONDITION` if the operation has not ended well, or is another one.
GradlaneStatus gradlane_operation_counts(GradlaneOperation operation, GradlaneTableCounts *counts, GradlaneError *error);

// Saves all parameters of the job, with all that their rules keep, and waits until the checkpoint is whole, at most `timeout_ms`; 0 takes an
// hour. One worker calls it, for all. Training goes on meanwhile.
//
// `path` is the directory of the checkpoints of this training, below the setting `checkpoint_dir` of coordinator and servers; `keep` is how
// many checkpoints stay there, 0 for all; `notes` is text that belongs to the checkpoint, or NULL. `checkpoint` receives what was
// written, or may be NULL.
//
// Whatever fails, the checkpoint before stays the latest: with `GRADLANE_STATUS_FAILED_PRECONDITION` if another worker saves or loads, a
// parameter has no value or the directory is of another training, `GRADLANE_STATUS_INVALID_ARGUMENT` for a path that leads out of
// `checkpoint_dir`, `GRADLANE_STATUS_UNAVAILABLE` for a full disk.
GradlaneStatus gradlane_save_checkpoint(GradlaneSession session, const char *path, uint32_t keep, const char *notes, uint64_t timeout_ms, GradlaneCheckpoint *checkpoint, GradlaneError *error);

// Loads all parameters of the job, and waits until the servers have done it, at most `timeout_ms`; 0 takes an hour. One worker calls it, for
// all, after the parameters were made. Nothing is changed unless all servers have read and checked all of the checkpoint. Afterwards each
// worker reads the values.
//
// `path` is the directory of the checkpoints; `number` is that of one of them, 0 for the latest; `missing`, a `GradlaneMissing`, says what
// becomes of parameters that the checkpoint lacks; with `ignore_extra` 1 it may have others; with `values_only` 1 rules begin anew.
// `checkpoint` receives what was read, or may be NULL.
//
// Fails with `GRADLANE_STATUS_NOT_FOUND` if there is no such checkpoint or a tensor is missing, `GRADLANE_STATUS_DATA_LOSS` if a file is not
// what it was, and as `gradlane_save_checkpoint`.
GradlaneStatus gradlane_load_checkpoint(GradlaneSession session, const char *path, uint64_t number, uint32_t missing, uint32_t ignore_extra, uint32_t values_only, uint64_t timeout_ms, GradlaneCheckpoint *checkpoint, GradlaneError *error);

#ifdef __cplusplus
}
#endif

#endif
