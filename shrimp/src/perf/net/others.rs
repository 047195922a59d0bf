//! What others make of the same two sides: `fi_pingpong` over libfabric's providers, and MPIs held to TCP.

use super::sides::Sides;
use crate::children::{self, Child};
use crate::cpu::Pair;
use crate::perf::mpi;
use serde::Serialize;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Lengths in bytes for latency and for bandwidth.
const SIZES: [usize; 2] = [8, 1 << 20];
/// For one of them to come up, or to finish.
const PATIENCE: Duration = Duration::from_secs(30);

/// What one of them took.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Other {
    pub(super) name: &'static str,
    /// Half a round trip of 8 B.
    pub(super) one_way_ns: f64,
    /// Of 1 MiB, by half a round trip: nothing else is under way meanwhile.
    pub(super) bytes_per_s: f64,
}

/// One of them.
#[derive(Debug)]
pub(super) enum How {
    /// A provider of libfabric.
    Fabric(&'static str),
    /// Launcher and program of an MPI, and what holds it to TCP.
    Mpi(mpi::Mpi, &'static [(&'static str, &'static str)]),
}

/// Those that are here, by name; and why others are not.
pub(super) fn find(scratch: &Path) -> (Vec<(&'static str, How)>, Vec<String>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let installed = Command::new("fi_pingpong")
        .arg("-h")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if installed.is_ok() {
        found.push(("fi_pingpong over net", How::Fabric("net")));
        found.push(("fi_pingpong over tcp;ofi_rxm", How::Fabric("tcp;ofi_rxm")));
    } else {
        missing.push("fi_pingpong is not here (Debian package libfabric-bin)".to_owned());
    }
    match mpi::compile("mpich", scratch) {
        // Debian's is built on UCX.
        Some(mpi) => found.push(("MPICH over TCP", How::Mpi(mpi, &[("UCX_TLS", "tcp")]))),
        None => {
            missing.push("MPICH is not here or does not work (Debian package mpich)".to_owned())
        }
    }
    let only_tcp: &[_] = &[("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "self,tcp")];
    match mpi::compile("openmpi", scratch) {
        Some(mpi) => found.push(("Open MPI over TCP", How::Mpi(mpi, only_tcp))),
        None => missing.push("Open MPI is not here or does not work".to_owned()),
    }
    (found, missing)
}

impl How {
    /// Nanoseconds one way of 8 B and of 1 MiB; nothing when it does not work.
    pub(super) fn measure(&self, sides: &Sides, pair: Pair) -> Option<[f64; 2]> {
        match self {
            How::Fabric(provider) => {
                let [small, large] = SIZES.map(|size| fi_pingpong(provider, size, sides, pair));
                Some([small?, large?])
            }
            How::Mpi(mpi, settings) => {
                let [small, large] = SIZES.map(|size| size.to_string());
                let arguments = ["0.5", "pingpong", &small, &large];
                let near = sides.near_starter();
                let text = if mpi.is_open() {
                    let agent = sides.agent(mpi.program.parent()?).ok()?;
                    let hosts = [sides.near, sides.host];
                    mpi.run_on_hosts(&near, hosts, &agent, pair, &arguments, settings)?
                } else {
                    mpi.run_apart(&[near, sides.starter()], pair, &arguments, settings)?
                };
                let of = |size: &str| {
                    let line = format!("pingpong {size} ");
                    text.lines().find_map(|text| text.strip_prefix(&line))?.parse().ok()
                };
                Some([of(&small)?, of(&large)?])
            }
        }
    }
}

fn fi_pingpong(provider: &str, size: usize, sides: &Sides, pair: Pair) -> Option<f64> {
    let count = if size > 4096 { "50" } else { "500" };
    let size = size.to_string();
    let arguments = ["-p", provider, "-e", "rdm", "-I", count, "-S", &size];
    let side = |starter: &[String], cpu: usize, to: Option<String>| {
        let words: Vec<String> = starter.iter().cloned().chain(["fi_pingpong".into()]).collect();
        let (program, rest) = words.split_first()?;
        let mut command = children::command(Path::new(program), (!pair.is_single()).then_some(cpu));
        command.args(rest).args(arguments).args(to);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Child::spawn(command, "fi_pingpong").ok()
    };
    let server = side(&sides.starter(), pair.b, None)?;
    let end = Instant::now() + PATIENCE;
    // It says nothing when it listens: who comes too early ends at once, and comes again.
    let found = loop {
        let client = side(&[], pair.a, Some(sides.host.to_string()))?;
        let text = client.output_within(PATIENCE).ok()?;
        // bytes, #sent, #ack, total, time, MB/sec, usec/xfer, Mxfers/sec
        let number = |line: &str| line.split_ascii_whitespace().nth(6)?.parse::<f64>().ok();
        match text.lines().nth(1).and_then(number) {
            Some(us) => break Some(us * 1000.0),
            None if Instant::now() >= end => break None,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    drop(server);
    found
}
