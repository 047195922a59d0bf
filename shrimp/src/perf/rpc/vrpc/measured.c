/* An ordinary client and server of measured.x, as rpcgen and libtirpc make them; libvrpc.so is preloaded.
 *
 *     measured serve                                  says its port; serves until it is ended
 *     measured call PORT ROUND_US SAMPLES PROC:BYTES...   one line of samples for each
 */
#include "measured.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WRITTEN = 0x5a, SAMPLE_NS = 3000 };

extern void measured_1(struct svc_req *, SVCXPRT *);

bulk *leave_1_svc(bulk *data, struct svc_req *request)
{
    (void)request;
    return data;
}

bulk *write_1_svc(bulk *data, struct svc_req *request)
{
    (void)request;
    memset(data->bulk_val, WRITTEN, data->bulk_len);
    return data;
}

static int serve(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) != 0 || listen(fd, 8) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        return perror("listening"), 1;
    SVCXPRT *transport = svc_vc_create(fd, 0, 0);
    if (transport == NULL || !svc_reg(transport, MEASURED, MEASURED_V, measured_1, NULL))
        return fprintf(stderr, "no service\n"), 1;
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    svc_run();
    return 1;
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static void once(CLIENT *client, int procedure, char *data, unsigned bytes)
{
    struct timeval patience = {25, 0};
    if (procedure == NULLPROC) {
        if (clnt_call(client, NULLPROC, (xdrproc_t)xdr_void, NULL, (xdrproc_t)xdr_void, NULL,
                      patience) != RPC_SUCCESS)
            exit((clnt_perror(client, "call"), 1));
        return;
    }
    bulk argument = {bytes, data};
    bulk *result =
        procedure == LEAVE ? leave_1(&argument, client) : write_1(&argument, client);
    if (result == NULL || result->bulk_len != bytes)
        exit((clnt_perror(client, "call"), 1));
    memcpy(data, result->bulk_val, bytes);
    clnt_freeres(client, (xdrproc_t)xdr_bulk, (char *)result);
}

/* As the other subjects are measured: a tenth of the round to warm up, then samples of as many calls as
 * take SAMPLE_NS. */
static void measure(CLIENT *client, int procedure, unsigned bytes, double round_ns, long samples)
{
    char *data = calloc(bytes + 1, 1);
    double *taken = calloc(samples, sizeof *taken);
    if (data == NULL || taken == NULL) exit((perror("memory"), 1));
    once(client, procedure, data, bytes);
    for (unsigned i = 0; i < bytes; i++)
        if (data[i] != (procedure == WRITE ? WRITTEN : 0))
            exit((fprintf(stderr, "another result than expected\n"), 1));
    double begin = now_ns();
    while (now_ns() - begin < round_ns / 10) once(client, procedure, data, bytes);
    long count = 0;
    begin = now_ns();
    while (count < 3 || now_ns() - begin < SAMPLE_NS) once(client, procedure, data, bytes), count++;
    long batch = SAMPLE_NS / ((now_ns() - begin) / count);
    if (batch < 1) batch = 1;
    long done = 0;
    begin = now_ns();
    while (done < samples && (done < 3 || now_ns() - begin < round_ns)) {
        double start = now_ns();
        for (long i = 0; i < batch; i++) once(client, procedure, data, bytes);
        taken[done++] = (now_ns() - start) / batch;
    }
    printf("%u %ld", bytes, batch);
    for (long i = 0; i < done; i++) printf(" %.1f", taken[i]);
    printf("\n");
    free(data);
    free(taken);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "serve") == 0) return serve();
    if (argc < 6 || strcmp(argv[1], "call") != 0)
        return fprintf(stderr, "usage: measured serve | call PORT ROUND_US SAMPLES PROC:BYTES...\n"), 2;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(atoi(argv[2])),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = RPC_ANYSOCK;
    CLIENT *client = clnttcp_create(&address, MEASURED, MEASURED_V, &fd, 0, 0);
    if (client == NULL) return clnt_pcreateerror("connecting"), 1;
    for (int i = 5; i < argc; i++) {
        int procedure;
        unsigned bytes;
        if (sscanf(argv[i], "%d:%u", &procedure, &bytes) != 2) return 2;
        measure(client, procedure, bytes, atof(argv[3]) * 1e3, atol(argv[4]));
    }
    clnt_destroy(client);
    return 0;
}
