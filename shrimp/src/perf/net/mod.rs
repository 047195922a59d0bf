//! `shrimp perf net`: the engine between nodes, beside bare TCP.
//!
//! Two private daemons are two nodes, on loopback addresses or in two namespaces ([`sides`]): one is pinned beside the measuring process
//! and only makes connections, the other, whose interface receives, is on the other processor. The
//! exporter is in the measuring process, and takes no part. A *deliberate update, acknowledged* is a
//! fenced send: a packet to the interface, its bytes into memory, and its answer, so that half of it
//! compares with half a round trip of bare TCP between two processes that poll.

mod others;
mod sides;

use self::others::Other;
use self::sides::Sides;
use super::peer::{Kind, PingPong, time_of};
use super::{Head, Options};
use crate::artefacts::{self, Artefact};
use crate::children::Scratch;
use crate::cpu::{self, Pair};
use crate::exit::{Coded, Context, Exit, Failure, Io};
use crate::private::PrivateDaemon;
use crate::stats::{self, Latency, Plan, Rounds};
use crate::text::{self, Progress, Table};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use vmmc::config::{Config, DaemonStart};
use vmmc::counters::index::NET_PACKETS;
use vmmc::{Combining, Export, Import, Node, Region, Rights, Who};

/// Length of the buffer, and of the transfers whose rate is measured.
const LEN: usize = 1 << 20;
/// Transfers of [`LEN`] in one sample of a rate.
const TRANSFERS: usize = 16;
/// Stores in one sample of automatic update.
const STORES: usize = 512;

/// What the engine said.
#[derive(Debug, thiserror::Error)]
#[error("{0}; the daemon's log ends: {1}")]
struct NetError(String, String);

impl Coded for NetError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// What is measured by the time of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Tcp(Kind),
    Send,
    SendThenFence,
    /// As `Send`, over a provider of libfabric.
    Over(&'static str),
    Read,
    Bulk {
        combine: bool,
    },
    Sparse {
        combine: bool,
    },
    Import,
}

const SUBJECTS: &[(&str, &str, Subject)] = &[
    ("tcp_spin", "bare TCP 8 B, both sides poll", Subject::Tcp(Kind::TcpSpin)),
    ("tcp_block", "bare TCP 8 B, blocking", Subject::Tcp(Kind::TcpBlock)),
    ("send", "DU of 8 B, acknowledged", Subject::Send),
    ("send_ofi_net", "the same, over libfabric's net", Subject::Over("net")),
    ("send_ofi_rxm", "the same, over libfabric's tcp;ofi_rxm", Subject::Over("tcp;ofi_rxm")),
    ("send_fence", "DU of 8 B, then a fence", Subject::SendThenFence),
    ("read", "remote read of 8 B", Subject::Read),
    ("bulk_combined", "AU, consecutive words, combining", Subject::Bulk { combine: true }),
    ("bulk", "AU, consecutive words, not combining", Subject::Bulk { combine: false }),
    ("sparse_combined", "AU, a word per line, combining", Subject::Sparse { combine: true }),
    ("sparse", "AU, a word per line, not combining", Subject::Sparse { combine: false }),
    ("import", "import and unimport", Subject::Import),
];

#[derive(Debug, Serialize)]
struct Line {
    id: &'static str,
    name: &'static str,
    #[serde(flatten)]
    latency: Latency,
    /// Multiples of bare TCP, both sides polling, within a round.
    ratio_to_tcp_spin: f64,
    /// Packets per operation, where there are any.
    packets: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    latency: Vec<Line>,
    /// Bytes per second of transfers of 1 MiB.
    tcp_bytes_per_s: f64,
    send_bytes_per_s: f64,
    /// The second as a part of the first, within a round.
    bandwidth_ratio: f64,
    /// The same by provider of libfabric.
    ofi_bytes_per_s: BTreeMap<&'static str, f64>,
    /// The same where it writes straight into exported pages.
    ofi_direct_bytes_per_s: BTreeMap<&'static str, f64>,
    /// What others make of the same sides.
    others: Vec<Other>,
    /// Who of them is not shown, and why.
    missing: Vec<String>,
}

