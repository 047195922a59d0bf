//! Automatic update: a page bound to another process's page. Plain stores; nothing is sent.
//!
//! ```text
//! cargo run -p vmmc --example shared_page
//! ```
//!
//! Two processes play ping-pong with two words of one page.

use std::error::Error;
use std::time::{Duration, Instant};
use vmmc::{Node, Region, Rights, Who};

const PING: usize = 0;
const PONG: usize = 128; // words with different writers lie on different cache lines
const NOTE: usize = 256;
const ROUNDS: u32 = 10_000;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        None => serve(),
        Some(name) => play(&name),
    }
}

fn serve() -> Result<(), Box<dyn Error>> {
    let node = Node::connect()?;
    let name = format!("page-{}", std::process::id());
    let export = node
        .export(Region::new(4096)?)
        .name(name.as_str())
        .grant(Who::SameUser, Rights::BIND)
        .open()?;
    let mut player = std::process::Command::new(std::env::current_exe()?).arg(&name).spawn()?;

    let (ping, pong) = (export.flag32(PING)?, export.flag32(PONG)?);
    for round in 1..=ROUNDS {
        ping.wait_until(|value| value == round, PATIENCE)?;
        pong.signal(round)?;
    }
    let mut note = [0; 20];
    export.read(NOTE, &mut note)?;
    println!("the other side wrote: {}", String::from_utf8_lossy(&note));
    player.wait()?;
    Ok(())
}

fn play(name: &str) -> Result<(), Box<dyn Error>> {
    let node = Node::connect()?;
    let import = node.import(name).rights(Rights::BIND).open()?;
    let page = import.bind(0..4096)?;

    page.write(NOTE, b"no send in this code")?;
    let (ping, pong) = (page.flag32(PING)?, page.flag32(PONG)?);
    let start = Instant::now();
    for round in 1..=ROUNDS {
        ping.signal(round)?;
        pong.wait_until(|value| value == round, PATIENCE)?;
    }
    println!("{:?} per round trip", start.elapsed() / ROUNDS);

    page.unbind()?.write(NOTE, b"this stays here only")?; // local from here on
    Ok(())
}
