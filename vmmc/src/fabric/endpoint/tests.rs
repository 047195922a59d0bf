use super::notice::Behind;
use super::*;
use crate::fabric::domain::Notice;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time anything may take. Only ends hangs; no test is about time.
const PATIENCE: Duration = Duration::from_secs(120);

const LEN: usize = 4096;

const WRONG: u32 = 1;
const RIGHT: u32 = 2;

/// One write with a target that may be wrong, then others as they should be until one has come, maybe over
/// another connection: what was told before it, and what stands in the memory then.
fn write(wrong: impl FnOnce(Target) -> Target) -> (Vec<u32>, Vec<u8>) {
    let domain = Domain::open("net", IpAddr::V4(Ipv4Addr::LOCALHOST), Notice::Auto).unwrap();
    let mut ends = [(); 2].map(|()| Endpoint::open(&domain, LEN).unwrap());
    let [from, to] = &mut ends;
    let (address, target) = (to.address().unwrap(), to.target());
    from.connect(&address, wrong(target)).unwrap();
    from.outgoing().write(64, &[9; 8]).unwrap();
    from.outgoing().write(128, &[8; 8]).unwrap();
    while !from.write(64, 8, WRONG).unwrap() {
        let _ = from.poll(|_| {});
    }
    from.target = target;
    let mut told = Vec::new();
    while told.last() != Some(&RIGHT) {
        let _ = from.write(128, 8, RIGHT);
        let _ = from.poll(|_| {}); // it may learn that its write was refused
        // The other side takes part: there is no hardware.
        let _ = to.poll(|happened| match happened {
            Happened::Arrived(data) if told.last() != Some(&RIGHT) => told.push(data),
            _ => {}
        });
    }
    let mut seen = vec![0; LEN];
    to.incoming().read(0, &mut seen).unwrap();
    (told, seen)
}

fn memory(written: &[(usize, u8)]) -> Vec<u8> {
    let mut memory = vec![0; LEN];
    for &(at, byte) in written {
        memory[at..at + 8].fill(byte);
    }
    memory
}

#[test]
fn a_write_lands_where_it_was_meant_to() {
    assert_eq!(write(|target| target), (vec![WRONG, RIGHT], memory(&[(64, 9), (128, 8)])));
}

#[test]
fn without_the_key_nothing_is_written_or_told() {
    let forged = |target: Target| Target { key: target.key ^ 1, ..target };
    assert_eq!(write(forged), (vec![RIGHT], memory(&[(128, 8)])));
}

#[test]
fn nothing_is_written_beyond_the_memory() {
    let beyond = |target: Target| Target { base: target.base + LEN as u64, ..target };
    assert_eq!(write(beyond), (vec![RIGHT], memory(&[(128, 8)])));
}

#[test]
fn what_is_no_address_is_refused() {
    let domain = Domain::open("net", IpAddr::V4(Ipv4Addr::LOCALHOST), Notice::Auto).unwrap();
    let mut endpoint = Endpoint::open(&domain, LEN).unwrap();
    let target = endpoint.target();
    for address in [&[][..], &[0; MAX_ADDRESS + 1]] {
        let refused = endpoint.connect(address, target);
        assert!(matches!(refused, Err(FabricError::Nonsense { .. })));
    }
}

/// While memory of other endpoints comes and goes in other threads, no write is lost, and none is refused.
#[test]
fn others_may_open_and_close_meanwhile() {
    const WRITES: u32 = 30_000;
    let domain = Domain::open("net", IpAddr::V4(Ipv4Addr::LOCALHOST), Notice::Auto).unwrap();
    let mut ends = [(); 2].map(|()| Endpoint::open(&domain, LEN).unwrap());
    let [from, to] = &mut ends;
    from.connect(&to.address().unwrap(), to.target()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let other = Endpoint::open(&domain, LEN).unwrap();
                while !done.load(Ordering::Relaxed) {
                    let register = || register(&domain, &other.ep, LEN, abi::FI_REMOTE_WRITE);
                    drop([(); 16].map(|()| register().unwrap()));
                }
            });
        }
        let carried = (0..WRITES).try_for_each(|number| carry(from, to, number));
        done.store(true, Ordering::Relaxed);
        carried.unwrap();
    });
}

