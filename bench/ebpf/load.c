/*
 * A rank that makes calls and times them: load ANSWERS LIBRARY...
 * Commands on standard input, each answered with one line on the descriptor ANSWERS:
 *   batch SYMBOL N        N calls as fast as they go       -> nanoseconds per call
 *   rate SYMBOL R MS      R calls a second for MS          -> calls made, CPU nanoseconds used
 *   write SIZE N          N lines of SIZE to stdout        -> nanoseconds per line
 * All arguments of a call are null, or small numbers where they could be a size.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL
#define TICK 1000000LL /* a real job launches in bursts too */

typedef int (*call_t)(void *, void *, size_t, int, void *, void *, void *, void *);

static void *libraries[8];
static int loaded;

static long long now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * NS + t.tv_nsec;
}

static call_t find(const char *symbol)
{
	for (int i = 0; i < loaded; i++) {
		void *found = dlsym(libraries[i], symbol);

		if (found)
			return (call_t)found;
	}
	return NULL;
}

static void repeat(call_t call, long times)
{
	while (times--)
		call(NULL, NULL, 1, 7, NULL, NULL, NULL, NULL);
}

int main(int count, char **arguments)
{
	FILE *answers = fdopen(atoi(arguments[1]), "w");
	char line[256], word[16], symbol[96], *text;
	long a, b;

	for (int i = 2; i < count && loaded < 8; i++) {
		libraries[loaded] = dlopen(arguments[i], RTLD_NOW);
		if (!libraries[loaded++]) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
	}
	fprintf(answers, "ready\n");
	fflush(answers);
	while (fgets(line, sizeof(line), stdin)) {
		long long begin, cpu;
		call_t call;

		symbol[0] = 0;
		a = b = 0;
		if (sscanf(line, "write %ld %ld", &a, &b) == 2) {
			text = malloc(a);
			memset(text, 'x', a);
			text[a - 1] = '\n';
			begin = now(CLOCK_MONOTONIC);
			for (long i = 0; i < b; i++)
				if (write(1, text, a) != a)
					return 1;
			fprintf(answers, "%.1f\n", (double)(now(CLOCK_MONOTONIC) - begin) / b);
			free(text);
		} else if (sscanf(line, "%15s %95s %ld %ld", word, symbol, &a, &b) >= 3 && (call = find(symbol))) {
			begin = now(CLOCK_MONOTONIC);
			cpu = now(CLOCK_PROCESS_CPUTIME_ID);
			if (!strcmp(word, "batch")) {
				repeat(call, a);
				fprintf(answers, "%.1f\n", (double)(now(CLOCK_MONOTONIC) - begin) / a);
			} else {
				long made = 0, due;
				long long passed;
				struct timespec tick = {0, TICK};

				while ((passed = now(CLOCK_MONOTONIC) - begin) < b * 1000000LL) {
					due = (long)(passed * (double)a / NS) - made;
					repeat(call, due > 0 ? due : 0);
					made += due > 0 ? due : 0;
					nanosleep(&tick, NULL);
				}
				fprintf(answers, "%ld %lld\n", made, now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
			}
		} else
			fprintf(answers, "error\n");
		fflush(answers);
	}
	return 0;
}
