/* Processes in states that a script cannot get into, by the first argument; they end with their standard input. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *until_closed(void *nothing)
{
	char byte;

	while (read(0, &byte, 1) > 0)
		;
	exit(0);
}

int main(int count, char **arguments)
{
	char byte;

	/* The first thread ends, and another one goes on. */
	if (!strcmp(arguments[1], "leader")) {
		pthread_t thread;

		pthread_create(&thread, 0, until_closed, 0);
		write(1, "\n", 1);
		pthread_exit(0);
	}
	/* Blocked in the kernel for as long as the child has not ended. */
	if (!strcmp(arguments[1], "blocked")) {
		write(1, "\n", 1);
		if (!vfork()) {
			while (read(0, &byte, 1) > 0)
				;
			_exit(0);
		}
		return 0;
	}
	/* Each byte replaces the program by another run of it. */
	if (!strcmp(arguments[1], "exec")) {
		if (read(0, &byte, 1) == 1)
			execl(arguments[0], arguments[0], "exec", (char *)0);
		return 0;
	}
	return 2;
}