/// One write, which has arrived when this returns.
fn carry(from: &mut Endpoint, to: &mut Endpoint, number: u32) -> Result<(), String> {
    let said = |error: FabricError| format!("write {number}: {error}");
    let end = Instant::now() + PATIENCE;
    let (mut written, mut arrived) = (false, false);
    while !arrived {
        written = written || from.write(0, 8, number).map_err(said)?;
        from.poll(|_| {}).map_err(said)?;
        to.poll(|happened| arrived |= happened == Happened::Arrived(number)).map_err(said)?;
        if Instant::now() > end {
            return Err(format!("write {number} is lost"));
        }
    }
    Ok(())
}

/// Whatever puts the message behind the write, the bytes are there when it comes.
#[test]
fn without_completion_data_a_message_tells_of_a_write_behind_it() {
    const WRITES: u32 = 2000;
    for (provider, behinds) in [
        ("tcp;ofi_rxm", &[Behind::Order, Behind::Delivery][..]),
        ("net", &[Behind::Order, Behind::Delivery]),
        ("sockets", &[Behind::Order, Behind::Fence, Behind::Delivery]),
    ] {
        for &behind in behinds {
            let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
            let notice = Notice::Message;
            let domain = Domain::open(provider, local, notice).unwrap();
            let mut ends = [(); 2].map(|()| Endpoint::open(&domain, LEN).unwrap());
            let [from, to] = &mut ends;
            from.tell_by(behind);
            from.connect(&to.address().unwrap(), to.target()).unwrap();
            to.connect(&from.address().unwrap(), from.target()).unwrap();
            let (mut sent, mut seen) = (0, 0);
            let end = Instant::now() + PATIENCE;
            while seen < WRITES {
                assert!(Instant::now() < end, "{provider} {behind:?}: {seen} of {sent} came");
                // Eight places, none of which is written to again before what was there has been seen.
                if sent < WRITES && sent - seen < 8 {
                    let at = (sent % 8) as usize * 512;
                    from.outgoing().write(at, &[sent as u8; 512]).unwrap();
                    sent += u32::from(from.write(at, 512, sent).unwrap());
                }
                from.poll(|_| {}).unwrap();
                let mut told = Vec::new();
                to.poll(|happened| match happened {
                    Happened::Arrived(number) => told.push(number),
                    Happened::Sent => {}
                })
                .unwrap();
                for number in told {
                    assert_eq!(number, seen, "{provider} {behind:?}");
                    let mut bytes = [0; 512];
                    to.incoming().read((number % 8) as usize * 512, &mut bytes).unwrap();
                    assert_eq!(bytes, [number as u8; 512], "{provider} {behind:?}: told too early");
                    seen += 1;
                }
            }
        }
    }
}

/// What a child closes would be its parent's: its sockets, and its way to wait for them.
#[test]
fn a_forked_child_leaves_its_parents_endpoints_alone() {
    let domain = Domain::open("net", IpAddr::V4(Ipv4Addr::LOCALHOST), Notice::Auto).unwrap();
    let mut ends = [(); 2].map(|()| Endpoint::open(&domain, LEN).unwrap());
    // SAFETY: the child only drops what it inherited, and ends.
    match unsafe { libc::fork() } {
        0 => {
            drop(ends);
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(0) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
        }
    }
    let [from, to] = &mut ends;
    from.connect(&to.address().unwrap(), to.target()).unwrap();
    carry(from, to, 7).unwrap();
}

