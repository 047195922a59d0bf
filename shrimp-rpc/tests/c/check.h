/* Ends `main`, or a part of it, with the line and the last error of `binding` where something is not so. */
#include <stdio.h>

#define CHECK(what)                                                                   \
    do {                                                                              \
        if (!(what)) {                                                                \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what,                     \
                    binding ? shrimp_rpc_last_error(binding) : "");                   \
            return 1;                                                                 \
        }                                                                             \
    } while (0)
