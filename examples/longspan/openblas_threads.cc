// OpenBLAS starts a thread for every processor when it is loaded, which this program never uses:
// its products run in the engine's threads. It asks this function of its own how many to start,
// and takes the program's where there is one.

extern "C" int openblas_num_threads_env();
extern "C" int openblas_num_threads_env() { return 1; }
