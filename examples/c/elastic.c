// A training in C that goes on while workers leave, are lost, or come. Build it as examples/c/sum.c, then start it:
//
//     gradlane run -n 3 -s 1 --elastic 2:3 -- ./elastic 1000 3
//
// Kill one of its processes: the others train on, and the launcher starts another one, which comes to the job. SIGTERM lets a worker end its
// step and leave.
//
// The arguments say how many steps of how many workers there shall be. To try losses out, three more say which rank sends itself which signal
// in which step: `./elastic 1000 3 1 5 9`.

#include <gradlane.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { ELEMENTS = 100000 };

// What belongs to the training. A worker that comes gets it from the others.
static struct {
    double steps, full_steps;
    double weights[ELEMENTS];
} state;

static char text[1024];
static GradlaneError error = {.struct_size = sizeof error, .text = text, .text_capacity = sizeof text};
static volatile sig_atomic_t is_told_to_leave;

static void tell_to_leave(int number)
{
    (void)number;
    is_told_to_leave = 1; // no function of the library may be called in a handler
}

static void must(GradlaneStatus status, const char *what)
{
    if (status != GRADLANE_STATUS_OK) {
        fprintf(stderr, "%s: status %d: %s\n", what, (int)status, text);
        exit(1);
    }
}

static void reduce(GradlaneSession session, const char *name, GradlaneOp op, uint32_t root, double *values, size_t count)
{
    const uint64_t shape[] = {count};
    GradlaneSubmission submission = {
        .struct_size = sizeof submission, .name = name, .shape = shape, .dimensions = 1,
        .dtype = GRADLANE_DTYPE_FLOAT64, .op = op, .root = root, .source = values, .bytes = count * sizeof *values,
    };
    must(gradlane_push_pull(session, &submission, &error), name);
}

// Fails unless all workers have the same state.
static void compare(GradlaneSession session)
{
    static double least[sizeof state / sizeof(double)], most[sizeof state / sizeof(double)];
    const double *values = (const double *)&state;
    const size_t count = sizeof state / sizeof *values;
    for (size_t i = 0; i < count; i++)
        least[i] = most[i] = values[i];
    reduce(session, "least", GRADLANE_OP_MIN, 0, least, count);
    reduce(session, "most", GRADLANE_OP_MAX, 0, most, count);
    for (size_t i = 0; i < count; i++)
        if (least[i] != most[i]) {
            fprintf(stderr, "value %zu of the state is %.17g on one worker and %.17g on another\n", i, least[i], most[i]);
            exit(1);
        }
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 6) {
        fprintf(stderr, "usage: elastic STEPS WORKERS [RANK STEP SIGNAL]\n");
        return 2;
    }
    const double steps = atof(argv[1]), workers = atof(argv[2]);
    const int unlucky = argc == 6 ? atoi(argv[3]) : -1, unlucky_in = argc == 6 ? atoi(argv[4]) : 0;
    GradlaneSession session;
    signal(SIGTERM, tell_to_leave);
    must(gradlane_init(NULL, 0, &session, &error), "init");

    unsigned changes = 0, formations = 0;
    GradlaneStep step = {.struct_size = sizeof step};
    for (;;) {
        if (is_told_to_leave) {
            must(gradlane_leave(session, &error), "leave");
            is_told_to_leave = 0;
        }
        must(gradlane_begin_step(session, &step, &error), "begin_step");
        if (step.has_left)
            break;
        if (step.formed_again)
            reduce(session, "state", GRADLANE_OP_BROADCAST, step.lowest_rank, (double *)&state, sizeof state / sizeof(double));
        changes += step.has_changed;
        formations += step.formed_again;
        if (state.full_steps >= steps)
            break; // on all workers in the same step
        if ((int)step.rank == unlucky && state.steps == unlucky_in && formations == 0)
            raise(atoi(argv[5]));

        static double gradient[ELEMENTS];
        for (int i = 0; i < ELEMENTS; i++)
            gradient[i] = i % 100 + 1; // whole numbers, whose sums are exact
        reduce(session, "gradient", GRADLANE_OP_SUM, 0, gradient, ELEMENTS);
        for (int i = 0; i < ELEMENTS; i++)
            state.weights[i] += gradient[i];
        state.steps += 1;
        state.full_steps += step.size == workers;
    }
    if (step.has_left) {
        printf("rank %u has left after %.0f steps\n", step.rank, state.steps);
    } else {
        must(gradlane_end_steps(session, &error), "end_steps");
        compare(session);
        // Each step added what some workers contributed, and each of them contributed the same.
        for (int i = 0; i < ELEMENTS; i++)
            if (state.weights[i] != state.weights[0] * (i % 100 + 1)) {
                fprintf(stderr, "weight %d is %.17g\n", i, state.weights[i]);
                return 1;
            }
        printf("worker %u of %u: %.0f contributions, %u changes, %u formations\n", step.index, step.size, state.weights[0], changes,
            formations);
    }
    must(gradlane_shutdown(session, 10000, &error), "shutdown");
    return 0;
}
