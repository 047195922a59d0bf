/* A user whose process stands in a call on its socket, with the socket's lock, for as long as it likes: the connections of
 * others are made and used as ever. */
#include "semantics.h"
#include <linux/userfaultfd.h>

/* Anybody but the daemon's own user. */
enum { SOMEBODY = 65533 };

/* Memory that the kernel waits for whenever it is read. */
static void *never_given(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    int faults = (int)NEED(syscall(SYS_userfaultfd, O_CLOEXEC));
    struct uffdio_api api = {.api = UFFD_API};
    NEED(ioctl(faults, UFFDIO_API, &api));
    struct uffdio_register all = {
        .range = {.start = (uintptr_t)memory, .len = page},
        .mode = UFFDIO_REGISTER_MODE_MISSING,
    };
    NEED(ioctl(faults, UFFDIO_REGISTER, &all));
    return memory;
}

static void *memory_never_given;
static int standing[2];
static _Atomic pid_t stander;

/* The system call itself: a library would look at the memory first. */
static void *stands(void *unused) {
    (void)unused;
    stander = (pid_t)syscall(SYS_gettid);
    struct iovec part = {.iov_base = memory_never_given, .iov_len = 16};
    register long result __asm__("rax") = SYS_writev;
    register long fd __asm__("rdi") = standing[0];
    register struct iovec *parts __asm__("rsi") = &part;
    register long count __asm__("rdx") = 1;
    __asm__ volatile("syscall" : "+r"(result) : "r"(fd), "r"(parts), "r"(count) : "rcx", "r11", "memory");
    return NULL;
}

static void *shuts_down(void *unused) {
    (void)unused;
    shutdown(standing[0], SHUT_WR);
    return NULL;
}

/* Its daemon has a FIN to send, and bytes that nobody reads before that: it asks the kernel how many the socket takes. */
static void stand(int told) {
    pthread_t threads[2];
    memory_never_given = never_given();
    if (geteuid() == 0)
        NEED(syscall(SYS_setresuid, SOMEBODY, SOMEBODY, SOMEBODY));
    make_pair(standing);
    write_all(standing[0], "unread", 6);
    helper_start(&threads[0], stands, NULL);
    UNTIL(stander != 0);
    until_asleep(stander);
    helper_start(&threads[1], shuts_down, NULL);
    usleep(100000);
    REQUIRE(write(told, "s", 1) == 1);
    for (;;)
        pause();
}

static void others_go_on(void) {
    int told[2], ends[2];
    char byte;
    NEED(pipe(told));
    pid_t somebody = (pid_t)NEED(fork());
    if (somebody == 0)
        stand(told[1]);
    NEED(close(told[1]));
    if (read(told[0], &byte, 1) != 1) {
        int status = 0;
        NEED(waitpid(somebody, &status, 0));
        give_up("who was to stand there ended with %#x", status);
    }
    for (int i = 0; i < 3; i++) {
        make_pair(ends);
        write_all(ends[0], "01234", 5);
        char got[5];
        REQUIRE(recv(ends[1], got, 5, MSG_WAITALL) == 5);
        CHECK(memcmp(got, "01234", 5) == 0, "what was sent");
        NEED(close(ends[0]));
        NEED(close(ends[1]));
    }
    NEED(kill(somebody, SIGKILL));
    NEED(waitpid(somebody, NULL, 0));
}

static const struct test_case cases[] = {
    LONER(others_go_on),
};
MAIN(cases)
