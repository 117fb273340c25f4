/* The roles of a rank over MPI: the counterpart of `Blocking` and `stopwatch` in the Rust sources. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STOP = 0xff, GO = 1, SAMPLE_MIN_NS = 50000, QUIET_MIN_NS = 500000000, OPERATIONS_MAX = 1 << 16, WINDOW_MAX = 100000 };

static int rank, ranks, next, before, source;
static unsigned char *outgoing, *incoming;

struct measure {
    char kind;
    int bytes, window;
};

static uint64_t clock_ns(clockid_t id) {
    struct timespec at;
    clock_gettime(id, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static void pin(const char *cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    int index = 0;
    for (const char *at = cores; at && *at; index++) {
        char *end;
        long core = strtol(at, &end, 10);
        /* Of two ranks each has its own core, more share them. */
        if (ranks != 2 || index == rank) CPU_SET((int)core, &set);
        at = *end == ',' ? end + 1 : NULL;
    }
    if (CPU_COUNT(&set) > 0) sched_setaffinity(0, sizeof set, &set);
}

static void send_message(const struct measure *measure, const void *from, int bytes) {
    if (measure->kind == 's')
        MPI_Ssend(from, bytes, MPI_BYTE, next, 1, MPI_COMM_WORLD);
    else
        MPI_Send(from, bytes, MPI_BYTE, next, 1, MPI_COMM_WORLD);
}

