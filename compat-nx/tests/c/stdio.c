/* Only node 0 has the input; every line of everybody's output arrives whole. */
#include "check.h"

int main(void)
{
	char line[100];
	int i;

	if (mynode() == 0) {
		while (fgets(line, sizeof line, stdin))
			printf("read %s", line);
	} else {
		CHECK(fgets(line, sizeof line, stdin) == NULL);
	}
	gsync();
	for (i = 0; i < 200; i++) {
		printf("node %ld ", mynode());
		fflush(stdout);
		printf("line %d\n", i);
	}
	printf("no newline");
	return 0;
}
