//! Settings, read once when the library is loaded.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;
use vmmc::config::{Config, ConfigError, DaemonStart, RpcProtocol, WaitPolicy};

/// What the environment says.
#[derive(Debug)]
pub(crate) struct Settings {
    /// `VMMC_RPC=off`, or settings that cannot be understood.
    pub(crate) off: bool,
    /// Everything else; the daemon is never started from inside a program that knows nothing of
    /// it.
    pub(crate) config: Config,
    /// File for the counters at exit.
    pub(crate) report: Option<PathBuf>,
}

static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();
/// The policy, with the cost of a wake-up that the daemon measured.
static POLICY: OnceLock<WaitPolicy> = OnceLock::new();

/// At load.
pub(crate) fn init() {
    // A program that never heard of us must not fail over a typing error in our settings.
    let settings = Config::from_env().ok().map(|mut config| {
        config.daemon = DaemonStart::Never;
        Settings { off: !config.rpc, report: config.rpc_report.clone(), config }
    });
    let _ = SETTINGS.set(settings);
}

/// For programs that use the Rust interface: unlike an unmodified program they may start a daemon, and
/// want to be told of a typing error.
pub(crate) fn init_for_rust() -> Result<(), ConfigError> {
    let config = Config::from_env()?;
    SETTINGS.get_or_init(|| {
        crate::counters::PAGE.init();
        Some(Settings { off: !config.rpc, report: config.rpc_report.clone(), config })
    });
    Ok(())
}

/// The settings; `None` before [`init`], or when they make no sense.
pub(crate) fn get() -> Option<&'static Settings> {
    SETTINGS.get()?.as_ref()
}

/// Whether the library takes part.
pub(crate) fn is_on() -> bool {
    get().is_some_and(|settings| !settings.off)
}

/// The daemon measured what waking a sleeper costs. The first one's word stays.
pub(crate) fn set_wake_cost(nanoseconds: u64) {
    if let Some(settings) = get() {
        // Once: it asks the system how many processors there are.
        let _ = POLICY.set(settings.config.wait_policy(Duration::from_nanos(nanoseconds)));
    }
}

/// How to wait.
pub(crate) fn wait_policy() -> WaitPolicy {
    POLICY.get().copied().unwrap_or(WaitPolicy::Block)
}

/// Whether records are encoded in memory first and then sent as a whole.
pub(crate) fn is_deliberate() -> bool {
    get().is_some_and(|settings| settings.config.rpc_protocol == RpcProtocol::Du)
}

/// Whether the parts of calls are timed.
pub(crate) fn times_calls() -> bool {
    get().is_some_and(|settings| settings.config.rpc_times)
}

/// Whether clients and servers over UDP take part.
pub(crate) fn upgrades_udp() -> bool {
    is_on() && get().is_some_and(|settings| settings.config.rpc_udp)
}
