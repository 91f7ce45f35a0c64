/* All ranks of an MPI job, as a peer of gradlane-bench: rank 0 reads orders in words (see mpi.rs), everybody carries them out, rank 0
 * answers for all in the JSON of orders.rs. What is contributed and how it is verified is that of buffers.rs. With ONECCL, the ranks are
 * those of MPI and the collectives those of oneCCL, see oneccl.cpp. */
#include <mpi.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define PERIOD 7
#define UNTOUCHED 0xA5

#ifdef ONECCL
#define ONECCL_ADDRESS_BYTES 256
void oneccl_address(char *address);
void oneccl_join(const char *address, int rank, int ranks);
void oneccl_leave(void);
int oneccl_prepare(const char *type, const char *op);
void oneccl_begin(const char *collective, int broadcast, char *source, char *sink, long count);
void oneccl_wait(void);
#endif

static FILE *answers;     /* what was standard output */
static int rank, ranks;   /* this one, and how many */
static MPI_Datatype type;
static MPI_Op op;
static char type_name[16], op_name[16], collective[16];
static size_t width;          /* bytes of an element */
static long sets, tensors;    /* of the case */
static long *elements;        /* of each tensor */
static char **from, **to;     /* set by set, tensor by tensor */

/* Half-size floats, of which MPI knows nothing: two bytes that only operations of ours look into. Converted for each addition and back,
 * as an operation that MPI calls with two buffers has to. */
typedef unsigned short half;

