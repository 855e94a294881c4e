/*
 * A rank that does what its standard input says, one command a line:
 *   launch N | sync N MICROSECONDS | fail | alloc N SIZE | ctx N | copy N | init | use COMM N COUNT TYPE |
 *   gather COMM COUNT TYPE | reduce COMM COUNT TYPE | send COMM COUNT TYPE | group N | destroy COMM |
 *   print TEXT | err TEXT | flush | vec TEXT | big BYTES | thread-exit CODE | exit CODE | signal N
 * and answers "." on the descriptor that its argument names, after each.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <signal.h>
#include <unistd.h>

int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuStreamSynchronize(long);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(void **, size_t);
int cuMemcpyHtoDAsync_v2(long, void *, size_t, void *);
struct id {
	char bytes[128];
};
int ncclCommInitRank(void **, int, struct id, int);
int ncclCommDestroy(void *);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int ncclAllGather(const void *, void *, size_t, int, void *, void *);
int ncclReduce(const void *, void *, size_t, int, int, int, void *, void *);
int ncclSend(const void *, size_t, int, int, void *, void *);
int ncclGroupEnd(void);

static void *comms[64];
static int made;

static void *end_later(void *code)
{
	usleep(50000);
	exit((int)(long)code);
}

int main(int count, char **arguments)
{
	int answers = atoi(arguments[1]);
	char line[4096], word[32], text[4096];
	long a, b, c, d;

	while (fgets(line, sizeof(line), stdin)) {
		a = b = c = d = 0;
		text[0] = 0;
		sscanf(line, "%31s %ld %ld %ld %ld", word, &a, &b, &c, &d);
		sscanf(line, "%*s %[^\n]", text);
		if (!strcmp(word, "launch"))
			while (a--)
				cuLaunchKernel(word, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
		else if (!strcmp(word, "sync"))
			while (a--)
				cuStreamSynchronize(b);
		else if (!strcmp(word, "fail"))
			cuStreamSynchronize(-1);
		else if (!strcmp(word, "alloc"))
			while (a--)
				cuMemAlloc_v2(0, b);
		else if (!strcmp(word, "copy"))
			while (a--)
				cuMemcpyHtoDAsync_v2(0, 0, 0, 0);
		else if (!strcmp(word, "ctx"))
			while (a--)
				cuCtxSynchronize();
		else if (!strcmp(word, "init"))
			ncclCommInitRank(&comms[made++], 1, (struct id){}, 0);
		else if (!strcmp(word, "use"))
			while (b--)
				ncclAllReduce(0, 0, c, d, 0, comms[a], 0);
		else if (!strcmp(word, "gather"))
			ncclAllGather(0, 0, b, c, comms[a], 0);
		else if (!strcmp(word, "reduce"))
			ncclReduce(0, 0, b, c, 0, 0, comms[a], 0);
		else if (!strcmp(word, "send"))
			ncclSend(0, b, c, 0, comms[a], 0);
		else if (!strcmp(word, "group"))
			while (a--)
				ncclGroupEnd();
		else if (!strcmp(word, "destroy"))
			ncclCommDestroy(comms[a]);
		else if (!strcmp(word, "print"))
			write(1, text, strlen(text));
		else if (!strcmp(word, "err"))
			write(2, text, strlen(text));
		else if (!strcmp(word, "newline"))
			write(1, "\n", 1);
		else if (!strcmp(word, "vec")) {
			struct iovec v[3] = {{"<", 1}, {text, strlen(text)}, {">\n", 2}};
			writev(1, v, 3);
		} else if (!strcmp(word, "big")) {
			char *block = malloc(a);
			memset(block, 'x', a);
			block[a - 1] = '\n';
			write(1, block, a);
			free(block);
		} else if (!strcmp(word, "thread-exit")) {
			pthread_t thread;
			pthread_create(&thread, 0, end_later, (void *)a);
			write(answers, ".", 1);
			pthread_exit(0);
		} else if (!strcmp(word, "exit"))
			_exit(a);
		else if (!strcmp(word, "signal"))
			kill(getpid(), a);
		write(answers, ".", 1);
	}
	return 0;
}
