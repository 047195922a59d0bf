//! Export and import: one process makes a buffer known, another writes a message into it.
//!
//! ```text
//! cargo run -p vmmc --example hello
//! ```
//!
//! The program starts itself a second time as the sender. There is no receive call: the message
//! is in the receiver's memory, and a flag word says so.

use std::error::Error;
use std::time::Duration;
use vmmc::{Node, Region, Rights, Who};

/// Where the flag is in the buffer; the message lies before it.
const FLAG: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        None => receive(),
        Some(name) => send(&name),
    }
}

fn receive() -> Result<(), Box<dyn Error>> {
    let node = Node::connect()?; // starts a daemon if there is none
    let name = format!("hello-{}", std::process::id());
    let export = node
        .export(Region::new(4096)?)
        .name(name.as_str())
        .grant(Who::SameUser, Rights::WRITE)
        .open()?;

    let mut sender = std::process::Command::new(std::env::current_exe()?).arg(&name).spawn()?;

    let len = export.flag32(FLAG)?.wait_until(|len| len > 0, Some(Duration::from_secs(10)))?;
    let mut text = vec![0; len as usize];
    export.read(0, &mut text)?;
    println!("received: {}", String::from_utf8_lossy(&text));

    sender.wait()?;
    export.unexport()?; // hands the memory back, private again
    Ok(())
}

fn send(name: &str) -> Result<(), Box<dyn Error>> {
    let text = b"Hello, world!";
    let node = Node::connect()?;
    let import = node.import(name).rights(Rights::WRITE).open()?; // waits until it is exported
    import.send(0, text)?; // no system call
    import.flag32(FLAG)?.signal(text.len() as u32)?; // none either, unless the receiver sleeps
    Ok(())
}
