//! Notifications: a handler runs in the receiver for each message, after its data is there.
//!
//! ```text
//! cargo run -p vmmc --example counter
//! ```
//!
//! Three senders add to a counter that only the receiver writes. Each sends its number with a
//! notification; the handler adds it up. The end of a sender is an event in the same queue.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vmmc::{Event, Node, Region, Rights, Who};

const SENDERS: u64 = 3;
const MESSAGES: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        None => count(),
        Some(name) => send(&name),
    }
}

fn count() -> Result<(), Box<dyn Error>> {
    let node = Node::connect()?;
    let name = format!("counter-{}", std::process::id());
    let (sum, gone) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (sum_in, gone_in) = (sum.clone(), gone.clone());
    let export = node
        .export(Region::new(4096)?)
        .name(name.as_str())
        .grant(Who::SameUser, Rights::WRITE)
        .handler(move |notification| {
            match notification.event {
                // The last word of the message comes with its notification.
                Event::Message { last_word, .. } => sum_in.fetch_add(last_word, Ordering::Relaxed),
                _ => gone_in.fetch_add(1, Ordering::Relaxed), // a sender is done, or died
            };
        })
        .open()?;

    let mut senders = Vec::new();
    for _ in 0..SENDERS {
        senders.push(std::process::Command::new(std::env::current_exe()?).arg(&name).spawn()?);
    }
    // Handlers run in the thread that waits here.
    node.run_until(|| gone.load(Ordering::Relaxed) == SENDERS, None)?;
    println!("the counter stands at {}", sum.load(Ordering::Relaxed));
    assert_eq!(sum.load(Ordering::Relaxed), SENDERS * MESSAGES * (MESSAGES + 1) / 2);

    for mut sender in senders {
        sender.wait()?;
    }
    drop(export);
    Ok(())
}

fn send(name: &str) -> Result<(), Box<dyn Error>> {
    let node = Node::connect()?;
    let import = node.import(name).rights(Rights::WRITE).open()?;
    for number in 1..=MESSAGES {
        import.send_with_notify(0, &number.to_ne_bytes())?; // waits while the queue is full
    }
    import.unimport()?;
    Ok(())
}