/// Two nodes, an export of one and its import through the other.
struct World {
    importer: Node,
    import: Import,
    _export: Export,
    _exporter: Node,
    receiver: PrivateDaemon,
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
    fn new(
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
        Ok(World {
            importer,
            import,
            _export: export,
            _exporter: exporter,
            receiver,
            _sender: sender,
        })
    }

    fn packets(&self) -> u64 {
        self.importer.counters().get(NET_PACKETS)
    }

    /// One operation.
    fn play(&self, subject: Subject) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        match subject {
            Subject::Tcp(_) => {}
            Subject::Send | Subject::Over(_) => {
                self.import.send_fenced(0, &[7; 8]).map_err(|error| text(&error))?;
            }
            Subject::SendThenFence => {
                self.import.send(0, &[7; 8]).map_err(|error| text(&error))?;
                self.import.fence().map_err(|error| text(&error))?;
            }
            Subject::Read => {
                self.import.read(0, &mut [0; 8]).map_err(|error| text(&error))?;
            }
            Subject::Bulk { combine } => self.stores(8, combine)?,
            Subject::Sparse { combine } => self.stores(64, combine)?,
            Subject::Import => drop(import(&self.importer)?),
        }
        Ok(())
    }

    /// [`STORES`] words of 8 bytes, `stride` apart, and a fence.
    fn stores(&self, stride: usize, combine: bool) -> Result<(), String> {
        let combining = if combine { Combining::ON } else { Combining::OFF };
        let writer = self.import.auto_update(combining).map_err(|error| error.to_string())?;
        for i in 0..STORES {
            writer.store(i * stride, &i.to_ne_bytes()).map_err(|error| error.to_string())?;
        }
        writer.fence().map_err(|error| error.to_string())
    }

    /// [`TRANSFERS`] of [`LEN`], and a fence; seconds per transfer.
    fn rate(&self, window: Duration) -> Result<f64, String> {
        let source = vec![5; LEN];
        let mut failed = None;
        let time = time_under_way(window, || {
            let sent = (0..TRANSFERS).try_for_each(|_| self.import.send(0, &source));
            failed = sent.err().map(|error| error.to_string());
            if failed.is_none() {
                failed = self.import.fence().err().map(|error| error.to_string());
            }
        });
        failed.map_or(Ok(()), Err)?;
        Ok((LEN * TRANSFERS) as f64 / time.as_secs_f64())
    }
}

/// Two nodes per provider of libfabric; none where it is not installed. `direct`: as the cluster file says it.
fn fabrics(
    program: &Path,
    scratch: &Path,
    on: (Pair, &Sides),
    direct: &str,
) -> Result<BTreeMap<&'static str, World>, Failure> {
    let offered = vmmc::fabric::providers().map(|(_, providers)| providers).unwrap_or_default();
    let wanted = SUBJECTS.iter().filter_map(|(_, _, subject)| match subject {
        Subject::Over(provider) if offered.iter().any(|it| it.name == *provider) => Some(*provider),
        _ => None,
    });
    wanted
        .map(|provider| Ok((provider, World::new(program, scratch, on, Some((provider, direct)))?)))
        .collect()
}

/// Of an operation of a stream that is under way: what a first window of as long takes is not counted, in which TCP finds
/// out how much its buffers should have.
fn time_under_way(window: Duration, mut operation: impl FnMut()) -> Duration {
    time_of(window, &mut operation);
    time_of(window, operation)
}

fn import(node: &Node) -> Result<Import, String> {
    let import = node.import("perf").node("a").rights(Rights::WRITE | Rights::READ);
    import.timeout(Duration::from_secs(10)).open().map_err(|error| error.to_string())
}

