//! `rpc-peers`: one service in each of today's RPC systems, for `shrimp perf rpc` to stand beside.
//!
//! ```text
//! rpc-peers serve PEER ADDRESS                                 says `ready`; serves until its input ends
//! rpc-peers call PEER ADDRESS ROUND_US SAMPLES PROC:BYTES...   one line of samples for each
//! ```
//!
//! The service is figure 8's: a procedure without arguments, and two with one INOUT argument, which the
//! handler leaves as it is or writes. Where a system has no INOUT, the argument travels there and
//! back. Callers keep their argument in memory of their own: it is copied into the request, and the
//! result out of the reply, as generated stubs do for everybody's `&mut [u8]`.

mod capnp;
mod iceoryx;
#[path = "../../../shrimp/src/stats.rs"]
#[allow(dead_code)]
mod stats;
mod tarpc;
mod tonic;

use clap::{Parser, ValueEnum};
use std::error::Error;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What the handler does with the argument; as `shrimp perf rpc` numbers its procedures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Procedure {
    Null = 0,
    Leave = 1,
    Write = 2,
}

/// What a handler that writes leaves in every byte.
const WRITTEN: u8 = 0x5a;

impl Procedure {
    fn from_number(number: u32) -> Option<Procedure> {
        [Procedure::Null, Procedure::Leave, Procedure::Write]
            .into_iter()
            .find(|it| *it as u32 == number)
    }

    /// The handler, for systems whose argument is memory that it may change.
    fn handle(number: u32, data: &mut [u8]) {
        if number == Procedure::Write as u32 {
            data.fill(WRITTEN);
        }
    }
}

/// A client of one system.
trait Caller {
    /// One call: `data` is the argument, and the result when it returns.
    fn call(&mut self, procedure: Procedure, data: &mut [u8]) -> Result<()>;
}

/// Copies a result to where the caller wants it.
fn take_result(result: &[u8], data: &mut [u8]) -> Result<()> {
    if result.len() != data.len() {
        return Err(
            format!("a result of {} B for an argument of {} B", result.len(), data.len()).into()
        );
    }
    data.copy_from_slice(result);
    Ok(())
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Peer {
    /// tarpc over a Unix socket, with bincode
    Tarpc,
    /// gRPC by tonic over a Unix socket
    Tonic,
    /// Cap'n Proto RPC over a Unix socket
    Capnp,
    /// iceoryx2 request-response, both sides polling
    Iceoryx2,
}

impl Peer {
    fn serve(self, address: &Path) -> Result<()> {
        match self {
            Peer::Tarpc => tarpc::serve(address),
            Peer::Tonic => tonic::serve(address),
            Peer::Capnp => capnp::serve(address),
            Peer::Iceoryx2 => iceoryx::serve(address),
        }
    }

    fn connect(self, address: &Path) -> Result<Box<dyn Caller>> {
        Ok(match self {
            Peer::Tarpc => Box::new(tarpc::Client::connect(address)?),
            Peer::Tonic => Box::new(tonic::Client::connect(address)?),
            Peer::Capnp => Box::new(capnp::Client::connect(address)?),
            Peer::Iceoryx2 => Box::new(iceoryx::Client::connect(address)?),
        })
    }
}

/// The measured service in today's RPC systems
#[derive(Debug, Parser)]
enum Arguments {
    /// Serve until standard input ends
    Serve { peer: Peer, address: PathBuf },
    /// Measure calls
    Call {
        peer: Peer,
        address: PathBuf,
        /// Microseconds per round
        round_us: u64,
        /// Samples per round, at most
        samples: usize,
        /// Number of the procedure, and bytes of its argument
        #[arg(required = true, value_parser = parse_cell)]
        cells: Vec<(Procedure, usize)>,
    },
}

fn parse_cell(text: &str) -> std::result::Result<(Procedure, usize), String> {
    let parts = text.split_once(':').and_then(|(number, bytes)| {
        Some((Procedure::from_number(number.parse().ok()?)?, bytes.parse().ok()?))
    });
    parts.ok_or_else(|| format!("expected PROCEDURE:BYTES such as 1:100, got {text:?}"))
}

/// Tells who started us that calls may come.
fn say_ready() -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    Ok(out.flush()?)
}

/// Returns when standard input is at its end: whoever started us wants no more, or has gone.
fn wait_for_end() {
    let mut rest = [0; 64];
    while matches!(std::io::stdin().read(&mut rest), Ok(1..)) {}
}

/// Ends this process when standard input is at its end, for servers that have nothing to tidy up.
fn leave_at_end() {
    std::thread::spawn(|| {
        wait_for_end();
        std::process::exit(0);
    });
}

/// A runtime of one thread: what a program that wants latency chooses.
fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Looks at one call of each kind before it is measured.
fn check(caller: &mut dyn Caller, procedure: Procedure, bytes: usize) -> Result<()> {
    let mut data: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
    let expected = match procedure {
        Procedure::Write => vec![WRITTEN; bytes],
        Procedure::Null | Procedure::Leave => data.clone(),
    };
    caller.call(procedure, &mut data)?;
    if data != expected {
        return Err(format!("{procedure:?} of {bytes} B has another result than expected").into());
    }
    Ok(())
}

fn main() -> Result<()> {
    match Arguments::parse() {
        Arguments::Serve { peer, address } => peer.serve(&address),
        Arguments::Call { peer, address, round_us, samples, cells } => {
            let mut caller = peer.connect(&address)?;
            let plan = stats::Plan {
                round: Duration::from_micros(round_us),
                sample: Duration::from_micros(3),
                max_samples: samples,
            };
            for (procedure, bytes) in cells {
                check(&mut *caller, procedure, bytes)?;
                let mut data = vec![0; bytes];
                let (samples, batch) = plan.round(|| caller.call(procedure, &mut data))?;
                print!("{bytes} {batch}");
                for sample in samples {
                    print!(" {sample:.1}");
                }
                println!();
            }
            Ok(())
        }
    }
}
