//! What the network interface of a node has counted, as `shrimp stat` sees it.

#![allow(unreachable_pub)]

use std::path::Path;
use std::time::{Duration, Instant};
use vmmc::control::Connection;
use vmmc::control::codec;
use vmmc::control::connect::Incoming;
use vmmc::control::message::{Event, Hello, Request, Role, Snapshot};
use vmmc::counters::Counters;
use vmmc::id::RequestId;
use vmmc::layout::page;
use vmmc::mem::View;
use vmmc::sys::mmap::{Access, GuardedMapping};

/// The value of a counter whose name begins with `ni_`, by the socket of the node's daemon.
pub fn counted(socket: &Path, counter: &str) -> u64 {
    let daemon = Connection::open_existing(socket).unwrap();
    daemon
        .hello(Hello { role: Role::Tool, program: "test".to_owned(), resume: None }, &[])
        .unwrap();
    let ask = |request: Request| -> Incoming {
        daemon.send(&request, &[]).unwrap();
        daemon.receive_until(Instant::now() + Duration::from_secs(120)).unwrap()
    };
    let mut listing = ask(Request::Snapshot { request: RequestId(1) });
    let Event::Listing { len, .. } = listing.event else { panic!("{:?}", listing.event) };
    let mut bytes = vec![0; len as usize];
    let read = rustix::io::pread(listing.fds.take().unwrap(), &mut bytes, 0).unwrap();
    let all: Snapshot = codec::decode(&bytes[..read]).unwrap();
    let clients = all.clients.iter().filter(|client| client.peer.pid == all.pid);
    let mut pages = clients.filter_map(|client| {
        let mut answer = ask(Request::Page { request: RequestId(2), client: client.peer.client });
        GuardedMapping::new(&answer.fds.take()?, page::LEN, Access::Read).ok()
    });
    let value = pages.find_map(|page| {
        // SAFETY: the mapping lives as long as the view, and only views look into it.
        let view = unsafe { View::from_raw(page.as_ptr(), page.len()) };
        let counters = Counters::new(view).snapshot();
        counters.into_iter().find(|(name, _)| name == counter).map(|(_, value)| value)
    });
    value.unwrap_or_else(|| panic!("no counter {counter}"))
}
