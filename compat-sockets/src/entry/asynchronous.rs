//! Input and output that others do for the program: POSIX aio, whose threads are the C library's
//! own, and io_uring, which is the kernel's. Neither passes through us.

use super::export;
use crate::{close, io_uring, raw, real, user_memory};
use libc::{aiocb, c_int, c_uint, c_void, sigevent, size_t};

/// The socket of a request, if it is one, is the kernel's from now on.
fn before_aio(control: *const aiocb) {
    if user_memory::can_read(control, 1) {
        // SAFETY: a request of the program's that can be read.
        close::leave_to_kernel(unsafe { (*control).aio_fildes });
    }
}

fn before_list(list: *const *mut aiocb, count: c_int) {
    let count = count.max(0) as usize;
    if count > 0 && user_memory::can_read(list, count) {
        for at in 0..count {
            // SAFETY: inside the program's list.
            let place = unsafe { list.add(at) };
            // SAFETY: as above.
            before_aio(unsafe { *place });
        }
    }
}

/// Where a request of the kernel's own aio has its descriptor (`struct iocb`), and how long it is.
const IOCB_FILE: usize = 20;
const IOCB_LEN: usize = 64;

/// Before requests of the kernel's own aio: their sockets are the kernel's from now on.
pub(super) fn before_submit(count: isize, list: *const *const u8) {
    let count = count.clamp(0, 1 << 16) as usize;
    if count > 0 && user_memory::can_read(list, count) {
        for at in 0..count {
            // SAFETY: inside the program's list.
            let place = unsafe { list.add(at) };
            // SAFETY: as above.
            let request = unsafe { *place };
            if user_memory::can_read(request, IOCB_LEN) {
                // SAFETY: the request has more bytes than that.
                let file = unsafe { request.add(IOCB_FILE) };
                // SAFETY: four bytes inside the request, which can be read.
                close::leave_to_kernel(unsafe { file.cast::<c_int>().read_unaligned() });
            }
        }
    }
}

// SAFETY (of every `real::` call below): the arguments are the program's own, passed on as they
// came to the C function of the same name.
export! {
    /// io_submit of libaio, which has a system call instruction of its own. Answers as that: 0 or more, or a negative
    /// error.
    fn io_submit(context: usize, count: isize, list: *const *const u8) -> c_int {
        before_submit(count, list);
        match raw::io_submit(context, count, list) {
            Ok(submitted) => submitted as c_int,
            Err(errno) => -errno,
        }
    }

    /// aio_read(3).
    fn aio_read(control: *mut aiocb) -> c_int {
        before_aio(control);
        // SAFETY: as above.
        unsafe { real::aio_read(control) }
    }

    /// aio_write(3).
    fn aio_write(control: *mut aiocb) -> c_int {
        before_aio(control);
        // SAFETY: as above.
        unsafe { real::aio_write(control) }
    }

    /// aio_read(3), large files.
    fn aio_read64(control: *mut aiocb) -> c_int {
        before_aio(control);
        // SAFETY: as above.
        unsafe { real::aio_read64(control) }
    }

    /// aio_write(3), large files.
    fn aio_write64(control: *mut aiocb) -> c_int {
        before_aio(control);
        // SAFETY: as above.
        unsafe { real::aio_write64(control) }
    }

    /// lio_listio(3).
    fn lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int {
        before_list(list, count);
        // SAFETY: as above.
        unsafe { real::lio_listio(mode, list, count, event) }
    }

    /// lio_listio(3), large files.
    fn lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int {
        before_list(list, count);
        // SAFETY: as above.
        unsafe { real::lio_listio64(mode, list, count, event) }
    }

    /// io_uring_queue_init(3) of liburing, which makes its system calls itself.
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        // SAFETY: as above.
        io_uring::set_up(|| unsafe { real::io_uring_queue_init(entries, ring, flags) })
    }

    /// io_uring_queue_init_params(3).
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void) -> c_int {
        // SAFETY: as above.
        io_uring::set_up(|| unsafe { real::io_uring_queue_init_params(entries, ring, params) })
    }

    /// io_uring_queue_init_mem(3).
    fn io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, params: *mut c_void, memory: *mut c_void, len: size_t) -> c_int {
        // SAFETY: as above.
        io_uring::set_up(|| unsafe { real::io_uring_queue_init_mem(entries, ring, params, memory, len) })
    }

    /// io_uring_setup(2) by liburing.
    fn io_uring_setup(entries: c_uint, params: *mut c_void) -> c_int {
        // SAFETY: as above.
        io_uring::set_up(|| unsafe { real::io_uring_setup(entries, params) })
    }
}
