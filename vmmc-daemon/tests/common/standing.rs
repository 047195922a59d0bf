//! Calls that do not end: they stand in a page fault that nobody answers, in the kernel, with whatever lock they have.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::ioctl::{self, Opcode, opcode};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, munmap, userfaultfd};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

pub const PAGE: usize = 4096;
// As linux/userfaultfd.h has them.
const API: Opcode = opcode::read_write::<[u64; 3]>(0xaa, 0x3f);
const REGISTER: Opcode = opcode::read_write::<[u64; 4]>(0xaa, 0);
const ZEROPAGE: Opcode = opcode::read_write::<[u64; 4]>(0xaa, 4);
const MODE_MISSING: u64 = 1;

fn control<const N: usize>(faults: &OwnedFd, number: Opcode, mut argument: [u64; N]) {
    struct Call<'a, const N: usize>(Opcode, &'a mut [u64; N]);
    // SAFETY: the argument is as long as the number says, and of integers, which may have any value; it is the call's
    // alone while it lasts.
    unsafe impl<const N: usize> ioctl::Ioctl for Call<'_, N> {
        type Output = ();
        const IS_MUTATING: bool = true;
        fn opcode(&self) -> Opcode {
            self.0
        }
        fn as_ptr(&mut self) -> *mut std::ffi::c_void {
            self.1.as_mut_ptr().cast()
        }
        unsafe fn output_from_ptr(
            _: ioctl::IoctlOutput,
            _: *mut std::ffi::c_void,
        ) -> rustix::io::Result<()> {
            Ok(())
        }
    }
    // SAFETY: a userfaultfd takes these numbers with such arguments, and the range they name is a mapping of ours
    // which nobody has a reference to.
    unsafe { ioctl::ioctl(faults, Call(number, &mut argument)) }.unwrap();
}

/// One of them.
pub struct StandingCall {
    faults: OwnedFd,
    page: usize,
    caller: JoinHandle<isize>,
}

impl StandingCall {
    /// Has a thread make a call that uses the page at the address it is given, and waits until it does.
    pub fn of(call: impl FnOnce(usize) -> isize + Send + 'static) -> StandingCall {
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let page = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let page = page.unwrap() as usize;
        // SAFETY: it concerns the page above only.
        let faults = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) }.unwrap();
        control(&faults, API, [0xaa, 0, 0]);
        control(&faults, REGISTER, [page as u64, PAGE as u64, MODE_MISSING, 0]);
        let caller = std::thread::spawn(move || call(page));
        let mut fault = [PollFd::new(&faults, PollFlags::IN)];
        poll(&mut fault, None).unwrap();
        StandingCall { faults, page, caller }
    }

    /// Lets it go on; what it returned.
    pub fn end(self) -> isize {
        control(&self.faults, ZEROPAGE, [self.page as u64, PAGE as u64, 0, 0]);
        let returned = self.caller.join().unwrap();
        // SAFETY: the mapping made by `of`; the caller has ended.
        unsafe { munmap(self.page as *mut _, PAGE) }.unwrap();
        returned
    }
}
