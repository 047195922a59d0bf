//! Rules: which connections of which programs may be upgraded.
//!
//! ```text
//!   rules  = rule *( ";" rule )
//!   rule   = ( "allow" / "deny" ) *( condition )
//!   condition = "program=" name      name of the program's file, or of its first argument; "*" for any part
//!             / "port=" n [ "-" m ]  port of either end
//!             / "address=" ip [ "/" bits ]   address of either end
//!             / "uid=" n             effective user of the program
//! ```
//!
//! The first rule whose conditions all hold decides. A connection that none decides about may be upgraded.
//! So `deny port=22; deny program=curl*` leaves two kinds alone, and `allow port=6379; deny`
//! upgrades one kind only. Each end has its own rules; both must allow.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Rules in their order. None: everything is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    allow: bool,
    program: Option<String>,
    ports: Option<(u16, u16)>,
    address: Option<(IpAddr, u8)>,
    uid: Option<u32>,
}

/// A rule that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule {rule:?}: {word:?} {reason}; {remedy}")]
pub struct RuleError {
    /// The whole rule.
    pub rule: String,
    /// The word that is wrong.
    pub word: String,
    /// Why.
    pub reason: &'static str,
    /// What to write instead.
    pub remedy: &'static str,
}

/// The program that asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asker {
    /// Names it goes by: of its file, and of its first argument; without directories.
    pub names: Vec<String>,
    /// Its effective user.
    pub uid: u32,
}

impl Asker {
    /// This process.
    #[must_use]
    pub fn current() -> Asker {
        let base =
            |path: std::path::PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
        let file = std::env::current_exe().ok().and_then(base);
        let called = std::env::args_os().next().and_then(|name| base(name.into()));
        let names = file.into_iter().chain(called).collect();
        Asker { names, uid: rustix::process::geteuid().as_raw() }
    }
}

impl Rules {
    /// Whether a connection between these addresses may be upgraded. Allocates nothing.
    #[must_use]
    pub fn allow(&self, asker: &Asker, local: SocketAddr, remote: SocketAddr) -> bool {
        let decides = |rule: &&Rule| rule.holds(asker, [local, remote]);
        self.0.iter().find(decides).is_none_or(|rule| rule.allow)
    }
}

impl Rule {
    fn holds(&self, asker: &Asker, ends: [SocketAddr; 2]) -> bool {
        let some = |holds: &dyn Fn(SocketAddr) -> bool| ends.iter().any(|&end| holds(end));
        self.uid.is_none_or(|uid| uid == asker.uid)
            && self
                .ports
                .is_none_or(|(first, last)| some(&|end| (first..=last).contains(&end.port())))
            && self.address.is_none_or(|(net, bits)| some(&|end| is_inside(end.ip(), net, bits)))
            && self
                .program
                .as_deref()
                .is_none_or(|pattern| asker.names.iter().any(|name| is_like(name, pattern)))
    }
}

/// Whether the first `bits` bits of two addresses of one family are the same.
fn is_inside(ip: IpAddr, net: IpAddr, bits: u8) -> bool {
    let (ip, net, len) = match (ip.to_canonical(), net.to_canonical()) {
        (IpAddr::V4(ip), IpAddr::V4(net)) => (ip.to_bits().into(), net.to_bits().into(), 32),
        (IpAddr::V6(ip), IpAddr::V6(net)) => (ip.to_bits(), net.to_bits(), 128u32),
        _ => return false,
    };
    let ignored = len.saturating_sub(bits.into());
    ignored >= len || (ip ^ net) >> ignored == 0u128
}

/// Whether a name matches a pattern in which `*` stands for any part.
fn is_like(name: &str, pattern: &str) -> bool {
    let Some((start, mut rest)) = pattern.split_once('*') else { return name == pattern };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    while let Some((part, more)) = rest.split_once('*') {
        let Some(at) = name.find(part) else { return false };
        name = name.get(at + part.len()..).unwrap_or_default();
        rest = more;
    }
    name.ends_with(rest)
}

