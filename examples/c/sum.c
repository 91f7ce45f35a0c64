// Sums tensors over all workers of a job, counts in a parameter that a server keeps, and trains rows of a table, in C, and checks every
// element. Build the library, then this file, then start two workers:
//
//     cargo build --release -p gradlane-session
//     cc -std=c11 -Iplugins/session/include examples/c/sum.c -o sum -Ltarget/release -lgradlane_session
//     LD_LIBRARY_PATH=target/release gradlane run -n 2 -- ./sum
//
// Any launcher that sets the variables of MPI, Slurm or torchrun will do; rank 0 then embeds the server. Without a launcher this is a job
// of one.

#include <gradlane.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { ELEMENTS = 100000, STEPS = 3, SMALL = 8 };

static char text[1024];
static GradlaneError error = {.struct_size = sizeof error, .text = text, .text_capacity = sizeof text};

static void must(GradlaneStatus status, const char *what)
{
    if (status != GRADLANE_STATUS_OK) {
        fprintf(stderr, "%s: status %d: %s\n", what, (int)status, text);
        exit(1);
    }
}

static void expect(double found, double expected, const char *what)
{
    if (found != expected) {
        fprintf(stderr, "%s: %.17g instead of %.17g\n", what, found, expected);
        exit(1);
    }
}

static void count(void *user, GradlaneOperation operation)
{
    (void)operation;
    atomic_fetch_add((atomic_int *)user, 1);
}

