/* Names and signatures of the CUDA driver and NCCL, built as two libraries. */
#include <stddef.h>
#include <time.h>

#ifdef AS_CUDA
int tocsin_ready = 1; /* the driver's entry points begin with a comparison of a global */
#define ENTRY(name, ...) __attribute__((visibility("default"), noinline)) int name(__VA_ARGS__)
ENTRY(cuLaunchKernel, void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned s,
      void *stream, void **params, void **extra)
{
	return f == 0;
}
ENTRY(cuStreamSynchronize, long microseconds)
{
	struct timespec t = {0, microseconds * 1000};
	if (microseconds < 0)
		return 700;
	nanosleep(&t, NULL);
	return 0;
}
ENTRY(cuMemAlloc_v2, void **out, size_t size) { return size > 1024 ? 2 : 0; }
ENTRY(cuMemcpyHtoDAsync_v2, long to, void *from, size_t size, void *stream) { return 0; }
/* As nearly all exports of the driver begin: a comparison, a jump, and only then the frame. */
__asm__(".text\n.globl cuCtxSynchronize\n.type cuCtxSynchronize,@function\ncuCtxSynchronize:\n"
	"cmpl $0, tocsin_gate(%rip)\nje 1f\nmov $0, %eax\nret\n1: mov $0, %eax\nret\n.size cuCtxSynchronize, .-cuCtxSynchronize\n"
	".data\n.local tocsin_gate\ntocsin_gate: .long 7\n.text\n");
#endif

#ifdef AS_NCCL
struct id {
	char bytes[128];
};
int ncclCommInitRank(void **comm, int ranks, struct id id, int rank)
{
	static long next = 0x1000;
	*comm = (void *)(next += 16);
	return 0;
}
int ncclCommDestroy(void *comm) { return 0; }
int ncclAllReduce(const void *s, void *r, size_t count, int type, int op, void *comm, void *stream) { return 0; }
int ncclAllGather(const void *s, void *r, size_t count, int type, void *comm, void *stream) { return 0; }
int ncclReduce(const void *s, void *r, size_t count, int type, int op, int root, void *comm, void *stream) { return 0; }
int ncclSend(const void *s, size_t count, int type, int peer, void *comm, void *stream) { return 0; }
int pncclGroupEnd(void) { return 0; }
int ncclGroupEnd(void) __attribute__((alias("pncclGroupEnd")));
#endif
