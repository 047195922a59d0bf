/* How two programs of a test find each other: the server makes a file with its port, whole at once, and the client
 * waits for it. Where they are two machines' MEETING_HOST is the server's address, and MEETING_FROM the client's. */
#ifndef MEETING_H
#define MEETING_H

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s failed: %s\n", __FILE__, __LINE__, #condition,              \
                    strerror(errno));                                                              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* A port of the address that a setting names, or of the loopback. */
static inline struct sockaddr_in port_at(const char *setting, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    const char *host = getenv(setting);
    address.sin_addr.s_addr = host == NULL ? htonl(INADDR_LOOPBACK) : inet_addr(host);
    return address;
}

/* A listener at a port that is free, and where it is. */
static inline int listen_any(struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t len = sizeof *address;
    *address = port_at("MEETING_HOST", 0);
    CHECK(bind(fd, (struct sockaddr *)address, len) == 0);
    CHECK(listen(fd, 128) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)address, &len) == 0);
    return fd;
}

/* A listener whose port is in the file. */
static inline int listen_for(const char *portfile) {
    char temporary[4096];
    struct sockaddr_in address;
    int fd = listen_any(&address);
    snprintf(temporary, sizeof temporary, "%s.new", portfile);
    FILE *file = fopen(temporary, "w");
    CHECK(file != NULL);
    fprintf(file, "%d\n", ntohs(address.sin_port));
    fclose(file);
    CHECK(rename(temporary, portfile) == 0);
    return fd;
}

/* Where the server listens that makes the file. */
static inline struct sockaddr_in await_server(const char *portfile) {
    FILE *file;
    while ((file = fopen(portfile, "r")) == NULL)
        poll(NULL, 0, 5);
    int port;
    CHECK(fscanf(file, "%d", &port) == 1);
    fclose(file);
    return port_at("MEETING_HOST", port);
}

#endif
