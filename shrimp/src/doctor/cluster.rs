//! The other nodes of the cluster: whether they answer, and whether what both sides say of their links fits together.
//!
//! The daemon is asked, which knows the cluster file and the key, and looks at each node.

use super::Finding;
use crate::client::Daemon;
use crate::text;
use std::net::SocketAddr;
use vmmc::control::network::{Presence, Sight};

const CLUSTER: &str = "Cluster";

/// What to do so that there is one.
const HOW: &str = "none: this machine alone. To reach others, write a cluster file (README.md, \"Several machines\") and a key, the same on \
                   all nodes, and start vmmcd with `--cluster FILE`";

/// All findings.
pub(super) fn findings(mut daemon: Daemon) -> Vec<Finding> {
    match daemon.sights() {
        Ok(Some(sights)) => {
            let mut findings = judge(&sights);
            findings.extend(rustix::process::geteuid().is_root().then(of_root));
            findings
        }
        Ok(None) => vec![Finding::info(CLUSTER, "nodes", HOW)],
        Err(error) => vec![wrong("nodes", &error.to_string())],
    }
}

/// What root has to know, which no node tells.
fn of_root() -> Finding {
    Finding::info(
        CLUSTER,
        "user root",
        "counts as nobody on the other nodes, but on those whose cluster file has `root = true` under [users]",
    )
}

/// A text with its remedy behind a semicolon, as those of the daemon are.
fn wrong(what: &str, text: &str) -> Finding {
    let (found, remedy) = text.split_once("; ").unwrap_or((text, "look at the logs of both vmmcd"));
    Finding::attention(CLUSTER, what, found, remedy)
}

/// What the daemon knows of itself.
struct Own<'s> {
    presence: &'s Presence,
    has_key: bool,
    wire: u16,
}

fn judge(sights: &[Sight]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut own = None;
    for sight in sights {
        match (sight, &own) {
            (Sight::Own { presence, listen, has_key, wire, others }, _) => {
                let this = Own { presence, has_key: *has_key, wire: *wire };
                findings.extend(of_own(&this, listen, *others));
                own = Some(this);
            }
            (Sight::Other { node, address, connections, seen }, Some(own)) => {
                let what = format!("node {node:?}");
                findings.extend(match seen {
                    Ok((theirs, nanos)) => {
                        of_other(own, &what, theirs, (address, *connections, *nanos))
                    }
                    Err(why) => vec![wrong(&what, &unanswered(address, why))],
                });
            }
            (Sight::Other { .. }, None) => {} // the daemon tells of itself first
        }
    }
    findings.extend(out_of_reach(sights));
    // Other daemons' words are among them.
    for finding in &mut findings {
        finding.found = text::printable(&finding.found);
        finding.remedy = finding.remedy.as_deref().map(text::printable);
    }
    findings
}

/// Others are on other machines, and this node listens where its own machine alone finds it: `localhost`, or a host name to which
/// `/etc/hosts` gives such an address, as Debian does.
fn out_of_reach(sights: &[Sight]) -> Option<Finding> {
    let is_here = |address: &str| {
        let parsed = address.parse::<SocketAddr>();
        parsed.map_or(address.starts_with("localhost"), |address| address.ip().is_loopback())
    };
    let listen = sights.iter().find_map(|sight| match sight {
        Sight::Own { listen, .. } => Some(listen),
        Sight::Other { .. } => None,
    })?;
    let other = sights.iter().find_map(|sight| match sight {
        Sight::Other { address, .. } if !is_here(address) => Some(address),
        _ => None,
    })?;
    is_here(listen).then(|| {
        Finding::attention(
            CLUSTER,
            "listen",
            format!("{listen} is found from this machine alone, and there are others, as {other}"),
            "write the address by which the others reach this machine as `listen` in its cluster file, and restart vmmcd",
        )
    })
}

/// The address once, whether or not the reason has it.
fn unanswered(address: &str, why: &str) -> String {
    if why.contains(address) { why.to_owned() } else { format!("{address}: {why}") }
}

