/* The loop of the paper's figure 4 over MPI_Barrier: the counterpart of `lap.rs`.
 * Arguments: BUDGET_US DUMMY_NS SKEW_NS LATE_US LIFE_S
 * Rank 0 prints: laps COUNT MIN_NS MEAN_NS MAX_NS WALL_NS CPU_NS SAMPLE_NS ... */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLES_MAX = 20000, WARM_UP = 20, LATE_WARM_UP = 1, LEAST = 5 };

static uint64_t clock_ns(clockid_t id) {
    struct timespec at;
    clock_gettime(id, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static int rank, ranks;
static uint64_t busy_ns, late_us;

static uint64_t lap(void) {
    if (late_us > 0 && rank == ranks - 1) usleep((useconds_t)late_us);
    if (busy_ns > 0)
        for (uint64_t begun = now_ns(); now_ns() - begun < busy_ns;) {}
    uint64_t entered = now_ns();
    MPI_Barrier(MPI_COMM_WORLD);
    return now_ns() - entered;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 6) MPI_Abort(MPI_COMM_WORLD, 2);
    uint64_t budget_ns = strtoull(argv[1], NULL, 10) * 1000u;
    late_us = strtoull(argv[4], NULL, 10);
    busy_ns = strtoull(argv[2], NULL, 10) + strtoull(argv[3], NULL, 10) * (uint64_t)rank;
    alarm((unsigned)atoi(argv[5]));
    int warm_up = late_us > 0 ? LATE_WARM_UP : WARM_UP;
    uint64_t begun = now_ns();
    for (int done = 0; done < warm_up; done++) lap();
    uint64_t each = (now_ns() - begun) / (uint64_t)warm_up + 1;
    uint64_t count = budget_ns / each;
    if (count < LEAST) count = LEAST;
    if (count > SAMPLES_MAX) count = SAMPLES_MAX;
    MPI_Bcast(&count, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    uint64_t *samples = malloc(SAMPLES_MAX * sizeof *samples);
    if (!samples) MPI_Abort(MPI_COMM_WORLD, 2);
    double own[3] = {1e18, 0, 0}, all[3];
    uint64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID), cpu_all;
    begun = now_ns();
    for (uint64_t done = 0; done < count; done++) {
        uint64_t elapsed = lap();
        samples[done] = elapsed;
        if ((double)elapsed < own[0]) own[0] = (double)elapsed;
        if ((double)elapsed > own[2]) own[2] = (double)elapsed;
        own[1] += (double)elapsed / (double)count;
    }
    uint64_t wall = now_ns() - begun;
    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    MPI_Reduce(own, all, 3, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&cpu, &cpu_all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("laps %llu %.0f %.0f %.0f %llu %llu", (unsigned long long)count, all[0] / ranks,
               all[1] / ranks, all[2] / ranks, (unsigned long long)wall, (unsigned long long)cpu_all);
        for (uint64_t at = 0; at < count; at++) printf(" %llu", (unsigned long long)samples[at]);
        printf("\n");
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