/// Bare TCP in the same shape: transfers to a thread on the other processor that receives into one
/// buffer, and an answer of one byte.
fn tcp_rate(pair: Pair, sides: &Sides, window: Duration) -> Result<f64, Io> {
    let listener = sides.listen()?;
    let to = listener.local_addr().context(|| "listening".into())?;
    let mut stream = TcpStream::connect(to).context(|| "connecting".into())?;
    let (mut other, _) = listener.accept().context(|| "accepting".into())?;
    stream.set_nodelay(true).context(|| "TCP_NODELAY".into())?;
    let receiver = std::thread::spawn(move || -> Result<(), Io> {
        if !pair.is_single() {
            cpu::pin(pair.b)?;
        }
        let mut buffer = vec![0; LEN];
        loop {
            for i in 0..TRANSFERS {
                if let Err(error) = other.read_exact(&mut buffer) {
                    // The end of the measurement is the end of the stream, between two samples.
                    let end = i == 0 && error.kind() == std::io::ErrorKind::UnexpectedEof;
                    return if end { Ok(()) } else { Err(error).context(|| "receiving".into()) };
                }
            }
            other.write_all(&[1]).context(|| "answering".into())?;
        }
    });
    let source = vec![5; LEN];
    let mut failed = None;
    let time = time_under_way(window, || {
        let sent = (0..TRANSFERS).try_for_each(|_| stream.write_all(&source));
        failed = sent.and_then(|()| stream.read_exact(&mut [0])).err();
    });
    drop(stream);
    if let Ok(result) = receiver.join() {
        result?;
    }
    match failed {
        Some(error) => Err(error).context(|| "sending".into()),
        None => Ok((LEN * TRANSFERS) as f64 / time.as_secs_f64()),
    }
}

/// Measures, prints, saves.
pub(super) fn run(options: &Options, netns: &[String]) -> Result<(), Failure> {
    let pair = options.pair();
    let head = Head::new("perf net", options, pair);
    head.print();
    let program = artefacts::find_or_build(&[Artefact::Daemon], true)?.swap_remove(0);
    let sides = Sides::new(netns)?;
    text::emit(&format!("two nodes: {}\n\n", sides.describe()));
    let scratch = Scratch::new()?;
    let (others, mut missing) = others::find(scratch.path());
    cpu::pin(pair.a)?;
    let world = World::new(&program, scratch.path(), (pair, &sides), None)?;
    let [fabrics, directs] =
        ["off", "on"].map(|it| fabrics(&program, scratch.path(), (pair, &sides), it));
    let (fabrics, directs) = (fabrics?, directs?);
    let subjects: Vec<_> = SUBJECTS
        .iter()
        .filter(|(_, _, subject)| match subject {
            Subject::Over(provider) => fabrics.contains_key(provider),
            _ => true,
        })
        .collect();
    let failed = |error: String| NetError(error, world.receiver.last_words());
    let mut progress = Progress::new(false);
    let plan = Plan { sample: Duration::from_micros(1), ..options.plan() };
    let window = Duration::from_millis(if options.quick { 40 } else { 300 });
    let mut all: Vec<(Rounds, Option<f64>)> = vec![(Rounds::default(), None); subjects.len()];
    let (mut tcp, mut ours) = (Vec::new(), Vec::new());
    let mut theirs: Vec<Vec<[f64; 2]>> = vec![Vec::new(); others.len()];
    let no_rates = || fabrics.keys().map(|&it| (it, Vec::new())).collect::<BTreeMap<_, _>>();
    let (mut over, mut direct) = (no_rates(), no_rates());
    for round in 1..=options.rounds() {
        for ((_, name, subject), (rounds, packets)) in subjects.iter().zip(&mut all) {
            progress.step(&format!("round {round} of {}: {name}", options.rounds()));
            let (mut samples, batch) = if let Subject::Tcp(kind) = subject {
                let mut game = PingPong::start_at(*kind, pair.b, || sides.listen())?;
                plan.round(|| game.round_trip())?
            } else {
                let world = match subject {
                    Subject::Over(provider) => fabrics.get(provider).unwrap_or(&world),
                    _ => &world,
                };
                let before = world.packets();
                let mut count = 0u64;
                let taken = plan.round(|| {
                    count += 1;
                    world.play(*subject)
                });
                let taken = taken.map_err(failed)?;
                *packets = Some((world.packets() - before) as f64 / count as f64);
                taken
            };
            let parts = match subject {
                // Half a round trip; one of many stores; a whole operation.
                Subject::Tcp(_)
                | Subject::Send
                | Subject::SendThenFence
                | Subject::Over(_)
                | Subject::Read => 2.0,
                Subject::Bulk { .. } | Subject::Sparse { .. } => STORES as f64,
                Subject::Import => 1.0,
            };
            samples.iter_mut().for_each(|sample| *sample /= parts);
            rounds.add(samples, batch);
        }
        progress.step(&format!("round {round} of {}: bandwidth", options.rounds()));
        tcp.push(tcp_rate(pair, &sides, window)?);
        ours.push(world.rate(window).map_err(failed)?);
        for (worlds, all) in [(&fabrics, &mut over), (&directs, &mut direct)] {
            for (provider, rates) in all {
                if let Some(world) = worlds.get(provider) {
                    rates.push(world.rate(window).map_err(failed)?);
                }
            }
        }
        // They take seconds each: three rounds show them well enough.
        for ((name, how), took) in others.iter().zip(&mut theirs).filter(|_| round <= 3) {
            progress.step(&format!("round {round} of {}: {name}", options.rounds()));
            took.extend(how.measure(&sides, pair));
        }
    }
    progress.clear();
    let spin = all.first().map(|(rounds, _)| rounds.clone()).unwrap_or_default();
    let latency = subjects.iter().zip(&all).map(|(&&(id, name, _), (rounds, packets))| Line {
        id,
        name,
        latency: rounds.latency(),
        ratio_to_tcp_spin: stats::ratio(rounds, &spin),
        packets: *packets,
    });
    for ((name, _), _) in others.iter().zip(&theirs).filter(|(_, took)| took.is_empty()) {
        missing.push(format!("{name}: it is here, and came to no end between these two sides"));
    }
    let report = Report {
        head,
        latency: latency.collect(),
        bandwidth_ratio: stats::median(ours.iter().zip(&tcp).map(|(a, b)| a / b).collect()),
        ofi_bytes_per_s: medians(over),
        ofi_direct_bytes_per_s: medians(direct),
        tcp_bytes_per_s: stats::median(tcp),
        send_bytes_per_s: stats::median(ours),
        others: others
            .iter()
            .zip(theirs)
            .filter(|(_, took)| !took.is_empty())
            .map(|(&(name, _), took)| {
                let [small, large] = [0, 1].map(|i| took.iter().map(|it| it[i]).collect());
                let bytes_per_s = LEN as f64 / stats::median(large) * 1e9;
                Other { name, one_way_ns: stats::median(small), bytes_per_s }
            })
            .collect(),
        missing,
    };
    print(&report);
    Ok(options.save(&report)?)
}