/// As a provider that says that somebody still uses the memory.
#[test]
fn pages_that_the_library_does_not_let_go_of_stay() {
    unsafe extern "C" fn busy(_: *mut abi::Fid) -> std::ffi::c_int {
        -libc::EBUSY
    }
    let domain = Domain::open("net", IpAddr::V4(Ipv4Addr::LOCALHOST), Notice::Auto).unwrap();
    let endpoint = Endpoint::open(&domain, LEN).unwrap();
    let register = || register(&domain, &endpoint.ep, LEN, abi::FI_REMOTE_WRITE).unwrap();
    // Each has a file of its own, by whose number the kernel tells what is mapped; places are used again.
    let mapped = || -> Vec<(usize, String)> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let lines = maps.lines().filter(|line| line.contains("vmmc-fabric"));
        let start = |line: &str| usize::from_str_radix(line.split('-').next().unwrap(), 16);
        let number = |line: &str| line.split_whitespace().nth(4).unwrap().to_owned();
        lines.map(|line| (start(line).unwrap(), number(line))).collect()
    };
    let file_of = |registered: &Registered| {
        let start = registered.pages.as_ptr().as_ptr() as usize;
        mapped().into_iter().find(|&(at, _)| at == start).unwrap().1
    };
    let kept = register();
    let file = file_of(&kept);
    let mut ops = *kept.mr.object().fid.ops;
    (ops.size, ops.close) = (size_of::<abi::FidOps>(), Some(busy as _));
    // SAFETY: the registration is this test's alone; its table is there for ever.
    unsafe { (*kept.mr.fid()).ops = Box::leak(Box::new(ops)) };
    drop(kept);
    assert!(mapped().iter().any(|(_, of)| *of == file), "unmapped under the library");
    // Others go.
    let gone = register();
    let file = file_of(&gone);
    drop(gone);
    assert!(mapped().iter().all(|(_, of)| *of != file), "still mapped");
}

unsafe extern "C" fn no_writedata(
    _: *mut abi::Ep,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> isize {
    -(libc::ENOSYS as isize)
}

impl Endpoint {
    /// Its writes tell the other side nothing from now on: there is no such call, or one that says that there is none.
    pub(crate) fn without_data(&mut self, says_so: bool) {
        let mut ops = *self.ep.object().rma.unwrap();
        ops.writedata = says_so.then_some(no_writedata as _);
        // SAFETY: borrowed by nobody else; the table is there for ever.
        unsafe { (*self.ep.get()).rma = Some(Box::leak(Box::new(ops))) };
    }

    /// Nor do messages.
    pub(crate) fn without_messages(&mut self, says_so: bool) {
        let mut ops = *self.ep.object().msg.unwrap();
        ops.sendmsg = says_so.then_some(no_sendmsg as _);
        // SAFETY: as above.
        unsafe { (*self.ep.get()).msg = Some(Box::leak(Box::new(ops))) };
    }
}

/// As `cxi` has it without its variable: nothing that is offered tells of it.
#[test]
fn a_provider_that_offers_completion_data_and_has_them_not_sends_messages() {
    for says_so in [false, true] {
        let domain = Domain::open("net", IpAddr::V4(Ipv4Addr::LOCALHOST), Notice::Auto).unwrap();
        let mut ends = [(); 2].map(|()| Endpoint::open(&domain, LEN).unwrap());
        let [from, to] = &mut ends;
        from.without_data(says_so);
        from.connect(&to.address().unwrap(), to.target()).unwrap();
        for number in 0..100 {
            carry(from, to, number).unwrap();
        }
    }
}

unsafe extern "C" fn no_sendmsg(_: *mut abi::Ep, _: *const abi::Msg, _: u64) -> isize {
    -(libc::ENOSYS as isize)
}

#[test]
fn a_provider_that_has_no_messages_either_is_refused_at_the_first_packet_with_its_name() {
    for says_so in [false, true] {
        let domain = Domain::open("net", IpAddr::V4(Ipv4Addr::LOCALHOST), Notice::Auto).unwrap();
        let mut endpoint = Endpoint::open(&domain, LEN).unwrap();
        let (address, target) = (endpoint.address().unwrap(), endpoint.target());
        endpoint.connect(&address, target).unwrap();
        endpoint.without_data(says_so);
        endpoint.without_messages(says_so);
        // A message is sent at once, or when the write has been delivered.
        let refused = loop {
            if let Err(error) =
                endpoint.write(0, 8, 1).map(|_| ()).and_then(|()| endpoint.poll(|_| {}))
            {
                break error;
            }
        };
        assert!(matches!(refused, FabricError::Unfit { .. }), "{refused:?}");
        let text = refused.to_string();
        assert!(text.contains("net") && text.contains("fi_sendmsg"), "{text}");
    }
}