impl FromStr for Rules {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Rules, RuleError> {
        text.split(';')
            .map(str::trim)
            .filter(|rule| !rule.is_empty())
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map(Rules)
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Rule, RuleError> {
        let wrong = |word: &str, reason, remedy| RuleError {
            rule: text.to_owned(),
            word: word.to_owned(),
            reason,
            remedy,
        };
        let mut words = text.split_whitespace();
        let verb = words.next().unwrap_or_default();
        let mut rule = match verb {
            "allow" => Rule { allow: true, ..Rule::default() },
            "deny" => Rule::default(),
            _ => return Err(wrong(verb, "is no verb", "begin with \"allow\" or \"deny\"")),
        };
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                let remedy = "write program=, port=, address= or uid= and a value";
                return Err(wrong(word, "is no condition", remedy));
            };
            let again = || wrong(word, "is there already", "write two rules instead");
            match key {
                "program" if rule.program.is_some() => return Err(again()),
                "program" if !value.is_empty() && !value.contains('/') => {
                    rule.program = Some(value.to_owned());
                }
                "program" => {
                    let remedy =
                        "give the name of the file without its directory, as in program=redis*";
                    return Err(wrong(word, "names no program", remedy));
                }
                "port" if rule.ports.is_some() => return Err(again()),
                "port" => {
                    let remedy = "give one of 1 to 65535, or two, as in port=8000-8099";
                    let ports = ports(value).ok_or_else(|| wrong(word, "is no port", remedy))?;
                    rule.ports = Some(ports);
                }
                "address" if rule.address.is_some() => return Err(again()),
                "address" => {
                    let remedy = "give one, as in address=127.0.0.1 or address=10.0.0.0/8";
                    let address = address(value);
                    rule.address =
                        Some(address.ok_or_else(|| wrong(word, "is no address", remedy))?);
                }
                "uid" if rule.uid.is_some() => return Err(again()),
                "uid" => {
                    let remedy = "give its number, as `id -u NAME` prints it";
                    let uid = value.parse().map_err(|_| wrong(word, "is no user", remedy))?;
                    rule.uid = Some(uid);
                }
                _ => {
                    let remedy = "there are program=, port=, address= and uid=";
                    return Err(wrong(word, "is an unknown condition", remedy));
                }
            }
        }
        Ok(rule)
    }
}

fn ports(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first > 0 && first <= last).then_some((first, last))
}

fn address(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, bits) = match text.split_once('/') {
        Some((ip, bits)) => (ip, Some(bits)),
        None => (text, None),
    };
    let ip: IpAddr = ip.parse().ok()?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Some(most), |bits| bits.parse().ok())?;
    (bits <= most).then_some((ip, bits))
}

impl fmt::Display for Rules {
    /// As it would be written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, rule) in self.0.iter().enumerate() {
            f.write_str(if at > 0 { "; " } else { "" })?;
            f.write_str(if rule.allow { "allow" } else { "deny" })?;
            if let Some(program) = &rule.program {
                write!(f, " program={program}")?;
            }
            if let Some((first, last)) = rule.ports {
                write!(f, " port={first}-{last}")?;
            }
            if let Some((ip, bits)) = rule.address {
                write!(f, " address={ip}/{bits}")?;
            }
            if let Some(uid) = rule.uid {
                write!(f, " uid={uid}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker() -> Asker {
        Asker { names: vec!["redis-server".to_owned(), "redis".to_owned()], uid: 33 }
    }

    fn allows(rules: &str) -> bool {
        let rules: Rules = rules.parse().unwrap();
        assert_eq!(rules.to_string().parse(), Ok(rules.clone()));
        let address = |text: &str| text.parse().unwrap();
        rules.allow(&asker(), address("127.0.0.1:6379"), address("127.0.0.1:50000"))
    }

    #[test]
    fn the_first_rule_that_holds_decides_and_none_allows() {
        assert!(allows(""));
        assert!(!allows("deny"));
        assert!(allows("allow port=6379; deny"));
        assert!(!allows("deny port=6379; allow"));
        assert!(allows("deny port=80; deny uid=0"));
    }

    #[test]
    fn a_rule_holds_when_all_its_conditions_do() {
        for (rule, holds) in [
            ("program=redis", true),
            ("program=redis-*r", true),
            ("program=*-s*er", true),
            ("program=redis-", false),
            ("program=nginx", false),
            ("port=50000", true),
            ("port=6000-6500", true),
            ("port=1-6378", false),
            ("address=127.0.0.0/8", true),
            ("address=127.0.0.2", false),
            ("address=0.0.0.0/0", true),
            ("address=::1", false),
            ("uid=33", true),
            ("uid=0", false),
            ("uid=33 port=6379 program=redis", true),
            ("uid=33 port=6379 program=nginx", false),
        ] {
            assert_eq!(allows(&format!("deny {rule}")), !holds, "{rule}");
        }
    }

    #[test]
    fn a_mapped_address_is_the_address_it_maps() {
        let rules: Rules = "deny address=10.1.0.0/16".parse().unwrap();
        let address = "[::ffff:10.1.2.3]:80".parse().unwrap();
        assert!(!rules.allow(&asker(), address, address));
    }

    #[test]
    fn a_bad_rule_is_named_with_reason_and_remedy() {
        for (text, word) in [
            ("permit", "permit"),
            ("deny; alow port=1", "alow"),
            ("deny redis", "redis"),
            ("deny program=", "program="),
            ("deny program=/usr/bin/x", "program=/usr/bin/x"),
            ("deny port=0", "port=0"),
            ("deny port=9-8", "port=9-8"),
            ("deny port=70000", "port=70000"),
            ("deny address=10.0.0.0/33", "address=10.0.0.0/33"),
            ("deny address=localhost", "address=localhost"),
            ("deny uid=root", "uid=root"),
            ("deny colour=red", "colour=red"),
            ("deny port=1 port=2", "port=2"),
        ] {
            let error = text.parse::<Rules>().unwrap_err();
            assert_eq!(error.word, word, "{text}");
            assert!(error.to_string().contains(error.remedy) && !error.remedy.is_empty());
        }
    }
}
