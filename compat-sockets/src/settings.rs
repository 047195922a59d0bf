//! Settings, read once when the library is loaded.

use std::sync::OnceLock;
use std::time::Duration;
use vmmc::config::rules::{Asker, Rules};
use vmmc::config::{
    CALLS_BEFORE_OFFER, Config, IoUring, SPIN_CAP, StreamProtocol, WaitChoice, WaitPolicy,
};
use vmmc::control::connect::{self, Owner};
use vmmc::sync::{AtomicU32, Ordering};

/// What the environment says.
#[derive(Debug)]
pub(crate) struct Settings {
    /// `VMMC_SOCKETS=off`, or settings that cannot be understood.
    pub(crate) off: bool,
    /// The daemon's socket.
    pub(crate) socket: Option<std::path::PathBuf>,
    /// How we came to it.
    pub(crate) owner: Owner,
    /// File for the counters at exit.
    pub(crate) report: Option<std::path::PathBuf>,
    /// Which connections may be upgraded.
    pub(crate) rules: Rules,
    /// Who we are, to the rules.
    pub(crate) asker: Asker,
    /// How a sender fills a ring.
    pub(crate) protocol: StreamProtocol,
    /// Data calls that moved something at which a connection is offered to the daemon for the first time.
    after: u32,
    /// How long a ring is full that nobody reads before its stream goes by TCP.
    pub(crate) full: Duration,
    /// What rings of io_uring are for.
    pub(crate) io_uring: IoUring,
    /// Policy of waits.
    wait: WaitChoice,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();
/// Longest spin in nanoseconds; changes when the daemon tells the cost of a wake-up.
static SPIN_NS: AtomicU32 = AtomicU32::new(0);
/// Processors of the machine. (Not of this process: a process pinned to one still gains by polling
/// while its peer runs on another; where the peer shares ours is seen in the segment.)
static PROCESSORS: AtomicU32 = AtomicU32::new(1);

/// At load.
pub(crate) fn init() {
    let settings = match Config::from_env() {
        // A program that never heard of us must not fail over a typing error in ours.
        Err(_) => Settings {
            off: true,
            socket: None,
            owner: Owner::Found,
            report: None,
            rules: Rules::default(),
            asker: Asker::default(),
            protocol: StreamProtocol::default(),
            after: CALLS_BEFORE_OFFER,
            full: Duration::ZERO,
            io_uring: IoUring::default(),
            wait: WaitChoice::Auto,
        },
        Ok(config) => Settings {
            off: !config.sockets,
            socket: Some(connect::socket_path(&config)),
            owner: connect::owner_by(&config),
            wait: config.wait,
            report: config.sockets_report,
            asker: Asker::current(),
            protocol: config.sockets_protocol,
            after: config.sockets_after,
            full: config.sockets_full,
            io_uring: config.io_uring,
            rules: config.sockets_rules,
        },
    };
    let _ = SETTINGS.set(settings);
}

/// The settings; `None` before [`init`].
pub(crate) fn get() -> Option<&'static Settings> {
    SETTINGS.get()
}

/// The daemon measured what waking a sleeper costs.
pub(crate) fn set_wake_cost(nanoseconds: u64) {
    let online = vmmc::sys::process::online_processors();
    PROCESSORS.store(u32::try_from(online).unwrap_or(u32::MAX), Ordering::Relaxed);
    let cap = SPIN_CAP.as_nanos() as u64;
    let wait = SETTINGS.get().map_or(WaitChoice::Auto, |settings| settings.wait);
    let spin = match wait {
        WaitChoice::Fixed(WaitPolicy::Spin) => u64::from(u32::MAX),
        WaitChoice::Fixed(WaitPolicy::Block) => 0,
        WaitChoice::Fixed(WaitPolicy::Hybrid { budget }) => budget.as_nanos() as u64,
        WaitChoice::Auto if processors() <= 1 => 0,
        WaitChoice::Auto => nanoseconds.min(cap),
    };
    SPIN_NS.store(spin.min(u64::from(u32::MAX)) as u32, Ordering::Relaxed);
}

/// How a sender fills a ring.
#[inline]
pub(crate) fn protocol() -> StreamProtocol {
    SETTINGS.get().map_or(StreamProtocol::Au2Copy, |settings| settings.protocol)
}

/// Data calls that moved something at which a connection is offered to the daemon for the first time.
#[inline]
pub(crate) fn after() -> u32 {
    SETTINGS.get().map_or(CALLS_BEFORE_OFFER, |settings| settings.after)
}

/// How long a ring is full that nobody reads before its stream goes by TCP.
pub(crate) fn full() -> Duration {
    SETTINGS.get().map_or(Duration::ZERO, |settings| settings.full)
}

/// Longest spin, in nanoseconds.
#[inline]
pub(crate) fn spin_ns() -> u32 {
    SPIN_NS.load(Ordering::Relaxed)
}

/// Whether a thread may give way to others before it sleeps: unless waits are to spin, or to sleep at once.
pub(crate) fn may_yield() -> bool {
    match SETTINGS.get().map_or(WaitChoice::Auto, |settings| settings.wait) {
        WaitChoice::Auto => true,
        WaitChoice::Fixed(WaitPolicy::Hybrid { budget }) => !budget.is_zero(),
        WaitChoice::Fixed(WaitPolicy::Spin | WaitPolicy::Block) => false,
    }
}

/// Processors of the machine.
#[inline]
pub(crate) fn processors() -> u32 {
    PROCESSORS.load(Ordering::Relaxed)
}
