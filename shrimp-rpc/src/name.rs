//! Names of services: what they may be, what the daemon knows them as, and how a client names one of another node.

use vmmc::Name;
use vmmc::control::network::{NODE_NAME_MAX, is_node_name};
use vmmc::id::NAME_MAX_BYTES;

/// Before a service's name in that of its door, the export that its clients knock at.
const DOOR: &str = "rpc:";
/// Longest name of a service, in bytes.
pub const MAX_BYTES: usize = NAME_MAX_BYTES - DOOR.len();
/// Between a service's name and its node's.
pub const AT: char = '@';
/// So much of a name that is too long is shown, in characters.
const SHOWN: usize = 40;

/// No service, or no node, can have that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {shown:?}{}: a name {why}", if *.cut { " and so on" } else { "" })]
pub struct BadName {
    /// Whose name it was to be.
    what: &'static str,
    /// Its beginning.
    shown: String,
    /// Whether that is not all of it.
    cut: bool,
    /// What a name has to be, or not.
    why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Why {
    #[error("needs at least one character that is no blank")]
    Blank,
    #[error("has at most {MAX_BYTES} bytes, not {0}")]
    Long(usize),
    #[error("has 1 to {NODE_NAME_MAX} bytes, no blanks and no control characters")]
    Node,
    #[error("has no control characters")]
    Control,
    #[error("has no '@', which stands before the node in a client's")]
    At,
}

/// Name of the export that a service's clients knock at.
#[must_use]
pub fn door(service: &str) -> Name {
    Name::Text(format!("{DOOR}{service}"))
}

/// Takes a client's `service@node` apart; without a node it is this one.
#[must_use]
pub fn split(name: &str) -> (&str, Option<&str>) {
    match name.rsplit_once(AT) {
        Some((service, node)) => (service, Some(node)),
        None => (name, None),
    }
}

/// Whether a service can have that name.
///
/// # Errors
/// [`BadName`] when it can not.
pub fn check(service: &str) -> Result<(), BadName> {
    let why = if service.trim().is_empty() {
        Why::Blank
    } else if service.len() > MAX_BYTES {
        Why::Long(service.len())
    } else if service.contains(char::is_control) {
        Why::Control
    } else if service.contains(AT) {
        Why::At
    } else {
        return Ok(());
    };
    Err(bad("service", service, why))
}

/// Whether that can be a node, as a client names one.
///
/// # Errors
/// [`BadName`] when it can not.
pub fn check_node(node: &str) -> Result<(), BadName> {
    if is_node_name(node) { Ok(()) } else { Err(bad("node", node, Why::Node)) }
}

fn bad(what: &'static str, name: &str, why: Why) -> BadName {
    let shown: String = name.chars().take(SHOWN).collect();
    BadName { what, cut: shown.len() < name.len(), shown, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_service_can_have_is_told_why() {
        for name in ["x", "a b", "größe", "rpc:x", &"x".repeat(MAX_BYTES)] {
            assert_eq!(check(name), Ok(()));
            assert!(door(name).is_valid(), "{name}");
        }
        let says = |name: &str| check(name).unwrap_err().to_string();
        assert_eq!(says(""), r#"service "": a name needs at least one character that is no blank"#);
        assert!(says(" \t").contains("no blank"));
        assert!(says("a\nb").ends_with(r#""a\nb": a name has no control characters"#));
        assert!(says("a@b").contains("no '@'"));
        let long = says(&"ä".repeat(2_500));
        assert!(long.contains("at most 251 bytes, not 5000") && long.contains("and so on"));
        assert!(long.len() < 200, "{long}");
        assert_eq!(check_node("a"), Ok(()));
        for node in ["", "a b", &"n".repeat(NODE_NAME_MAX + 1)] {
            let refused = check_node(node).unwrap_err().to_string();
            assert!(refused.starts_with("node \"") && refused.contains("1 to 64"), "{refused}");
        }
    }

    #[test]
    fn a_clients_name_may_have_a_node() {
        assert_eq!(split("x"), ("x", None));
        assert_eq!(split("x@a"), ("x", Some("a")));
        assert_eq!(split("x@y@a"), ("x@y", Some("a")));
    }
}