/// How data go, in words.
fn engine(of: &Presence) -> String {
    match &of.fabric {
        Some(provider) if of.direct => {
            format!("over libfabric's {provider}, long messages straight into exported pages")
        }
        Some(provider) => format!("over libfabric's {provider}"),
        None if of.seals => "over TCP, sealed".to_owned(),
        None => "over TCP, not sealed".to_owned(),
    }
}

fn of_own(own: &Own<'_>, listen: &str, others: u32) -> Vec<Finding> {
    let presence = own.presence;
    let mut findings = vec![Finding::ok(
        CLUSTER,
        "this node",
        format!(
            "{:?} on {listen}, one of {}; protocol {} between nodes, packets {}",
            presence.node,
            others.saturating_add(1),
            own.wire,
            engine(presence),
        ),
    )];
    findings.push(if own.has_key {
        Finding::ok(CLUSTER, "key", "used: nodes prove to each other that they know it")
    } else {
        Finding::info(
            CLUSTER,
            "key",
            "none, so that only loopback addresses are allowed, nodes of this machine. For others make one (head -c 32 /dev/urandom | xxd -p -c 64), \
             chmod 600, copy it to all nodes, and name it with `key` in their cluster files",
        )
    });
    findings.extend(presence.trouble.as_deref().map(|why| wrong("fabric", why)));
    findings
}

fn of_other(
    own: &Own<'_>,
    what: &str,
    theirs: &Presence,
    (address, connections, nanos): (&str, u32, u64),
) -> Vec<Finding> {
    let mut findings = vec![Finding::ok(
        CLUSTER,
        what,
        format!(
            "{address} answers in {}, vmmcd {}, protocol {}, {}; packets {}; data connections: {connections} there, {} back",
            text::nanos(nanos as f64),
            theirs.version,
            own.wire,
            if own.has_key { "has proved the key" } else { "no key" },
            engine(theirs),
            theirs.connections,
        ),
    )];
    findings.extend(disagreement(own.presence, theirs).map(|text| wrong(what, &text)));
    findings.extend(theirs.trouble.as_deref().map(|why| wrong(what, why)));
    findings
}

