//! Processes of nodes, and somebody honest among them.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use crate::cluster::{KEY, Place};
use crate::common::WATCHDOG;
use std::io::{Read, Write};
use std::net::TcpStream;
use vmmc::config::{Config, DaemonStart};
use vmmc::id::{Rights, Who};
use vmmc::transport::net::frame::{HEADER_LEN, Header};
use vmmc::{Export, Import, Node, Region};

/// [`KEY`] as bytes.
pub fn key() -> [u8; 32] {
    let digits = KEY.as_bytes();
    std::array::from_fn(|i| {
        let pair = std::str::from_utf8(&digits[2 * i..2 * i + 2]).unwrap();
        u8::from_str_radix(pair, 16).unwrap()
    })
}

pub fn connect(place: &Place) -> Node {
    connect_with(place, |_| {})
}

pub fn connect_with(place: &Place, set: impl FnOnce(&mut Config)) -> Node {
    let mut config = Config::from_env().unwrap();
    config.socket = Some(place.daemon.path.clone());
    config.daemon = DaemonStart::Never;
    set(&mut config);
    Node::builder().config(config).connect().unwrap()
}

pub fn export(node: &Node, name: &str, len: usize) -> Export {
    let export = node.export(Region::new(len).unwrap()).name(name);
    export.grant(Who::Anyone, Rights::WRITE | Rights::READ).open().unwrap()
}

pub fn import(node: &Node, name: &str) -> Import {
    let import = node.import(name).node("a").rights(Rights::WRITE | Rights::READ);
    import.timeout(WATCHDOG).open().unwrap()
}

/// Somebody honest, who must not notice anything.
pub struct Bystander {
    export: Export,
    import: Import,
    round: std::cell::Cell<u32>,
    pub nodes: (Node, Node),
}

impl Bystander {
    pub fn new(a: &Place, b: &Place) -> Bystander {
        Bystander::of(connect(a), connect(b))
    }

    /// The same, of processes that may have other things to do.
    pub fn of(exporter: Node, importer: Node) -> Bystander {
        let export = export(&exporter, "bystander", 4096);
        let import = import(&importer, "bystander");
        Bystander { export, import, round: 0.into(), nodes: (exporter, importer) }
    }

    pub fn is_well(&self) {
        let round = self.round.get() + 1;
        self.round.set(round);
        self.import.send(64, &round.to_ne_bytes()).unwrap();
        self.import.flag32(0).unwrap().signal(round).unwrap();
        let flag = self.export.flag32(0).unwrap();
        flag.wait_until(|seen| seen == round, Some(WATCHDOG)).unwrap();
        let mut seen = [0; 4];
        self.export.read(64, &mut seen).unwrap();
        assert_eq!(u32::from_ne_bytes(seen), round);
    }
}

/// A data connection in raw frames.
pub struct Raw<S = TcpStream>(pub S);

impl<S: Read + Write> Raw<S> {
    pub fn say(&mut self, header: Header, body: &[u8]) {
        self.0.write_all(&header.encode()).unwrap();
        self.0.write_all(body).unwrap();
    }

    pub fn hear(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut head = [0; HEADER_LEN];
        self.0.read_exact(&mut head).ok()?;
        let header = Header::decode(&head).unwrap();
        let mut body = vec![0; header.body_len() as usize];
        self.0.read_exact(&mut body).ok()?;
        Some((header, body))
    }
}
