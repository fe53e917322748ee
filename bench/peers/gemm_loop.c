/* Calls a BLAS sgemm many times from C, so that small products are timed without the cost of an
   interpreter around every call. */

typedef void (*sgemm_function)(const char*, const char*, const int*, const int*, const int*,
                               const float*, const float*, const int*, const float*, const int*,
                               const float*, float*, const int*);

/* Row-major c[m, n] = a * b, where a is [m, k] or, if a_transposed, [k, m], and b is [k, n] or, if
   b_transposed, [n, k]. Column-major BLAS sees c^T = b^T * a^T. */
void gemm_loop(void* function, long calls, int a_transposed, int b_transposed, int m, int n, int k,
               const float* a, const float* b, float* c) {
  const sgemm_function sgemm = (sgemm_function)function;
  const float one = 1.0f, zero = 0.0f;
  const int lda = a_transposed ? m : k;
  const int ldb = b_transposed ? k : n;
  for (long i = 0; i < calls; ++i) {
    sgemm(b_transposed ? "T" : "N", a_transposed ? "T" : "N", &n, &m, &k, &one, b, &ldb, a, &lda,
          &zero, c, &n);
  }
}