/// Why no import between the two would be granted, though both answer.
fn disagreement(ours: &Presence, theirs: &Presence) -> Option<String> {
    let provider =
        |of: &Presence| of.fabric.as_ref().map_or("none".to_owned(), |it| format!("{it:?}"));
    if ours.fabric != theirs.fabric {
        return Some(format!(
            "fabric provider {} here, {} there, so that no import is granted; write the same [fabric] into both cluster files",
            provider(ours),
            provider(theirs),
        ));
    }
    if ours.seals != theirs.seals {
        return Some(format!(
            "seal = {} here, {} there, so that no import is granted; write the same under [data] of both cluster files",
            ours.seals, theirs.seals,
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn presence(node: &str) -> Presence {
        Presence {
            node: node.to_owned(),
            version: "0.1.0".to_owned(),
            seals: false,
            fabric: None,
            direct: false,
            trouble: None,
            connections: 2,
        }
    }

    fn told(own: Presence, has_key: bool, seen: Result<(Presence, u64), String>) -> Vec<Finding> {
        let listen = "127.0.0.1:1".to_owned();
        let (node, address) = ("b".to_owned(), "127.0.0.2:1".to_owned());
        judge(&[
            Sight::Own { presence: own, listen, has_key, wire: 7, others: 1 },
            Sight::Other { node, address, connections: 3, seen },
        ])
    }

    #[track_caller]
    fn needs(findings: &[Finding], found: &str, remedy: &str) {
        let is = |it: &&Finding| it.found.contains(found) && it.state == State::Attention;
        let finding = findings.iter().find(is).unwrap_or_else(|| panic!("{findings:#?}"));
        assert!(finding.remedy.as_deref().unwrap().contains(remedy), "{finding:?}");
    }

    #[test]
    fn two_nodes_that_agree_need_nothing_and_are_described() {
        let findings = told(presence("a"), true, Ok((presence("b"), 85_000)));
        assert!(findings.iter().all(|it| it.state == State::Ok), "{findings:?}");
        let other = &findings.last().unwrap().found;
        for word in [
            "127.0.0.2:1 answers in 85.0 us",
            "protocol 7",
            "proved the key",
            "3 there, 2 back",
            "over TCP, not sealed",
        ] {
            assert!(other.contains(word), "no {word:?} in {other}");
        }
    }

    #[test]
    fn a_node_that_the_others_cannot_find_is_told_of() {
        let sights = |listen: &str, address: &str| {
            let (listen, address) = (listen.to_owned(), address.to_owned());
            let presence = presence("a");
            [
                Sight::Own { presence, listen, has_key: true, wire: 7, others: 1 },
                Sight::Other {
                    node: "b".to_owned(),
                    address,
                    connections: 0,
                    seen: Err("x".into()),
                },
            ]
        };
        let told = |listen, address| out_of_reach(&sights(listen, address));
        let finding = told("127.0.1.1:4790", "b.example.org:4790").unwrap();
        needs(&[finding], "127.0.1.1:4790 is found from this machine alone", "`listen`");
        assert!(told("10.0.0.1:4790", "b.example.org:4790").is_none());
        assert!(told("127.0.0.1:4790", "127.0.0.2:4790").is_none());
        assert!(told("[::1]:4790", "localhost:4791").is_none());
    }

    #[test]
    fn what_two_nodes_do_not_agree_on_is_told_with_the_remedy() {
        let over =
            |node, provider: &str| Presence { fabric: Some(provider.to_owned()), ..presence(node) };
        let findings = told(over("a", "net"), true, Ok((presence("b"), 1)));
        needs(&findings, "\"net\" here, none there", "same [fabric]");
        let findings = told(over("a", "net"), true, Ok((over("b", "tcp;ofi_rxm"), 1)));
        needs(&findings, "\"net\" here, \"tcp;ofi_rxm\" there", "same [fabric]");
        let sealed = Presence { seals: true, ..presence("a") };
        let findings = told(sealed, true, Ok((presence("b"), 1)));
        needs(&findings, "seal = true here, false there", "[data]");
    }

    #[test]
    fn a_provider_that_is_not_to_be_had_is_told_of_either_node() {
        let trouble = || Presence {
            fabric: Some("efa".to_owned()),
            trouble: Some(
                "libfabric has no provider \"efa\"; `fi_info` lists what there is".to_owned(),
            ),
            ..presence("x")
        };
        let fine = || Presence { trouble: None, ..trouble() };
        needs(&told(trouble(), true, Ok((fine(), 1))), "no provider \"efa\"", "fi_info");
        let findings = told(fine(), true, Ok((trouble(), 1)));
        needs(&findings, "no provider \"efa\"", "fi_info");
        assert!(findings.iter().any(|it| it.state == State::Attention && it.what == "node \"b\""));
    }

    #[test]
    fn without_a_key_the_limit_is_told_and_how_to_make_one() {
        let findings = told(presence("a"), false, Ok((presence("b"), 1)));
        let key = findings.iter().find(|it| it.what == "key").unwrap();
        assert_eq!(key.state, State::Info);
        assert!(key.found.contains("loopback") && key.found.contains("/dev/urandom"));
    }

    #[test]
    fn another_daemons_words_cannot_reach_the_terminal_raw() {
        let evil = || "\x1b[2J; \x1b[2J".to_owned();
        let theirs = Presence {
            version: evil(),
            fabric: Some(evil()),
            trouble: Some(evil()),
            ..presence("b")
        };
        for seen in [Ok((theirs, 1)), Err(evil())] {
            let findings = told(presence("a"), true, seen);
            let texts = |it: &Finding| format!("{}{:?}", it.found, it.remedy);
            assert!(findings.iter().all(|it| !texts(it).contains('\x1b')), "{findings:?}");
        }
    }

    #[test]
    fn who_does_not_answer_is_named_with_its_address_once() {
        let why = "it does not answer; is its vmmcd running?".to_owned();
        needs(&told(presence("a"), true, Err(why)), "127.0.0.2:1: it does not answer", "running");
        let why = "127.0.0.2:1 is not a loopback address".to_owned();
        needs(&told(presence("a"), true, Err(why.clone())), &why, "logs");
    }
}