fn medians(rates: BTreeMap<&'static str, Vec<f64>>) -> BTreeMap<&'static str, f64> {
    rates.into_iter().map(|(it, rates)| (it, stats::median(rates))).collect()
}

fn print(report: &Report) {
    let heading = ["one way, or one operation", "median", "p99", "bare TCP = 1", "packets"];
    let mut table = Table::new(&heading, &[1, 2, 3, 4]);
    for line in &report.latency {
        table.row([
            line.name.to_owned(),
            text::nanos(line.latency.median_ns),
            text::nanos(line.latency.p99_ns),
            text::three(line.ratio_to_tcp_spin),
            line.packets.map(text::three).unwrap_or_default(),
        ]);
    }
    let spin = report.latency.first().map_or(f64::NAN, |line| line.latency.median_ns);
    for other in &report.others {
        table.row([
            format!("{}, 8 B (1 MiB: {})", other.name, text::rate(other.bytes_per_s)),
            text::nanos(other.one_way_ns),
            String::new(),
            text::three(other.one_way_ns / spin),
            String::new(),
        ]);
    }
    let missing: String = report.missing.iter().map(|why| format!("not shown: {why}\n")).collect();
    let send = report.latency.iter().find(|line| line.id == "send");
    let ratio = send.map_or(f64::NAN, |line| line.ratio_to_tcp_spin);
    let rate = |it: &str, how, rate| format!(", over libfabric's {it}{how} {}", text::rate(rate));
    let over = report.ofi_bytes_per_s.iter().map(|(it, &per_s)| rate(it, "", per_s));
    let direct = report.ofi_direct_bytes_per_s.iter();
    let direct = direct.map(|(it, &per_s)| rate(it, " straight into pages", per_s));
    let over: String = over.chain(direct).collect();
    text::emit(&format!(
        "{table}{missing}\n1 MiB: DU {}{over}, bare TCP {}\n\nbudgets: 8 B {} of bare TCP that polls (at most 1.3); \
         1 MiB {} of its bandwidth (at least 0.95)\n",
        text::rate(report.send_bytes_per_s),
        text::rate(report.tcp_bytes_per_s),
        text::three(ratio),
        text::three(report.bandwidth_ratio),
    ));
}