static void receive_message(void *into, int bytes) {
    MPI_Recv(into, bytes, MPI_BYTE, source, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static uint64_t busy_ns;

/* The rank's computation: no call of the library. */
static void compute(void) {
    for (uint64_t begun = now_ns(); now_ns() - begun < busy_ns;) {}
}

static int is_busy(const struct measure *measure) { return strchr("RS", measure->kind) != NULL; }

/* A message between ranks of which one computes, from `go` to the answer. */
static void busy_leads(const struct measure *measure) {
    MPI_Request request;
    MPI_Send(outgoing, 1, MPI_BYTE, next, 1, MPI_COMM_WORLD);
    receive_message(incoming, 1);
    MPI_Isend(outgoing, measure->bytes, MPI_BYTE, next, 2, MPI_COMM_WORLD, &request);
    if (measure->kind == 'S') compute();
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    receive_message(incoming, 1);
}

/* Its other side, after `go`. */
static void busy_follows(const struct measure *measure) {
    MPI_Request request;
    MPI_Irecv(incoming, measure->bytes, MPI_BYTE, before, 2, MPI_COMM_WORLD, &request);
    MPI_Send(outgoing, 1, MPI_BYTE, next, 1, MPI_COMM_WORLD);
    if (measure->kind == 'R') compute();
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Send(outgoing, 1, MPI_BYTE, next, 1, MPI_COMM_WORLD);
}

static int is_round(const struct measure *measure) { return strchr("ALM", measure->kind) != NULL; }

static void send_to(int to, const struct measure *measure) {
    MPI_Send(outgoing, measure->bytes, MPI_BYTE, to, 1, MPI_COMM_WORLD);
}

static void receive_from(int from, const struct measure *measure) {
    MPI_Recv(incoming, measure->bytes, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* A round of all to all, or of many to one; returns whether rank 0 says that it is the last. */
static int one_round(const struct measure *measure) {
    int all = measure->kind != 'M', is_last = 0;
    if (all)
        for (int ahead = 1; ahead < ranks; ahead++) send_to((rank + ahead) % ranks, measure);
    else if (rank != 0)
        send_to(0, measure);
    for (int ahead = 1; ahead < (all || rank == 0 ? ranks : 1); ahead++) {
        receive_from((rank + ranks - ahead) % ranks, measure);
        if (rank == ahead) is_last |= incoming[0] == STOP;
    }
    if (all) return is_last;
    for (int to = 1; to < (rank == 0 ? ranks : 1); to++) send_to(to, measure);
    if (rank == 0) return 0;
    receive_from(0, measure);
    return incoming[0] == STOP;
}

static void perform(const struct measure *measure, uint32_t count) {
    static MPI_Request requests[WINDOW_MAX];
    outgoing[0] = GO;
    for (uint32_t done = 0; done < count; done++) {
        if (is_round(measure)) {
            one_round(measure);
        } else if (is_busy(measure)) {
            busy_leads(measure);
        } else if (measure->kind == 'u') {
            for (int at = 0; at < measure->window; at++)
                MPI_Send(outgoing, measure->bytes, MPI_BYTE, next, 2 + at, MPI_COMM_WORLD);
            send_message(measure, outgoing, measure->bytes);
            receive_message(incoming, 1);
        } else if (measure->kind == 'b') {
            for (int at = 0; at < measure->window; at++)
                MPI_Send(outgoing, measure->bytes, MPI_BYTE, next, 2, MPI_COMM_WORLD);
            send_message(measure, outgoing, measure->bytes);
            receive_message(incoming, 1);
        } else if (measure->window > 1) {
            for (int at = 0; at < measure->window; at++)
                MPI_Isend(outgoing, measure->bytes, MPI_BYTE, next, 1, MPI_COMM_WORLD, &requests[at]);
            MPI_Waitall(measure->window, requests, MPI_STATUSES_IGNORE);
            receive_message(incoming, 1);
        } else {
            send_message(measure, outgoing, measure->bytes);
            receive_message(incoming, measure->bytes);
        }
    }
}

static void stop(const struct measure *measure) {
    outgoing[0] = STOP;
    if (is_round(measure)) {
        one_round(measure);
        return;
    }
    if (is_busy(measure)) {
        MPI_Send(outgoing, 1, MPI_BYTE, next, 1, MPI_COMM_WORLD);
        receive_message(incoming, 1);
        return;
    }
    send_message(measure, outgoing, measure->bytes);
    receive_message(incoming, measure->window > 1 ? 1 : measure->bytes);
}

static void follow(const struct measure *measure) {
    static MPI_Request requests[WINDOW_MAX];
    for (int is_last = 0; !is_last;) {
        if (is_round(measure)) {
            is_last = one_round(measure);
            continue;
        }
        if (is_busy(measure)) {
            receive_message(incoming, 1);
            is_last = incoming[0] == STOP;
            if (is_last)
                MPI_Send(outgoing, 1, MPI_BYTE, next, 1, MPI_COMM_WORLD);
            else
                busy_follows(measure);
            continue;
        }
        receive_message(incoming, measure->bytes);
        is_last = incoming[0] == STOP;
        if (!is_last && measure->kind == 'u') {
            for (int at = measure->window - 1; at >= 0; at--)
                MPI_Recv(incoming, measure->bytes, MPI_BYTE, source, 2 + at, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (!is_last && measure->kind == 'b') {
            for (int at = 0; at < measure->window; at++)
                MPI_Recv(incoming, measure->bytes, MPI_BYTE, source, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (!is_last && measure->window > 1) {
            int rest = measure->window - 1;
            for (int at = 0; at < rest; at++)
                MPI_Irecv(incoming, measure->bytes, MPI_BYTE, before, 1, MPI_COMM_WORLD, &requests[at]);
            MPI_Waitall(rest, requests, MPI_STATUSES_IGNORE);
        }
        send_message(measure, incoming, measure->window > 1 ? 1 : measure->bytes);
    }
}

/* Leads a measure; returns the number of samples. */
static size_t lead(const struct measure *measure, uint64_t budget_ns, useconds_t rest_us,
                   uint32_t *operations, uint64_t *all, uint64_t *samples, size_t samples_max) {
    uint64_t begun = now_ns();
    size_t count = 0;
    *operations = 1;
    *all = 0;
    if (measure->kind == 'q') {
        usleep((useconds_t)((budget_ns < QUIET_MIN_NS ? QUIET_MIN_NS : budget_ns) / 1000));
        return 0;
    }
    if (measure->kind == 'i' || measure->kind == 'L') {
        do {
            usleep(rest_us);
            uint64_t at = now_ns();
            perform(measure, 1);
            samples[count++] = now_ns() - at;
            ++*all;
        } while (count < samples_max && now_ns() - begun < budget_ns);
        return count;
    }
    if (is_busy(measure)) {
        do {
            uint64_t at = now_ns();
            perform(measure, 1);
            uint64_t elapsed = now_ns() - at;
            samples[count++] = elapsed > busy_ns ? elapsed - busy_ns : 0;
            ++*all;
        } while (count < samples_max && now_ns() - begun < budget_ns);
        return count;
    }
    for (;;) {
        int is_warm = now_ns() - begun >= budget_ns / 4;
        uint64_t at = now_ns();
        perform(measure, *operations);
        uint64_t elapsed = now_ns() - at;
        *all += *operations;
        if (is_warm)
            samples[count++] = elapsed;
        else if (elapsed < SAMPLE_MIN_NS && *operations < OPERATIONS_MAX)
            *operations *= 2;
        if (is_warm && (count == samples_max || now_ns() - begun >= budget_ns)) return count;
    }
}

static int parse(const char *word, struct measure *measure) {
    char name[16];
    if (sscanf(word, "%15[a-z]:%d:%d", name, &measure->bytes, &measure->window) != 3) return 0;
    if (measure->bytes < 1 || measure->window < 1 || measure->window > WINDOW_MAX) return 0;
    /* Waiting has the letter of "idle": windows have the other one; so has "any" that of all to all. */
    measure->kind = strcmp(name, "waiting") == 0 ? 'i' : name[0];
    if (strcmp(name, "alltoall") == 0) measure->kind = 'A';
    if (strcmp(name, "lateround") == 0) measure->kind = 'L';
    if (strcmp(name, "manytoone") == 0) measure->kind = 'M';
    if (strcmp(name, "busyreceiver") == 0) measure->kind = 'R';
    if (strcmp(name, "busysender") == 0) measure->kind = 'S';
    return 1;
}

static void play(const struct measure *measure, uint64_t budget_ns, useconds_t rest_us,
                 uint64_t *samples, size_t samples_max) {
    uint32_t operations = 1;
    uint64_t all = 0, cpu, cpu_all, cpu_follower, own;
    size_t count = 0;
    memset(outgoing, GO, (size_t)measure->bytes);
    source = measure->kind == 'a' ? MPI_ANY_SOURCE : before;
    /* The last operation once before it counts: connections may be made when they are first needed. */
    if (rank == 0)
        stop(measure);
    else
        follow(measure);
    uint64_t begun = now_ns(), cpu_begun = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    if (rank == 0) {
        count = lead(measure, budget_ns, rest_us, &operations, &all, samples, samples_max);
        stop(measure);
    } else {
        follow(measure);
    }
    uint64_t wall = now_ns() - begun;
    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_begun;
    own = rank == 0 ? 0 : cpu;
    MPI_Reduce(&cpu, &cpu_all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&own, &cpu_follower, 1, MPI_UINT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank != 0) return;
    printf("played %u %llu %llu %llu %llu", operations, (unsigned long long)all,
           (unsigned long long)wall, (unsigned long long)cpu_all, (unsigned long long)cpu_follower);
    for (size_t at = 0; at < count; at++) printf(" %llu", (unsigned long long)samples[at]);
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    enum { SAMPLES_MAX = 1 << 16, FIRST = 5 };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    next = (rank + 1) % ranks;
    before = (rank + ranks - 1) % ranks;
    if (argc <= FIRST) {
        fprintf(stderr, "usage: CORE,... BUDGET_US REST_US LIFE_S CASE:BYTES:WINDOW ...\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    alarm((unsigned)atoi(argv[4]));
    busy_ns = (uint64_t)atoi(argv[3]) * 1000u;
    pin(argv[1]);
    uint64_t *samples = malloc(SAMPLES_MAX * sizeof *samples);
    int bytes_max = 8;
    struct measure measure;
    for (int at = FIRST; at < argc; at++) {
        if (!parse(argv[at], &measure)) {
            fprintf(stderr, "no measure: %s\n", argv[at]);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
        if (measure.bytes > bytes_max) bytes_max = measure.bytes;
    }
    outgoing = malloc((size_t)bytes_max);
    incoming = malloc((size_t)bytes_max);
    if (!samples || !outgoing || !incoming) MPI_Abort(MPI_COMM_WORLD, 2);
    memset(incoming, GO, (size_t)bytes_max);
    for (int at = FIRST; at < argc; at++) {
        parse(argv[at], &measure);
        play(&measure, (uint64_t)atoll(argv[2]) * 1000u, (useconds_t)atoi(argv[3]), samples, SAMPLES_MAX);
    }
    MPI_Finalize();
    return 0;
}
