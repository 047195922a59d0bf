//! The two nodes: two private daemons, and both ends of a link in this process.

use super::sides::Sides;
use super::{LEN, NetError};
use crate::cpu::Pair;
use crate::exit::{Context, Failure, Io};
use crate::private::PrivateDaemon;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use vmmc::config::{Config, DaemonStart};
use vmmc::counters::index::NET_PACKETS;
use vmmc::{Export, Import, Node, Region, Rights, Who};

/// Two nodes, an export of one and its import through the other.
pub(super) struct World {
    /// Of the near node.
    pub(super) importer: Node,
    pub(super) import: Import,
    /// Of the far one, in this process too.
    pub(super) export: Export,
    _exporter: Node,
    pub(super) receiver: PrivateDaemon,
    _sender: PrivateDaemon,
}

/// A key for two daemons that live as long as this command.
fn make_key(path: &Path) -> Result<(), Io> {
    let mut key = [0; 32];
    let failed = |errno: rustix::io::Errno| std::io::Error::from(errno);
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut key[..], flags).map_err(failed).context(|| "a key".into())?;
    let text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(path, text).context(|| format!("writing {path:?}"))?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))
        .context(|| format!("chmod of {path:?}"))
}

/// Free now; a private daemon takes it a moment later.
fn address(listener: Result<TcpListener, Io>) -> Result<String, Io> {
    Ok(listener?.local_addr().context(|| "a port".into())?.to_string())
}

fn node(daemon: &PrivateDaemon) -> Result<Node, Failure> {
    let failed = |error: String| NetError(error, daemon.last_words());
    let mut config = Config::from_env().map_err(|error| failed(error.to_string()))?;
    config.socket = Some(daemon.socket.clone());
    config.daemon = DaemonStart::Never;
    let node = Node::builder().config(config).program("shrimp-perf").connect();
    Ok(node.map_err(|error| failed(error.to_string()))?)
}

impl World {
    /// `fabric`: a provider of libfabric, and `direct` as the cluster file says it.
    pub(super) fn new(
        program: &Path,
        scratch: &Path,
        (pair, sides): (Pair, &Sides),
        fabric: Option<(&str, &str)>,
    ) -> Result<World, Failure> {
        let near = TcpListener::bind((sides.near, 0)).context(|| "a port".into());
        let (a, b) = (address(sides.listen())?, address(near)?);
        let key = scratch.join("key");
        make_key(&key)?;
        let fabric = fabric.map_or_else(String::new, |(provider, direct)| {
            format!("[fabric]\nprovider = {provider:?}\ndirect = {direct:?}\n")
        });
        let far = sides.wrapped(program, scratch)?;
        let daemon = |program, name: &str, address: &str, other: (&str, &str), cpu: usize| {
            let scratch = &scratch.join(address);
            std::fs::create_dir(scratch).context(|| format!("making {scratch:?}"))?;
            let file = scratch.join(format!("{name}.toml"));
            let (other, at) = other;
            let text = format!(
                "node = {name:?}\nlisten = {address:?}\nkey = {key:?}\n[nodes]\n{other} = {at:?}\n{fabric}[users]\nroot = true\n"
            );
            std::fs::write(&file, text).context(|| format!("writing {file:?}"))?;
            let cpu = (!pair.is_single()).then_some(cpu);
            let arguments = ["--cluster".as_ref(), file.as_os_str()];
            PrivateDaemon::start_with(program, scratch, name, cpu, &arguments)
        };
        let receiver = daemon(&far, "a", &a, ("b", &b), pair.b)?;
        let sender = daemon(program, "b", &b, ("a", &a), pair.a)?;
        let (exporter, importer) = (node(&receiver)?, node(&sender)?);
        let failed = |error: String| NetError(error, receiver.last_words());
        let region = Region::new(LEN).map_err(|error| failed(error.to_string()))?;
        let export = exporter.export(region).name("perf").grant(Who::SameUser, Rights::all());
        let export = export.open().map_err(|error| failed(error.to_string()))?;
        let import = import(&importer).map_err(failed)?;
        Ok(World { importer, import, export, _exporter: exporter, receiver, _sender: sender })
    }

    /// Sent so far.
    pub(super) fn packets(&self) -> u64 {
        self.importer.counters().get(NET_PACKETS)
    }
}

/// Two nodes per provider of libfabric; none where it is not installed. `direct`: as the cluster file says it.
pub(super) fn fabrics(
    program: &Path,
    scratch: &Path,
    on: (Pair, &Sides),
    direct: &str,
    wanted: &[&'static str],
) -> Result<BTreeMap<&'static str, World>, Failure> {
    let offered = vmmc::fabric::providers().map(|(_, providers)| providers).unwrap_or_default();
    let wanted = wanted.iter().filter(|it| offered.iter().any(|has| has.name == **it));
    wanted
        .map(|&provider| {
            Ok((provider, World::new(program, scratch, on, Some((provider, direct)))?))
        })
        .collect()
}

/// A mapping of the far node's export, made through the near one.
pub(super) fn import(node: &Node) -> Result<Import, String> {
    let import = node.import("perf").node("a").rights(Rights::WRITE | Rights::READ);
    import.timeout(Duration::from_secs(10)).open().map_err(|error| error.to_string())
}
