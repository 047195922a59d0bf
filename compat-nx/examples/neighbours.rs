//! Messages round a ring, and a sum: `shrimp run -n 4 -- target/debug/examples/neighbours`

use nx::{Nx, Reduction};

/// What every node runs.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nx = Nx::join()?; // every process of the job is a node, and runs this
    let (node, nodes) = (nx.node(), nx.nodes());

    nx.csend(1, format!("hello from {node}").as_bytes(), (node + 1) % nodes)?;
    let mut text = [0; 64];
    let info = nx.crecv(1, &mut text)?;
    println!("{node}: {:?} of node {}", str::from_utf8(&text[..info.count])?, info.node);

    let mut sum = [f64::from(node)];
    nx.reduce(Reduction::Sum, &mut sum)?; // gdsum
    println!("{node}: the sum is {}", sum[0]);
    nx.gsync()?;
    Ok(())
}