int main(void)
{
    GradlaneSession session;
    uint32_t rank, size;
    if (gradlane_abi_version() != GRADLANE_ABI_VERSION) {
        fprintf(stderr, "compiled for another version of the library\n");
        return 1;
    }
    must(gradlane_init(NULL, 0, &session, &error), "init");
    must(gradlane_rank(session, &rank, &error), "rank");
    must(gradlane_size(session, &size, &error), "size");
    const double ranks = size * (size + 1) / 2.0; // 1 + 2 + ... + size

    // One tensor, submitted and waited for. The callback runs before or after the wait returns.
    static float gradient[ELEMENTS];
    static atomic_int ended;
    const uint64_t shape[] = {ELEMENTS / 100, 100};
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < ELEMENTS; i++)
            gradient[i] = (float)((rank + 1) * (i % 1000 + step)); // whole numbers, whose sums are exact
        GradlaneSubmission submission = {
            .struct_size = sizeof submission, .name = "gradient", .shape = shape, .dimensions = 2,
            .dtype = GRADLANE_DTYPE_FLOAT32, .op = GRADLANE_OP_SUM, .source = gradient, .bytes = sizeof gradient,
            .callback = count, .user = &ended,
        };
        GradlaneOperation operation;
        must(gradlane_submit(session, &submission, &operation, &error), "submit");
        must(gradlane_wait(operation, GRADLANE_FOREVER, &error), "wait");
        must(gradlane_release(operation, &error), "release");
        for (int i = 0; i < ELEMENTS; i++)
            expect(gradient[i], ranks * (i % 1000 + step), "sum");
    }

    // Many small tensors in one call, into other memory.
    int64_t counts[SMALL], totals[SMALL];
    char names[SMALL][16];
    GradlaneSubmission group[SMALL] = {0};
    for (int i = 0; i < SMALL; i++) {
        counts[i] = (int64_t)(rank + 1) << i;
        snprintf(names[i], sizeof names[i], "count %d", i);
        group[i] = (GradlaneSubmission){
            .struct_size = sizeof group[i], .name = names[i], .dtype = GRADLANE_DTYPE_INT64, .op = GRADLANE_OP_SUM,
            .source = &counts[i], .destination = &totals[i], .bytes = sizeof counts[i],
        };
    }
    GradlaneOperation together;
    must(gradlane_submit_all(session, group, SMALL, &together, &error), "submit_all");
    must(gradlane_wait(together, GRADLANE_FOREVER, &error), "wait for the group");
    must(gradlane_release(together, &error), "release the group");
    for (int i = 0; i < SMALL; i++)
        expect((double)totals[i], ranks * (double)(1 << i), "total");

    // The last rank's bytes for all, waited for in one call.
    double chosen[2] = {rank, -0.5 * rank};
    const uint64_t pair[] = {2};
    GradlaneSubmission broadcast = {
        .struct_size = sizeof broadcast, .name = "chosen", .shape = pair, .dimensions = 1,
        .dtype = GRADLANE_DTYPE_FLOAT64, .op = GRADLANE_OP_BROADCAST, .root = size - 1, .source = chosen,
        .bytes = sizeof chosen,
    };
    must(gradlane_push_pull(session, &broadcast, &error), "broadcast");
    expect(chosen[0], size - 1, "broadcast");
    expect(chosen[1], -0.5 * (size - 1), "broadcast");

    // A parameter, which each worker changes by itself. Only the barrier waits for the others.
    double count_of_all = 0, mine = rank + 1;
    GradlaneParameterUse first = {
        .struct_size = sizeof first, .name = "counted", .dtype = GRADLANE_DTYPE_FLOAT64,
        .access = GRADLANE_ACCESS_INIT, .value = &count_of_all, .bytes = sizeof count_of_all,
    };
    GradlaneParameterUse add = first, read = first;
    add.access = GRADLANE_ACCESS_PUSH_ADD;
    add.value = &mine;
    read.access = GRADLANE_ACCESS_PULL;
    GradlaneOperation uses[2], pulled;
    must(gradlane_access(session, &first, &uses[0], &error), "init");
    must(gradlane_access(session, &add, &uses[1], &error), "push");
    size_t ended_first;
    must(gradlane_wait_any(uses, 2, GRADLANE_FOREVER, &ended_first, &error), "wait_any");
    expect(ended_first, 0, "uses of one parameter come one after the other, so the first that ended");
    for (int i = 0; i < 2; i++) {
        must(gradlane_wait(uses[i], GRADLANE_FOREVER, &error), "wait for a use");
        must(gradlane_release(uses[i], &error), "release a use");
    }
    must(gradlane_barrier(session, "counted", 0, &error), "barrier");
    uint64_t version;
    must(gradlane_access(session, &read, &pulled, &error), "pull");
    must(gradlane_wait(pulled, GRADLANE_FOREVER, &error), "wait for the pull");
    must(gradlane_operation_version(pulled, &version, &error), "version");
    must(gradlane_release(pulled, &error), "release the pull");
    expect(count_of_all, ranks, "parameter");
    expect((double)version, 1 + size, "version");

    // A table: rows by id, which a pull makes. All workers push gradients, and those of one id are added up.
    enum { IDS = 3, DIM = 4 };
    const uint64_t ids[IDS] = {7, UINT64_C(1) << 40, 7};
    float rows[IDS][DIM], gradients[IDS][DIM];
    for (int i = 0; i < IDS * DIM; i++)
        gradients[i / DIM][i % DIM] = (float)(rank + 1);
    GradlaneTableUse pull = {
        .struct_size = sizeof pull, .name = "rows", .table = "sgd:lr=1;dim=4,init=zero", .ids = ids, .count = IDS,
        .rows = &rows[0][0], .bytes = sizeof rows,
    };
    GradlaneTableUse push = pull;
    push.rows = &gradients[0][0];
    GradlaneOperation of_table[2];
    must(gradlane_table_pull(session, &pull, &of_table[0], &error), "pull of rows");
    must(gradlane_table_push(session, &push, &of_table[1], &error), "push of rows");
    for (int i = 0; i < 2; i++) {
        must(gradlane_wait(of_table[i], GRADLANE_FOREVER, &error), "wait for rows");
        must(gradlane_release(of_table[i], &error), "release rows");
    }
    must(gradlane_barrier(session, "pushed", 0, &error), "barrier");
    must(gradlane_table_look(session, &pull, &of_table[0], &error), "look at rows");
    must(gradlane_table_stats(session, &pull, &of_table[1], &error), "stats");
    GradlaneTableCounts counted;
    must(gradlane_wait(of_table[0], GRADLANE_FOREVER, &error), "wait for the look");
    must(gradlane_wait(of_table[1], GRADLANE_FOREVER, &error), "wait for stats");
    must(gradlane_operation_counts(of_table[1], &counted, &error), "counts");
    expect((double)counted.rows, 2, "rows");
    for (int i = 0; i < IDS * DIM; i++)
        expect(rows[i / DIM][i % DIM], ids[i / DIM] == 7 ? -2 * ranks : -ranks, "row");

    must(gradlane_barrier(session, "end", 0, &error), "barrier");
    must(gradlane_shutdown(session, 10000, &error), "shutdown");
    expect(ended, STEPS, "callbacks");
    printf("rank %u of %u: all sums are exact\n", rank, size);
    return 0;
}
