//! Data between nodes, sealed: who listens on the way learns nothing, who changes something ends the connection.

#[path = "support/cluster.rs"]
mod cluster;
mod common;
#[path = "support/proxy.rs"]
mod proxy;

use cluster::{KEY, Place, address_of, node_with};
use common::{PATIENCE, export};
use proxy::Proxy;
use vmmc::error::{ImportError, WaitError};
use vmmc::{CloseReason, Import, Node, Rights};

const SEAL: &str = "[data]\nseal = true\n";
const SECRET: &[u8] = b"a text that nobody on the way is to read";

/// Two nodes with a proxy on the way from `b` to `a`, and what their cluster files say.
fn apart(of_a: &str, of_b: &str) -> (Place, Place, Proxy) {
    let address = address_of("a");
    let proxy = Proxy::to(&address);
    let a = node_with("a", &address, &[], Some(KEY), of_a);
    let b = node_with("b", &address_of("b"), &[("a", proxy.address())], Some(KEY), of_b);
    (a, b, proxy)
}

fn import(node: &Node) -> Result<Import, ImportError> {
    let import = node.import("x").node("a").rights(Rights::WRITE | Rights::READ);
    import.timeout(PATIENCE.unwrap()).open()
}

fn holds(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|window| window == part)
}

#[test]
fn who_listens_on_the_way_reads_nothing_of_what_is_sealed() {
    for (seal, readable) in [("", true), (SEAL, false)] {
        let (a, b, proxy) = apart(seal, seal);
        let (exporter, importer) = (a.daemon.node(), b.daemon.node());
        let export = export(&exporter, "x", 64 << 10);
        let import = import(&importer).unwrap();
        proxy.listen();
        for at in [0, 100, 5000] {
            import.send(at, SECRET).unwrap();
        }
        import.fence().unwrap();
        let heard = proxy.heard();
        assert!(heard.len() > 3 * SECRET.len());
        assert_eq!(holds(&heard, SECRET), readable, "{seal:?}");
        let mut found = [0; SECRET.len()];
        for at in [0, 100, 5000] {
            export.read(at, &mut found).unwrap();
            assert_eq!(found, SECRET);
        }
        // The same bytes twice are not the same on the way.
        proxy.listen();
        import.fence().unwrap();
        let first = proxy.heard();
        proxy.listen();
        import.fence().unwrap();
        assert!(readable || !holds(&proxy.heard(), &first[2..]), "{seal:?}");
    }
}

#[test]
fn what_was_changed_on_the_way_ends_the_connection_and_reaches_no_page() {
    let (a, b, proxy) = apart(SEAL, SEAL);
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let export = export(&exporter, "x", 4096);
    for (round, to_target) in [(1u8, true), (2, false), (3, true), (4, false)] {
        let import = import(&importer).unwrap();
        import.send_fenced(0, &[round; 100]).unwrap();
        proxy.spoil(to_target);
        // What goes there arrives when the answer is what was changed.
        let bytes = if to_target { [0xff; 100] } else { [round; 100] };
        let sent = import.send_fenced(0, &bytes);
        assert!(sent.is_err(), "{sent:?}");
        match import.fence() {
            Err(WaitError::Closed(closed)) => assert_eq!(closed.reason, CloseReason::Unreachable),
            other => panic!("{other:?}"),
        }
        let mut found = [0; 100];
        export.read(0, &mut found).unwrap();
        assert_eq!(found, [round; 100]);
    }
}

#[test]
fn nodes_that_do_not_agree_are_told_what_to_write() {
    for (of_a, of_b) in [(SEAL, ""), ("", SEAL)] {
        let (a, b, _proxy) = apart(of_a, of_b);
        let (exporter, importer) = (a.daemon.node(), b.daemon.node());
        let _export = export(&exporter, "x", 4096);
        let error = import(&importer).unwrap_err().to_string();
        assert!(error.contains("seal = ") && error.contains("both cluster files"), "{error}");
    }
}
