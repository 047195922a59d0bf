//! Ping-pong between two nodes: half a round trip by message size.
//!
//! ```text
//! shrimp run -n 2 -- target/release/examples/ping
//! ```

use nx::Nx;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nx = Nx::join()?;
    let other = 1 - nx.node();
    for len in [0usize, 8, 40, 64, 256, 1024, 4000, 8192, 65536, 1 << 20, 4 << 20] {
        let rounds = if len < 5000 { 100_000 } else { (200 << 20) / len };
        let mut bytes = vec![1u8; len];
        for _ in 0..rounds / 10 + 3 {
            turn(&nx, &mut bytes, other)?;
        }
        nx.gsync()?;
        let start = Instant::now();
        for _ in 0..rounds {
            turn(&nx, &mut bytes, other)?;
        }
        let half = start.elapsed().as_secs_f64() / rounds as f64 / 2.0;
        if nx.node() == 0 {
            println!("{len:8} bytes {:10.0} ns {:8.0} MB/s", half * 1e9, len as f64 / half / 1e6);
        }
    }
    Ok(())
}

fn turn(nx: &Nx, bytes: &mut [u8], other: i32) -> Result<(), nx::NxError> {
    if nx.node() == 0 {
        nx.csend(1, bytes, other)?;
        nx.crecv(1, bytes)?;
    } else {
        nx.crecv(1, bytes)?;
        nx.csend(1, bytes, other)?;
    }
    Ok(())
}
