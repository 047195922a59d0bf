//! Automatic update between nodes: a page that two nodes draw in.
//!
//! ```text
//! cargo run -p vmmc --example drawing -- b      # on node a
//! cargo run -p vmmc --example drawing -- a      # on node b
//! ```
//!
//! As on the hardware there are two copies of the page, one on each node, and each side's stores go to both: to
//! its own by itself, to the other by the writer of [`vmmc::Import::auto_update`], which combines
//! consecutive stores into packets. At the end both hold, and print, the same picture.

use std::error::Error;
use std::time::Duration;
use vmmc::{Combining, Node, Region, Rights, Who};

const WIDTH: usize = 64;
const HEIGHT: usize = 16;
/// Says that the other side has drawn all it will.
const DONE: usize = 2048;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let other = std::env::args().nth(1).ok_or("usage: drawing NODE (the other one)")?;
    let node = Node::connect()?;
    let page = node
        .export(Region::new(4096)?)
        .name("drawing")
        .grant(Who::SameUser, Rights::WRITE)
        .open()?;
    let import = node.import("drawing").node(other.as_str()).timeout(PATIENCE).open()?;
    let writer = import.auto_update(Combining::within(Duration::from_millis(1)))?;

    // Each side draws a wave in a phase of its own, with the last letter of the other's name.
    let mark = other.bytes().last().unwrap_or(b'*');
    let phase = f64::from(mark) * 1.3;
    for column in 0..WIDTH {
        let height = ((column as f64 / 6.0 + phase).sin() + 1.0) / 2.0;
        let row = (height * (HEIGHT - 1) as f64).round() as usize;
        // A column of the wave's own, so that no two nodes store to one place.
        if column % 2 == usize::from(mark % 2) {
            for line in row..HEIGHT {
                let at = line * WIDTH + column;
                page.write(at, &[mark])?;
                writer.store(at, &[mark])?;
            }
        }
    }
    writer.fence()?;
    import.flag32(DONE)?.signal(1)?;
    page.flag32(DONE)?.wait_until(|done| done == 1, Some(PATIENCE))?;

    let mut picture = [0; WIDTH * HEIGHT];
    page.read(0, &mut picture)?;
    for line in picture.chunks(WIDTH) {
        let line: String =
            line.iter().map(|&dot| if dot == 0 { ' ' } else { dot.into() }).collect();
        println!("|{line}|");
    }
    Ok(())
}