static float from_bf16(half bits) {
    unsigned wide = (unsigned)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static half to_bf16(float value) { /* to nearest, ties to even; there are no NaNs here */
    unsigned bits;
    memcpy(&bits, &value, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static float from_f16(half bits) {
    _Float16 value;
    memcpy(&value, &bits, 2);
    return value;
}

static half to_f16(float wide) {
    _Float16 value = wide;
    half bits;
    memcpy(&bits, &value, 2);
    return bits;
}

#define OPERATION(name, from, to, result)                                                \
    static void name(void *left, void *right, int *count, MPI_Datatype *of) {            \
        const half *restrict x = left;                                                   \
        half *restrict y = right;                                                        \
        (void)of;                                                                        \
        for (int i = 0; i < *count; i++) {                                               \
            float a = from(x[i]), b = from(y[i]);                                        \
            y[i] = to(result);                                                           \
        }                                                                                \
    }
OPERATION(sum_bf16, from_bf16, to_bf16, a + b)
OPERATION(min_bf16, from_bf16, to_bf16, a < b ? a : b)
OPERATION(max_bf16, from_bf16, to_bf16, a > b ? a : b)
OPERATION(sum_f16, from_f16, to_f16, a + b)
OPERATION(min_f16, from_f16, to_f16, a < b ? a : b)
OPERATION(max_f16, from_f16, to_f16, a > b ? a : b)

static MPI_Datatype half_types[2];
static MPI_Op half_ops[2][3]; /* bfloat16 and float16; sum, min, max */

static void make_half_ops(void) {
    MPI_User_function *functions[2][3] = {{sum_bf16, min_bf16, max_bf16}, {sum_f16, min_f16, max_f16}};
    for (int of = 0; of < 2; of++) {
        MPI_Type_contiguous(2, MPI_BYTE, &half_types[of]);
        MPI_Type_commit(&half_types[of]);
        for (int i = 0; i < 3; i++) MPI_Op_create(functions[of][i], 1, &half_ops[of][i]);
    }
}

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static long contribution(long element, long of, long tensor, long set) {
    return (element + 3 * of + 5 * tensor + set) % PERIOD - 3;
}

static void store(char *memory, long index, long value) {
    if (!strcmp(type_name, "float32")) ((float *)memory)[index] = value;
    else if (!strcmp(type_name, "float64")) ((double *)memory)[index] = value;
    else if (!strcmp(type_name, "int32")) ((int *)memory)[index] = value;
    else if (!strcmp(type_name, "int64")) ((long long *)memory)[index] = value;
    else if (!strcmp(type_name, "bfloat16")) ((half *)memory)[index] = to_bf16(value);
    else if (!strcmp(type_name, "float16")) ((half *)memory)[index] = to_f16(value);
    else ((char *)memory)[index] = value; /* int8 and uint8 have the same bits */
}

static long wrapped(long value) { return strcmp(type_name, "uint8") ? value : (unsigned char)value; }

/* A value of the contribution of rank `origin`, or of the reduction of all if that is negative. */
static long expected(long element, long tensor, long set, int origin) {
    long result = wrapped(contribution(element, origin < 0 ? 0 : origin, tensor, set));
    for (int of = 1; of < ranks && origin < 0 && strcmp(op_name, "broadcast"); of++) {
        long value = wrapped(contribution(element, of, tensor, set));
        if (!strcmp(op_name, "sum")) result += value;
        else if (!strcmp(op_name, "min")) result = value < result ? value : result;
        else result = value > result ? value : result;
    }
    return result;
}

/* Writes the contributions of a set, and over its sums. */
static void fill(long set) {
    for (long t = 0; t < tensors; t++) {
        char *memory = from[set * tensors + t];
        for (long i = 0; i < elements[t] && i < PERIOD; i++) store(memory, i, contribution(i, rank, t, set));
        for (size_t done = PERIOD * width, all = elements[t] * width; done < all;) {
            size_t more = done < all - done ? done : all - done;
            memcpy(memory + done, memory, more);
            done += more;
        }
        memset(to[set * tensors + t], UNTOUCHED, elements[t] * width);
    }
}

/* Compares `length` elements of a result with those that begin with element `first` of the contributions. */
static long verify_piece(const char *memory, long length, long first, int origin, long tensor, long set) {
    long wrong = 0;
    char period[PERIOD * 8];
    for (long i = 0; i < PERIOD; i++) store(period, i, expected(first + i, tensor, set, origin));
    for (long i = 0; i < length; i += PERIOD) {
        long here = length - i < PERIOD ? length - i : PERIOD;
        if (memcmp(memory + i * width, period, here * width) == 0) continue;
        for (long k = 0; k < here; k++) wrong += memcmp(memory + (i + k) * width, period + k * width, width) != 0;
    }
    return wrong;
}

/* Counts the bytes that should have stayed as they were. */
static long verify_untouched(const char *memory, size_t bytes) {
    long wrong = 0;
    for (size_t i = 0; i < bytes; i++) wrong += (unsigned char)memory[i] != UNTOUCHED;
    return wrong;
}

/* The pieces of a result are those of collective.rs. */
static long verify(long set, int in_place) {
    long wrong = 0;
    for (long t = 0; t < tensors; t++) {
        char *memory = in_place ? from[set * tensors + t] : to[set * tensors + t];
        long part = elements[t] / ranks, own = rank * part;
        if (!strcmp(collective, "all-reduce")) {
            wrong += verify_piece(memory, elements[t], 0, -1, t, set);
        } else if (!strcmp(collective, "reduce-scatter")) {
            wrong += verify_untouched(memory, own * width);
            wrong += verify_piece(memory + own * width, part, own, -1, t, set);
            wrong += verify_untouched(memory + (own + part) * width, (elements[t] - own - part) * width);
        } else {
            for (int of = 0; of < ranks; of++) {
                long first = strcmp(collective, "all-gather") ? own : of * part;
                wrong += verify_piece(memory + of * part * width, part, first, of, t, set);
            }
        }
    }
    return wrong;
}

#ifdef ONECCL
static void exchange(long set, int in_place) {
    int broadcast = !strcmp(op_name, "broadcast"), all = !strcmp(collective, "all-reduce");
    for (long t = 0; t < tensors; t++) {
        char *source = from[set * tensors + t], *sink = in_place ? source : to[set * tensors + t];
        long part = elements[t] / ranks;
        if (!strcmp(collective, "reduce-scatter")) sink += rank * part * width;
        if (!strcmp(collective, "all-gather")) source += rank * part * width;
        oneccl_begin(collective, broadcast, source, sink, all ? elements[t] : part);
    }
    oneccl_wait();
}
#else
/* An exchange of another collective than all-reduce, of one tensor. */
static void exchange_parts(char *source, char *sink, long part) {
    if (!strcmp(collective, "reduce-scatter"))
        MPI_Reduce_scatter_block(source, sink + rank * part * width, part, type, op, MPI_COMM_WORLD);
    else if (!strcmp(collective, "all-gather"))
        MPI_Allgather(source + rank * part * width, part, type, sink, part, type, MPI_COMM_WORLD);
    else
        MPI_Alltoall(source, part, type, sink, part, type, MPI_COMM_WORLD);
}

/* The same, of one of several tensors. */
static void begin_parts(char *source, char *sink, long part, MPI_Request *request) {
    if (!strcmp(collective, "reduce-scatter"))
        MPI_Ireduce_scatter_block(source, sink + rank * part * width, part, type, op, MPI_COMM_WORLD, request);
    else if (!strcmp(collective, "all-gather"))
        MPI_Iallgather(source + rank * part * width, part, type, sink, part, type, MPI_COMM_WORLD, request);
    else
        MPI_Ialltoall(source, part, type, sink, part, type, MPI_COMM_WORLD, request);
}

static void exchange(long set, int in_place) {
    static MPI_Request *requests;
    requests = realloc(requests, tensors * sizeof *requests);
    for (long t = 0; t < tensors; t++) {
        char *source = from[set * tensors + t], *sink = in_place ? source : to[set * tensors + t];
        if (strcmp(collective, "all-reduce") && tensors == 1)
            exchange_parts(source, sink, elements[t] / ranks);
        else if (strcmp(collective, "all-reduce"))
            begin_parts(source, sink, elements[t] / ranks, &requests[t]);
        else if (tensors == 1 && strcmp(op_name, "broadcast"))
            MPI_Allreduce(in_place ? MPI_IN_PLACE : source, sink, elements[t], type, op, MPI_COMM_WORLD);
        else if (strcmp(op_name, "broadcast"))
            MPI_Iallreduce(in_place ? MPI_IN_PLACE : source, sink, elements[t], type, op, MPI_COMM_WORLD, &requests[t]);
        else
            MPI_Ibcast(source, elements[t], type, 0, MPI_COMM_WORLD, &requests[t]);
    }
    if (tensors > 1 || !strcmp(op_name, "broadcast")) MPI_Waitall(tensors, requests, MPI_STATUSES_IGNORE);
}
#endif

static const char *prepare(char *words) {
    for (long i = 0; i < sets * tensors; i++) free(from[i]), free(to[i]);
    int read;
    sets = tensors = 0;
    if (sscanf(words, "%15s %15s %15s %ld %ld%n", type_name, op_name, collective, &sets, &tensors, &read) != 5)
        return "not understood";
    static const struct { const char *name; size_t width; } types[] =
        {{"float32", 4}, {"float64", 8}, {"int32", 4}, {"int64", 8}, {"int8", 1}, {"uint8", 1},
         {"bfloat16", 2}, {"float16", 2}};
    MPI_Datatype of[] = {MPI_FLOAT, MPI_DOUBLE, MPI_INT, MPI_INT64_T, MPI_INT8_T, MPI_UINT8_T, half_types[0], half_types[1]};
    width = 0;
    for (int i = 0; i < 8; i++) if (!strcmp(types[i].name, type_name)) type = of[i], width = types[i].width;
    if (width == 0) return "MPI has no such type";
    int which = !strcmp(op_name, "min") ? 1 : !strcmp(op_name, "max") ? 2 : 0;
    op = (MPI_Op[]){MPI_SUM, MPI_MIN, MPI_MAX}[which];
    if (type == half_types[0]) op = half_ops[0][which];
    if (type == half_types[1]) op = half_ops[1][which];
#ifdef ONECCL
    if (!oneccl_prepare(type_name, op_name)) return "oneCCL has no such type";
#endif
    elements = realloc(elements, tensors * sizeof *elements);
    words += read;
    for (long t = 0; t < tensors; t++, words += read) sscanf(words, "%ld%n", &elements[t], &read);
    from = realloc(from, sets * tensors * sizeof *from);
    to = realloc(to, sets * tensors * sizeof *to);
    for (long i = 0; i < sets * tensors; i++) {
        size_t bytes = (elements[i % tensors] * width + 63 + PERIOD * width) / 64 * 64;
        if (!(from[i] = aligned_alloc(64, bytes)) || !(to[i] = aligned_alloc(64, bytes))) return "out of memory";
    }
    for (long set = 0; set < sets; set++) fill(set);
    return NULL;
}

/* Whether the benchmark has ended. Then there is an end in order: an MPI that is killed leaves files and shared memory behind. */
static int nobody_is_there(void) {
    struct pollfd orders = {0, POLLIN, 0};
    return poll(&orders, 1, 0) > 0 && (orders.revents & POLLHUP);
}

static void repeat(int in_place, long warmup, long iterations, int check) {
    double *taken = calloc(iterations, sizeof *taken), *slowest = calloc(iterations, sizeof *slowest);
    double spent = 0, all_spent = 0, whole = 0, all_whole = 0;
    long wrong = 0, all_wrong = 0, done = 0;
    for (long i = 0; i < warmup; i++) {
        exchange(i % sets, in_place);
        if (check) fill(i % sets);
    }
    while (done < iterations) {
        long batch = check && sets < iterations - done ? sets : iterations - done;
        int gone = rank == 0 && nobody_is_there();
        MPI_Bcast(&gone, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (gone) break;
        MPI_Barrier(MPI_COMM_WORLD);
        double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
        for (long i = 0; i < batch; i++) {
            double begun = seconds(CLOCK_MONOTONIC);
            exchange(i % sets, in_place);
            whole += taken[done + i] = seconds(CLOCK_MONOTONIC) - begun;
        }
        spent += seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        for (long i = 0; check && i < batch && i < sets; i++) wrong += verify(i, in_place), fill(i);
        done += batch;
    }
    MPI_Reduce(taken, slowest, iterations, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&whole, &all_whole, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&spent, &all_spent, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        fprintf(answers, "{\"is\":\"measured\",\"seconds\":[");
        for (long i = 0; i < iterations; i++) fprintf(answers, "%s%.9f", i ? "," : "", slowest[i]);
        fprintf(answers, "],\"cpu_seconds\":%.9f,\"sent_bytes\":0,\"received_bytes\":0,\"wrong\":%ld,\"wrong_at\":%s}\n", all_spent,
               all_wrong, all_wrong ? "\"in the MPI job\"" : "null");
    }
    free(taken), free(slowest);
}

/* The next order; NULL at the end. Ranks that wait for one sleep: spinning, as MPI waits, would cost the other contenders a core. */
static char *hear(void) {
    static char *line;
    static size_t room;
    int bytes;
    if (rank == 0) {
        bytes = getline(&line, &room, stdin);
        for (int of = 1; of < ranks; of++) MPI_Send(bytes > 0 ? line : "", bytes > 0 ? bytes + 1 : 1, MPI_CHAR, of, 0, MPI_COMM_WORLD);
        return bytes > 0 ? line : NULL;
    }
    MPI_Status status;
    for (int here = 0; !here;) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        MPI_Iprobe(0, 0, MPI_COMM_WORLD, &here, &status);
    }
    MPI_Get_count(&status, MPI_CHAR, &bytes);
    line = realloc(line, bytes);
    MPI_Recv(line, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return *line ? line : NULL;
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* with mpirun, should that be killed */
    answers = fdopen(dup(1), "w");    /* what libraries print must not be taken for answers */
    dup2(2, 1);
#ifdef ONECCL
    int threads; /* oneCCL asks for calls from several threads */
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
#else
    MPI_Init(&argc, &argv);
#endif
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
#ifdef ONECCL
    char address[ONECCL_ADDRESS_BYTES];
    if (rank == 0) oneccl_address(address);
    MPI_Bcast(address, sizeof address, MPI_BYTE, 0, MPI_COMM_WORLD);
    oneccl_join(address, rank, ranks);
#endif
    make_half_ops();
    for (;;) {
        char *line = hear();
        if (!line) break;
        const char *problem = NULL;
        int in_place, check;
        long warmup, iterations;
        if (!strncmp(line, "prepare ", 8)) problem = prepare(line + 8);
        else if (sscanf(line, "repeat %d %ld %ld %d", &in_place, &warmup, &iterations, &check) == 4)
            repeat(in_place, warmup, iterations, check);
        if (rank == 0 && problem) fprintf(answers, "{\"is\":\"failed\",\"error\":\"%s\"}\n", problem);
        else if (rank == 0 && strncmp(line, "repeat", 6)) fprintf(answers, "{\"is\":\"done\"}\n");
        fflush(answers);
    }
#ifdef ONECCL
    oneccl_leave();
#endif
    MPI_Finalize();
    return 0;
}
