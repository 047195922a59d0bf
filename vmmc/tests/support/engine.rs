//! Every engine under the same tests: an exporter and an importer over each.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

#[path = "interface.rs"]
mod interface;

use crate::cluster::{self, Place};
use crate::common::{Daemon, PATIENCE};
use crate::proxy::Proxy;
use std::time::Duration;
use vmmc::counters::index::{DIRECT_REFUSED, DIRECT_WRITES, FABRIC_PACKETS, NET_PACKETS};
use vmmc::{Config, Export, ExportBuilder, Import, ImportBuilder, Node, Region, Rights, Who};

/// An exporter and an importer, and what lies between them.
pub struct World {
    pub exporter: Node,
    pub importer: Node,
    /// The exporter's node, as the importer calls it.
    pub node: Option<&'static str>,
    /// Whether a fabric carries the packets.
    fabric: bool,
    /// Whether it writes long messages by itself.
    pub direct: bool,
    home: Home,
}

enum Home {
    One(Daemon),
    Two(Box<(Place, Place)>),
}

/// A node whose unexports wait for what a busy machine is slow to send: messages of several hundred kilobytes, sealed.
fn patient(daemon: &Daemon) -> Node {
    let config = Config { drain: Duration::from_secs(20), ..daemon.config() };
    Node::builder().config(config).connect().expect("connects")
}

/// What importers of a world find, by a node of the exporter's daemon.
pub fn exporting_by(node: &Node, len: usize) -> ExportBuilder {
    node.export(Region::new(len).unwrap()).name("x").grant(Who::SameUser, Rights::all())
}

impl World {
    pub fn shm() -> World {
        let daemon = Daemon::start();
        let (exporter, importer) = (patient(&daemon), daemon.node());
        World {
            exporter,
            importer,
            node: None,
            fabric: false,
            direct: false,
            home: Home::One(daemon),
        }
    }

    pub fn tcp() -> World {
        World::over(cluster::pair(), false)
    }

    /// On a way that keeps every piece for a while of its own.
    pub fn far() -> World {
        let at = cluster::address_of("a");
        let proxy = Proxy::to(&at);
        proxy.delay(Duration::from_micros(400));
        World::over(cluster::pair_by(&at, proxy.address()), false)
    }

    pub fn sealed() -> World {
        World::over(cluster::pair_with("[data]\nseal = true\n"), false)
    }

    /// Providers that stand in for hardware: reliable datagrams over TCP, in two implementations.
    pub fn ofi_rxm() -> World {
        World::over(cluster::pair_over("tcp;ofi_rxm"), true)
    }

    pub fn ofi_net() -> World {
        World::over(cluster::pair_over("net"), true)
    }

    /// As over a provider whose writes bring no data with them.
    pub fn told() -> World {
        let more = "[fabric]\nprovider = \"net\"\nnotice = \"message\"\n";
        World::over(cluster::pair_with(more), true)
    }

    /// With remote writes straight into exported pages.
    pub fn direct_rxm() -> World {
        World::direct("tcp;ofi_rxm")
    }

    pub fn direct_net() -> World {
        World::direct("net")
    }

    fn direct(provider: &str) -> World {
        let more = format!("[fabric]\nprovider = {provider:?}\ndirect = \"on\"\n");
        World { direct: true, ..World::over(cluster::pair_with(&more), true) }
    }

    fn over((a, b): (Place, Place), fabric: bool) -> World {
        let (exporter, importer) = (patient(&a.daemon), b.daemon.node());
        let home = Home::Two(Box::new((a, b)));
        World { exporter, importer, node: Some("a"), fabric, direct: false, home }
    }

    /// Packets went by the engine that is meant.
    pub fn check_engine(&self) {
        let count = |counter| self.importer.counters().get(counter);
        let over_fabric = if self.fabric { count(NET_PACKETS) } else { 0 };
        assert_eq!(count(FABRIC_PACKETS), over_fabric);
        if !self.direct {
            assert_eq!(count(DIRECT_WRITES), 0);
        }
        assert_eq!(count(DIRECT_REFUSED), 0);
    }

    pub fn exporters_daemon(&self) -> &Daemon {
        match &self.home {
            Home::One(daemon) => daemon,
            Home::Two(places) => &places.0.daemon,
        }
    }

    /// What the exporter's interface has counted.
    pub fn counted(&self, counter: &str) -> u64 {
        interface::counted(&self.exporters_daemon().socket(), counter)
    }

    pub fn importers_daemon(&self) -> &Daemon {
        match &self.home {
            Home::One(daemon) => daemon,
            Home::Two(places) => &places.1.daemon,
        }
    }

    pub fn exporting(&self, len: usize) -> ExportBuilder {
        exporting_by(&self.exporter, len)
    }

    pub fn export(&self, len: usize) -> Export {
        self.exporting(len).open().unwrap()
    }

    pub fn importing(&self, name: &str) -> ImportBuilder {
        let import = self.importer.import(name).rights(Rights::WRITE | Rights::READ);
        match self.node {
            Some(node) => import.node(node),
            None => import,
        }
    }

    pub fn import(&self) -> Import {
        self.importing("x").timeout(PATIENCE.unwrap()).open().unwrap()
    }
}

/// A module of tests per engine: `suite!(NAMES)`, each a function of a [`World`]; with `; between nodes: NAMES` those that say
/// nothing of one machine.
#[allow(unused_macros)]
macro_rules! suite {
    ($($name:ident),* $(,)?) => {
        suite!($($name),*; between nodes:);
    };
    ($($name:ident),* $(,)?; between nodes: $($far:ident),* $(,)?) => {
        suite!(shm as shm: $($name),*);
        suite!(between nodes: $($name,)* $($far),*);
    };
    (between nodes: $($name:ident),* $(,)?) => {
        suite!(tcp as tcp: $($name),*);
        suite!(far as far: $($name),*);
        suite!(sealed as sealed: $($name),*);
        suite!(ofi_rxm as ofi_rxm: $($name),*);
        suite!(ofi_net as ofi_net: $($name),*);
        suite!(told as told: $($name),*);
        suite!(direct_rxm as direct_rxm: $($name),*);
        suite!(direct_net as direct_net: $($name),*);
    };
    ($engine:ident as $module:ident: $($name:ident),*) => {
        mod $module {
            $(#[test] fn $name() {
                let world = crate::engine::World::$engine();
                crate::$name(&world);
                world.check_engine();
            })*
        }
    };
}
