/* A job: each rank sends 8 bytes to the next one, receives from the one before, and ends. */
#include <mpi.h>

int main(int argc, char **argv) {
  char there[8] = "neighbor", here[8];
  int own, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &own);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Sendrecv(there, 8, MPI_BYTE, (own + 1) % size, 0, here, 8, MPI_BYTE, (own + size - 1) % size, 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  MPI_Finalize();
  return 0;
}
